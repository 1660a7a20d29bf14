// The parts of the real models (plan/parts.hpp) on simulated ranks: under every layout they compute
// the same as on one rank, before and after the passes of a program.
#define BOOST_TEST_MODULE models
#include "model_law.hpp"
#include "tiny_gpt.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/model/llama.hpp>
#include <megacpp/model/qwen2.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <iostream>

using namespace mc;
using namespace mc::laws;

namespace {

qwen3 tiny_qwen3(int kv_heads) {
  qwen3 m;
  m.layers = 2, m.hidden = 18, m.heads = 12, m.kv_heads = kv_heads, m.head_dim = 2, m.ffn = 12;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100, m.window = 7, m.z_loss = 1e-2;
  return m;
}

/// A tiny Llama with biases in every linear layer, and with RoPE of which some pairs are slowed
/// down.
llama tiny_llama(int kv_heads) {
  llama m;
  m.layers = 2, m.hidden = 18, m.heads = 12, m.kv_heads = kv_heads, m.head_dim = 4, m.ffn = 12;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100, m.attention_bias = m.mlp_bias = true;
  m.rope_scaling = {rope_type::llama3, 4, 8, 0.1, 1};
  return m;
}
qwen2 tiny_qwen2(int kv_heads) {
  qwen2 m;
  m.layers = 2, m.hidden = 18, m.heads = 12, m.kv_heads = kv_heads, m.head_dim = 4, m.ffn = 12;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100, m.tied = kv_heads % 2 == 0;
  m.rope_scaling = {rope_type::yarn, 4, 16, 0.1, 2, 0, false};
  return m;
}

struct layout_case {
  layout ranks;
  int kv_heads; ///< of qwen3; fewer than tp: repeated
};
layout_case with(int tp, int cp, bool sequence_parallel, int kv_heads) {
  layout l;
  l.tp = tp, l.cp = cp, l.sequence_parallel = sequence_parallel;
  return {l, kv_heads};
}
const layout_case layouts[] = {with(1, 1, false, 2), with(2, 1, false, 2), with(2, 1, true, 1),
                               with(3, 1, false, 3), with(3, 1, true, 6),  with(4, 1, false, 2),
                               with(4, 1, true, 1),  with(4, 1, true, 4),  with(1, 2, false, 2),
                               with(1, 3, false, 3), with(1, 4, false, 1), with(2, 2, false, 4),
                               with(2, 2, true, 2),  with(4, 2, true, 2),  with(2, 4, true, 1),
                               with(3, 2, true, 3),  with(4, 3, false, 1)};

/// A tiny mixture with two experts a token of six. The hidden width divides by every degree of
/// tensor parallelism of experts.
qwen3_moe tiny_moe(int kv_heads) {
  qwen3_moe m;
  m.layers = 2, m.hidden = 12, m.heads = 12, m.kv_heads = kv_heads, m.head_dim = 2, m.ffn = 12;
  m.expert_ffn = 12, m.experts = 12, m.experts_per_token = 2, m.vocabulary = 11, m.positions = 24;
  m.rope_theta = 100, m.aux_loss = 0.3, m.router_z_loss = 0.02, m.bias_rate = 1e-3;
  m.aux_per_sequence = true;
  return m;
}

/// Checks a block of generation: there is no backward pass, and the ranks of cp all hold the same.
/// Heads that several ranks share would be repeated in the caches, which hold other numbers then.
template <class Model>
void check_cached(const Model& m, const layout& l, int dp, tally& t, int kind = 0) {
  BOOST_TEST_CONTEXT(Model::family.text << " with caches, dp " << dp << " cp " << l.cp << " tp "
                                        << l.tp << " ep " << l.ep << " etp " << l.etp) {
    const auto s = drawn(m, l, dp, part_kind::block, false, kind, 22);
    const auto heads = [](const graph& g) {
      std::int64_t n = 0;
      for (const value& v : g.values)
        if (v.from == feed::key_cache) n += v.dims[2].n;
      return n;
    };
    if (heads(s->meshed.b.g) != heads(s->single.b.g)) return;
    s->of_meshed = s->of_single = gradients::none();
    comparison against(*s, 1);
    BOOST_TEST(against.difference(s->meshed.b.g) == "");
    BOOST_TEST(against.difference(in_regions(fused(s->meshed.b.g))) == "");
    ++t.graphs;
  }
}

template <class Model> void check_all(const Model& m, const layout& l, tally& t) {
  for (int dp : {1, 2})
    for (part_kind part : {part_kind::stem, part_kind::block, part_kind::loss, part_kind::logits}) {
      if (part == part_kind::logits && l.cp > 1)
        continue; // logits of one token need the whole sequence
      Model n = m;
      if (part == part_kind::logits) n.vocabulary = 12; // padding would add columns
      check(n, l, dp, part, part == part_kind::block && dp == 2, t);
    }
  for (int dp : {1, 2}) check_cached(m, l, dp, t);
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout_case& l : layouts) check_all(tiny_gpt(), l.ranks, t);
  gpt plain = tiny_gpt();
  plain.bias = plain.tied = false, plain.dropout = 0;
  check_all(plain, with(4, 2, true, 1).ranks, t);
  std::cout << t.graphs << " graphs of gpt, largest error of a directional derivative " << t.slope
            << "\n";
  BOOST_TEST(t.slope < 1e-6);
}

