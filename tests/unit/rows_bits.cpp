// Row kernels give the same bits for constant and run-time extents, for any number of threads, and
// fused or one after the other.
#define BOOST_TEST_MODULE rows_bits
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/embedding.hpp>
#include <megacpp/kernel/rope_table.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/num/extent.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cstring>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;
using types = std::tuple<float, bf16, double>;

const mc::cores host;

struct numbers {
  std::uint64_t state = 987;
  template <class T> std::vector<T> of(int64_t n) {
    std::vector<T> r(static_cast<std::size_t>(n));
    for (T& x : r) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x = mc::convert<T>(static_cast<double>(static_cast<int64_t>(state) >> 11) * 0x1p-51);
    }
    return r;
  }
};

// Names and bytes of what kernels wrote.
struct outputs {
  std::vector<std::pair<std::string, std::vector<unsigned char>>> of;
  template <class X> void add(const char* name, const std::vector<X>& x) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(x.data());
    of.emplace_back(name, std::vector<unsigned char>(bytes, bytes + x.size() * sizeof(X)));
  }
};

void equal(const outputs& a, const outputs& b) {
  BOOST_REQUIRE_EQUAL(a.of.size(), b.of.size());
  for (std::size_t i = 0; i < a.of.size(); ++i) {
    BOOST_TEST((a.of[i] == b.of[i]), a.of[i].first);
  }
}

// Every kernel once. Half is half of Extent, for rotations.
template <class T, class Extent, class Half>
outputs everything(int64_t r, Extent width, Half half) {
  using G = mc::accumulator_t<T>;
  const int64_t w = width, n = r * w;
  numbers from;
  const auto x = from.of<T>(n), a = from.of<T>(n), dy = from.of<T>(n), gain = from.of<T>(w),
             bias = from.of<T>(w);
  std::vector<T> y(x.size()), s = y, z = y;
  std::vector<G> mean(static_cast<std::size_t>(r)), rstd = mean;
  std::vector<G> g1 = from.of<G>(w), g2 = from.of<G>(w);
  std::vector<std::int32_t> ids;
  for (int64_t t = 0; t < r; ++t) ids.push_back(static_cast<std::int32_t>(t * 3 % 7));
  const G eps(0.01f);
  outputs out;

  rows::rms_norm(host, r, width, x.data(), gain.data(), eps, y.data(), rstd.data());
  out.add("rms_norm", y);
  out.add("rms_norm rstd", rstd);
  rows::rms_norm_dx(host, r, width, dy.data(), x.data(), gain.data(), rstd.data(), z.data());
  out.add("rms_norm_dx", z);
  rows::rms_norm_dgain(host, r, width, dy.data(), x.data(), rstd.data(), g1.data());
  out.add("rms_norm_dgain", g1);
  rows::add_rms_norm(host, r, width, x.data(), a.data(), gain.data(), eps, s.data(), y.data(),
                     rstd.data());
  out.add("add_rms_norm s", s);
  out.add("add_rms_norm y", y);
  rows::add_rms_norm_dx(host, r, width, dy.data(), s.data(), gain.data(), rstd.data(), a.data(),
                        z.data());
  out.add("add_rms_norm_dx", z);
  rows::layer_norm(host, r, width, x.data(), gain.data(), bias.data(), eps, y.data(), mean.data(),
                   rstd.data());
  out.add("layer_norm", y);
  rows::layer_norm_dx(host, r, width, dy.data(), x.data(), gain.data(), mean.data(), rstd.data(),
                      z.data());
  out.add("layer_norm_dx", z);
  rows::layer_norm_dgain_dbias(host, r, width, dy.data(), x.data(), mean.data(), rstd.data(),
                               g1.data(), g2.data());
  out.add("dgain", g1);
  out.add("dbias", g2);
  rows::layer_norm_dgain_dbias(host, r, width, dy.data(), x.data(), mean.data(), rstd.data(),
                               g1.data(), static_cast<G*>(nullptr));
  out.add("dgain alone", g1);
  rows::add_layer_norm(host, r, width, x.data(), a.data(), gain.data(), bias.data(), eps, s.data(),
                       y.data(), mean.data(), rstd.data());
  out.add("add_layer_norm", y);
  rows::add_layer_norm_dx(host, r, width, dy.data(), s.data(), gain.data(), mean.data(),
                          rstd.data(), a.data(), z.data());
  out.add("add_layer_norm_dx", z);
  rows::bias_gradient(host, r, width, dy.data(), g2.data());
  out.add("bias_gradient", g2);
  rows::bias_add(host, r, width, x.data(), bias.data(), y.data());
  out.add("bias_add", y);
  rows::swiglu(host, r, width, w, x.data(), a.data(), y.data());
  out.add("swiglu", y);
  rows::swiglu_backward(host, r, width, w, dy.data(), x.data(), a.data(), y.data(), z.data());
  out.add("dgate", y);
  out.add("dup", z);
  const std::uint64_t key = 77;
  rows::dropout(host, r, width, w, int64_t{0}, &key, 0.3, ids.data(), x.data(), y.data());
  out.add("dropout", y);
  std::vector<G> table(static_cast<std::size_t>(4 * w));
  const rows::token_order order(r, 4);
  std::vector<std::uint64_t> numbers(ids.size());
  rows::number_of_tokens(host, r, order, 2, ids.data(), numbers.data());
  std::sort(numbers.begin(), numbers.end());
  rows::embedding_gradient(host, r, order, width, dy.data(), numbers.data(), table.data());
  out.add("embedding_gradient", table);
  std::vector<T> entries = from.of<T>(4 * w);
  rows::embedding(host, r, width, entries.data(), 2, 4, ids.data(), y.data());
  out.add("embedding", y);
  const int64_t h = half;
  std::vector<G> cos(static_cast<std::size_t>(r * h)), sin = cos;
  const std::vector<double> turns(static_cast<std::size_t>(h), 0.7);
  mc::build_rope_table(r, turns, nullptr, cos.data(), sin.data());
  rows::rope(host, r, int64_t{1}, half, w, w, x.data(), static_cast<const std::int32_t*>(nullptr),
             cos.data(), sin.data(), 1, y.data());
  out.add("rope", y);
  rows::activation<rows::silu>(host, n, x.data(), y.data());
  out.add("silu", y);
  rows::activation_dx<rows::gelu_exact>(host, n, dy.data(), x.data(), y.data());
  out.add("gelu_exact", y);
  std::vector<double> parts(static_cast<std::size_t>(rows::sum_squares_partials(n)) + 1);
  rows::sum_squares(host, n, x.data(), parts.data(), &parts.back());
  out.add("sum_squares", parts);
  auto master = from.of<G>(n), m = from.of<G>(n), grad = from.of<G>(n);
  std::vector<G> v(master.size());
  std::vector<std::uint8_t> broken(static_cast<std::size_t>(mc::blocks_of(n)));
  const auto factors = rows::adamw_step<G>(2, 1e-3, 0.9, 0.99, 1e-8, 0.1, 1);
  double blocks = 1;
  rows::adamw(host, n, &factors, grad.data(), master.data(), m.data(), v.data(), y.data(),
              broken.data(), &blocks);
  out.add("adamw", y);
  return out;
}

