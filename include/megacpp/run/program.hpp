// program<Run>: the graphs of a run after all passes, its memory plan and registry, each its own
// constant.
#pragma once

#include <megacpp/num/precision.hpp>
#include <megacpp/plan/assembly.hpp>
#include <megacpp/run/members.hpp>
#include <megacpp/run/report.hpp>

#include <array>
#include <type_traits>
#include <utility>

namespace mc {

namespace detail {

/// Needed and available, in GiB with one digit.
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

// The list of steps, evaluated a constant at a time, since the limit on the steps of a constant
// evaluation counts for each. Of is a type with static constexpr members model and numbers; S
// counts the steps that are done.

template <class Of> using steps_of = assembly_list<std::remove_const_t<decltype(Of::model)>>;
template <class Of> using state_of = typename steps_of<Of>::state;
template <class Of> inline constexpr auto& steps =
    assembly<std::remove_const_t<decltype(Of::model)>>;
template <class Of>
inline constexpr int graphs_in = state_of<Of>::count_of(used_kinds(Of::model).count);

// These stand for what is not made yet.
inline constexpr graph no_graph{};
inline constexpr meaning no_meaning{};
inline constexpr registry no_stores{};
inline constexpr running_order no_order{};
inline constexpr memory_plan no_plan{};
inline constexpr planned_graph no_planned{no_graph, no_plan, no_order};

template <class Of, int S> struct assembled;
template <class Of, int S> struct graphs_after;

/// Graph, meaning, order or plan `At` that step S makes.
template <class Of, int S, int At>
inline constexpr graph graph_made = steps<Of>[S].make(assembled<Of, S>::now, At);
template <class Of, int S, int At>
inline constexpr meaning meaning_made = meaning_of(assembled<Of, S>::now.g(At));
template <class Of, int S>
inline constexpr registry stores_made = steps<Of>[S].make_stores(assembled<Of, S>::now);
template <class Of, int S, int At>
inline constexpr running_order order_made{assembled<Of, S>::now.g(At)};
template <class Of, int S, int At>
inline constexpr memory_plan plan_made = place_memory(assembled<Of, S>::now.g(At),
                                                      order_made<Of, S, At>);
/// What step S, a check, says of item At.
template <class Of, int S, int At>
inline constexpr fault_record fault_found = steps<Of>[S].fault_of(assembled<Of, S>::now, At);

/// The numbers of all graphs.
template <class Of> using numbers_of_graphs = std::make_integer_sequence<int, graphs_in<Of>>;
template <class Of, class T> using by_number = std::array<T, static_cast<unsigned>(graphs_in<Of>)>;

/// For what graphs step S makes something, or which ones it looks at: all are asked at once, since
/// nvcc's front end takes long for each constant that refers to all graphs.
template <class Of, int S> constexpr by_number<Of, bool> makes() {
  by_number<Of, bool> made{};
  if constexpr (steps<Of>[S].of != nullptr && assembled<Of, S>::wrong == nullptr)
    for (int i = 0; i < graphs_in<Of>; ++i)
      made[static_cast<unsigned>(i)] = steps<Of>[S].of(assembled<Of, S>::now, i);
  return made;
}
template <class Of, int S> struct made_by {
  static constexpr by_number<Of, bool> graphs = makes<Of, S>();
};

/// Graph At, and what it owes, once step S is done.
template <class Of, int S, int At> constexpr const graph* graph_behind() {
  if constexpr (made_by<Of, S>::graphs[At]) return &graph_made<Of, S, At>;
  else return graphs_after<Of, S>::graphs[At];
}
template <class Of, int S, int At> constexpr const meaning* owed_behind() {
  if constexpr (made_by<Of, S>::graphs[At]) return &meaning_made<Of, S, At>;
  else return graphs_after<Of, S>::owes[At];
}
template <class Of, int S, int At> constexpr planned_graph planned_behind() {
  constexpr auto& a = assembled<Of, S>::now;
  return planned_graph(a.g(At), *a.plans[At], *a.orders[At]);
}
/// These give the same of all graphs.
template <class Of, int S, int... At>
constexpr by_number<Of, const graph*> graphs_behind(std::integer_sequence<int, At...>) {
  if constexpr (steps<Of>[S].is == steps_of<Of>::step::graphs)
    return {graph_behind<Of, S, At>()...};
  else return graphs_after<Of, S>::graphs;
}
template <class Of, int S, int... At>
constexpr by_number<Of, const meaning*> owes_behind(std::integer_sequence<int, At...>) {
  if constexpr (steps<Of>[S].is == steps_of<Of>::step::meanings)
    return {owed_behind<Of, S, At>()...};
  else return graphs_after<Of, S>::owes;
}
template <class Of, int S, int... At>
constexpr by_number<Of, const running_order*> orders_of(std::integer_sequence<int, At...>) {
  return {&order_made<Of, S, At>...};
}
template <class Of, int S, int... At>
constexpr by_number<Of, const memory_plan*> plans_of(std::integer_sequence<int, At...>) {
  return {&plan_made<Of, S, At>...};
}
template <class Of, int S, int... At>
constexpr by_number<Of, planned_graph> planned_of(std::integer_sequence<int, At...>) {
  return {planned_behind<Of, S, At>()...};
}
/// Step S makes these of all graphs.
template <class Of, int S>
inline constexpr auto orders_made = orders_of<Of, S>(numbers_of_graphs<Of>{});
template <class Of, int S>
inline constexpr auto plans_made = plans_of<Of, S>(numbers_of_graphs<Of>{});
template <class Of, int S>
inline constexpr auto planned_made = planned_of<Of, S>(numbers_of_graphs<Of>{});

/// Whether step S, a check, looks at item At.
template <class Of, int S, int At> constexpr bool looks_at() {
  if constexpr (steps<Of>[S].of == nullptr) return true;
  else return made_by<Of, S>::graphs[At];
}
/// The first fault of step S, whose items have these numbers; null: there is none.
template <class Of, int S, int At> constexpr const fault_record* fault_of_item() {
  if constexpr (looks_at<Of, S, At>()) return &fault_found<Of, S, At>;
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
  if constexpr (steps<Of>[S].of != nullptr) return graphs_in<Of>;
  else if constexpr (steps<Of>[S].items != nullptr)
    return steps<Of>[S].items(assembled<Of, S>::now);
  else return 1;
}
template <class Of, int S> constexpr const fault_record* fault_behind() {
  using step = typename steps_of<Of>::step;
  if constexpr (assembled<Of, S>::wrong != nullptr) {
    return assembled<Of, S>::wrong;
  } else if constexpr (steps<Of>[S].is == step::check) {
    return first_of<Of, S>(std::make_integer_sequence<int, items_of<Of, S>()>{});
  } else if constexpr (steps<Of>[S].is == step::stores) {
    return stores_made<Of, S>.wrong.code != fault::none ? &stores_made<Of, S>.wrong : nullptr;
  } else if constexpr (steps<Of>[S].is == step::graphs) {
    for (int i = 0; i < graphs_in<Of>; ++i) {
      const graph& g = *graphs_after<Of, S + 1>::graphs[static_cast<unsigned>(i)];
      if (made_by<Of, S>::graphs[static_cast<unsigned>(i)] && g.wrong.code != fault::none)
        return &g.wrong;
    }
  }
  return nullptr;
}

/// The program behind step S.
template <class Of, int S> constexpr state_of<Of> state_behind() {
  using step = typename steps_of<Of>::step;
  state_of<Of> a = assembled<Of, S>::now;
  a.graphs = graphs_after<Of, S + 1>::graphs, a.owes = graphs_after<Of, S + 1>::owes;
  if constexpr (steps<Of>[S].is == step::graphs) a.made = made_by<Of, S>::graphs;
  if constexpr (assembled<Of, S>::wrong == nullptr) {
    if constexpr (steps<Of>[S].is == step::stores) a.stores = &stores_made<Of, S>;
    if constexpr (steps<Of>[S].is == step::plans)
      a.orders = orders_made<Of, S>, a.plans = plans_made<Of, S>;
    if constexpr (steps<Of>[S].is == step::planned) a.planned = planned_made<Of, S>;
  }
  return a;
}

/// Graphs after S steps, and what they owe, by number.
template <class Of, int S> struct graphs_after {
  static constexpr by_number<Of, const graph*> graphs =
      graphs_behind<Of, S - 1>(numbers_of_graphs<Of>{});
  static constexpr by_number<Of, const meaning*> owes =
      owes_behind<Of, S - 1>(numbers_of_graphs<Of>{});
};
/// A program after S steps.
template <class Of, int S> struct assembled {
  static constexpr auto& graphs = graphs_after<Of, S>::graphs;
  static constexpr state_of<Of> now = state_behind<Of, S - 1>();
  /// The first fault; null: none.
  static constexpr const fault_record* wrong = fault_behind<Of, S - 1>();
};

/// As many of x as there are graphs.
template <class Of, class T> constexpr by_number<Of, T> all_the_same(const T& x) {
  by_number<Of, T> all{};
  for (T& one : all) one = x;
  return all;
}
template <class Of> struct graphs_after<Of, 0> {
  static constexpr auto graphs = all_the_same<Of, const graph*>(&no_graph);
  static constexpr auto owes = all_the_same<Of, const meaning*>(&no_meaning);
};
/// A program before the first step.
template <class Of> struct assembled<Of, 0> {
  static constexpr auto& graphs = graphs_after<Of, 0>::graphs;
  static constexpr auto none_made = all_the_same<Of, bool>(false);
  static constexpr auto orders = all_the_same<Of, const running_order*>(&no_order);
  static constexpr auto plans = all_the_same<Of, const memory_plan*>(&no_plan);
  static constexpr auto planned = all_the_same<Of, planned_graph>(no_planned);
  static constexpr state_of<Of> now{.model = &Of::model,
                                    .numbers = &Of::numbers,
                                    .used = used_kinds(Of::model),
                                    .graphs = graphs,
                                    .made = none_made,
                                    .owes = graphs_after<Of, 0>::owes,
                                    .stores = &no_stores,
                                    .orders = orders,
                                    .plans = plans,
                                    .planned = planned};
  static constexpr const fault_record* wrong = nullptr;
};

/// What a run is assembled of.
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
  /// The program before the first step, after all steps, and when the forward graphs are there.
  static constexpr auto& start = detail::assembled<assembled_of, 0>::now;
  using whole = detail::assembled<assembled_of, assembly<model_type>.count()>;
  using hoisted = detail::assembled<assembled_of, assembly<model_type>.hoisted()>;
  static constexpr int kinds = start.kinds(); ///< of block, that some layer is
  static constexpr int kind_of(int layer) { return start.kind_of(layer); }
  static constexpr int last = start.head(); ///< registry part of the head

