// A token_source is what training and evaluation read tokens from.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace mc {

/// token_source is a sequence of token ids, all of them in the model's vocabulary. A source that
/// reads an id outside the vocabulary throws mc::error(exit_code::data) that names file, offset and
/// id.
class token_source {
public:
  virtual ~token_source() = default;
  /// Returns the number of tokens of the source.
  virtual std::int64_t size() const = 0;
  /// Returns the token at position i, 0 <= i < size().
  virtual std::int32_t token(std::int64_t i) const = 0;
  /// Copies tokens [first, first + out.size()); the range must lie within the source.
  virtual void copy(std::int64_t first, std::span<std::int32_t> out) const = 0;
  /// Returns the name of the source in messages of errors: its path, if it has one.
  virtual const std::string& name() const = 0;
  /// Returns whether somebody wrote to the file of the tokens since it was opened.
  virtual bool written() const { return false; }
};

} // namespace mc
