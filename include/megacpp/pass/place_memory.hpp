// place_memory: gives an address to every value of a graph.
//
// Forward values that the backward pass reads are *saved*, once for each layer and micro-batch in
// flight. All others lie in the *working* arena between their first and last use. Each is placed at
// the lowest offset at which no value lies that lives at the same time (Pisarchyk, Lee 2020);
// several orders (by size, by breadth, by size times lifetime, by time) are tried, and the best is
// taken. A value that the host reads, too (op_info::seen), is saved and has a mirror: memory of the
// host, once for each layer and micro-batch in flight, into which the value is copied when it has
// been made. An op that may work in place takes over the memory of an input of the same size that
// no later node reads. A redistribution without data movement shares the memory of its input.
#pragma once

#include <megacpp/op/redistribute.hpp>
#include <megacpp/pass/regions.hpp>

namespace mc {

/// The memory in which a value lies. input: memory of the caller (offset is the number of the input
/// in the graph). stream_out is the residual stream after the part, d_stream_in the cotangent of
/// the stream before it.
enum class space : std::uint8_t {
  none,
  weights,
  gradients,
  derived,
  saved,
  working,
  input,
  stream_out,
  d_stream_in,
  derived_gradients,
  mirror ///< memory of the host
};
inline constexpr int spaces = 11;
constexpr const char* name_of(space s) {
  constexpr const char* names[] = {"none",        "weights",           "gradients", "derived",
                                   "saved",       "working",           "input",     "stream out",
                                   "d stream in", "derived gradients", "mirror"};
  return names[static_cast<int>(s)];
}

/// The copy of a value in memory of the host.
struct mirror {
  value_id of = -1;
  std::int64_t offset = 0;          ///< bytes, among the mirrors of a layer and micro-batch
  std::int64_t room = 0, bytes = 0; ///< offset and bytes of the host memory of kernels that read it
};
inline constexpr int max_mirrors = 2 * max_regions;

struct address {
  space in = space::none;
  /// The offset in bytes; for weights, gradients and inputs, the number of the value in the graph.
  std::int64_t offset = 0;
};

struct memory_plan {
  address at[max_values]{};
  std::int64_t saved = 0;             ///< bytes of saved values, for each layer and micro-batch
  std::int64_t working = 0;           ///< bytes of working values, in the larger pass
  std::int64_t derived_gradients = 0; ///< bytes of gradients of derived values, for each layer
  std::int64_t derived = 0;           ///< bytes of values of the prologue, for each layer
  std::int64_t largest_live = 0;      ///< most bytes of working values that live at once
  mirror mirrors[max_mirrors]{};
  int mirror_count = 0;
  std::int64_t mirrored = 0; ///< bytes of all mirrors, for each layer and micro-batch

  /// Returns the mirror of a value; null: it has none.
  constexpr const mirror* mirror_of(value_id v) const {
    for (int i = 0; i < mirror_count; ++i)
      if (mirrors[i].of == v) return mirrors + i;
    return nullptr;
  }

