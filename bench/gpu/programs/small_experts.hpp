// A small mixture of experts, whose numbers on a GPU are compared with those of a CPU.
#pragma once

#include <megacpp/megacpp.hpp>

/// A small mixture of experts, whose tokens reach all heads, experts and norms of the family.
struct small_experts {
  static constexpr mc::layout layout{};
  static constexpr mc::qwen3_moe model{.layers = 2,
                                       .hidden = 128,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 32,
                                       .ffn = 256,
                                       .expert_ffn = 64,
                                       .experts = 8,
                                       .experts_per_token = 2,
                                       .vocabulary = 512,
                                       .positions = 128};
  static constexpr mc::batching batch{.micro = 4, .sequence = 128};
  using precision = mc::bf16_mixed;
  using device = mc::cpu;
};