  /// Forward graph of a part, and how the registry counts it: 0 stem, 1 ... kinds, last head.
  template <int Index> struct forward {
    static constexpr auto& g = *hoisted::now.graphs[static_cast<unsigned>(Index)];
  };
  template <int Index> struct training {
    static constexpr pass_options options = whole::now.options(Index);
  };
  static constexpr std::int64_t parameters = [] {
    const auto layers = hoisted::now.layers();
    return count_parameters(hoisted::now.of_training(),
                            std::span(layers).first(static_cast<unsigned>(kinds + 2)));
  }();
  static constexpr auto& stores = *whole::now.stores;

  /// A graph after all passes, by number (plan/memory.hpp), with its plan. Its parameters are those
  /// of the registry's part Index.
  template <int Number, int Index> struct finished {
    static constexpr int index = Index;
    static constexpr auto& g = *whole::now.graphs[static_cast<unsigned>(Number)];
    static constexpr auto& order = *whole::now.orders[static_cast<unsigned>(Number)];
    static constexpr auto& plan = *whole::now.plans[static_cast<unsigned>(Number)];
  };
  template <int Index> using part = finished<Index, Index>;
  using evaluation = finished<part_of_evaluation(kinds), last>;
  using update = finished<part_of_update(kinds), 0>;
  using totals = finished<part_of_totals(kinds), 0>;
  /// A part of generation in the smallest shape: a token for each rank of tp, which may cut a
  /// sequence between them. It tells the ops and element types of the nodes that run, whose shapes
  /// come with the prompts: run/generation.hpp makes and verifies those when they are known, and
  /// tells of a fault. A model without these graphs, or one that fits only layouts with a sharded
  /// sequence, trains all the same.
  template <int Index> struct generation {
    static constexpr part_kind what = Index == 0      ? part_kind::stem
                                      : Index == last ? part_kind::logits
                                                      : part_kind::block;
    static constexpr graph g = unverified(
        forward_graph(model, for_generation(numbers, 1, numbers.ranks.tp, numbers.ranks.tp), what,
                      start.used.kind(Index - 1)),
        {});
  };