  /// Returns whether the output of a redistribution lies where its input does.
  constexpr bool renames(const node& n) const {
    if (!n.op->redistributes) return false;
    const address &from = at[n.in[op::redistribute_in::x]],
                  &to = at[n.out[op::redistribute_out::y]];
    return from.in == to.in && from.offset == to.offset;
  }
};

inline constexpr std::int64_t memory_alignment = 64;
constexpr std::int64_t aligned_bytes(std::int64_t bytes) {
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

namespace detail {

/// Returns whether the output of a node may lie where its input does: it redistributes without data
/// movement, or reduces a gradient in its place in the store.
constexpr bool may_alias(const node& n) {
  if (!n.op->redistributes) return false;
  const collective c = n.attr.as<op::transition>().by();
  return c == collective::none || (c == collective::all_reduce && n.when == phase::epilogue);
}

/// Returns whether a redistribution moves no data.
constexpr bool leaves_as_is(const node& n) {
  return n.attr.as<op::transition>().by() == collective::none;
}

/// Returns how often nodes read the memory of v. All contributions to one gradient have the same
/// memory.
constexpr int reads_of_place(const graph& g, value_id v) {
  const value& x = g.at(v);
  int reads = 0;
  for (int i = 0; i < g.node_count; ++i)
    for (value_id in : g.at_node(i).in)
      reads += in == v || (in >= 0 && x.is == role::gradient && g.at(in).is == role::gradient &&
                           g.at(in).grad_of == x.grad_of);
  return reads;
}

struct storage {
  value_id v = -1;
  int first = 0, last = 0; ///< indices of the nodes that make it and read it last
  std::int64_t bytes = 0, offset = -1;
};

struct memory_planner {
  const graph& g;
  memory_plan plan{};
  int last_use[max_values]{};
  bool read_in_backward[max_values]{};
  std::int16_t storage_of[max_values]{};
  storage storages[max_values]{};
  address leaf_gradient[max_values]{};
  bool aliases[max_nodes]{}; ///< aliases[i]: output and input of node i have the same memory
  const running_order& order;
  seen_values seen;
  int count = 0;

  constexpr memory_planner(const graph& graph, const running_order& runs)
      : g(graph), order(runs), seen(graph) {
    for (auto& b : storage_of) b = -1;
    for (auto& l : last_use) l = -1;
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.nodes[i];
      aliases[i] = may_alias(n) && (leaves_as_is(n) || read_by_one(n.in[op::redistribute_in::x])) &&
                   !seen.has[n.out[op::redistribute_out::y]];
    }
  }

  constexpr address& at(value_id v) { return plan.at[v]; }

  /// Returns whether only one node reads the memory of v, under any of its names, so that this node
  /// may write there.
  constexpr bool read_by_one(value_id v) const {
    while (reads_of_place(g, v) == 1 && finishes(v) < 0) {
      const node_id made = g.at(v).producer;
      if (made < 0 || !aliases[made]) return true;
      v = g.at_node(made).in[op::redistribute_in::x];
    }
    return false;
  }

  constexpr void find_uses() {
    for (int i = 0; i < g.node_count; ++i)
      for (value_id v : g.at_node(i).in)
        if (v >= 0) use(v, i, in_backward(g.at_node(i).when));
    for (const phases when : {phases(phase::forward), backward_pass})
      order.each(when, [&](const stretch& s) {
        if (s.region >= 0) find_uses_of_trips(s, when == backward_pass);
      });
    for (value_id v : {g.outputs[0], g.outputs[1], g.side_loss}) // outputs stay until the end
      if (v >= 0) last_use[v] = g.node_count;
    // An alias keeps its source alive.
    for (int i = g.node_count - 1; i >= 0; --i)
      if (aliases[i]) {
        const value_id from = g.at_node(i).in[op::redistribute_in::x],
                       to = g.at_node(i).out[op::redistribute_out::y];
        auto& last = last_use[from];
        if (last_use[to] > last) last = last_use[to];
        read_in_backward[from] |= read_in_backward[to];
      }
  }
  /// Extends the lifetimes of values of a region: every trip reads values from before the first
  /// trip. Values that backward trips compute again are saved, so that no other value of the
  /// backward pass overwrites them.
  constexpr void find_uses_of_trips(const stretch& s, bool backward) {
    use(g.regions[s.region].trips, s.last, backward);
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      const bool runs = i >= s.first && i < s.last && in_backward(n.when) == backward,
                 again = n.region == s.region && order.rerun.has(i);
      if (!runs && !(backward && again)) continue;
      for (value_id v : n.in)
        if (v >= 0 && (g.at(v).producer < s.first || (backward && again))) use(v, s.last, backward);
      for (value_id v : n.out)
        if (v >= 0 && again) use(v, s.last, true);
    }
  }
  constexpr void use(value_id v, int node, bool backward) {
    if (last_use[v] > node) node = last_use[v];
    last_use[v] = node;
    read_in_backward[v] |= backward;
  }

  constexpr void place_parameters() {
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& p = g.parameters[i];
      at(p.v) = {space::weights, i};
      for (int k = 0; p.encoding != nullptr && k < p.encoding->count; ++k)
        at(p.arrays[k]) = {space::weights, i + k * max_parameters};
    }
  }

