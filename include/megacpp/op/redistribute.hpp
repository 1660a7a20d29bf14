// The redistribution along one mesh axis, by name: to(x, axis, place).
//
//   from -> to     forward          backward (derived by transposing the table)
//   I -> R         nothing          all-reduce
//   P -> I         all-reduce       nothing
//   P -> R         all-reduce       all-reduce
//   S -> R         all-gather       reduce-scatter
//   S -> I         all-gather       slice
//   P -> S         reduce-scatter   all-gather
//   I -> S         slice            all-gather
//   R -> S         slice            zero-pad into partial
//   S(i) -> S(j)   all-to-all       all-to-all
//
// Saved: nothing. FLOPs: none; bytes on the wire: bytes_sent(). I and R differ, and nothing
// converts silently. Ranks send each other contiguous shards: where the dim is not the outermost
// one, shards are packed or unpacked in scratch (pack_bytes). A pending maximum is reduced as a
// pending sum is, by the maximum over the ranks, and has no gradient. Where x has the place
// already, or the axis has one rank, to() adds no node.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

/// Returns the collective that turns one place into another.
constexpr collective collective_of(place from, place to) {
  using enum state;
  if (from.s == partial) return to.s == shard ? collective::reduce_scatter : collective::all_reduce;
  if (from.s == shard) {
    if (to.s == shard) return collective::all_to_all;
    return to.s == partial ? collective::zero_pad : collective::all_gather;
  }
  return to.s == shard ? collective::slice : collective::none;
}

namespace op {

struct redistribute_in : input_names<redistribute_in> {
  static constexpr name<0> x{};
};
struct redistribute_out : output_names<redistribute_out> {
  static constexpr name<0> y{};
};

/// The attributes of a redistribution: its axis, and the places before and after.
struct transition {
  axis over;
  place from, to;

  constexpr collective by() const { return collective_of(from, to); }
};

} // namespace op

/// The shape of a value that n ranks share along a dim: (outer, n, inner), in the order of its
/// memory.
struct shards_along {
  std::int64_t outer = 1; ///< elements of the dims before the shared dim
  std::int64_t inner = 1; ///< elements of one rank's shard, with the dims behind the shared dim
};
/// Returns the shape of `whole`, a value that the n ranks do not cut along d yet.
constexpr shards_along shards_of(const mesh& m, const value& whole, dim d, std::int64_t n) {
  shards_along p;
  const int at = whole.find(d);
  for (int i = 0; i < whole.rank; ++i) (i < at ? p.outer : p.inner) *= local_extent(m, whole, i);
  p.inner /= n;
  return p;
}

/// Returns the bytes in which the shards that one rank sends or receives lie one after another,
/// each contiguous. Where the shared dim is not the outermost one, x is packed into them before the
/// collective, or y is unpacked from them after it.
constexpr std::int64_t pack_bytes(const mesh& m, const value& x, const value& y,
                                  const op::transition& t) {
  const std::int64_t ranks = m.of(t.over);
  if (!m.sized(t.over)) return 0; // a range has no dims around the one that is cut
  const bool packs = t.to.s == state::shard && shards_of(m, x, t.to.d, ranks).outer > 1,
             unpacks = t.from.s == state::shard && shards_of(m, y, t.from.d, ranks).outer > 1;
  switch (t.by()) {
  case collective::all_gather: return unpacks ? local_bytes(m, y) : 0;
  case collective::reduce_scatter: return packs ? local_bytes(m, x) : 0;
  case collective::all_to_all: return packs || unpacks ? local_bytes(m, x) : 0;
  default: return 0;
  }
}

