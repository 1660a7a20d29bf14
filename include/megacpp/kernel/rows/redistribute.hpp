// The work of each rank alone in a redistribution. A value is (outer, n, run) along the dim that n
// ranks share: `outer` elements of the dims before the dim, n shards of it, `run` elements of a
// shard with all that follows. Pieces of `run` elements are copied from one order to another.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

/// The order of the pieces of an array: piece (o, p) begins at o * outer + p * shard.
struct piece_order {
  std::int64_t outer, shard;
};

/// Copies to(o, p) = from(o, p) for every piece, bit for bit. With `only` >= 0 it copies that p
/// alone, and the others become zero. One row of the launch is a block of one piece.
template <class T> struct piece_block {
  std::int64_t shards, run;
  piece_order from_at, to_at;
  const T* from;
  T* to;
  std::int64_t only = -1;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t blocks = blocks_of(run), piece = row / blocks,
                       first = row % blocks * flat_block;
    const std::int64_t o = piece / shards, p = piece % shards, left = run - first;
    const T* const in = from + o * from_at.outer + p * from_at.shard + first;
    T* const out = to + o * to_at.outer + p * to_at.shard + first;
    const bool zero = only >= 0 && p != only;
    team.template each<T>(left < flat_block ? left : flat_block, [&](auto i) {
      if (zero) store(out, i, vec<accumulator_t<T>, decltype(i)::count>(0));
      else copy(out, in, i);
    });
  }
};

/// Packs to (n, outer, run) from (outer, n, run): each rank's shard becomes one piece, as it is
/// sent.
template <class T, class Device>
void pack(Device& on, std::int64_t outer, std::int64_t n, std::int64_t run, const T* from, T* to) {
  for_rows(on, outer * n * blocks_of(run),
           piece_block<T>{n, run, {n * run, run}, {run, outer * run}, from, to});
}
/// Unpacks pieces that were received to (outer, n, run) from (n, outer, run).
template <class T, class Device> void unpack(Device& on, std::int64_t outer, std::int64_t n,
                                             std::int64_t run, const T* from, T* to) {
  for_rows(on, outer * n * blocks_of(run),
           piece_block<T>{n, run, {run, outer * run}, {n * run, run}, from, to});
}
/// Copies shard p of from (outer, n, run) to to (outer, run).
template <class T, class Device> void slice(Device& on, std::int64_t outer, std::int64_t n,
                                            std::int64_t run, std::int64_t p, const T* from,
                                            T* to) {
  for_rows(on, outer * blocks_of(run),
           piece_block<T>{1, run, {n * run, 0}, {run, 0}, from + p * run, to});
}
/// Copies from (outer, run) to shard p of to (outer, n, run); the other shards become zero.
template <class T, class Device> void zero_pad(Device& on, std::int64_t outer, std::int64_t n,
                                               std::int64_t run, std::int64_t p, const T* from,
                                               T* to) {
  for_rows(on, outer * n * blocks_of(run),
           piece_block<T>{n, run, {run, 0}, {n * run, run}, from, to, p});
}

} // namespace mc::rows
