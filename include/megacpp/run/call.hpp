// The two calls of a kernel: one in which everything but base addresses is constant, and one in
// which everything is read from a graph at run time.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/frame.hpp>
#include <megacpp/run/view.hpp>

#include <string>
#include <utility>

namespace mc {

namespace detail {
/// Returns the product of the local extents of dims [from, to) of a value. A negative `from` counts
/// from the end, and to = 0 is the end.
constexpr std::int64_t span_of(const mesh& m, const value& v, int from, int to) {
  const int first = from < 0 ? v.rank + from : from, last = to <= 0 ? v.rank + to : to;
  std::int64_t n = 1;
  for (int i = first < 0 ? 0 : first; i < last; ++i) n *= local_extent(m, v, i);
  return n;
}
} // namespace detail

/// Returns the element type by which a node's kernel is chosen: that of the operand
/// op_info::typed_by.
constexpr dtype type_of_node(const graph& g, const node& n) {
  return g.at(n.in[static_cast<unsigned>(n.op->typed_by)]).type;
}

/// Refuses, for both calls, to read an output as an input. require_output refuses the opposite.
template <class Name> constexpr void require_input() {
  static_assert(!Name::output,
                "MEGA-B003 a kernel reads an output as an input: ask for it by c.out");
}
template <class Name> constexpr void require_output() {
  static_assert(Name::output,
                "MEGA-B003 a kernel writes an input as an output: ask for it by c.in_out");
}
/// Tells whether an operand's name in the op's list fixes its type.
template <class Name> inline constexpr bool has_one_type =
    Name::is != element::bytes&& Name::is != element::converted&& Name::is != element::moment;
/// Returns whether a value has the element type that the operand's name fixes.
template <class Name, class T> constexpr bool is_named(const value& v) {
  if constexpr (has_one_type<Name>) return v.type == dtype_of<element_t<Name, T>>;
  else return true;
}
/// Returns the scratch value that the rule of a node's op has declared, or -1.
constexpr value_id scratch_of(const graph& g, const node& n) {
  for (const value_id v : n.out)
    if (v >= 0 && g.at(v).is == role::scratch) return v;
  return -1;
}

/// The number of host threads up to which the memory that kernels need is counted (fits).
inline constexpr int most_threads = 64;

/// Returns whether the bodies of a device are instantiated for constant extents.
template <class Device> constexpr bool takes_constants() {
  if constexpr (requires { Device::takes_constants; }) return Device::takes_constants;
  else return true;
}

/// The run-time state that both calls share.
template <class Device> struct call_state {
  using device_type = Device;
  using lane_type = typename Device::lane_type;
  Device* dev = nullptr;
  frame* f = nullptr;
  prepared_node* node_state = nullptr;

  Device& device() const { return *dev; }
  prepared_node& prepared() const { return *node_state; }
  /// Returns the number of the device's threads; without a device, as in a plan, the largest
  /// number.
  constexpr int threads() const { return dev != nullptr ? dev->threads() : most_threads; }
  /// Returns the scratch bytes that the device's library needs for a fused attention; without a
  /// device, as in a plan, the largest number.
  constexpr std::int64_t attention_scratch(const fused_attention_shape& s) const {
    if (dev == nullptr) return Device::most_attention_scratch(s);
    const attention_source* const of = dev->attention();
    return of == nullptr ? 0 : of->scratch(s);
  }
  const prepared_product& product(int k) const {
    return *static_cast<const prepared_product*>(node_state->plan[static_cast<unsigned>(k)]);
  }
  lane_type& lane() const { return *static_cast<lane_type*>(f->on); }
  std::byte* scratch() const { return f->on->scratch(); }
  const run_constants& constants() const { return *f->constants; }
  int layer() const { return f->layer; }
  const coordinates& coordinate() const { return f->coordinate; }
  int trip() const { return f->trip; }
  communicator& comm() const { return *f->ranks; }
  std::byte* mirrors() const { return f->base[static_cast<unsigned>(space::mirror)]; }
};

/// A node of a part that is a type with static constexpr members g, plan and index. Everything
/// about the node is constant, and a kernel that asks for something wrong fails an assertion.
template <class Part, int N> struct constant_node {
  using type = mc::type_of<type_of_node(Part::g, Part::g.nodes[static_cast<unsigned>(N)])>;

  static constexpr const mc::graph& graph() { return Part::g; }
  static constexpr const memory_plan& plan() { return Part::plan; }
  static constexpr int part() { return Part::index; }
  static constexpr const node& described() { return Part::g.nodes[static_cast<unsigned>(N)]; }

  template <class A> static constexpr A attr(type_tag<A>) {
    static_assert(described().attr.template are<A>(), "the op's attributes are of another type");
    return described().attr.template as<A>();
  }
  template <class Name, int From, int To> static constexpr auto span(Name, dim_range<From, To>) {
    return fixed<detail::span_of(Part::g.ranks, Part::g.at(id<Name>()), From, To)>{};
  }

protected:
  template <class Name> static constexpr value_id id() {
    constexpr const node& n = described();
    constexpr bool own = (Name::output ? n.op->operands.out : n.op->operands.in) ==
                         &detail::tag_of_list<typename Name::list>;
    static_assert(own,
                  "MEGA-B003 a kernel asks for an operand by the name of another op's: name it as "
                  "op_info::operands does");
    constexpr value_id there = Name::output ? n.out[Name::at] : n.in[Name::at];
    // Scratch lies where an output is that the node lacks, as the gradient of a frozen table.
    constexpr value_id v =
        there >= 0 && Part::g.at(there).is == role::scratch ? value_id{-1} : there;
    static_assert(
        !own || v < 0 || is_named<Name, type>(Part::g.at(v)),
        "MEGA-B003 a kernel's operand has other elements than its name says: give the name "
        "the elements that the op's rule asks for");
    return v;
  }
  template <class Name> static constexpr void require_seen() {
    static_assert(Name::at == described().op->seen,
                  "MEGA-B003 a kernel reads a mirror that its op does not ask for: say so by "
                  "op_info::seen");
  }
};

/// A node of a graph that is known at run time only.
class node_of_graph {
public:
  node_of_graph(const mc::graph& g, const memory_plan& p, int part, const node& n)
      : g_(g), plan_(p), part_(part), n_(n) {}
  const mc::graph& graph() const { return g_; }
  const memory_plan& plan() const { return plan_; }
  int part() const { return part_; }
  const node& described() const { return n_; }

