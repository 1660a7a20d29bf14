// The two ways to call a kernel: with everything constant but the base addresses, or with
// everything read from a graph at run time.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/frame.hpp>
#include <megacpp/run/view.hpp>

#include <chrono>
#include <string>
#include <utility>

namespace mc {

namespace detail {
/// Product of local extents [from, to) of a value; negative counts from the end, to = 0 is the end.
constexpr std::int64_t span_of(const mesh& m, const value& v, int from, int to) {
  const int first = from < 0 ? v.rank + from : from, last = to <= 0 ? v.rank + to : to;
  std::int64_t n = 1;
  for (int i = first < 0 ? 0 : first; i < last; ++i) n *= local_extent(m, v, i);
  return n;
}
} // namespace detail

/// What both calls share: run-time state.
template <class Device> struct call_state {
  Device* dev = nullptr;
  frame* f = nullptr;
  node_slot* prepared = nullptr;

  Device& device() const { return *dev; }
  node_slot& slot() const { return *prepared; }
  std::byte* scratch() const { return f->scratch; }
  const run_constants& constants() const { return *f->constants; }
  int layer() const { return f->layer; }
  const coordinates& coordinate() const { return f->coordinate; }
  int trip() const { return f->trip; }
  communicator& comm() const { return *f->ranks; }
  std::byte* mirrors() const { return f->base[static_cast<unsigned>(space::mirror)]; }
};

/// Node N of a part that is a type with static constexpr members g, plan and index.
template <class Part, int N, class Device> struct compiled_call : call_state<Device> {
  static constexpr const node& n() { return Part::g.nodes[static_cast<unsigned>(N)]; }

  static constexpr bool has(int k) { return n().in[static_cast<unsigned>(k)] >= 0; }
  static constexpr const value& value_in(int k) {
    return Part::g.at(n().in[static_cast<unsigned>(k)]);
  }
  static constexpr const value& value_out(int k) {
    return Part::g.at(n().out[static_cast<unsigned>(k)]);
  }
  static constexpr const node& described() { return n(); }
  template <class A> static constexpr A attr() {
    static_assert(n().attr.template are<A>(), "the op's attributes are of another type");
    return n().attr.template as<A>();
  }
  static constexpr const mesh& ranks() { return Part::g.ranks; }
  static constexpr numerics sums() { return Part::g.sums; }
  template <int K, int From, int To> static constexpr auto in_span() {
    return fixed<detail::span_of(Part::g.ranks, value_in(K), From, To)>{};
  }
  template <int K, int From, int To> static constexpr auto out_span() {
    return fixed<detail::span_of(Part::g.ranks, value_out(K), From, To)>{};
  }
  static constexpr std::int64_t in_size(int k) { return local_size(Part::g.ranks, value_in(k)).n; }
  static constexpr std::int64_t in_rows(int k) {
    return detail::span_of(Part::g.ranks, value_in(k), 0, -1);
  }

  template <class U> U* at(value_id v) const {
    if (v < 0) return nullptr;
    return reinterpret_cast<U*>(
        resolve(Part::plan.at[static_cast<unsigned>(v)], *this->f, Part::index, sizeof(U)));
  }
  template <class U> const U* in(int k) const { return at<U>(n().in[static_cast<unsigned>(k)]); }
  template <class U> U* in_out(int k) const { return at<U>(n().in[static_cast<unsigned>(k)]); }
  template <class U> U* out(int k) const { return at<U>(n().out[static_cast<unsigned>(k)]); }
  /// The operand that the host reads, too (op_info::seen), and memory of the host beside it.
  template <class U> const U* mirrored() const {
    return reinterpret_cast<const U*>(this->mirrors() + seen().offset);
  }
  std::byte* host_room() const { return this->mirrors() + seen().room; }

  /// Global index of this rank's first element of dim i of a value.
  std::int64_t origin(const value& v, int i) const {
    return origin_of(ranks(), v, i, this->f->coordinate);
  }

private:
  static constexpr const mirror& seen() {
    return *Part::plan.mirror_of(n().in[static_cast<unsigned>(n().op->seen)]);
  }
};

/// A node of a graph that is known only now.
template <class Device> struct dynamic_call : call_state<Device> {
  const graph& g;
  const memory_plan& plan;
  int index;
  const node& n;

  dynamic_call(const call_state<Device>& s, const graph& graph_, const memory_plan& p, int part,
               const node& node_)
      : call_state<Device>(s), g(graph_), plan(p), index(part), n(node_) {}

  bool has(int k) const { return n.in[static_cast<unsigned>(k)] >= 0; }
  const value& value_in(int k) const { return g.at(n.in[static_cast<unsigned>(k)]); }
  const value& value_out(int k) const { return g.at(n.out[static_cast<unsigned>(k)]); }
  const node& described() const { return n; }
  template <class A> A attr() const {
    if (!n.attr.are<A>())
      throw error(exit_code::internal, std::string("the kernel of ") + n.op->name +
                                           " reads attributes of another type than the op names: "
                                           "read them as op_info::attributes says");
    return n.attr.as<A>();
  }
  const mesh& ranks() const { return g.ranks; }
  numerics sums() const { return g.sums; }
  template <int K, int From, int To> std::int64_t in_span() const {
    return detail::span_of(g.ranks, value_in(K), From, To);
  }
  template <int K, int From, int To> std::int64_t out_span() const {
    return detail::span_of(g.ranks, value_out(K), From, To);
  }
  std::int64_t in_size(int k) const { return local_size(g.ranks, value_in(k)).n; }
  std::int64_t in_rows(int k) const { return detail::span_of(g.ranks, value_in(k), 0, -1); }

  template <class U> U* at(value_id v) const {
    if (v < 0) return nullptr;
    return reinterpret_cast<U*>(
        resolve(plan.at[static_cast<unsigned>(v)], *this->f, index, sizeof(U)));
  }
  template <class U> const U* in(int k) const { return at<U>(n.in[static_cast<unsigned>(k)]); }
  template <class U> U* in_out(int k) const { return at<U>(n.in[static_cast<unsigned>(k)]); }
  template <class U> U* out(int k) const { return at<U>(n.out[static_cast<unsigned>(k)]); }
  /// The operand that the host reads, too (op_info::seen), and memory of the host beside it.
  template <class U> const U* mirrored() const {
    return reinterpret_cast<const U*>(this->mirrors() + seen().offset);
  }
  std::byte* host_room() const { return this->mirrors() + seen().room; }

  /// Global index of this rank's first element of dim i of a value.
  std::int64_t origin(const value& v, int i) const {
    return origin_of(ranks(), v, i, this->f->coordinate);
  }

private:
  const mirror& seen() const { return *plan.mirror_of(n.in[static_cast<unsigned>(n.op->seen)]); }
};

/// Clears what node n of a part adds into, once before its trips, unless it is a main grad, which
/// collects on purpose. The device does it, between launches. One function for all nodes.
[[gnu::noinline]] inline void clear_sums(device& on, const frame& f, const graph& g,
                                         const memory_plan& p, int part, const node& n) {
  if (f.trip > 0) return;
  for (const value_id v : n.out) {
    if (v < 0 || g.at(v).is != role::intermediate) continue;
    on.fill(resolve(p.at[static_cast<unsigned>(v)], f, part, size_of(g.at(v).type)), 0,
            local_bytes(g.ranks, g.at(v)));
  }
}

/// Starts the copies of what node n of a part has made to the mirrors that it has: of outputs that
/// lie side by side, one. One function for all nodes.
[[gnu::noinline]] inline void mirror_outputs(device& on, const frame& f, const graph& g,
                                             const memory_plan& p, int part, const node& n) {
  std::byte *to = nullptr, *from = nullptr;
  std::int64_t bytes = 0;
  const auto copy = [&] {
    if (bytes > 0) on.mirror(to, from, bytes);
  };
  for (const value_id v : n.out) {
    const mirror* const m = v < 0 ? nullptr : p.mirror_of(v);
    if (m == nullptr) continue;
    std::byte* const there = f.base[static_cast<unsigned>(space::mirror)] + m->offset;
    std::byte* const here = resolve(p.at[static_cast<unsigned>(v)], f, part, size_of(g.at(v).type));
    if (bytes == 0 || there - to != here - from) copy(), to = there, from = here;
    bytes = here - from + local_bytes(g.ranks, g.at(v));
  }
  copy();
}
/// Whether a node of a part makes what the host reads.
constexpr bool is_mirrored(const memory_plan& p, const node& n) {
  bool any = false;
  for (const value_id v : n.out) any = any || (v >= 0 && p.mirror_of(v) != nullptr);
  return any;
}

/// Launches what computes node i of g, and tells the clock, if there is one, how long it took.
template <class Device, class F>
void launch_node(Device& device, const graph& g, int i, step_clock* clock, F compute) {
  using watch = std::chrono::steady_clock; // one call of the kernel, so that it is compiled once
  const watch::time_point start = clock != nullptr ? watch::now() : watch::time_point();
  device.launch(g.at_node(i), compute);
  if (clock != nullptr)
    clock->node(g, i,
                std::chrono::duration_cast<std::chrono::nanoseconds>(watch::now() - start).count());
}

/// The type operand of a node: an input, whose dtype selects the kernel.
constexpr dtype type_of_node(const graph& g, const node& n) {
  return g.at(n.in[static_cast<unsigned>(n.op->typed_by)]).type;
}

/// True when the node moves nothing: its output is another name of its input.
constexpr bool is_alias(const memory_plan& p, const node& n) {
  return p.renames(n) && n.attr.as<op::transition>().by() == collective::none;
}

} // namespace mc
