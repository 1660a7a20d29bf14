// This header reads the fields that config.json of Llama, Qwen2, Qwen3 and Qwen3-MoE have in
// common, as transformers 4 (max_window_layers) or 5 (layer_types) spells them. Fields of RoPE are
// read in rope_config.hpp.
#pragma once

#include <megacpp/hf/config.hpp>
#include <megacpp/hf/rope_config.hpp>
#include <megacpp/model/decoder.hpp>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace mc::hf_decoder {

// `fields` is the table of fields that all these families have; window_field has the one more of
// families that may have a sliding window.
template <class Model> inline constexpr std::tuple fields{
    hf_field{"num_hidden_layers", &Model::layers, hf_limits::layers},
    hf_field{"hidden_size", &Model::hidden, hf_limits::hidden},
    hf_field{"num_attention_heads", &Model::heads, hf_limits::heads},
    hf_field{"num_key_value_heads", &Model::kv_heads},
    hf_field{"head_dim", &Model::head_dim},
    hf_field{"intermediate_size", &Model::ffn, hf_limits::ffn},
    hf_field{"vocab_size", &Model::vocabulary, hf_limits::vocabulary},
    hf_field{"max_position_embeddings", &Model::positions, hf_limits::positions},
    hf_field{"rms_norm_eps", &Model::eps, 1e-6},
    hf_field{"rope_theta", &Model::rope_theta},
    hf_field{"rope_scaling", &Model::rope_scaling},
    hf_field{"tie_word_embeddings", &Model::tied, false}};
template <class Model>
inline constexpr std::tuple window_field{hf_field{"sliding_window", &Model::window}};

/// Returns the width of the sliding window of attention in all layers, or 0 for none. transformers
/// 4 gives a window to layers from max_window_layers on, and 5 lists a type for each layer. Throws
/// where some layers have a window and others do not, which megacpp does not support.
inline int read_window(hf_reader& r, int layers) {
  const bool used = r.flag("use_sliding_window", false) &&
                    (!r.config().raw().contains("sliding_window") || r.has("sliding_window"));
  const int width = r.extent("sliding_window", hf_limits::positions, 4096);
  const int first = r.has("max_window_layers")
                        ? r.config().field<int>("max_window_layers", 0, hf_limits::positions)
                        : 28;
  int sliding = used ? std::max(0, layers - first) : 0;
  if (r.has("layer_types")) {
    const auto types = r.config().field<std::vector<std::string>>("layer_types");
    if (types.size() != static_cast<std::size_t>(layers))
      throw r.contradiction(
          fmt::format("\"layer_types\" has {} entries and \"num_hidden_layers\" is {}; "
                      "give one type for each layer",
                      types.size(), layers));
    for (const std::string& t : types)
      if (t != "full_attention" && t != "sliding_attention")
        throw r.contradiction(
            fmt::format("\"layer_types\" has \"{}\", but full_attention and "
                        "sliding_attention alone are supported",
                        printable(t)));
    sliding = static_cast<int>(std::count(types.begin(), types.end(), "sliding_attention"));
    if (sliding > 0 && !used)
      throw r.contradiction(
          "\"layer_types\" has sliding_attention, but \"use_sliding_window\" is "
          "not true or \"sliding_window\" is null; set them, or list "
          "full_attention alone");
  }
  if (sliding != 0 && sliding != layers)
    throw r.contradiction(
        fmt::format("\"{}\" lets {} of {} layers attend through a sliding "
                    "window, but all or none is supported",
                    r.has("layer_types") ? "layer_types" : "max_window_layers", sliding, layers));
  return sliding == 0 ? 0 : width;
}

/// hf_absent says what missing fields of a family mean in transformers.
struct hf_absent {
  int head_dim = 0;            ///< The head dim of the family, or 0: hidden size over heads.
  bool kv_heads_needed = true; ///< config.json must have kv heads; else they are the heads
};

/// Reads the fields that these families share into m. Windows, biases and experts are left to each
/// family.
template <class Model>
void read_shared(hf_reader& r, hf_use use, Model& m, const hf_absent& absent) {
  r.read(m, fields<Model>);
  m.kv_heads = absent.kv_heads_needed ? r.extent("num_key_value_heads", hf_limits::heads)
                                      : r.extent("num_key_value_heads", hf_limits::heads, m.heads);
  if (m.heads % m.kv_heads != 0)
    throw r.contradiction(
        fmt::format("\"num_attention_heads\" is {} and \"num_key_value_heads\" "
                    "is {}, but the second must divide the first",
                    m.heads, m.kv_heads));
  if (absent.head_dim > 0) r.refuse_null("head_dim");
  m.head_dim = r.extent("head_dim", hf_limits::head_dim,
                        absent.head_dim > 0 ? absent.head_dim : m.hidden / m.heads);
  if (m.head_dim < 2 || m.head_dim % 2 != 0)
    throw r.refuse("head_dim", "RoPE turns pairs of elements: it must be even", m.head_dim);
  if (std::int64_t{m.heads} * m.head_dim > hf_limits::ffn)
    throw r.contradiction(
        fmt::format("\"num_attention_heads\" is {} and \"head_dim\" is {}, but "
                    "their product must be at most {}",
                    m.heads, m.head_dim, hf_limits::ffn));
  read_rope(r, m);
  r.require("hidden_act", {"silu", "swish"}, "silu", "this model_type is computed with silu alone");
  if (use == hf_use::program) {
    r.tell_dropout("attention_dropout", 0);
    m.std = r.number("initializer_range", 0, 1, 0.02);
  } else r.ignore({"attention_dropout", "initializer_range"});
}

} // namespace mc::hf_decoder
