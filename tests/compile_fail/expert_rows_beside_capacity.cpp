// expect-error: MEGA-C003
// expect-text: experts of a capacity take its rows at once: leave expert_rows out
//
// Two bounds on the rows of experts, of which only the capacity would count.
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/program.hpp>

constexpr mc::qwen3_moe mixture() {
  mc::qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 32;
  m.expert_ffn = 8, m.experts = 4, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 32;
#ifdef MEGACPP_EXPECT_ERROR
  m.capacity = 1.5;
#endif
  return m;
}

struct run {
  static constexpr mc::qwen3_moe model = mixture();
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{2, 16, false, 64};
  using precision = mc::fp32;
};
static_assert(mc::program<run>::ok);
