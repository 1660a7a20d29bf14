// Adapters (pass/adapt.hpp) under the laws: the gradient of every factor is that of the loss, and a
// model with factors computes under every layout what it computes on one rank, before and after the
// passes of a program, with a base that is stored as it is and with one in NF4.
#define BOOST_TEST_MODULE adapters
#include "model_law.hpp"
#include "tiny_gpt.hpp"

#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <iostream>

using namespace mc;
using namespace mc::laws;

namespace {

/// Matrices whose shards are whole blocks of 64 elements, for ranks of tp below 3, or any matrices.
qwen3 tiny_qwen3(int kv_heads, bool of_blocks) {
  qwen3 m;
  m.layers = 2, m.hidden = of_blocks ? 16 : 18, m.heads = of_blocks ? 16 : 12;
  m.kv_heads = kv_heads, m.head_dim = of_blocks ? 8 : 2, m.ffn = of_blocks ? 128 : 12;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100, m.window = 7;
  return m;
}
qwen3_moe tiny_moe(int kv_heads, bool of_blocks) {
  qwen3_moe m;
  m.layers = 2, m.hidden = of_blocks ? 16 : 12, m.heads = of_blocks ? 16 : 12;
  m.kv_heads = kv_heads, m.head_dim = of_blocks ? 8 : 2, m.ffn = 12;
  m.expert_ffn = of_blocks ? 128 : 12, m.experts = 4, m.experts_per_token = 2;
  m.vocabulary = 11, m.positions = 24, m.rope_theta = 100;
  m.aux_loss = 0.3, m.router_z_loss = 0.02, m.aux_per_sequence = true;
  return m;
}

layout with(int tp, int cp, bool sequence_parallel, int ep = 1, int etp = 0) {
  layout l;
  l.tp = tp, l.cp = cp, l.sequence_parallel = sequence_parallel, l.ep = ep, l.etp = etp;
  return l;
}
constexpr lora every_layer{.rank = 3, .alpha = 5, .rslora = true};
constexpr lora of_nf4{.rank = 2, .alpha = 5, .base = base_storage::nf4};

/// Checks the block, where the factors are; stem and head, which are frozen, have no gradients but
/// that of the stream.
template <class Model>
void check_block(const Model& m, const layout& l, tally& t, const lora& adapter, int kind = 0) {
  for (int dp : {1, 2})
    if (dp * l.tp * l.cp % (l.ep * l.expert_tp()) == 0)
      check(m, l, dp, part_kind::block, dp == 2, t, kind, adapter);
}
void tell(const char* name, const tally& t, int graphs, int factors) {
  std::cout << t.graphs << " graphs of " << name << ", " << t.factors
            << " factors by themselves, largest error of a directional derivative " << t.slope
            << "\n";
  BOOST_TEST(t.slope < 1e-6);
  BOOST_TEST(t.graphs >= graphs);
  BOOST_TEST(t.factors == factors);
}

} // namespace

// q, k and v have one A, and each layer a B.
BOOST_AUTO_TEST_CASE(gpt_with_factors_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout& l : {with(1, 1, false), with(2, 1, false), with(2, 1, true), with(4, 1, true),
                          with(1, 2, false), with(2, 2, true), with(4, 2, false)})
    check_block(tiny_gpt(), l, t, every_layer);
  check(tiny_gpt(), with(2, 1, true), 2, part_kind::loss, false, t, 0, every_layer);
  tell("gpt", t, 14 * 3 + 3, 10);
}

BOOST_AUTO_TEST_CASE(qwen3_with_factors_computes_under_any_layout_what_it_computes_on_one_rank) {
  tally t;
  for (const layout& l : {with(1, 1, false), with(2, 1, true), with(3, 1, true), with(4, 1, false),
                          with(4, 1, true), with(1, 2, false), with(2, 2, true), with(4, 2, true)})
    check_block(tiny_qwen3(l.tp == 4 ? 2 : l.tp, false), l, t, every_layer); // two share a kv head
  tell("qwen3", t, 16 * 3, 14);
}

BOOST_AUTO_TEST_CASE(qwen3_with_a_base_in_nf4_computes_under_any_layout_what_it_does_on_one_rank) {
  tally t;
  for (const layout& l : {with(1, 1, false), with(2, 1, false), with(2, 1, true), with(1, 2, false),
                          with(2, 2, true)})
    check_block(tiny_qwen3(2, true), l, t, of_nf4);
  tell("qwen3 with a base in NF4", t, 10 * 3, 14);
}

