// The compile-time half of the largest presets, under layouts that use every axis: one unit for
// compilers with a limit on the steps of a constant evaluation.
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
  static constexpr auto model = mc::preset::qwen3_32b;
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

} // namespace
