// verify_memory: checks the result of place_memory() without relying on any of it. The check walks
// the nodes in the order in which they run, regions once and twice, and follows which value lies
// where. Every value that a node reads must still be there. A node must not write an output over
// its own input (unless the op works in place), and nothing may reach beyond its arena. The outputs
// of the part must be there at the end.
// Between the forward and the backward pass of a layer, other layers use the same working arena. So
// values of the forward pass that the backward pass reads must lie elsewhere. The time grows with
// the number of nodes times the number of values that live at once.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/pass/place_memory.hpp>

namespace mc {

namespace detail {

struct memory_walk {
  const graph& g;
  const memory_plan& plan;
  const running_order& order;
  fault_record wrong{};
  struct byte_range {
    value_id v = -1;
    space in = space::none;
    std::int64_t first = 0, end = 0;
  } occupied[max_values]; // values in the arenas; a plain array: each call is a step
  int count = 0;
  bool living[max_values]{};
  bool visited[max_nodes]{};
  std::int16_t last_use[max_values]{}; ///< last use of each value, in the order in which nodes run

  constexpr memory_walk(const graph& graph, const memory_plan& p, const running_order& runs,
                        int trips)
      : g(graph), plan(p), order(runs) {
    std::int16_t when = 0;
    order.walk(g, trips, [&](int i) {
      for (value_id v : g.at_node(i).in)
        if (v >= 0) last_use[v] = when;
      if (const region_id r = g.at_node(i).region; r >= 0) last_use[g.regions[r].trips] = when;
      ++when;
    });
    for (value_id v : {g.outputs[0], g.outputs[1], g.side_loss})
      if (v >= 0) last_use[v] = when;
    for (int i = 0; i < g.parameter_count; ++i)
      if (const value_id v = g.parameters[i].gradient; v >= 0) last_use[v] = when;
    for (int v = 0; v < g.value_count; ++v) // contributions are collected until the end
      if (g.values[v].is == role::gradient) last_use[v] = when;
  }

  constexpr const address& at(value_id v) const { return plan.at[v]; }
  constexpr std::int64_t bytes(value_id v) const { return local_bytes(g.ranks, g.at(v)); }
  /// Returns the bytes of an arena, or the number of gradients of a layer; -1: s is no arena of
  /// this plan.
  constexpr std::int64_t size_of_space(space s) const {
    switch (s) {
    case space::saved: return plan.saved;
    case space::working: return plan.working;
    case space::derived: return plan.derived;
    case space::derived_gradients: return plan.derived_gradients;
    case space::gradients: return g.parameter_count;
    default: return -1;
    }
  }
  /// Returns whether v may lie outside of the arenas: it leaves the part, or collects a gradient.
  constexpr bool may_lie_outside(value_id v) const {
    switch (at(v).in) {
    case space::stream_out: return v == g.outputs[0] && g.at(v).rank > 0;
    case space::d_stream_in: return v == g.d_stream;
    case space::derived_gradients: return g.at(v).is == role::gradient;
    case space::gradients: {
      if (g.at(v).is == role::gradient) return true;
      const auto i = static_cast<unsigned>(at(v).offset);
      return at(v).offset >= 0 && at(v).offset < g.parameter_count && g.parameters[i].gradient == v;
    }
    default: return false;
    }
  }
  /// Returns whether a node of a region has run in an earlier trip already.
  constexpr bool ran_before(const node& n) {
    bool& ran = visited[g.at(n.out[0]).producer];
    const bool before = ran;
    ran = true;
    return before;
  }
  constexpr void fail(const node& n, value_id a, value_id b = -1) {
    record(wrong, g, fault::M002, n.line, n.op->name, a, b);
  }

