// regions: brings together the nodes of each region, a loop of nodes that runs as often as a value
// says (graph/graph.hpp). Rounds of rows that go to experts are a region (docs/experts.md). The
// pass does so in the forward and in the backward pass, and refuses nodes that cannot stand
// together. The forward pass leaves only the values of a region's last trip. So where there are
// several trips, each backward trip first runs the forward nodes again whose values it needs.
#pragma once

#include <megacpp/graph/builder.hpp>

namespace mc {

constexpr bool in_backward(phase p) { return backward_pass.holds(p); }

/// A set of nodes of a graph, with one bit for each.
struct node_set {
  std::uint64_t bits[(max_nodes + 63) / 64]{};

  constexpr bool has(int i) const { return (bits[i / 64] >> (i % 64) & 1) != 0; }
  constexpr void add(int i) { bits[i / 64] |= std::uint64_t{1} << (i % 64); }
};

/// The nodes first, ..., last - 1 of a graph. Those of the phases that run now run in this order,
/// once (region -1) or as often as their region says.
struct stretch {
  int first = 0, last = 0;
  region_id region = -1;

  constexpr bool empty() const { return first >= last; }
};

/// Returns the place of a region's nodes in the forward or in the backward pass.
constexpr stretch stretch_of(const graph& g, region_id r, bool backward) {
  stretch s{0, 0, r};
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (n.region != r || in_backward(n.when) != backward) continue;
    if (s.empty()) s.first = i;
    s.last = i + 1;
  }
  return s;
}

/// Returns the forward node that makes v anew in each trip of a region, or -1.
constexpr node_id forward_in_trips(const graph& g, value_id v) {
  if (v < 0 || region_of(g, g.at(v)) < 0) return -1;
  return in_backward(g.at_node(g.at(v).producer).when) ? node_id{-1} : g.at(v).producer;
}

/// The stretches of a graph's nodes for some phases, in their order: one for each region, and those
/// before, between and behind the regions.
struct stretches {
  stretch at[2 * max_regions + 1]{};
  int count = 0;

  constexpr stretches() = default;
  constexpr stretches(const graph& g, bool backward) {
    for (int done = 0; done < g.node_count;) {
      stretch next{g.node_count, g.node_count, -1};
      for (int r = 0; r < g.region_count; ++r) {
        const stretch s = stretch_of(g, static_cast<region_id>(r), backward);
        if (!s.empty() && s.first >= done && s.first < next.first) next = s;
      }
      push({done, next.first, -1}), push(next);
      done = next.last;
    }
  }
  /// Returns the first node of a region, or 0.
  constexpr int first_of(region_id r) const {
    for (int i = 0; i < count; ++i)
      if (at[i].region == r) return at[i].first;
    return 0;
  }
  constexpr void push(const stretch& s) {
    if (!s.empty() && count < 2 * max_regions + 1) at[count++] = s;
  }
};

/// The order in which the nodes of a graph run.
struct running_order {
  stretches forward, backward, once; ///< once: nodes of prologue and epilogue
  node_set rerun; ///< forward nodes that backward trips run again, if there are several

  constexpr running_order() = default;
  constexpr explicit running_order(const graph& g) : forward(g, false), backward(g, true) {
    once.push({0, g.node_count});
    for (int i = g.region_count == 0 ? -1 : g.node_count - 1; i >= 0; --i) {
      const node& n = g.at_node(i);
      if (n.region < 0 || !(in_backward(n.when) || rerun.has(i))) continue;
      for (value_id v : n.in)
        if (const node_id p = forward_in_trips(g, v); p >= 0) rerun.add(p);
    }
  }

  constexpr const stretches& of(phases when) const {
    return when == phase::forward ? forward : is_backward(when) ? backward : once;
  }
  /// Calls f(stretch) for each stretch of some phases.
  template <class F> constexpr void each(phases when, F f) const {
    for (int i = 0; i < of(when).count; ++i) f(of(when).at[i]);
  }

