// The communicator concept, and the communicator of one rank, which compiles away.
#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>

namespace mc {

/// Collectives over the ranks of one group. `n` counts elements of T a rank gives; reductions have
/// a fixed order.
template <class C>
concept communicator = requires(C c, float* out, const float* in, std::int64_t n) {
  { c.rank() } -> std::convertible_to<int>;
  { c.size() } -> std::convertible_to<int>;
  c.all_reduce(in, out, n);
  c.all_gather(in, out, n);
  c.reduce_scatter(in, out, n);
  c.all_to_all(in, out, n);
  c.barrier();
};

/// One rank: every collective hands its input on.
struct self {
  static constexpr int rank() { return 0; }
  static constexpr int size() { return 1; }
  template <class T> static void all_reduce(const T* in, T* out, std::int64_t n) {
    copy(in, out, n);
  }
  template <class T> static void all_gather(const T* in, T* out, std::int64_t n) {
    copy(in, out, n);
  }
  template <class T> static void reduce_scatter(const T* in, T* out, std::int64_t n) {
    copy(in, out, n);
  }
  template <class T> static void all_to_all(const T* in, T* out, std::int64_t n) {
    copy(in, out, n);
  }
  static void barrier() {}

private:
  template <class T> static void copy(const T* in, T* out, std::int64_t n) {
    if (in != out)
      std::memcpy(static_cast<void*>(out), in, static_cast<std::size_t>(n) * sizeof(T));
  }
};
static_assert(communicator<self>);

} // namespace mc
