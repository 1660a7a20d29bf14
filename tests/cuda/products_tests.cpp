// Products of product/cuda/cublaslt.hpp over the stand-in of cuBLASLt, against sums in double.
#define BOOST_TEST_MODULE cuda_products
#include <boost/test/unit_test.hpp>

#include <cuda/machine.hpp>

#include <megacpp/exec/cuda/side_by_side.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

using namespace mc;
using std::int64_t;
using test::refused;

namespace {

/// Numbers of a type in the device's memory, with what lies between rows.
template <class T> class matrix {
public:
  matrix(device& on, int64_t rows, int64_t columns, int64_t stride, std::uint64_t seed)
      : on_(on),
        columns_(columns),
        stride_(stride),
        values_(static_cast<std::size_t>(std::max<int64_t>(rows * stride, 1))),
        memory_(on, bytes(), "a test", "nothing") {
    for (T& x : values_) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      x = convert<T>(static_cast<double>(static_cast<int64_t>(seed) >> 11) * 0x1p-52);
    }
    on.write(memory_.data(), values_.data(), bytes());
  }
  std::byte* data() const { return memory_.data(); }
  double operator()(int64_t r, int64_t c) const {
    return convert<double>(values_[static_cast<std::size_t>(r * stride_ + c)]);
  }
  /// What the device has now.
  std::vector<T> read() const {
    std::vector<T> now(values_.size());
    on_.read(now.data(), memory_.data(), bytes());
    return now;
  }
  const std::vector<T>& values() const { return values_; }
  int64_t stride() const { return stride_; }

private:
  int64_t bytes() const { return std::ssize(values_) * int64_t{sizeof(T)}; }
  device& on_;
  int64_t columns_, stride_;
  std::vector<T> values_;
  arena memory_;
};

/// The rows and columns of what a product of so many rows gives, and how far apart its rows lie.
struct output_extents {
  int64_t height, width, stride;
};
output_extents extents_of_output(const product_shape& s, int64_t rows) {
  const int64_t matrices = s.groups > 0 ? s.groups : 1;
  switch (s.kind) {
  case product_kind::forward: return {rows, s.N, s.y_row()};
  case product_kind::input_gradient: return {rows, s.K, s.x_row()};
  case product_kind::weight_gradient: break;
  }
  return {matrices * s.N, s.K, s.K};
}

/// This holds a product of elements of T with results of Out, on a device, to double. Its rows are those
/// of the call where the shape's are dynamic, in segments of `segments` where there are some.
template <class T, class Out> void check(cuda& on, product_shape s, int64_t rows,
                                         const std::vector<std::int32_t>& segments = {}) {
  s.a = s.b = dtype_of<T>, s.out = dtype_of<Out>;
  const bool forward = s.kind == product_kind::forward,
             summed = s.kind == product_kind::weight_gradient, adds = summed || s.accumulate;
  // Operands as the product names them: a, b, and out.
  const matrix<T> a(on, rows, forward ? s.K : s.N, forward ? s.x_row() : s.y_row(), 1);
  const matrix<T> b(on, summed ? rows : s.N, s.K, summed ? s.x_row() : s.K, 2);
  const matrix<T> bias(on, 1, s.N, s.N, 3);
  const auto [height, width, stride] = extents_of_output(s, rows);
  const matrix<Out> out(on, height, width, stride, 4);
  const prepared_product& p = on.products().prepare(s);
  lane& l = on.main_lane();
  l.reserve({.workspace = on.products().workspace_bytes()});
  const product_call call{.on = l,
                          .a = a.data(),
                          .b = b.data(),
                          .bias = s.bias ? bias.data() : nullptr,
                          .out = out.data(),
                          .rows = s.dynamic_rows ? rows : -1};
  if (segments.empty()) p.execute(call);
  else p.execute_segments(call, segments);
  const std::vector<Out> got = out.read();
  std::vector<bool> inside(got.size());
  for (int64_t i = 0; i < height; ++i)
    for (int64_t j = 0; j < width; ++j) {
      double sum = 0, terms = 0;
      const auto add = [&](double x) { sum += x, terms += std::abs(x); };
      const int64_t n = forward ? s.K : summed ? rows : s.N;
      for (int64_t k = 0; k < n; ++k)
        add(forward ? a(i, k) * b(j, k) : summed ? a(k, i) * b(k, j) : a(i, k) * b(k, j));
      if (s.bias) add(bias(0, j));
      if (adds) add(out(i, j));
      const auto at = static_cast<std::size_t>(i * stride + j);
      inside[at] = true;
      const double unit = sizeof(T) == 8 ? 0x1p-48 : 0x1p-19,
                   rounding = sizeof(Out) == 2 ? 0x1p-8 * (summed ? 1 : 2) : 0;
      BOOST_REQUIRE_MESSAGE(
          std::abs(convert<double>(got[at]) - sum) <= rounding * std::abs(sum) + unit * terms,
          "(" << i << ", " << j << ") is " << convert<double>(got[at]) << " and should be " << sum);
    }
  // Nothing is written between rows.
  for (std::size_t k = 0; k < got.size(); ++k)
    if (!inside[k]) BOOST_REQUIRE(convert<double>(got[k]) == convert<double>(out.values()[k]));
}