  /// Returns whether v must lie in its own memory, since the neighbours of the part read it there.
  constexpr bool leaves(value_id v) const {
    return v == g.d_stream || (v == g.outputs[0] && g.at(v).rank > 0);
  }
  constexpr void place_node(int i) {
    const node& n = g.at_node(i);
    if (aliases[i]) {
      const value_id from = n.in[op::redistribute_in::x], to = n.out[op::redistribute_out::y];
      if (!leaves(to) &&
          (n.when != phase::epilogue || finishes(to) < 0 || at(from).in == space::gradients)) {
        at(to) = at(from);
        storage_of[to] = storage_of[from];
        return;
      }
    }
    for (int k = 0; k < max_outputs; ++k) {
      const value_id v = n.out[k];
      if (v < 0) continue;
      const value& x = g.at(v);
      const std::int64_t bytes = aligned_bytes(local_bytes(g.ranks, x));
      if (x.is == role::gradient) {
        at(v) = gradient_of(x.grad_of);
      } else if (n.when == phase::epilogue && finishes(v) >= 0) {
        at(v) = {space::gradients, finishes(v)};
      } else if (n.when == phase::prologue || n.when == phase::epilogue) {
        at(v) = {space::derived, plan.derived};
        plan.derived += bytes;
      } else if (v == g.outputs[0] && x.rank > 0) {
        at(v) = {space::stream_out, 0};
      } else if (v == g.d_stream) {
        at(v) = {space::d_stream_in, 0};
      } else if (!in_backward(n.when) && (read_in_backward[v] || seen.has[v])) {
        at(v) = {space::saved, plan.saved};
        plan.saved += bytes;
        if (seen.has[v]) place_mirror(v, bytes);
      } else {
        place_working(i, n, k, v, bytes);
      }
    }
  }
  /// Places the mirror of v. Mirrors of one node's outputs lie one behind the other, as the outputs
  /// do, so that one copy fills them. The memory of the kernels that read them comes behind
  /// (place_rooms).
  constexpr void place_mirror(value_id v, std::int64_t bytes) {
    if (plan.mirror_count == max_mirrors) return; // verify_memory finds the lack
    plan.mirrors[plan.mirror_count++] = {v, plan.mirrored};
    plan.mirrored += bytes;
  }
  constexpr void place_rooms() {
    for (int k = 0; k < plan.mirror_count; ++k) {
      mirror& m = plan.mirrors[k];
      m.room = plan.mirrored;
      for (int i = 0; i < g.node_count; ++i) {
        const node& n = g.at_node(i);
        if (n.op->host_room == nullptr || n.op->seen < 0 || n.in[n.op->seen] != m.of) continue;
        const std::int64_t bytes = aligned_bytes(n.op->host_room(g, n));
        if (m.bytes < bytes) m.bytes = bytes;
      }
      plan.mirrored += m.bytes;
    }
  }
  constexpr void place_working(int i, const node& n, int k, value_id v, std::int64_t bytes) {
    at(v) = {space::working, 0};
    const int last = last_use[v] < i ? i : last_use[v]; // an unread value lives during its node
    if (k == 0 && n.op->in_place >= 0) {
      const value_id from = n.in[n.op->in_place];
      const std::int16_t b = from < 0 ? std::int16_t{-1} : storage_of[from];
      if (b >= 0 && at(from).in == space::working && storages[b].last == i &&
          storages[b].bytes == bytes && read_once(n, b)) {
        storages[b].last = last;
        storage_of[v] = b;
        return;
      }
    }
    storage_of[v] = static_cast<std::int16_t>(count);
    // A sum over trips has its memory from the first node of the first trip.
    const stretches& runs = in_backward(n.when) ? order.backward : order.forward;
    const int first = n.region >= 0 && n.op->accumulates ? runs.first_of(n.region) : i;
    storages[count++] = {v, first, last, bytes, -1};
  }
  /// Returns whether only one operand of n lies in this storage. A kernel that overwrites one
  /// operand may still read another.
  constexpr bool read_once(const node& n, std::int16_t b) const {
    int readers = 0;
    for (value_id v : n.in) readers += v >= 0 && storage_of[v] == b;
    return readers == 1;
  }
  /// Returns the value whose collected gradient becomes the finished gradient of parameter i, as it
  /// is or reduced in its place; or -1.
  constexpr value_id collects_for(int i) const {
    value_id v = g.parameters[i].gradient;
    while (v >= 0 && g.at(v).is != role::gradient) {
      const node_id made = g.at(v).producer;
      v = made >= 0 && aliases[made] ? g.at_node(made).in[op::redistribute_in::x] : value_id{-1};
    }
    return v < 0 ? value_id{-1} : g.at(v).grad_of;
  }
  /// Returns the memory in which the gradient of `leaf` is collected, which no other value shares.
  /// It is the gradient of the parameter where `leaf` is that parameter, as it is or converted
  /// without data movement, and no other value adds to its gradient.
  constexpr address gradient_of(value_id leaf) {
    const address a = at(leaf);
    if (a.in == space::weights && collects_for(static_cast<int>(a.offset)) == leaf)
      return {space::gradients, a.offset};
    address& d = leaf_gradient[leaf];
    if (d.in == space::none) {
      d = {space::derived_gradients, plan.derived_gradients};
      plan.derived_gradients += aligned_bytes(local_size(g.ranks, g.at(leaf)).n *
                                              size_of(accumulator_of(g.at(leaf).type)));
    }
    return d;
  }
  /// Returns the parameter whose finished gradient v is, or -1.
  constexpr int finishes(value_id v) const {
    for (int i = 0; i < g.parameter_count; ++i)
      if (g.parameters[i].gradient == v) return i;
    return -1;
  }

