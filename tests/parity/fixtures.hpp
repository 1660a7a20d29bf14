// The tiny models that transformers made, as the numbers of their config.json.
#pragma once

#include <megacpp/preset/models.hpp>
#include <where.hpp>

#include <filesystem>
#include <string>

namespace test {

inline constexpr mc::gpt tiny_gpt2{
    .layers = 2, .hidden = 64, .heads = 4, .ffn = 256, .vocabulary = 128, .positions = 32};
inline constexpr mc::qwen3 tiny_qwen3{.layers = 2,
                                      .hidden = 64,
                                      .heads = 4,
                                      .kv_heads = 2,
                                      .head_dim = 32,
                                      .ffn = 96,
                                      .vocabulary = 160,
                                      .positions = 64,
                                      .tied = false,
                                      .rope_theta = 10000};
inline constexpr mc::qwen3_moe tiny_qwen3_moe{.layers = 2,
                                              .hidden = 64,
                                              .heads = 4,
                                              .kv_heads = 2,
                                              .head_dim = 32,
                                              .ffn = 96,
                                              .expert_ffn = 32,
                                              .experts = 8,
                                              .experts_per_token = 2,
                                              .vocabulary = 160,
                                              .positions = 64,
                                              .rope_theta = 10000};
/// The fixture's loss has no load-balancing term.
inline constexpr mc::qwen3_moe tiny_qwen3_moe_unbalanced = [] {
  mc::qwen3_moe m = tiny_qwen3_moe;
  m.aux_loss = 0;
  return m;
}();
inline constexpr mc::batching tiny_batch{.micro = 4, .sequence = 24};

inline std::filesystem::path fixtures(const std::string& family) {
  return std::filesystem::path(test::shared_dir) / "fixtures" / "hf" / family;
}

} // namespace test
