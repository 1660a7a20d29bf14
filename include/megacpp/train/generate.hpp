// Continues a text, token by token.
#pragma once

#include <megacpp/num/random.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/text.hpp>

namespace mc {

/// How the next token is chosen: logits / temperature, the k likeliest, of those the fewest
/// likeliest whose probabilities reach p (Holtzman et al. 2020). Temperature 0: the likeliest.
/// Equal logits: the lower token first.
struct sampling {
  double temperature = 1;
  std::int64_t top_k = 0; ///< 0: all
  double top_p = 1;
  std::uint64_t seed = 0;
};

/// Draws tokens from logits. Draw i is a pure function of (logits, settings, seed, i).
class sampler {
public:
  explicit sampler(const sampling& s) : s_(s), key_(random_key(s.seed, stream)) {}

  std::int32_t draw(std::span<const double> logits) {
    const auto likelier = [&](std::int32_t a, std::int32_t b) {
      const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    };
    order_.resize(logits.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    const double random = next();
    if (s_.temperature == 0) return *std::min_element(order_.begin(), order_.end(), likelier);
    std::sort(order_.begin(), order_.end(), likelier);
    if (s_.top_k > 0 && s_.top_k < std::ssize(order_))
      order_.resize(static_cast<std::size_t>(s_.top_k));
    const double highest = logits[static_cast<std::size_t>(order_[0])];
    share_.resize(order_.size());
    double sum = 0;
    for (std::size_t i = 0; i < order_.size(); ++i)
      sum += share_[i] =
          std::exp((logits[static_cast<std::size_t>(order_[i])] - highest) / s_.temperature);
    double kept = 0;
    std::size_t n = 0;
    while (n < order_.size() && (n == 0 || kept < s_.top_p * sum)) kept += share_[n++];
    double rest = random * kept;
    for (std::size_t i = 0; i + 1 < n; ++i) {
      if (rest < share_[i]) return order_[i];
      rest -= share_[i];
    }
    return order_[n - 1];
  }

private:
  static constexpr std::uint64_t stream = 0x73616d706c65u;

  /// Uniform in [0, 1) with 53 bits.
  double next() {
    const auto w = philox(key_, count_++);
    return static_cast<double>((std::uint64_t{w[0]} << 21) | (w[1] >> 11)) * 0x1p-53;
  }

  sampling s_;
  std::uint64_t key_, count_ = 0;
  std::vector<std::int32_t> order_;
  std::vector<double> share_;
};

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
  load_model_folder(o.model.load(), p, s.weights());
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