  /// Checks the addresses by which others find values of the part: inputs by their numbers, the
  /// stream and its cotangent, and each finished gradient in the parameter's own place. Forward
  /// values that a backward trip reads or runs again must outlive the layers that run in between.
  constexpr void check_ends() {
    const auto lies = [&](value_id v, space s, std::int64_t offset, const char* what, value_id of) {
      if (v >= 0 && (at(v).in != s || at(v).offset != offset))
        record(wrong, g, fault::M002, 0, what, of);
    };
    int inputs = 0;
    for (int i = 0; i < g.value_count; ++i)
      if (g.values[i].is == role::input)
        lies(static_cast<value_id>(i), space::input, inputs++, "input", static_cast<value_id>(i));
    if (g.outputs[0] >= 0 && g.at(g.outputs[0]).rank > 0)
      lies(g.outputs[0], space::stream_out, 0, "output", g.outputs[0]);
    lies(g.d_stream, space::d_stream_in, 0, "cotangent", g.d_stream);
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& p = g.parameters[i];
      lies(p.v, space::weights, i, "parameter", p.v);
      for (int k = 0; p.encoding != nullptr && k < p.encoding->count; ++k)
        lies(p.arrays[k], space::weights, i + k * max_parameters, "parameter", p.arrays[k]);
      if (!p.frozen) lies(p.gradient, space::gradients, i, "gradient", p.v);
    }
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (n.region >= 0) outlives(i, g.regions[n.region].trips);
      for (value_id v : n.in) outlives(i, v);
    }
  }
  /// Checks that operand v of node i does not lie in the working arena if other layers run between
  /// the node that makes v and node i.
  constexpr void outlives(int i, value_id v) {
    if (v < 0 || at(v).in != space::working || g.at(v).producer < 0) return;
    const node &n = g.at_node(i), &made = g.at_node(g.at(v).producer);
    const bool again = order.rerun.has(i) && !order.rerun.has(g.at(v).producer);
    const bool apart = made.when == phase::prologue
                           ? n.when != phase::prologue
                           : made.when == phase::forward && (in_backward(n.when) || again);
    if (apart) fail(n, v);
  }
  /// Checks that each value that the host reads has a mirror, and that mirrors do not overlap.
  constexpr void check_mirrors() {
    const seen_values seen(g);
    for (int i = 0; i < g.value_count; ++i) {
      const auto v = static_cast<value_id>(i);
      if (!seen.has[i]) continue;
      if (g.at(v).producer < 0) { // an input or a parameter, which no node copies to the host
        record(wrong, g, fault::M002, 0, "mirror", v);
        continue;
      }
      const node& by = g.at_node(g.at(v).producer);
      const mirror* const m = plan.mirror_of(v);
      if (m == nullptr || at(v).in != space::saved) {
        fail(by, v);
        continue;
      }
      if (!lies_alone(m->offset, bytes(v), m)) fail(by, v);
    }
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (n.op->host_room == nullptr || n.op->seen < 0) continue;
      const value_id v = n.in[n.op->seen];
      const mirror* const m = v < 0 ? nullptr : plan.mirror_of(v);
      if (m == nullptr) continue;
      if (m->bytes < n.op->host_room(g, n) || m->room < 0 || m->room % memory_alignment != 0 ||
          m->room + m->bytes > plan.mirrored)
        fail(n, v);
      for (int k = 0; k < plan.mirror_count; ++k) {
        const mirror& o = plan.mirrors[k];
        if (o.offset < m->room + m->bytes && m->room < o.offset + bytes(o.of)) fail(n, v, o.of);
        if (&o != m && o.bytes > 0 && o.room < m->room + m->bytes && m->room < o.room + o.bytes)
          fail(n, v, o.of);
      }
    }
  }
  constexpr bool lies_alone(std::int64_t first, std::int64_t size, const mirror* but) const {
    bool alone = first >= 0 && first % memory_alignment == 0 && first + size <= plan.mirrored;
    for (int k = 0; k < plan.mirror_count; ++k) {
      const mirror& o = plan.mirrors[k];
      alone = alone && (&o == but || o.offset >= first + size || first >= o.offset + bytes(o.of));
    }
    return alone;
  }
  /// Checks that all contributions to the gradient of one value collect in one place until the end
  /// of the step, and no other gradient in that place. It is the place of a parameter's gradient,
  /// if the value is that parameter in another state, or lies among the derived gradients.
  constexpr void check_gradients() {
    struct collected {
      value_id leaf;
      space in;
      std::int64_t first, end;
    } all_collected[max_values]{};
    int n = 0;
    for (int i = 0; i < g.value_count; ++i) {
      const auto v = static_cast<value_id>(i);
      if (g.at(v).is != role::gradient || g.at(v).producer < 0) continue;
      const node& by = g.at_node(g.at(v).producer);
      if (g.at(v).grad_of < 0) return fail(by, v);
      const address &a = at(v), &leaf = at(g.at(v).grad_of);
      const byte_range lies = range_of(v);
      if (a.in == space::gradients ? leaf.in != space::weights || a.offset != leaf.offset
                                   : a.in != space::derived_gradients || !fits(lies))
        fail(by, v);
      const collected mine{g.at(v).grad_of, a.in, lies.first, lies.end};
      for (const collected *o = all_collected, *end = all_collected + n; o != end; ++o)
        if (o->leaf == mine.leaf ? o->in != mine.in || o->first != mine.first
                                 : o->in == mine.in && o->first < mine.end && mine.first < o->end)
          fail(by, v, o->leaf);
      all_collected[n++] = mine;
    }
  }
  /// Checks that the values that others read after the part are there.
  constexpr void check_outputs() {
    for (value_id v : {g.outputs[0], g.outputs[1], g.side_loss})
      if (v >= 0 && g.at(v).producer >= 0) read(g.at_node(g.at(v).producer), v);
    for (int i = 0; i < g.parameter_count; ++i)
      if (const value_id v = g.parameters[i].gradient; v >= 0 && g.at(v).producer >= 0)
        read(g.at_node(g.at(v).producer), v);
  }

  constexpr void read(const node& n, value_id v) {
    if (at(v).in == space::none) return fail(n, v);
    if (g.at(v).producer < 0 || size_of_space(at(v).in) < 0) return;
    if (!living[v]) fail(n, v);
  }
  /// Returns the memory in which v lies: its bytes, or the number of its gradient among those of a
  /// layer.
  constexpr byte_range range_of(value_id v) const {
    const std::int64_t first = at(v).offset;
    return {v, at(v).in, first, first + (at(v).in == space::gradients ? 1 : bytes(v))};
  }
  constexpr bool fits(const byte_range& p) const {
    return p.first >= 0 && p.end <= size_of_space(p.in) &&
           (p.in == space::gradients || p.first % memory_alignment == 0);
  }
  /// Returns whether both values are contributions to the gradient of one value.
  constexpr bool collect_together(value_id v, value_id o) const {
    return g.at(v).is == role::gradient && g.at(o).is == role::gradient &&
           g.at(v).grad_of == g.at(o).grad_of;
  }
  /// Follows node n as it writes v. Values that v overwrites are gone; other names of the same
  /// bytes and contributions to the same gradient stay. `in_place`: v lies where the operand does
  /// that n changes.
  constexpr void write(int when, const node& n, value_id v, bool alias, bool in_place) {
    const space in = at(v).in;
    if (in == space::none) return fail(n, v);
    const std::int64_t size = size_of_space(in);
    const bool outside = size < 0 || in == space::gradients || in == space::derived_gradients;
    if (outside && !alias && !in_place && !may_lie_outside(v)) fail(n, v);
    if (size < 0) return;
    const byte_range mine = range_of(v);
    if (!fits(mine)) return fail(n, v);
    byte_range* kept = occupied;
    for (const byte_range *o = occupied, *end = occupied + count; o != end; ++o) {
      const bool meets = o->in == mine.in && o->first < mine.end && mine.first < o->end;
      if (o->v == v) continue; // v itself, of the trip before
      const bool gone = meets && !alias && !collect_together(o->v, v);
      if (last_use[o->v] < when || gone) {
        living[o->v] = false;
        if (last_use[o->v] >= when) overwrite(n, *o, mine, in_place);
        continue;
      }
      *kept++ = *o;
    }
    *kept++ = mine;
    count = static_cast<int>(kept - occupied);
    living[v] = true;
    if (last_use[v] < when) last_use[v] = static_cast<std::int16_t>(when);
  }
  /// Checks that a node overwrites only one operand, and only where its op works in place. A node
  /// never overwrites another output of its own.
  constexpr void overwrite(const node& n, const byte_range& old, const byte_range& mine,
                           bool in_place) {
    const bool takes_over = mine.v == n.out[0] && old.first == mine.first;
    const int operand = in_place ? 0 : n.op->in_place;
    for (int k = 0; k < max_inputs; ++k)
      if (n.in[k] == old.v && !(takes_over && k == operand)) fail(n, old.v, mine.v);
    for (value_id v : n.out)
      if (v == old.v) fail(n, old.v, mine.v);
  }
  constexpr void step(int when, const node& n) {
    for (value_id v : n.in)
      if (v >= 0) read(n, v);
    if (n.region >= 0) read(n, g.regions[n.region].trips);
    if (n.region >= 0 && n.op->accumulates && ran_before(n))
      read(n, n.out[0]); // the node adds to the sum of the trip before
    const bool renames = may_alias(n) && plan.renames(n), alias = renames && leaves_as_is(n);
    for (value_id v : n.out)
      if (v >= 0) write(when, n, v, alias, renames && !alias);
  }
};

} // namespace detail

/// Returns MEGA-M002 for the first value that is overwritten before its last use, or has no memory,
/// with so many trips (1 or 2) of each region; MEGA-P016 where the nodes of a region do not stand
/// together; else no fault. `order` is that of g.
constexpr fault_record verify_memory(const graph& g, const memory_plan& p,
                                     const running_order& order, int trips) {
  if (g.wrong.code != fault::none) return {};
  if (const fault_record apart = verify_regions(g); apart.code != fault::none) return apart;
  detail::memory_walk walk(g, p, order, trips);
  walk.check_ends();
  walk.check_mirrors();
  walk.check_gradients();
  int when = 0;
  order.walk(g, trips, [&](int i) { walk.step(when++, g.at_node(i)); });
  walk.check_outputs();
  return walk.wrong;
}
/// Checks the plan for any number of trips.
constexpr fault_record verify_memory(const graph& g, const memory_plan& p,
                                     const running_order& order) {
  const fault_record wrong = verify_memory(g, p, order, 1);
  if (wrong.code != fault::none || g.region_count == 0) return wrong;
  return verify_memory(g, p, order, 2);
}
constexpr fault_record verify_memory(const graph& g, const memory_plan& p) {
  return verify_memory(g, p, running_order(g));
}

} // namespace mc
