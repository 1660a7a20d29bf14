// What ranks send each other: the collectives by name, and the bytes that they put on the wire.
#pragma once

#include <megacpp/graph/mesh.hpp>
#include <megacpp/num/reduction.hpp>

namespace mc {

/// What moves data between the states of a value, or between ranks that differ in another way.
/// Those before all_reduce are done by each rank alone.
enum class collective : std::uint8_t {
  none,
  slice,
  zero_pad,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  send,
  receive,
  barrier
};

constexpr const char* name_of(collective c) {
  constexpr const char* names[] = {"none",       "slice",          "zero-pad",   "all-reduce",
                                   "all-gather", "reduce-scatter", "all-to-all", "broadcast",
                                   "send",       "receive",        "barrier"};
  return names[static_cast<int>(c)];
}

/// True if ranks wait for each other.
constexpr bool waits(collective c) { return c > collective::zero_pad; }

/// Bytes that one of n ranks sends where it holds `bytes` before, by ring algorithms: all-reduce
/// 2(n-1)/n, reduce-scatter and all-to-all (n-1)/n of what it holds, all-gather n-1 times its part
/// (Thakur, Rabenseifner, Gropp 2005).
constexpr std::int64_t bytes_sent(collective c, std::int64_t bytes, std::int64_t n) {
  switch (c) {
  case collective::all_reduce: return 2 * (n - 1) * (bytes / n);
  case collective::all_gather: return (n - 1) * bytes;
  case collective::reduce_scatter:
  case collective::all_to_all: return (n - 1) * (bytes / n);
  default: return 0;
  }
}

/// What a node asks of its communicator in one call.
struct transfer {
  collective what = collective::none;
  axis_set over{};
  std::int64_t bytes = 0; ///< that one rank hands in
  std::int64_t sent = 0;  ///< that one rank sends to others
  std::int64_t times = 1; ///< how many such calls follow one another
};

/// The calls of one node, in their order.
struct transfers {
  transfer at[2]{};
  int count = 0;

  constexpr transfers& add(const transfer& t) {
    at[count++] = t;
    return *this;
  }
};

} // namespace mc