/// Products of groups, of `segments` rows each: of every group as many. Where `at_once`, one kernel computes
/// all of them. Returns how often something was started, and what came out.
template <class T, class Out>
std::pair<int64_t, std::vector<Out>> check_groups(cuda& on, product_shape s,
                                                  const std::vector<std::int32_t>& segments,
                                                  std::uint64_t seed = 1) {
  s.a = s.b = dtype_of<T>, s.out = dtype_of<Out>, s.dynamic_rows = true;
  const bool forward = s.kind == product_kind::forward,
             summed = s.kind == product_kind::weight_gradient;
  s.accumulate = summed;
  const std::size_t each = segments.size() / static_cast<std::size_t>(s.groups);
  int64_t rows = 0;
  for (const std::int32_t n : segments) rows += n;
  const int64_t behind = rows + 3; // rows of no group
  const matrix<T> a(on, behind, forward ? s.K : s.N, forward ? s.x_row() : s.y_row(), seed);
  const matrix<T> b(on, summed ? behind : s.groups * s.N, s.K, summed ? s.x_row() : s.K, 2);
  const auto [height, width, stride] = extents_of_output(s, behind);
  const matrix<Out> out(on, height, width, stride, 4);
  const prepared_product& p = on.products().prepare(s);
  lane& l = on.main_lane();
  l.reserve({.workspace = on.products().workspace_bytes()});
  const int64_t before = stand_in::count().started;
  p.execute_groups({.on = l, .a = a.data(), .b = b.data(), .out = out.data()}, segments);
  const int64_t started = stand_in::count().started - before;
  const std::vector<Out> got = out.read();
  std::vector<double> want(got.size()), terms(got.size());
  for (std::size_t i = 0; i < got.size(); ++i) want[i] = convert<double>(out.values()[i]);
  int64_t row = 0;
  for (std::size_t k = 0; k < segments.size(); ++k)
    for (const int64_t end = row + segments[k]; row < end; ++row) {
      const auto g = static_cast<int64_t>(k / each);
      for (int64_t i = 0; i < (summed ? s.N : 1); ++i)
        for (int64_t j = 0; j < width; ++j) {
          const auto at = static_cast<std::size_t>((summed ? g * s.N + i : row) * stride + j);
          if (!summed) want[at] = 0;
          const auto add = [&](double x) { want[at] += x, terms[at] += std::abs(x); };
          if (summed) add(a(row, i) * b(row, j));
          else
            for (int64_t t = 0; t < (forward ? s.K : s.N); ++t)
              add(a(row, t) * (forward ? b(g * s.N + j, t) : b(g * s.N + t, j)));
        }
    }
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double x = convert<double>(got[i]), rounding = sizeof(Out) == 2 ? 0x1p-8 : 0;
    BOOST_REQUIRE_MESSAGE(
        std::abs(x - want[i]) <=
            (terms[i] == 0 ? 0 : rounding * std::abs(want[i]) + 0x1p-18 * (terms[i] + 1)),
        name_of(s.kind) << ": " << i << " is " << x << " and should be " << want[i]);
  }
  return {started, got};
}

constexpr product_kind kinds[] = {product_kind::forward, product_kind::input_gradient,
                                  product_kind::weight_gradient};

/// f of every kind with the types that it is used with.
template <class F> void for_types(product_kind kind, F f) {
  f(float(), float()), f(double(), double()), f(bf16(), float());
  if (kind != product_kind::weight_gradient) f(bf16(), bf16());
}

/// GELU in its tanh form, and its slope.
double gelu_of(double z) {
  return z / 2 * (1 + std::tanh(std::sqrt(2 / M_PI) * (z + 0.044715 * z * z * z)));
}
double slope_of(double z) { return (gelu_of(z + 1e-5) - gelu_of(z - 1e-5)) / 2e-5; }

constexpr product_end ends[] = {product_end::gelu, product_end::gelu_kept,
                                product_end::gelu_gradient};
product_shape that_ends(product_end e, int64_t m, int64_t n, int64_t k) {
  product_shape s{.M = m, .N = n, .K = k, .ends_in = e};
  if (e == product_end::gelu_gradient) s.kind = product_kind::input_gradient;
  else s.bias = true;
  return s;
}

/// The same of a product that goes on with its sums. `whole`: the library computes all of it. Returns
/// how often something was started, and what came out.
template <class T>
std::pair<std::int64_t, std::vector<T>> check_end(cuda& on, product_shape s, bool whole = true) {
  s.a = s.b = s.out = dtype_of<T>;
  const bool forward = s.kind == product_kind::forward, kept = s.ends_in == product_end::gelu_kept;
  const int64_t width = forward ? s.N : s.K, stride = forward ? s.y_row() : s.x_row();
  const matrix<T> a(on, s.M, forward ? s.K : s.N, forward ? s.x_row() : s.y_row(), 1),
      b(on, s.N, s.K, s.K, 2), bias(on, 1, s.N, s.N, 3), out(on, s.M, width, stride, 4),
      z(on, s.M, width, stride, 5);
  const prepared_product& p = on.products().prepare(s);
  BOOST_REQUIRE((p.shape().ends_in == (whole ? s.ends_in : product_end::sum)));
  lane& l = on.main_lane();
  l.reserve({.workspace = on.products().workspace_bytes()});
  const std::int64_t before = stand_in::count().started;
  p.execute({.on = l,
             .a = a.data(),
             .b = b.data(),
             .bias = s.bias ? bias.data() : nullptr,
             .out = out.data(),
             .kept = kept ? z.data() : nullptr,
             .slopes_at = forward ? nullptr : z.data()});
  const std::int64_t started = stand_in::count().started - before;
  const std::vector<T> got = out.read(), beside = z.read();
  std::vector<bool> inside(got.size());
  for (int64_t i = 0; i < s.M; ++i)
    for (int64_t j = 0; j < width; ++j) {
      double sum = s.bias ? bias(0, j) : 0, terms = std::abs(sum);
      for (int64_t k = 0; k < (forward ? s.K : s.N); ++k) {
        const double x = a(i, k) * (forward ? b(j, k) : b(k, j));
        sum += x, terms += std::abs(x);
      }
      const auto at = static_cast<std::size_t>(i * stride + j);
      inside[at] = true;
      const double rounding = sizeof(T) == 2 ? 0x1p-8 : 0, unit = 0x1p-19;
      const auto near = [&](T x, double want) {
        BOOST_REQUIRE_MESSAGE(
            std::abs(convert<double>(x) - want) <= rounding * std::abs(want) + unit * terms,
            "(" << i << ", " << j << ") is " << convert<double>(x) << " and should be " << want);
      };
      near(got[at], !whole ? sum : forward ? gelu_of(sum) : sum * slope_of(z(i, j)));
      if (kept && whole) near(beside[at], sum);
    }
  for (std::size_t k = 0; k < got.size(); ++k) { // nothing is written between rows, nor into a Z
    if (!inside[k]) BOOST_REQUIRE(convert<double>(got[k]) == convert<double>(out.values()[k]));
    if (!inside[k] || !kept || !whole)
      BOOST_REQUIRE(convert<double>(beside[k]) == convert<double>(z.values()[k]));
  }
  return {started, got};
}

} // namespace

