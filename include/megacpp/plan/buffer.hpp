// A buffer of a step: its contents, its lifetime and its place.
#pragma once

#include <megacpp/graph/graph.hpp>

#include <cstdint>
#include <iterator>

namespace mc {

/// The contents of a buffer. A use is a graph that runs for one layer (plan/step.hpp).
enum class content : std::uint8_t {
  saved,             ///< forward values of one use that its backward pass reads
  derived,           ///< values of one use that the prologue computes from parameters
  derived_gradients, ///< gradients of the derived values of one use
  mirror,            ///< copies on the host of saved values of one use
  stream,            ///< residual stream before a position; behind the last one, the result
  d_stream,          ///< cotangent of the residual stream
  caches,            ///< keys and values of the tokens so far, of one position
  working,           ///< values that live during one task
  seed,              ///< the number 1, the cotangent of a loss
  fed,               ///< integers of the batch
  totals,            ///< sums of the step (op/totals.hpp)
  numbers,           ///< seed, step and learning rate of the step (op/numbers.hpp)
  main_gradients     ///< gradients of parameters, which lie in a store and not in an arena
};
inline constexpr int contents = 13;
constexpr const char* name_of(content c) {
  constexpr const char* names[] = {
      "saved values",      "derived values", "gradients of derived values",
      "the host's mirror", "the stream",     "the stream's cotangent",
      "the caches",        "working values", "the seed",
      "the batch",         "the totals",     "the numbers",
      "the gradients"};
  return names[static_cast<int>(c)];
}
/// Returns whether a step adds to such a buffer; it must have been cleared, or added to before.
constexpr bool is_added_to(content c) {
  return c == content::derived_gradients || c == content::totals || c == content::main_gradients;
}
inline constexpr feed batch_feeds[] = {feed::tokens,        feed::labels,     feed::positions,
                                       feed::documents,     feed::order,      feed::all_order,
                                       feed::all_documents, feed::token_keys, feed::last,
                                       feed::slots,         feed::adapters};
/// Returns the number of a feed among those of the batch; -1: it is none.
constexpr int batch_feed(feed f) {
  for (int i = 0; i < static_cast<int>(std::size(batch_feeds)); ++i)
    if (batch_feeds[i] == f) return i;
  return -1;
}
/// Returns whether an input is the cotangent of a loss, which is the seed. The cotangent of a
/// stream comes from the part behind.
constexpr bool is_seed(const value& v) {
  return v.is == role::input && v.from == feed::d_output && (v.rank == 0 || v.feed_index > 0);
}
/// The arenas of a step. Buffers of different arenas lie apart.
enum class arena_of : std::uint8_t { saved, streams, working, derived, fed, caches, host };
inline constexpr int arenas = 7;
constexpr const char* name_of(arena_of a) {
  constexpr const char* names[] = {"saved", "streams", "working", "derived",
                                   "fed",   "caches",  "host"};
  return names[static_cast<int>(a)];
}
constexpr arena_of arena_for(content c) {
  switch (c) {
  case content::saved: return arena_of::saved;
  case content::stream:
  case content::d_stream: return arena_of::streams;
  case content::working: return arena_of::working;
  case content::derived:
  case content::derived_gradients: return arena_of::derived;
  case content::caches: return arena_of::caches;
  case content::mirror: return arena_of::host;
  default: return arena_of::fed;
  }
}

/// Returns whether later tasks and steps read such a buffer, which belongs to no micro-batch.
constexpr bool lives_on(content c) {
  return c == content::derived || c == content::caches || c == content::seed ||
         c == content::numbers || is_added_to(c);
}

struct buffer {
  content what{};
  std::int64_t bytes = 0;    ///< bytes for one micro-batch
  int copies = 1;            ///< micro-batches whose contents are kept at once
  int first = -1, last = -1; ///< first and last task of one micro-batch's step
  std::int64_t offset = 0;   ///< offset in its arena; copy k lies k * bytes behind

  constexpr std::int64_t size() const { return bytes * copies; }
  /// Returns the offset of a micro-batch's copy; with -1, that of the first.
  constexpr std::int64_t at(int micro) const {
    return copies == 1 || micro < 0 ? offset : offset + micro % copies * bytes;
  }
};

} // namespace mc
