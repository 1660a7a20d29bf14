// byte_tokens reads any file as a sequence of tokens, of which each is a byte.
#pragma once

#include <megacpp/data/file_tokens.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// byte_tokens is a source whose token i is byte i of a file, 0...255. A byte that the vocabulary
/// does not have is refused when it is read, and not before, so that a large file opens at once.
class byte_tokens final : public file_tokens {
public:
  byte_tokens(const std::string& path, std::int64_t vocabulary)
      : byte_tokens(mapped_file(path, exit_code::data), vocabulary) {}
  byte_tokens(mapped_file file, std::int64_t vocabulary)
      : file_tokens(std::move(file)), vocabulary_(vocabulary) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(file_.size()); }

private:
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    const std::byte* const p = file_.data() + first;
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::to_integer<std::int32_t>(p[i]);
      largest = std::max(largest, out[i]);
    }
    if (largest >= vocabulary_) refuse(first, out);
  }

  [[noreturn]] void refuse(std::int64_t first, std::span<const std::int32_t> ids) const {
    std::size_t i = 0;
    while (ids[i] < vocabulary_) ++i;
    throw error(
        exit_code::data,
        fmt::format(
            "{}: the byte at offset {} is token {}, but the model's vocabulary has only {} "
            "tokens (0 to {}); train with tokenizer_request::type char, use other data, or a model "
            "with a larger vocabulary",
            file_.path(), first + static_cast<std::int64_t>(i), ids[i], vocabulary_,
            vocabulary_ - 1));
  }

  std::int64_t vocabulary_;
};

} // namespace mc
