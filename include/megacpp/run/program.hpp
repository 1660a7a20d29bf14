// program<Run>: the graphs of a run after all passes, its memory plan and registry, each its own
// constant.
#pragma once

#include <megacpp/num/precision.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/run/members.hpp>
#include <megacpp/run/report.hpp>

#include <initializer_list>
#include <type_traits>

namespace mc {

namespace detail {

/// The first fault of a list.
constexpr fault_record first_fault(std::initializer_list<const fault_record*> list) {
  for (const fault_record* f : list)
    if (f->code != fault::none) return *f;
  return {};
}

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

} // namespace detail

template <class Run> struct program {
  using members = detail::members_of<Run>;
  using model_type = decltype(members::model());
  static constexpr model_type model = members::model();
  static constexpr setup numbers = members::numbers();
  /// Kinds of block that some layer is, by the model's own numbers.
  static constexpr auto used = used_kinds(model);
  static constexpr int kinds = used.count;
  static constexpr int kind_of(int layer) { return used.index(model.kind_of(layer)); }
  static constexpr int last = kinds + 1; ///< registry part of the head

  /// Forward graph of a part, and how the registry counts it: 0 stem, 1 ... kinds, last head.
  template <int Index> struct forward {
    static constexpr part_kind what = Index == 0      ? part_kind::stem
                                      : Index == last ? part_kind::loss
                                                      : part_kind::block;
    static constexpr graph written = written_graph(model, numbers, what, used.kind(Index - 1));
    static constexpr graph g = hoisted_graph(written);
  };

  static constexpr auto forward_graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<const graph*, sizeof...(K)>{&forward<K>::g...};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }
  static constexpr auto layer_counts() {
    std::array<int, static_cast<unsigned>(kinds + 2)> n{};
    n[0] = n[static_cast<unsigned>(last)] = 1;
    for (int l = 0; l < layers_of(model); ++l) ++n[static_cast<unsigned>(1 + kind_of(l))];
    return n;
  }
  static constexpr fault_record of_experts = fault_of_experts(forward_graphs(), numbers);
  static constexpr fault_record of_frozen = fault_of_frozen(forward_graphs(), numbers.frozen);
  static constexpr std::int64_t parameters = count_parameters(forward_graphs(), layer_counts());

  /// What the passes over the graphs of training and evaluation (the head's forward alone) begin
  /// with.
  template <int Index> struct training {
    static constexpr const graph& forward = program::forward<Index>::g;
    static constexpr pass_options options{
        .backward = true, .again = Index == 0 || Index == last ? recompute::none : numbers.again};
  };
  struct evaluating {
    static constexpr const graph& forward = program::forward<last>::g;
    static constexpr pass_options options{};
  };

