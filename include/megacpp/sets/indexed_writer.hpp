// indexed_writer writes indexed datasets (sets/indexed_dataset.hpp), with the bytes that Megatron's
// IndexedDatasetBuilder writes.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/folder_target.hpp>
#include <megacpp/sets/indexed_dataset.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cstdio>

#include <fmt/format.h>

namespace mc {

/// indexed_progress says how much of a dataset has been written, in whole documents.
struct indexed_progress {
  std::int64_t tokens = 0, sequences = 0, documents = 0;
  bool operator==(const indexed_progress&) const = default;
};

namespace detail {

/// growing_file is a file to whose end bytes are added, through memory of 1 MiB.
class growing_file {
public:
  growing_file() = default;
  /// Opens a file, and makes it if it is missing. `size` is where bytes are to be added; cut() cuts
  /// the file there.
  growing_file(const folder_target& place, std::string name, std::int64_t size)
      : name_(std::move(name)), path_(place.folder + '/' + name_) {
    const int flags = O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC;
    file_ = descriptor(::openat(place.parent->get(), name_.c_str(), flags, 0666));
    if (!file_) throw output_error("create", path_, errno);
    size_ = size;
  }

  /// Cuts the file off at its size. Throws mc::error(exit_code::output) if the file is shorter.
  void cut() {
    struct stat s {};
    if (::fstat(file_.get(), &s) != 0) throw output_error("examine", path_, errno);
    if (s.st_size < size_)
      throw error(exit_code::output,
                  fmt::format("{} has {} bytes, but {} had been written to it; remove it and begin "
                              "again",
                              path_, s.st_size, size_));
    if (::ftruncate(file_.get(), size_) != 0 || ::lseek(file_.get(), size_, SEEK_SET) < 0)
      throw output_error("write", path_, errno);
  }

  /// Forgets the bytes behind the first `size` ones, which must be in the file. Throws as cut().
  void cut_to(std::int64_t size) {
    pending_.clear();
    size_ = size;
    cut();
  }

  void add(std::span<const std::byte> bytes) {
    if (pending_.size() + bytes.size() > buffered) flush();
    if (bytes.size() >= buffered) put(bytes);
    else pending_.insert(pending_.end(), bytes.begin(), bytes.end());
    size_ += static_cast<std::int64_t>(bytes.size());
  }
  template <class T> void add_value(T value) { add(std::as_bytes(std::span(&value, 1))); }

  void flush() {
    put(pending_);
    pending_.clear();
  }
  void sync() {
    flush();
    if (::fsync(file_.get()) != 0) throw output_error("make durable", path_, errno);
  }
  /// Passes all bytes of the file to `take`, in several calls with whole items of `item` bytes
  /// each.
  template <class F> void each_stretch(std::size_t item, F&& take) {
    flush();
    std::vector<std::byte> stretch(buffered / item * item);
    for (std::int64_t at = 0; at < size_;) {
      const std::int64_t wanted = std::min(size_ - at, static_cast<std::int64_t>(stretch.size()));
      for (std::int64_t had = 0; had < wanted;) {
        const ::ssize_t n = ::pread(file_.get(), stretch.data() + had,
                                    static_cast<std::size_t>(wanted - had), at + had);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw output_error("read back", path_, n == 0 ? EIO : errno);
        had += n;
      }
      take(std::span<const std::byte>(stretch).first(static_cast<std::size_t>(wanted)));
      at += wanted;
    }
  }

  /// Locks the file, and returns false if another process has locked it.
  bool lock() const { return ::flock(file_.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }
  bool removed() const {
    struct stat s {};
    return ::fstat(file_.get(), &s) == 0 && s.st_nlink == 0;
  }
  const std::string& name() const { return name_; }
  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }

private:
  static constexpr std::size_t buffered = 1 << 20;

  void put(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ::ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) throw output_error("write", path_, n == 0 ? EIO : errno);
      bytes = bytes.subspan(static_cast<std::size_t>(n));
    }
  }

  std::string name_, path_;
  descriptor file_;
  std::vector<std::byte> pending_;
  std::int64_t size_ = 0;
};

} // namespace detail

