// This header reads config.json of GPT2LMHeadModel as mc::gpt.
#pragma once

#include <megacpp/hf/config.hpp>
#include <megacpp/model/gpt.hpp>

#include <tuple>

namespace mc::hf_gpt2 {

inline constexpr const char* architecture = "GPT2LMHeadModel";

/// `fields` is the table of fields and members of mc::gpt. config.json has no field for biases,
/// because transformers' GPT-2 always has them.
inline constexpr std::tuple fields{hf_field{"n_layer", &gpt::layers, hf_limits::layers},
                                   hf_field{"n_embd", &gpt::hidden, hf_limits::hidden},
                                   hf_field{"n_head", &gpt::heads, hf_limits::heads},
                                   hf_field{"n_inner", &gpt::ffn},
                                   hf_field{"vocab_size", &gpt::vocabulary, hf_limits::vocabulary},
                                   hf_field{"n_positions", &gpt::positions, hf_limits::positions},
                                   hf_field{"layer_norm_epsilon", &gpt::eps, 1e-5},
                                   hf_field{"tie_word_embeddings", &gpt::tied, true}};

/// Reads the dropout of embeddings and residual branches, which must be equal. Attention
/// probabilities have no dropout here.
inline void read_dropout(hf_reader& r, gpt& m) {
  constexpr double absent = 0.1; // A missing dropout is 0.1, as in GPT2Config of transformers.
  r.tell_dropout("attn_pdrop", absent);
  m.dropout = r.number("resid_pdrop", 0, 0.999999, absent);
  if (const double embedding = r.number("embd_pdrop", 0, 0.999999, absent); embedding != m.dropout)
    throw r.contradiction(
        fmt::format("\"embd_pdrop\" is {} and \"resid_pdrop\" is {}, but megacpp "
                    "has one dropout for both: make them equal",
                    embedding, m.dropout));
}

/// Reads config.json of a GPT-2 model. Throws mc::error of the file's class that names the field.
inline gpt read(hf_reader& r, hf_use use) {
  gpt m;
  r.read(m, fields);
  if (m.hidden % m.heads != 0)
    throw r.contradiction(fmt::format(
        "\"n_embd\" is {} and \"n_head\" is {}, but the heads must divide it", m.hidden, m.heads));
  m.ffn = r.extent("n_inner", hf_limits::ffn, 4 * m.hidden);
  if (const int n = r.extent("n_ctx", hf_limits::positions, m.positions); n != m.positions)
    throw r.contradiction(
        fmt::format("\"n_ctx\" is {} and \"n_positions\" is {}, but they are one "
                    "number; remove the first",
                    n, m.positions));
  m.bias = true;
  r.require("activation_function", {"gelu_new", "gelu_pytorch_tanh"}, "gelu_new",
            "this model_type is computed with gelu_new alone");
  r.require("scale_attn_weights", true, true, "scores are always divided by sqrt(head dim)");
  r.require("scale_attn_by_inverse_layer_idx", false, false,
            "scores are not divided by the layer's number");
  // These fields choose another order of the same sums, or belong to heads for other tasks.
  r.ignore({"reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
            "summary_proj_to_labels", "summary_first_dropout", "n_special",
            "predict_special_tokens"});
  if (use == hf_use::program) {
    read_dropout(r, m);
    m.std = r.number("initializer_range", 0, 1, 0.02);
  } else r.ignore({"attn_pdrop", "resid_pdrop", "embd_pdrop", "initializer_range"});
  return m;
}

} // namespace mc::hf_gpt2