BOOST_AUTO_TEST_CASE(products_of_every_kind) {
  test::machine_with_device machine;
  for (const product_kind kind : kinds)
    for_types(kind, [&]<class T, class Out>(T, Out) {
      for (const auto& [m, n, k] : {std::array<int64_t, 3>{16, 32, 64}, {7, 5, 3}, {1, 9, 17}}) {
        product_shape s{.kind = kind, .M = m, .N = n, .K = k};
        check<T, Out>(machine.device(), s, m);
        s.x_stride = k + 3, s.y_stride = n + 1; // segments of packed rows
        check<T, Out>(machine.device(), s, m);
      }
    });
}

BOOST_AUTO_TEST_CASE(what_is_added) {
  test::machine_with_device machine;
  for_types(product_kind::forward, [&]<class T, class Out>(T, Out) {
    if (!std::is_same_v<T, Out>) return;
    check<T, T>(machine.device(), {.M = 6, .N = 10, .K = 4, .bias = true}, 6);
    check<T, T>(machine.device(),
                {.kind = product_kind::input_gradient, .M = 6, .N = 10, .K = 4, .accumulate = true},
                6);
  });
}

// Fewer rows than the most, one after the other on one plan; none; segments, some of them empty.
BOOST_AUTO_TEST_CASE(rows_of_a_call) {
  test::machine_with_device machine;
  for (const product_kind kind : kinds)
    for_types(kind, [&]<class T, class Out>(T, Out) {
      const product_shape s{.kind = kind, .M = 12, .N = 8, .K = 16, .dynamic_rows = true};
      for (const int64_t rows : {12, 5, 1, 0, 5}) check<T, Out>(machine.device(), s, rows);
      check<T, Out>(machine.device(), s, 12, {3, 0, 8, 1});
      check<T, Out>(machine.device(), s, 3, {3});
    });
}

// Those that may run side by side get along with a segment of a lane's workspace, on a branch and
// alone, and so do their checks; others are given all of it, and refuse a branch.
BOOST_AUTO_TEST_CASE(products_side_by_side_share_the_workspace) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  constexpr int64_t segment = cuda::product_workspace / cuda_lane::most_branches;
  auto& l = static_cast<cuda_lane&>(on.main_lane());
  l.reserve({.workspace = cuda::product_workspace});
  const int64_t behind = cuda::product_workspace - segment;
  std::vector<std::byte> pattern(static_cast<std::size_t>(behind), std::byte{0x5a}),
      now(pattern.size());
  l.write(l.workspace() + segment, pattern.data(), behind);
  const matrix<float> x(on, 12, 16, 16, 1), w(on, 8, 16, 16, 2), y(on, 12, 8, 8, 3);
  const auto few = on.make_lane();
  few->reserve({.workspace = segment});
  for (const bool dynamic : {false, true})
    for (const bool beside : {true, false}) {
      const prepared_product& p = on.products().prepare(
          {.M = 12, .N = 8, .K = 16, .dynamic_rows = dynamic, .groups = beside ? 1 : 0});
      const auto run = [&](lane& where) {
        p.execute({.on = where,
                   .a = x.data(),
                   .b = w.data(),
                   .out = y.data(),
                   .rows = dynamic ? 12 : -1});
      };
      on.read(now.data(), l.workspace() + segment, behind);
      BOOST_TEST((now == pattern) == beside);
      l.write(l.workspace() + segment, pattern.data(), behind);
      const std::string says = refused([&] { run(*few); }), branched = refused([&] {
                                                              side_by_side together(l);
                                                              together.next();
                                                              run(l);
                                                            });
      if (beside) {
        BOOST_TEST(says == "nothing was refused");
        BOOST_TEST(branched == "nothing was refused");
      } else {
        BOOST_TEST(says.find("CUBLAS_STATUS_INVALID_VALUE") != std::string::npos, says);
        BOOST_TEST(branched.find("was started beside others: prepare it with "
                                 "product_shape::groups") != std::string::npos,
                   branched);
      }
      few->finish(), l.finish();
    }
}

// A way for a number of rows that comes up between others is checked in order, and the others are
// as they are without it.
BOOST_AUTO_TEST_CASE(a_way_is_chosen_between_products_that_run_side_by_side) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  auto& l = static_cast<cuda_lane&>(on.main_lane());
  constexpr int64_t m = 12, n = 8, k = 16;
  for (const product_kind kind : kinds) {
    product_shape s{.kind = kind, .M = m, .N = n, .K = k, .dynamic_rows = true};
    const bool summed = kind == product_kind::weight_gradient,
               forward = kind == product_kind::forward;
    const matrix<float> a(on, m, forward ? k : n, forward ? k : n, 1),
        b(on, summed ? m : n, k, k, 2);
    const std::vector<std::int32_t> rows{12, 3, 5, 2, 11, 8, 5, 1};
    // Once each alone, and once side by side.
    std::array<std::vector<std::vector<float>>, 2> got;
    for (const bool beside : {false, true}) {
      s.groups = beside ? 1 : 0;
      const prepared_product& p = on.products().prepare(s);
      l.reserve({.workspace = on.products().workspace_bytes()});
      std::vector<std::unique_ptr<matrix<float>>> out;
      for (std::size_t i = 0; i < rows.size(); ++i)
        out.push_back(std::make_unique<matrix<float>>(on, summed ? n : m, forward ? n : k,
                                                      forward ? n : k, 3 + i));
      const int before = on.products().checks().checked;
      const auto execute = [&](std::size_t i) {
        p.execute_segments({.on = l, .a = a.data(), .b = b.data(), .out = out[i]->data()},
                           std::span(&rows[i], 1));
      };
      if (beside) {
        side_by_side together(l);
        for (std::size_t i = 0; i < rows.size(); ++i) {
          together.next(), execute(i);
          BOOST_TEST(l.branched());
        }
      } else {
        for (std::size_t i = 0; i < rows.size(); ++i) execute(i);
      }
      BOOST_TEST(on.products().checks().checked > before); // some ways were chosen here
      for (const auto& o : out) got[beside].push_back(o->read());
    }
    BOOST_TEST((got[false] == got[true]));
  }
}

