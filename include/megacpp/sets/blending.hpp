// A blend takes samples of several datasets in turn, as Megatron does (Megatron-LM,
// megatron/core/datasets: utils.py, blended_megatron_dataset_builder.py, blended_dataset.py,
// helpers.cpp).
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/sets/index_cache.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// blend names several indexed datasets by their prefixes, and says how much is wanted of each.
struct blend {
  std::vector<std::string> prefixes;
  std::vector<double> weights; ///< Weights > 0, as given; none means all samples of each dataset.
};

namespace detail {

inline std::string_view without_blanks(std::string_view text) {
  const auto blank = " \t\n\r\f\v";
  const auto from = text.find_first_not_of(blank);
  return from == std::string_view::npos
             ? std::string_view()
             : text.substr(from, text.find_last_not_of(blank) - from + 1);
}
/// Returns the number that Python's float() reads from a text, or nothing where it refuses the
/// text.
inline std::optional<double> python_float(std::string_view text) {
  text = without_blanks(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  double value = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (rest != text.data() + text.size() || problem == std::errc::invalid_argument)
    return std::nullopt;
  // A number too small for double is treated as one too large: callers refuse both.
  if (problem == std::errc::result_out_of_range) return std::numeric_limits<double>::infinity();
  return value;
}

/// Returns whether a word that names no dataset was meant as a weight, such as "0,5".
inline bool looks_like_weight(std::string word) {
  std::ranges::replace(word, ',', '.');
  return python_float(word).has_value();
}

/// Returns the sum of numbers with numpy.sum's rounding. numpy adds up halves of more than 128
/// numbers, and eight columns of more than 7 (numpy/_core/src/umath, pairwise_sum).
inline double numpy_sum(std::span<const double> x) {
  if (x.size() < 8) return std::accumulate(x.begin(), x.end(), 0.0);
  if (x.size() > 128) {
    const std::size_t half = x.size() / 2 / 8 * 8;
    return numpy_sum(x.first(half)) + numpy_sum(x.subspan(half));
  }
  double c[8];
  std::copy_n(x.begin(), 8, c);
  std::size_t i = 8;
  for (; i + 8 <= x.size(); i += 8)
    for (std::size_t k = 0; k < 8; ++k) c[k] += x[i + k];
  double sum = ((c[0] + c[1]) + (c[2] + c[3])) + ((c[4] + c[5]) + (c[6] + c[7]));
  for (; i < x.size(); ++i) sum += x[i];
  return sum;
}

} // namespace detail

/// most_datasets is how many datasets a blend can have, because their numbers have 16 bits.
inline constexpr std::size_t most_datasets = 32766;

/// Throws mc::error(exit_code::usage) unless all weights are positive numbers, and there is one for
/// each dataset or none at all. `flag` names the blend in messages.
inline void check_blend(const blend& b, std::string_view flag) {
  const auto refuse = [flag](const std::string& why) {
    throw error(exit_code::usage, fmt::format("{}: {}", flag, why));
  };
  if (b.prefixes.empty()) refuse("no dataset is named; give the prefix of its files");
  if (b.prefixes.size() > most_datasets)
    refuse(fmt::format("{} datasets are more than the {} that can be blended; merge some",
                       b.prefixes.size(), most_datasets));
  if (!b.weights.empty() && b.weights.size() != b.prefixes.size())
    refuse(fmt::format("{} weights for {} datasets; give one before each prefix, or none",
                       b.weights.size(), b.prefixes.size()));
  for (std::size_t i = 0; i < b.weights.size(); ++i)
    if (!(b.weights[i] > 0) || !std::isfinite(b.weights[i]))
      refuse(
          fmt::format("the weight {} of {} is not a number above 0; give another, or leave out "
                      "the dataset",
                      b.weights[i], b.prefixes[i]));
  for (const std::string& prefix : b.prefixes)
    if (prefix.empty()) refuse("a prefix is empty; give the path of files without .bin or .idx");
  if (!std::isfinite(detail::numpy_sum(b.weights)))
    refuse("the sum of the weights is not finite; give smaller ones");
}

/// Reads a list of prefixes, with or without weights, as Megatron does. In a list of even length, a
/// number in front of each prefix is its weight; if no word in a weight's place is a number, all
/// words are prefixes. A list of odd length has prefixes alone. `flag` names the list in messages.
/// Throws mc::error(exit_code::usage).
inline blend parse_blend(std::span<const std::string> words, std::string_view flag) {
  blend b;
  const auto add = [&b](const std::string& word) {
    b.prefixes.emplace_back(detail::without_blanks(word));
  };
  if (words.size() % 2 == 0)
    for (std::size_t i = 0; i < words.size(); i += 2)
      if (const auto weight = detail::python_float(words[i])) b.weights.push_back(*weight);
  if (!b.weights.empty() && b.weights.size() != words.size() / 2)
    throw error(exit_code::usage,
                fmt::format("{}: only {} of {} weights are numbers; give one before each prefix, "
                            "or none",
                            flag, b.weights.size(), words.size() / 2));
  for (std::size_t i = b.weights.empty() ? 0 : 1; i < words.size(); i += b.weights.empty() ? 1 : 2)
    add(words[i]);
  check_blend(b, flag);
  return b;
}

/// Returns weights divided by their sum, with Megatron's rounding.
inline std::vector<double> normalized(std::span<const double> weights) {
  const double sum = detail::numpy_sum(weights);
  std::vector<double> shares;
  for (const double w : weights) shares.push_back(w / sum);
  return shares;
}

/// blend_sizes says how many samples a blend takes of each dataset (`targets`), and how many
/// samples are built of each dataset for that (`built`), which is a little more.
struct blend_sizes {
  std::vector<std::int64_t> targets, built;
  std::int64_t size() const {
    return std::accumulate(targets.begin(), targets.end(), std::int64_t{0});
  }
};
inline blend_sizes sizes_of_blend(std::span<const double> shares, std::int64_t size) {
  constexpr double surplus = 0.005; // Megatron calls this mid_level_dataset_surplus.
  blend_sizes s;
  for (const double share : shares) {
    const double target = std::ceil(static_cast<double>(size) * share);
    s.targets.push_back(static_cast<std::int64_t>(target));
    s.built.push_back(static_cast<std::int64_t>(std::ceil(target * (1 + surplus))));
  }
  return s;
}

/// blend_indices has, for every sample of a blend, the dataset and the sample's number in it. Each
/// sample comes from the dataset that is farthest behind its fraction of the blend; of several such
/// datasets, from the first.
class blend_indices {
public:
  /// Returns a blend of `size` samples by weights. The weights are divided by their sum, as
  /// Megatron does, even where the sum is about 1.
  static blend_indices weighted(std::span<const double> weights, std::int64_t size,
                                const index_cache& cache = {}) {
    const std::vector<double> shares = normalized(weights);
    return {size, key_of("weighted", shares, size), cache,
            [&](std::span<std::int16_t> sets, std::span<std::int64_t> samples) {
              std::vector<std::int32_t> all(shares.size());
              std::iota(all.begin(), all.end(), 0);
              choose(shares, all, sets, samples, [](std::int32_t, std::int64_t) { return false; });
            }};
  }
  /// Returns a blend that has every sample of datasets of these sizes once.
  static blend_indices exhaustive(std::span<const std::int64_t> sizes,
                                  const index_cache& cache = {}) {
    const std::int64_t size = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    std::vector<double> shares;
    std::vector<std::int32_t> unspent;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      shares.push_back(static_cast<double>(sizes[i]) / static_cast<double>(size));
      if (sizes[i] > 0) unspent.push_back(static_cast<std::int32_t>(i));
    }
    return {size, key_of("exhaustive", shares, size), cache,
            [&](std::span<std::int16_t> sets, std::span<std::int64_t> samples) {
              choose(shares, unspent, sets, samples, [&](std::int32_t set, std::int64_t taken) {
                return taken == sizes[static_cast<std::size_t>(set)];
              });
            }};
  }

