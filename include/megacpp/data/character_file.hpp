// The file in the folder of a model that lists the characters which are its tokens.
#pragma once

#include <megacpp/data/character_tokens.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/json_file.hpp>

#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

inline constexpr const char* characters_name = "characters.json";

/// Reads the characters of a saved model; returns nothing if its tokens are bytes. Throws
/// mc::error(exit_code::model), also where there are more characters than the vocabulary has
/// tokens.
inline std::optional<character_set> characters_of(const model_folder& folder,
                                                  std::int64_t vocabulary,
                                                  const std::string& program) {
  if (!folder.contains(characters_name)) return std::nullopt;
  const json_value file = read_json(folder.open(characters_name));
  const auto list = file.field<std::vector<std::int32_t>>("characters");
  std::vector<std::uint8_t> bytes;
  for (const std::int32_t b : list) {
    if (b < 0 || b > 255 || (!bytes.empty() && b <= bytes.back()))
      throw file.fault("field \"characters\" must hold rising byte values from 0 to 255");
    bytes.push_back(static_cast<std::uint8_t>(b));
  }
  if (bytes.empty()) throw file.fault("field \"characters\" is empty");
  if (std::ssize(bytes) > vocabulary)
    throw file.fault(
        fmt::format("field \"characters\" has {} of them, but the vocabulary of {} "
                    "has only {} tokens",
                    bytes.size(), program, vocabulary));
  return character_set(std::move(bytes));
}

/// Returns the text of the file with these characters.
inline std::string characters_text(const character_set& c) {
  return json_line({{"characters", c.bytes()}});
}

} // namespace mc
