// Tests ten layouts beside the four of tests/laws/compiled_ranks.cpp: whether a compiled program
// has the bits of the interpreter's. layouts.py compiles and runs it, with -DLAYOUT=k for each;
// with -DKERNELS it is the unit that all of them link.
#if defined(KERNELS)
#define MEGACPP_KERNELS
#include <kernels.hpp>
#else
#include <laws/compiled_bits.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <cstdio>

using namespace mc;

namespace {

template <class Model> constexpr Model sized(Model m) {
  m.layers = 4, m.hidden = 32, m.heads = 4, m.ffn = 64, m.vocabulary = 61, m.positions = 32;
  return m;
}
constexpr gpt dropping = [] {
  gpt m = sized(gpt{});
  m.tied = true, m.dropout = 0.1;
  return m;
}();
constexpr qwen3 grouped = [] {
  qwen3 m = sized(qwen3{});
  m.kv_heads = 2, m.head_dim = 8;
  return m;
}();
constexpr qwen3_moe mixture = [] {
  qwen3_moe m = sized(qwen3_moe{});
  m.layers = 2, m.kv_heads = 4, m.head_dim = 8;
  m.expert_ffn = 16, m.experts = 8, m.experts_per_token = 2, m.aux_loss = 0.01;
  return m;
}();

struct of_gpt {
  static constexpr gpt model = dropping;
  static constexpr batching batch = laws::two_sequences;
  using precision = fp32;
};
struct of_qwen3 {
  static constexpr qwen3 model = grouped;
  static constexpr batching batch = laws::two_sequences;
  using precision = fp32;
};
struct of_mixture {
  static constexpr qwen3_moe model = mixture;
  static constexpr batching batch = laws::two_sequences;
  using precision = fp32;
};

template <int> struct run_of;
template <> struct run_of<0> : of_gpt {
  static constexpr const char* name = "gpt, tp 4 sp, bf16";
  static constexpr mc::layout layout{.tp = 4, .sequence_parallel = true};
  using precision = bf16_mixed;
  static constexpr int replicas = 1;
};
template <> struct run_of<1> : of_gpt {
  static constexpr const char* name = "gpt, pp 4, dp 2, zero 1";
  static constexpr mc::layout layout{.pp = 4, .zero = 1};
  static constexpr int replicas = 2;
};
template <> struct run_of<2> : of_gpt {
  static constexpr const char* name = "gpt, tp 2, pp 2 interleaved, full recomputation";
  static constexpr mc::layout layout{.tp = 2, .pp = 2, .virtual_stages = 2};
  static constexpr auto recompute = mc::recompute::full;
  static constexpr int replicas = 1;
};
template <> struct run_of<3> : of_gpt {
  static constexpr const char* name = "gpt, pp 2 GPipe, dp 2, selective recomputation";
  static constexpr mc::layout layout{.pp = 2, .schedule = &gpipe};
  static constexpr batching batch{.micro = 2, .sequence = 32, .micro_batches = laws::bits_micros};
  static constexpr auto recompute = mc::recompute::selective;
  static constexpr int replicas = 2;
};
template <> struct run_of<4> : of_gpt {
  static constexpr const char* name = "gpt, pp 3 cut 0, 3, 1, cp 2";
  static constexpr mc::layout layout{.pp = 3, .cp = 2, .cut = {.layers = {0, 3, 1}}};
  static constexpr int replicas = 1;
};
template <> struct run_of<5> : of_qwen3 {
  static constexpr const char* name = "qwen3, tp 4 of 2 kv heads";
  static constexpr mc::layout layout{.tp = 4};
  static constexpr int replicas = 1;
};
template <> struct run_of<6> : of_qwen3 {
  static constexpr const char* name = "qwen3, cp 4, packed, dp 2, zero 1, bf16";
  static constexpr mc::layout layout{.cp = 4, .zero = 1};
  static constexpr batching batch{.micro = 2, .sequence = 32, .packed = true};
  using precision = bf16_mixed;
  static constexpr int replicas = 2;
};
template <> struct run_of<7> : of_qwen3 {
  static constexpr const char* name = "qwen3, tp 2 sp, pp 2, cp 2, dp 2, zero 1";
  static constexpr mc::layout layout{
      .tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 1};
  static constexpr int replicas = 2;
};
template <> struct run_of<8> : of_mixture {
  static constexpr const char* name = "qwen3-moe, tp 2 sp, ep 4 etp 2, dp 4, zero 1, in rounds";
  static constexpr mc::layout layout{
      .tp = 2, .ep = 4, .etp = 2, .sequence_parallel = true, .zero = 1};
  static constexpr batching batch{.micro = 2, .sequence = 32, .expert_rows = 24};
  static constexpr int replicas = 4;
};
template <> struct run_of<9> : of_mixture {
  static constexpr const char* name = "qwen3-moe of a capacity, cp 2, pp 2, ep 2, dp 2";
  static constexpr qwen3_moe model = [] {
    qwen3_moe m = mixture;
    m.capacity = 1;
    return m;
  }();
  static constexpr mc::layout layout{.pp = 2, .cp = 2, .ep = 2};
  static constexpr int replicas = 2;
};

} // namespace

int main() {
  using run = run_of<LAYOUT>;
  const std::string other = laws::rank_with_other_bits<run>(run::replicas);
  std::printf("%s: %s\n", run::name, other.empty() ? "the same bits" : other.c_str());
  return other.empty() ? 0 : 1;
}
#endif
