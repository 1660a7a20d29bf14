// What sources of tokens from one mapped file share.
#pragma once

#include <megacpp/data/token_source.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <utility>

#include <fmt/format.h>

namespace mc {

/// A source over a whole file, whose tokens a derived class reads.
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

  /// copy() of a range that is there, from a file that has not changed.
  virtual void read(std::int64_t first, std::span<std::int32_t> out) const = 0;

  mapped_file file_;
};

} // namespace mc
