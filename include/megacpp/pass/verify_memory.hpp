// verify_memory: run after place_memory, which it trusts in nothing. Walks the nodes in the order
// in which they run and follows what lies where: every value that a node reads must still be there,
// an output must not be written over an input of its own node (unless the op works in place), and
// nothing may reach beyond its arena. Linear in the nodes, times the values that live at once.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/pass/place_memory.hpp>

namespace mc {

namespace detail {

/// f(position, node) in the order in which nodes run: the prologue, then all others.
template <class F> constexpr void in_running_order(const graph& g, F f) {
  int when = 0;
  for (const bool prologue : {true, false})
    for (int i = 0; i < g.node_count; ++i)
      if ((g.at_node(i).when == phase::prologue) == prologue) f(when++, g.at_node(i));
}

struct memory_walk {
  const graph& g;
  const memory_plan& plan;
  fault_record wrong{};
  std::array<value_id, max_values> living{};
  int count = 0;
  std::array<std::int16_t, max_values> last_use{}; ///< in the order in which nodes run

  constexpr memory_walk(const graph& graph, const memory_plan& p) : g(graph), plan(p) {
    in_running_order(g, [this](int when, const node& n) {
      for (value_id v : n.in)
        if (v >= 0) last_use[static_cast<unsigned>(v)] = static_cast<std::int16_t>(when);
    });
    for (value_id v : g.outputs)
      if (v >= 0) last_use[static_cast<unsigned>(v)] = static_cast<std::int16_t>(g.node_count);
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
  constexpr bool overlap(value_id a, value_id b) const {
    const address &x = at(a), &y = at(b);
    return x.in == y.in && x.offset < y.offset + bytes(b) && y.offset < x.offset + bytes(a);
  }
  constexpr void fail(const node& n, value_id a, value_id b = -1) {
    record(wrong, g, fault::M002, n.line, n.op->name, a, b);
  }

  constexpr void read(const node& n, value_id v) {
    if (at(v).in == space::none) return fail(n, v);
    if (g.at(v).producer < 0 || size_of_space(at(v).in) < 0) return;
    for (int k = 0; k < count; ++k)
      if (living[static_cast<unsigned>(k)] == v) return;
    fail(n, v);
  }
  /// Values whose memory v takes over are gone; other names of the same bytes stay.
  constexpr void write(int when, const node& n, value_id v, bool alias) {
    if (at(v).in == space::none) return fail(n, v);
    const std::int64_t size = size_of_space(at(v).in);
    if (size < 0) return;
    if (at(v).offset < 0 || at(v).offset + bytes(v) > size) return fail(n, v);
    int kept = 0;
    for (int k = 0; k < count; ++k) {
      const value_id other = living[static_cast<unsigned>(k)];
      if (last_use[static_cast<unsigned>(other)] < when) continue;
      if (!alias && overlap(other, v)) {
        const bool taken_over = n.op->in_place >= 0 && v == n.out[0] &&
                                other == n.in[static_cast<unsigned>(n.op->in_place)] &&
                                at(other).offset == at(v).offset;
        for (value_id mine : n.in)
          if (mine == other && !taken_over) fail(n, other, v);
        for (value_id mine : n.out)
          if (mine == other) fail(n, other, v);
        continue;
      }
      living[static_cast<unsigned>(kept++)] = other;
    }
    count = kept;
    if (last_use[static_cast<unsigned>(v)] < when)
      last_use[static_cast<unsigned>(v)] = static_cast<std::int16_t>(when);
    living[static_cast<unsigned>(count++)] = v;
  }
  constexpr void step(int when, const node& n) {
    for (value_id v : n.in)
      if (v >= 0) read(n, v);
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
  detail::in_running_order(g, [&walk](int when, const node& n) { walk.step(when, n); });
  return walk.wrong;
}

} // namespace mc
