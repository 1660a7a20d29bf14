// place_memory: an address for every value of a graph.
//
// Forward values that the backward pass reads are *saved* (once a layer and micro-batch in flight); all
// others live in the *working* arena between their first and last use. Working values are placed in
// order of falling size at the lowest offset where no value live at the same time lies (Pisarchyk, Lee
// 2020, greedy by size). An op that may work in place takes over a dying input of the same size. Values
// that a redistribution leaves as they are share their memory.
#pragma once

#include <megacpp/op/redistribute.hpp>

namespace mc {

/// Where a value lies. feed: given by the caller (offset is the feed's number times max_slots, plus the slot). stream_out, d_stream_in:
/// the residual stream after the part, the cotangent of the stream before it.
enum class space : std::uint8_t { none, weights, gradients, derived, saved, working, feed, stream_out, d_stream_in };

struct address {
  space in = space::none;
  std::int64_t offset = 0; ///< bytes; for weights and gradients the parameter's index in its graph
};

struct memory_plan {
  std::array<address, max_values> at{};
  std::int64_t saved = 0;         ///< bytes a layer and micro-batch
  std::int64_t working = 0;       ///< bytes, of the larger of forward and backward pass
  std::int64_t derived = 0;       ///< bytes a layer of values the prologue computes
  std::int64_t largest_live = 0;  ///< largest sum of working values live at once
  fault wrong = fault::none;
};

inline constexpr std::int64_t memory_alignment = 64;
constexpr std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

namespace detail {

/// Forward and backward of one graph, as the sequences in which nodes run.
constexpr bool in_backward(phase p) { return p == phase::input_gradient || p == phase::weight_gradient; }

struct buffer {
  value_id v = -1;
  int first = 0, last = 0; ///< node indices
  std::int64_t bytes = 0, offset = -1;
};

struct placer {
  const graph& g;
  memory_plan plan{};
  std::array<int, max_values> last_use{};
  std::array<bool, max_values> read_in_backward{};
  std::array<std::int16_t, max_values> buffer_of{};
  std::array<buffer, max_values> buffers{};
  int count = 0;

  constexpr explicit placer(const graph& graph) : g(graph) {
    for (auto& b : buffer_of) b = -1;
    for (auto& l : last_use) l = -1;
  }

  constexpr address& at(value_id v) { return plan.at[static_cast<unsigned>(v)]; }

  constexpr void find_uses() {
    for (int i = 0; i < g.node_count; ++i)
      for (value_id v : g.at_node(i).in)
        if (v >= 0) use(v, i, in_backward(g.at_node(i).when));
    // an alias keeps its source alive
    for (int i = g.node_count - 1; i >= 0; --i)
      if (aliases(i)) {
        const value_id from = g.at_node(i).in[0], to = g.at_node(i).out[0];
        auto& last = last_use[static_cast<unsigned>(from)];
        if (last_use[static_cast<unsigned>(to)] > last) last = last_use[static_cast<unsigned>(to)];
        read_in_backward[static_cast<unsigned>(from)] |= read_in_backward[static_cast<unsigned>(to)];
      }
  }
  constexpr void use(value_id v, int node, bool backward) {
    last_use[static_cast<unsigned>(v)] = node;
    read_in_backward[static_cast<unsigned>(v)] |= backward;
  }
  /// A redistribution without data movement, or a reduction in place of a gradient in the store.
  constexpr bool aliases(int i) const {
    const node& n = g.at_node(i);
    if (n.op != &op::redistribute) return false;
    const collective c = collective_of(n.from, n.to);
    return c == collective::none || (c == collective::all_reduce && n.when == phase::epilogue);
  }

  constexpr void place_parameters() {
    for (int i = 0; i < g.parameter_count; ++i) at(g.parameters[static_cast<unsigned>(i)].v) = {space::weights, i};
  }

