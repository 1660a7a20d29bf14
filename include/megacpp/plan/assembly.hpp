// The assembly of a program: one list of steps, in order. A step makes graphs, the registry or
// plans from the results of earlier steps, or checks these. program<Run> evaluates the list one
// constant at a time (run/program.hpp), and the interpreter runs it in a loop
// (run/interpreter.hpp). The first fault ends both, with the same sentence.
// The graphs of a program are numbered (plan/memory.hpp): first the parts of training, which are
// the stem, a block of each kind, and the head with the loss; then the end of a step, evaluation's
// head, and the totals.
#pragma once

#include <megacpp/pass/adapt.hpp>
#include <megacpp/pass/check_adapter.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/frozen.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/plan/roles.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/plan/verify_step.hpp>

#include <array>
#include <span>
#include <utility>

namespace mc {

/// A program that is being assembled. A pointer to a result that is not made yet points to an empty
/// one. Pointers to graphs that a step does not read (assembly_step) are null.
template <class Model> struct assembling {
  const Model* model = nullptr;
  const setup* numbers = nullptr;
  kind_list<most_kinds<Model>> used{};
  std::span<const graph* const> graphs{}; ///< graphs by number
  std::span<const meaning* const> owes{}; ///< meanings that the graphs must keep, by number
  const registry* stores = nullptr;
  std::span<const running_order* const> orders{}; ///< running orders of the graphs, by number
  std::span<const memory_plan* const> plans{};
  std::span<const planned_graph> planned{};

  constexpr int kinds() const { return used.count; }
  constexpr int parts() const { return kinds() + 2; }
  constexpr int head() const { return kinds() + 1; }
  constexpr bool is_part(int number) const { return number < parts(); }
  constexpr bool is_evaluation(int number) const { return number == part_of_evaluation(kinds()); }
  static constexpr int count_of(int kinds) { return part_of_totals(kinds) + 1; }
  constexpr int count() const { return count_of(kinds()); }

  constexpr part_kind what(int part) const {
    return part == 0 ? part_kind::stem : part == head() ? part_kind::loss : part_kind::block;
  }
  constexpr const graph& g(int number) const { return *graphs[static_cast<unsigned>(number)]; }
  constexpr std::span<const graph* const> of_training() const {
    return graphs.first(static_cast<unsigned>(parts()));
  }
  constexpr mesh ranks() const { return mesh(numbers->ranks); }
  /// Returns the options of the passes over a graph.
  constexpr pass_options options(int number) const {
    if (!is_part(number)) return {};
    return {.backward = true,
            .recompute_policy =
                number == 0 || number == head() ? recompute::none : numbers->recompute_policy};
  }
  constexpr int kind_of(int layer) const {
    return used.index(kind_of_layer(*model, numbers->adapter, layer));
  }
  /// Returns the number of layers that run each part; that of the stem and of the head is one.
  constexpr std::array<int, most_kinds<Model> + 2> layers() const {
    std::array<int, most_kinds<Model> + 2> n{};
    n[0] = n[static_cast<unsigned>(head())] = 1;
    for (int l = 0; l < layers_of(*model); ++l) ++n[static_cast<unsigned>(1 + kind_of(l))];
    return n;
  }
  /// Returns the lowest layer that has a trained parameter (plan/frozen.hpp).
  constexpr int lowest() const {
    return lowest_trained(
        layers_of(*model), kinds(), [this](int l) { return kind_of(l); },
        [this](int part) -> const graph& { return g(part); });
  }
  constexpr stage_shape stage(int number) const {
    return {layers_of(*model),
            kinds(),
            numbers->ranks,
            number,
            [this](int l) { return kind_of(l); },
            numbers->batch.micro_batches,
            lowest()};
  }
};

/// One step of the assembly. Its functions take the program as it is before the step.
template <class Model> struct assembly_step {
  using state = assembling<Model>;
  enum task : std::uint8_t { graphs, meanings, stores, plans, planned, check };
  const char* name = "";
  task is = check;
  /// A step is alone if `make` and `fault_of`, called for a number, read no other graph and nothing
  /// beside graphs; a compiler then evaluates them without the rest.
  bool alone = false;
  /// Returns whether the step makes something of the graph of this number, or a check reads it;
  /// null: a check reads all of its items. It reads only that graph, if it is made.
  bool (*of)(const state&, int) = nullptr;
  /// The step takes the graphs that the last step of kind `graphs` has made; then `of` is null.
  bool of_made = false;
  /// `make` returns the graph that replaces the one of this number; `make_stores` returns the
  /// registry.
  graph (*make)(const state&, int) = nullptr;
  registry (*make_stores)(const state&) = nullptr;
  /// Returns how many items a check has; null: one.
  int (*items)(const state&) = nullptr;
  /// Returns the fault of this item.
  fault_record (*fault_of)(const state&, int) = nullptr;
};

namespace detail {

/// Returns the fault of the training steps or the evaluations of the first or the last stage. A
/// small case stands for all: two layers at each end of a chunk, up to three stages and two chunks,
/// and one micro-batch more than are in flight, since everything between repeats. A session
/// verifies its own step.
template <class Model>
constexpr fault_record fault_of_step(const assembling<Model>& a, bool of_last, bool training) {
  const layout& whole = a.numbers->ranks;
  const int stage = of_last ? (whole.pp < 3 ? whole.pp : 3) - 1 : 0;
  layout few{.pp = whole.pp < 3 ? whole.pp : 3,
             .virtual_stages = whole.virtual_stages < 2 ? whole.virtual_stages : 2,
             .schedule = whole.schedule};
  int first[2]{}, count[2]{}; // first layer and number of layers of its first and its last chunk
  for (auto& n : few.cut.layers) n = 1;
  for (int c = 0; c < few.virtual_stages; ++c) {
    const int v = (c > 0 ? whole.virtual_stages - 1 : 0) * whole.pp + (of_last ? whole.pp - 1 : 0);
    first[c] = first_layer_of_stage(whole, layers_of(*a.model), v);
    count[c] = layers_of_stage(whole, layers_of(*a.model), v);
    few.cut.layers[static_cast<unsigned>(c * few.pp + stage)] =
        static_cast<std::int16_t>(count[c] < 4 ? count[c] : 4);
  }
  const int all = few.pp * few.virtual_stages, lowest = a.lowest();
  const auto begin = [&](int c) { return first_layer_of_stage(few, 0, c * few.pp + stage); };
  int lowest_of_few = begin(0) - 1; // its counterpart, which may be in another stage
  for (int c = 0; c < few.virtual_stages && lowest >= first[c]; ++c) {
    const int k = lowest - first[c], n = count[c] < 4 ? count[c] : 4;
    lowest_of_few = begin(c) + (k < 2 ? k : count[c] - k > n - 2 ? 2 : n - (count[c] - k));
    if (k >= count[c]) lowest_of_few = begin(c) + n;
  }
  const int most = a.numbers->batch.micro_batches;
  const stage_shape s(
      first_layer_of_stage(few, 0, all), a.kinds(), few, stage,
      [&](int l) {
        const int c = l < first_layer_of_stage(few, 0, few.pp) ? 0 : 1, k = l - begin(c);
        return a.kind_of(first[c] + (k < 2 || count[c] < 4 ? k : count[c] - 4 + k));
      },
      most < 2 * few.pp ? most : 2 * few.pp, lowest_of_few);
  return verify_stage(a.planned, s, training, s.micros_to_prove());
}

/// The most passes of a schedule that a compiler checks, since it takes long over more. A session
/// checks its own number.
inline constexpr int max_passes_to_compile = 1 << 12;
/// Returns the fault of the schedule with `rounds` times as many micro-batches as there are stages,
/// and `more`.
constexpr fault_record fault_of_schedule(const setup& s, int rounds, int more) {
  const pipeline p(s.ranks);
  const int micros = rounds * p.stages + more, most = s.batch.micro_batches;
  if (p.stages == 1 || (p.chunks > 1 && more > 0) || (most > 0 && micros > most) ||
      2 * micros * p.virtual_stages() > max_passes_to_compile)
    return {};
  return verify_schedule(schedule_of(s.ranks), p, micros);
}

/// Returns the fault of the registry of a stage, which a rank makes at start.
template <class Model>
constexpr fault_record fault_of_stage(const assembling<Model>& a, int number) {
  const layout& l = a.numbers->ranks;
  std::array<int, most_kinds<Model> + 2>
      before{}; // layers of earlier stages; the last one has the head
  for (int v = 0, layer = 0; v < l.pp * l.virtual_stages; ++v) {
    const bool earlier = v % l.pp < number;
    if (earlier && v == 0) ++before[0];
    for (int n = layers_of_stage(l, layers_of(*a.model), v); n > 0; --n, ++layer)
      if (earlier) ++before[static_cast<unsigned>(1 + a.kind_of(layer))];
  }
  const auto parts = static_cast<unsigned>(a.parts());
  return verified_registry(a.of_training(), a.stage(number).layers, a.numbers->ranks.zero,
                           a.ranks(), std::span(before).first(parts))
      .wrong;
}

} // namespace detail

/// The list of the steps of a program.
template <class Model> class assembly_list {
public:
  using step = assembly_step<Model>;
  using state = assembling<Model>;

  constexpr assembly_list() {
    const auto part = [](const state& a, int number) { return a.is_part(number); };
    add({.name = "write",
         .is = step::graphs,
         .alone = true,
         .of = part,
         .make = [](const state& a, int i) {
           return written_graph(*a.model, *a.numbers, a.what(i), a.used.kind(i - 1) % Model::kinds);
         }});
    add({.name = "adapt",
         .is = step::graphs,
         .alone = true,
         .of = [](const state& a, int i) { return a.is_part(i) && a.numbers->adapter.rank > 0; },
         .make =
             [](const state& a, int i) {
               return adapted_graph<Model>(a.g(i), *a.numbers, a.what(i), a.used.kind(i - 1));
             }});
    add({.name = "hoist",
         .is = step::graphs,
         .alone = true,
         .of = part,
         .make = [](const state& a, int i) { return hoisted_graph(a.g(i)); }});
    hoisted_ = count_;
    check("computed ties",
          [](const state& a, int) { return fault_of_computed_ties(a.of_training()); });
    check("experts",
          [](const state& a, int) { return fault_of_experts(a.of_training(), *a.numbers); });
    check("adapter", [](const state& a, int) {
      return fault_of_adapter(a.of_training(), a.numbers->adapter, published_of<Model>(),
                              layers_of(*a.model));
    });
    check("frozen",
          [](const state& a, int) { return fault_of_frozen(a.of_training(), a.numbers->frozen); });
    add({.name = "evaluate",
         .is = step::graphs,
         .of = [](const state& a, int i) { return a.is_evaluation(i); },
         .make = [](const state& a, int) { return a.g(a.head()); }});
    add({.name = "meanings", .is = step::meanings, .alone = true, .of = [](const state& a, int i) {
           return a.is_part(i) || a.is_evaluation(i);
         }});
    [this]<int... P>(std::integer_sequence<int, P...>) { (this->template add_pass<P>(), ...); }
    (std::make_integer_sequence<int, pass_count>{});
    add({.name = "registry", .is = step::stores, .make_stores = [](const state& a) {
           const auto layers = a.layers();
           return verified_registry(a.of_training(),
                                    std::span(layers).first(static_cast<unsigned>(a.parts())),
                                    a.numbers->ranks.zero, a.ranks());
         }});
    add({.name = "update",
         .is = step::graphs,
         .of = [](const state& a, int i) { return i == part_of_update(a.kinds()); },
         .make = [](const state& a,
                    int) { return update_graph(*a.stores, a.ranks(), a.numbers->precision); }});
    add({.name = "totals",
         .is = step::graphs,
         .of = [](const state& a, int i) { return i == part_of_totals(a.kinds()); },
         .make = [](const state& a, int) { return totals_graph(a.ranks()); }});
    check(
        "the registries of stages",
        [](const state& a, int stage) { return detail::fault_of_stage(a, stage); },
        [](const state& a) { return a.numbers->ranks.pp > 1 ? a.numbers->ranks.pp : 0; });
    add({.name = "plans", .is = step::plans});
    const auto graphs = [](const state& a) { return a.count(); };
    add({.name = "memory in one trip",
         .alone = true,
         .items = graphs,
         .fault_of = [](const state& a, int i) {
           const auto k = static_cast<unsigned>(i);
           return verify_memory(a.g(i), *a.plans[k], *a.orders[k], 1);
         }});
    add({.name = "memory in several trips",
         .alone = true,
         .of = [](const state& a, int i) { return a.g(i).region_count > 0; },
         .items = graphs,
         .fault_of =
             [](const state& a, int i) {
               const auto k = static_cast<unsigned>(i);
               return verify_memory(a.g(i), *a.plans[k], *a.orders[k], 2);
             }});
    add({.name = "planned graphs", .is = step::planned});
    check_numbers(
        "schedules",
        [](const state& a, int i) {
          constexpr int rounds[] = {1, 1, 2, 4}, more[] = {0, 1, 0, 0};
          return detail::fault_of_schedule(*a.numbers, rounds[i], more[i]);
        },
        [](const state&) { return 4; });
    check_numbers("micro-batches in flight", [](const state& a, int) {
      const layout& l = a.numbers->ranks;
      return verify_flights(schedule_of(l), l, a.numbers->batch.micro_batches);
    });
    check(
        "steps", [](const state& a, int i) { return detail::fault_of_step(a, i >= 2, i % 2 == 0); },
        [](const state& a) { return a.numbers->ranks.pp > 1 ? 4 : 2; });
  }

  constexpr int count() const { return count_; }
  constexpr const step& operator[](int i) const { return all_[static_cast<unsigned>(i)]; }
  /// Returns the number of steps after which the graphs are those of the model, hoisted.
  constexpr int hoisted() const { return hoisted_; }

private:
  constexpr void add(const step& s) { all_[static_cast<unsigned>(count_++)] = s; }
  constexpr void check(const char* name, fault_record (*fault_of)(const state&, int),
                       int (*items)(const state&) = nullptr) {
    add({.name = name, .items = items, .fault_of = fault_of});
  }
  /// Adds a check of numbers, which reads no graph.
  constexpr void check_numbers(const char* name, fault_record (*fault_of)(const state&, int),
                               int (*items)(const state&) = nullptr) {
    add({.name = name, .alone = true, .items = items, .fault_of = fault_of});
  }
  /// Adds a check of the graphs that the last step of kind `graphs` has made.
  constexpr void check_made(const char* name, fault_record (*fault_of)(const state&, int)) {
    add({.name = name,
         .alone = true,
         .of_made = true,
         .items = [](const state& a) { return a.count(); },
         .fault_of = fault_of});
  }
  /// Adds a pass and all checks of its results.
  template <int P> constexpr void add_pass() {
    constexpr bool derives = P < deriving_passes;
    add({.name = all_passes[P].name,
         .is = step::graphs,
         .alone = true,
         .of =
             [](const state& a, int i) {
               return (a.is_part(i) || a.is_evaluation(i)) &&
                      all_passes[P].applies(a.g(i), a.options(i));
             },
         .make = [](const state& a, int i) { return all_passes[P].apply(a.g(i), a.options(i)); }});
    [this]<int... C>(std::integer_sequence<int, C...>) {
      (this->check_made(pass_checks[C].name,
                        [](const state& a, int i) {
                          return pass_checks[C].fault_of(a.g(i), *a.owes[static_cast<unsigned>(i)],
                                                         a.options(i).backward, derives);
                        }),
       ...);
    }
    (std::make_integer_sequence<int, pass_check_count>{});
    if constexpr (derives)
      add({.name = "meanings", .is = step::meanings, .alone = true, .of_made = true});
    if constexpr (P != deriving_passes - 1) return;
    check("ties", [](const state& a, int) { return fault_of_ties(a.of_training()); });
    check("roles", [](const state& a, int) {
      return fault_of_roles(a.of_training(), a.numbers->precision);
    });
  }

  step all_[64]{};
  int count_ = 0, hoisted_ = 0;
};
template <class Model> inline constexpr assembly_list<Model> assembly{};

} // namespace mc
