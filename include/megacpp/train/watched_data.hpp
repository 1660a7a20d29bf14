// Data that change while a run learns from them.
#pragma once

#include <megacpp/inputs/run_data.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// Finds out that a file of the data was written to. One rank of a process looks at the data, which
/// all of its ranks share.
class watched_data {
public:
  watched_data(std::shared_ptr<const run_data> data, bool looks)
      : data_(std::move(data)), looks_(looks && data_->written) {}

  /// Begins to watch the tokens as they are now.
  void begin() {
    if (looks_) hash_ = data_->hash();
  }
  /// Returns the name of a file that was written to since, and that may hold other tokens now; ""
  /// if there is none. A file that was written to and holds the same tokens is told once, by
  /// note(sentence).
  template <class Note> std::string changed_file(const Note& note) {
    if (!looks_) return "";
    std::string file = data_->written();
    if (file.empty() || data_->hash() != hash_) return file;
    if (!std::exchange(was_reported_, true))
      note(
          fmt::format("{} was written to or touched during the run; the tokens that were "
                      "compared, which are all of a small file, are as they were",
                      file));
    return "";
  }

private:
  std::shared_ptr<const run_data> data_;
  bool looks_, was_reported_ = false;
  std::uint64_t hash_ = 0; ///< of the tokens at the begin
};

} // namespace mc