/// indexed_writer writes a dataset of any size in constant memory.
///
/// Tokens, lengths and documents are added to P.bin.partial, P.lengths.partial and
/// P.documents.partial. commit() writes P.idx.partial from these, and gives P.bin and P.idx their
/// names; until then, a dataset that was at P before is untouched. Without a commit, the files are
/// removed with the object. After keep() they stay, and another writer goes on from the last
/// progress. Throws mc::error(exit_code::output) where a file cannot be written.
class indexed_writer {
public:
  /// Opens the files of a dataset, and makes missing folders above them. `from` is the progress of
  /// another writer of the same prefix and type that kept its files.
  indexed_writer(const std::string& prefix, token_type type, const indexed_progress& from = {})
      : target_(checked(prefix)), type_(type), done_(from) {
    do { // Another writer may have removed the file between its opening and the lock: try again.
      partial_[bin] = open(".bin.partial", from.tokens * size_of(type));
      if (!partial_[bin].lock())
        throw error(exit_code::output,
                    fmt::format("another process is writing {}; wait for it, or choose another "
                                "prefix",
                                partial_[bin].path()));
    } while (partial_[bin].removed());
    remove_ = true;
    try {
      partial_[lengths] = open(".lengths.partial", 4 * from.sequences);
      partial_[ends] = open(".documents.partial", 8 * from.documents);
      for (auto& file : partial_) file.cut();
    } catch (...) {
      remove_partial();
      throw;
    }
  }
  indexed_writer(const indexed_writer&) = delete;
  indexed_writer& operator=(const indexed_writer&) = delete;
  ~indexed_writer() { remove_partial(); }

  token_type type() const { return type_; }
  const indexed_progress& progress() const { return done_; }

  /// Adds a sequence to the current document.
  void add(std::span<const std::int32_t> tokens) {
    if (tokens.size() > std::numeric_limits<std::int32_t>::max())
      throw error(exit_code::data,
                  fmt::format("a sequence of {} tokens is longer than an indexed dataset can hold; "
                              "cut it",
                              tokens.size()));
    visit(type_, [&](auto id) {
      using id_type = decltype(id);
      constexpr std::size_t some = 4096;
      std::array<id_type, some> ids;
      for (std::size_t at = 0; at < tokens.size(); at += some) {
        const auto stretch = tokens.subspan(at, std::min(some, tokens.size() - at));
        bool fit = true;
        for (std::size_t i = 0; i < stretch.size(); ++i) {
          ids[i] = static_cast<id_type>(stretch[i]);
          fit &= static_cast<std::int64_t>(ids[i]) == stretch[i];
        }
        if (!fit) refuse(stretch);
        partial_[bin].add(std::as_bytes(std::span(ids).first(stretch.size())));
      }
    });
    end_sequence(static_cast<std::int32_t>(tokens.size()));
    done_.tokens += static_cast<std::int64_t>(tokens.size());
  }

  /// Ends the current document, which has the sequences since the last end, or none.
  void end_document() {
    partial_[ends].add_value(done_.sequences);
    ended_ = done_.sequences;
    ++done_.documents;
  }

  /// Adds all documents of another dataset.
  void append(const indexed_dataset& data) {
    if (data.type() != type_)
      throw error(exit_code::data,
                  fmt::format("the tokens of {} are of type {}, but those of what is to hold them "
                              "are {}; prepare both with one tokenizer",
                              data.name(), name_of(data.type()), name_of(type_)));
    constexpr std::size_t some = 8 << 20;
    for (auto rest = data.bin_bytes(); !rest.empty();) {
      data.check_unchanged();
      const auto stretch = rest.first(std::min(some, rest.size()));
      partial_[bin].add(stretch);
      rest = rest.subspan(stretch.size());
    }
    data.check_unchanged();
    const std::int64_t before = done_.sequences;
    for (std::int64_t i = 0; i < data.sequences(); ++i) end_sequence(data.length(i));
    for (std::int64_t d = 1; d <= data.documents(); ++d)
      partial_[ends].add_value(before + data.first_of(d));
    done_.tokens += data.tokens();
    done_.documents += data.documents();
    ended_ = done_.sequences;
  }

  /// Writes all that was added to the files, so that go_back() can return to this progress.
  void flush() {
    for (auto& file : partial_) file.flush();
  }
  /// Forgets what was added since a progress that was flushed. It works after a failed write, too.
  void go_back(const indexed_progress& to) {
    partial_[bin].cut_to(to.tokens * size_of(type_));
    partial_[lengths].cut_to(4 * to.sequences);
    partial_[ends].cut_to(8 * to.documents);
    done_ = to;
    ended_ = to.sequences;
  }
  /// Makes all that was added durable. If the files are kept, another writer can go on from the
  /// present progress().
  void sync() {
    for (auto& file : partial_) file.sync();
  }
  /// Keeps the files without a commit, for another writer.
  void keep() {
    remove_ = false;
    target_.made->keep();
  }