  constexpr void place_node(int i) {
    const node& n = g.at_node(i);
    if (aliases(i)) {
      at(n.out[0]) = at(n.in[0]);
      buffer_of[static_cast<unsigned>(n.out[0])] = buffer_of[static_cast<unsigned>(n.in[0])];
      return;
    }
    for (int k = 0; k < max_outputs; ++k) {
      const value_id v = n.out[static_cast<unsigned>(k)];
      if (v < 0) continue;
      const value& x = g.at(v);
      const std::int64_t bytes = aligned_bytes(local_bytes(g.ranks, x));
      if (x.is == role::gradient) {
        at(v) = gradient_of(x.grad_of);
      } else if (n.when == phase::prologue || n.when == phase::epilogue) {
        at(v) = {space::derived, plan.derived};
        plan.derived += bytes;
      } else if (v == g.outputs[0] && x.rank > 0) {
        at(v) = {space::stream_out, 0};
      } else if (v == g.d_stream) {
        at(v) = {space::d_stream_in, 0};
      } else if (!in_backward(n.when) && read_in_backward[static_cast<unsigned>(v)]) {
        at(v) = {space::saved, plan.saved};
        plan.saved += bytes;
      } else {
        place_working(i, n, k, v, bytes);
      }
    }
  }
  constexpr void place_working(int i, const node& n, int k, value_id v, std::int64_t bytes) {
    at(v) = {space::working, 0};
    const int last = last_use[static_cast<unsigned>(v)] < i || g.at(v).is == role::scratch ? output_end(v, i) : last_use[static_cast<unsigned>(v)];
    if (k == 0 && n.op->in_place >= 0) {
      const value_id from = n.in[static_cast<unsigned>(n.op->in_place)];
      const std::int16_t b = from < 0 ? std::int16_t{-1} : buffer_of[static_cast<unsigned>(from)];
      if (b >= 0 && at(from).in == space::working && buffers[static_cast<unsigned>(b)].last == i &&
          buffers[static_cast<unsigned>(b)].bytes == bytes) {
        buffers[static_cast<unsigned>(b)].last = last;
        buffer_of[static_cast<unsigned>(v)] = b;
        return;
      }
    }
    buffer_of[static_cast<unsigned>(v)] = static_cast<std::int16_t>(count);
    buffers[static_cast<unsigned>(count++)] = {v, i, last, bytes, -1};
  }
  /// Outputs of the graph stay until its end; what nobody reads lives during its node.
  constexpr int output_end(value_id v, int i) const {
    for (value_id o : g.outputs)
      if (o == v) return g.node_count;
    return i;
  }
  /// The store slot in which the gradient of a leaf collects: the parameter's own, when the leaf is the
  /// parameter with another name for its state.
  constexpr address gradient_of(value_id leaf) {
    const address a = at(leaf);
    if (a.in == space::weights) return {space::gradients, a.offset};
    const address d{space::derived, plan.derived};
    plan.derived += aligned_bytes(local_size(g.ranks, g.at(leaf)).n * size_of(accumulator_of(g.at(leaf).type)));
    return d;
  }

  constexpr void pack() {
    std::array<std::int16_t, max_values> order{};
    for (int i = 0; i < count; ++i) order[static_cast<unsigned>(i)] = static_cast<std::int16_t>(i);
    for (int i = 1; i < count; ++i) { // insertion sort by size, stable
      const std::int16_t x = order[static_cast<unsigned>(i)];
      int j = i;
      for (; j > 0 && buffers[static_cast<unsigned>(order[static_cast<unsigned>(j - 1)])].bytes < buffers[static_cast<unsigned>(x)].bytes; --j)
        order[static_cast<unsigned>(j)] = order[static_cast<unsigned>(j - 1)];
      order[static_cast<unsigned>(j)] = x;
    }
    std::array<std::int16_t, max_values> beside{}; // buffers already placed, by rising offset
    int placed = 0;
    for (int i = 0; i < count; ++i) {
      buffer& b = buffers[static_cast<unsigned>(order[static_cast<unsigned>(i)])];
      std::int64_t offset = 0;
      for (int j = 0; j < placed; ++j) {
        const buffer& o = buffers[static_cast<unsigned>(beside[static_cast<unsigned>(j)])];
        if (o.last < b.first || b.last < o.first) continue;
        if (o.offset - offset >= b.bytes) break;
        if (o.offset + o.bytes > offset) offset = o.offset + o.bytes;
      }
      b.offset = offset;
      if (offset + b.bytes > plan.working) plan.working = offset + b.bytes;
      int j = placed++;
      for (; j > 0 && buffers[static_cast<unsigned>(beside[static_cast<unsigned>(j - 1)])].offset > offset; --j)
        beside[static_cast<unsigned>(j)] = beside[static_cast<unsigned>(j - 1)];
      beside[static_cast<unsigned>(j)] = order[static_cast<unsigned>(i)];
    }
    for (int i = 0; i < g.node_count; ++i) {
      std::int64_t live = 0;
      for (int j = 0; j < count; ++j) {
        const buffer& b = buffers[static_cast<unsigned>(j)];
        if (b.first <= i && i <= b.last) live += b.bytes;
      }
      if (live > plan.largest_live) plan.largest_live = live;
    }
    for (int i = 0; i < g.value_count; ++i) {
      const std::int16_t b = buffer_of[static_cast<unsigned>(i)];
      if (b >= 0 && plan.at[static_cast<unsigned>(i)].in == space::working)
        plan.at[static_cast<unsigned>(i)].offset = buffers[static_cast<unsigned>(b)].offset;
    }
  }
};

} // namespace detail

constexpr memory_plan place_memory(const graph& g) {
  detail::placer p(g);
  p.find_uses();
  p.place_parameters();
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::input) p.at(static_cast<value_id>(i)) = {space::feed, static_cast<int>(v.from) * max_slots + v.slot};
  }
  // prologue values first: forward nodes read them
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).when == phase::prologue) p.place_node(i);
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).when != phase::prologue) p.place_node(i);
  p.pack();
  return p.plan;
}

} // namespace mc
