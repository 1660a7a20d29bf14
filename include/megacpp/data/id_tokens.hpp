// A file of token ids has little-endian numbers of one width and nothing else. nanoGPT's train.bin
// is such a file of u16.
#pragma once

#include <megacpp/data/file_tokens.hpp>

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

static_assert(std::endian::native == std::endian::little, "files of token ids are little-endian");

/// id_tokens is a source whose token i is the i-th number of a file. A number below 0 or beyond the
/// vocabulary is refused when it is read, and not before, so that a large file opens at once. Id is
/// std::uint16_t or std::int32_t.
template <class Id> class id_tokens final : public file_tokens {
public:
  /// Opens a file of ids. Throws mc::error(exit_code::data) if it has no whole number of ids.
  id_tokens(mapped_file file, std::int64_t vocabulary)
      : file_tokens(std::move(file)), vocabulary_(vocabulary) {
    if (file_.size() % sizeof(Id) != 0)
      throw error(exit_code::data,
                  fmt::format("{} has {} bytes, which are no whole number of {}-byte token ids: it "
                              "is cut short, or of another data_request::kind",
                              file_.path(), file_.size(), sizeof(Id)));
  }

  std::int64_t size() const override {
    return static_cast<std::int64_t>(file_.size() / sizeof(Id));
  }

private:
  void read(std::int64_t first, std::span<std::int32_t> out) const override {
    const std::byte* const from = file_.data() + static_cast<std::size_t>(first) * sizeof(Id);
    bool known = true;
    for (std::size_t i = 0; i < out.size(); ++i) {
      Id id;
      std::memcpy(&id, from + i * sizeof id, sizeof id);
      out[i] = static_cast<std::int32_t>(id);
      known &= out[i] >= 0 && out[i] < vocabulary_;
    }
    if (!known) refuse(first, out);
  }

  [[noreturn]] void refuse(std::int64_t first, std::span<const std::int32_t> ids) const {
    std::size_t i = 0;
    while (ids[i] >= 0 && ids[i] < vocabulary_) ++i;
    throw error(
        exit_code::data,
        fmt::format("{}: the token id at offset {} is {}, but the model's vocabulary has "
                    "the ids 0 to {}; use data of this vocabulary, or check data_request::kind",
                    file_.path(), (static_cast<std::size_t>(first) + i) * sizeof(Id), ids[i],
                    vocabulary_ - 1));
  }

  std::int64_t vocabulary_;
};

} // namespace mc
