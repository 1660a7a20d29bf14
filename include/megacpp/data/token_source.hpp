// What training and evaluation read tokens from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace mc {

/// A sequence of token ids, all below the model's vocabulary: a source knows the vocabulary and
/// refuses any other id, when it meets it, with mc::error(exit_code::data) naming file, offset and
/// id.
class token_source {
public:
  virtual ~token_source() = default;
  /// Number of tokens.
  virtual std::int64_t size() const = 0;
  /// Token at position i, 0 <= i < size().
  virtual std::int32_t token(std::int64_t i) const = 0;
  /// Tokens [first, first + out.size()); the range must lie within the source.
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) const = 0;
  /// What messages call it: its path.
  virtual const std::string& name() const = 0;
  /// Whether the tokens are read from a file that was written to since it was opened.
  virtual bool written() const { return false; }
};

} // namespace mc
