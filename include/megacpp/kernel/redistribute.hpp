// The kernel of op/redistribute.hpp: the work of each rank alone, and the collective between the
// ranks of the node's axis. Each shard is sent in one piece. Where the cut dim is not the
// outermost, shards are packed before, or unpacked after, in the scratch that the rule declares.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/op/redistribute.hpp>

#include <cstring>

namespace mc {

template <> struct kernel_of<&op::redistribute> {
  using elements = element_list<float, bf16, double, std::int32_t>;
  using in = op::redistribute_in;
  using out = op::redistribute_out;
  template <class T, class Call> static void run(Call& c) {
    const auto [over, from, to] = c.attr(of_type<op::transition>);
    const source_line line = c.described().line;
    const T* const x = c.in(in::x);
    T* const y = c.out(out::y);
    const std::int64_t count = c.size(in::x);
    const collective what = collective_of(from, to);
    if (what == collective::none) { // one rank's own work; no copy where y is another name of x
      if (x != y) rows::slice(c.lane(), 1, 1, count, 0, x, y);
      return;
    }
    const group g = c.comm().over(over);
    if (what == collective::all_reduce)
      return c.comm().run(c.lane(),
                          exchange::all_reduce(over, dtype_of<T>, x, y, count, line, from.by));
    const std::int64_t ranks = g.size(), me = g.rank();
    if (!c.ranks().sized(over)) require_equal_shards(c.value_of(in::x).dims[0].n, over, ranks);
    const shards_along given = to.s == state::shard
                                   ? shards_of(c.ranks(), c.value_of(in::x), to.d, ranks)
                                   : shards_along{},
                       taken = from.s == state::shard
                                   ? shards_of(c.ranks(), c.value_of(out::y), from.d, ranks)
                                   : shards_along{};
    if (what == collective::slice)
      return rows::slice(c.lane(), given.outer, ranks, given.inner, me, x, y);
    if (what == collective::zero_pad)
      return rows::zero_pad(c.lane(), taken.outer, ranks, taken.inner, me, x, y);
    // Shards are packed in scratch, or in y where the collective writes into scratch.
    const bool packs = given.outer > 1, unpacks = taken.outer > 1;
    T* const scratch = packs || unpacks ? reinterpret_cast<T*>(c.declared_scratch()) : nullptr;
    T* const packed = unpacks ? y : scratch;
    T* const arrives = unpacks ? scratch : y;
    if (packs) rows::pack(c.lane(), given.outer, ranks, given.inner, x, packed);
    const T* const sent = packs ? packed : x;
    const std::int64_t shard =
        what == collective::all_gather ? taken.outer * taken.inner : count / ranks;
    c.comm().run(c.lane(),
                 exchange_of(what, over, dtype_of<T>, sent, arrives, shard, line, from.by));
    if (unpacks) rows::unpack(c.lane(), taken.outer, ranks, taken.inner, arrives, y);
  }

private:
  /// Throws mc::error unless the range divides evenly: the padding behind the last element of a
  /// range (graph/graph.hpp) has no memory here.
  static void require_equal_shards(std::int64_t elements, axis over, std::int64_t ranks) {
    if (elements % ranks != 0)
      throw error(exit_code::mismatch, "a range of " + std::to_string(elements) +
                                           " elements does not divide over " +
                                           std::to_string(ranks) + " ranks of " + name_of(over) +
                                           ": use a number of ranks that divides it");
  }
  /// Returns the exchange of shards that are one piece of `shard` elements each.
  static exchange exchange_of(collective what, axis over, dtype t, const void* x, void* y,
                              std::int64_t shard, source_line line, reduction by) {
    if (what == collective::all_gather) return exchange::all_gather(over, t, x, y, shard, line);
    if (what == collective::reduce_scatter)
      return exchange::reduce_scatter(over, t, x, y, shard, line, by);
    return exchange::all_to_all(over, t, x, y, shard, line);
  }
};

} // namespace mc