  /// The property by which storages are ordered before they are placed.
  enum class placing_order : std::uint8_t { size, breadth, area, time };

  constexpr std::int64_t key(const storage& b, placing_order how, const std::int64_t* live) const {
    switch (how) {
    case placing_order::size: return b.bytes;
    case placing_order::area: return b.bytes * (b.last - b.first + 1);
    case placing_order::time: return max_nodes - b.first;
    case placing_order::breadth: break;
    }
    std::int64_t most = 0;
    for (int i = b.first; i <= b.last && i < g.node_count; ++i)
      if (live[i] > most) most = live[i];
    return most;
  }

  /// The storages in the order in which they are placed.
  struct sequence {
    std::int16_t at[max_values]{};
  };
  struct offsets {
    std::int64_t at[max_values]{};
  };

  /// Returns the storages by falling keys, larger ones first among equals, else in the order of the
  /// nodes that make them. It is a merge sort.
  constexpr sequence sorted(placing_order how, const std::int64_t* live) const {
    std::int64_t keys[max_values]{};
    sequence order, merged;
    for (int i = 0; i < count; ++i)
      keys[i] = key(storages[i], how, live), order.at[i] = std::int16_t(i);
    for (int width = 1; width < count; width *= 2) {
      for (int from = 0, k = 0; from < count; from += 2 * width) {
        const int middle = from + width < count ? from + width : count,
                  end = from + 2 * width < count ? from + 2 * width : count;
        const std::int16_t *a = order.at + from, *b = order.at + middle;
        const std::int16_t *const a_end = b, *const b_end = order.at + end;
        for (; k < end; ++k)
          merged.at[k] = b == b_end || (a != a_end && keys[*a] > keys[*b]) ||
                                 (a != a_end && keys[*a] == keys[*b] &&
                                  storages[*a].bytes >= storages[*b].bytes)
                             ? *a++
                             : *b++;
      }
      order = merged;
    }
    return order;
  }