  template <class A> A attr(type_tag<A>) const {
    if (!n_.attr.template are<A>())
      wrong("attributes of another type than the op names: read them as op_info::attributes says");
    return n_.attr.template as<A>();
  }

protected:
  [[noreturn, gnu::cold, gnu::noinline]] void wrong(const char* what) const {
    throw error(exit_code::internal,
                std::string("the kernel of ") + n_.op->name + " reads " + what);
  }

private:
  const mc::graph& g_;
  const memory_plan& plan_;
  int part_;
  const node& n_;
};
/// A node of a graph that is known at run time only, for a kernel of elements of type T. A kernel
/// that asks for something wrong gets an exception.
template <class T> struct typed_node : node_of_graph {
  using type = T;
  explicit typed_node(const node_of_graph& of) : node_of_graph(of) {}

  template <class Name, int From, int To> std::int64_t span(Name, dim_range<From, To>) const {
    return detail::span_of(graph().ranks, graph().at(id<Name>()), From, To);
  }

protected:
  template <class Name> value_id id() const {
    const node& n = described();
    if ((Name::output ? n.op->operands.out : n.op->operands.in) !=
        &detail::tag_of_list<typename Name::list>)
      wrong("an operand by the name of another op's: name it as op_info::operands does");
    value_id v = -1;
    if constexpr (Name::output) v = n.out[Name::at];
    else v = n.in[Name::at];
    if constexpr (has_one_type<Name>) require_type(v, dtype_of<element_t<Name, T>>);
    return v;
  }
  template <class Name> void require_seen() const {
    if (Name::at != described().op->seen)
      wrong("a mirror that the op does not ask for by op_info::seen");
  }

private:
  [[gnu::noinline]] void require_type(value_id v, dtype of_name) const {
    if (v >= 0 && graph().at(v).type != of_name)
      wrong("an operand of other elements than its name says");
  }
};

/// The argument of a kernel: run-time state, and a node that is constant or known at run time only.
template <class Device, class Node> struct node_call : call_state<Device>, Node {
  using type = typename Node::type;

  constexpr node_call() = default;
  template <class Of> explicit node_call(const call_state<Device>& s, const Of& of)
      : call_state<Device>(s), Node(of) {}

  /// Returns a constant if the node has one and the device's bodies take constants.
  template <class Name, int From, int To>
  constexpr auto span(Name k, dim_range<From, To> of) const {
    if constexpr (takes_constants<Device>()) return Node::span(k, of);
    else return std::int64_t{Node::span(k, of)};
  }
  constexpr const mesh& ranks() const { return this->graph().ranks; }
  constexpr numerics sums() const { return this->graph().sums; }

  template <class Name> constexpr bool has(Name) const { return id_of<Name>() >= 0; }
  template <class Name> constexpr const value& value_of(Name) const {
    return this->graph().at(id_of<Name>());
  }
  template <class Name> constexpr std::int64_t size(Name k) const {
    return local_size(ranks(), value_of(k)).n;
  }
  template <class Name> constexpr std::int64_t rows(Name k) const {
    return detail::span_of(ranks(), value_of(k), 0, -1);
  }
  template <class Name> const element_t<Name, type>* in(Name) const {
    require_input<Name>();
    return at<element_t<Name, type>>(id_of<Name>());
  }
  template <class Name> element_t<Name, type>* in_out(Name) const {
    require_input<Name>();
    return at<element_t<Name, type>>(id_of<Name>());
  }
  template <class Name> element_t<Name, type>* out(Name) const {
    require_output<Name>();
    return at<element_t<Name, type>>(id_of<Name>());
  }
  template <class Name, class F> void each_from(Name, F f) const {
    require_input<Name>(), static_cast<void>(id_of<Name>());
    const node& n = this->described();
    for (auto k = static_cast<unsigned>(Name::at); k < max_inputs; ++k)
      if (n.in[k] >= 0) f(at<element_t<Name, type>>(n.in[k]));
  }
  std::byte* declared_scratch() const {
    return at<std::byte>(scratch_of(this->graph(), this->described()));
  }
  template <class Name> const element_t<Name, type>* mirrored(Name) const {
    require_input<Name>(), static_cast<void>(id_of<Name>());
    this->template require_seen<Name>();
    return reinterpret_cast<const element_t<Name, type>*>(this->mirrors() + seen().offset);
  }
  std::byte* host_room() const { return this->mirrors() + seen().room; }

  /// Returns the global index of this rank's first element along dim i of a value.
  std::int64_t origin(const value& v, int i) const {
    return origin_of(ranks(), v, i, this->f->coordinate);
  }

private:
  template <class Name> constexpr value_id id_of() const { return this->template id<Name>(); }
  template <class U> U* at(value_id v) const {
    if (v < 0) return nullptr;
    return reinterpret_cast<U*>(resolve(this->plan().at[static_cast<unsigned>(v)], *this->f,
                                        this->part(), size_of(this->graph().at(v).type)));
  }
  const mirror& seen() const {
    const node& n = this->described();
    return *this->plan().mirror_of(n.in[static_cast<unsigned>(n.op->seen)]);
  }
};

/// The argument of the kernel of node N of a part.
template <class Part, int N, class Device> using compiled_call =
    node_call<Device, constant_node<Part, N>>;
/// The argument of a kernel whose element type is not chosen yet.
template <class Device> struct dynamic_node : call_state<Device>, node_of_graph {
  dynamic_node(const call_state<Device>& s, const mc::graph& g, const memory_plan& p, int part,
               const node& n)
      : call_state<Device>(s), node_of_graph(g, p, part, n) {}
};
/// The argument of a kernel for elements of type T.
template <class Device, class T> struct dynamic_call : node_call<Device, typed_node<T>> {
  explicit dynamic_call(const dynamic_node<Device>& of)
      : node_call<Device, typed_node<T>>(of, static_cast<const node_of_graph&>(of)) {}
};

/// Clears the outputs that node n of a part adds into, once before the trips of its region. Main
/// grads are left, since they collect sums on purpose. The lane clears them between launches. All
/// nodes share this function.
[[gnu::noinline]] inline void clear_sums(const frame& f, const graph& g, const memory_plan& p,
                                         int part, const node& n) {
  if (f.trip > 0) return;
  for (const value_id v : n.out) {
    if (v < 0 || g.at(v).is != role::intermediate) continue;
    f.on->fill(resolve(p.at[static_cast<unsigned>(v)], f, part, size_of(g.at(v).type)), 0,
               local_bytes(g.ranks, g.at(v)));
  }
}

/// Starts copying the outputs of node n of a part to their mirrors, with one copy for outputs that
/// lie side by side. The frame's mirror event comes when the copies are done. All nodes share this
/// function.
[[gnu::noinline]] inline void mirror_outputs(const frame& f, const graph& g, const memory_plan& p,
                                             int part, const node& n) {
  std::byte *to = nullptr, *from = nullptr;
  std::int64_t bytes = 0;
  const auto copy = [&] {
    if (bytes > 0) f.on->mirror(to, from, bytes);
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
  f.mirrored->record(*f.on);
}
/// Waits for the mirror that a node's kernel reads.
inline void await_seen(const frame& f, const memory_plan& p, const node& n) {
  if (n.op->seen < 0) return;
  const value_id v = n.in[static_cast<unsigned>(n.op->seen)];
  if (v >= 0 && p.mirror_of(v) != nullptr) f.mirrored->wait();
}
/// Returns whether the host reads an output of a node.
constexpr bool is_mirrored(const memory_plan& p, const node& n) {
  bool any = false;
  for (const value_id v : n.out) any = any || (v >= 0 && p.mirror_of(v) != nullptr);
  return any;
}

/// Launches the kernel of node i of g, between two events if times are taken.
template <class Lane, class F> void launch_node(Lane& on, const frame& f, const graph& g, int i,
                                                F compute) { // called once, for compile time
  if (f.times != nullptr) f.times->node_begins(on);
  on.launch(g.at_node(i), compute);
  if (f.times != nullptr) f.times->node_ends(on, g, i);
}

/// Returns whether the node moves nothing: its output is another name of its input.
constexpr bool is_alias(const memory_plan& p, const node& n) {
  return p.renames(n) && n.attr.as<op::transition>().by() == collective::none;
}

} // namespace mc