// Operands of fp32 are rounded to 11 bits where that is asked for, and only then; others never are.
// All ways pass a check of so many bits.
BOOST_AUTO_TEST_CASE(by_tf32_where_it_is_asked_for) {
  for (const bool tf32 : {false, true}) {
    test::machine_with_device machine(product_rows::together, tf32);
    cuda& on = machine.device();
    const auto one_by = [&]<class T>(T factor) {
      const std::vector<T> one{T(1)}, x{factor};
      arena a(on, 64, "a test", "none"), b(on, 64, "a test", "none"), out(on, 64, "a test", "none");
      on.write(a.data(), one.data(), sizeof(T)), on.write(b.data(), x.data(), sizeof(T));
      on.main_lane().reserve({.workspace = cuda::product_workspace});
      const product_shape s{
          .M = 1, .N = 1, .K = 1, .a = dtype_of<T>, .b = dtype_of<T>, .out = dtype_of<T>};
      on.products().prepare(s).execute(
          {.on = on.main_lane(), .a = a.data(), .b = b.data(), .out = out.data()});
      T got;
      on.read(&got, out.data(), sizeof got);
      return got;
    };
    const float fine = 1 + 0x1p-10f, finer = 1 + 0x1p-12f;
    BOOST_TEST(one_by(fine) == fine);
    BOOST_TEST(one_by(finer) == (tf32 ? 1.0f : finer));
    BOOST_TEST(one_by(double{finer}) == double{finer});
    const std::string says = on.products().describe(dtype::f32);
    BOOST_TEST(says.find(tf32 ? ", by TF32" : ", without TF32") != std::string::npos, says);
    BOOST_TEST(on.products().checks().refused.empty());
  }
}

// GELU and its slope are computed where the sums are: one piece of work a product, or a segment.
BOOST_AUTO_TEST_CASE(what_products_end_in) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  const auto both = [&](const product_shape& s, std::int64_t pieces) {
    BOOST_TEST(check_end<float>(on, s).first == pieces);
    BOOST_TEST(check_end<bf16>(on, s).first == pieces);
  };
  for (const product_end e : ends) {
    both(that_ends(e, 16, 32, 64), 1);
    both(that_ends(e, 1, 40, 8), 1);
    product_shape s = that_ends(e, 12, 24, 16);
    s.segment = 4;
    both(s, 3);
    s = that_ends(e, 7, 24, 16);
    s.x_stride = 16 + 8, s.y_stride = 24 + 8; // rows of packed values
    both(s, 1);
  }
  both(that_ends(product_end::gelu, 5, 9, 3),
       1); // it keeps nothing, and may have rows of any length
  BOOST_TEST(on.products().checks().refused.empty());
  BOOST_TEST(on.products().describe(dtype::bf16).find("GELU") == std::string::npos);
}

// A segment, and a row apart, has the bits that it has alone.
BOOST_AUTO_TEST_CASE(parts_and_rows_end_in_the_same_bits) {
  for (const product_rows rows : {product_rows::together, product_rows::apart}) {
    test::machine_with_device machine(rows);
    cuda& on = machine.device();
    for (const product_end e : ends) {
      const auto first_rows = [&](int64_t m) {
        product_shape s = that_ends(e, m, 24, 16);
        if (rows == product_rows::together) s.segment = 4;
        std::vector<bf16> got = check_end<bf16>(on, s).second;
        got.resize(static_cast<std::size_t>(4 * (s.kind == product_kind::forward ? 24 : 16)));
        return got;
      };
      const auto four = first_rows(4), twelve = first_rows(12);
      BOOST_TEST(std::equal(four.begin(), four.end(), twelve.begin(), [](bf16 x, bf16 y) {
        return convert<double>(x) == convert<double>(y);
      }));
    }
  }
}

// What the library is not asked for is left to a kernel, as the shape says: other types, and a Z
// whose rows do not lie as the library wants.
BOOST_AUTO_TEST_CASE(what_a_kernel_goes_on_with) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  for (const product_end e : ends)
    BOOST_TEST((on.products()
                    .prepare([&] {
                      product_shape s = that_ends(e, 8, 16, 24);
                      s.a = s.b = s.out = dtype::f64;
                      return s;
                    }())
                    .shape()
                    .ends_in == product_end::sum));
  check_end<bf16>(on, that_ends(product_end::gelu_kept, 8, 12, 16), false);
  check_end<float>(on, that_ends(product_end::gelu_gradient, 8, 16, 12), false);
  check_end<float>(on, that_ends(product_end::gelu_gradient, 8, 16, 12), false); // is found again
  const std::string says = on.products().describe(dtype::bf16);
  BOOST_TEST(says.find(", with a kernel for GELU behind 5 products") != std::string::npos, says);
}

