// The programs that bench/gpu/ten_minutes.py measures compile, and fit on an H100. So does the whole of
// Qwen3-30B-A3B on 16 of them, and an adapter of it on one or two.
#include "../../bench/gpu/programs/runs.hpp"

#include <megacpp/run/compiled.hpp>

using mc::operator""_GiB;

static_assert(mc::fits<gpt2_124m_on_cuda>(75_GiB));
static_assert(mc::fits<gpt2_1558m_on_cuda>(75_GiB));
static_assert(mc::fits<qwen3_8b_on_cuda>(75_GiB));
static_assert(mc::memory<qwen3_8b_whole_on_cuda>().weights < 20_GiB); // it only decodes
static_assert(mc::fits<qwen3_30b_a3b_on_cuda>(75_GiB));
static_assert(mc::fits<small_experts_on_cuda>(1_GiB));

/// Two stages, each of 8 ranks, which are replicas but of their experts: 16 each.
struct qwen3_30b_a3b_on_16 {
  static constexpr auto model = mc::preset::qwen3_30b_a3b;
  static constexpr mc::layout layout{.pp = 2, .ep = 8};
  static constexpr mc::batching batch{.micro = 1, .sequence = 4096};
  static constexpr auto recompute = mc::recompute::full;
  using precision = mc::bf16_mixed;
  using device = mc::cuda;
};
static_assert(mc::fits<qwen3_30b_a3b_on_16>(75_GiB, 8));
/// The same, keeping what the backward pass needs.
struct qwen3_30b_a3b_kept_on_16 : qwen3_30b_a3b_on_16 {
  static constexpr auto recompute = mc::recompute::none;
};
static_assert(!mc::fits<qwen3_30b_a3b_kept_on_16>(75_GiB, 8));

/// An adapter of rank 16 on attention and experts: beside a base in NF4 on one GPU, and beside one in
/// bf16 on two.
struct qwen3_30b_a3b_qlora {
  static constexpr auto model = mc::preset::qwen3_30b_a3b;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{.micro = 1, .sequence = 4096};
  static constexpr auto recompute = mc::recompute::full;
  static constexpr mc::lora adapter{.rank = 16, .alpha = 32, .base = mc::base_storage::nf4};
  using precision = mc::bf16_mixed;
  using device = mc::cuda;
};
static_assert(mc::fits<qwen3_30b_a3b_qlora>(75_GiB));
struct qwen3_30b_a3b_lora : qwen3_30b_a3b_qlora {
  static constexpr mc::layout layout{.ep = 2};
  static constexpr mc::lora adapter{.rank = 16, .alpha = 32};
};
static_assert(mc::fits<qwen3_30b_a3b_lora>(75_GiB, 2));
