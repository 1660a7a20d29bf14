// The training graphs of all families, under one layout for each value of MEGACPP_PROBE_LAYOUT:
// every redistribution of nn/ and model/ is needed by one of them (mutants.py). The layouts that
// refuse most mutants come first, since mutants.py stops at the first refusal. With
// MEGACPP_PROBE_MUTANTS, the number of mutants that stand in the headers side by side, a program that
// says which of them some layout refuses.
//
// probe-layouts: 5

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/run/report.hpp>

namespace {

constexpr mc::gpt small_gpt() {
  mc::gpt m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 51, m.positions = 16;
  m.dropout = 0.1;
  return m;
}
constexpr mc::qwen3 small_qwen3() {
  mc::qwen3 m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 4, m.ffn = 32;
  m.vocabulary = 51, m.positions = 16;
  return m;
}

/// Whose load is that of all replicas in one of the layouts.
constexpr mc::qwen3_moe small_moe(int layout) {
  mc::qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 4, m.head_dim = 4, m.ffn = 32;
  m.expert_ffn = 8, m.experts = 8, m.experts_per_token = 2, m.shared_ffn = 8, m.bias_rate = 1e-3;
  m.vocabulary = 51, m.positions = 16, m.aux_global = layout == 3;
  return m;
}

constexpr mc::setup numbers(int layout) {
  mc::setup s;
  s.batch = {2, 16, true};
  switch (layout) {
  case 0:
    s.ranks.tp = 2, s.ranks.cp = 2, s.ranks.sequence_parallel = true;
    s.ranks.ep = 2, s.ranks.etp = 2;
    break;
  case 1: s.ranks.tp = 2; break;
  case 2: s.ranks.tp = 4, s.ranks.sequence_parallel = true; break; // more than qwen3's kv heads
  case 3: s.ranks.cp = 2; break;
  case 4: s.ranks.tp = 4, s.ranks.cp = 2; break;
  }
  return s;
}

/// With biases on queries, keys and values, as Qwen2 has them: no preset with grouped queries does.
struct biased : mc::qwen3 {
  constexpr mc::var block(mc::context& c, int /*kind*/, mc::var x) const {
    const mc::attention_sizes s{
        {mc::dim::heads, heads}, {mc::dim::kv_heads, kv_heads}, {mc::dim::head_dim, head_dim}};
    const mc::var a = mc::to(x, mc::axis::tp, mc::R);
    const mc::var q = mc::column_parallel(c, "q", a, {s.heads, s.head_dim}, true, std);
    const mc::var k = mc::kv_projection(c, "k", a, s, true, std);
    const mc::var v = mc::kv_projection(c, "v", a, s, true, std);
    const mc::var o = mc::context_parallel_attention(c, q, k, v, {});
    return x + mc::row_parallel(c, "o", o, 2, hidden_extent(), false, std);
  }
};

/// The first fault of a model's stem, block and loss, forward and derived.
template <class Model> constexpr mc::fault_record fault_in(const Model& m, int layout) {
  for (const mc::part_kind part :
       {mc::part_kind::stem, mc::part_kind::block, mc::part_kind::loss}) {
    const mc::graph g = mc::derived_graph(mc::forward_graph(m, numbers(layout), part, 0));
    if (g.wrong.code != mc::fault::none) return g.wrong;
  }
  return {};
}

#if defined(MEGACPP_PROBE_MUTANTS)
bool refused(int layout) {
  return fault_in(small_gpt(), layout).code != mc::fault::none ||
         fault_in(small_qwen3(), layout).code != mc::fault::none ||
         fault_in(biased{small_qwen3()}, layout).code != mc::fault::none ||
         fault_in(small_moe(layout), layout).code != mc::fault::none;
}
#else
/// Each its own constant: the step limits of compilers count per constant.
struct probe {
  static constexpr int layout = MEGACPP_PROBE_LAYOUT;
  static constexpr mc::fault_record in_gpt = fault_in(small_gpt(), layout);
  static constexpr mc::fault_record in_qwen3 = fault_in(small_qwen3(), layout);
  static constexpr mc::fault_record in_biased = fault_in(biased{small_qwen3()}, layout);
  static constexpr mc::fault_record in_moe = fault_in(small_moe(layout), layout);
  static constexpr mc::fault_record wrong = in_gpt.code != mc::fault::none      ? in_gpt
                                            : in_qwen3.code != mc::fault::none  ? in_qwen3
                                            : in_biased.code != mc::fault::none ? in_biased
                                                                                : in_moe;
};
static_assert(mc::reported<probe, probe>);
#endif

} // namespace

#if defined(MEGACPP_PROBE_MUTANTS)
#include <cstdio>

/// Mutant 0 is the tree as it is.
int main() {
  for (megacpp_mutant = 0; megacpp_mutant <= MEGACPP_PROBE_MUTANTS; ++megacpp_mutant) {
    bool found = false;
    for (int layout = 0; layout < MEGACPP_PROBE_LAYOUTS && !found; ++layout)
      found = refused(layout);
    std::printf("%d\n", found ? 1 : 0);
  }
}
#endif