  /// Places all storages in this order. Returns the bytes that they need, and their offsets in
  /// `offset`.
  constexpr std::int64_t pack(const sequence& order, offsets& offset) const {
    struct placed {
      std::int64_t offset = 0, end = 0;
      int first = 0, last = 0;
    } beside[max_values]; // by rising offset; a plain array costs an evaluation fewer calls
    std::int64_t needed = 0;
    for (int i = 0; i < count; ++i) {
      const int id = order.at[i];
      const storage& b = storages[id];
      const int first = b.first, last = b.last;
      const std::int64_t bytes = b.bytes;
      std::int64_t at_offset = 0;
      for (const placed *o = beside, *end = beside + i; o != end; ++o)
        if (o->first <= last && first <= o->last) {
          if (o->offset - at_offset >= bytes) break;
          if (o->end > at_offset) at_offset = o->end;
        }
      offset.at[id] = at_offset;
      if (at_offset + bytes > needed) needed = at_offset + bytes;
      placed* o = beside + i;
      for (; o != beside && (o - 1)->offset > at_offset; --o) *o = *(o - 1);
      *o = {at_offset, at_offset + bytes, first, last};
    }
    return needed;
  }

  /// Returns how many orders are tried. The steps of one attempt grow with the square of the number
  /// of storages, and compilers limit the steps of a constant evaluation.
  constexpr int attempts() const { return count > 64 ? 1 : 4; }

  /// Tries several orders, improves each a few times, and keeps the best. The search ends when the
  /// storages need no more than what lives at once.
  constexpr void pack() {
    std::int64_t live[max_nodes]{};
    for (int j = 0; j < count; ++j) {
      const storage& b = storages[j];
      for (int i = b.first; i <= b.last && i < g.node_count; ++i) live[i] += b.bytes;
    }
    for (int i = 0; i < g.node_count; ++i)
      if (live[i] > plan.largest_live) plan.largest_live = live[i];
    offsets best;
    plan.working = -1;
    for (placing_order how :
         {placing_order::size, placing_order::breadth, placing_order::area, placing_order::time}) {
      sequence order = sorted(how, live);
      for (int round = 0; round < attempts() && plan.working != plan.largest_live; ++round) {
        offsets offset;
        const std::int64_t needed = pack(order, offset);
        if (plan.working < 0 || needed < plan.working) plan.working = needed, best = offset;
        if (needed == plan.largest_live) break;
        int top = count - 1; // the storage that reaches highest goes first in the next attempt
        while (top > 0 && offset.at[order.at[top]] + storages[order.at[top]].bytes != needed) --top;
        const std::int16_t moved = order.at[top];
        for (; top > 0; --top) order.at[top] = order.at[top - 1];
        order.at[0] = moved;
      }
    }
    for (int i = 0; i < g.value_count; ++i) {
      const std::int16_t b = storage_of[i];
      if (b >= 0 && plan.at[i].in == space::working) plan.at[i].offset = best.at[b];
    }
  }
};

} // namespace detail

/// Plans the memory of g, whose nodes run in this `order`.
constexpr memory_plan place_memory(const graph& g, const running_order& order) {
  detail::memory_planner p(g, order);
  p.find_uses();
  p.place_parameters();
  int inputs = 0;
  for (int i = 0; i < g.value_count; ++i)
    if (g.values[i].is == role::input) p.plan.at[i] = {space::input, inputs++};
  // prologue values first, since forward nodes read them
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).when == phase::prologue) p.place_node(i);
  for (int i = 0; i < g.node_count; ++i)
    if (g.at_node(i).when != phase::prologue) p.place_node(i);
  p.place_rooms();
  p.pack();
  return p.plan;
}
constexpr memory_plan place_memory(const graph& g) { return place_memory(g, running_order(g)); }

} // namespace mc
