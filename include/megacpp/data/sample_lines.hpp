// A sample as text, in which the tokens that are learned stand apart.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/io/utf8.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mc {

/// Returns the text of a token. There is none where tokens are numbers alone.
using text_of_token = std::function<std::string(std::int32_t)>;

namespace detail {

/// Returns bytes in quotes, with escapes for line ends, other control characters, quotes,
/// backslashes and what is not UTF-8: one line, which no terminal obeys.
inline std::string escaped_text(std::string_view text) {
  std::string out = "\"";
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = code_point_at(text, i);
    const auto c = static_cast<unsigned char>(text[i]);
    const std::string_view one = text.substr(i, std::max<std::size_t>(n, 1));
    const auto next = one.size() > 1 ? static_cast<unsigned char>(one[1]) : 0u;
    // Unicode's controls: C1, separators of lines, and those that turn the direction of writing.
    const bool controls = (c == 0xc2 && next < 0xa0) || one == "\u2028" || one == "\u2029" ||
                          (one >= "\u200e" && one <= "\u200f") ||
                          (one >= "\u202a" && one <= "\u202e") ||
                          (one >= "\u2066" && one <= "\u2069");
    if (c == '\n') out += "\\n";
    else if (c == '\t') out += "\\t";
    else if (c == '\r') out += "\\r";
    else if (c == '"' || c == '\\') out += {'\\', static_cast<char>(c)};
    else if (n == 0 || c < ' ' || c == 0x7f || controls)
      for (const char byte : one) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
    else out += one;
    i += one.size();
  }
  return out + '"';
}

/// Tokens of a sample that follow each other, of which all are learned or none.
struct token_stretch {
  bool learned = false;
  std::vector<std::int32_t> tokens;
};

/// Returns the stretches of a part of a sample. A position's label is the token behind it, which is
/// learned there; the last one may be the first of what follows.
inline std::vector<token_stretch> stretches_of(std::span<const std::int32_t> tokens,
                                               std::span<const std::int32_t> labels) {
  std::vector<token_stretch> all{{false, {tokens[0]}}};
  const auto add = [&](bool learned, std::int32_t token) {
    if (all.back().learned != learned) all.push_back({learned, {}});
    all.back().tokens.push_back(token);
  };
  for (std::size_t i = 0; i < tokens.size(); ++i)
    if (labels[i] != ignored_label) add(true, labels[i]);
    else if (i + 1 < tokens.size()) add(false, tokens[i + 1]);
  return all;
}

inline std::string tokens_text(std::span<const std::int32_t> tokens, const text_of_token& text) {
  if (!text) return fmt::format("{}", fmt::join(tokens, " "));
  std::string bytes;
  for (const std::int32_t token : tokens) bytes += text(token);
  return escaped_text(bytes);
}

inline std::string counts_text(std::span<const std::int32_t> labels) {
  return fmt::format("{} tokens, {} learned", labels.size(),
                     std::ssize(labels) - std::ranges::count(labels, ignored_label));
}

} // namespace detail

/// Returns the lines of a sample: its number, its tokens and how many are learned; below, the same
/// of each document, if the program keeps attention within documents; and a line for each stretch
/// that is learned, or is not. A document of one token over and over, as padding is, is counted.
inline std::string sample_lines(std::int64_t number, micro_batch& sample, bool packed,
                                const text_of_token& text) {
  const std::span<const std::int32_t> tokens = sample.tokens(), labels = sample.labels(),
                                      documents = sample.documents();
  std::string lines = fmt::format("sample {}: {}\n", number, detail::counts_text(labels));
  for (std::size_t begin = 0, end = 0; begin < tokens.size(); begin = end) {
    end = packed ? begin + 1 : tokens.size();
    while (end < tokens.size() && documents[end] == documents[begin]) ++end;
    const auto own = tokens.subspan(begin, end - begin),
               learned = labels.subspan(begin, own.size());
    if (packed)
      lines += fmt::format("  document {}: {}\n", documents[begin], detail::counts_text(learned));
    const std::vector<detail::token_stretch> all = detail::stretches_of(own, learned);
    const bool repeats =
        own.size() > 1 && all.size() == 1 && std::ranges::count(own, own[0]) == std::ssize(own);
    if (repeats)
      lines += fmt::format("            {} times {}\n", own.size(),
                           detail::tokens_text(own.first(1), text));
    else
      for (const detail::token_stretch& one : all)
        lines += fmt::format("    {:7} {}\n", one.learned ? "learned" : "",
                             detail::tokens_text(one.tokens, text));
  }
  return lines;
}

} // namespace mc