BOOST_AUTO_TEST_CASE(qwen3_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout_case& l : layouts) check_all(tiny_qwen3(l.kv_heads), l.ranks, t);
  std::cout << t.graphs << " graphs of qwen3, largest error of a directional derivative " << t.slope
            << "\n";
  BOOST_TEST(t.slope < 1e-6);
}

BOOST_AUTO_TEST_CASE(biases_and_stretched_rope_compute_under_any_layout_as_on_one_rank) {
  tally t;
  int n = 0;
  for (const layout_case& l : layouts) { // every other layout for each, and the last for both
    const bool last = ++n == static_cast<int>(std::size(layouts));
    if (n % 2 == 0 || last) check_all(tiny_llama(l.kv_heads), l.ranks, t);
    if (n % 2 == 1) check_all(tiny_qwen2(l.kv_heads), l.ranks, t);
  }
  std::cout << t.graphs << " graphs of llama and qwen2, largest error of a directional derivative "
            << t.slope << "\n";
  BOOST_TEST(t.slope < 1e-6);
}

namespace {

/// Checks every degree of expert parallelism, and of tensor parallelism inside experts, that fits
/// the ranks.
void check_experts(const qwen3_moe& m, layout l, tally& t) {
  for (int dp : {1, 2})
    for (int ep : {1, 2, 3, 4})
      for (int etp : {1, 2, 3, 4}) {
        if (dp * l.tp * l.cp > 8 || dp * l.tp * l.cp % (ep * etp) != 0) continue;
        l.ep = ep, l.etp = etp;
        for (int kind : {0, 1})
          if (kind == 0 || ep * etp == 1)
            check(m, l, dp, part_kind::block, dp == 2 && kind == 0, t, kind);
        check_cached(m, l, dp, t);
      }
}

} // namespace

BOOST_AUTO_TEST_CASE(qwen3_moe_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout_case& l : layouts) check_experts(tiny_moe(l.kv_heads), l.ranks, t);
  for (int variant = 0; variant < 3; ++variant) {
    qwen3_moe m = tiny_moe(2);
    if (variant == 0) m.norm_topk = false, m.shared_ffn = 12, m.router_z_loss = 0;
    if (variant == 1) m.experts_per_token = 5, m.bias_rate = 0;
    if (variant == 2) m.aux_loss = m.router_z_loss = 0, m.experts_per_token = 1;
    for (const layout& l : {with(2, 2, true, 2).ranks, with(2, 1, false, 2).ranks})
      check_experts(m, l, t);
  }
  std::cout << t.graphs << " graphs of qwen3_moe, largest error of a directional derivative "
            << t.slope << "\n";
  BOOST_TEST(t.slope < 1e-6);
}

namespace {

/// A model with two attentions in a block and one in the final norm: the numbers of its caches of
/// one kind differ, and the heads of the block's second.
struct two_caches : qwen3 {
  static constexpr family_name<two_caches> family{"two_caches"};
  constexpr var attended(context& c, const char* q_, const char* k_, const char* o_, var x,
                         int heads_of_keys) const {
    const attention_sizes s{
        {dim::heads, heads}, {dim::kv_heads, heads_of_keys}, {dim::head_dim, head_dim}};
    const var a = to(x, axis::tp, R);
    const var q = column_parallel(c, q_, a, {s.heads, s.head_dim}, false, std);
    const var k = kv_projection(c, k_, a, s, false, std);
    return x + row_parallel(c, o_, context_parallel_attention(c, q, k, k, {}), 2, hidden_extent(),
                            false, std);
  }
  constexpr var block(context& c, int /*kind*/, var x) const {
    return attended(c, "q2", "k2", "o2", attended(c, "q1", "k1", "o1", x, kv_heads), heads);
  }
  constexpr var final_norm(context& c, var x) const {
    return qwen3::final_norm(c, attended(c, "q3", "k3", "o3", x, kv_heads));
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_block_with_two_caches_computes_under_any_layout_the_same) {
  tally t;
  for (const layout_case& l : layouts) check_all(two_caches{tiny_qwen3(l.kv_heads)}, l.ranks, t);
  BOOST_TEST(t.slope < 1e-6);
}

// The load of a rank's micro-batch is balanced as in Megatron: it is one group of tokens if dp is
// 1.
BOOST_AUTO_TEST_CASE(the_load_of_a_micro_batch_is_one_sum_over_its_ranks) {
  tally t;
  qwen3_moe m = tiny_moe(2);
  m.aux_per_sequence = false;
  for (const layout_case& l : layouts) {
    m.kv_heads = l.kv_heads;
    if (l.ranks.tp * l.ranks.cp <= 4) check(m, l.ranks, 1, part_kind::block, false, t);
  }
}
