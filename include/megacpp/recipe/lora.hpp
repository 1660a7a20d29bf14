// Adapters of low rank (LoRA: Hu et al., "LoRA: Low-rank adaptation of large language models",
// 2021): the linear layer y = W x becomes y = W x + scale B A x. W stays as it is, and A (r, in)
// and B (out, r) are trained.
#pragma once

#include <megacpp/num/elementary.hpp>
#include <megacpp/recipe/layer_set.hpp>

#include <concepts>
#include <cstdint>
#include <string_view>

namespace mc {

/// A linear layer that has another name in the files of its family than in the graph. Layers of
/// one published name are one layer there, so an adapter has one A for them, and a B for each.
struct published_layer {
  const char* layer;
  const char* published;
};
/// The linear layers of a family that have other names in files; those of one published name in
/// the order in which files have them. A model gives it as a member:
/// static constexpr mc::published_layers published{{{"attn.q", "attn.c_attn"}, ...}}.
struct published_layers {
  static constexpr int most = 16;
  published_layer all[most]{};

  /// Returns the place of a layer in the list, or `most` for one that has no other name.
  constexpr int place_of(std::string_view layer) const {
    int i = 0;
    while (i < most && (all[i].layer == nullptr || layer != all[i].layer)) ++i;
    return i;
  }
  /// Returns the published name of a layer, or null where its name in the graph is that.
  constexpr const char* of(std::string_view layer) const {
    const int i = place_of(layer);
    return i < most ? all[i].published : nullptr;
  }
};
template <class Model> constexpr published_layers published_of() {
  if constexpr (requires { Model::published; }) return Model::published;
  else return {};
}

/// The linear layers that a run adapts. A name is the end of a layer's published name from a point
/// on, such as "q_proj" or "self_attn.o_proj"; "experts" means all matrices of experts, and
/// "all-linear" every linear layer of the blocks but the router of experts.
struct lora_targets {
  static constexpr int most = 16;
  const char* names[most]{};
  int count = 0;

  constexpr lora_targets() = default;
  template <class... Names>
  requires(sizeof...(Names) > 0 && (... && std::convertible_to<Names, const char*>)) //
      constexpr explicit(false) lora_targets(Names... all)
      : names{all...}, count(sizeof...(Names)) {
    static_assert(sizeof...(Names) <= most,
                  "MEGA-C010 an adapter has at most 16 targets: give the common end of several");
  }
};

/// Returns whether a target means the linear layer of this scope, which may be one of experts.
/// "down_proj" means no experts, since files of PEFT tell them from layers: experts.down_proj.
constexpr bool names_layer(std::string_view target, std::string_view scope, bool of_experts) {
  if (target == "all-linear" || (of_experts && target == "experts")) return true;
  if (of_experts && target.find("experts.") == std::string_view::npos) return false;
  return scope.ends_with(target) &&
         (scope.size() == target.size() || scope[scope.size() - target.size() - 1] == '.');
}

/// Numbers of single layers, by the ends of their published names: {{"q_proj", 8}, {"o_proj", 2}}.
struct lora_pattern {
  static constexpr int most = 16;
  struct number {
    const char* layer;
    double value;
  };
  number all[most]{};
  int count = 0;

  constexpr lora_pattern() = default;
  template <int N>
  requires(N <= most) //
      constexpr explicit(false) lora_pattern(const number (&given)[N])
      : count(N) {
    for (int i = 0; i < N; ++i) all[i] = given[i];
  }
  /// Returns the number of a layer, or `other` where no name means it.
  constexpr double of(std::string_view layer, double other) const {
    for (int i = 0; i < count; ++i)
      if (names_layer(all[i].layer, layer, false)) return all[i].value;
    return other;
  }
};

/// The storage of the frozen linear layers of an adapted model: as they are, or in NF4 with double
/// quantisation (QLoRA: Dettmers, Pagnoni, Holtzman, Zettlemoyer 2023), 4.13 bits a
/// weight.
enum class base_storage : std::uint8_t { plain, nf4 };

constexpr const char* name_of(base_storage f) { return f == base_storage::nf4 ? "nf4" : "plain"; }

/// The adapter of a run: static constexpr mc::lora adapter{.rank = 16, .alpha = 32, .targets =
/// {"q_proj", "v_proj"}}. With it the parameters of the model are frozen.
struct lora {
  int rank = 0;        ///< r, columns of A x; 0: the run has no adapter
  double alpha = 16;   ///< the scale is alpha / r
  bool rslora = false; ///< the scale is alpha / sqrt(r) (Kalajdzievski 2023)
  lora_targets targets{"all-linear"};
  lora_targets excluded{}; ///< layers that have none, though a target means them
  layer_set layers{};      ///< the blocks that have the adapter, by number from 0; none given: all
  lora_pattern ranks{};    ///< layers of another rank (rank_pattern of PEFT); not experts
  lora_pattern alphas{};   ///< layers of another alpha (alpha_pattern of PEFT); not experts
  /// Modules of the model that are trained as a whole beside the factors, by the ends of their
  /// names (modules_to_save of PEFT), such as "lm_head".
  lora_targets saved{};
  double dropout = 0; ///< probability of dropout of the x that A reads, in training; not of experts
  base_storage base = base_storage::plain; ///< all linear layers of the blocks but a router

  /// Returns whether the block of a layer of the model has the adapter.
  constexpr bool is_in(int layer) const { return layers.empty() || layers.holds(layer); }
  /// Returns whether a linear layer has factors, by its published name, in a block that has the
  /// adapter.
  constexpr bool adapts(std::string_view layer, bool of_experts) const {
    const auto among = [&](const lora_targets& t) {
      for (int k = 0; k < t.count; ++k)
        if (names_layer(t.names[k], layer, of_experts)) return true;
      return false;
    };
    return among(targets) && !among(excluded);
  }
  /// Returns whether a module is trained as a whole, by its name in files.
  constexpr bool saves(std::string_view module) const {
    for (int k = 0; k < saved.count; ++k)
      if (names_layer(saved.names[k], module, false)) return true;
    return false;
  }
  /// Returns the rank of a layer, by its published name.
  constexpr int rank_of(std::string_view layer) const {
    return static_cast<int>(ranks.of(layer, rank));
  }
  /// Returns the factor of B A x of a layer of a rank; 0 for a rank that none can have.
  constexpr double scale_of(std::string_view layer, double r) const {
    return r > 0 ? alphas.of(layer, alpha) / (rslora ? square_root(r) : r) : 0;
  }
  constexpr double scale_of(std::string_view layer) const {
    return scale_of(layer, rank_of(layer));
  }
  /// Returns the factor of B A x of a layer without numbers of its own.
  constexpr double scale() const { return alpha / (rslora ? square_root(rank) : rank); }
};

} // namespace mc
