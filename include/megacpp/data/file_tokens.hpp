// Sources of tokens that read one mapped file derive from file_tokens.
#pragma once

#include <megacpp/data/token_source.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <utility>

#include <fmt/format.h>

namespace mc {

/// file_tokens is a source of tokens over one file. It checks the range of what is asked for, and
/// that the file has not changed; a derived class reads the tokens.
class file_tokens : public token_source {
public:
  const std::string& name() const final { return file_.path(); }
  bool written() const final { return file_.written(); }

  std::int32_t token(std::int64_t i) const final {
    std::int32_t id = 0;
    copy(i, {&id, 1});
    return id;
  }

  void copy(std::int64_t first, std::span<std::int32_t> out) const final {
    const auto n = static_cast<std::int64_t>(out.size());
    if (first < 0 || n > size() || first > size() - n)
      throw error(exit_code::internal,
                  fmt::format("tokens {} to {} of {} were asked for; it has {}", first, first + n,
                              file_.path(), size()));
    file_.check_unchanged();
    read(first, out);
  }

protected:
  explicit file_tokens(mapped_file file) : file_(std::move(file)) {}

  /// Reads tokens [first, first + out.size()), after copy() has checked the range and the file.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;

  mapped_file file_;
};

} // namespace mc
