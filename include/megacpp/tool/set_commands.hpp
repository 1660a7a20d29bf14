// The commands merge, inspect and verify of megacpp-data, which read indexed data sets.
#pragma once

#include <megacpp/sets/indexed_writer.hpp>
#include <megacpp/sets/set_checksums.hpp>
#include <megacpp/tool/text_commands.hpp>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <system_error>
#include <vector>

namespace mc {

namespace detail {

/// Returns the prefixes of --input. Throws mc::error(exit_code::usage) if there is none.
inline std::vector<std::string> sets_of(const data_program_flags& f, const char* what) {
  if (!f.input.given())
    throw error(
        exit_code::usage,
        fmt::format("{} needs --input PREFIX, the name of a data set without .bin and .idx", what));
  std::vector<std::string> prefixes = f.input();
  for (std::string& p : prefixes) // the name of a file means its set
    for (const std::string_view end : {".bin", ".idx"})
      if (p.ends_with(end)) p.resize(p.size() - end.size());
  return prefixes;
}

/// Tells whether two prefixes, however they are spelled, name the same files.
inline bool same_set(const std::string& a, const std::string& b) {
  std::error_code ignored; // a file that is absent is equivalent to none
  for (const char* end : {".bin", ".idx"})
    if (std::filesystem::equivalent(a + end, b + end, ignored)) return true;
  return false;
}

/// Counts the documents that have from 2^i to 2^(i+1) - 1 tokens; documents without tokens stand
/// first.
inline std::vector<std::int64_t> histogram_of(const indexed_dataset& data) {
  std::vector<std::int64_t> counts;
  for (std::int64_t d = 0; d < data.documents(); ++d) {
    std::uint64_t tokens = 0;
    for (std::int64_t s = data.first_of(d); s < data.first_of(d + 1); ++s)
      tokens += static_cast<std::uint64_t>(data.length(s));
    const auto i = static_cast<std::size_t>(std::bit_width(tokens));
    if (i >= counts.size()) counts.resize(i + 1);
    ++counts[i];
  }
  return counts;
}

/// Returns the beginning of the first document that has tokens.
inline std::vector<std::int32_t> sample_of(const indexed_dataset& data, std::int64_t most) {
  std::vector<std::int32_t> ids;
  for (std::int64_t s = 0; s < data.sequences() && ids.empty(); ++s) {
    ids.resize(static_cast<std::size_t>(std::min<std::int64_t>(data.length(s), most)));
    data.read(s, 0, ids);
  }
  return ids;
}

} // namespace detail

inline void run_merge(const data_program_flags& f) {
  const std::vector<std::string> from = detail::sets_of(f, "merge");
  if (!f.output_prefix.given())
    throw error(exit_code::usage,
                "--output-prefix is missing: give the name of the data set to write");
  std::vector<std::unique_ptr<indexed_dataset>> sets; // all are checked before one is read
  sets.reserve(from.size());
  for (const std::string& prefix : from)
    sets.push_back(std::make_unique<indexed_dataset>(prefix, detail::any_id));
  for (const auto& set : sets)
    if (detail::same_set(set->name(), f.output_prefix()))
      throw error(exit_code::usage,
                  fmt::format("--output-prefix {} is one of --input; choose another name",
                              f.output_prefix()));
  indexed_writer out(f.output_prefix(), sets.front()->type());
  const stop_signals signals;
  for (const auto& set : sets) {
    out.append(*set);
    detail::end_if_asked(signals);
  }
  out.commit();
  detail::write_checksums(f.output_prefix());
  print_line(fmt::format("{}: {} documents, {} tokens of type {}, of {} data sets",
                         f.output_prefix(), out.progress().documents, out.progress().tokens,
                         name_of(out.type()), sets.size()));
}

inline void run_inspect(const data_program_flags& f) {
  constexpr std::int64_t shown = 200; // tokens
  std::unique_ptr<const tokenizer> t;
  if (f.tokenizer.given() || f.vocab_file.given()) t = detail::tokenizer_of(f);
  for (const std::string& prefix : detail::sets_of(f, "inspect")) {
    const indexed_dataset data(prefix, t ? t->vocabulary() : detail::any_id);
    const std::vector<std::int64_t> counts = detail::histogram_of(data);
    const std::vector<std::int32_t> ids = detail::sample_of(data, shown);
    const std::string text = t ? as_utf8(t->decode(ids)) : fmt::format("{}", fmt::join(ids, " "));
    if (f.json()) {
      print(json_line({{"name", prefix},
                       {"documents", data.documents()},
                       {"sequences", data.sequences()},
                       {"tokens", data.tokens()},
                       {"type", name_of(data.type())},
                       {"lengths", counts},
                       {t ? "text" : "ids", t ? json_output(text) : json_output(ids)}}));
      continue;
    }
    print_line(fmt::format("{}: {} documents, {} sequences, {} tokens of type {}", prefix,
                           data.documents(), data.sequences(), data.tokens(),
                           name_of(data.type())));
    const std::int64_t most = counts.empty() ? 0 : *std::ranges::max_element(counts);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      const std::uint64_t low = i == 0 ? 0 : std::uint64_t{1} << (i - 1),
                          high = i == 0 ? 0 : 2 * low - 1;
      print_line(fmt::format(
          "{:>12} to {:<12} tokens {:>12} documents {}", low, high, counts[i],
          std::string(static_cast<std::size_t>((40 * counts[i] + most - 1) / most), '#')));
    }
    if (!ids.empty()) print(text + "\n");
  }
}