  /// The graphs of training after all passes.
  static constexpr auto trained_graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<const graph*, sizeof...(K)>{&after_all_passes<training<K>>::g...};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }
  static constexpr registry stores =
      verified_registry(trained_graphs(), layer_counts(), numbers.ranks.zero, mesh(numbers.ranks));

  /// A graph after all passes, with its plan.
  template <class Source, int Index> struct finished {
    static constexpr int index = Index;
    static constexpr auto& g = after_all_passes<Source>::g;
    static constexpr fault_record wrong = after_all_passes<Source>::wrong;
    static constexpr running_order order{g};
    static constexpr memory_plan plan =
        wrong.code == fault::none ? place_memory(g, order) : memory_plan{};
    // verify_memory in steps
    static constexpr fault_record in_one_trip =
        wrong.code == fault::none ? verify_memory(g, plan, order, 1) : fault_record{};
    static constexpr fault_record misplaced =
        in_one_trip.code != fault::none || wrong.code != fault::none || g.region_count == 0
            ? in_one_trip
            : verify_memory(g, plan, order, 2);
  };
  template <int Index> using part = finished<training<Index>, Index>;
  using evaluation = finished<evaluating, last>;
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
                      used.kind(Index - 1)),
        {});
  };
  struct update {
    static constexpr int index = 0;
    static constexpr graph g =
        update_graph(program::stores, mesh(numbers.ranks), numbers.precision);
    static constexpr fault_record wrong = g.wrong;
    static constexpr running_order order{g};
    static constexpr memory_plan plan = place_memory(g, order);
    static constexpr fault_record misplaced = verify_memory(g, plan, order);
  };
  struct totals {
    static constexpr int index = 0;
    static constexpr graph g = totals_graph(mesh(numbers.ranks));
    static constexpr fault_record wrong = g.wrong;
    static constexpr running_order order{g};
    static constexpr memory_plan plan = place_memory(g, order);
    static constexpr fault_record misplaced = verify_memory(g, plan, order);
  };

  static constexpr auto derived_graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<const graph*, sizeof...(K)>{&after_deriving<training<K>>::g...};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }

  template <class Part> static constexpr planned_graph as_planned() {
    return {Part::g, Part::plan, Part::order};
  }
  /// The graphs of a step by part (plan/memory.hpp).
  static constexpr auto graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<planned_graph, sizeof...(K) + 3>{
          as_planned<part<K>>()..., as_planned<update>(), as_planned<evaluation>(),
          as_planned<totals>()};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }
  static constexpr auto planned = graphs();
  static constexpr stage_shape stage(int number) {
    return {
        layers_of(model),           kinds, numbers.ranks, number, [](int l) { return kind_of(l); },
        numbers.batch.micro_batches};
  }

  /// Bytes of one rank of a pipeline stage, of one replica alone.
  template <int Stage>
  static constexpr memory_items stage_memory = mc::stage_memory(planned, stage(Stage), stores,
                                                                numbers.precision,
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
  /// The first fault of the device, of the graphs of training and evaluation after all passes, of
  /// experts, of tied parameters, of the memory plans, and of the whole against the device's
  /// memory, if the run says how much that is.
  static constexpr fault_record in_graphs = []<int... K>(std::integer_sequence<int, K...>) {
    return detail::first_fault(
        {&part<K>::wrong..., &update::wrong, &evaluation::wrong, &totals::wrong});
  }
  (std::make_integer_sequence<int, kinds + 2>{});
  static constexpr fault_record in_plans = []<int... K>(std::integer_sequence<int, K...>) {
    return detail::first_fault(
        {&part<K>::misplaced..., &update::misplaced, &evaluation::misplaced, &totals::misplaced});
  }
  (std::make_integer_sequence<int, kinds + 2>{});
  /// What is wrong with the training steps or the evaluations of the first or the last stage. Two
  /// layers at each end of a chunk stand for all, three stages and two chunks for more, and one
  /// micro-batch more than are in flight for any number: what lies between repeats. A session
  /// verifies its own.
  template <bool Last, bool Training> static constexpr fault_record in_step = [] {
    if (in_graphs.code != fault::none || in_plans.code != fault::none) return fault_record{};
    constexpr const layout& whole = numbers.ranks;
    constexpr int stage = Last ? (whole.pp < 3 ? whole.pp : 3) - 1 : 0;
    layout few{.pp = whole.pp < 3 ? whole.pp : 3,
               .virtual_stages = whole.virtual_stages < 2 ? whole.virtual_stages : 2,
               .schedule = whole.schedule};
    int first[2]{}, count[2]{}; // of the layers of its first and its last chunk
    for (auto& n : few.cut.layers) n = 1;
    for (int c = 0; c < few.virtual_stages; ++c) {
      const int v = (c > 0 ? whole.virtual_stages - 1 : 0) * whole.pp + (Last ? whole.pp - 1 : 0);
      first[c] = first_layer_of_stage(whole, layers_of(model), v);
      count[c] = layers_of_stage(whole, layers_of(model), v);
      few.cut.layers[static_cast<unsigned>(c * few.pp + stage)] =
          static_cast<std::int16_t>(count[c] < 4 ? count[c] : 4);
    }
    const int all = few.pp * few.virtual_stages;
    const int most = numbers.batch.micro_batches;
    const stage_shape s(
        first_layer_of_stage(few, 0, all), kinds, few, stage,
        [&](int l) {
          const int c = l < first_layer_of_stage(few, 0, few.pp) ? 0 : 1,
                    k = l - first_layer_of_stage(few, 0, c * few.pp + stage);
          return kind_of(first[c] + (k < 2 || count[c] < 4 ? k : count[c] - 4 + k));
        },
        most < 2 * few.pp ? most : 2 * few.pp);
    return verify_stage(planned, s, Training, s.micros_to_prove());
  }();
  static constexpr int max_passes_to_compile = 1 << 12;
  /// What is wrong with the schedule for so many rounds of as many micro-batches as there are
  /// stages, and some more. A session proves its own number, and what takes a compiler long.
  template <int Rounds, int More> static constexpr fault_record in_schedule = [] {
    constexpr pipeline p(numbers.ranks);
    constexpr int micros = Rounds * p.stages + More, most = numbers.batch.micro_batches;
    if (p.stages == 1 || (p.chunks > 1 && More > 0) || (most > 0 && micros > most) ||
        2 * micros * p.virtual_stages() > max_passes_to_compile)
      return fault_record{};
    return verify_schedule(schedule_of(numbers.ranks), p, micros);
  }();
  static constexpr fault_record in_flights =
      verify_flights(schedule_of(numbers.ranks), numbers.ranks, numbers.batch.micro_batches);
  static constexpr fault_record in_steps() {
    constexpr bool last = numbers.ranks.pp > 1;
    if (in_graphs.code != fault::none) return in_graphs;
    return detail::first_fault({&in_schedule<1, 0>, &in_schedule<1, 1>, &in_schedule<2, 0>,
                                &in_schedule<4, 0>, &in_flights, &in_step<false, true>,
                                &in_step<false, false>, &in_step<last, true>,
                                &in_step<last, false>});
  }

  /// How many layers each part has on the stages before this one.
  template <int Stage> struct before {
    static constexpr auto layers = [] {
      std::array<int, static_cast<unsigned>(kinds + 2)> n{};
      if constexpr (Stage > 0) {
        n = before<Stage - 1>::layers;
        const stage_shape last = stage(Stage - 1);
        for (int i = 0; i < kinds + 2; ++i) n[static_cast<unsigned>(i)] += last.layers[i];
      }
      return n;
    }();
  };
  /// The first fault of the registry of a stage, which a rank makes at start.
  template <int Stage> static constexpr fault_record in_stores = [] {
    if (numbers.ranks.pp == 1 || in_graphs.code != fault::none) return fault_record{};
    return verified_registry(trained_graphs(), stage(Stage).layers, numbers.ranks.zero,
                             mesh(numbers.ranks), before<Stage>::layers)
        .wrong;
  }();
  static constexpr fault_record in_all_stores =
      []<int... Stage>(std::integer_sequence<int, Stage...>) {
    return detail::first_fault({&in_stores<Stage>...});
  }
  (std::make_integer_sequence<int, numbers.ranks.pp>{});

  static constexpr int most_replicas = 1 << 16; ///< among which states may be shared
  static constexpr fault_record in_all() {
    if (!members::has_backend()) return detail::sentence(fault::B002, "using device");
    const fault_record computed = fault_of_computed_ties(forward_graphs());
    if (computed.code != fault::none) return computed;
    if (in_graphs.code != fault::none) return in_graphs;
    if (of_experts.code != fault::none) return of_experts;
    if (of_frozen.code != fault::none) return of_frozen;
    const fault_record ties = fault_of_ties(derived_graphs());
    if (ties.code != fault::none) return ties;
    const fault_record roles = fault_of_roles(derived_graphs(), numbers.precision);
    if (roles.code != fault::none) return roles;
    if (in_all_stores.code != fault::none) return in_all_stores;
    if (in_plans.code != fault::none) return in_plans;
    if (const fault_record steps = in_steps(); steps.code != fault::none) return steps;
    return fault_of_memory({});
  }
  /// MEGA-M001 for a rank whose kernels need so much, if the run says what its memory is.
  static constexpr fault_record fault_of_memory(const kernel_room& kernels) {
    if constexpr (members::device_memory() >= 0) {
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
