// program<Run>: the graphs of a run after all passes, its memory plans and its registry. Each is a
// constant of its own.
#pragma once

#include <megacpp/plan/assembly.hpp>
#include <megacpp/recipe/precision.hpp>
#include <megacpp/run/members.hpp>
#include <megacpp/run/report.hpp>

#include <array>
#include <type_traits>
#include <utility>

namespace mc {

namespace detail {

/// Returns the fault of too little memory, with both numbers in GiB with one digit.
constexpr fault_record does_not_fit(std::int64_t needed, std::int64_t has) {
  fault_record r;
  r.code = fault::M001;
  const auto gib = [&r](std::int64_t bytes) {
    const std::int64_t tenths = (bytes * 10 + (1_GiB - 1)) / 1_GiB;
    r.what << tenths / 10 << "." << tenths % 10 << " GiB";
  };
  r.what << "training needs ";
  gib(needed);
  r.what << " and has ";
  gib(has);
  return r;
}

// The steps of the assembly are evaluated one constant at a time, because a compiler limits the
// steps of each constant evaluation. `Of` is a type with static constexpr members model and
// numbers; S counts the steps that are done. For nvcc's front end a constant that refers to graphs
// costs as much time as one that reads them. Therefore a function that reads one graph alone is
// given a program that has no other.

template <class Of> using steps_of = assembly_list<std::remove_const_t<decltype(Of::model)>>;
template <class Of> using state_of = typename steps_of<Of>::state;
template <class Of> using step_type = typename steps_of<Of>::step;
template <class Of> inline constexpr auto& steps =
    assembly<std::remove_const_t<decltype(Of::model)>>;
template <class Of> inline constexpr int graphs_in =
    state_of<Of>::count_of(used_kinds(Of::model, Of::numbers.adapter).count);

/// The numbers of all graphs, and an array with one T for each graph.
template <class Of> using numbers_of_graphs = std::make_integer_sequence<int, graphs_in<Of>>;
template <class Of, class T> using by_number = std::array<T, static_cast<unsigned>(graphs_in<Of>)>;

// These constants stand for values that are not made yet.
inline constexpr graph no_graph{};
inline constexpr meaning no_meaning{};
inline constexpr registry no_stores{};
inline constexpr running_order no_order{};
inline constexpr memory_plan no_plan{};

template <class Of, int S, int At> constexpr bool chooses();
template <class Of, int S, int At> struct seen;
template <class Of, int S> struct faults;
/// Tells whether step S makes a value for graph or item `At`, or checks it.
template <class Of, int S, int At> inline constexpr bool works_on = chooses<Of, S, At>();
/// Returns the last step before S that has made a value of this kind for graph `At`; -1: none.
template <class Of, int S, int At, typename step_type<Of>::task Kind> constexpr int maker() {
  if constexpr (S == 0) return -1;
  // NOLINTNEXTLINE(bugprone-branch-clone): a step of another kind may be asked nothing yet
  else if constexpr (steps<Of>[S - 1].is != Kind) return maker<Of, S - 1, At, Kind>();
  else if constexpr (works_on<Of, S - 1, At>) return S - 1;
  else return maker<Of, S - 1, At, Kind>();
}

// The constants *_made are the values that step S makes for graph `At`. The functions last_* return
// the newest value of each kind before step S. They go to the step that made it directly, because
// nvcc's front end evaluates each call on the way.

template <class Of, int S, int At>
inline constexpr graph graph_made = steps<Of>[S].make(seen<Of, S, At>{}.now(), At);
template <class Of, int S, int At> constexpr const graph* last_graph() {
  constexpr int by = maker<Of, S, At, step_type<Of>::graphs>();
  if constexpr (by < 0) return &no_graph;
  else return &graph_made<Of, by, At>;
}
template <class Of, int S, int At>
inline constexpr meaning meaning_made = meaning_of(*last_graph<Of, S, At>());
template <class Of, int S, int At> constexpr const meaning* last_meaning() {
  constexpr int by = maker<Of, S, At, step_type<Of>::meanings>();
  if constexpr (by < 0) return &no_meaning;
  else return &meaning_made<Of, by, At>;
}
template <class Of, int S>
inline constexpr registry stores_made = steps<Of>[S].make_stores(seen<Of, S, 0>{}.now());
template <class Of, int S> constexpr const registry* last_stores() {
  constexpr int by = maker<Of, S, 0, step_type<Of>::stores>();
  if constexpr (by < 0) return &no_stores;
  else return &stores_made<Of, by>;
}
template <class Of, int S, int At>
inline constexpr running_order order_made{*last_graph<Of, S, At>()};
template <class Of, int S, int At> constexpr const running_order* last_order() {
  constexpr int by = maker<Of, S, At, step_type<Of>::plans>();
  if constexpr (by < 0) return &no_order;
  else return &order_made<Of, by, At>;
}
template <class Of, int S, int At>
inline constexpr memory_plan plan_made = place_memory(*last_graph<Of, S, At>(),
                                                      order_made<Of, S, At>);
template <class Of, int S, int At> constexpr const memory_plan* last_plan() {
  constexpr int by = maker<Of, S, At, step_type<Of>::plans>();
  if constexpr (by < 0) return &no_plan;
  else return &plan_made<Of, by, At>;
}
template <class Of, int S, int... At>
constexpr by_number<Of, planned_graph> planned_all(std::integer_sequence<int, At...>) {
  return {planned_graph(*last_graph<Of, S, At>(), *last_plan<Of, S, At>(),
                        *last_order<Of, S, At>())...};
}
template <class Of, int S> inline constexpr by_number<Of, planned_graph> planned_made =
    planned_all<Of, S>(numbers_of_graphs<Of>{});
template <class Of, int S> constexpr std::span<const planned_graph> last_planned() {
  constexpr int by = maker<Of, S, 0, step_type<Of>::planned>();
  return planned_made<Of, (by < 0 ? 0 : by)>; // before step 0 no graph is planned
}

/// A program after S steps, with pointers to the values of graphs `At`; the others are null.
template <class Of, int S, class Numbers> struct with_graphs;
template <class Of, int S, int... At> struct with_graphs<Of, S, std::integer_sequence<int, At...>> {
  by_number<Of, const graph*> graphs{};
  by_number<Of, const meaning*> owes{};
  by_number<Of, const running_order*> orders{};
  by_number<Of, const memory_plan*> plans{};
  constexpr with_graphs() {
    ((graphs[At] = last_graph<Of, S, At>(), owes[At] = last_meaning<Of, S, At>(),
      orders[At] = last_order<Of, S, At>(), plans[At] = last_plan<Of, S, At>()),
     ...);
  }
  constexpr state_of<Of> now() const {
    return {.model = &Of::model,
            .numbers = &Of::numbers,
            .used = used_kinds(Of::model, Of::numbers.adapter),
            .graphs = graphs,
            .owes = owes,
            .stores = &no_stores,
            .orders = orders,
            .plans = plans};
  }
};
/// A program after S steps, with the values of all graphs.
template <class Of, int S> struct with_all : with_graphs<Of, S, numbers_of_graphs<Of>> {
  constexpr state_of<Of> now() const {
    state_of<Of> a = with_graphs<Of, S, numbers_of_graphs<Of>>::now();
    a.stores = last_stores<Of, S>(), a.planned = last_planned<Of, S>();
    return a;
  }
};
/// A program after S steps, as a constant.
template <class Of, int S> struct assembled {
  static constexpr with_all<Of, S> all{};
  static constexpr state_of<Of> now = all.now();
};

/// Returns the number of steps without the checks before step s, since a check changes nothing.
template <class Of> constexpr int without_checks(int s) {
  while (s > 0 && steps<Of>[s - 1].is == step_type<Of>::check) --s;
  return s;
}
/// The program that step S sees when it is asked whether it works on graph `At`: with this graph
/// alone, if it is made.
template <class Of, int S, int At> using seen_of_one = with_graphs<
    Of, without_checks<Of>(S),
    std::conditional_t<(maker<Of, without_checks<Of>(S), At, step_type<Of>::graphs>() < 0),
                       std::integer_sequence<int>, std::integer_sequence<int, At>>>;
/// The program that the other functions of step S see when they work on `At`.
template <class Of, int S, int At> struct seen
    : std::conditional_t<steps<Of>[S].alone, seen_of_one<Of, S, At>,
                         with_all<Of, without_checks<Of>(S)>> {};

/// Returns the last step before s that made graphs.
template <class Of> constexpr int maker_before(int s) {
  do --s;
  while (steps<Of>[s].is != step_type<Of>::graphs);
  return s;
}
template <class Of, int S, int At> constexpr bool chooses() {
  if constexpr (faults<Of, S>::first != nullptr) return false;
  else if constexpr (steps<Of>[S].of_made) return works_on<Of, maker_before<Of>(S), At>;
  else if constexpr (steps<Of>[S].of == nullptr) return true;
  else return steps<Of>[S].of(seen_of_one<Of, S, At>{}.now(), At);
}

/// The result of the check that is step S, for item `At`.
template <class Of, int S, int At>
inline constexpr fault_record fault_found = steps<Of>[S].fault_of(seen<Of, S, At>{}.now(), At);

/// Returns the fault of item `At` in step S; null: there is none.
template <class Of, int S, int At> constexpr const fault_record* fault_of_item() {
  // NOLINTNEXTLINE(bugprone-branch-clone): another kind of step has no fault, either
  if constexpr (!works_on<Of, S, At>) return nullptr;
  else if constexpr (steps<Of>[S].is == step_type<Of>::graphs) return &graph_made<Of, S, At>.wrong;
  else if constexpr (steps<Of>[S].is == step_type<Of>::stores) return &stores_made<Of, S>.wrong;
  else if constexpr (steps<Of>[S].is == step_type<Of>::check) return &fault_found<Of, S, At>;
  else return nullptr;
}
template <class Of, int S, int... At>
constexpr const fault_record* first_of(std::integer_sequence<int, At...>) {
  const fault_record* first = nullptr;
  for (const fault_record* f :
       {static_cast<const fault_record*>(nullptr), fault_of_item<Of, S, At>()...})
    if (first == nullptr && f != nullptr && f->code != fault::none) first = f;
  return first;
}
template <class Of, int S> constexpr int items_of() {
  if constexpr (steps<Of>[S].of != nullptr || steps<Of>[S].of_made) return graphs_in<Of>;
  else if constexpr (steps<Of>[S].items != nullptr)
    return steps<Of>[S].items(seen_of_one<Of, S, 0>{}.now());
  else return steps<Of>[S].is == step_type<Of>::check || steps<Of>[S].is == step_type<Of>::stores;
}
/// The first fault of the first S steps; null: there is none. No step follows a fault.
template <class Of, int S> struct faults {
  static constexpr const fault_record* first = [] {
    if constexpr (S == 0) return static_cast<const fault_record*>(nullptr);
    else if constexpr (faults<Of, S - 1>::first != nullptr) return faults<Of, S - 1>::first;
    else return first_of<Of, S - 1>(std::make_integer_sequence<int, items_of<Of, S - 1>()>{});
  }();
};

/// The model and the setup of a run, of which its program is assembled.
template <class Run> struct model_and_numbers {
  static constexpr auto model = members_of<Run>::model();
  static constexpr setup numbers = members_of<Run>::numbers();
};

} // namespace detail

template <class Run> struct program {
  using members = detail::members_of<Run>;
  using assembled_of = detail::model_and_numbers<Run>;
  using model_type = decltype(members::model());
  static constexpr model_type model = assembled_of::model;
  static constexpr setup numbers = assembled_of::numbers;
  static constexpr int steps = assembly<model_type>.count(); ///< number of steps of the assembly
  /// The first fault of the assembly; null: there is none.
  static constexpr const fault_record* in_assembly = detail::faults<assembled_of, steps>::first;
  /// The program before the first step, after all steps, and after the step that makes the forward
  /// graphs.
  static constexpr auto& start = detail::assembled<assembled_of, 0>::now;
  using whole = detail::assembled<assembled_of, steps>;
  using hoisted = detail::assembled<assembled_of, assembly<model_type>.hoisted()>;
  static constexpr int kinds = start.kinds(); ///< number of kinds of block that some layer has
  static constexpr int kind_of(int layer) { return start.kind_of(layer); }
  static constexpr int last = start.head(); ///< number of the head among the registry's parts

  /// The forward graph of a part. The registry numbers parts so: 0 is the stem, 1 ... kinds are the
  /// blocks, `last` is the head.
  template <int Index> struct forward {
    static constexpr auto& g =
        *detail::last_graph<assembled_of, assembly<model_type>.hoisted(), Index>();
  };
  template <int Index> struct training {
    static constexpr pass_options options = start.options(Index);
  };
  static constexpr std::int64_t parameters = [] {
    const auto layers = hoisted::now.layers();
    return count_parameters(hoisted::now.of_training(),
                            std::span(layers).first(static_cast<unsigned>(kinds + 2)));
  }();
  /// The number of the graph that the lowest layer runs in which something is trained; -1: the stem
  /// is trained.
  static constexpr int part_of_lowest = [] {
    const int l = hoisted::now.lowest();
    return l < 0 ? -1 : l == layers_of(model) ? last : 1 + kind_of(l);
  }();
  static constexpr auto& stores = *detail::last_stores<assembled_of, steps>();

  /// A graph after all passes, by its number (plan/memory.hpp), with its plan. Its parameters are
  /// those of the registry's part Index.
  template <int Number, int Index> struct passed_graph {
    static constexpr int index = Index;
    static constexpr auto& g = *detail::last_graph<assembled_of, steps, Number>();
    static constexpr auto& order = *detail::last_order<assembled_of, steps, Number>();
    static constexpr auto& plan = *detail::last_plan<assembled_of, steps, Number>();
    /// Tells whether the lowest layer in which something is trained runs this graph.
    static constexpr bool is_lowest = Number == part_of_lowest;
  };
  template <int Index> using part = passed_graph<Index, Index>;
  using evaluation = passed_graph<part_of_evaluation(kinds), last>;
  using update = passed_graph<part_of_update(kinds), 0>;
  using totals = passed_graph<part_of_totals(kinds), 0>;
  /// A part of generation in the smallest shape: a token for each rank of tp, since tp may cut a
  /// sequence. It gives the ops and element types of the nodes that run, but not their shapes,
  /// which come with the prompts: run/generation.hpp makes and verifies the graphs then, and
  /// reports their faults. A model that has no such graphs, or that fits no unsharded sequence, can
  /// be trained all the same.
  template <int Index> struct generation {
    static constexpr part_kind what = Index == 0      ? part_kind::stem
                                      : Index == last ? part_kind::logits
                                                      : part_kind::block;
    static constexpr graph written = [] {
      setup s = for_generation(numbers, 1, numbers.ranks.tp, numbers.ranks.tp);
      if (s.adapter.rank > 0) s.held_adapters = 2; // with the ops of several
      return forward_graph(model, s, what, start.used.kind(Index - 1));
    }();
    static constexpr graph g = unverified(written, {});
  };

  static constexpr stage_shape stage(int number) { return hoisted::now.stage(number); }

  /// The memory of one rank of a pipeline stage, for one replica alone, item by item.
  template <int Stage>
  static constexpr memory_items stage_memory = mc::stage_memory(whole::now.planned, stage(Stage),
                                                                stores, numbers.precision,
                                                                mesh(numbers.ranks));
  /// Returns the memory of a rank of the stage that needs most, among `dp` replicas. It may be any
  /// stage: the first has most micro-batches in flight, the last has the head, and any may have the
  /// largest kinds of block.
  static constexpr memory_items memory(int dp = 1) {
    return [dp]<int... Stage>(std::integer_sequence<int, Stage...>) {
      const memory_items of[] = {among_replicas(stage_memory<Stage>, Stage, dp)...};
      return of[largest_stage(numbers.ranks.pp, [&](int s) { return of[s].total(); })];
    }
    (std::make_integer_sequence<int, numbers.ranks.pp>{});
  }
  /// Returns the memory `m` of a stage among dp replicas, which may share masters and moments
  /// (ZeRO).
  static constexpr memory_items among_replicas(memory_items m, int number, int dp) {
    if (numbers.ranks.zero == 0 || dp == 1) return m;
    const memory_items shared = memory_of_stores(
        sizes_of(stores, stage(number).layers, mesh_of(numbers.ranks, dp)), numbers.precision);
    m.weights = shared.weights, m.gradients = shared.gradients;
    m.masters = shared.masters, m.moments = shared.moments;
    return m;
  }
  static constexpr int most_replicas = 1 << 16; ///< largest number of replicas that may share
                                                ///< states
  /// Returns the first fault: of the device, of the assembly, or MEGA-M001 if the run names its
  /// device's memory and that is too small.
  static constexpr fault_record in_all() {
    if (!members::has_backend()) return detail::sentence(fault::B002, "using device");
    if constexpr (in_assembly != nullptr) return *in_assembly;
    else return fault_of_memory({});
  }
  /// Returns MEGA-M001 if a rank has too little memory, with this much for its kernels; no fault if
  /// the run does not name its memory.
  static constexpr fault_record fault_of_memory(const kernel_room& kernels) {
    if constexpr (in_assembly == nullptr && members::device_memory() >= 0) {
      memory_items all = memory(most_replicas);
      all.kernels = kernels;
      if (all.total() > members::device_memory())
        return detail::does_not_fit(all.total(), members::device_memory());
    }
    return {};
  }
  static constexpr fault_record wrong = with_line(in_all(), numbers);
  /// The one assertion of a run.
  static constexpr bool ok = members::reported && reported<Run, program>;
};

/// Returns the memory of one rank of a run for training, item by item, in the pipeline stage that
/// needs most. Each of dp data-parallel replicas holds all of it, except that under ZeRO it holds a
/// share of masters and moments.
template <class Run> constexpr memory_items memory(int dp = 1) {
  static_assert(program<Run>::ok);
  return program<Run>::memory(dp);
}

} // namespace mc