// A way that leaves GELU out, takes the error function's, or looks at another row's Z is not used;
// where all are such, a kernel computes GELU.
BOOST_AUTO_TEST_CASE(a_way_with_another_end_is_not_used) {
  static std::vector<std::string> told;
  const std::pair<const char*, const char*> mistakes[] = {{" leaves GELU out", "GELU wrong in row"},
                                                          {" by erf", "GELU wrong in row"},
                                                          {" with Z of other rows", "wrong"}};
  for (const auto& [mistake, says] : mistakes)
    for (const product_end e : ends)
      for (const bool all : {false, true}) {
        if (mistake == mistakes[2].first && e == product_end::gelu) continue; // it has no Z
        told.clear();
        test::machine_with_device machine(product_rows::together, false,
                                          [](std::string_view line) { told.emplace_back(line); });
        cuda& on = machine.device();
        stand_in::fail(std::string("way 1") + mistake, cudaErrorUnknown);
        if (all) stand_in::fail(std::string("way 2") + mistake, cudaErrorUnknown);
        check_end<bf16>(on, that_ends(e, 24, 40, 64), !all);
        const auto& refused = on.products().checks().refused;
        BOOST_REQUIRE(refused.size() == (all ? 2u : 1u));
        BOOST_TEST(refused[0].find(says) != std::string::npos, refused[0]);
        BOOST_TEST(told.size() == (all ? 2u : 1u));
        const bool behind =
            on.products().describe(dtype::bf16).find(", with a kernel for GELU behind 1 product") !=
            std::string::npos;
        BOOST_TEST(behind == all);
        if (all)
          BOOST_TEST(told[1].find(": a kernel computes GELU behind it") != std::string::npos,
                     told[1]);
      }
}

// A segment has the bits that it has alone, whatever others there are.
BOOST_AUTO_TEST_CASE(parts_are_products_of_their_own) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  for (const product_kind kind : kinds) {
    check<float, float>(on, {.kind = kind, .M = 12, .N = 6, .K = 10, .segment = 4}, 12);
    check<bf16, float>(on, {.kind = kind, .M = 12, .N = 6, .K = 10, .segment = 4}, 12);
  }
  const auto first_rows = [&](int64_t m) {
    const product_shape s{.M = m, .N = 6, .K = 10, .segment = 4};
    const matrix<float> x(on, m, 10, 10, 1), w(on, 6, 10, 10, 2), y(on, m, 6, 6, 3);
    on.main_lane().reserve({.workspace = cuda::product_workspace});
    on.products().prepare(s).execute(
        {.on = on.main_lane(), .a = x.data(), .b = w.data(), .out = y.data()});
    std::vector<float> all = y.read();
    all.resize(24);
    return all;
  };
  BOOST_TEST(first_rows(4) == first_rows(12), boost::test_tools::per_element());
}

// Rows apart are as many products, of which each has the way of one row.
BOOST_AUTO_TEST_CASE(rows_may_be_products_of_their_own) {
  test::machine_with_device machine(product_rows::apart);
  cuda& on = machine.device();
  const product_shape s{.M = 6, .N = 10, .K = 4, .bias = true, .dynamic_rows = true};
  check<bf16, bf16>(on, s, 6);
  const std::int64_t before = stand_in::count().started;
  check<bf16, bf16>(on, s, 5);
  check<bf16, bf16>(on, s, 1);
  const std::int64_t of_six = stand_in::count().started - before;
  check<bf16, bf16>(on, s, 1);
  // Beside the products the same was started: operands are written, and the result is read.
  BOOST_TEST(of_six - 2 * (stand_in::count().started - before - of_six) == 4);
  check<bf16, float>(on, {.kind = product_kind::weight_gradient, .M = 6, .N = 10, .K = 4}, 6);
}

BOOST_AUTO_TEST_CASE(what_it_cannot_do_is_refused) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  const auto says = [&](const std::string& segment, const std::function<void()>& f) {
    const std::string sentence = refused(f);
    BOOST_TEST(sentence.find(segment) != std::string::npos, sentence);
  };
  product_shape s{.M = 4, .N = 8, .K = 8};
  s.b = dtype::bf16;
  says("a forward product of 4 x 8 x 8 (f32 x bf16 to f32) has types",
       [&] { on.products().prepare(s); });
  s.b = dtype::f32;
  const prepared_product& p = on.products().prepare(s);
  const matrix<float> x(on, 5, 8, 8, 1);
  const auto call = [&](std::byte* a) {
    return product_call{.on = on.main_lane(), .a = a, .b = x.data(), .out = x.data()};
  };
  says("begins elsewhere than a planned buffer", [&] { p.execute(call(x.data() + 4)); });
  s.dynamic_rows = true;
  product_call many = call(x.data());
  many.rows = 5;
  says("for 4 rows, and was given 5", [&] { on.products().prepare(s).execute(many); });
  // A lane without a workspace: the library says so, and nothing is started.
  const auto other = on.make_lane();
  const product_call elsewhere{.on = *other, .a = x.data(), .b = x.data(), .out = x.data()};
  const std::int64_t before = stand_in::count().started;
  says("cublasLtMatmul: CUBLAS_STATUS_INVALID_VALUE", [&] { p.execute(elsewhere); });
  BOOST_TEST(stand_in::count().started == before);
  BOOST_TEST(on.products().describe(dtype::f32).find("without TF32") != std::string::npos);
}

// A way that computes wrong is found before it is used, and told; where all are wrong the run ends.
BOOST_AUTO_TEST_CASE(a_wrong_way_is_not_used) {
  test::machine_with_device machine;
  cuda& on = machine.device();
  for (const product_kind kind : kinds) {
    stand_in::fail("way 1", cudaErrorUnknown);
    check<bf16, float>(on, {.kind = kind, .M = 6, .N = 10, .K = 14}, 6);
  }
  BOOST_TEST(on.products().checks().refused.size() == 3u);
  BOOST_TEST(
      on.products().checks().refused[0] ==
      "cuBLASLt computes row 0 wrong in way 1 of 2 of a forward product of 6 x 10 x 14 (bf16 x "
      "bf16 to f32), checked with 6 rows");
  BOOST_TEST(on.products().describe(dtype::bf16).find("but for 3 of 6 ways") != std::string::npos);
  stand_in::fail("way 1", cudaErrorUnknown), stand_in::fail("way 2", cudaErrorUnknown);
  const std::string sentence = refused([&] { on.products().prepare({.M = 2, .N = 2, .K = 2}); });
  BOOST_TEST(sentence ==
             "a forward product of 2 x 2 x 2 (f32 x f32 to f32) has no way of cuBLASLt "
             "that passes its check (the last computes row 0 wrong): install another "
             "version of cuBLASLt");
}

