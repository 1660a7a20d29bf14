// The matrix products of the CPU device against plain loops in double, and their laws: the same
// bits for any number of threads, rows and panels cut without changing a bit, no allocation by a
// prepared plan.
#define BOOST_TEST_DYN_LINK
#define BOOST_TEST_MODULE product
#include <boost/test/unit_test.hpp>

#include <megacpp/product/product.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>

namespace {
std::atomic<long> own_allocations{0};
std::atomic<long> failing_allocation{-1}; ///< the number of the one that finds no memory
} // namespace
// Counts what C++ code allocates, oneDNN's included. Eigen's packing buffers come from malloc and
// are not counted.
[[gnu::noinline]] void* operator new(std::size_t n) {
  if (own_allocations++ == failing_allocation) throw std::bad_alloc();
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using mc::bf16;
using mc::dtype;
using mc::product_kind;
using mc::product_shape;
using mc::product_type;

/// A value in [-1, 1), the same for the same place.
double value(std::uint64_t key, std::int64_t i) {
  std::uint64_t x =
      key * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(i) * 0xd1b54a32d192ed03ull;
  x ^= x >> 32;
  x *= 0xd6e8feb86659fd93ull;
  x ^= x >> 32;
  return static_cast<double>(x >> 11) * 0x1p-52 - 1.0;
}

struct matrix { // any element type, with room between rows that must stay untouched
  dtype type;
  std::int64_t rows, columns, stride;
  std::vector<std::byte> bytes;
  matrix(dtype t, std::int64_t r, std::int64_t c, std::int64_t s, std::uint64_t key)
      : type(t),
        rows(r),
        columns(c),
        stride(s),
        bytes(static_cast<std::size_t>(r * s * mc::size_of(t))) {
    for (std::int64_t i = 0; i < r * s; ++i) set(i, value(key, i));
  }
  void set(std::int64_t i, double v) {
    if (type == dtype::f64) reinterpret_cast<double*>(bytes.data())[i] = v;
    else if (type == dtype::f32) reinterpret_cast<float*>(bytes.data())[i] = static_cast<float>(v);
    else reinterpret_cast<bf16*>(bytes.data())[i] = bf16(static_cast<float>(v));
  }
  double get(std::int64_t r, std::int64_t c) const {
    const std::int64_t i = r * stride + c;
    if (type == dtype::f64) return reinterpret_cast<const double*>(bytes.data())[i];
    if (type == dtype::f32) return reinterpret_cast<const float*>(bytes.data())[i];
    return static_cast<float>(reinterpret_cast<const bf16*>(bytes.data())[i]);
  }
  std::byte* at(std::int64_t r, std::int64_t c) {
    return bytes.data() + (r * stride + c) * mc::size_of(type);
  }
};

/// A call on a lane with room for whatever an engine has prepared.
mc::product_call call_of(const mc::product_engine& engine, const void* a, const void* b,
                         const void* bias, void* out, std::int64_t rows = -1) {
  static mc::cpu_lane on;
  on.reserve({.workspace = engine.workspace_bytes()});
  static constexpr float scales[2] = {0.75f, -2.5f};
  return {on, a, b, bias, out, rows, {&scales[0], &scales[1]}};
}

struct problem {
  product_shape s;
  matrix a, b, bias, out;
  std::int64_t rows;
  explicit problem(const product_shape& shape, std::int64_t m = -1)
      : s(shape),
        a(first()),
        b(second()),
        bias(shape.b, 1, shape.N, shape.N, 3),
        out(result()),
        rows(m) {}
  matrix first() const {
    const bool f = s.kind == product_kind::forward;
    return f ? matrix(s.a, s.M, s.K, s.x_row(), 1) : matrix(s.a, s.M, s.N, s.y_row(), 1);
  }
  matrix second() const {
    return s.kind == product_kind::weight_gradient ? matrix(s.b, s.M, s.K, s.x_row(), 2)
                                                   : matrix(s.b, s.N, s.K, s.K, 2);
  }
  matrix result() const {
    switch (s.kind) {
    case product_kind::forward: return matrix(s.out, s.M, s.N, s.y_row(), 4);
    case product_kind::input_gradient: return matrix(s.out, s.M, s.K, s.x_row(), 4);
    default: return matrix(s.out, s.N, s.K, s.K, 4);
    }
  }
  void run(mc::product_engine& engine) {
    engine.prepare(s).execute(call_of(engine, a.bytes.data(), b.bytes.data(),
                                      s.bias ? bias.bytes.data() : nullptr, out.bytes.data(),
                                      rows));
  }
};

/// The largest |got - expected| over sum |terms| * epsilon of fp32 (fp64), plus half an ulp of
/// output.
double excess(const problem& p) {
  const matrix before = p.result();
  const auto doubles = [](const matrix& m, bool transposed) { // rows, or columns, one by one
    std::vector<double> v;
    v.reserve(static_cast<std::size_t>(m.rows * m.columns));
    for (std::int64_t i = 0; i < (transposed ? m.columns : m.rows); ++i)
      for (std::int64_t j = 0; j < (transposed ? m.rows : m.columns); ++j)
        v.push_back(transposed ? m.get(j, i) : m.get(i, j));
    return v;
  };
  const bool gradient = p.s.kind == product_kind::weight_gradient;
  const auto a = doubles(p.a, gradient), b = doubles(p.b, p.s.kind != product_kind::forward);
  const std::int64_t length = gradient ? p.s.M : p.a.columns; // of a stored sum
  const std::int64_t M = p.rows < 0 ? p.s.M : p.rows;
  const double eps = p.s.a == dtype::f64 ? 0x1p-53 : 0x1p-24;
  const double out_eps = p.s.out == dtype::bf16  ? 0x1p-8
                         : p.s.out == dtype::f64 ? 0x1p-53
                                                 : 0x1p-24;
  double worst = 0;
  for (std::int64_t r = 0; r < p.out.rows; ++r) {
    for (std::int64_t c = 0; c < p.out.stride; ++c) {
      double sum = 0, size = 0;
      const bool inside = c < p.out.columns && (gradient || r < M);
      std::int64_t terms = 0;
      if (inside) {
        terms = gradient ? M : length;
        const double *x = a.data() + r * length, *y = b.data() + c * length;
        for (std::int64_t k = 0; k < terms; ++k) sum += x[k] * y[k], size += std::abs(x[k] * y[k]);
        if (p.s.scaled) {
          const double factor = 0.75 * -2.5; // of the scales of every call
          sum *= factor, size *= std::abs(factor);
        }
        if (p.s.bias) sum += p.bias.get(0, c), size += std::abs(p.bias.get(0, c));
      }
      if (!inside || p.s.accumulate) sum += before.get(r, c), size += std::abs(before.get(r, c));
      const double allowed =
          inside ? eps * size * static_cast<double>(terms + 2) + out_eps * std::abs(sum) : 0;
      const double off = std::abs(p.out.get(r, c) - sum);
      if (!(off <= allowed)) worst = std::max(worst, std::isnan(off) ? 1e30 : off - allowed);
    }
  }
  return worst;
}

std::string name(const product_shape& s) {
  const char* kinds[] = {"forward", "input_gradient", "weight_gradient"};
  return std::string(kinds[static_cast<int>(s.kind)]) + " " + std::to_string(s.M) + "x" +
         std::to_string(s.N) + "x" + std::to_string(s.K) + " " + mc::name_of(s.a) + "->" +
         mc::name_of(s.out) + (s.scaled ? " scaled" : "") + (s.bias ? " bias" : "") +
         (s.accumulate ? " accumulate" : "") + (s.dynamic_rows ? " dynamic" : "") + " strides " +
         std::to_string(s.x_stride) + "," + std::to_string(s.y_stride) + " chunk " +
         std::to_string(s.sum_block) + " panel " + std::to_string(s.panel) + " part " +
         std::to_string(s.segment) + " " + mc::name_of(s.sums);
}

constexpr product_kind kinds[] = {product_kind::forward, product_kind::input_gradient,
                                  product_kind::weight_gradient};
constexpr mc::numerics policies[] = {mc::numerics::fast, mc::numerics::batch_invariant};
constexpr std::int64_t extents[][3] = {{1, 1, 1},     {1, 64, 33},  {17, 33, 5},    {5, 1, 7},
                                       {65, 67, 130}, {3, 300, 16}, {768, 128, 128}};

std::vector<product_shape> every_shape(dtype type) {
  std::vector<product_shape> all;
  for (const product_kind kind : kinds) {
    for (const auto& e : extents) {
      // The largest shape once with everything, once with nothing.
      for (int variant = 0; variant<8; variant += e[0]> 500 ? 7 : 1) {
        auto s = mc::make_product_shape(kind, type, e[0], e[1], e[2]);
        const bool odd = variant & 1;
        if (variant & 2) s.x_stride = s.K + 3, s.y_stride = s.N + 5;
        if (kind == product_kind::forward) s.bias = odd;
        if (kind == product_kind::input_gradient) s.accumulate = odd;
        if (variant & 4) s.sum_block = 32, s.panel = 48;
        if (variant >= 5 && s.M % 5 == 0) s.segment = s.M / 5;
        all.push_back(s);
        if (type == dtype::bf16 && kind != product_kind::weight_gradient) {
          s.out = dtype::f32;
          all.push_back(s);
        }
        if (variant == 1 || variant == 6) s.scaled = true, all.push_back(s);
      }
    }
  }
  return all;
}

void check_all(mc::product_engine& engine, dtype type) {
  for (const product_shape& s : every_shape(type)) {
    problem p(s);
    p.run(engine);
    BOOST_TEST(excess(p) == 0.0, name(s) << " is off by " << excess(p));
  }
}

mc::product_engine::options make_options(product_type t, int threads, bool eigen_only) {
  mc::product_engine::options o;
  o.type = t;
  o.threads = threads;
  o.eigen_only = eigen_only;
  return o;
}

} // namespace

