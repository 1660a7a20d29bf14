// The arrays of one call of a row body, in one block of memory that the host and the device lay out
// alike, with the distance that the two results may have.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/num/dtype.hpp>
#include <megacpp/threads/parallel.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace gpu {

/// |device - CPU| <= 2 u (roundings |CPU| + inner) + steps unit (|CPU| + magnitude), u being the
/// roundoff of the stored type: 2^-8 of bf16; an fp32 or double is not rounded again, so that u is
/// 0. Everything zero: the same bits.
struct bound {
  double roundings = 0;  // roundings to the stored type, each of which may go the other way
  double steps = 0;      // roundings of the arithmetic, as steps_of_sum counts those of a sum
  double magnitude = 0;  // size of the terms of a sum
  double inner = 0;      // size of intermediate values that are rounded to the stored type
  double unit = 0x1p-24; // roundoff of the arithmetic, fp32's
};
inline constexpr bound same_bits{};

/// Returns the roundings by which two sums of n elements of T may differ: that of a core, and that
/// of the team of a body whose rows have n elements, in arrays that are aligned. An element passes
/// through as many additions as the tree is deep; d of them, with errors that are as often up as
/// down, add up to more than 6 sqrt(d) units once in 10^7 times (Higham, Mary, "A new approach to
/// probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019).
template <class Body, class T> double steps_of_sum(std::int64_t n) {
  const std::int64_t bytes = n * std::int64_t{sizeof(T)};
  // The team has the size that mc::team_for chooses: a larger team adds fewer numbers a thread.
  const bool by_row = mc::chooses_lanes<Body> && bytes % 16 == 0;
  const int threads =
      by_row ? mc::team_of_row(bytes, mc::vectors_to_keep<Body>()).lanes : mc::usual_lanes;
  const double count = static_cast<double>(n);
  const double group = 16.0 / sizeof(T), core = 64.0 / sizeof(mc::accumulator_t<T>);
  const double of_block = std::ceil(count / group / threads) + group + 5 + threads / 32.0;
  const double of_core = std::ceil(count / core / 2) + core;
  return 6 * (std::sqrt(of_block) + std::sqrt(of_core));
}

template <class T> struct array {
  std::int64_t offset = -1; // bytes from the block's begin; below zero: a null pointer
};

/// The address of a block.
struct place {
  std::byte* block;
  template <class T> T* operator()(array<T> a) const {
    return a.offset < 0 ? nullptr : reinterpret_cast<T*>(block + a.offset);
  }
};

