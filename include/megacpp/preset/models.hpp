// Named models, which are values only. tests/unit/parameters.cpp compares their numbers of
// parameters with published figures.
#pragma once

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/llama.hpp>
#include <megacpp/model/qwen2.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

namespace mc::preset {

/// A byte-level GPT that learns a book in a minute on two cores.
inline constexpr gpt byte_gpt{.layers = 4,
                              .hidden = 192,
                              .heads = 6,
                              .ffn = 768,
                              .vocabulary = 256,
                              .positions = 128,
                              .bias = false};
/// nanoGPT's CPU configuration on tinyshakespeare, whose bytes have 65 values below 128.
inline constexpr gpt char_gpt{.layers = 4,
                              .hidden = 128,
                              .heads = 4,
                              .ffn = 512,
                              .vocabulary = 65,
                              .positions = 64,
                              .bias = false};

constexpr gpt gpt2(int layers, int hidden, int heads) {
  return {.layers = layers, .hidden = hidden, .heads = heads, .ffn = 4 * hidden};
}
inline constexpr gpt gpt2_124m = gpt2(12, 768, 12), gpt2_350m = gpt2(24, 1024, 16),
                     gpt2_774m = gpt2(36, 1280, 20), gpt2_1558m = gpt2(48, 1600, 25);

/// Returns a GPT as in the Megatron papers: S 2048, V 51,200.
constexpr gpt megatron(int layers, int hidden, int heads) {
  return {.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .ffn = 4 * hidden,
          .vocabulary = 51200,
          .positions = 2048};
}
inline constexpr gpt gpt3_175b{.layers = 96,
                               .hidden = 12288,
                               .heads = 96,
                               .ffn = 49152,
                               .vocabulary = 50257,
                               .positions = 2048};
inline constexpr gpt megatron_1_7b = megatron(24, 2304, 24), megatron_3_6b = megatron(30, 3072, 32),
                     megatron_7_5b = megatron(36, 4096, 32),
                     megatron_18_4b = megatron(40, 6144, 48),
                     megatron_39_1b = megatron(48, 8192, 64),
                     megatron_76_1b = megatron(60, 10240, 80),
                     megatron_145_6b = megatron(80, 12288, 96),
                     megatron_310_1b = megatron(96, 16384, 128),
                     megatron_529_6b = megatron(105, 20480, 128),
                     megatron_1008b = megatron(128, 25600, 160);

/// Returns a Llama 3 of a size. From 3.1 on, models were trained further on `factor` times 8192
/// positions and more.
constexpr llama llama3_sized(int layers, int hidden, int heads, int head_dim, int ffn, bool tied,
                             double factor) {
  llama m{.layers = layers,
          .hidden = hidden,
          .heads = heads,
          .head_dim = head_dim,
          .ffn = ffn,
          .tied = tied};
  if (factor > 1) {
    m.positions = 131072;
    m.rope_scaling = {rope_type::llama3, factor, 8192, 1, 4};
  }
  return m;
}
inline constexpr llama llama3_8b = llama3_sized(32, 4096, 32, 128, 14336, false, 1),
                       llama3_1_8b = llama3_sized(32, 4096, 32, 128, 14336, false, 8),
                       llama3_2_1b = llama3_sized(16, 2048, 32, 64, 8192, true, 32),
                       llama3_2_3b = llama3_sized(28, 3072, 24, 128, 8192, true, 32);

inline constexpr qwen2 qwen2_5_0_5b{},
    qwen2_5_1_5b{.layers = 28,
                 .hidden = 1536,
                 .heads = 12,
                 .head_dim = 128,
                 .ffn = 8960,
                 .positions = 131072},
    qwen2_5_7b{.layers = 28,
               .hidden = 3584,
               .heads = 28,
               .kv_heads = 4,
               .head_dim = 128,
               .ffn = 18944,
               .vocabulary = 152064,
               .positions = 131072,
               .tied = false};

constexpr qwen3 qwen3_sized(int layers, int hidden, int heads, int ffn, bool tied) {
  return {.layers = layers, .hidden = hidden, .heads = heads, .ffn = ffn, .tied = tied};
}
inline constexpr qwen3 qwen3_0_6b = qwen3_sized(28, 1024, 16, 3072, true),
                       qwen3_1_7b = qwen3_sized(28, 2048, 16, 6144, true),
                       qwen3_4b = qwen3_sized(36, 2560, 32, 9728, true),
                       qwen3_8b = qwen3_sized(36, 4096, 32, 12288, false),
                       qwen3_14b = qwen3_sized(40, 5120, 40, 17408, false),
                       qwen3_32b = qwen3_sized(64, 5120, 64, 25600, false);

/// A small mixture of experts for measurements on CPUs.
inline constexpr qwen3_moe qwen3_moe_165m{.layers = 8,
                                          .hidden = 512,
                                          .heads = 8,
                                          .kv_heads = 2,
                                          .head_dim = 64,
                                          .ffn = 1536,
                                          .expert_ffn = 384,
                                          .experts = 32,
                                          .experts_per_token = 4,
                                          .vocabulary = 8192,
                                          .positions = 4096};
inline constexpr qwen3_moe qwen3_30b_a3b{},
    qwen3_235b_a22b{.layers = 94, .hidden = 4096, .heads = 64, .ffn = 12288, .expert_ffn = 1536};

} // namespace mc::preset