BOOST_AUTO_TEST_CASE(every_kind_agrees_with_plain_loops) {
  mc::product_engine library(make_options(product_type::widened, 2, false));
  mc::product_engine eigen(make_options(product_type::widened, 2, true));
  BOOST_TEST_MESSAGE(library.describe(dtype::bf16));
  BOOST_TEST_MESSAGE(eigen.describe(dtype::bf16));
  for (const dtype t : {dtype::f32, dtype::bf16, dtype::f64}) {
    check_all(library, t);
    check_all(eigen, t);
  }
  BOOST_TEST(library.checks().checked > 100);
  BOOST_TEST(library.checks().refused.empty());
}

// Tiles of 256 leave a rest of one row or column here, and some have no more to begin with.
BOOST_AUTO_TEST_CASE(a_rest_of_one_agrees_with_plain_loops) {
  constexpr std::int64_t shapes[][3] = {{128, 257, 64}, {257, 128, 64}, {64, 128, 257},
                                        {257, 257, 64}, {129, 1, 64},   {64, 129, 1},
                                        {1, 257, 64},   {5, 1, 1}};
  for (const product_type how : {product_type::widened, product_type::bf16}) {
    mc::product_engine engine(make_options(how, 2, false));
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
      if (how == product_type::bf16 && type != dtype::bf16) continue;
      for (const product_kind kind : kinds)
        for (const auto& e : shapes)
          for (const mc::numerics sums : policies)
            for (const int variant : {0, 3}) {
              auto s = mc::make_product_shape(kind, type, e[0], e[1], e[2]);
              s.sums = sums;
              if (variant & 1) s.x_stride = s.K + 3, s.y_stride = s.N + 5;
              if (kind == product_kind::forward) s.bias = variant & 1;
              if (kind == product_kind::input_gradient) s.accumulate = variant & 1;
              s.dynamic_rows = variant & 2;
              problem p(s, s.dynamic_rows ? s.M : -1);
              try {
                p.run(engine);
              } catch (const mc::error& no_bf16) {
                BOOST_TEST((no_bf16.code() == mc::exit_code::machine));
                continue;
              }
              BOOST_TEST(excess(p) == 0.0, name(s) << " is off by " << excess(p));
            }
    }
    BOOST_TEST(engine.checks().refused.empty());
  }
}

