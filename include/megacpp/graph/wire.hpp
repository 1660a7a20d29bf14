// The communication between ranks: the names of the collectives, and the bytes that they send.
#pragma once

#include <megacpp/graph/mesh.hpp>
#include <megacpp/num/reduction.hpp>

namespace mc {

/// The operations that move data between ranks or between placements of a value. Each rank does
/// those before all_reduce alone.
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

/// Returns whether ranks wait for each other in a collective.
constexpr bool waits(collective c) { return c > collective::zero_pad; }

/// Returns the bytes that one of n ranks sends where it holds `bytes` before, by ring algorithms:
/// all-reduce 2(n-1)/n and reduce-scatter and all-to-all (n-1)/n of the bytes, all-gather n-1 times
/// the bytes (Thakur, Rabenseifner, Gropp 2005).
constexpr std::int64_t bytes_sent(collective c, std::int64_t bytes, std::int64_t n) {
  switch (c) {
  case collective::all_reduce: return 2 * (n - 1) * (bytes / n);
  case collective::all_gather: return (n - 1) * bytes;
  case collective::reduce_scatter:
  case collective::all_to_all: return (n - 1) * (bytes / n);
  default: return 0;
  }
}

/// One call that a node makes to its communicator.
struct transfer {
  collective what = collective::none;
  axis_set over{};
  std::int64_t bytes = 0; ///< bytes that one rank hands in
  std::int64_t sent = 0;  ///< bytes that one rank sends to others
  std::int64_t times = 1; ///< number of such calls, one after another
};

/// The calls of one node to its communicator, in their order.
struct transfers {
  transfer at[2]{};
  int count = 0;

  constexpr transfers& add(const transfer& t) {
    at[count++] = t;
    return *this;
  }
};

} // namespace mc
