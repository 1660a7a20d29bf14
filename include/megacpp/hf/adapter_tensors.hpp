// The tensors of an adapter, as PEFT names them and lays them out. A layer with the weight (out,
// in) has lora_A.weight (r, in) and lora_B.weight (out, r); layers that are one layer in the files
// of their family have one lora_A, and their lora_B side by side. For the matrices of E experts,
// W (E, out, in) with factors A (E, r, in) and B (E, out, r), readers want one of these layouts:
//
//   layout     lora_A             lora_B             an element
//   peft       (E r, in)          (out, r E)         A[e r + j, i] = A_e[j, i]
//                                                    B[o, j E + e] = B_e[o, j]
//   peft-0.18  (E r, out)         (in, r E)          lora_A[e r + j, o] = B_e[o, j]
//                                                    lora_B[i, j E + e] = A_e[j, i]
//
// (PEFT 0.19.1 and later, and PEFT before: peft/tuners/lora/layer.py, ParamWrapper.) PEFT wraps the
// module of the experts once for each matrix, gate_up_proj first, so the factors of down_proj have
// the name of the module, and those of gate_up_proj that name and ".base_layer", if both are
// adapted. Whichever is adapted alone has the name of the module.
//
// The third layout is vllm: what `vllm serve --enable-lora` reads for Qwen3MoeForCausalLM, by the
// sources of vLLM 0.33 (vllm/lora/: lora_model.py, model_manager.py, lora_weights.py, utils.py,
// peft_helper.py, layers/fused_moe.py). It has no tensors of all experts; N stands for
// base_model.model.model.layers.i.mlp.experts.e:
//
//   N.gate_proj.lora_A.weight (r, in)        A_e of gate_up_proj
//   N.up_proj.lora_A.weight (r, in)          A_e of gate_up_proj once more
//   N.gate_proj.lora_B.weight (out / 2, r)   the first half of the rows of B_e
//   N.up_proj.lora_B.weight (out / 2, r)     the second half
//   N.down_proj.lora_{A,B}.weight            A_e (r, in) and B_e (out, r) of down_proj
//
// - vLLM stacks them by expert into w1 (gate), w2 (down) and w3 (up); a block has all three
//   matrices of all its experts, or none (pack_moe asserts it), and all of one rank.
// - Of adapter_config.json r, lora_alpha and target_modules must be there. use_rslora, rank_pattern
//   and alpha_pattern give the scale; bias, use_dora, lora_bias, modules_to_save, layer_replication
//   and others must be unset. The names of tensors say what is adapted: target_modules,
//   target_parameters, fan_in_fan_out and peft_version are not looked at.
// - r is at most --max-lora-rank, which is 16 by default, or one of 1, 8, 32, 64, 128, 256, 320 and
//   512.
// - q_proj, k_proj and v_proj (packed there, each by itself in files), o_proj, the router mlp.gate
//   and dense MLPs are taken with or without the experts. GPT2LMHeadModel takes no LoRA.
// - vLLM has a second form, two flat tensors a matrix, for models that are 3-D there (Qwen3-VL-MoE,
//   gpt-oss), and for Qwen3-MoE by --enable-mixed-moe-lora-format and is_3d_lora_weight in the
//   request. A.reshape(E, r, in) and B.reshape(out, r, E) read it (_convert_3d_to_2d_moe_lora): it
//   is the layout peft, whatever version the configuration names, with both matrices.
#pragma once

#include <megacpp/hf/model_folder.hpp>
#include <megacpp/hf/peft_config.hpp>
#include <megacpp/pass/adapt.hpp>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// One tensor of an adapter, and the layer that it belongs to.
struct adapter_tensor {
  hf_tensor tensor;
  std::string layer; ///< The published name of the layer, such as "self_attn.q_proj".
  int number = 0;    ///< The number of the layer's block.
  bool experts = false;
  bool scaled = false;     ///< The tensor is B, and not A.
  std::string matrix = {}; ///< An expert's matrix as vLLM names it: "mlp.experts.3.up_proj".
  std::string same = {};   ///< The name of the tensor before it that has the same elements.
};

