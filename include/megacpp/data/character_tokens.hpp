// A text with few distinct bytes needs a vocabulary below 256: the distinct bytes are sorted, and
// the number of a byte among them, from 0, is its token.
#pragma once

#include <megacpp/data/file_tokens.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// character_set is a set of bytes. The token of a byte is its place in the sorted set, from 0.
class character_set {
public:
  /// Returns the set of the distinct bytes of a text.
  static character_set of(std::span<const std::byte> text) {
    std::array<bool, 256> seen{};
    for (const std::byte b : text) seen[std::to_integer<unsigned>(b)] = true;
    std::vector<std::uint8_t> bytes;
    for (unsigned b = 0; b < 256; ++b)
      if (seen[b]) bytes.push_back(static_cast<std::uint8_t>(b));
    return character_set(std::move(bytes));
  }
  /// Makes the set of `bytes`, which must be sorted and distinct.
  explicit character_set(std::vector<std::uint8_t> bytes) : bytes_(std::move(bytes)) {
    token_.fill(-1);
    for (std::size_t i = 0; i < bytes_.size(); ++i)
      token_[bytes_[i]] = static_cast<std::int16_t>(i);
  }

  std::int32_t size() const { return static_cast<std::int32_t>(bytes_.size()); }
  const std::vector<std::uint8_t>& bytes() const { return bytes_; }
  /// Returns the token of a byte, or -1 if the set does not have the byte.
  std::int32_t token(std::uint8_t b) const { return token_[b]; }
  bool operator==(const character_set& o) const { return bytes_ == o.bytes_; }

private:
  std::vector<std::uint8_t> bytes_;
  std::array<std::int16_t, 256> token_{};
};

/// character_tokens is a source whose token i is the place, in a set of bytes, of byte i of a file.
/// A byte that the set does not have is refused when it is read.
class character_tokens final : public file_tokens {
public:
  /// Throws mc::error(exit_code::data) for a set with more characters than the vocabulary.
  character_tokens(mapped_file file, character_set characters, std::int64_t vocabulary)
      : file_tokens(std::move(file)), characters_(std::move(characters)) {
    if (characters_.size() > vocabulary)
      throw error(exit_code::data,
                  fmt::format("{} has {} distinct bytes, but the model's vocabulary has only {} "
                              "tokens; use other data or a preset with a larger vocabulary",
                              file_.path(), characters_.size(), vocabulary));
  }

  const character_set& characters() const { return characters_; }
  std::int64_t size() const override { return static_cast<std::int64_t>(file_.size()); }

  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    const std::byte* const p = file_.data() + first;
    std::int32_t least = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = characters_.token(std::to_integer<std::uint8_t>(p[i]));
      least = std::min(least, out[i]);
    }
    if (least < 0) refuse(first, out);
  }

private:
  [[noreturn]] void refuse(std::int64_t first, std::span<const std::int32_t> ids) const {
    const auto i = std::find(ids.begin(), ids.end(), -1) - ids.begin();
    throw error(
        exit_code::data,
        fmt::format("{}: the byte at offset {} is {}, which is not one of the {} characters "
                    "that the model was trained on; use a text of the same kind",
                    file_.path(), first + i, std::to_integer<int>(file_.data()[first + i]),
                    characters_.size()));
  }

  character_set characters_;
};

} // namespace mc
