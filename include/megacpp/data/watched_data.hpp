// A watch over files of data that others write to.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// Finds out that the data of a run change while it learns from them.
class watched_data {
public:
  /// written() returns the name of a file that was written to since it was opened, or ""; an empty
  /// function watches nothing. hash() returns a hash of the tokens.
  watched_data(std::function<std::string()> written, std::function<std::uint64_t()> hash)
      : written_(std::move(written)), hash_(std::move(hash)) {}

  /// Begins to watch the tokens as they are now.
  void begin() {
    if (written_) at_begin_ = hash_();
  }
  /// Returns the name of a file that was written to since, and that may hold other tokens now; ""
  /// if there is none. A file that was written to and holds the same tokens is told once, by
  /// note(sentence).
  template <class Note> std::string changed_file(const Note& note) {
    std::string file = written_ ? written_() : "";
    if (file.empty() || hash_() != at_begin_) return file;
    if (!std::exchange(was_reported_, true))
      note(
          fmt::format("{} was written to or touched during the run; the tokens that were "
                      "compared, which are all of a small file, are as they were",
                      file));
    return "";
  }

private:
  std::function<std::string()> written_;
  std::function<std::uint64_t()> hash_;
  std::uint64_t at_begin_ = 0; ///< hash of the tokens
  bool was_reported_ = false;
};

} // namespace mc
