// Token ids that are written as a list.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Reads token ids that are separated by blanks, or by one comma each. Messages call the list
/// `where`. Reading ends after `most` + 1 ids. Throws mc::error(code) for a word that is no id of
/// the vocabulary.
inline std::vector<std::int32_t> token_ids(
    std::string_view list, int vocabulary, std::string_view where, exit_code code,
    std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  std::vector<std::int32_t> ids;
  constexpr std::string_view blanks = " \t\r\n", between = " ,\t\r\n";
  bool expected = false; // after a comma
  for (std::size_t at = list.find_first_not_of(blanks);
       (expected || at != std::string_view::npos) && std::ssize(ids) <= most;) {
    at = std::min(at, list.size());
    const std::size_t end = std::min(list.find_first_of(between, at), list.size());
    const std::string_view word = list.substr(at, end - at);
    std::int64_t id = -1;
    const auto [stopped, problem] = std::from_chars(word.data(), word.data() + word.size(), id);
    if (problem == std::errc::invalid_argument || stopped != word.data() + word.size())
      throw error(code, fmt::format("{}: \"{}\" is not a token id; give whole numbers separated by "
                                    "blanks or commas",
                                    where, printable(std::string(word.substr(0, 80)))));
    if (problem != std::errc() || id < 0 || id >= vocabulary)
      throw error(code, fmt::format("{}: token {} is outside the vocabulary of 0 to {}; leave it "
                                    "out",
                                    where, word, vocabulary - 1));
    ids.push_back(static_cast<std::int32_t>(id));
    at = list.find_first_not_of(blanks, end);
    expected = at != std::string_view::npos && list[at] == ',';
    if (expected) at = list.find_first_not_of(blanks, at + 1);
  }
  return ids;
}

} // namespace mc