BOOST_AUTO_TEST_CASE(experts_with_factors_compute_under_any_layout_what_they_do_on_one_rank) {
  for (const bool of_blocks : {false, true}) {
    tally t;
    const lora& adapter = of_blocks ? of_nf4 : every_layer;
    for (const layout& l :
         {with(1, 1, false), with(2, 1, true), with(1, 2, false, 2), with(2, 1, true, 2, 1),
          with(2, 1, true, 1, 2), with(2, 2, true, 2, 2), with(2, 1, false, 1, 1)})
      check_block(tiny_moe(2, of_blocks), l, t, adapter);
    tell(of_blocks ? "experts in NF4" : "experts", t, 14 * 3, 13); // gate and up have one A
  }
}

namespace {

/// Returns the factor of B A x by its definition (Hu et al. 2021; Kalajdzievski 2023).
double scale_of(const lora& l) { return l.alpha / (l.rslora ? std::sqrt(l.rank) : l.rank); }

std::string name_of_value(const value& v) { return std::string(v.scope) + "." + v.name; }
template <class Model> std::string published_scope(const value& v) {
  const char* const name = published_of<Model>().of(v.scope);
  return name == nullptr ? v.scope : name;
}

/// Returns the outputs of a block of one rank for these values by name; others are random, by name.
std::vector<array> outputs_of(const graph& g, std::map<std::string, array>& by_name) {
  const world one;
  machine m(one, g, plain::all());
  laws::feeds f;
  for (int i = 0; i < g.value_count; ++i) {
    const auto v = static_cast<value_id>(i);
    const value& x = g.at(v);
    if (x.producer >= 0 || x.is == role::scratch || x.from == feed::total ||
        (x.is == role::input && is_number(x.from)))
      continue;
    const std::string name = x.is == role::parameter ? name_of_value(x) : x.name;
    array& data = by_name[name];
    const std::int64_t n = logical_size(one, g.ranks, x);
    for (std::int64_t k = std::ssize(data); k < n; ++k) {
      const double y = scrambled(std::hash<std::string>()(name), static_cast<std::uint64_t>(k));
      data.push_back(x.differentiable()          ? y / (x.rank > 1 ? 3 : 1)
                     : x.from == feed::documents ? 0
                                                 : static_cast<double>(k % x.back().n));
    }
    f.logical[v] = {data};
  }
  m.run_forward(f);
  return {m.of(g.outputs[0])[0]};
}

/// A block with factors computes what one computes whose weights are W + scale B A.
template <class Model> int check_merged(const Model& m, const lora& adapter, int kind = 0) {
  setup s{.batch = {2, 24, false, 1 << 20}, .precision = dtype::f64};
  const graph plain = forward_graph(m, s, part_kind::block, kind);
  s.adapter = adapter;
  const graph with_factors = forward_graph(m, s, part_kind::block, kind);
  BOOST_TEST_REQUIRE((plain.wrong.code == fault::none), describe(plain));
  BOOST_TEST_REQUIRE((with_factors.wrong.code == fault::none), describe(with_factors));
  std::map<std::string, array> data;
  const std::vector<array> got = outputs_of(with_factors, data);
  int merged = 0;
  for (int i = 0; i < with_factors.parameter_count; ++i) {
    const value& b = with_factors.at(with_factors.parameters[static_cast<unsigned>(i)].v);
    if (std::string(b.name) != second_factor_name) continue;
    ++merged;
    const auto a = data.find(published_scope<Model>(b) + "." + first_factor_name);
    BOOST_TEST_REQUIRE((a != data.end()), b.scope);
    array& w = data.at(std::string(b.scope) + ".weight");
    const array& second = data.at(name_of_value(b));
    const std::size_t experts =
        b.dims[0].d == dim::expert ? static_cast<std::size_t>(b.dims[0].n) : 1;
    const auto r = static_cast<std::size_t>(adapter.rank);
    const std::size_t out = second.size() / r / experts, in = a->second.size() / r / experts;
    BOOST_TEST_REQUIRE(w.size() == experts * out * in);
    for (std::size_t e = 0; e < experts; ++e)
      for (std::size_t o = 0; o < out; ++o)
        for (std::size_t k = 0; k < in; ++k)
          for (std::size_t j = 0; j < r; ++j)
            w[(e * out + o) * in + k] +=
                scale_of(adapter) * second[(e * out + o) * r + j] * a->second[(e * r + j) * in + k];
  }
  const std::vector<array> want = outputs_of(plain, data);
  BOOST_TEST(close(got[0], want[0], norm_of(want[0])), Model::family.text);
  return merged;
}

/// Returns the factors of a block by name, with their dims; "frozen" for other parameters.
template <class Model> std::map<std::string, std::string> factors_of(const Model& m, lora adapter) {
  const setup s{.batch = {2, 24, false, 1 << 20}, .precision = dtype::f64, .adapter = adapter};
  const graph g = forward_graph(m, s, part_kind::block, 0);
  std::map<std::string, std::string> found;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    BOOST_TEST(p.frozen == !p.added);
    if (!p.added) continue;
    std::string& dims = found[name_of_value(g.at(p.v))];
    for (int d = 0; d < g.at(p.v).rank; ++d)
      dims += std::to_string(g.at(p.v).dims[static_cast<unsigned>(d)].n) + " ";
  }
  return found;
}
using factor_list = std::map<std::string, std::string>;

} // namespace

