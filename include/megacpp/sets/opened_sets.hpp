// The open data sets of a blend, and the documents that training, validation and test have of each.
#pragma once

#include <megacpp/data/split.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/sets/blending.hpp>
#include <megacpp/sets/gpt_dataset.hpp>
#include <megacpp/sets/indexed_dataset.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::detail {

/// Tells whether there is a data set of this prefix.
inline bool is_set(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(prefix + ".idx", ignored);
}

/// Opens each data set once, however often it is named.
class opened_sets {
public:
  explicit opened_sets(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  /// Throws mc::error(exit_code::data) for a set that cannot be read or has no token.
  std::shared_ptr<const indexed_dataset> operator()(const std::string& prefix) {
    const auto at = std::ranges::find(sets_, prefix, &named::first);
    if (at != sets_.end()) return at->second;
    if (!is_set(prefix) && looks_like_weight(prefix))
      throw error(exit_code::usage,
                  fmt::format("{} stands where a data set is expected, and is no weight there: one "
                              "stands before each of them (0.3 P 0.7 Q), or before none",
                              prefix));
    auto set = std::make_shared<const indexed_dataset>(prefix, vocabulary_);
    if (set->tokens() == 0)
      throw error(exit_code::data, fmt::format("{} has no token; leave it out", prefix));
    return sets_.emplace_back(prefix, std::move(set)).second;
  }

  /// Returns the place of each of these sets among all open ones. A set may be named twice.
  std::vector<std::ptrdiff_t> numbers_of(const std::vector<std::string>& prefixes) const {
    std::vector<std::ptrdiff_t> numbers(prefixes.size());
    std::ranges::transform(prefixes, numbers.begin(), [this](const std::string& one) {
      return std::ranges::find(sets_, one, &named::first) - sets_.begin();
    });
    return numbers;
  }
  /// Returns, for each set, its number of tokens, and XXH64 of its index and of stretches of its
  /// tokens that are spread evenly.
  nlohmann::json identity() const {
    constexpr std::size_t stretch = 64 << 10, most = 1024;
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [prefix, set] : sets_) {
      xxh64 hash;
      hash.add(set->idx_bytes());
      const std::span<const std::byte> bytes = set->bin_bytes();
      const std::size_t all_of_it = (bytes.size() + stretch - 1) / stretch,
                        n = std::min(all_of_it, most);
      for (std::size_t i = 0; i < n; ++i) {
        set->check_unchanged();
        const std::size_t at = (n == all_of_it ? i : i * (all_of_it / n)) * stretch;
        hash.add(bytes.subspan(at, std::min(stretch, bytes.size() - at)));
      }
      all.push_back({{"tokens", set->tokens()}, {"xxh64", fmt::format("{:016x}", hash.value())}});
    }
    return all;
  }
  /// Returns the name of a file that was written to since it was opened; "" if there is none.
  std::string written() const {
    for (const auto& [prefix, set] : sets_)
      if (std::string file = set->written(); !file.empty()) return file;
    return "";
  }
  std::int64_t tokens() const {
    std::int64_t n = 0;
    for (const auto& [prefix, set] : sets_) n += set->tokens();
    return n;
  }

private:
  std::int64_t vocabulary_;
  using named = std::pair<std::string, std::shared_ptr<const indexed_dataset>>;
  std::vector<named> sets_; // in the order in which they were named
};

/// The use that a run makes of documents. Those of `all` are measured, whatever their split is.
enum class data_split : std::uint8_t { training, validation, test, all };

inline std::string_view name_of(data_split s) {
  constexpr std::string_view names[] = {"training", "validation", "test", "whole"};
  return names[static_cast<unsigned>(s)];
}

/// The sets of a blend that have documents of one split, and these documents.
struct sets_of_split {
  std::vector<dataset_range> sets;
  std::vector<double> weights;
  std::int64_t sequences = 0;
};
/// Cuts the documents of each set of a blend by `shares`, such as "969,30,1".
inline sets_of_split sets_of(const blend& b, data_split which, std::string_view shares,
                             opened_sets& open) {
  sets_of_split of;
  for (std::size_t i = 0; i < b.prefixes.size(); ++i) {
    const auto set = open(b.prefixes[i]);
    const split_ranges ranges = split(shares, set->sequences());
    const token_range range = which == data_split::training     ? ranges.train
                              : which == data_split::validation ? ranges.valid
                              : which == data_split::test       ? ranges.test
                                                                : token_range{0, set->sequences()};
    if (range.empty()) continue;
    of.sets.push_back({set, range});
    of.sequences += range.size();
    if (!b.weights.empty()) of.weights.push_back(b.weights[i]);
  }
  return of;
}

/// Returns a token that ends one of the first documents of each set, if none of them ends with the
/// token `end`.
inline std::optional<std::int32_t> other_end(const sets_of_split& of, std::int32_t end) {
  constexpr std::int64_t most = 64;
  std::optional<std::int32_t> last;
  for (const dataset_range& one : of.sets)
    for (std::int64_t d = 0; d < std::min(one.data->documents(), most); ++d) {
      const std::int64_t s = one.data->first_of(d + 1) - 1;
      if (s < one.data->first_of(d) || one.data->length(s) == 0) continue;
      std::int32_t id = 0;
      one.data->read(s, one.data->length(s) - 1, std::span(&id, 1));
      if (id == end) return std::nullopt;
      last = id;
    }
  return last;
}

} // namespace mc::detail
