// The two ways to call a kernel: with everything constant but the base addresses, or with
// everything read from a graph at run time.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/frame.hpp>
#include <megacpp/run/view.hpp>

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

/// The type operand of a node: an input, whose dtype selects the kernel.
constexpr dtype type_of_node(const graph& g, const node& n) {
  return g.at(n.in[static_cast<unsigned>(n.op->typed_by)]).type;
}

/// One assertion for both calls.
template <class Name> constexpr void require_input() {
  static_assert(!Name::output,
                "MEGA-B003 a kernel reads an output as an input: ask for it by c.out");
}
template <class Name> constexpr void require_output() {
  static_assert(Name::output,
                "MEGA-B003 a kernel writes an input as an output: ask for it by c.in_out");
}
/// Whether a name says what type an operand has.
template <class Name> inline constexpr bool has_one_type =
    Name::is != element::bytes&& Name::is != element::converted;
/// Whether a value has the elements that its name says.
template <class Name, class T> constexpr bool is_named(const value& v) {
  if constexpr (has_one_type<Name>) return v.type == dtype_of<element_t<Name, T>>;
  else return true;
}
/// The scratch that the rule of a node's op has declared, or -1.
constexpr value_id scratch_of(const graph& g, const node& n) {
  for (const value_id v : n.out)
    if (v >= 0 && g.at(v).is == role::scratch) return v;
  return -1;
}

/// Threads of the host for which what kernels need is bounded (fits).
inline constexpr int most_threads = 64;

