// The choice of the next token from its logits.
#pragma once

#include <megacpp/num/random.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace mc {

/// Settings for choosing the next token: logits are divided by the temperature, then the k
/// likeliest tokens are kept, and of these the fewest likeliest ones whose probabilities reach p
/// (Holtzman et al. 2020). Temperature 0 takes the likeliest token. Of equal logits the lower token
/// comes first. The draw goes through the tokens in their order or, where some were cut off, from
/// the likeliest on.
struct sampling {
  double temperature = 1;
  std::int64_t top_k = 0; ///< number of likeliest tokens to keep; 0: all
  double top_p = 1;
  std::uint64_t seed = 0;
};

/// Returns the natural logarithm of the probability of a token under the softmax of the logits.
inline double log_probability(std::span<const double> logits, std::int32_t token) {
  const double highest = *std::ranges::max_element(logits);
  double sum = 0;
  for (const double x : logits) sum += std::exp(x - highest);
  return logits[static_cast<std::size_t>(token)] - highest - std::log(sum);
}

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
    if (s_.top_k > 0 && s_.top_k < std::ssize(order_)) {
      std::partial_sort(order_.begin(), order_.begin() + s_.top_k, order_.end(), likelier);
      order_.resize(static_cast<std::size_t>(s_.top_k));
    }
    double sum = weigh(logits);
    if (s_.top_p < 1) sum = keep_likeliest(s_.top_p * sum, likelier);
    // These additions are those that gave `sum`, in the same order, and random * sum < sum since
    // random < 1: so some token is drawn, and no token of weight 0.
    double below = 0;
    for (const std::int32_t t : order_)
      if ((below += weight(t)) > random * sum) return t;
    return order_.back();
  }

private:
  static constexpr std::uint64_t stream = 0x73616d706c65u;

  /// Returns a uniform number in [0, 1) with 53 bits.
  double next() {
    const auto w = philox(key_, count_++, text_);
    return static_cast<double>((std::uint64_t{w[0]} << 21) | (w[1] >> 11)) * 0x1p-53;
  }

  double& weight(std::int32_t token) { return weight_[static_cast<std::size_t>(token)]; }

  /// Computes weight = exp((logit - highest) / temperature) for the tokens left in `order_`, and
  /// returns their sum.
  double weigh(std::span<const double> logits) {
    const auto logit = [&](std::int32_t t) { return logits[static_cast<std::size_t>(t)]; };
    double highest = logit(order_[0]), sum = 0;
    for (const std::int32_t t : order_) highest = std::max(highest, logit(t));
    weight_.resize(logits.size());
    for (const std::int32_t t : order_)
      sum += weight(t) = std::exp((logit(t) - highest) / s_.temperature);
    return sum;
  }
  /// Keeps the fewest likeliest tokens whose weights add up to `enough`, the likeliest first, and
  /// returns their sum. Usually few do, so no more tokens are sorted than needed.
  template <class Likelier> double keep_likeliest(double enough, Likelier likelier) {
    double kept = 0;
    std::size_t n = 0, sorted = 0;
    while (n < order_.size() && (n == 0 || kept < enough)) {
      if (n == sorted) {
        const auto begin = order_.begin() + static_cast<std::ptrdiff_t>(sorted);
        sorted = std::min(order_.size(), std::max<std::size_t>(64, 8 * sorted));
        std::partial_sort(begin, order_.begin() + static_cast<std::ptrdiff_t>(sorted), order_.end(),
                          likelier);
      }
      kept += weight(order_[n++]);
    }
    order_.resize(n);
    return kept;
  }

  sampling s_;
  std::uint64_t key_, text_, count_ = 0;
  std::vector<std::int32_t> order_;
  std::vector<double> weight_; // weight of each token
};

} // namespace mc