namespace {

/// f(kind) with the types of experts in bf16: weight gradients are fp32.
template <class F> void for_experts_of_bf16(F f) {
  f(product_kind::forward, bf16()), f(product_kind::input_gradient, bf16());
  f(product_kind::weight_gradient, float());
}
bool contains(const std::string& text, const char* segment) {
  return text.find(segment) != std::string::npos;
}
/// Rows of five groups, each of two segments.
const std::vector<std::int32_t> of_five{7, 1, 0, 0, 12, 0, 0, 3, 5, 12};

} // namespace

// Of groups with many rows, one, none, of several segments or one: by one kernel, and by products that run
// side by side. The arrays are copied and the kernel starts; a weight gradient takes turns.
BOOST_AUTO_TEST_CASE(products_of_groups) {
  for (const bool at_once : {false, true}) {
    test::machine_with_device machine(product_rows::together, false, nullptr,
                                      at_once ? test::cutlass : grouped_library{});
    cuda& on = machine.device();
    for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
      product_shape s{.kind = kind, .M = 12, .N = 24, .K = 40, .groups = 5};
      for (const auto& segments : {std::vector<std::int32_t>{12, 0, 1, 5, 3}, of_five,
                                   std::vector<std::int32_t>{0, 0, 0, 0, 0}}) {
        const int64_t started = check_groups<bf16, Out>(on, s, segments).first;
        const int64_t turns = segments.back() == 0                    ? 0
                              : kind == product_kind::weight_gradient ? std::ssize(segments) / 5
                                                                      : 1;
        if (at_once) BOOST_TEST(started == 3 * turns); // with the event behind the copy
      }
      s.x_stride = 48, s.y_stride = 32;
      check_groups<bf16, Out>(on, s, of_five);
      // The segments of a group are one where none has to have bits of its own.
      s.sums = numerics::fast;
      const int64_t started = check_groups<bf16, Out>(on, s, of_five).first;
      if (at_once) BOOST_TEST(started == 3);
      check_groups<float, float>(on, {.kind = kind, .M = 12, .N = 8, .K = 16, .groups = 5},
                                 of_five);
      // Rows that do not begin at multiples of 16 bytes, which the kernel does not take.
      check_groups<bf16, Out>(on, {.kind = kind, .M = 12, .N = 12, .K = 40, .groups = 5}, of_five);
      check_groups<bf16, Out>(on, {.kind = kind, .M = 12, .N = 24, .K = 6, .groups = 5}, of_five);
    });
    const std::string says = on.products().describe(dtype::bf16);
    BOOST_TEST(contains(says, at_once ? ", 9 of 18 products of experts at once by CUTLASS 4.2.0"
                                      : ", products of experts one by one"),
               says);
    BOOST_TEST(on.products().checks().refused.empty());
  }
}

// Where cuBLASLt has grouped products it computes them, by one start behind the copy of its arrays, of a
// group's segments together. What it has none for another library computes.
BOOST_AUTO_TEST_CASE(products_of_groups_by_cublaslt) {
  test::machine_with_device machine(product_rows::together, false, nullptr, test::cutlass,
                                    test::with_grouped_cublaslt);
  cuda& on = machine.device();
  for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
    product_shape s{.kind = kind, .M = 12, .N = 24, .K = 40, .groups = 5, .group_rows = 4};
    s.sums = numerics::fast;
    for (const auto& segments : {std::vector<std::int32_t>{12, 0, 1, 5, 3}, of_five,
                                 std::vector<std::int32_t>{0, 0, 0, 0, 0}})
      BOOST_TEST((check_groups<bf16, Out>(on, s, segments).first) ==
                 (segments.back() == 0 ? 0 : 3));
    const bool forward = kind == product_kind::forward,
               summed = kind == product_kind::weight_gradient;
    const std::array<int64_t, 3> usual{forward  ? 40
                                       : summed ? 4
                                                : 24,
                                       forward ? 24 : 40, summed ? 24 : 4};
    BOOST_TEST(stand_in::usual_group() == usual, boost::test_tools::per_element());
    s.x_stride = 48, s.y_stride = 32, s.group_rows = 0;
    check_groups<bf16, Out>(on, s, of_five);
    BOOST_TEST(stand_in::usual_group()[summed ? 0 : 2] == 12);
    s.sums = numerics::batch_invariant; // segments of their own bits, which nobody promises
    check_groups<bf16, Out>(on, s, of_five);
    s.sums = numerics::fast, s.N = 12; // rows that begin between multiples of 16 bytes
    s.y_stride = 0;
    check_groups<bf16, Out>(on, s, of_five);
  });
  const std::string says = on.products().describe(dtype::bf16);
  BOOST_TEST(contains(says,
                      "cuBLASLt 13.10.0, 6 of 12 products of experts at once by cuBLASLt "
                      "13.10.0, 3 of 12 by CUTLASS 4.2.0"),
             says);
  BOOST_TEST(on.products().checks().refused.empty());
}

