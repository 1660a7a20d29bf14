// verify_memory: run after place_memory, which it trusts in nothing. Walks the nodes in the order
// in which they run, rounds twice, and follows what lies where: every value that a node reads must
// still be there, an output must not be written over an input of its own node (unless the op works
// in place), and nothing may reach beyond its arena. Linear in the nodes, times the values that
// live at once.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/pass/place_memory.hpp>

namespace mc {

namespace detail {

struct memory_walk {
  const graph& g;
  const memory_plan& plan;
  fault_record wrong{};
  struct piece {
    value_id v = -1;
    space in = space::none;
    std::int64_t first = 0, end = 0;
  } pieces[max_values]; // what lies in the arenas; a plain array, for each call is a step
  int count = 0;
  std::array<bool, max_values> living{};
  std::array<bool, max_nodes> visited{};
  std::array<std::int16_t, max_values> last_use{}; ///< in the order in which nodes run

  constexpr memory_walk(const graph& graph, const memory_plan& p) : g(graph), plan(p) {
    std::int16_t when = 0;
    in_running_order(g, 2, [&](int i) {
      for (value_id v : g.at_node(i).in)
        if (v >= 0) last_use[static_cast<unsigned>(v)] = when;
      ++when;
    });
    for (value_id v : {g.outputs[0], g.outputs[1], g.side_loss})
      if (v >= 0) last_use[static_cast<unsigned>(v)] = when;
  }

  constexpr const address& at(value_id v) const { return plan.at[static_cast<unsigned>(v)]; }
  constexpr std::int64_t bytes(value_id v) const { return local_bytes(g.ranks, g.at(v)); }
  /// Bytes of the arena a value lies in; -1: not an arena of this plan.
  constexpr std::int64_t size_of_space(space s) const {
    switch (s) {
    case space::saved: return plan.saved;
    case space::working: return plan.working;
    case space::derived: return plan.derived;
    default: return -1;
    }
  }
  /// True for a looped node that has run in the round before.
  constexpr bool was_run(const node& n) {
    bool& ran = visited[static_cast<unsigned>(g.at(n.out[0]).producer)];
    const bool before = ran;
    ran = true;
    return before;
  }
  constexpr void fail(const node& n, value_id a, value_id b = -1) {
    record(wrong, g, fault::M002, n.line, n.op->name, a, b);
  }

  /// What leaves the part lies where others look for it: the stream and its cotangent, and each
  /// finished gradient in the parameter's own place. What backward rounds read of the forward pass
  /// is run again.
  constexpr void check_ends() {
    const auto lies = [&](value_id v, space s, std::int64_t offset, const char* what, value_id of) {
      if (v >= 0 && (at(v).in != s || at(v).offset != offset))
        record(wrong, g, fault::M002, 0, what, of);
    };
    if (g.outputs[0] >= 0 && g.at(g.outputs[0]).rank > 0)
      lies(g.outputs[0], space::stream_out, 0, "output", g.outputs[0]);
    lies(g.d_stream, space::d_stream_in, 0, "cotangent", g.d_stream);
    for (int i = 0; i < g.parameter_count; ++i)
      if (const parameter_info& p = g.parameters[static_cast<unsigned>(i)]; !p.frozen)
        lies(p.gradient, space::gradients, i, "gradient", p.v);
    for (int i = 0; g.rounds >= 0 && i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (!n.looped || !(in_backward(n.when) || n.again)) continue;
      for (value_id v : n.in)
        if (const node_id made = looped_producer(g, v); made >= 0 && !g.at_node(made).again)
          record(wrong, g, fault::M002, n.line, n.op->name, v);
    }
  }

  constexpr void read(const node& n, value_id v) {
    if (at(v).in == space::none) return fail(n, v);
    if (g.at(v).producer < 0 || size_of_space(at(v).in) < 0) return;
    if (!living[static_cast<unsigned>(v)]) fail(n, v);
  }
  /// Values whose memory v takes over are gone; other names of the same bytes stay.
  constexpr void write(int when, const node& n, value_id v, bool alias) {
    if (at(v).in == space::none) return fail(n, v);
    const std::int64_t size = size_of_space(at(v).in);
    if (size < 0) return;
    const piece mine{v, at(v).in, at(v).offset, at(v).offset + bytes(v)};
    if (mine.first < 0 || mine.end > size) return fail(n, v);
    piece* kept = pieces;
    for (const piece *o = pieces, *end = pieces + count; o != end; ++o) {
      const bool meets = o->in == mine.in && o->first < mine.end && mine.first < o->end;
      if (o->v == v) continue; // of the round before
      if (last_use[static_cast<unsigned>(o->v)] < when || (meets && !alias)) {
        living[static_cast<unsigned>(o->v)] = false;
        if (last_use[static_cast<unsigned>(o->v)] >= when) overwrite(n, *o, mine);
        continue;
      }
      *kept++ = *o;
    }
    *kept++ = mine;
    count = static_cast<int>(kept - pieces);
    living[static_cast<unsigned>(v)] = true;
    if (last_use[static_cast<unsigned>(v)] < when)
      last_use[static_cast<unsigned>(v)] = static_cast<std::int16_t>(when);
  }
  /// A node may write over what it reads only where its op works in place, and never over what it
  /// writes.
  constexpr void overwrite(const node& n, const piece& old, const piece& mine) {
    const bool taken_over = n.op->in_place >= 0 && mine.v == n.out[0] &&
                            old.v == n.in[static_cast<unsigned>(n.op->in_place)] &&
                            old.first == mine.first;
    for (value_id v : n.in)
      if (v == old.v && !taken_over) fail(n, old.v, mine.v);
    for (value_id v : n.out)
      if (v == old.v) fail(n, old.v, mine.v);
  }
  constexpr void step(int when, const node& n) {
    for (value_id v : n.in)
      if (v >= 0) read(n, v);
    if (n.looped && n.op->accumulates && was_run(n)) read(n, n.out[0]); // adds to the round before
    const bool alias = may_alias(n) && at(n.out[0]).in == at(n.in[0]).in &&
                       at(n.out[0]).offset == at(n.in[0]).offset;
    for (value_id v : n.out)
      if (v >= 0) write(when, n, v, alias);
  }
};

} // namespace detail

/// MEGA-M002 for the first value of a graph that is overwritten before its last use, or has no
/// memory; else no fault.
constexpr fault_record verify_memory(const graph& g, const memory_plan& p) {
  if (g.wrong.code != fault::none) return {};
  detail::memory_walk walk(g, p);
  walk.check_ends();
  int when = 0;
  in_running_order(g, 2, [&](int i) { walk.step(when++, g.at_node(i)); });
  return walk.wrong;
}

} // namespace mc