/// Returns a number of its own for each pair, the same in every run.
inline std::uint64_t mixed(std::uint64_t a, std::uint64_t b) { // splitmix64 (Steele et al., 2014)
  std::uint64_t x = (a << 40) + b * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class arrays {
public:
  /// Adds n random numbers in [low, high), which the body reads.
  template <class T> array<T> read(std::int64_t n, double low = -1, double high = 1) {
    return add<T>("", n, false, {}, 1, numbers<T>(low, high));
  }
  /// Adds n integers f(i), which the body reads.
  template <class T = std::int32_t>
  array<T> numbered(std::int64_t n, std::function<std::int64_t(std::int64_t)> f) {
    return add<T>("", n, false, {}, 1, [f](T* p, std::int64_t i) { p[i] = static_cast<T>(f(i)); });
  }
  /// Adds one value, which the body reads.
  template <class T> array<T> given(const T& x) {
    const array<T> a{bytes_};
    all_.push_back({"",
                    bytes_,
                    sizeof x,
                    1,
                    0,
                    false,
                    {},
                    [x](std::byte* p) { std::memcpy(p, &x, sizeof x); },
                    nullptr});
    bytes_ += (static_cast<std::int64_t>(sizeof x) + 255) / 256 * 256 + 256;
    return a;
  }
  /// Adds n elements, each of which the body writes.
  template <class T> array<T> written(const char* name, std::int64_t n, bound b = same_bits) {
    return add<T>(name, n, true, b, 1, nullptr);
  }
  /// Adds n random numbers in [low, high), which the body reads and writes in place.
  template <class T> array<T> changed(const char* name, std::int64_t n, bound b = same_bits,
                                      double low = -1, double high = 1) {
    return add<T>(name, n, true, b, 2, numbers<T>(low, high));
  }
  /// Sets the bytes of `a` that move to and from memory, if they are not each element once, or, for
  /// an array that is changed, twice.
  template <class T> void moves(array<T> a, std::int64_t elements) {
    for (entry& e : all_)
      if (e.offset == a.offset) e.moved = elements * static_cast<std::int64_t>(sizeof(T));
  }

  std::int64_t bytes() const { return bytes_; }
  std::int64_t moved() const {
    std::int64_t sum = 0;
    for (const entry& e : all_) sum += e.moved;
    return sum;
  }

  /// Fills a block with the contents before the call. Elements to be written, and the bytes between
  /// the arrays, get a pattern that is a NaN.
  void prepare(std::byte* block) const {
    std::memset(block, 0xff, static_cast<std::size_t>(bytes_));
    for (const entry& e : all_)
      if (e.make) e.make(block + e.offset);
  }

  /// Returns one sentence on the first element of the device's block that the CPU's does not allow,
  /// or nothing.
  std::string compare(const std::byte* device, const std::byte* cpu) const {
    std::int64_t at = 0;
    for (const entry& e : all_) {
      if (!e.results) continue;
      if (std::string fault = outside(device, cpu, at, e.offset); !fault.empty()) return fault;
      if (std::string fault = e.compare(e, device + e.offset, cpu + e.offset); !fault.empty())
        return fault;
      at = e.offset + e.bytes;
    }
    return outside(device, cpu, at, bytes_);
  }

private:
  struct entry {
    const char* name;
    std::int64_t offset, bytes, count, moved;
    bool results;
    bound within;
    std::function<void(std::byte*)> make;
    std::string (*compare)(const entry&, const std::byte*, const std::byte*);
  };
  std::vector<entry> all_;
  std::int64_t bytes_ = 256;

  template <class T, class F>
  array<T> add(const char* name, std::int64_t n, bool results, bound within, int moves, F element) {
    const std::int64_t bytes = n * static_cast<std::int64_t>(sizeof(T));
    const array<T> a{bytes_};
    std::function<void(std::byte*)> make;
    if constexpr (!std::is_same_v<F, std::nullptr_t>) {
      make = [n, element](std::byte* p) {
        constexpr std::int64_t piece = 1 << 16;
        mc::parallel_for((n + piece - 1) / piece, [&](std::int64_t k) {
          for (std::int64_t i = k * piece; i < n && i < (k + 1) * piece; ++i)
            element(reinterpret_cast<T*>(p), i);
        });
      };
    }
    all_.push_back({name, bytes_, bytes, n, moves * bytes, results, within, make, &compare_as<T>});
    bytes_ += (bytes + 255) / 256 * 256 + 256; // each aligned, with a gap behind it
    return a;
  }

  template <class T> auto numbers(double low, double high) const {
    const std::uint64_t seed = all_.size() + 1;
    return [low, high, seed](T* p, std::int64_t i) {
      const double unit =
          static_cast<double>(mixed(seed, static_cast<std::uint64_t>(i)) >> 11) * 0x1p-53;
      p[i] = mc::convert<T>(low + (high - low) * unit);
    };
  }

  template <class T> static double number(T x) {
    if constexpr (std::is_integral_v<T>) return static_cast<double>(x);
    else return mc::convert<double>(x);
  }

  template <class T>
  static std::string compare_as(const entry& e, const std::byte* device, const std::byte* cpu) {
    const auto *got = reinterpret_cast<const T*>(device), *want = reinterpret_cast<const T*>(cpu);
    const double stored = sizeof(T) == 2 ? 2 * 0x1p-8 : 0;
    const bound& b = e.within;
    for (std::int64_t i = 0; i < e.count; ++i) {
      if (std::memcmp(got + i, want + i, sizeof(T)) == 0 && !std::isnan(number(want[i]))) continue;
      const double w = number(want[i]), apart = std::fabs(number(got[i]) - w);
      const double most = stored * (b.roundings * std::fabs(w) + b.inner) +
                          b.steps * b.unit * (std::fabs(w) + b.magnitude);
      if (most > 0 && apart <= most) continue;
      return std::string(e.name) + "[" + std::to_string(i) + "] is " + text(number(got[i])) +
             " on the device and " + text(w) + " on the CPU" +
             (most > 0 ? ", more than " + text(most) + " apart" : "");
    }
    return "";
  }

  static std::string outside(const std::byte* device, const std::byte* cpu, std::int64_t from,
                             std::int64_t to) {
    const auto n = static_cast<std::size_t>(to - from);
    if (std::memcmp(device + from, cpu + from, n) == 0) return "";
    std::int64_t i = from;
    while (device[i] == cpu[i]) ++i;
    return "byte " + std::to_string(i) + " of its memory has changed, which holds no result";
  }

  static std::string text(double x) {
    char buffer[32];
    std::snprintf(buffer, sizeof buffer, "%.9g", x);
    return buffer;
  }
};

} // namespace gpu