BOOST_AUTO_TEST_CASE(bf16_products_agree_with_plain_loops_where_the_processor_has_them) {
  mc::product_engine narrow(make_options(product_type::bf16, 2, false));
  try {
    narrow.prepare(mc::make_product_shape(product_kind::forward, dtype::bf16, 8, 8, 8));
  } catch (const mc::error& e) {
    BOOST_TEST((e.code() == mc::exit_code::machine));
    return;
  }
  check_all(narrow, dtype::bf16);
}

BOOST_AUTO_TEST_CASE(rows_given_at_run_time) {
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
      for (const product_kind kind : kinds) {
        auto s = mc::make_product_shape(kind, type, 300, 70, 50);
        s.dynamic_rows = true;
        s.bias = kind == product_kind::forward;
        for (const mc::numerics sums : policies)
          for (const std::int64_t rows : {0, 1, 2, 7, 63, 64, 65, 255, 256, 299, 300}) {
            s.sums = sums;
            problem p(s, rows);
            p.run(engine);
            BOOST_TEST(excess(p) == 0.0, name(s) << " with " << rows << " rows: " << excess(p));
          }
      }
    }
    auto s = mc::make_product_shape(product_kind::forward, dtype::f32, 300, 70, 50);
    s.dynamic_rows = true;
    problem p(s, 301);
    BOOST_CHECK_THROW(p.run(engine), mc::error);
  }
}

// Sums of several blocks, outputs of several tiles each way, and rows that are copied or not.
BOOST_AUTO_TEST_CASE(fast_sums_agree_with_plain_loops) {
  constexpr std::int64_t shapes[][3] = {{300, 130, 512}, {520, 70, 1030}, {257, 512, 128}};
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
      for (const product_kind kind : kinds)
        for (const auto& e : shapes)
          for (const std::int64_t more : {0, 5}) {
            auto s = mc::make_product_shape(kind, type, e[0], e[1], e[2]);
            s.sums = mc::numerics::fast;
            s.x_stride = s.K + more, s.y_stride = s.N + more;
            problem p(s);
            p.run(engine);
            BOOST_TEST(excess(p) == 0.0, name(s) << " is off by " << excess(p));
          }
  }
}

