// This header cuts one sequence of tokens into training, validation and test ranges, by a text such
// as "90,8,2".
#pragma once

#include <megacpp/data/token_source.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mc {

/// token_range is a range of positions [begin, end) of a sequence.
struct token_range {
  std::int64_t begin = 0, end = 0;
  std::int64_t size() const { return end - begin; }
  bool empty() const { return end <= begin; }
  bool operator==(const token_range&) const = default;
};

/// split_ranges has the training, validation and test ranges of a sequence; a range may be empty.
struct split_ranges {
  token_range train, valid, test;
};

/// Reads a text such as "969,30,1" or "0.9, 0.1", and returns the fractions of training, validation
/// and test, whose sum is 1. Numbers are separated by commas or blanks; a missing number is 0.
/// Throws mc::error(exit_code::usage).
inline std::array<double, 3> split_fractions(std::string_view text) {
  const auto refuse = [text](std::string_view why) {
    return error(
        exit_code::usage,
        fmt::format("data_request::split \"{}\": {}; give up to three shares for training, "
                    "validation and test, such as 90,10,0",
                    text.substr(0, 80), why));
  };
  std::array<double, 3> fractions{};
  std::size_t count = 0;
  for (const char *p = text.data(), *const end = p + text.size(); p != end;) {
    if (*p == ',' || *p == ' ') {
      ++p;
      continue;
    }
    if (count == fractions.size()) throw refuse("more than three shares");
    double fraction = 0;
    const auto [rest, problem] = std::from_chars(p, end, fraction, std::chars_format::fixed);
    if (problem != std::errc() || (rest != end && *rest != ',' && *rest != ' ') || *p == '-' ||
        !std::isfinite(fraction))
      throw refuse("a share is not a number >= 0");
    fractions[count++] = fraction;
    p = rest;
  }
  const double sum = fractions[0] + fractions[1] + fractions[2];
  if (!(sum > 0) || !std::isfinite(sum)) throw refuse("the shares must have a positive sum");
  for (double& fraction : fractions) fraction /= sum;
  return fractions;
}

/// Cuts n positions into three ranges by Megatron's rule. The fractions are added up in binary64,
/// and each bound is rounded to the nearest integer, ties to even (Megatron-LM,
/// megatron/core/datasets, parse_and_normalize_split and convert_split_vector_to_split_matrix). The
/// positions may be documents of a data set, or tokens of one running text.
inline split_ranges split(std::string_view text, std::int64_t n) {
  const std::array<double, 3> fractions = split_fractions(text);
  std::array<token_range, 3> parts{};
  double low = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    const double high = low + fractions[i];
    const auto bound = [n](double fraction) {
      return std::min(n,
                      static_cast<std::int64_t>(std::nearbyint(fraction * static_cast<double>(n))));
    };
    if (high > low) parts[i] = {bound(low), bound(high)};
    low = high;
  }
  return {parts[0], parts[1], parts[2]};
}

/// Throws mc::error(exit_code::data) unless a range holds one window, which is `sequence` inputs
/// and the label of the last one.
inline void require_window(const token_source& source, token_range part, std::string_view part_name,
                           std::int64_t sequence) {
  if (part.size() >= sequence + 1) return;
  throw error(
      exit_code::data,
      fmt::format("the {} part of {} has {} of its {} tokens, but one window of sequence length {} "
                  "needs {}; give more data or another data_request::split",
                  part_name, source.name(), std::max<std::int64_t>(part.size(), 0), source.size(),
                  sequence, sequence + 1));
}

/// Throws mc::error(exit_code::data) unless a range holds one prediction, which is two tokens.
inline void require_prediction(const token_source& source, token_range part,
                               std::string_view part_name) {
  if (part.size() >= 2) return;
  throw error(
      exit_code::data,
      fmt::format(
          "the {} part of {} has {} of its {} tokens, but one prediction needs 2; give more "
          "data or another data_request::split",
          part_name, source.name(), std::max<std::int64_t>(part.size(), 0), source.size()));
}

} // namespace mc
