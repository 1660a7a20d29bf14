// program<Run>: the graphs of a run after all passes, its memory plan and registry, each its own
// constant.
#pragma once

#include <megacpp/num/precision.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/run/report.hpp>

#include <type_traits>

namespace mc {

namespace detail {

template <class Run> constexpr setup setup_of() {
  setup s;
  s.ranks = Run::layout;
  s.batch = Run::batch;
  s.type = Run::precision::type;
  if constexpr (requires { Run::recompute; }) s.again = Run::recompute;
  return s;
}

/// One sequence at a time on the same layout: what generation runs.
constexpr setup for_generation(setup s) {
  s.batch.micro = 1;
  s.batch.packed = false;
  return s;
}

/// The first fault of a list of graphs.
template <unsigned N>
constexpr fault_record first_fault(const std::array<const graph*, N>& graphs) {
  for (const graph* g : graphs)
    if (g->wrong.code != fault::none) return g->wrong;
  return {};
}

} // namespace detail

template <class Run> struct program {
  using model_type = std::remove_cv_t<decltype(Run::model)>;
  static constexpr model_type model = Run::model;
  static constexpr setup numbers = detail::setup_of<Run>();
  static constexpr int kinds = model_type::kinds;
  static constexpr int last = kinds + 1; ///< registry part of the head

  /// Forward graph of a part, and how the registry counts it: 0 stem, 1 ... kinds, last head.
  template <int Index> struct forward {
    static constexpr part_kind what = Index == 0      ? part_kind::stem
                                      : Index == last ? part_kind::loss
                                                      : part_kind::block;
    static constexpr graph g = forward_graph(model, numbers, what, Index - 1);
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
    for (int l = 0; l < model.layers; ++l) ++n[static_cast<unsigned>(1 + model.kind_of(l))];
    return n;
  }
  static constexpr registry stores =
      make_registry<static_cast<unsigned>(kinds + 2)>(forward_graphs(), layer_counts());
  static constexpr std::int64_t parameters =
      count_parameters<static_cast<unsigned>(kinds + 2)>(forward_graphs(), layer_counts());

  /// Training: each pass's result is its own constant.
  template <int Index> struct part {
    static constexpr int index = Index;
    static constexpr const registry& stores = program::stores;
    static constexpr graph derived = derived_graph(forward<Index>::g);
    static constexpr graph joined = verified(fused(derived));
    static constexpr graph replayed =
        verified(recomputed(joined, Index == 0 || Index == last ? recompute::none : numbers.again));
    static constexpr graph g = verified(halved(replayed));
    static constexpr memory_plan plan = place_memory(g);
  };
  /// The head's forward alone.
  struct evaluation {
    static constexpr int index = last;
    static constexpr const registry& stores = program::stores;
    static constexpr graph g = verified(fused(forward<last>::g));
    static constexpr memory_plan plan = place_memory(g);
  };
  template <int Index> struct generation {
    static constexpr int index = Index;
    static constexpr const registry& stores = program::stores;
    static constexpr part_kind what = Index == 0      ? part_kind::stem
                                      : Index == last ? part_kind::logits
                                                      : part_kind::block;
    static constexpr graph g =
        verified(fused(forward_graph(model, detail::for_generation(numbers), what, Index - 1)));
    static constexpr memory_plan plan = place_memory(g);
  };
  struct update {
    static constexpr int index = 0;
    static constexpr const registry& stores = program::stores;
    static constexpr graph g = update_graph(program::stores, mesh(numbers.ranks), numbers.type);
    static constexpr memory_plan plan = place_memory(g);
  };

  static constexpr auto final_graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<const graph*, 2 * sizeof...(K) + 2>{&part<K>::g..., &update::g,
                                                            &evaluation::g, &generation<K>::g...};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }
  static constexpr auto derived_graphs() {
    return []<int... K>(std::integer_sequence<int, K...>) {
      return std::array<const graph*, sizeof...(K)>{&part<K>::derived...};
    }
    (std::make_integer_sequence<int, kinds + 2>{});
  }
  static constexpr fault_record in_graphs =
      detail::first_fault<static_cast<unsigned>(2 * kinds + 6)>(final_graphs());
  static constexpr fault_record wrong =
      in_graphs.code != fault::none
          ? in_graphs
          : fault_of_ties<static_cast<unsigned>(kinds + 2)>(derived_graphs());
  /// The one assertion of a run.
  static constexpr bool ok = reported<Run, program>;
};

} // namespace mc
