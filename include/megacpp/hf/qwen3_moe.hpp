// This header names and lays out parameters as Qwen3MoeForCausalLM of transformers does. Experts
// aside, it is as decoder.hpp. A program has one parameter for a matrix of all experts, and files
// have one tensor for each expert; N stands for layers.i.mlp:
//
//   ours                              theirs
//   N.gate.weight (E, H)              model.N.gate.weight
//   N.experts.gate_proj (E, F, H)     model.N.experts.e.gate_proj.weight (F, H)
//   N.experts.up_proj (E, F, H)       model.N.experts.e.up_proj.weight (F, H)
//   N.experts.down_proj (E, H, F)     model.N.experts.e.down_proj.weight (H, F)
//
// transformers 5 joins the experts in memory, and files may have them so: mlp.experts.gate_up_proj
// (E, 2 F, H), gate rows first, and mlp.experts.down_proj (E, H, F). Such files are read, and not
// written.
#pragma once

#include <megacpp/hf/decoder.hpp>
#include <megacpp/hf/models.hpp>

#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::hf_qwen3_moe {

inline constexpr const char *gate_proj = ".mlp.experts.gate_proj.weight",
                            *up_proj = ".mlp.experts.up_proj.weight",
                            *down_proj = ".mlp.experts.down_proj.weight";

/// Returns one expert's matrix (N, K) of a parameter (E, N, K), as a tensor of a file.
inline hf_tensor of_expert(std::string name, const parameter_ref& r, std::int64_t expert) {
  const std::int64_t rows = r.v->dims[1].n, columns = r.v->dims[2].n;
  hf_tensor t;
  t.name = std::move(name), t.shape = {rows, columns};
  t.append(r, {expert * rows * columns}, rows * columns);
  return t;
}

inline std::vector<hf_tensor> tensors(const program_view& p) {
  if (const auto& m = p.model_as<qwen3_moe>(); m.shared_ffn > 0 || m.bias_rate > 0)
    throw error(exit_code::mismatch,
                fmt::format("{} has a shared expert or a router bias, which Qwen3-MoE of "
                            "transformers has not: such weights have no Hugging Face form",
                            p.name));
  hf_parameters parameters(p);
  std::vector<hf_tensor> all;
  for (const std::string& name : parameters.names()) {
    if (!parameters.has(name)) continue; // An up or down projection was taken with its gate.
    const parameter_ref r = parameters.take(name);
    if (!name.ends_with(gate_proj)) {
      all.push_back(hf_as_stored(r.layer < 0 ? name : "model." + name, r));
      continue;
    }
    const std::string layer = fmt::format("layers.{}", r.layer);
    const parameter_ref up = parameters.take(layer + up_proj),
                        down = parameters.take(layer + down_proj);
    for (std::int64_t e = 0; e < r.v->dims[0].n; ++e) {
      const std::string expert = fmt::format("model.{}.mlp.experts.{}.", layer, e);
      all.push_back(of_expert(expert + "gate_proj.weight", r, e));
      all.push_back(of_expert(expert + "up_proj.weight", up, e));
      all.push_back(of_expert(expert + "down_proj.weight", down, e));
    }
  }
  return all;
}

/// Returns the tensors of tensors() that a stored tensor holds: one, or those of all experts.
inline std::vector<hf_slice> slices(const file_tensor& stored) {
  constexpr std::string_view both = ".mlp.experts.gate_up_proj", down = ".mlp.experts.down_proj";
  const bool fused = stored.name.ends_with(both);
  const bool sized = stored.shape.size() == 3 && stored.shape[0] > 0 &&
                     stored.shape[0] <= hf_limits::experts && !stored.bytes.empty() &&
                     bits_of(stored.type) % 8 == 0;
  if (!sized || !(fused ? stored.shape[1] % 2 == 0 : stored.name.ends_with(down)))
    return {hf_whole(hf_decoder::full_name(stored.name), stored)};
  const std::string full = hf_decoder::full_name(stored.name);
  const std::string scope = full.substr(0, full.rfind('.'));
  const std::int64_t rows = stored.shape[1] / (fused ? 2 : 1);
  std::vector<std::string> names{"down_proj"};
  if (fused) names = {"gate_proj", "up_proj"};
  const std::size_t bytes =
      stored.bytes.size() / static_cast<std::size_t>(stored.shape[0]) / names.size();
  std::vector<hf_slice> all;
  for (std::int64_t e = 0; e < stored.shape[0]; ++e)
    for (const std::string& name : names)
      all.push_back({fmt::format("{}.{}.{}.weight", scope, e, name),
                     stored.name,
                     stored.type,
                     {rows, stored.shape[2]},
                     stored.bytes.subspan(all.size() * bytes, bytes),
                     nullptr});
  return all;
}

/// Returns config.json of a program, as transformers 4.51 spells it; later versions read it, too.
inline nlohmann::json config(const program_view& p) {
  const auto& m = p.model_as<qwen3_moe>();
  nlohmann::json c = hf_decoder::config<qwen3_moe>(p, architecture, fields);
  nlohmann::json dense = nlohmann::json::array();
  for (int l = 0; l < m.layers; ++l)
    if ((l + 1) % m.sparse_step == 0 && m.mlp_only.holds(l)) dense.push_back(l);
  c["decoder_sparse_step"] = m.sparse_step;
  c["mlp_only_layers"] = dense;
  c["output_router_logits"] = false;
  c["router_aux_loss_coef"] = m.aux_loss;
  return c;
}

/// Returns a sentence about the first layer that has experts in only one of two models, or "".
inline std::string difference_of_layers(const qwen3_moe& theirs, const qwen3_moe& ours) {
  for (int l = 0; l < ours.layers; ++l)
    if (theirs.kind_of(l) != ours.kind_of(l))
      return fmt::format(
          "by mlp_only_layers and decoder_sparse_step layer {} has {} there and {} "
          "in the program",
          l, theirs.kind_of(l) == 0 ? "experts" : "one MLP",
          theirs.kind_of(l) == 0 ? "one MLP" : "experts");
  return "";
}

} // namespace mc::hf_qwen3_moe
