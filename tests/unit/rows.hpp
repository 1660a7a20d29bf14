// Numbers, and comparison with references in double, for tests of row bodies.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/embedding.hpp>
#include <megacpp/kernel/rope_table.hpp>
#include <megacpp/num/dtype.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <vector>

namespace test {

using mc::bf16;
using std::int64_t;
using types = std::tuple<float, bf16, double>;
template <class T> using G = mc::accumulator_t<T>;
using reference = std::vector<double>;

// Numbers of a linear congruential sequence in [-scale, scale), as T stores them.
struct numbers {
  std::uint64_t state = 12345;
  double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<int64_t>(state) >> 11) * 0x1p-52;
  }
  template <class T> std::vector<T> of(int64_t n, double scale = 2) {
    std::vector<T> r(static_cast<std::size_t>(n));
    for (T& x : r) x = mc::convert<T>(next() * scale);
    return r;
  }
};

/// The threads that row bodies run on.
inline const mc::cores host;

/// Tokens in the order in which the gradient of a table adds them up.
struct ordered_tokens {
  mc::rows::token_order order;
  std::vector<std::uint64_t> numbers;
  ordered_tokens(mc::rows::summed_rows tokens, const std::vector<std::int32_t>& ids, int64_t first,
                 int64_t rows)
      : order(tokens, rows), numbers(ids.size()) {
    mc::rows::number_of_tokens(host, tokens, order, first, ids.data(), numbers.data());
    host.sort(numbers.data(), tokens.count, order.token_bits, order.bin_bits(), nullptr);
  }
};

template <class T> std::vector<T> zeros(int64_t n) {
  return std::vector<T>(static_cast<std::size_t>(n), mc::convert<T>(0.0f));
}
template <class T> double wide(T x) { return mc::convert<double>(x); }
template <class T> reference wide(const std::vector<T>& x) {
  reference r;
  for (T v : x) r.push_back(wide(v));
  return r;
}

inline bool same_bytes(const void* a, const void* b, std::size_t count) {
  return std::memcmp(a, b, count) == 0;
}

// Half a unit in the last place of T, relative.
template <class T> constexpr double unit = 0x1p-53;
template <> constexpr double unit<float> = 0x1p-24;
template <> constexpr double unit<bf16> = 0x1p-8;

// Requires |got - want| <= roundings to T of want + `steps` roundings to the accumulator of
// `magnitude`.
template <class T, class Stored> void close(const char* what, const std::vector<Stored>& got,
                                            const reference& want, double roundings, double steps,
                                            double magnitude = 1) {
  BOOST_REQUIRE_EQUAL(got.size(), want.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double w = want[i];
    const double bound =
        roundings * 1.01 * unit<T> * std::fabs(w) + steps * unit<G<T>> * (magnitude + std::fabs(w));
    worst = std::max(worst, std::fabs(wide(got[i]) - w) / bound);
    if (!(std::fabs(wide(got[i]) - w) <= bound)) {
      BOOST_ERROR(what << " [" << i << "]: " << wide(got[i]) << ", should be " << w << " +- "
                       << bound);
      return;
    }
  }
  BOOST_TEST(worst <= 1.0, what);
}

struct shape {
  int64_t rows, width;
};
// The norms by their definitions.
struct norm {
  reference y, dx, dgain, dbias;
};
inline norm norm_of(const reference& x, const reference& dy, const reference& gain,
                    const reference& bias, double eps, bool centred, shape s) {
  const auto w = static_cast<std::size_t>(s.width);
  const auto n = static_cast<long double>(s.width);
  norm r{reference(x.size()), reference(x.size()), reference(w), reference(w)};
  for (std::size_t at = 0; at < x.size(); at += w) {
    long double mean = 0, square = 0, dot = 0, sum = 0;
    if (centred) {
      for (std::size_t j = 0; j < w; ++j) mean += x[at + j] / n;
    }
    for (std::size_t j = 0; j < w; ++j) square += (x[at + j] - mean) * (x[at + j] - mean) / n;
    const long double rstd = 1 / std::sqrt(square + eps);
    for (std::size_t j = 0; j < w; ++j) {
      const long double xhat = (x[at + j] - mean) * rstd, g = dy[at + j] * gain[j];
      r.y[at + j] = static_cast<double>(xhat * gain[j] + bias[j]);
      dot += g * xhat / n;
      if (centred) sum += g / n;
      r.dgain[j] += static_cast<double>(dy[at + j] * xhat);
      r.dbias[j] += dy[at + j];
    }
    for (std::size_t j = 0; j < w; ++j) {
      const long double xhat = (x[at + j] - mean) * rstd;
      r.dx[at + j] = static_cast<double>(rstd * (dy[at + j] * gain[j] - sum - xhat * dot));
    }
  }
  return r;
}

} // namespace test
