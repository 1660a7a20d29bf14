// The graphs of a program say what its model is made of: norms, positions, activations, biases,
// tables that are shared. Here that is put in Megatron-LM's words, also for a family of one's own.
#pragma once

#include <megacpp/model/rope_scaling.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/linear.hpp>
#include <megacpp/op/norm.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/run/view.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mc {

namespace detail {

/// Returns the extent of a named dim where it first occurs in a graph; 0 if it does not.
inline std::int64_t extent_in(const graph& g, dim d) {
  for (int i = 0; i < g.value_count; ++i)
    if (const int at = g.at(static_cast<value_id>(i)).find(d); at >= 0)
      return g.at(static_cast<value_id>(i)).dims[static_cast<unsigned>(at)].n;
  return 0;
}

/// Facts that are read off the nodes and parameters of a model's forward pass.
struct model_parts {
  std::string_view norm = "none"; ///< of the stream
  std::string_view gelu = "none"; ///< its form: tanh or exact
  double eps = 0;
  bool norm_has_bias = true, norms_heads = false, gated = false;
  bool bias_of_heads = false, bias_elsewhere = false, learns_positions = false, ties = false;
  std::int64_t positions = 0;
  std::optional<op::rope_attributes> rope;
  double dropout = 0, std = 0;

  void read(const graph& g) {
    for (int i = 0; i < g.node_count; ++i)
      if (const node& n = g.at_node(i); n.when == phase::forward) read(g, n);
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(i)];
      const value& v = g.at(info.v);
      if (v.rank < 2) continue;
      if (v.dims[0].d == dim::position) learns_positions = true, positions = v.dims[0].n;
      if (v.dims[0].d == dim::vocabulary && info.tied) ties = true;
      if (v.dims[0].d == dim::vocabulary && std == 0) std = info.std; // the stem comes first
    }
  }

private:
  /// Reads the library's ops alone: nothing here knows what an op of one's own computes.
  void read(const graph& g, const node& n) {
    const op_info* const kind = n.op;
    if (kind == &op::rms_norm || kind == &op::add_rms_norm || kind == &op::layer_norm ||
        kind == &op::add_layer_norm)
      read_norm(g, n);
    if (kind == &op::rope && !rope) rope = n.attr.as<op::rope_attributes>();
    if (kind == &op::gelu && gelu == "none")
      gelu = n.attr.as<op::gelu_attributes>().form == gelu_form::tanh ? "tanh" : "exact";
    if (kind == &op::dropout && dropout == 0)
      dropout = n.attr.as<op::dropout_attributes>().probability;
    if (kind == &op::swiglu) gated = true;
    if (kind == &op::add_bias) bias_elsewhere = true;
    if (kind == &op::linear && n.in[2] >= 0) {
      const dim out = g.at(n.in[1]).dims[0].d;
      (out == dim::heads || out == dim::kv_heads ? bias_of_heads : bias_elsewhere) = true;
    }
  }
  void read_norm(const graph& g, const node& n) {
    if (g.at(n.in[0]).back().d == dim::head_dim) {
      norms_heads = true;
      return;
    }
    if (norm != "none") return;
    eps = n.attr.as<op::norm_attributes>().eps;
    norm = n.op == &op::rms_norm || n.op == &op::add_rms_norm ? "RMSNorm" : "LayerNorm";
    const bool adds = n.op == &op::add_rms_norm || n.op == &op::add_layer_norm;
    norm_has_bias = n.in[adds ? 3 : 2] >= 0;
  }
};

inline std::string positions_of(const model_parts& m) {
  if (!m.rope) return m.learns_positions ? "learned_absolute" : "none";
  const char* const kind = m.rope->along == op::rope_ramp::pair ? "yarn" : "rope";
  return m.learns_positions ? fmt::format("learned_absolute and {}", kind) : kind;
}