  static constexpr stage_shape stage(int number) { return start.stage(number); }

  /// Bytes of one rank of a pipeline stage, of one replica alone.
  template <int Stage>
  static constexpr memory_items stage_memory = mc::stage_memory(whole::now.planned, stage(Stage),
                                                                stores, numbers.precision,
                                                                mesh(numbers.ranks));
  /// Of the stage that needs most, among `dp` replicas. The first one has most micro-batches in
  /// flight, the last one the head, and any the largest kinds of block.
  static constexpr memory_items memory(int dp = 1) {
    return [dp]<int... Stage>(std::integer_sequence<int, Stage...>) {
      const memory_items of[] = {among_replicas(stage_memory<Stage>, Stage, dp)...};
      return of[largest_stage(numbers.ranks.pp, [&](int s) { return of[s].total(); })];
    }
    (std::make_integer_sequence<int, numbers.ranks.pp>{});
  }
  /// The same of a stage whose masters and moments replicas share, if they do.
  static constexpr memory_items among_replicas(memory_items m, int number, int dp) {
    if (numbers.ranks.zero == 0 || dp == 1) return m;
    const memory_items shared = memory_of_stores(
        sizes_of(stores, stage(number).layers, mesh_of(numbers.ranks, dp)), numbers.precision);
    m.weights = shared.weights, m.gradients = shared.gradients;
    m.masters = shared.masters, m.moments = shared.moments;
    return m;
  }
  static constexpr int most_replicas = 1 << 16; ///< among which states may be shared
  /// The first fault: of the device, of what is assembled, of the whole against the device's
  /// memory, if the run says how much that is.
  static constexpr fault_record in_all() {
    if (!members::has_backend()) return detail::sentence(fault::B002, "using device");
    if constexpr (whole::wrong != nullptr) return *whole::wrong;
    else return fault_of_memory({});
  }
  /// MEGA-M001 for a rank whose kernels need so much, if the run says what its memory is.
  static constexpr fault_record fault_of_memory(const kernel_room& kernels) {
    if constexpr (whole::wrong == nullptr && members::device_memory() >= 0) {
      memory_items all = memory(most_replicas);
      all.kernels = kernels;
      if (all.total() > members::device_memory())
        return detail::does_not_fit(all.total(), members::device_memory());
    }
    return {};
  }
  static constexpr fault_record wrong = in_run(in_all(), numbers);
  /// The one assertion of a run.
  static constexpr bool ok = members::reported && reported<Run, program>;
};

/// Bytes of one rank of a run for training, item by item, of the pipeline stage that needs most.
/// Every one of dp data-parallel replicas holds all of it, but under ZeRO for its share of masters
/// and moments.
template <class Run> constexpr memory_items memory(int dp = 1) {
  static_assert(program<Run>::ok);
  return program<Run>::memory(dp);
}

} // namespace mc