namespace op {

[[gnu::cold]] constexpr void redistribute_rule(inference& c) {
  using in = redistribute_in;
  const value& x = c.in(in::x);
  const auto t = c.n.attr.as<transition>();
  c.require(c.has(redistribute_in::x), fault::S008);
  c.require(x.type != dtype::u8, fault::S007, in::x);
  if (t.from.is_pending_maximum()) c.typed({in::x}, dtype::f32);
  value& y = c.declare(x);
  y.at = x.at, y.holds = x.holds, y.below = x.below, y.counts = x.counts;
  place goal = t.to;
  const place now = x.at[t.over];
  c.looking = static_cast<int>(t.over);
  if (!redistributes(now, goal, c.n.derived)) c.fail(fault::P003, in::x);
  if (t.from.s != now.s || t.from.d != now.d || t.from.by != now.by)
    c.fail(fault::P014, in::x); // kernels rely on `from`
  if (now.s == state::shard) {
    if (now.level != x.at.levels(now.d) - 1) c.fail(fault::P009, in::x);
    if (!c.g.ranks.sized(t.over) && range_axis(c.g.ranks, x) < 0) c.fail(fault::P011, in::x);
    y.at[t.over] = invariant;
  }
  if (goal.s == state::shard) {
    const int where = x.find(goal.d);
    if (where < 0) {
      c.fail(fault::S003, in::x);
      goal = invariant;
    } else {
      goal.level = static_cast<std::int8_t>(y.at.levels(goal.d));
      std::int64_t ranks = 1;
      for (int a = 0; a < axes; ++a)
        if ((y.at.at[a].is_shard(goal.d) || a == static_cast<int>(t.over)) &&
            c.g.ranks.sized(static_cast<axis>(a)))
          ranks *= c.g.ranks.of(static_cast<axis>(a));
      if (x.dims[where].n % ranks != 0) c.fail(fault::S001, in::x);
    }
    y.at[t.over] = goal;
    if (!c.g.ranks.sized(t.over) && range_axis(c.g.ranks, y) < 0) c.fail(fault::P011, in::x);
    if (range_axis(c.g.ranks, x) >= 0)
      c.fail(fault::P011, in::x); // x's shards are known only at start
  }
  y.at[t.over] = goal;
  if ((now.s != state::shard && goal.s != state::shard) || c.wrong != fault::none) return;
  if (const std::int64_t bytes = pack_bytes(c.g.ranks, x, y, t); bytes > 0)
    c.declare_scratch(bytes);
}

constexpr value_id emit_redistribution(builder& b, const op_info& to, value_id x, axis a,
                                       place goal, source_line line) {
  const place now = b.g.at(x).at[a];
  if (goal.s == state::shard) goal.level = static_cast<std::int8_t>(b.g.at(x).at.levels(goal.d));
  return b.emit(to, {x}, line, transition{a, now, goal});
}

[[gnu::cold]] constexpr void redistribute_adjoint(backward& d, const node& n) {
  using in = redistribute_in;
  using out = redistribute_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::x])) return;
  const auto t = n.attr.as<transition>();
  if (t.from.is_pending_maximum())
    return d.b.fail(fault::P023, n.line, "gradient", n.in[in::x], -1, static_cast<int>(t.over));
  d.give(n.in[in::x], emit_redistribution(d.b, *n.op, dy, t.over, cotangent(t.from), n.line),
         n.line);
}

[[gnu::cold]] constexpr work redistribute_cost(const graph& g, const node& n) {
  using in = redistribute_in;
  using out = redistribute_out;
  if (n.attr.as<transition>().by() == collective::none) return {};
  return {0, local_bytes(g.ranks, g.at(n.in[in::x])), local_bytes(g.ranks, g.at(n.out[out::y]))};
}

[[gnu::cold]] constexpr transfers redistribute_wire(const graph& g, const node& n,
                                                    const mesh& ranks) {
  const auto t = n.attr.as<transition>();
  const collective what = t.by();
  if (!waits(what)) return transfers{};
  const std::int64_t bytes = local_bytes(g.ranks, g.at(n.in[redistribute_in::x]));
  return transfers{}.add({what, t.over, bytes, bytes_sent(what, bytes, ranks.of(t.over))});
}

inline constexpr op_info redistribute{.name = "to",
                                      .rule = &redistribute_rule,
                                      .adjoint = &redistribute_adjoint,
                                      .cost = &redistribute_cost,
                                      .wire = &redistribute_wire,
                                      .linear = true,
                                      .takes_ranges = true,
                                      .redistributes = true,
                                      .attributes = attributes_of<transition>,
                                      .operands = named<redistribute_in, redistribute_out>};

} // namespace op

/// Returns x with place `goal` on axis a.
constexpr var to(var x, axis a, place goal, source_line line = here()) {
  builder& b = *x.b;
  if (b.g.ranks.trivial(a)) return x;
  const place now = x.at(a);
  if (now.s == goal.s && now.d == goal.d && now.by == goal.by) return x;
  if (a == axis::pp && now != partial)
    b.fail(fault::P018, line, "to", x.id, -1, static_cast<int>(a));
  return {&b, op::emit_redistribution(b, op::redistribute, x.id, a, goal, line)};
}

} // namespace mc
