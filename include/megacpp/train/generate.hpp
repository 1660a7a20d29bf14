// Continues a text, token by token.
#pragma once

#include <megacpp/run/session.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/sampler.hpp>
#include <megacpp/train/text.hpp>

namespace mc {

namespace detail {

/// Bytes to tokens. Throws mc::error(exit_code::usage) for a byte that has none.
inline std::vector<std::int32_t> tokens_of(std::string_view text, const program_view& p,
                                           const std::optional<character_set>& characters) {
  std::vector<std::int32_t> tokens;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<std::uint8_t>(text[i]);
    const std::int32_t t = characters ? characters->token(byte) : byte;
    if (t < 0 || t >= p.vocabulary)
      throw error(exit_code::usage,
                  fmt::format("--prompt: byte {} at position {} is not a token of "
                              "this model; leave it out",
                              byte, i));
    tokens.push_back(t);
  }
  return tokens;
}

/// What a text without a prompt begins with: a line end, or the first token if there is none.
inline std::int32_t first_token(const program_view& p,
                                const std::optional<character_set>& characters) {
  const std::int32_t t = characters ? characters->token('\n') : '\n';
  return t >= 0 && t < p.vocabulary ? t : 0;
}

} // namespace detail

/// `generate`: prints the prompt and its continuation as it comes. A text longer than the sequence
/// length slides out of view at its beginning.
inline void run_generation(const program_view& p, const options& o, cpu& device) {
  const model_folder folder = detail::required_model(o, "generate");
  const std::optional<character_set> characters = characters_of(folder);
  if (characters) require_vocabulary(*characters, p, o.model.load(), exit_code::model);
  std::vector<std::int32_t> tokens = detail::tokens_of(o.sampling.prompt(), p, characters);
  if (tokens.empty()) tokens.push_back(detail::first_token(p, characters));
  session s(p, device, purpose::inference);
  load_weights(folder, p, s.weights());
  s.begin_step();

  const value& out = p.logits.g->at(p.logits.g->outputs[0]);
  std::vector<std::byte> raw(static_cast<std::size_t>(local_bytes(p.logits.g->ranks, out)));
  // Tokens that stand for no byte are never drawn.
  const std::int32_t symbols = characters ? characters->size() : std::min(256, p.vocabulary);
  std::vector<double> logits(static_cast<std::size_t>(symbols));
  sampler draw({o.sampling.temperature(), o.sampling.top_k(), o.sampling.top_p(),
                static_cast<std::uint64_t>(o.model.seed())});
  print(o.sampling.prompt());
  const auto in_view = static_cast<std::size_t>(s.sequence());
  for (std::int64_t i = 0; i < o.sampling.max_new_tokens(); ++i) {
    if (tokens.size() > in_view) tokens.erase(tokens.begin(), tokens.end() - s.sequence());
    s.logits(tokens, raw.data());
    for (std::size_t t = 0; t < logits.size(); ++t) {
      logits[t] = stores::get(raw.data(), out.type, static_cast<std::int64_t>(t));
      if (!std::isfinite(logits[t]))
        throw error(exit_code::nonfinite,
                    fmt::format("the logit of token {} is {} after {} tokens; the "
                                "model in {} is not usable",
                                t, logits[t], i, o.model.load()));
    }
    const std::int32_t next = draw.draw(logits);
    tokens.push_back(next);
    const std::uint8_t byte = characters ? characters->bytes()[static_cast<std::size_t>(next)]
                                         : static_cast<std::uint8_t>(next);
    print({reinterpret_cast<const char*>(&byte), 1});
  }
  print("\n");
}

} // namespace mc