BOOST_AUTO_TEST_CASE(factors_are_those_of_a_merged_weight) {
  for (const bool rslora : {false, true}) {
    const lora l{.rank = 3, .alpha = 7, .rslora = rslora};
    BOOST_TEST(check_merged(tiny_gpt(), l) == 6);
    BOOST_TEST(check_merged(tiny_qwen3(2, false), l) == 7);
    BOOST_TEST(check_merged(tiny_moe(2, false), l) == 7);
  }
}

BOOST_AUTO_TEST_CASE(factors_have_the_names_and_dims_of_their_layers) {
  const lora l{.rank = 3, .alpha = 7};
  BOOST_TEST((factors_of(tiny_gpt(), l) == factor_list{{"attn.c_attn.lora_A.weight", "3 24 "},
                                                       {"attn.q.lora_B.weight", "12 2 3 "},
                                                       {"attn.k.lora_B.weight", "12 2 3 "},
                                                       {"attn.v.lora_B.weight", "12 2 3 "},
                                                       {"attn.c_proj.lora_A.weight", "3 12 2 "},
                                                       {"attn.proj.lora_B.weight", "24 3 "},
                                                       {"mlp.c_fc.lora_A.weight", "3 24 "},
                                                       {"mlp.fc.lora_B.weight", "24 3 "},
                                                       {"mlp.c_proj.lora_A.weight", "3 24 "},
                                                       {"mlp.proj.lora_B.weight", "24 3 "}}));
  // The router, mlp.gate, has none.
  BOOST_TEST((factors_of(tiny_moe(2, false), l) ==
              factor_list{{"self_attn.q_proj.lora_A.weight", "3 12 "},
                          {"self_attn.q_proj.lora_B.weight", "12 2 3 "},
                          {"self_attn.k_proj.lora_A.weight", "3 12 "},
                          {"self_attn.k_proj.lora_B.weight", "2 2 3 "},
                          {"self_attn.v_proj.lora_A.weight", "3 12 "},
                          {"self_attn.v_proj.lora_B.weight", "2 2 3 "},
                          {"self_attn.o_proj.lora_A.weight", "3 12 2 "},
                          {"self_attn.o_proj.lora_B.weight", "12 3 "},
                          {"mlp.experts.gate_up_proj.lora_A.weight", "4 3 12 "},
                          {"mlp.experts.gate_proj.lora_B.weight", "4 12 3 "},
                          {"mlp.experts.up_proj.lora_B.weight", "4 12 3 "},
                          {"mlp.experts.down_proj.lora_A.weight", "4 3 12 "},
                          {"mlp.experts.down_proj.lora_B.weight", "4 12 3 "}}));
  // Nothing outside of blocks has factors or codes, in training and in generation.
  for (const lora& adapter : {l, of_nf4}) {
    const setup s{.batch = {2, 24}, .precision = dtype::f64, .adapter = adapter};
    qwen3 untied = tiny_qwen3(2, true);
    untied.tied = false, untied.vocabulary = 12;
    for (const part_kind part : {part_kind::stem, part_kind::loss, part_kind::logits}) {
      const setup of_part = part == part_kind::logits ? for_generation(s, 2, 12, 24) : s;
      const graph g = forward_graph(untied, of_part, part, 0);
      BOOST_TEST((g.wrong.code == fault::none), describe(g));
      for (int i = 0; i < g.parameter_count; ++i) {
        const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
        BOOST_TEST((p.frozen && !p.added && p.encoding == nullptr), name_of_value(g.at(p.v)));
      }
    }
  }
  // The router of experts keeps its numbers where their base is in NF4.
  const graph g =
      forward_graph(tiny_moe(2, true),
                    {.batch = {2, 24, false, 1 << 20}, .precision = dtype::f64, .adapter = of_nf4},
                    part_kind::block, 0);
  int plain = 0, coded = 0;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    coded += p.encoding != nullptr;
    plain += p.encoding == nullptr && !p.added && std::string(g.at(p.v).name) == "weight" &&
             g.at(p.v).rank > 1;
  }
  BOOST_TEST(coded == 7);
  BOOST_TEST(plain == 1);
}
