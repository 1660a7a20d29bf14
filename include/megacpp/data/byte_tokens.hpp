// Any file as a sequence of tokens: its bytes.
#pragma once

#include <megacpp/data/mapped_file.hpp>
#include <megacpp/data/token_source.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// Token i is byte i of the file, 0...255. With a vocabulary below 256 a larger byte is refused
/// when it is read, so that opening a large file costs nothing.
class byte_tokens final : public token_source {
public:
  byte_tokens(const std::string& path, std::int64_t vocabulary)
      : byte_tokens(mapped_file(path, exit_code::data), vocabulary) {}
  byte_tokens(mapped_file file, std::int64_t vocabulary)
      : file_(std::move(file)), vocabulary_(vocabulary) {}

  std::int64_t size() const override { return static_cast<std::int64_t>(file_.size()); }
  const std::string& name() const override { return file_.path(); }

  std::int32_t token(std::int64_t i) const override {
    std::int32_t id = 0;
    copy(i, {&id, 1});
    return id;
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) const override {
    const auto n = static_cast<std::int64_t>(out.size());
    if (first < 0 || n > size() || first > size() - n)
      throw error(exit_code::internal,
                  fmt::format("tokens {} to {} of {} were asked for; it has {}", first, first + n,
                              file_.path(), size()));
    file_.check_unchanged();
    const std::byte* const p = file_.data() + first;
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = std::to_integer<std::int32_t>(p[i]);
      largest = std::max(largest, out[i]);
    }
    if (largest >= vocabulary_) refuse(first, out);
  }

private:
  [[noreturn]] void refuse(std::int64_t first, std::span<const std::int32_t> ids) const {
    std::size_t i = 0;
    while (ids[i] < vocabulary_) ++i;
    throw error(
        exit_code::data,
        fmt::format("{}: the byte at offset {} is token {}, but the model's vocabulary has only {} "
                    "tokens (0 to {}); train with --tokenizer char, use other data, or a model "
                    "with a larger vocabulary",
                    file_.path(), first + static_cast<std::int64_t>(i), ids[i], vocabulary_,
                    vocabulary_ - 1));
  }

  mapped_file file_;
  std::int64_t vocabulary_;
};

} // namespace mc
