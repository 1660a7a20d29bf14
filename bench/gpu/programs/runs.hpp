// Runs for a GPU: those whose speed is measured, and one whose numbers are compared with a CPU's.
#pragma once

#include "small_experts.hpp"

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/megacpp.hpp>
#include <megacpp/preset/models.hpp>

/// The first layers of a model: as much of it as fits on one GPU with its optimizer.
template <class Model> constexpr Model first_layers(Model m, int layers) {
  m.layers = layers;
  return m;
}

struct on_cuda {
  static constexpr mc::layout layout{};
  using precision = mc::bf16_mixed;
  using device = mc::cuda;
};
struct gpt2_124m_on_cuda : on_cuda {
  static constexpr auto model = mc::preset::gpt2_124m;
  static constexpr mc::batching batch{.micro = 32, .sequence = 1024};
};
struct gpt2_1558m_on_cuda : on_cuda {
  static constexpr auto model = mc::preset::gpt2_1558m;
  static constexpr mc::batching batch{.micro = 8, .sequence = 1024};
};
/// Shaped as Qwen3-8B, with 8 of its 36 layers.
struct qwen3_8b_on_cuda : on_cuda {
  static constexpr auto model = first_layers(mc::preset::qwen3_8b, 8);
  static constexpr mc::batching batch{.micro = 2, .sequence = 4096};
};
/// All layers, whose weights alone fit: it decodes.
struct qwen3_8b_whole_on_cuda : on_cuda {
  static constexpr auto model = mc::preset::qwen3_8b;
  static constexpr mc::batching batch{.micro = 1, .sequence = 4096};
};
/// Shaped as Qwen3-30B-A3B, with 2 of its 48 layers.
struct qwen3_30b_a3b_on_cuda : on_cuda {
  static constexpr auto model = first_layers(mc::preset::qwen3_30b_a3b, 2);
  static constexpr mc::batching batch{.micro = 2, .sequence = 4096};
};

struct small_experts_on_cuda : small_experts {
  using device = mc::cuda;
};