  /// Calls f(index of a node) for each node of a stretch that runs in one trip. Where there are
  /// several trips, a backward trip first runs the forward nodes whose values it reads.
  template <class F>
  constexpr void trip(const graph& g, const stretch& s, phases when, bool several, F&& f) const {
    for (int i = 0; several && is_backward(when) && i < g.node_count; ++i)
      if (g.at_node(i).region == s.region && rerun.has(i)) f(i);
    for (int i = s.first; i < s.last; ++i)
      if (when.holds(g.at_node(i).when)) f(i);
  }

  /// Calls f(index of a node) in the order in which the nodes of g run, `trips` times for nodes of
  /// regions.
  template <class F> constexpr void walk(const graph& g, int trips, F f) const {
    for (const phases when :
         {phases(phase::prologue), phases(phase::forward), backward_pass, phases(phase::epilogue)})
      each(when, [&](const stretch& s) {
        const int times = s.region < 0 ? 1 : trips;
        for (int t = 0; t < times; ++t) trip(g, s, when, times > 1, f);
      });
  }
};

namespace detail {

/// Brings the nodes of a region together, in the forward or the backward pass. A node that stands
/// between them moves behind them if it reads a sum of theirs, else before them.
constexpr void gather(graph& g, region_id r, bool backward) {
  const stretch s = stretch_of(g, r, backward);
  enum side : std::uint8_t { before, inside, behind };
  side of[max_nodes]{};
  bool apart = false;
  for (int i = s.first; i < s.last; ++i) {
    const node& n = g.at_node(i);
    const bool now = in_backward(n.when) == backward;
    if (now && n.region == r) {
      of[i] = inside;
      continue;
    }
    apart = true;
    of[i] = n.when > (backward ? backward_pass.last : phase::forward) ? behind : before;
    for (value_id v : n.in) {
      const node_id p = v < 0 ? node_id{-1} : g.at(v).producer;
      if (p >= s.first && p < i && of[p] != before) of[i] = behind;
    }
  }
  if (!apart) return;
  const graph old = g;
  int to = s.first;
  for (const side which : {before, inside, behind})
    for (int i = s.first; i < s.last; ++i) {
      if (of[i] != which) continue;
      g.at_node(to) = old.at_node(i);
      for (value_id v : g.at_node(to).out)
        if (v >= 0) g.at(v).producer = static_cast<node_id>(to);
      ++to;
    }
}

} // namespace detail

/// Returns MEGA-P016 for the first node that stands among the nodes of a region and cannot: it is
/// of another region, or reads a value that is computed behind it or summed up over the trips.
[[gnu::cold]] constexpr fault_record verify_regions(const graph& g) {
  fault_record wrong;
  for (int k = 0; k < 2 * g.region_count; ++k) {
    const auto r = static_cast<region_id>(k / 2);
    const bool backward = k % 2 != 0;
    const stretch s = stretch_of(g, r, backward);
    for (int i = s.first; i < s.last; ++i) {
      const node& n = g.at_node(i);
      const bool inside = n.region == r && in_backward(n.when) == backward &&
                          n.when != phase::prologue && n.when != phase::epilogue;
      if (!inside) record(wrong, g, fault::P016, n.line, n.op->name, n.in[0]);
      for (value_id v : n.in) {
        const node_id p = v < 0 ? node_id{-1} : g.at(v).producer;
        if (p >= s.first && (p >= i || g.at_node(p).op->accumulates))
          record(wrong, g, fault::P016, n.line, n.op->name, v);
      }
    }
  }
  return wrong;
}

constexpr graph in_regions(const graph& whole) {
  graph g = whole;
  if (g.wrong.code != fault::none) return g;
  for (const bool backward : {false, true})
    for (int r = 0; r < g.region_count; ++r) detail::gather(g, static_cast<region_id>(r), backward);
  g.wrong = verify_regions(g);
  return g;
}

} // namespace mc
