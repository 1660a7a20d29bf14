// config.json of Qwen3ForCausalLM as mc::qwen3, in the spelling of transformers 4 (rope_theta and
// rope_scaling, max_window_layers) or 5 (rope_parameters, layer_types).
#pragma once

#include <megacpp/hf/config.hpp>
#include <megacpp/model/qwen3.hpp>

#include <tuple>

namespace mc::hf_qwen3 {

inline constexpr const char* architecture = "Qwen3ForCausalLM";

/// What dense and sparse models have both.
template <class Model> inline constexpr std::tuple fields{
    hf_field{"num_hidden_layers", &Model::layers, hf_limits::layers},
    hf_field{"hidden_size", &Model::hidden, hf_limits::hidden},
    hf_field{"num_attention_heads", &Model::heads, hf_limits::heads},
    hf_field{"num_key_value_heads", &Model::kv_heads, hf_limits::heads},
    hf_field{"head_dim", &Model::head_dim},
    hf_field{"intermediate_size", &Model::ffn, hf_limits::ffn},
    hf_field{"vocab_size", &Model::vocabulary, hf_limits::vocabulary},
    hf_field{"max_position_embeddings", &Model::positions, hf_limits::positions},
    hf_field{"rms_norm_eps", &Model::eps, 1e-6},
    hf_field{"rope_theta", &Model::rope_theta},
    hf_field{"sliding_window", &Model::window},
    hf_field{"tie_word_embeddings", &Model::tied, false}};

/// The base of the rotary angles: RoPE of the default type is the only one.
inline double read_rope(hf_reader& r) {
  constexpr double low = 1, high = 1e15;
  double theta = r.number("rope_theta", low, high, 10000.0);
  const bool given = r.has("rope_theta");
  for (const char* name : {"rope_scaling", "rope_parameters"}) {
    if (!r.has(name)) continue;
    const json_value object = r.config().field<json_value>(name);
    hf_reader rope(object);
    for (const char* type : {"rope_type", "type"})
      if (const std::string found = rope.text(type, "default"); found != "default")
        throw r.contradiction(
            fmt::format("\"{}.{}\" is \"{}\", but RoPE of type \"default\" alone "
                        "is supported",
                        name, type, printable(found)));
    if (rope.has("rope_theta")) {
      const double inner = rope.number("rope_theta", low, high, theta);
      if (given && inner != theta)
        throw r.contradiction(
            fmt::format("\"{}.rope_theta\" is {} and \"rope_theta\" is {}, which "
                        "are two names of one number; remove one",
                        name, inner, theta));
      theta = inner;
    }
    for (const auto& [key, value] : object.raw().items())
      if (key != "rope_type" && key != "type" && key != "rope_theta" && !value.is_null())
        throw r.contradiction(
            fmt::format("\"{}.{}\" is set, but RoPE of the default type, which "
                        "alone is supported, has no such number; remove it",
                        name, printable(key)));
  }
  return theta;
}

/// The attention window of all layers, 0 for none. Transformers 4 lets layers from
/// max_window_layers on slide, 5 lists what each layer does; mc::qwen3 has one window for all.
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

/// What dense and sparse models share but for the window and the experts. A missing head_dim is
/// `head_dim`, or for 0 the hidden size over the heads.
template <class Model> void read_shared(hf_reader& r, hf_use use, Model& m, int head_dim) {
  r.read(m, fields<Model>);
  if (m.heads % m.kv_heads != 0)
    throw r.contradiction(
        fmt::format("\"num_attention_heads\" is {} and \"num_key_value_heads\" "
                    "is {}, but the second must divide the first",
                    m.heads, m.kv_heads));
  m.head_dim =
      r.extent("head_dim", hf_limits::head_dim, head_dim > 0 ? head_dim : m.hidden / m.heads);
  if (m.head_dim < 2 || m.head_dim % 2 != 0)
    throw r.refuse("head_dim", "RoPE turns pairs of elements: it must be even", m.head_dim);
  if (std::int64_t{m.heads} * m.head_dim > hf_limits::ffn)
    throw r.contradiction(
        fmt::format("\"num_attention_heads\" is {} and \"head_dim\" is {}, but "
                    "their product must be at most {}",
                    m.heads, m.head_dim, hf_limits::ffn));
  m.rope_theta = read_rope(r);
  r.require("hidden_act", {"silu", "swish"}, "silu", "this model_type is computed with silu alone");
  r.require("attention_bias", false, false, "projections of attention have no biases");
  if (use == hf_use::program) {
    r.require_zero("attention_dropout", 0,
                   "megacpp has no dropout of attention probabilities: set it to 0");
    m.std = r.number("initializer_range", 0, 1, 0.02);
  } else r.ignore({"attention_dropout", "initializer_range"});
}

/// Throws mc::error of the file's class, naming the field.
inline qwen3 read(hf_reader& r, hf_use use) {
  qwen3 m;
  read_shared(r, use, m, 128);
  m.window = read_window(r, m.layers);
  return m;
}

} // namespace mc::hf_qwen3