// Another version, another GPU, rows that are computed apart, and a library that knows no way: each
// leaves products of groups to the next library, or to products one by one.
BOOST_AUTO_TEST_CASE(where_cublaslt_computes_no_groups) {
  const auto by = [](const stand_in::machine& has, product_rows rows, product_kind kind,
                     const grouped_library& next, const std::function<void()>& before) {
    test::machine_with_device machine(rows, false, nullptr, next, has);
    before();
    product_shape s{.kind = kind, .M = 12, .N = 24, .K = 40, .groups = 5};
    s.sums = numerics::fast;
    check_groups<bf16, bf16>(machine.device(), s, of_five);
    BOOST_TEST(machine.device().products().checks().refused.empty());
    const std::string says = machine.device().products().describe(dtype::bf16);
    return says.substr(says.find(", products of experts") + 2);
  };
  stand_in::machine older = test::with_grouped_cublaslt, other = older, newer = older;
  older.cublaslt = 130699, newer.cublaslt = 130700;
  const std::string once = "products of experts at once by ";
  const auto nothing = [] {};
  for (const auto kind : {product_kind::forward, product_kind::input_gradient}) {
    const auto of = [&](const stand_in::machine& has, product_rows rows = product_rows::together) {
      return by(has, rows, kind, test::cutlass, nothing);
    };
    BOOST_TEST(of(newer) == once + "cuBLASLt 13.7.0");
    BOOST_TEST(of(older) == once + "CUTLASS 4.2.0");
    for (const auto& [major, minor] : {std::pair(8, 9), std::pair(9, 1), std::pair(10, 0)}) {
      other.capability[0] = major, other.capability[1] = minor;
      BOOST_TEST(of(other) == once + "CUTLASS 4.2.0");
    }
    BOOST_TEST(of(newer, product_rows::apart) ==
               once + (kind == product_kind::forward ? "CUTLASS 4.2.0" : "cuBLASLt 13.7.0"));
    const auto no_way = [] { stand_in::fail("cuBLASLt plans groups", cudaErrorUnknown); };
    BOOST_TEST(by(newer, product_rows::together, kind, test::cutlass, no_way) ==
               once + "CUTLASS 4.2.0");
    BOOST_TEST(by(newer, product_rows::together, kind, {}, no_way) ==
               "products of experts one by one");
  }
}

namespace {

/// A mistake of kernels of groups that shows in products of some kinds, and what is said of it.
enum class shows_in { all, sums, rows };
struct wrong_kernel {
  const char *mistake, *says;
  shows_in of = shows_in::all;
};

} // namespace

// A kernel of cuBLASLt that is wrong is not used, and that is told once: the next library is tried, which
// may be wrong, too.
BOOST_AUTO_TEST_CASE(a_wrong_kernel_of_cublaslt_is_not_used) {
  static std::vector<std::string> told;
  const auto hear = [](std::string_view line) { told.emplace_back(line); };
  for (const wrong_kernel& w : {wrong_kernel{"way 1 leaves a group out", "wrong"},
                                {"way 1 writes a row too many", ""},
                                {"way 1 leaves the last term out", "wrong"},
                                {"way 1 takes another stride", "", shows_in::rows},
                                {"way 1 adds to nothing", "wrong", shows_in::sums},
                                {"cublasLtMatmul", "fails"},
                                {"cublasLtMatrixLayoutSetAttribute", "plans nothing"}})
    for (const bool next : {true, false}) {
      told.clear();
      test::machine_with_device machine(product_rows::together, false, hear,
                                        next ? test::cutlass : grouped_library{},
                                        test::with_grouped_cublaslt);
      cuda& on = machine.device();
      std::size_t tried = 0;
      for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
        const bool summed = kind == product_kind::weight_gradient;
        if ((w.of == shows_in::sums && !summed) || (w.of == shows_in::rows && summed)) return;
        ++tried;
        product_shape s{.kind = kind, .M = 12, .N = 24, .K = 40, .x_stride = 48, .y_stride = 32};
        s.groups = 5, s.sums = numerics::fast;
        stand_in::fail(w.mistake, cudaErrorUnknown);
        check_groups<bf16, Out>(on, s, of_five);
      });
      BOOST_TEST(on.products().checks().refused.size() == tried, w.mistake);
      BOOST_REQUIRE(told.size() == 1u);
      BOOST_TEST(told[0].starts_with("cuBLASLt 13.10.0 "), told[0]);
      BOOST_TEST(contains(told[0], w.says), told[0]);
      BOOST_TEST(contains(told[0], next ? ": a kernel of CUTLASS 4.2.0 is tried next, and further "
                                          "kernels that fail their check are not told"
                                        : ": cuBLASLt computes these products one by one, and "),
                 told[0]);
      const std::string how = on.products().describe(dtype::bf16);
      BOOST_TEST(contains(how, next ? ", products of experts at once by CUTLASS 4.2.0"
                                    : ", products of experts one by one"),
                 how);
    }
  told.clear();
  test::machine_with_device machine(product_rows::together, false, hear, test::cutlass,
                                    test::with_grouped_cublaslt);
  cuda& on = machine.device();
  stand_in::fail("way 1 leaves a group out", cudaErrorUnknown);
  stand_in::fail("grouped: a segment is left out", cudaErrorUnknown);
  product_shape s{.M = 12, .N = 24, .K = 40, .groups = 5};
  s.sums = numerics::fast;
  check_groups<bf16, bf16>(on, s, of_five);
  BOOST_TEST(on.products().checks().refused.size() == 2u);
  BOOST_TEST(told.size() == 1u);
  const std::string how = on.products().describe(dtype::bf16);
  BOOST_TEST(contains(how, ", products of experts one by one"), how);
}

// More groups than threads of a warp, which look for theirs in steps, and one.
BOOST_AUTO_TEST_CASE(any_number_of_groups) {
  for (const bool by_cublaslt : {false, true}) {
    test::machine_with_device machine(
        product_rows::together, false, nullptr, by_cublaslt ? grouped_library{} : test::cutlass,
        by_cublaslt ? test::with_grouped_cublaslt : stand_in::machine{});
    cuda& on = machine.device();
    for (const int64_t groups : {1, 2, 3, 70})
      for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
        std::vector<std::int32_t> rows(static_cast<std::size_t>(groups));
        for (std::size_t g = 0; g < rows.size(); ++g)
          rows[g] = static_cast<std::int32_t>(g * 5 % 7);
        product_shape s{.kind = kind, .M = 6, .N = 8, .K = 16, .groups = groups};
        s.sums = numerics::fast;
        check_groups<bf16, Out>(on, s, rows);
      });
    const std::string says = on.products().describe(dtype::bf16);
    BOOST_TEST(contains(says, by_cublaslt ? ", products of experts at once by cuBLASLt 13.10.0"
                                          : ", products of experts at once by CUTLASS 4.2.0"),
               says);
  }
}

