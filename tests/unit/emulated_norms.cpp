// The bodies of norms, and of sums over rows, on emulated teams, against plain loops in double.
#define BOOST_TEST_MODULE emulated_norms
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/layer_norm.hpp>

#include <cmath>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

} // namespace

// Named outside, since lambdas capture it.
template <class T> struct norm_inputs {
  std::vector<T> x, a, dy, ds, gain, bias, s;
  G<T> eps{0.01f};
  explicit norm_inputs(shape of) {
    numbers from;
    const int64_t n = of.rows * of.width;
    x = from.of<T>(n), a = from.of<T>(n), dy = from.of<T>(n), ds = from.of<T>(n);
    gain = from.of<T>(of.width), bias = from.of<T>(of.width);
    for (std::size_t i = 0; i < x.size(); ++i)
      s.push_back(mc::convert<T>(static_cast<G<T>>(wide(x[i]) + wide(a[i]))));
  }
  // Mean and 1 / standard deviation of each row, as a forward would leave them.
  std::vector<G<T>> mean, rstd;
  void statistics(shape of, bool centred) {
    mean.clear(), rstd.clear();
    for (int64_t r = 0; r < of.rows; ++r) {
      double sum = 0, square = 0;
      const auto at = [&](int64_t j) {
        return wide(x[static_cast<std::size_t>(r * of.width + j)]);
      };
      const auto n = static_cast<double>(of.width);
      for (int64_t j = 0; centred && j < of.width; ++j) sum += at(j);
      for (int64_t j = 0; j < of.width; ++j) square += (at(j) - sum / n) * (at(j) - sum / n);
      mean.push_back(static_cast<G<T>>(sum / n));
      rstd.push_back(static_cast<G<T>>(1 / std::sqrt(square / n + wide(eps))));
    }
  }
};