/// A layer of an adapter.
struct adapted_layer {
  std::string whole; ///< its name in the model, such as "model.layers.0.self_attn.q_proj"
  std::string name;  ///< its published name, such as "self_attn.q_proj"
  bool experts = false;
};

namespace detail {

inline std::string published_layer_name(const hf_family& family, const value& v) {
  const char* const name = family.published.of(v.scope);
  return name == nullptr ? v.scope : name;
}

/// The factors of a program's adapter in the order of the model, by the layers that they belong to.
class adapter_layers {
public:
  struct layer {
    int number = 0;
    std::string name;
    bool experts = false;
    parameter_ref first;               ///< A
    std::vector<parameter_ref> second; ///< B of each part, in the order of the files
  };

  explicit adapter_layers(const program_view& p) : family_(hf_family_of(p)) {
    std::map<std::pair<int, std::string>, std::size_t> at;
    for_each_parameter(p, [&](const parameter_ref& r) {
      if (!r.info->added) return;
      const std::string name = published_layer_name(family_, *r.v);
      const auto [found, anew] = at.emplace(std::pair(r.layer, name), all_.size());
      if (anew) all_.push_back({r.layer, name, r.v->dims[0].d == dim::expert, {}, {}});
      layer& l = all_[found->second];
      if (std::string_view(r.v->name) == first_factor_name) l.first = r;
      else l.second.push_back(r);
    });
    for (layer& l : all_)
      std::ranges::sort(l.second, {}, [&](const parameter_ref& r) {
        return family_.published.place_of(r.v->scope);
      });
  }

  const std::vector<layer>& all() const { return all_; }
  /// Removes the layers of experts for which has(name, number) does not hold.
  template <class Has> void keep_experts(Has has) {
    std::erase_if(all_, [&](const layer& l) { return l.experts && !has(l.name, l.number); });
  }
  /// Returns the name of a layer in the model of transformers.
  std::string whole_name(const layer& l) const {
    return fmt::format("{}{}.{}", family_.layer_prefix, l.number, l.name);
  }
  /// Returns the name of a layer's module in a file of PEFT.
  std::string module(const layer& l) const {
    std::string name =
        fmt::format("base_model.model.{}{}.{}", family_.layer_prefix, l.number, l.name);
    if (!l.experts) return name;
    name.resize(name.rfind('.'));
    const std::string prefix = l.name.substr(0, l.name.rfind('.') + 1);
    for (const layer& other : all_)
      if (&other > &l && other.number == l.number && other.name.starts_with(prefix))
        name += ".base_layer";
    return name;
  }

  /// Appends the tensors of one layer of experts in the layout vllm, of rank r. Of the program's
  /// columns of A x they have those from `begin` on.
  void append_of_each_expert(const layer& l, std::int64_t r, std::int64_t begin,
                             std::vector<adapter_tensor>& to) const {
    const value& a = *l.first.v;
    const std::int64_t E = a.dims[0].n, of_program = a.dims[1].n,
                       in = global_size(a).n / (E * of_program);
    for (std::int64_t e = 0; e < E; ++e) {
      std::string same;
      for (const parameter_ref& b : l.second) {
        const std::string scope = b.v->scope, own = scope.substr(scope.rfind('.') + 1),
                          matrix =
                              fmt::format("{}.{}.{}", l.name.substr(0, l.name.rfind('.')), e, own),
                          module = fmt::format("base_model.model.{}{}.{}", family_.layer_prefix,
                                               l.number, matrix);
        const std::int64_t out = global_size(*b.v).n / (E * of_program);
        adapter_tensor first{{}, l.name, l.number, true, false, matrix, same},
            second{{}, l.name, l.number, true, true, matrix};
        first.tensor = {
            module + ".lora_A.weight",
            {r, in},
            {{l.first, {(e * of_program + begin) * in}, {1, r, in}, {0, in}, {0, in, 1}, 0}}};
        second.tensor = {
            module + ".lora_B.weight",
            {out, r},
            {{b, {e * out * of_program + begin}, {1, out, r}, {0, of_program}, {0, r, 1}, 0}}};
        if (same.empty()) same = first.tensor.name;
        to.push_back(std::move(first)), to.push_back(std::move(second));
      }
    }
  }

private:
  const hf_family& family_;
  std::vector<layer> all_;
};

} // namespace detail