// A segment has the bits that it has alone, whatever other segments a call has.
BOOST_AUTO_TEST_CASE(parts_of_groups_have_bits_of_their_own) {
  test::machine_with_device machine(product_rows::together, false, nullptr, test::cutlass);
  cuda& on = machine.device();
  for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
    const product_shape s{.kind = kind, .M = 12, .N = 24, .K = 40, .groups = 2};
    std::vector<Out> alone = check_groups<bf16, Out>(on, s, {7, 0, 0, 0}).second,
                     beside = check_groups<bf16, Out>(on, s, {7, 0, 2, 12}).second;
    const auto n = static_cast<std::size_t>(kind == product_kind::forward          ? 7 * s.N
                                            : kind == product_kind::input_gradient ? 7 * s.K
                                                                                   : s.N * s.K);
    alone.resize(n), beside.resize(n);
    BOOST_TEST(std::equal(alone.begin(), alone.end(), beside.begin(),
                          [](Out x, Out y) { return convert<double>(x) == convert<double>(y); }));
  });
}

// A kernel that leaves a segment out, does not add to what is there, writes a row too many, leaves out the
// end of a sum, cannot be started or needs more workspace than there is, is not used, and that is told
// once.
BOOST_AUTO_TEST_CASE(a_wrong_kernel_of_groups_is_not_used) {
  static std::vector<std::string> told;
  for (const wrong_kernel& w : {wrong_kernel{"grouped: a segment is left out", "wrong"},
                                {"grouped: a row too many", ""},
                                {"grouped: the last term is left out", "wrong"},
                                {"grouped: nothing is added to", "wrong", shows_in::sums},
                                {"cutlass_grouped", "fails"},
                                {"cutlass_grouped: workspace", "fails"}})
    for (const int after : {0, 1}) { // in the check of the shape, and in that of many groups
      told.clear();
      test::machine_with_device machine(
          product_rows::together, false, [](std::string_view line) { told.emplace_back(line); },
          test::cutlass);
      cuda& on = machine.device();
      int kinds_tried = 0;
      for_experts_of_bf16([&]<class Out>(product_kind kind, Out) {
        if (w.of == shows_in::sums && kind != product_kind::weight_gradient) return;
        ++kinds_tried;
        stand_in::fail(w.mistake, cudaErrorUnknown, after);
        check_groups<bf16, Out>(on, {.kind = kind, .M = 12, .N = 24, .K = 40, .groups = 5},
                                of_five);
      });
      BOOST_TEST(on.products().checks().refused.size() == static_cast<std::size_t>(kinds_tried));
      BOOST_REQUIRE(told.size() == 1u);
      BOOST_TEST(told[0].starts_with("CUTLASS 4.2.0 "), told[0]);
      BOOST_TEST(contains(told[0], w.says), told[0]);
      BOOST_TEST(
          contains(told[0],
                   after > 0 ? ", checked with 65 groups: cuBLASLt computes these products one by "
                               "one, and further kernels that fail their check are not told"
                   : w.of == shows_in::sums
                       ? " in groups of a product for a weight gradient of 12 x 24 x 40 "
                         "(bf16 x bf16 to f32), checked with 4 groups: "
                       : " in groups of a forward product of 12 x 24 x 40 (bf16 "),
          told[0]);
      const std::string how = on.products().describe(dtype::bf16);
      BOOST_TEST(contains(how, ", products of experts one by one"), how);
    }
}

BOOST_AUTO_TEST_CASE(groups_that_do_not_fit_are_refused) {
  for (const int libraries : {0, 1, 2}) {
    const bool at_once = libraries > 0;
    test::machine_with_device machine(
        product_rows::together, false, nullptr, libraries == 1 ? test::cutlass : grouped_library{},
        libraries == 2 ? test::with_grouped_cublaslt : stand_in::machine{});
    cuda& on = machine.device();
    const product_shape s{.M = 4,
                          .N = 8,
                          .K = 8,
                          .a = dtype::bf16,
                          .b = dtype::bf16,
                          .out = dtype::bf16,
                          .dynamic_rows = true,
                          .groups = 2,
                          .sums = numerics::fast};
    const prepared_product& p = on.products().prepare(s);
    on.main_lane().reserve({.workspace = on.products().workspace_bytes()});
    const matrix<bf16> x(on, 32, 8, 8, 1);
    const auto says = [&](const std::vector<std::int32_t>& rows, lane& l) {
      return refused([&] {
        p.execute_groups({.on = l, .a = x.data(), .b = x.data(), .out = x.data()}, rows);
      });
    };
    lane& l = on.main_lane();
    for (const auto& [rows, segment] :
         {std::pair{std::vector<std::int32_t>{1, 2, 3}, " 3 segments."},
          {{5, 0}, " a segment of 5."},
          {{-1, 4}, " a segment of -1."}})
      BOOST_TEST(says(rows, l) ==
                 "A matrix product prepared for 2 groups of 4 rows at most was given" +
                     std::string(segment));
    const std::string elsewhere = refused([&] {
      const std::vector<std::int32_t> rows{1, 2};
      p.execute_groups({.on = l, .a = x.data() + 2, .b = x.data(), .out = x.data()}, rows);
    });
    BOOST_TEST(contains(elsewhere, "begins elsewhere than a planned buffer"), elsewhere);
    const auto bare = on.make_lane(); // it has no workspace
    const std::string without = says({1, 2}, *bare);
    BOOST_TEST(contains(without,
                        at_once ? "bytes of workspace, and has 0" : "CUBLAS_STATUS_INVALID_VALUE"),
               without);
    const auto small = on.make_lane();
    small->reserve({.workspace = 4096}); // where the arrays fit, and no kernel works
    const std::string too_small = says({1, 2}, *small);
    BOOST_TEST(contains(too_small, at_once ? "bytes of workspace, and has 4096"
                                           : "CUBLAS_STATUS_INVALID_VALUE"),
               too_small);
  }
}