/// Returns whether RoPE is stretched by the numbers that Megatron-LM has for Llama 3.1.
inline bool stretched_as_llama(const op::rope_attributes& a, std::int64_t head_dim) {
  const op::rope_attributes as = rope_angles(a.base, {rope_type::llama3, a.factor, 8192, 1, 4},
                                             static_cast<int>(head_dim), 8192);
  return a.along == as.along && a.slow == as.slow && a.fast == as.fast;
}

/// The layers that have experts: 1 for all layers, or a list.
inline std::string layers_with_experts(const program_view& p) {
  const auto sparse = [&](int kind) {
    const graph* const g = p.block(kind).g;
    return g != nullptr && extent_in(*g, dim::expert) > 0;
  };
  std::string list;
  bool all = true, any = false;
  for (int l = 0; l < p.layers; ++l) {
    const bool one = sparse(p.kind_of.empty() ? 0 : p.kind_of[static_cast<unsigned>(l)]);
    all = all && one, any = any || one;
    list += fmt::format("{}{}", list.empty() ? "" : ",", one ? 1 : 0);
  }
  return !any ? "none" : all ? "1" : fmt::format("[{}]", list);
}

} // namespace detail

/// Fills in what a program's model is made of. What nothing of the model depends on takes any
/// value.
inline void set_compiled_model(options& o, const program_view& p) {
  compiled_model_flags& c = o.made_of;
  const auto set = [](auto& flag, const auto& value, bool idle = false) {
    flag.set(value), flag.idles(idle);
  };
  detail::model_parts m;
  for (int number = 0; number <= p.kinds() + 1; ++number)
    if (const graph* const g = p.part(number).g; g != nullptr) m.read(*g);
  const std::int64_t head_dim = detail::extent_in(*p.block(0).g, dim::head_dim);
  const bool turns = m.rope.has_value();
  const op::rope_attributes angles = m.rope.value_or(op::rope_attributes{0});
  const bool llama = turns && detail::stretched_as_llama(angles, head_dim),
             linear = turns && angles.along == op::rope_ramp::none;
  set(c.group_query_attention, o.compiled.num_query_groups() < o.compiled.num_attention_heads());
  set(c.kv_channels, head_dim);
  set(c.max_position_embeddings, m.positions, !m.learns_positions);
  set(c.position_embedding_type, detail::positions_of(m));
  set(c.no_position_embedding, !m.learns_positions);
  set(c.rotary_base, angles.base, !turns);
  set(c.rotary_percent, 1.0, !turns);
  set(c.rotary_seq_len_interpolation_factor, linear ? angles.factor : 1.0, !turns);
  set(c.use_rope_scaling, llama, !turns);
  set(c.rope_scaling_factor, llama ? angles.factor : 1.0, !llama);
  set(c.normalization,
      std::string(m.norm_has_bias || m.norm != "LayerNorm" ? m.norm : "LayerNorm without biases"));
  set(c.norm_epsilon, m.eps);
  set(c.qk_layernorm, m.norms_heads);
  set(c.swiglu, m.gated);
  set(c.openai_gelu, m.gelu == "tanh", m.gated);
  set(c.no_bias_gelu_fusion, m.gelu == "exact", m.gated);
  set(c.disable_bias_linear, !m.bias_elsewhere);
  set(c.add_qkv_bias, m.bias_of_heads);
  set(c.untie_embeddings_and_output_weights, !m.ties);
  set(c.hidden_dropout, m.dropout);
  set(c.attention_dropout, 0.0);
  set(c.init_method_std, m.std);
  set(c.fp32_residual_connection, p.numbers.precision.weight == dtype::f32);
  const std::string sparse = detail::layers_with_experts(p);
  set(o.experts.moe_layer_freq, sparse, sparse == "none");
  set(o.experts.moe_router_dtype,
      std::string(p.numbers.precision.weight == dtype::bf16  ? "bf16"
                  : p.numbers.precision.weight == dtype::f32 ? "fp32"
                                                             : "fp64"),
      sparse == "none");
}

} // namespace mc