namespace {

template <class T> reference summed(const std::vector<T>& a, const reference& b) {
  return of_each(a, [&](std::size_t i) { return wide(a[i]) + b[i]; });
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(rms_norm, T, types) {
  for_teams<T>(rows::detail::vectors_of_norm, [](team_shape s) {
    norm_inputs<T> in(s);
    const reference none(static_cast<std::size_t>(s.width));
    const auto n = static_cast<int64_t>(in.x.size());
    auto want = norm_of(wide(in.x), wide(in.dy), wide(in.gain), none, wide(in.eps), false, s);
    in.statistics(s, false);

    using forward = rows::rms_norm_row<T, int64_t>;
    auto y = unset<T>(n);
    auto rstd = unset<G<T>>(s.rows);
    on_team("rms_norm", s,
            forward{s.width, in.eps, in.x.data(), in.gain.data(), y.data(), rstd.data()}, y, rstd);
    close<T>("rms_norm", y, want.y, 2, 8);
    close<G<T>>("rstd", rstd, wide(in.rstd), 2, 8);
    y = in.x;
    on_team("rms_norm in place", s,
            forward{s.width, in.eps, y.data(), in.gain.data(), y.data(), rstd.data()}, y, rstd);
    close<T>("rms_norm in place", y, want.y, 2, 8);

    const auto dx = [&](const char* what, auto add, std::vector<T>& out, const T* dy, const T* x,
                        const T* ds) {
      on_team(what, s,
              rows::rms_norm_dx_row<T, int64_t, add.value>{s.width, dy, x, in.gain.data(),
                                                           in.rstd.data(), ds, out.data()},
              out);
    };
    y = unset<T>(n);
    dx("rms_norm_dx", std::false_type(), y, in.dy.data(), in.x.data(), nullptr);
    close<T>("rms_norm_dx", y, want.dx, 1, 32, 20);
    y = in.dy;
    dx("rms_norm_dx over dy", std::false_type(), y, y.data(), in.x.data(), nullptr);
    close<T>("rms_norm_dx over dy", y, want.dx, 1, 32, 20);
    y = in.ds;
    dx("add_rms_norm_dx over ds", std::true_type(), y, in.dy.data(), in.x.data(), y.data());
    close<T>("add_rms_norm_dx over ds", y, summed(in.ds, want.dx), 3, 32,
             20 + 2 * unit<T> / unit<G<T>>);

    auto dgain = zeros<G<T>>(s.width);
    team_shape slabs = s;
    slabs.rows = 2;
    const int64_t columns = (s.width + 1) / 2;
    on_team("rms_norm_dgain", slabs,
            rows::rms_norm_gain_slab<T>{s.width, s.rows, columns, in.dy.data(), in.x.data(),
                                        in.rstd.data(), dgain.data()},
            dgain);
    close<G<T>>("rms_norm_dgain", dgain, want.dgain, 1, 12, 10);

    want = norm_of(wide(in.s), wide(in.dy), wide(in.gain), none, wide(in.eps), false, s);
    auto sum = in.a;
    y = in.x;
    on_team("add_rms_norm over x and a", s,
            rows::add_rms_norm_row<T, int64_t>{s.width, in.eps, y.data(), sum.data(),
                                               in.gain.data(), sum.data(), y.data(), rstd.data()},
            sum, y, rstd);
    BOOST_TEST(same_bytes(sum.data(), in.s.data(), sum.size() * sizeof(T)));
    close<T>("add_rms_norm", y, want.y, 2, 8);
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(layer_norm, T, types) {
  for_teams<T>(rows::detail::vectors_of_norm, [](team_shape s) {
    norm_inputs<T> in(s);
    const reference none(static_cast<std::size_t>(s.width));
    const auto n = static_cast<int64_t>(in.x.size());
    auto want =
        norm_of(wide(in.x), wide(in.dy), wide(in.gain), wide(in.bias), wide(in.eps), true, s);
    in.statistics(s, true);

    using forward = rows::layer_norm_row<T, int64_t>;
    auto y = unset<T>(n);
    auto mean = unset<G<T>>(s.rows), rstd = mean;
    on_team("layer_norm", s,
            forward{s.width, in.eps, in.x.data(), in.gain.data(), in.bias.data(), y.data(),
                    mean.data(), rstd.data()},
            y, mean, rstd);
    close<T>("layer_norm", y, want.y, 1, 16, 4);
    close<G<T>>("mean", mean, wide(in.mean), 2, 8);
    close<G<T>>("rstd", rstd, wide(in.rstd), 2, 16);
    y = in.x;
    const auto bare = norm_of(wide(in.x), wide(in.dy), wide(in.gain), none, wide(in.eps), true, s);
    on_team("layer_norm in place", s,
            forward{s.width, in.eps, y.data(), in.gain.data(), nullptr, y.data(), mean.data(),
                    rstd.data()},
            y, mean, rstd);
    close<T>("layer_norm in place, without bias", y, bare.y, 1, 16, 4);

    const auto dx = [&](const char* what, auto add, std::vector<T>& out, const T* dy, const T* x,
                        const T* ds) {
      on_team(what, s,
              rows::layer_norm_dx_row<T, int64_t, add.value>{
                  s.width, dy, x, in.gain.data(), in.mean.data(), in.rstd.data(), ds, out.data()},
              out);
    };
    y = in.dy;
    dx("layer_norm_dx over dy", std::false_type(), y, y.data(), in.x.data(), nullptr);
    close<T>("layer_norm_dx over dy", y, want.dx, 1, 48, 40);
    y = in.x;
    dx("layer_norm_dx over x", std::false_type(), y, in.dy.data(), y.data(), nullptr);
    close<T>("layer_norm_dx over x", y, want.dx, 1, 48, 40);
    y = in.ds;
    dx("add_layer_norm_dx over ds", std::true_type(), y, in.dy.data(), in.x.data(), y.data());
    close<T>("add_layer_norm_dx over ds", y, summed(in.ds, want.dx), 3, 48,
             40 + 2 * unit<T> / unit<G<T>>);

    team_shape slabs = s;
    slabs.rows = 2;
    const int64_t columns = (s.width + 1) / 2;
    auto dgain = zeros<G<T>>(s.width), dbias = dgain;
    const auto gains = [&](G<T>* bias) {
      return rows::layer_norm_gain_slab<T>{s.width,        s.rows,       columns,
                                           in.dy.data(),   in.x.data(),  in.mean.data(),
                                           in.rstd.data(), dgain.data(), bias};
    };
    on_team("layer_norm_dgain_dbias", slabs, gains(dbias.data()), dgain, dbias);
    close<G<T>>("dgain", dgain, want.dgain, 1, 12, 20);
    close<G<T>>("dbias", dbias, want.dbias, 1, 12, 10);
    for (double& d : want.dgain) d *= 2; // added to what stands there
    on_team("layer_norm_dgain", slabs, gains(nullptr), dgain);
    close<G<T>>("dgain alone", dgain, want.dgain, 1, 24, 20);

    want = norm_of(wide(in.s), wide(in.dy), wide(in.gain), wide(in.bias), wide(in.eps), true, s);
    auto sum = in.x;
    y = in.a;
    on_team("add_layer_norm over x and a", s,
            rows::add_layer_norm_row<T, int64_t>{s.width, in.eps, sum.data(), y.data(),
                                                 in.gain.data(), in.bias.data(), sum.data(),
                                                 y.data(), mean.data(), rstd.data()},
            sum, y, mean, rstd);
    BOOST_TEST(same_bytes(sum.data(), in.s.data(), sum.size() * sizeof(T)));
    close<T>("add_layer_norm", y, want.y, 1, 16, 4);
  });
}

// What a team keeps of a row it does not load again: gains and biases, which all rows share, are
// loaded as often as they are used.
BOOST_AUTO_TEST_CASE_TEMPLATE(rows_are_loaded_once, T, types) {
  for (const int threads : {16, 32, 128})
    for (const int64_t groups : {threads, 8 * threads}) {
      const team_shape s{{1, groups * emulated_team::width<T>}, threads};
      const norm_inputs<T> in(s);
      auto sum = in.x, y = in.x;
      auto mean = unset<G<T>>(1), rstd = zeros<G<T>>(1);
      const T *x = in.x.data(), *a = in.a.data(), *gain = in.gain.data(), *bias = in.bias.data(),
              *dy = in.dy.data(), *ds = in.ds.data();
      const int64_t n = s.width;
      loads_rows<T>("rms_norm", s,
                    rows::rms_norm_row<T, int64_t>{n, in.eps, x, gain, y.data(), rstd.data()}, 2,
                    1);
      loads_rows<T>("add_rms_norm", s,
                    rows::add_rms_norm_row<T, int64_t>{n, in.eps, x, a, gain, sum.data(), y.data(),
                                                       rstd.data()},
                    3, 1);
      loads_rows<T>("layer_norm", s,
                    rows::layer_norm_row<T, int64_t>{n, in.eps, x, gain, bias, y.data(),
                                                     mean.data(), rstd.data()},
                    3, 2);
      loads_rows<T>("add_layer_norm", s,
                    rows::add_layer_norm_row<T, int64_t>{n, in.eps, x, a, gain, bias, sum.data(),
                                                         y.data(), mean.data(), rstd.data()},
                    4, 2);
      loads_rows<T>(
          "rms_norm_dx", s,
          rows::rms_norm_dx_row<T, int64_t, false>{n, dy, x, gain, rstd.data(), nullptr, y.data()},
          4, 2);
      loads_rows<T>(
          "add_rms_norm_dx", s,
          rows::rms_norm_dx_row<T, int64_t, true>{n, dy, x, gain, rstd.data(), ds, y.data()}, 5, 2);
      loads_rows<T>("layer_norm_dx", s,
                    rows::layer_norm_dx_row<T, int64_t, false>{n, dy, x, gain, mean.data(),
                                                               rstd.data(), nullptr, y.data()},
                    4, 2);
      loads_rows<T>("add_layer_norm_dx", s,
                    rows::layer_norm_dx_row<T, int64_t, true>{n, dy, x, gain, mean.data(),
                                                              rstd.data(), ds, y.data()},
                    5, 2);
    }
}

// Two sequences, each of more rows than one part.
BOOST_AUTO_TEST_CASE_TEMPLATE(bias_gradient, T, types) {
  for_teams<T>([](team_shape s) {
    if (s.threads == 1024) return;
    numbers from;
    const int64_t sequence = rows::rows_per_partial + 3, count = 2 * sequence,
                  columns = (s.width + 1) / 2;
    s.rows = 2;
    const auto dy = from.of<T>(count * s.width);
    auto grad = from.of<G<T>>(s.width);
    reference want = wide(grad);
    for (int64_t k = 0; k < count * s.width; ++k)
      want[static_cast<std::size_t>(k % s.width)] += wide(dy[static_cast<std::size_t>(k)]);
    on_team(
        "bias_gradient", s,
        rows::bias_gradient_slab<T>{s.width, {count, sequence}, columns, dy.data(), grad.data()},
        grad);
    close<G<T>>("bias_gradient", grad, want, 1, 20, 40);
  });
}

// Sums of parts by launches of their own have the bits of a core that walks slabs from end to end,
// however the columns are cut: of rows that are one part, or several, of one sequence or many.
BOOST_AUTO_TEST_CASE_TEMPLATE(by_parts, T, types) {
  struct cut_in_rows {
    int64_t count, sequence;
  };
  for (const auto& [count, sequence] :
       {cut_in_rows{1, 1}, {65, 65}, {300, 300}, {6, 1}, {260, 130}})
    for (const int threads : {16, 32, 128, 1024}) {
      if (threads == 1024 && count != 300) continue; // blocks that take the most time
      const int64_t width = threads + 37;
      const rows::summed_rows of(count, sequence);
      BOOST_TEST_CONTEXT(count << " rows, sequences of " << sequence << ", " << threads) {
        numbers from;
        const auto dy = from.of<T>(count * width), x = from.of<T>(count * width);
        const auto mean = from.of<G<T>>(count), rstd = from.of<G<T>>(count);
        const auto start = from.of<G<T>>(width);
        const auto check = [&](const char* what, int arrays, auto body_for) {
          auto first = start, second = start, want_first = start, want_second = start;
          auto body = body_for(want_first.data(), want_second.data());
          rows::for_slabs(host, body);
          std::vector<std::byte> sums(static_cast<std::size_t>(of.partials() * width * arrays) *
                                      sizeof(G<T>));
          using slab = decltype(body);
          body = body_for(first.data(), second.data());
          body.columns = threads;
          const int64_t slabs = (width + threads - 1) / threads;
          on_team(what, {{slabs * of.partials(), width}, threads},
                  rows::partial_of_slab<slab>{body, slabs, sums.data()}, sums);
          body.columns = 16;
          on_team(what, {{(width + 15) / 16, width}, threads},
                  rows::total_of_slab<slab>{body, sums.data()}, first, second);
          BOOST_TEST(same_bytes(first.data(), want_first.data(), first.size() * sizeof(G<T>)),
                     what);
          BOOST_TEST(same_bytes(second.data(), want_second.data(), first.size() * sizeof(G<T>)),
                     what);
        };
        check("bias_gradient", 1, [&](G<T>* g, G<T>*) {
          return rows::bias_gradient_slab<T>{width, of, 0, dy.data(), g};
        });
        check("rms_norm_dgain", 1, [&](G<T>* g, G<T>*) {
          return rows::rms_norm_gain_slab<T>{width, of, 0, dy.data(), x.data(), rstd.data(), g};
        });
        check("layer_norm_dgain", 1, [&](G<T>* g, G<T>*) {
          return rows::layer_norm_gain_slab<T>{width,       of,          0, dy.data(), x.data(),
                                               mean.data(), rstd.data(), g, nullptr};
        });
        check("layer_norm_dgain_dbias", 2, [&](G<T>* g, G<T>* b) {
          return rows::layer_norm_gain_slab<T>{width,       of,          0, dy.data(), x.data(),
                                               mean.data(), rstd.data(), g, b};
        });
      }
    }
}