  /// Makes the dataset durable, under the names P.bin and P.idx. An older P.idx is removed first,
  /// with the checksums in P.xxh64, and the new P.idx comes last. So there is never a P.idx beside
  /// the P.bin of another dataset, even after a crash.
  void commit() {
    if (ended_ != done_.sequences)
      throw error(exit_code::internal, fmt::format("{} sequences of {} are of no document",
                                                   done_.sequences - ended_, target_.path));
    detail::growing_file idx = open(idx_suffix, 0);
    idx.cut();
    write_idx(idx);
    idx.sync();
    partial_[bin].sync();
    const int folder = target_.parent->get();
    for (const char* suffix : {".xxh64", ".idx"}) {
      const std::string name = target_.name + suffix;
      if (::unlinkat(folder, name.c_str(), 0) != 0 && errno != ENOENT)
        throw detail::output_error("replace", target_.path + suffix, errno);
    }
    if (!detail::sync_folder(folder))
      throw detail::output_error("make durable", target_.folder, errno);
    rename(partial_[bin].name(), ".bin");
    rename(idx.name(), ".idx");
    target_.made->keep();
    remove_ = true; // The files of an earlier keep() are of no use any more.
    remove_partial();
  }

private:
  enum partial_file : std::size_t { bin, lengths, ends };
  static constexpr const char* idx_suffix = ".idx.partial";

  static folder_target checked(const std::string& prefix) {
    if (prefix.empty() || prefix.ends_with('/'))
      throw error(exit_code::output,
                  fmt::format("\"{}\" is no prefix of files to write; give one such as "
                              "data/books_text_document",
                              prefix));
    return folder_target(prefix);
  }
  detail::growing_file open(std::string_view suffix, std::int64_t size) const {
    return {target_, target_.name + std::string(suffix), size};
  }
  void end_sequence(std::int32_t length) {
    partial_[lengths].add_value(length);
    ++done_.sequences;
  }

  [[noreturn]] void refuse(std::span<const std::int32_t> ids) const {
    const auto fits = [this](std::int32_t id) {
      return visit(type_, [id](auto as) {
        return static_cast<std::int64_t>(static_cast<decltype(as)>(id)) == id;
      });
    };
    throw error(exit_code::data,
                fmt::format("the token id {} of document {} of {} is none that type {} can hold; "
                            "check the vocabulary",
                            *std::find_if_not(ids.begin(), ids.end(), fits), done_.documents,
                            target_.path, name_of(type_)));
  }

  void write_idx(detail::growing_file& idx) {
    idx.add(std::as_bytes(std::span(detail::idx_magic)));
    idx.add_value(detail::idx_version);
    idx.add_value(static_cast<std::uint8_t>(type_));
    idx.add_value(done_.sequences);
    idx.add_value(done_.documents + 1);
    partial_[lengths].each_stretch(4,
                                   [&](std::span<const std::byte> stretch) { idx.add(stretch); });
    std::int64_t at = 0;
    partial_[lengths].each_stretch(4, [&](std::span<const std::byte> stretch) {
      for (std::size_t i = 0; i < stretch.size(); i += 4) {
        idx.add_value(at);
        at += detail::load<std::int32_t>(stretch.data() + i) * size_of(type_);
      }
    });
    idx.add_value(std::int64_t{0});
    partial_[ends].each_stretch(8, [&](std::span<const std::byte> stretch) { idx.add(stretch); });
  }

  void rename(const std::string& from, const char* suffix) const {
    const int folder = target_.parent->get();
    const std::string to = target_.name + suffix;
    if (::renameat(folder, from.c_str(), folder, to.c_str()) != 0)
      throw detail::output_error("rename a file to", target_.path + suffix, errno);
    if (!detail::sync_folder(folder))
      throw detail::output_error("make durable", target_.path + suffix, errno);
  }
  /// Removes the files that were not committed. It needs memory for names alone, since the writer
  /// may have given up for lack of memory.
  void remove_partial() {
    if (!std::exchange(remove_, false)) return;
    for (const auto& file : partial_)
      if (!file.name().empty()) ::unlinkat(target_.parent->get(), file.name().c_str(), 0);
    ::unlinkat(target_.parent->get(), (target_.name + idx_suffix).c_str(), 0);
  }

  folder_target target_;
  token_type type_;
  std::array<detail::growing_file, 3> partial_;
  indexed_progress done_;
  std::int64_t ended_ = done_.sequences; ///< The number of sequences in documents that have ended.
  bool remove_ = false;
};

} // namespace mc
