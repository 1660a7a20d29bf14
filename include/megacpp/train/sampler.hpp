// Drawing the next token from logits.
#pragma once

#include <megacpp/num/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

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

/// Draws the tokens of one text. Draw i is a pure function of (logits, settings, seed, text, i).
class sampler {
public:
  explicit sampler(const sampling& s, std::uint64_t text = 0)
      : s_(s), key_(random_key(s.seed, stream)), text_(text) {}

  std::int32_t draw(std::span<const double> logits) {
    const auto likelier = [&](std::int32_t a, std::int32_t b) {
      const double x = logits[static_cast<std::size_t>(a)], y = logits[static_cast<std::size_t>(b)];
      return x > y || (x == y && a < b);
    };
    order_.resize(logits.size());
    for (std::size_t i = 0; i < order_.size(); ++i) order_[i] = static_cast<std::int32_t>(i);
    const double random = next();
    if (s_.temperature == 0) return *std::min_element(order_.begin(), order_.end(), likelier);
    const auto kept_by_rank =
        s_.top_k > 0 ? std::min<std::int64_t>(s_.top_k, std::ssize(order_)) : std::ssize(order_);
    std::partial_sort(order_.begin(), order_.begin() + kept_by_rank, order_.end(), likelier);
    order_.resize(static_cast<std::size_t>(kept_by_rank));
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
    const auto w = philox(key_, count_++, text_);
    return static_cast<double>((std::uint64_t{w[0]} << 21) | (w[1] >> 11)) * 0x1p-53;
  }

  sampling s_;
  std::uint64_t key_, text_, count_ = 0;
  std::vector<std::int32_t> order_;
  std::vector<double> share_;
};

} // namespace mc