template <class T, int64_t W> void constant_as_run_time() {
  BOOST_TEST_CONTEXT("width " << W) {
    equal(everything<T>(37, int64_t{W}, int64_t{W / 2}),
          everything<T>(37, mc::fixed<W>{}, mc::fixed<W / 2>{}));
  }
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(constant_extents, T, types) {
  constant_as_run_time<T, 17>();
  if constexpr (sizeof(T) < 8) constant_as_run_time<T, 768>();
}

BOOST_AUTO_TEST_CASE_TEMPLATE(any_number_of_threads, T, types) {
  for (int64_t width : {1, 17, 96, 768, 2500}) {
    BOOST_TEST_CONTEXT("width " << width) {
      mc::set_thread_count(1);
      const auto one = everything<T>(131, width, width / 2);
      for (int threads : {2, 3, 7}) {
        mc::set_thread_count(threads);
        equal(one, everything<T>(131, width, width / 2));
      }
    }
  }
}

BOOST_AUTO_TEST_CASE_TEMPLATE(fused_as_separate, T, types) {
  using G = mc::accumulator_t<T>;
  for (int64_t width : {1, 3, 15, 16, 17, 33, 64, 96, 127, 768}) {
    const int64_t r = 13, n = r * width;
    numbers from;
    const auto x = from.of<T>(n), a = from.of<T>(n), dy = from.of<T>(n), ds = from.of<T>(n),
               gain = from.of<T>(width), bias = from.of<T>(width);
    std::vector<T> s(x.size()), y = s, dx = s, s2 = s, y2 = s, dx2 = s;
    std::vector<G> mean(static_cast<std::size_t>(r)), rstd = mean, mean2 = mean, rstd2 = mean;
    const G eps(0.01f);
    const auto same = [&](const char* what) {
      const auto bytes = [](const auto& p, const auto& q) {
        return std::memcmp(p.data(), q.data(), p.size() * sizeof(p[0])) == 0;
      };
      BOOST_TEST((bytes(s, s2) && bytes(y, y2) && bytes(dx, dx2) && bytes(mean, mean2) &&
                  bytes(rstd, rstd2)),
                 what << " at width " << width);
    };

    rows::add(host, n, x.data(), a.data(), s.data());
    rows::rms_norm(host, r, width, s.data(), gain.data(), eps, y.data(), rstd.data());
    rows::rms_norm_dx(host, r, width, dy.data(), s.data(), gain.data(), rstd.data(), dx.data());
    rows::add(host, n, dx.data(), ds.data(), dx.data());
    rows::add_rms_norm(host, r, width, x.data(), a.data(), gain.data(), eps, s2.data(), y2.data(),
                       rstd2.data());
    rows::add_rms_norm_dx(host, r, width, dy.data(), s2.data(), gain.data(), rstd2.data(),
                          ds.data(), dx2.data());
    same("rms_norm");

    rows::layer_norm(host, r, width, s.data(), gain.data(), bias.data(), eps, y.data(), mean.data(),
                     rstd.data());
    rows::layer_norm_dx(host, r, width, dy.data(), s.data(), gain.data(), mean.data(), rstd.data(),
                        dx.data());
    rows::add(host, n, dx.data(), ds.data(), dx.data());
    rows::add_layer_norm(host, r, width, x.data(), a.data(), gain.data(), bias.data(), eps,
                         s2.data(), y2.data(), mean2.data(), rstd2.data());
    rows::add_layer_norm_dx(host, r, width, dy.data(), s2.data(), gain.data(), mean2.data(),
                            rstd2.data(), ds.data(), dx2.data());
    same("layer_norm");
  }
}
