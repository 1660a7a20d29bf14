// Adapters of low rank (LoRA: Hu et al., "LoRA: Low-rank adaptation of large language models",
// 2021): the linear layer y = W x becomes y = W x + scale B A x. W stays as it is, and A (r, in)
// and B (out, r) are trained.
#pragma once

#include <megacpp/num/elementary.hpp>

#include <concepts>

namespace mc {

/// The linear layers that a run adapts. A name is the end of a layer's name from a point on, such
/// as "q_proj" or "self_attn.o_proj"; "all-linear" means every linear layer of the blocks.
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

/// The adapter of a run: static constexpr mc::lora adapter{.rank = 16, .alpha = 32, .targets =
/// {"q_proj", "v_proj"}}. With it the parameters of the model are frozen.
struct lora {
  int rank = 0;        ///< r, columns of A x; 0: the run has no adapter
  double alpha = 16;   ///< the scale is alpha / r
  bool rslora = false; ///< the scale is alpha / sqrt(r) (Kalajdzievski 2023)
  lora_targets targets{"all-linear"};

  /// Returns the factor of B A x.
  constexpr double scale() const { return alpha / (rslora ? square_root(rank) : rank); }
};

} // namespace mc
