// The compile-time half of the largest presets, under layouts that use every axis: one unit for
// compilers with a limit on the steps of a constant evaluation.
#include <megacpp/graph/letters.hpp>
#include <megacpp/plan/count.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/run/program.hpp>

namespace {

struct gpt3_175b {
  static constexpr auto model = mc::preset::gpt3_175b;
  static constexpr mc::layout layout{.tp = 8, .pp = 8, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 1, .sequence = 2048};
  using precision = mc::bf16_mixed;
};
struct megatron_1008b {
  static constexpr auto model = mc::preset::megatron_1008b;
  static constexpr mc::layout layout{.tp = 8, .pp = 64, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 1, .sequence = 2048};
  using precision = mc::bf16_mixed;
  static constexpr auto recompute = mc::recompute::full;
};
struct qwen3_32b {
  static constexpr auto model = [] {
    mc::qwen3 m = mc::preset::qwen3_32b;
    m.rope_scaling = {.type = mc::rope_type::yarn, .factor = 4};
    return m;
  }();
  static constexpr mc::layout layout{.tp = 16, .cp = 2, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 1, .sequence = 4096, .packed = true};
  using precision = mc::bf16_mixed;
  static constexpr auto recompute = mc::recompute::selective;
};

struct qwen3_235b_a22b {
  static constexpr auto model = mc::preset::qwen3_235b_a22b;
  static constexpr mc::layout layout{.tp = 4, .pp = 2, .cp = 2, .ep = 8, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 1, .sequence = 4096, .packed = true};
  using precision = mc::bf16_mixed;
  static constexpr auto recompute = mc::recompute::full;
};

/// A mixture with further MLPs before its experts: room for what models of tomorrow have.
struct deeper : mc::qwen3_moe {
  constexpr mc::var block(mc::context& c, int kind, mc::var x) const {
    constexpr const char* names[][4] = {
        {"norm.0", "mlp.0.gate_proj", "mlp.0.up_proj", "mlp.0.down_proj"},
        {"norm.1", "mlp.1.gate_proj", "mlp.1.up_proj", "mlp.1.down_proj"},
        {"norm.2", "mlp.2.gate_proj", "mlp.2.up_proj", "mlp.2.down_proj"},
        {"norm.3", "mlp.3.gate_proj", "mlp.3.up_proj", "mlp.3.down_proj"}};
    for (const auto& name : names) {
      const mc::extent F{mc::dim::ffn, ffn};
      const mc::var m = to(rms_norm(c, name[0], x, eps), mc::axis::tp, mc::R);
      const mc::var gate = column_parallel(c, name[1], m, {F}, false, std),
                    up = column_parallel(c, name[2], m, {F}, false, std);
      x = x + row_parallel(c, name[3], swiglu(gate, up), 1, hidden_extent(), false, std);
    }
    return mc::qwen3_moe::block(c, kind, x);
  }
};
struct deeper_235b_a22b : qwen3_235b_a22b {
  static constexpr deeper model{mc::preset::qwen3_235b_a22b};
};

template <class Run> constexpr bool planned() {
  using program = mc::program<Run>;
  return program::ok && program::template part<1>::plan.working > 0 &&
         program::template part<2>::plan.working > 0 &&
         program::template generation<1>::g.wrong.code == mc::fault::none &&
         program::parameters > 0;
}
static_assert(planned<gpt3_175b>());
static_assert(planned<megatron_1008b>());
static_assert(planned<qwen3_32b>());
static_assert(planned<qwen3_235b_a22b>());

// Graphs have room to grow to 1.6 times the largest of them.
static_assert(planned<deeper_235b_a22b>());
static_assert(mc::program<deeper_235b_a22b>::part<1>::g.node_count * 10 >=
              mc::program<qwen3_235b_a22b>::part<1>::g.node_count * 16);

} // namespace
