// The compiled executor: a fold over the nodes of a part, each of which is a function of constant
// shapes.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/exec/default_device.hpp>
#include <megacpp/run/call.hpp>
#include <megacpp/run/interpreted_part.hpp>
#include <megacpp/run/program.hpp>
#include <megacpp/run/rank_program.hpp>

namespace mc {

namespace detail {
template <class Run> struct named_device { using type = default_device; };
template <class Run>
requires requires { typename Run::device; }
struct named_device<Run> {
  using type = typename Run::device;
};
} // namespace detail
/// The device of a run, by default default_device (run/members.hpp).
template <class Run> using device_of = typename detail::named_device<Run>::type;

namespace detail {

/// The element type of the kernel of node N.
template <class Part, int N> using element_of =
    mc::type_of<type_of_node(Part::g, Part::g.nodes[static_cast<unsigned>(N)])>;

/// Tells whether the device has a kernel of node N's op for its element type.
template <class Part, int N, class Device>
inline constexpr bool has_kernel = requires(compiled_call<Part, N, Device>& c) {
  kernel_on<Part::g.nodes[static_cast<unsigned>(N)].op, Device>::template run<element_of<Part, N>>(
      c);
};

/// Returns MEGA-B001 for the first node of a part that has no kernel.
template <class Part, class Device> constexpr fault_record missing_kernel() {
  fault_record wrong;
  [&]<int... N>(std::integer_sequence<int, N...>) {
    (
        [&] {
          constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
          if constexpr (!has_kernel<Part, N, Device>)
            record(wrong, Part::g, fault::B001, n.line, n.op->name, n.in[0]);
        }(),
        ...);
  }
  (std::make_integer_sequence<int, Part::g.node_count>{});
  return wrong;
}

/// The matrix products of node N.
template <class Part, int N, class Device> inline constexpr product_list products_of_node =
    products_of<kernel_on<Part::g.nodes[static_cast<unsigned>(N)].op, Device>, element_of<Part, N>>(
        compiled_call<Part, N, Device>{});

/// Adds the most memory that the kernel of node N needs.
template <class Part, int N, class Device> constexpr void add_room(kernel_rooms& to) {
  constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
  if constexpr (!is_alias(Part::plan, n) && has_kernel<Part, N, Device>) {
    using kernel = kernel_on<n.op, Device>;
    using T = element_of<Part, N>;
    const compiled_call<Part, N, Device> c{};
    to.add(room_of_node<kernel, T>(c, products_of_node<Part, N, Device>),
           table_of_node<kernel, T>(c));
  }
}
template <class Part, class Device> constexpr void add_rooms(kernel_rooms& to) {
  [&]<int... N>(std::integer_sequence<int, N...>) { (add_room<Part, N, Device>(to), ...); }
  (std::make_integer_sequence<int, Part::g.node_count>{});
}
/// The most memory that the kernels of a program need.
template <class Program, class Device> constexpr kernel_room most_room = [] {
  kernel_rooms all;
  [&]<int... K>(std::integer_sequence<int, K...>) {
    (add_rooms<typename Program::template part<K>, Device>(all), ...);
  }
  (std::make_integer_sequence<int, Program::kinds + 2>{});
  add_rooms<typename Program::evaluation, Device>(all);
  add_rooms<typename Program::update, Device>(all);
  add_rooms<typename Program::totals, Device>(all);
  return all.most();
}();

/// The source of one report: the first node of a program without a kernel, or else the lack of
/// memory for what its kernels need.
template <class Program, class Device> struct kernels_found {
  static constexpr fault_record missing = []<int... K>(std::integer_sequence<int, K...>) {
    const fault_record found[] = {missing_kernel<typename Program::template part<K>, Device>()...,
                                  missing_kernel<typename Program::evaluation, Device>(),
                                  missing_kernel<typename Program::update, Device>(),
                                  missing_kernel<typename Program::totals, Device>()};
    for (const fault_record& f : found)
      if (f.code != fault::none) return f;
    return fault_record{};
  }
  (std::make_integer_sequence<int, Program::kinds + 2>{});
  static constexpr fault_record wrong = [] {
    if constexpr (missing.code != fault::none || Program::members::device_memory() < 0)
      return missing;
    else return Program::fault_of_memory(most_room<Program, Device>);
  }();
};

template <class Part, int N, class Device>
void run_node(Device& device, frame& f, prepared_node* prepared) {
  constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
  if constexpr (!is_alias(Part::plan, n) && has_kernel<Part, N, Device>) {
    using T = element_of<Part, N>;
    compiled_call<Part, N, Device> c;
    c.dev = &device, c.f = &f, c.node_state = prepared + N;
    if constexpr (n.op->accumulates) clear_sums(f, Part::g, Part::plan, Part::index, n);
    if constexpr (n.op->seen >= 0) await_seen(f, Part::plan, n);
    launch_node(c.lane(), f, Part::g, N, [&] { kernel_on<n.op, Device>::template run<T>(c); });
    if constexpr (is_mirrored(Part::plan, n))
      mirror_outputs(f, Part::g, Part::plan, Part::index, n);
  }
}

template <class Part, int N, class Device>
void prepare_node(Device& device, prepared_node* prepared) {
  constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
  if constexpr (!is_alias(Part::plan, n) && has_kernel<Part, N, Device>) {
    using kernel = kernel_on<n.op, Device>;
    using T = element_of<Part, N>;
    using call = compiled_call<Part, N, Device>;
    constexpr const product_list& products = products_of_node<Part, N, Device>;
    if constexpr (products.count > 0 || requires(call & c) { kernel::template prepare<T>(c); }) {
      call c;
      c.dev = &device, c.node_state = prepared + N;
      prepare_kernel<kernel, T>(c, products);
    }
  }
}

template <class Part, int N, class Device> std::int64_t scratch_of_node(Device& device) {
  constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
  if constexpr (!is_alias(Part::plan, n) && has_kernel<Part, N, Device>) {
    using T = element_of<Part, N>;
    compiled_call<Part, N, Device> c;
    c.dev = &device;
    if constexpr (requires { kernel_on<n.op, Device>::template scratch_bytes<T>(c); })
      return kernel_on<n.op, Device>::template scratch_bytes<T>(c);
  }
  return 0;
}

/// Runs those of the nodes From ... To-1 that belong to phases First to Last.
template <class Part, int From, int To, phase First, phase Last, class Device>
void run_nodes(Device& device, frame& f, prepared_node* prepared) {
  [&]<int... N>(std::integer_sequence<int, N...>) {
    (
        [&] {
          if constexpr (phases(First, Last).holds(Part::g.nodes[From + N].when))
            run_node<Part, From + N>(device, f, prepared);
        }(),
        ...);
  }
  (std::make_integer_sequence<int, To - From>{});
}
/// Runs the forward nodes of a region that must run again before each of several backward trips.
template <class Part, int Region, class Device>
void run_again(Device& device, frame& f, prepared_node* prepared) {
  [&]<int... N>(std::integer_sequence<int, N...>) {
    (
        [&] {
          if constexpr (Part::g.nodes[N].region == Region && Part::order.rerun.has(N))
            run_node<Part, N>(device, f, prepared);
        }(),
        ...);
  }
  (std::make_integer_sequence<int, Part::g.node_count>{});
}

/// Runs stretch S, and the ones behind it, of the nodes that belong to phases First to Last.
template <class Part, phase First, phase Last, int S, class Device>
void run_phases(Device& device, frame& f, prepared_node* prepared) {
  constexpr phases when(First, Last);
  if constexpr (S < Part::order.of(when).count) {
    constexpr stretch s = Part::order.of(when).at[S];
    if constexpr (s.region < 0) {
      run_nodes<Part, s.first, s.last, First, Last>(device, f, prepared);
    } else {
      for_trips(Part::g, Part::plan, f, s.region, [&](bool several) {
        if constexpr (is_backward(when))
          if (several) run_again<Part, s.region>(device, f, prepared);
        run_nodes<Part, s.first, s.last, First, Last>(device, f, prepared);
      });
    }
    run_phases<Part, First, Last, S + 1>(device, f, prepared);
  }
}

template <class Part, class Device>
void run_part(const part_view&, phases when, device& on, frame& f, prepared_node* prepared) {
  using enum phase;
  auto& d = static_cast<Device&>(on);
  switch (when.first) {
  case prologue: return run_phases<Part, prologue, prologue, 0>(d, f, prepared);
  case forward: return run_phases<Part, forward, forward, 0>(d, f, prepared);
  case input_gradient:
  case weight_gradient:
  case stream_gradient:
    if constexpr (Part::is_lowest)
      if (when == lowest_backward_pass)
        return run_phases<Part, input_gradient, weight_gradient, 0>(d, f, prepared);
    return run_phases<Part, input_gradient, stream_gradient, 0>(d, f, prepared);
  case epilogue: return run_phases<Part, epilogue, epilogue, 0>(d, f, prepared);
  }
}

/// Returns whether node N runs. Without `backward` the nodes of the backward pass do not.
template <class Part, int N> constexpr bool runs(bool backward) {
  return backward || !backward_pass.holds(Part::g.nodes[static_cast<unsigned>(N)].when);
}
template <class Part, class Device>
void prepare_part(const part_view&, device& on, prepared_node* prepared, bool backward) {
  auto& d = static_cast<Device&>(on);
  [&]<int... N>(std::integer_sequence<int, N...>) {
    ((runs<Part, N>(backward) ? prepare_node<Part, N>(d, prepared) : void()), ...);
  }
  (std::make_integer_sequence<int, Part::g.node_count>{});
}

template <class Part, class Device>
std::int64_t scratch_of_part(const part_view&, device& on, bool backward) {
  auto& d = static_cast<Device&>(on);
  return [&]<int... N>(std::integer_sequence<int, N...>) {
    return std::max(
        {std::int64_t{0}, runs<Part, N>(backward) ? scratch_of_node<Part, N>(d) : 0 ...});
  }
  (std::make_integer_sequence<int, Part::g.node_count>{});
}

template <class Part, class Device> part_view view_part() {
  part_view v;
  v.g = &Part::g, v.plan = &Part::plan, v.index = Part::index;
  v.device_type = &typeid(Device);
  v.run = &run_part<Part, Device>, v.prepare = &prepare_part<Part, Device>;
  v.scratch_bytes = &scratch_of_part<Part, Device>;
  return v;
}

/// Adds the kernels of a part's nodes, for shapes that are known at run time only.
template <class Part, class Device> void add_kernels(kernel_table<Device>& table) {
  [&]<int... N>(std::integer_sequence<int, N...>) {
    (
        [&] {
          constexpr const node& n = Part::g.nodes[static_cast<unsigned>(N)];
          if constexpr (has_kernel<Part, N, Device>)
            table.template add<n.op, element_of<Part, N>>();
        }(),
        ...);
  }
  (std::make_integer_sequence<int, Part::g.node_count>{});
}
} // namespace detail

/// Returns whether `bytes` are enough memory for training on each rank of dp replicas, with what
/// kernels need on most_threads threads: static_assert(fits<Run>(80_GiB, 64)). A run with a member
/// device_memory asserts this by itself, for the largest number of replicas, as MEGA-M001.
template <class Run> constexpr bool fits(std::int64_t bytes, int dp = 1) {
  memory_items m = memory<Run>(dp);
  m.kernels = detail::most_room<program<Run>, device_of<Run>>;
  return m.total() <= bytes;
}

/// Returns what generation by a run is made of: its model's functions and the kernels of their
/// nodes. The end of a step that a rank makes for itself (run/rank_program.hpp) uses these kernels,
/// too.
template <class Run> generation_view compiled_generation() {
  using program = mc::program<Run>;
  using own = device_of<Run>;
  static const kernel_table<own> table = [] {
    kernel_table<own> t;
    [&]<int... K>(std::integer_sequence<int, K...>) {
      (detail::add_kernels<typename program::template generation<K>, own>(t), ...);
    }
    (std::make_integer_sequence<int, program::kinds + 2>{});
    if constexpr (rank_program::remakes(program::numbers.ranks))
      detail::add_kernels<typename program::update, own>(t);
    return t;
  }();
  return {&forward_graph_of<typename program::model_type>, &table, &interpreted<own>};
}
/// The function that gives a program its generation_view.
using generation_of = generation_view (*)();

/// Returns the compiled program of a run. `Generation` may be a function of another unit, which
/// then compiles in parallel with this one.
template <class Run, generation_of Generation = &compiled_generation<Run>>
program_view compiled_program(const char* name) {
  using program = mc::program<Run>;
  static_assert(program::ok && reported<Run, detail::kernels_found<program, device_of<Run>>>);
  using own = device_of<Run>;
  program_view v;
  v.name = name;
  v.family = family_of<typename program::model_type>();
  v.numbers = program::numbers;
  v.layers = program::model.layers, v.hidden = program::model.hidden,
  v.vocabulary = program::model.vocabulary;
  v.model = view_of_model(program::model);
  for (int l = 0; l < v.layers; ++l) v.kind_of.push_back(program::kind_of(l));
  v.positions = program::model.positions;
  v.stores = &program::stores;
  v.parameters = program::parameters;
  v.generation = Generation();
  [&]<int... K>(std::integer_sequence<int, K...>) {
    v.parts = {detail::view_part<typename program::template part<K>, own>()...,
               detail::view_part<typename program::update, own>(),
               detail::view_part<typename program::evaluation, own>(),
               detail::view_part<typename program::totals, own>()};
  }
  (std::make_integer_sequence<int, program::kinds + 2>{});
  return v;
}

} // namespace mc