  std::int64_t size() const { return size_; }
  std::span<const std::int16_t> sets() const {
    return table_.values<std::int16_t>(8 * static_cast<std::uint64_t>(size_), size_);
  }
  /// Returns the number of each sample within its dataset.
  std::span<const std::int64_t> samples() const { return table_.values<std::int64_t>(0, size_); }

private:
  template <class Fill> blend_indices(std::int64_t size, const std::string& key,
                                      const index_cache& cache, const Fill& fill)
      : size_(size),
        table_(cache.get("blend", key, 10 * static_cast<std::uint64_t>(size), "a blend",
                         [&](index_table& t) {
                           fill(t.values<std::int16_t>(8 * static_cast<std::uint64_t>(size), size),
                                t.values<std::int64_t>(0, size));
                         })) {}

  static std::string key_of(std::string_view kind, std::span<const double> shares,
                            std::int64_t size) {
    std::string key = fmt::format("{} blend 1: {} samples of shares", kind, size);
    for (const double share : shares) key += fmt::format(" {:a}", share);
    return key;
  }

  /// Fills `chosen` and `samples` from the datasets `sets`, whose numbers rise. spent(set, taken)
  /// says that no more samples of a dataset are to be taken.
  template <class Spent> static void choose(std::span<const double> shares,
                                            std::vector<std::int32_t> sets,
                                            std::span<std::int16_t> chosen,
                                            std::span<std::int64_t> samples, const Spent& spent) {
    std::vector<std::int64_t> taken(shares.size());
    for (std::size_t s = 0; s < chosen.size(); ++s) {
      const double so_far = std::max(static_cast<double>(s), 1.0);
      std::size_t best = 0;
      double most = std::numeric_limits<double>::lowest();
      for (std::size_t k = 0; k < sets.size(); ++k) {
        const auto set = static_cast<std::size_t>(sets[k]);
        const double behind = shares[set] * so_far - static_cast<double>(taken[set]);
        if (behind > most) most = behind, best = k;
      }
      const std::int32_t set = sets[best];
      std::int64_t& number = taken[static_cast<std::size_t>(set)];
      chosen[s] = static_cast<std::int16_t>(set);
      samples[s] = number++;
      if (spent(set, number)) sets.erase(sets.begin() + static_cast<std::ptrdiff_t>(best));
    }
  }

  std::int64_t size_;
  index_table table_;
};

} // namespace mc