BOOST_AUTO_TEST_CASE(threads_leave_every_bit) {
  // 3000 x 96 x 80: oneDNN's own weight gradient differs from 4 threads on.
  constexpr std::int64_t shapes[][3] = {
      {3000, 96, 80}, {65, 300, 130}, {1, 512, 300}, {768, 128, 128}, {300, 140, 1100}};
  for (const bool eigen_only : {false, true}) {
    for (const dtype type : {dtype::f32, dtype::bf16}) {
      for (const product_kind kind : kinds) {
        for (const auto& e : shapes) {
          for (const mc::numerics sums : policies) {
            auto s = mc::make_product_shape(kind, type, e[0], e[1], e[2]);
            s.sums = sums;
            problem first(s);
            mc::product_engine one(make_options(product_type::widened, 1, eigen_only));
            first.run(one);
            for (const int threads : {2, 4, 5}) {
              problem p(s);
              mc::product_engine several(make_options(product_type::widened, threads, eigen_only));
              const int before = mc::thread_count();
              mc::set_thread_count(threads);
              p.run(several);
              mc::set_thread_count(before);
              BOOST_TEST((p.out.bytes == first.out.bytes), name(s) << " with " << threads);
            }
          }
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(rows_computed_apart_depend_on_nothing_but_themselves) {
  auto o = make_options(product_type::widened, 2, false);
  o.rows = mc::product_rows::apart;
  mc::product_engine apart(o);
  o.threads = 1;
  mc::product_engine alone(o);
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
    for (const product_shape& all : every_shape(type)) {
      if (all.kind != product_kind::forward || all.sum_block != 0) continue;
      for (const bool dynamic : {false, true}) {
        auto s = all;
        s.dynamic_rows = dynamic;
        problem p(s, dynamic ? (s.M + 1) / 2 : -1);
        p.run(apart);
        BOOST_TEST(excess(p) == 0.0, name(s) << " is off by " << excess(p));
        auto one = s;
        one.M = 1, one.dynamic_rows = false;
        for (std::int64_t m = 0; m < (dynamic ? p.rows : s.M); ++m) {
          problem row(s);
          alone.prepare(one).execute(call_of(alone, row.a.at(m, 0), row.b.bytes.data(),
                                             s.bias ? row.bias.bytes.data() : nullptr,
                                             row.out.at(m, 0)));
          BOOST_TEST(std::memcmp(row.out.at(m, 0), p.out.at(m, 0),
                                 static_cast<std::size_t>(s.N * mc::size_of(s.out))) == 0,
                     name(s) << " row " << m);
        }
      }
    }
}

BOOST_AUTO_TEST_CASE(a_sum_of_rows_computed_apart_is_one_chain_of_fused_multiply_adds) {
  constexpr int lanes = mc::detail::block_lanes<float>;
  constexpr std::int64_t width = 11;
  for (const std::int64_t K : {1, lanes - 1, lanes, 5 * lanes + 3})
    for (const std::int64_t rows : {1, 2, 4, 7}) {
      const auto numbers = [&](std::int64_t n, double step) {
        std::vector<float> v;
        for (std::int64_t i = 0; i < n; ++i)
          v.push_back(static_cast<float>(std::sin(step * static_cast<double>(i + 1))));
        return v;
      };
      const std::vector<float> x = numbers(rows * K, 0.7), w = numbers(width * K, 1.3);
      std::vector<float> y(static_cast<std::size_t>(rows * width));
      mc::detail::dot_rows<float, float>(x.data(), K, w.data(), nullptr, y.data(), width, rows,
                                         width, K, 1, 0, 1);
      for (std::int64_t i = 0; i < rows * width; ++i) {
        float sum[lanes] = {};
        for (std::int64_t k = 0; k < K; ++k) {
          float& lane = sum[k % lanes];
          lane = std::fma(x[static_cast<std::size_t>(i / width * K + k)],
                          w[static_cast<std::size_t>(i % width * K + k)], lane);
        }
        for (int half = lanes / 2; half > 0; half /= 2)
          for (int l = 0; l < half; ++l) sum[l] += sum[l + half];
        BOOST_TEST(y[static_cast<std::size_t>(i)] == sum[0], rows << " rows of " << K << ": " << i);
      }
    }
}

BOOST_AUTO_TEST_CASE(parts_have_the_bits_of_products_of_their_own) {
  constexpr std::int64_t widths[][2] = {{128, 512}, {33, 65}, {5, 128}, {768, 256}, {9000, 16}};
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    mc::product_engine alone(make_options(product_type::widened, 1, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
      for (const product_kind kind : kinds)
        for (const std::int64_t part : {1, 5, 24, 100, 256})
          for (const auto& w : widths) {
            const std::int64_t parts = part <= 24 ? 9 : 3;
            auto s = mc::make_product_shape(kind, type, parts * part, w[0], w[1]);
            s.segment = part;
            s.bias = kind == product_kind::forward;
            problem together(s), apart(s);
            together.run(engine);
            s.M = part;
            const auto& one = alone.prepare(s);
            const bool gradient = kind == product_kind::weight_gradient;
            for (std::int64_t i = 0; i < parts; ++i)
              one.execute(call_of(alone, apart.a.at(i * part, 0),
                                  apart.b.at(gradient ? i * part : 0, 0),
                                  s.bias ? apart.bias.bytes.data() : nullptr,
                                  apart.out.at(gradient ? 0 : i * part, 0)));
            BOOST_TEST((together.out.bytes == apart.out.bytes), name(s) << " eigen " << eigen_only);
          }
  }
}

BOOST_AUTO_TEST_CASE(parts_of_any_rows_have_the_bits_of_products_of_their_own) {
  const std::int32_t counts[][9] = {
      {0, 5, 0, 37, 3, 64, 11, 0, 7},   {100, 100, 1, 0, 0, 99, 4, 0, 0},
      {0, 0, 0, 0, 0, 0, 0, 0, 0},      {1, 2, 3, 4, 2, 1, 3, 2, 1},
      {8, 0, 9, 10, 0, 0, 0, 0, 0},     {33, 17, 50, 0, 70, 30, 100, 40, 0},
      {11, 9, 10, 12, 8, 11, 9, 13, 10}};
  constexpr std::int64_t widths[][2] = {{128, 512}, {33, 65}, {5, 128}, {768, 256}};
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    mc::product_engine alone(make_options(product_type::widened, 1, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
      for (const product_kind kind : kinds)
        for (const auto& w : widths)
          for (const auto& rows : counts) {
            const bool gradient = kind == product_kind::weight_gradient;
            auto s = mc::make_product_shape(kind, type, 400, w[0], w[1]);
            problem together(s), apart(s);
            s.M = 100, s.dynamic_rows = true;
            engine.prepare(s).execute_segments(
                call_of(engine, together.a.bytes.data(), together.b.bytes.data(), nullptr,
                        together.out.bytes.data()),
                rows);
            std::int64_t at = 0;
            for (const std::int32_t n : rows) {
              alone.prepare(s).execute(call_of(alone, apart.a.at(at, 0),
                                               apart.b.at(gradient ? at : 0, 0), nullptr,
                                               apart.out.at(gradient ? 0 : at, 0), n));
              at += n;
            }
            BOOST_TEST((together.out.bytes == apart.out.bytes),
                       name(s) << " eigen " << eigen_only << " from " << rows[0] << " rows on");
          }
  }
}

BOOST_AUTO_TEST_CASE(canonical_panels_leave_every_bit_when_rows_or_panels_are_cut) {
  // Y of the whole product against Y computed in blocks of rows and of output columns, each by its
  // own plan: a layout that cuts batch or width there gives the same bits.
  constexpr std::int64_t M = 200, N = 384, K = 256, panel = 64, chunk = 96;
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16}) {
      for (const product_kind kind : kinds) {
        auto s = mc::make_product_shape(kind, type, M, N, K);
        s.sum_block = chunk;
        s.panel = panel;
        problem whole(s);
        whole.run(engine);
        const bool gradient = kind == product_kind::weight_gradient;
        const std::int64_t height = gradient ? N : M, width = kind == product_kind::forward ? N : K;
        const std::int64_t row_cuts[][2] = {{0, 64}, {64, 192}, {192, height}};
        const std::int64_t column_cuts[][2] = {{0, 128}, {128, 192}, {192, width}};
        problem parts(s);
        for (const auto& r : row_cuts) {
          for (const auto& c : column_cuts) {
            auto part = s;
            part.x_stride = K;
            part.y_stride = N;
            const std::int64_t m = r[1] - r[0], n = c[1] - c[0];
            if (kind == product_kind::forward) {
              part.M = m, part.N = n;
              engine.prepare(part).execute(call_of(engine, parts.a.at(r[0], 0), parts.b.at(c[0], 0),
                                                   nullptr, parts.out.at(r[0], c[0])));
            } else if (gradient) {
              // dW is contiguous, so the part is computed beside and compared there.
              part.N = m, part.K = n;
              problem piece(part);
              for (std::int64_t i = 0; i < m; ++i)
                std::memcpy(piece.out.at(i, 0), parts.out.at(r[0] + i, c[0]),
                            static_cast<std::size_t>(n) * sizeof(float));
              engine.prepare(part).execute(call_of(engine, parts.a.at(0, r[0]), parts.b.at(0, c[0]),
                                                   nullptr, piece.out.bytes.data()));
              for (std::int64_t i = 0; i < m; ++i)
                std::memcpy(parts.out.at(r[0] + i, c[0]), piece.out.at(i, 0),
                            static_cast<std::size_t>(n) * sizeof(float));
            } else {
              // W's columns of this part, contiguous.
              part.M = m, part.K = n;
              matrix w(type, N, n, n, 2);
              for (std::int64_t i = 0; i < N; ++i)
                std::memcpy(w.at(i, 0), parts.b.at(i, c[0]),
                            static_cast<std::size_t>(n * mc::size_of(type)));
              engine.prepare(part).execute(call_of(engine, parts.a.at(r[0], 0), w.bytes.data(),
                                                   nullptr, parts.out.at(r[0], c[0])));
            }
          }
        }
        BOOST_TEST((parts.out.bytes == whole.out.bytes), name(s) << " eigen " << eigen_only);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_prepared_product_allocates_nothing) {
  for (const bool eigen_only : {false, true}) {
    mc::product_engine engine(make_options(product_type::widened, 2, eigen_only));
    for (const dtype type : {dtype::f32, dtype::bf16}) {
      for (const product_kind kind : kinds) {
        auto s = mc::make_product_shape(kind, type, 130, 96, 70);
        s.bias = kind == product_kind::forward;
        problem p(s);
        p.run(engine);
        const std::int64_t workspace = engine.workspace_bytes();
        const std::size_t products = engine.products();
        const long start = own_allocations;
        const mc::product* const found = engine.find(s);
        const mc::product* const again = &engine.prepare(s);
        const long finding = own_allocations - start;
        p.run(engine);
        const long running = own_allocations - start - finding;
        BOOST_TEST(found != nullptr);
        BOOST_TEST(again == found);
        BOOST_TEST(finding == 0);
        // oneDNN's argument map is C++ too: at most 10 small pieces a call.
        const long bound = eigen_only ? 0 : 10 * found->cell_calls();
        BOOST_TEST(running <= bound, name(s) << ": " << running);
        BOOST_TEST(engine.workspace_bytes() == workspace);
        BOOST_TEST(engine.products() == products);
      }
    }
  }
}

// What a plan is made for before any library is asked.
BOOST_AUTO_TEST_CASE(no_product_needs_more_workspace_than_is_planned) {
  constexpr std::int64_t shapes[][3] = {{1, 1, 1},       {5, 33, 65},       {64, 64, 64},
                                        {300, 500, 700}, {1024, 768, 768},  {4096, 64, 2048},
                                        {32, 9000, 96},  {2048, 2304, 768}, {2640, 64, 768}};
  for (const bool eigen_only : {false, true})
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
      for (const product_kind kind : kinds)
        for (const auto& n : shapes)
          for (const int how : {0, 1, 2, 3, 4, 5}) {
            auto s = mc::make_product_shape(kind, type, n[0], n[1], n[2]);
            s.bias = kind == product_kind::forward;
            s.sums = how == 1 ? mc::numerics::fast : mc::numerics::batch_invariant;
            if (how == 2 && s.M % 4 == 0) s.segment = s.M / 4;
            if (how == 4 && s.M % 2 == 0) s.segment = s.M / 2;
            s.dynamic_rows = how == 3, s.scaled = how == 5;
            if (kind == product_kind::input_gradient) s.accumulate = how == 1;
            for (const int threads : {1, 2}) {
              mc::product_engine engine(make_options(product_type::widened, threads, eigen_only));
              const std::int64_t needs = engine.prepare(s).workspace_bytes(),
                                 most = mc::cpu::most_workspace(s, threads);
              BOOST_TEST(needs <= most,
                         name(s) << " eigen " << eigen_only << ": " << needs << " of " << most);
            }
          }
}

// On every thread: one that threw would end the program.
BOOST_AUTO_TEST_CASE(a_product_that_finds_no_memory_is_a_sentence) {
  for (const int threads : {1, 2}) {
    mc::product_engine engine(make_options(product_type::widened, threads, false));
    for (const dtype type : {dtype::f32, dtype::bf16})
      for (const product_kind kind : kinds) {
        problem p(mc::make_product_shape(kind, type, 130, 96, 70));
        p.run(engine);
        const long start = own_allocations;
        p.run(engine);
        const long running = own_allocations - start;
        for (long k = 0; k < running; k += 1 + running / 20) {
          failing_allocation = own_allocations + k;
          BOOST_CHECK_EXCEPTION(p.run(engine), mc::error, [](const mc::error& e) {
            return e.code() == mc::exit_code::memory;
          });
          failing_allocation = -1;
        }
        p.run(engine); // as if nothing had been
      }
  }
}

BOOST_AUTO_TEST_CASE(the_product_type_is_measured_once_and_named) {
  mc::product_engine engine(make_options(product_type::automatic, 2, false));
  const product_type chosen = engine.type();
  BOOST_TEST((chosen != product_type::automatic));
  BOOST_TEST((engine.type() == chosen));
  const std::string text = engine.describe(dtype::bf16);
  BOOST_TEST_MESSAGE(text);
  BOOST_TEST((text.find("bf16") != std::string::npos));
  BOOST_TEST((engine.describe(dtype::f64).find("Eigen") == 0));
}

BOOST_AUTO_TEST_CASE(nan_and_infinity_come_through) {
  mc::product_engine engine(make_options(product_type::widened, 2, false));
  for (const dtype type : {dtype::f32, dtype::bf16}) {
    problem p(mc::make_product_shape(product_kind::forward, type, 20, 30, 40));
    p.a.set(0, std::numeric_limits<double>::quiet_NaN());
    p.a.set(40, std::numeric_limits<double>::infinity());
    p.run(engine);
    BOOST_TEST(std::isnan(p.out.get(0, 7)));
    BOOST_TEST(std::isinf(p.out.get(1, 7)));
    BOOST_TEST(std::isfinite(p.out.get(2, 7)));
  }
}

namespace {

/// What a library may do wrong.
enum class mistake {
  none,
  element,      ///< one is off by its last bit
  row,          ///< one is its neighbour's
  columns,      ///< two are exchanged
  byte_behind,  ///< is written behind the last row
  byte_between, ///< behind the first row
  byte_before,  ///< before the first row
  operand,      ///< is written to
  old_result,   ///< counts, times zero, although it is to be overwritten
  no_bias,
  no_accumulation,
  twice,           ///< a result that is added to is added to itself
  last_term,       ///< of each sum is left out
  coarse_operands, ///< are rounded to bf16
  failure
};
constexpr mistake mistakes[] = {
    mistake::element,         mistake::row,          mistake::columns,
    mistake::byte_behind,     mistake::byte_between, mistake::byte_before,
    mistake::operand,         mistake::old_result,   mistake::no_bias,
    mistake::no_accumulation, mistake::twice,        mistake::last_term,
    mistake::coarse_operands, mistake::failure};

/// Changes the last bit of a number, or makes one of zero.
void spoil(std::byte* at, dtype type) {
  const auto size = static_cast<std::size_t>(mc::size_of(type));
  if (std::all_of(at, at + size, [](std::byte b) { return b == std::byte{}; }))
    at[size - 1] = std::byte{0x3f};
  else at[0] ^= std::byte{1};
}

/// A tile of Eigen with a mistake in it.
class faulty_cell final : public mc::product_cell {
public:
  faulty_cell(const mc::product_cell_shape& s, mistake wrong) : s_(s), wrong_(wrong) {
    auto right = s;
    if (wrong == mistake::no_bias) right.bias = false;
    if (wrong == mistake::no_accumulation) right.accumulate = false;
    if (wrong == mistake::last_term) --right.k;
    right_ = mc::eigen_products().make(right);
  }
  std::size_t scratch_bytes() const override { return right_->scratch_bytes(); }
  mc::product_status execute(int slot, const void* a, const void* b, const void* bias, void* c,
                             void* scratch) const override {
    const std::int64_t size = mc::size_of(s_.output), middle = s_.m / 2 * s_.ldc + s_.n / 2;
    auto* const to = static_cast<std::byte*>(c);
    const auto at = [&](std::int64_t i) { return to + i * size; };
    std::vector<std::byte> old(static_cast<std::size_t>(((s_.m - 1) * s_.ldc + s_.n) * size));
    std::memcpy(old.data(), c, old.size());
    if (wrong_ == mistake::failure) return mc::product_status::failed;
    std::vector<float> coarse;
    if (wrong_ == mistake::coarse_operands && s_.type == dtype::f32) {
      const std::int64_t n =
          s_.a_transposed ? (s_.k - 1) * s_.lda + s_.m : (s_.m - 1) * s_.lda + s_.k;
      coarse.assign(static_cast<const float*>(a), static_cast<const float*>(a) + n);
      for (float& x : coarse) x = static_cast<float>(bf16(x));
      a = coarse.data();
    }
    const mc::product_status status = right_->execute(slot, a, b, bias, c, scratch);
    switch (wrong_) {
    case mistake::element: spoil(at(middle), s_.output); break;
    case mistake::row:
      if (s_.m > 1) std::memcpy(at(s_.ldc), at(0), static_cast<std::size_t>(s_.n * size));
      break;
    case mistake::columns:
      for (std::int64_t i = 0; i < s_.m && s_.n > 1; ++i)
        std::swap_ranges(at(i * s_.ldc), at(i * s_.ldc + 1), at(i * s_.ldc + s_.n - 1));
      break;
    case mistake::byte_behind: *at((s_.m - 1) * s_.ldc + s_.n) ^= std::byte{1}; break;
    case mistake::byte_between: *at(s_.n) ^= std::byte{1}; break;
    case mistake::byte_before: to[-1] ^= std::byte{1}; break;
    case mistake::operand: *static_cast<std::byte*>(const_cast<void*>(b)) ^= std::byte{1}; break;
    case mistake::old_result:
      if (s_.output == dtype::f32 && !s_.accumulate)
        *reinterpret_cast<float*>(to) += 0 * *reinterpret_cast<const float*>(old.data());
      break;
    case mistake::twice:
      if (s_.output == dtype::f32 && s_.accumulate)
        *reinterpret_cast<float*>(to) += *reinterpret_cast<const float*>(old.data());
      break;
    default: break;
    }
    return status;
  }

private:
  mc::product_cell_shape s_;
  mistake wrong_;
  std::unique_ptr<mc::product_cell> right_;
};

class faulty_library final : public mc::product_library {
public:
  explicit faulty_library(mistake wrong) : wrong_(wrong) {}
  std::string name() const override { return "Faulty 1.0"; }
  std::unique_ptr<mc::product_cell> make(const mc::product_cell_shape& s) const override {
    if (s.k == 1 && wrong_ == mistake::last_term) return nullptr;
    return std::make_unique<faulty_cell>(s, wrong_);
  }

private:
  mistake wrong_;
};

std::vector<std::string> told;

/// Whether a tile has room for this mistake.
bool shows(mistake wrong, const product_shape& s) {
  const std::int64_t m = s.kind == product_kind::weight_gradient ? s.N : s.M;
  const std::int64_t n = s.kind == product_kind::forward ? s.N : s.K;
  switch (wrong) {
  case mistake::row: return m > 1;
  case mistake::columns: return n > 1;
  case mistake::no_bias: return s.bias;
  case mistake::no_accumulation: return s.accumulate;
  case mistake::twice: return s.accumulate && s.out == dtype::f32;
  case mistake::old_result: return !s.accumulate && s.out == dtype::f32;
  case mistake::coarse_operands: return s.a == dtype::f32;
  default: return true;
  }
}

} // namespace

// Each form of product, also one that is added to and one with a bias, by a library that does one
// thing wrong: another library computes it, and this is told once.
BOOST_AUTO_TEST_CASE(a_library_that_computes_a_product_wrong_is_not_asked_for_it) {
  constexpr std::int64_t shapes[][3] = {{40, 30, 600}, {5, 7, 3}};
  for (const mistake wrong : mistakes)
    for (const dtype type : {dtype::f32, dtype::bf16})
      for (const product_kind kind : kinds)
        for (const auto& e : shapes)
          for (const bool added : {false, true}) {
            auto s = mc::make_product_shape(kind, type, e[0], e[1], e[2]);
            s.x_stride = s.K + 3, s.y_stride = s.N + 5;
            if (kind == product_kind::forward) s.bias = added;
            else if (kind == product_kind::input_gradient) s.accumulate = added;
            else if (added) s.segment = s.M;
            auto o = make_options(product_type::widened, 2, false);
            if (type == dtype::bf16) o.type = product_type::bf16;
            o.library = std::make_shared<faulty_library>(wrong);
            o.tell = [](std::string_view line) { told.emplace_back(line); };
            told.clear();
            mc::product_engine engine(o);
            problem p(s);
            p.run(engine);
            const std::string what =
                name(s) + ", mistake " + std::to_string(static_cast<int>(wrong));
            BOOST_TEST(excess(p) == 0.0, what << " is off by " << excess(p));
            if (!shows(wrong, s)) continue;
            BOOST_TEST(!engine.checks().refused.empty(), what);
            BOOST_TEST(told.size() == 1u, what);
            BOOST_TEST((engine.describe(type).find("by Eigen") != std::string::npos));
          }
}

// Eigen's tiles, as a library of their own: what is right is not refused, whatever its form.
BOOST_AUTO_TEST_CASE(a_library_that_computes_products_right_is_asked_for_all_of_them) {
  auto o = make_options(product_type::bf16, 2, false);
  o.library = std::make_shared<faulty_library>(mistake::none);
  mc::product_engine engine(o);
  for (const dtype type : {dtype::f32, dtype::bf16}) check_all(engine, type);
  BOOST_TEST(engine.checks().refused.empty());
}

BOOST_AUTO_TEST_CASE(one_wrong_element_is_seen_wherever_it_is) {
  for (const dtype output : {dtype::f32, dtype::bf16})
    for (const std::int64_t k : {1, 3, 700}) {
      const mc::product_cell_shape s{
          .m = 5, .n = 7, .k = k, .lda = k, .ldb = 7, .ldc = 9, .type = output, .output = output};
      const auto right = mc::eigen_products().make(s);
      const mc::product_check check(s);
      std::vector<std::byte> room(check.bytes()), scratch(right->scratch_bytes() + 1);
      for (std::int64_t i = -1; i < s.m * s.n; ++i) {
        const std::string fault =
            check.fault(room.data(), [&](const mc::product_check::operands& o) {
              const bool done = right->execute(0, o.a, o.b, o.bias, o.c, scratch.data()) ==
                                mc::product_status::done;
              auto* const to = static_cast<std::byte*>(o.c);
              if (i >= 0) spoil(to + (i / s.n * s.ldc + i % s.n) * mc::size_of(output), output);
              return done;
            });
        const std::string want = i < 0 ? "" : "computes row " + std::to_string(i / s.n) + " wrong";
        BOOST_TEST(fault == want);
      }
    }
}

namespace {

/// What a library may do wrong behind a sum.
enum class slip { none, left_out, by_erf, other_z, once_rounded_tanh, half_of_one, z_exchanged };

/// What the sum becomes of which Y or dX has the type of T, as a library would: in fp32.
template <class T>
void go_on(const mc::product_cell_shape& s, slip what, const mc::product_check::operands& o) {
  auto *const c = static_cast<T*>(o.c), *const z = static_cast<T*>(o.z);
  const bool backward = s.ends_in == mc::product_end::gelu_gradient;
  for (std::int64_t i = 0; i < s.m; ++i)
    for (std::int64_t j = 0; j < s.n; ++j) {
      T &to = c[i * s.ldc + j], *const kept = z + (z != nullptr ? i * s.ldc + j : 0);
      const auto sum = mc::convert<double>(to);
      const auto from = backward ? z[(what == slip::other_z ? (i + 1) % s.m : i) * s.ldc + j] : to;
      const auto x = mc::convert<double>(from);
      double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
      double slope =
          (1 + t) / 2 + x * (1 - t * t) / 2 * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
      if (what == slip::once_rounded_tanh) t = std::round(t * 256) / 256, slope += 0x1p-9;
      double gelu = x * (1 + t) / 2;
      if (what == slip::by_erf) {
        gelu = x * std::erfc(-x / std::sqrt(2.0)) / 2;
        slope = std::erfc(-x / std::sqrt(2.0)) / 2 + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      }
      if (what == slip::left_out) gelu = x, slope = 1;
      if (what == slip::half_of_one && i == s.m - 1 && j == s.n - 1) gelu /= 2, slope /= 2;
      if (s.ends_in == mc::product_end::gelu_kept) *kept = to;
      to = mc::convert<T>(static_cast<mc::accumulator_t<T>>(backward ? sum * slope : gelu));
      if (s.ends_in == mc::product_end::gelu_kept && what == slip::z_exchanged)
        std::swap(to, *kept);
    }
}

} // namespace

// A product with GELU, kept or not, or its slope behind it: what is right passes, and what a library
// may do wrong is seen.
BOOST_AUTO_TEST_CASE(what_a_product_ends_in_is_checked) {
  using mc::product_end;
  for (const dtype type : {dtype::f32, dtype::bf16})
    for (const product_end end :
         {product_end::gelu, product_end::gelu_kept, product_end::gelu_gradient})
      for (const std::int64_t k : {1, 2, 3, 14, 64, 700, 5000}) {
        const bool forward = end != product_end::gelu_gradient;
        const mc::product_cell_shape s{.m = 24,
                                       .n = 40,
                                       .k = k,
                                       .lda = k,
                                       .ldb = forward ? k : 40,
                                       .ldc = 48,
                                       .b_transposed = forward,
                                       .type = type,
                                       .output = type,
                                       .bias = forward,
                                       .ends_in = end};
        const auto right = mc::eigen_products().make(s);
        const mc::product_check check(s);
        std::vector<std::byte> room(check.bytes()), scratch(right->scratch_bytes() + 1);
        for (const slip what : {slip::none, slip::left_out, slip::by_erf, slip::other_z,
                                slip::once_rounded_tanh, slip::half_of_one, slip::z_exchanged}) {
          if (what == slip::other_z && forward) continue;
          if (what == slip::z_exchanged && end != product_end::gelu_kept) continue;
          const std::string fault =
              check.fault(room.data(), [&](const mc::product_check::operands& o) {
                const bool done = right->execute(0, o.a, o.b, o.bias, o.c, scratch.data()) ==
                                  mc::product_status::done;
                mc::with_float_type(type, [&]<class T>(T) { go_on<T>(s, what, o); });
                return done;
              });
          BOOST_TEST(fault.empty() == (what == slip::none),
                     name_of(type) << ", " << static_cast<int>(end) << ", " << k << " terms, slip "
                                   << static_cast<int>(what) << ": " << fault);
        }
      }
}

BOOST_AUTO_TEST_CASE(products_are_checked_in_memory_that_is_lent) {
  const auto s = mc::make_product_shape(product_kind::forward, dtype::f32, 130, 96, 70);
  mc::product_engine borrows(make_options(product_type::widened, 2, true));
  std::vector<std::byte> lent(std::size_t{1} << 20, std::byte{7});
  borrows.lend(lent.data(), std::ssize(lent));
  const mc::product& one = borrows.prepare(s);
  const auto used = static_cast<std::size_t>(borrows.take_back());
  BOOST_TEST(used > 0u);
  BOOST_TEST(std::count(lent.begin() + static_cast<std::ptrdiff_t>(used), lent.end(),
                        std::byte{7}) == std::ssize(lent) - static_cast<std::ptrdiff_t>(used));
  BOOST_TEST(borrows.take_back() == 0);
  mc::product_engine owns(make_options(product_type::widened, 2, true));
  owns.lend(lent.data(), 100);
  owns.prepare(s);
  BOOST_TEST(owns.take_back() == 0);
  BOOST_TEST(owns.workspace_bytes() == borrows.workspace_bytes());
  BOOST_TEST(owns.checks().checked == borrows.checks().checked);
  problem p(s);
  one.execute(call_of(borrows, p.a.bytes.data(), p.b.bytes.data(), nullptr, p.out.bytes.data()));
  BOOST_TEST(excess(p) == 0.0);
}

// A workspace that another product needs less of is not enough for this one.
BOOST_AUTO_TEST_CASE(a_lane_without_room_for_a_product_is_refused) {
  mc::product_engine engine(make_options(product_type::widened, 2, true));
  problem p(mc::make_product_shape(product_kind::forward, dtype::bf16, 64, 64, 64));
  const mc::product& one = engine.prepare(p.s);
  const mc::product_call call =
      call_of(engine, p.a.bytes.data(), p.b.bytes.data(), nullptr, p.out.bytes.data());
  mc::cpu_lane small;
  small.reserve({.workspace = one.workspace_bytes() - 1});
  BOOST_CHECK_EXCEPTION(
      one.execute({small, call.a, call.b, nullptr, call.out}), mc::error, [&](const mc::error& e) {
        return std::string(e.what()).find(std::to_string(one.workspace_bytes()) +
                                          " bytes was started on a lane that has " +
                                          std::to_string(one.workspace_bytes() - 1)) !=
               std::string::npos;
      });
  small.reserve({.workspace = one.workspace_bytes()});

  one.execute({small, call.a, call.b, nullptr, call.out});
  BOOST_TEST(excess(p) == 0.0);
}

BOOST_AUTO_TEST_CASE(shapes_that_are_not_products_are_refused) {
  mc::product_engine engine;
  const auto good = mc::make_product_shape(product_kind::forward, dtype::f32, 2, 3, 4);
  auto s = good;
  s.K = 0;
  BOOST_CHECK_THROW(engine.prepare(s), mc::error);
  s = good;
  s.x_stride = 3;
  BOOST_CHECK_THROW(engine.prepare(s), mc::error);
  s = good;
  s.out = dtype::bf16;
  BOOST_CHECK_THROW(engine.prepare(s), mc::error);
  s = good;
  s.accumulate = true;
  BOOST_CHECK_THROW(engine.prepare(s), mc::error);
  const auto says = [](const char* text) {
    return [text](const mc::error& e) {
      return std::string(e.what()).find(text) != std::string::npos;
    };
  };
  s = good;
  s.b = dtype::bf16;
  BOOST_CHECK_EXCEPTION(engine.prepare(s), mc::error,
                        says("its operands are f32 and bf16, and the CPU multiplies operands of "
                             "one type: give both the same"));
  s = good;
  s.scaled = true;
  const mc::prepared_product& scaled = engine.prepare(s);
  problem p(good);
  mc::product_call call =
      call_of(engine, p.a.bytes.data(), p.b.bytes.data(), nullptr, p.out.bytes.data());
  call.scales.b = nullptr;
  BOOST_CHECK_EXCEPTION(scaled.execute(call), mc::error,
                        says("was started without the scale of an operand"));
  BOOST_CHECK_NO_THROW(engine.prepare(good));
}
