// Reading files, or the standard input, as batches of lines, so that each thread can take a batch.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/lfs_pointer.hpp>
#include <megacpp/io/signals.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

/// The place where a line begins: number of the file, number of the line from 1, bytes before it in
/// the file.
struct line_place {
  std::size_t file = 0;
  std::int64_t line = 1;
  std::int64_t offset = 0;
};

/// A batch of whole lines of one file, each with its line end except the last of a file; or a whole
/// file.
struct line_batch {
  std::string text;
  bool whole_file = false;
  line_place first; ///< place of the first line
  line_place next;  ///< place of the first line behind the batch

  /// Calls f(line, number) for each line, without its end, or once with all of a whole file.
  template <class F> void each(F f) const {
    if (whole_file) return f(std::string_view(text), first.line);
    std::string_view rest = text;
    for (std::int64_t number = first.line; !rest.empty(); ++number) {
      const std::size_t end = std::min(rest.find('\n'), rest.size());
      std::string_view line = rest.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      f(line, number);
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
};

/// Reads one file after the other.
class line_reader {
public:
  static constexpr std::size_t longest_line = std::size_t{16} << 20; // bytes of a line at most
  static constexpr std::size_t batch_bytes = std::size_t{1} << 18;

  /// Reads the standard input if there are no paths. `at`: the place where it begins. `whole`: the
  /// ending of names of files that are read whole, not as lines.
  explicit line_reader(std::vector<std::string> paths, line_place at = {}, std::string whole = "")
      : paths_(std::move(paths)), at_(at), whole_(std::move(whole)) {}

  const std::string& name(std::size_t file) const {
    static const std::string input = "the standard input";
    return paths_.empty() ? input : paths_[file];
  }

  /// Reads the next batch. Returns false if there is none. Throws mc::error(exit_code::data) for a
  /// file that cannot be read, or for a line that is too long, with its number;
  /// mc::error(exit_code::interrupted) if a stop is requested while a pipe or a terminal makes it
  /// wait.
  bool next(line_batch& batch) {
    batch.text.clear();
    while (at_.file < std::max<std::size_t>(paths_.size(), 1)) {
      if (!open_) open();
      if (fill(batch)) return true;
      open_ = false, rest_.clear();
      at_ = {at_.file + 1, 1, 0};
    }
    return false;
  }

private:
  void open() {
    open_ = true;
    if (paths_.empty()) {
      file_ = descriptor(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3));
    } else {
      file_ = descriptor(::open(name(at_.file).c_str(), O_RDONLY | O_CLOEXEC));
    }
    struct stat s {};
    const bool folder = file_ && ::fstat(file_.get(), &s) == 0 && S_ISDIR(s.st_mode);
    if (!file_ || folder) refuse(folder ? EISDIR : errno);
    waits_ = !S_ISREG(s.st_mode);
    if (at_.offset > 0 && ::lseek(file_.get(), at_.offset, SEEK_SET) < 0) refuse(errno);
  }
  [[noreturn]] void refuse(int problem) const {
    throw error(exit_code::data, fmt::format("cannot read {}: {}; check the path", name(at_.file),
                                             reason_of(problem)));
  }

  /// Waits until there are bytes to read, or the end of the input.
  void wait() const {
    constexpr int look_again = 100; // milliseconds between two looks
    for (;;) {
      if (stop_requested())
        throw error(exit_code::interrupted,
                    fmt::format("{} ended the work before its end, while it read {}",
                                stop_signal_name(), name(at_.file)));
      struct pollfd p {
        file_.get(), POLLIN, 0
      };
      const int ready = ::poll(&p, 1, look_again);
      if (ready > 0 || (ready < 0 && errno != EINTR && errno != EAGAIN)) return;
    }
  }

  /// Reads up to a line end behind batch_bytes. Returns false at the end of the file.
  bool fill(line_batch& batch) {
    batch.first = at_;
    batch.whole_file = !whole_.empty() && !paths_.empty() && name(at_.file).ends_with(whole_);
    std::string& text = batch.text;
    text = std::move(rest_);
    rest_.clear();
    std::size_t end = text.rfind('\n'); // bytes left are shorter than a batch, or one line
    while (text.size() < batch_bytes || end == std::string::npos || batch.whole_file) {
      const std::size_t had = text.size();
      if (waits_) wait();
      text.resize(had + batch_bytes);
      const ::ssize_t got = ::read(file_.get(), text.data() + had, batch_bytes);
      if (got < 0 && errno == EINTR) {
        text.resize(had);
        continue;
      }
      if (got < 0) refuse(errno);
      text.resize(had + static_cast<std::size_t>(got));
      if (at_.offset == 0 && had == 0) refuse_packed(text);
      if (got == 0) {
        end = text.size() - 1; // the last line may have no line end
        break;
      }
      if (const std::size_t last = text.rfind('\n'); last != std::string::npos && last >= had)
        end = last;
      if ((end == std::string::npos || batch.whole_file) && text.size() > longest_line)
        too_long(batch.whole_file ? 0 : at_.line);
    }
    if (text.empty()) return false;
    rest_ = text.substr(end + 1);
    text.resize(end + 1);
    batch.next = at_;
    std::string_view lines = text;
    for (std::size_t length; !lines.empty() && !batch.whole_file; lines.remove_prefix(length)) {
      length = std::min(lines.find('\n'), lines.size() - 1) + 1;
      if (length > longest_line + 1) too_long(batch.next.line);
      ++batch.next.line;
    }
    batch.next.offset += static_cast<std::int64_t>(text.size());
    at_ = batch.next;
    return true;
  }
  /// Refuses compressed files and pointers of Git LFS, which are recognised by their first bytes.
  void refuse_packed(std::string_view begin) const {
    using namespace std::string_view_literals;
    if (is_lfs_pointer(begin, begin.size())) throw lfs_pointer(name(at_.file), exit_code::data);
    for (const auto& [magic, reader] :
         {std::pair{"\x1f\x8b"sv, "zcat"sv}, std::pair{"\xfd\x37zXZ\0"sv, "xzcat"sv},
          std::pair{"\x28\xb5\x2f\xfd"sv, "zstdcat"sv}, std::pair{"BZh"sv, "bzcat"sv}})
      if (begin.starts_with(magic) && (magic != "BZh" || begin.find("1AY&SY") == 4))
        throw error(exit_code::data,
                    fmt::format("{} is compressed; give <({} FILE) in its place, or pipe its text "
                                "into the standard input",
                                name(at_.file), reader));
  }
  [[noreturn]] void too_long(std::int64_t line) const {
    throw error(exit_code::data,
                line == 0 ? fmt::format("{} is longer than 16 MiB, the most that one document may "
                                        "have; write it as JSON lines, a document each",
                                        name(at_.file))
                          : fmt::format("{}: line {} is longer than 16 MiB; cut it into several "
                                        "documents",
                                        name(at_.file), line));
  }

  std::vector<std::string> paths_;
  line_place at_;
  std::string whole_;
  bool open_ = false, waits_ = false;
  descriptor file_;
  std::string rest_;
};

} // namespace mc