/// What both calls share: run-time state.
template <class Device> struct call_state {
  using device_type = Device;
  using lane_type = typename Device::lane_type;
  Device* dev = nullptr;
  frame* f = nullptr;
  node_slot* prepared = nullptr;

  Device& device() const { return *dev; }
  node_slot& slot() const { return *prepared; }
  /// The device's threads, or, where a plan is made without a device, the most that it is made for.
  constexpr int threads() const { return dev != nullptr ? dev->threads() : most_threads; }
  const prepared_product& product(int k) const {
    return *static_cast<const prepared_product*>(prepared->plan[static_cast<unsigned>(k)]);
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

/// Node N of a part that is a type with static constexpr members g, plan and index.
template <class Part, int N, class Device> struct compiled_call : call_state<Device> {
  static constexpr const node& n() { return Part::g.nodes[static_cast<unsigned>(N)]; }
  using type = mc::type_of<type_of_node(Part::g, Part::g.nodes[static_cast<unsigned>(N)])>;

  static constexpr const node& described() { return n(); }
  template <class A> static constexpr A attr(type_tag<A>) {
    static_assert(n().attr.template are<A>(), "the op's attributes are of another type");
    return n().attr.template as<A>();
  }
  static constexpr const mesh& ranks() { return Part::g.ranks; }
  static constexpr numerics sums() { return Part::g.sums; }

  template <class Name> static constexpr bool has(Name) { return id<Name>() >= 0; }
  template <class Name> static constexpr const value& value_of(Name) {
    return Part::g.at(id<Name>());
  }
  template <class Name, int From, int To> static constexpr auto span(Name, dim_range<From, To>) {
    return fixed<detail::span_of(Part::g.ranks, Part::g.at(id<Name>()), From, To)>{};
  }
  template <class Name> static constexpr std::int64_t size(Name k) {
    return local_size(Part::g.ranks, value_of(k)).n;
  }
  template <class Name> static constexpr std::int64_t rows(Name k) {
    return detail::span_of(Part::g.ranks, value_of(k), 0, -1);
  }
  template <class Name> const element_t<Name, type>* in(Name) const {
    require_input<Name>();
    return at<element_t<Name, type>>(id<Name>());
  }
  template <class Name> element_t<Name, type>* in_out(Name) const {
    require_input<Name>();
    return at<element_t<Name, type>>(id<Name>());
  }
  template <class Name> element_t<Name, type>* out(Name) const {
    require_output<Name>();
    return at<element_t<Name, type>>(id<Name>());
  }
  template <class Name, class F> void each_from(Name, F f) const {
    require_input<Name>(), static_cast<void>(id<Name>());
    for (auto k = static_cast<unsigned>(Name::at); k < max_inputs; ++k)
      if (n().in[k] >= 0) f(at<element_t<Name, type>>(n().in[k]));
  }
  std::byte* declared_scratch() const { return at<std::byte>(scratch_of(Part::g, n())); }
  template <class Name> const element_t<Name, type>* mirrored(Name) const {
    static_assert(Name::at == n().op->seen,
                  "MEGA-B003 a kernel reads a mirror that its op does not ask for: say so by "
                  "op_info::seen");
    require_input<Name>(), static_cast<void>(id<Name>());
    return reinterpret_cast<const element_t<Name, type>*>(this->mirrors() + seen().offset);
  }
  std::byte* host_room() const { return this->mirrors() + seen().room; }

  /// Global index of this rank's first element of dim i of a value.
  std::int64_t origin(const value& v, int i) const {
    return origin_of(ranks(), v, i, this->f->coordinate);
  }

private:
  template <class Name> static constexpr value_id id() {
    constexpr bool own = (Name::output ? n().op->operands.out : n().op->operands.in) ==
                         &detail::tag_of_list<typename Name::list>;
    static_assert(own,
                  "MEGA-B003 a kernel asks for an operand by the name of another op's: name it as "
                  "op_info::operands does");
    constexpr value_id v = Name::output ? n().out[Name::at] : n().in[Name::at];
    static_assert(
        !own || v < 0 || is_named<Name, type>(Part::g.at(v)),
        "MEGA-B003 a kernel's operand has other elements than its name says: give the name "
        "the elements that the op's rule asks for");
    return v;
  }
  template <class U> U* at(value_id v) const {
    if (v < 0) return nullptr;
    return reinterpret_cast<U*>(resolve(Part::plan.at[static_cast<unsigned>(v)], *this->f,
                                        Part::index, size_of(Part::g.at(v).type)));
  }
  static constexpr const mirror& seen() {
    return *Part::plan.mirror_of(n().in[static_cast<unsigned>(n().op->seen)]);
  }
};

/// A node of a graph that is known only now.
template <class Device> struct dynamic_node : call_state<Device> {
  const graph& g;
  const memory_plan& plan;
  int index;
  const node& n;

  dynamic_node(const call_state<Device>& s, const graph& graph_, const memory_plan& p, int part,
               const node& node_)
      : call_state<Device>(s), g(graph_), plan(p), index(part), n(node_) {}
};
/// The same as a call of the kernel for elements of type T.
template <class Device, class T> struct dynamic_call : dynamic_node<Device> {
  using type = T;
  using dynamic_node<Device>::g, dynamic_node<Device>::n;

  explicit dynamic_call(const dynamic_node<Device>& of) : dynamic_node<Device>(of) {}

  const node& described() const { return n; }
  template <class A> A attr(type_tag<A>) const {
    if (!n.attr.template are<A>())
      wrong("attributes of another type than the op names: read them as op_info::attributes says");
    return n.attr.template as<A>();
  }
  const mesh& ranks() const { return g.ranks; }
  numerics sums() const { return g.sums; }

  template <class Name> bool has(Name) const { return id<Name>() >= 0; }
  template <class Name> const value& value_of(Name) const { return g.at(id<Name>()); }
  template <class Name, int From, int To> std::int64_t span(Name, dim_range<From, To>) const {
    return detail::span_of(g.ranks, g.at(id<Name>()), From, To);
  }
  template <class Name> std::int64_t size(Name k) const {
    return local_size(g.ranks, value_of(k)).n;
  }
  template <class Name> std::int64_t rows(Name k) const {
    return detail::span_of(g.ranks, value_of(k), 0, -1);
  }
  template <class Name> const element_t<Name, T>* in(Name) const {
    require_input<Name>();
    return at<element_t<Name, T>>(id<Name>());
  }
  template <class Name> element_t<Name, T>* in_out(Name) const {
    require_input<Name>();
    return at<element_t<Name, T>>(id<Name>());
  }
  template <class Name> element_t<Name, T>* out(Name) const {
    require_output<Name>();
    return at<element_t<Name, T>>(id<Name>());
  }
  template <class Name, class F> void each_from(Name, F f) const {
    require_input<Name>(), static_cast<void>(id<Name>());
    for (auto k = static_cast<unsigned>(Name::at); k < max_inputs; ++k)
      if (n.in[k] >= 0) f(at<element_t<Name, T>>(n.in[k]));
  }
  std::byte* declared_scratch() const { return at<std::byte>(scratch_of(g, n)); }
  template <class Name> const element_t<Name, T>* mirrored(Name) const {
    require_input<Name>(), static_cast<void>(id<Name>());
    if (Name::at != n.op->seen) wrong("a mirror that the op does not ask for by op_info::seen");
    return reinterpret_cast<const element_t<Name, T>*>(this->mirrors() + seen().offset);
  }
  std::byte* host_room() const { return this->mirrors() + seen().room; }

  /// Global index of this rank's first element of dim i of a value.
  std::int64_t origin(const value& v, int i) const {
    return origin_of(ranks(), v, i, this->f->coordinate);
  }

private:
  template <class Name> value_id id() const {
    if ((Name::output ? n.op->operands.out : n.op->operands.in) !=
        &detail::tag_of_list<typename Name::list>)
      wrong("an operand by the name of another op's: name it as op_info::operands does");
    value_id v = -1;
    if constexpr (Name::output) v = n.out[Name::at];
    else v = n.in[Name::at];
    if constexpr (has_one_type<Name>) require_type(v, dtype_of<element_t<Name, T>>);
    return v;
  }
  [[gnu::noinline]] void require_type(value_id v, dtype of_name) const {
    if (v >= 0 && g.at(v).type != of_name) wrong("an operand of other elements than its name says");
  }
  [[noreturn, gnu::cold, gnu::noinline]] void wrong(const char* what) const {
    throw error(exit_code::internal, std::string("the kernel of ") + n.op->name + " reads " + what);
  }
  template <class U> U* at(value_id v) const {
    if (v < 0) return nullptr;
    return reinterpret_cast<U*>(resolve(this->plan.at[static_cast<unsigned>(v)], *this->f,
                                        this->index, size_of(g.at(v).type)));
  }
  const mirror& seen() const {
    return *this->plan.mirror_of(n.in[static_cast<unsigned>(n.op->seen)]);
  }
};

/// Clears what node n of a part adds into, once before its trips, unless it is a main grad, which
/// collects on purpose. The lane does it, between launches. One function for all nodes.
[[gnu::noinline]] inline void clear_sums(const frame& f, const graph& g, const memory_plan& p,
                                         int part, const node& n) {
  if (f.trip > 0) return;
  for (const value_id v : n.out) {
    if (v < 0 || g.at(v).is != role::intermediate) continue;
    f.on->fill(resolve(p.at[static_cast<unsigned>(v)], f, part, size_of(g.at(v).type)), 0,
               local_bytes(g.ranks, g.at(v)));
  }
}

/// Starts the copies of what node n of a part has made to the mirrors that it has: of outputs that
/// lie side by side, one. The frame's event comes when they are there. One function for all nodes.
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
  f.on->record(*f.mirrored);
}
/// Waits for the mirror that a node's kernel reads, unless its region has: what the node makes that
/// says how often the region runs comes in one copy.
inline void await_seen(const frame& f, const graph& g, const memory_plan& p, const node& n) {
  if (n.op->seen < 0) return;
  const value_id v = n.in[static_cast<unsigned>(n.op->seen)];
  if (n.region >= 0 && v >= 0 &&
      g.at(v).producer == g.at(g.regions[static_cast<unsigned>(n.region)].trips).producer)
    return;
  if (v >= 0 && p.mirror_of(v) != nullptr) f.mirrored->wait();
}
/// Whether a node of a part makes what the host reads.
constexpr bool is_mirrored(const memory_plan& p, const node& n) {
  bool any = false;
  for (const value_id v : n.out) any = any || (v >= 0 && p.mirror_of(v) != nullptr);
  return any;
}

/// Launches what computes node i of g, between two events if the frame's times are taken.
template <class Lane, class F> void launch_node(Lane& on, const frame& f, const graph& g, int i,
                                                F compute) { // is called once, for compile time
  if (f.times != nullptr) f.times->node_begins(on);
  on.launch(g.at_node(i), compute);
  if (f.times != nullptr) f.times->node_ends(on, g, i);
}

/// True when the node moves nothing: its output is another name of its input.
constexpr bool is_alias(const memory_plan& p, const node& n) {
  return p.renames(n) && n.attr.as<op::transition>().by() == collective::none;
}

} // namespace mc