inline void run_verify(const data_program_flags& f) {
  std::unique_ptr<const tokenizer> t;
  if (f.tokenizer.given() || f.vocab_file.given()) t = detail::tokenizer_of(f);
  if (t && f.vocab_size.given())
    throw error(exit_code::usage, "--vocab-size and --tokenizer contradict each other; give one");
  const std::int64_t vocabulary = t                      ? t->vocabulary()
                                  : f.vocab_size.given() ? f.vocab_size()
                                                         : detail::any_id;
  const stop_signals signals;
  for (const std::string& prefix : detail::sets_of(f, "verify")) {
    const indexed_dataset data(prefix, vocabulary);
    const std::string listed = prefix + ".xxh64";
    std::error_code ignored;
    const bool compared = std::filesystem::exists(listed, ignored);
    if (compared) {
      const mapped_file file(listed, exit_code::data);
      if (!is_of(data, file.text()))
        throw error(
            exit_code::data,
            fmt::format("the checksums of {0}.bin and {0}.idx are not those in {1}: a file was "
                        "changed or damaged; prepare the data set again",
                        prefix, listed));
    }
    std::vector<std::int32_t> ids(1 << 16);
    std::optional<std::int32_t> largest;
    for (std::int64_t s = 0; s < data.sequences(); ++s) {
      if (s % 4096 == 0) detail::end_if_asked(signals);
      for (std::int64_t at = 0; at < data.length(s); at += std::ssize(ids)) {
        const auto some = std::span(ids).first(
            static_cast<std::size_t>(std::min<std::int64_t>(std::ssize(ids), data.length(s) - at)));
        data.read(s, at, some);
        largest = std::max(largest.value_or(0), *std::ranges::max_element(some));
      }
    }
    if (f.json())
      print(json_line({{"name", prefix},
                       {"documents", data.documents()},
                       {"tokens", data.tokens()},
                       {"largest_id", largest ? json_output(*largest) : json_output()},
                       {"checksums", compared}}));
    else
      print_line(fmt::format(
          "{} is whole: {} documents, {} tokens{}; {}", prefix, data.documents(), data.tokens(),
          largest ? fmt::format(", the largest id is {}", *largest) : "",
          compared ? "its checksums are those of " + listed : "there are no checksums beside it"));
  }
}

} // namespace mc