/// Returns the tensors of a program's adapter, as a file has them whose layers have the ranks
/// rank_of(layer, rank in the program): of each factor the first so many of the program's, or all
/// without it. Of the experts' matrices, whose names depend on one another, the file has those for
/// which has_experts(published name, number of the block) holds, or all without it. `number`: of
/// the adapter, where the program holds several. Throws mc::error(exit_code::mismatch) for a family
/// that transformers does not have.
inline std::vector<adapter_tensor> adapter_tensors(
    const program_view& p, adapter_layout layout = adapter_layout::peft,
    const std::function<std::int64_t(const adapted_layer&, std::int64_t)>& rank_of = {},
    const std::function<bool(const std::string&, int)>& has_experts = {}, int number = 0) {
  detail::adapter_layers layers(p);
  const std::int64_t held = std::max(p.numbers.held_adapters, 1);
  if (number < 0 || number >= held)
    throw error(exit_code::internal,
                fmt::format("adapter {} was asked of {}, which holds {}", number, p.name, held));
  if (has_experts) layers.keep_experts(has_experts);
  std::vector<adapter_tensor> all;
  for (const auto& l : layers.all()) {
    const value& a = *l.first.v;
    const std::int64_t E = l.experts ? a.dims[0].n : 1, of_program = a.dims[l.experts ? 1 : 0].n,
                       own = of_program / held, begin = number * own,
                       r = rank_of ? rank_of({layers.whole_name(l), l.name, l.experts}, own) : own;
    if (l.experts && layout == adapter_layout::vllm) {
      layers.append_of_each_expert(l, r, begin, all);
      continue;
    }
    const std::int64_t in = global_size(a).n / (E * of_program);
    std::int64_t out = 0;
    for (const parameter_ref& b : l.second) out += global_size(*b.v).n / (E * of_program);
    const bool swapped = l.experts && layout == adapter_layout::peft_0_18;
    adapter_tensor first{{}, l.name, l.number, l.experts, swapped},
        second{{}, l.name, l.number, l.experts, !swapped};
    first.tensor.name = layers.module(l) + ".lora_A.weight";
    second.tensor.name = layers.module(l) + ".lora_B.weight";
    first.tensor.shape = {E * r, swapped ? out : in};
    second.tensor.shape = {swapped ? in : out, r * E};
    hf_tensor &of_a = swapped ? second.tensor : first.tensor,
              &of_b = swapped ? first.tensor : second.tensor;
    const std::array<std::int64_t, 3> a_strides =
        swapped ? std::array{std::int64_t{1}, E, r * E} : std::array{r * in, in, std::int64_t{1}};
    of_a.sources = {{l.first, {begin * in}, {E, r, in}, {of_program * in, in}, a_strides, 0}};
    std::int64_t before = 0;
    for (const parameter_ref& b : l.second) {
      const std::int64_t rows = global_size(*b.v).n / (E * of_program);
      const std::array<std::int64_t, 3> b_strides = swapped
                                                        ? std::array{r * out, std::int64_t{1}, out}
                                                        : std::array{std::int64_t{1}, r * E, E};
      of_b.sources.push_back({b,
                              {begin},
                              {E, rows, r},
                              {rows * of_program, of_program},
                              b_strides,
                              before * (swapped ? 1 : r * E)});
      before += rows;
    }
    all.push_back(std::move(first)), all.push_back(std::move(second));
  }
  return all;
}

/// Returns the tensors of modules that a program trains as a whole beside its adapter, as PEFT
/// names them (modules_to_save).
inline std::vector<hf_tensor> saved_modules(const program_view& p) {
  std::vector<hf_tensor> all;
  for (hf_tensor& t : hf_family_of(p).tensors(p))
    if (!t.sources.empty() && !t.sources.front().of.info->frozen) {
      t.name = "base_model.model." + t.name;
      all.push_back(std::move(t));
    }
  return all;
}

} // namespace mc
