// A writer of a model folder, which appears complete or not at all.
#pragma once

#include <megacpp/io/byte_sink.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/folder.hpp>
#include <megacpp/io/folder_target.hpp>
#include <megacpp/io/leftovers.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <functional>
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

/// A folder that is being written. Files go into a temporary folder beside the target; commit()
/// makes them durable and gives them the target's name in one step. An old folder at the target is
/// untouched until commit() returns. If anything throws, the old folder stays, and the temporary
/// folder is removed together with the folders above it that were made for it.
///
/// An old folder is exchanged with the new one (renameat2, RENAME_EXCHANGE), and deleted once the
/// exchange is durable. If the file system has no exchange, the old folder is first renamed to
/// `<target>.megacpp-old-<pid>`; after a crash between the two renames the next folder_writer of
/// that target renames it back. If the old folder cannot even be renamed, its files are deleted
/// first; see replace_what_cannot_move.
class folder_writer {
public:
  /// Checks the target and creates the temporary folder. Throws mc::error(exit_code::output).
  explicit folder_writer(folder_target target, const folder_kind& kind = model_kind)
      : kind_(&kind), target_(std::move(target)) {
    detail::tidy(parent(), target_.name, *kind_);
    check_replaceable();
    for (int attempt = 0; !folder_; ++attempt) {
      temporary_ = detail::temporary_of(target_.name);
      if (attempt != 0) temporary_ += fmt::format("-{}", attempt);
      if (::mkdirat(parent(), temporary_.c_str(), 0777) != 0) {
        const int problem = errno;
        if (problem == EEXIST && attempt < 100) continue;
        throw detail::output_error("create", beside(temporary_), problem);
      }
      folder_ = claim(temporary_);
    }
  }
  /// Returns the writer of a rank that writes nothing while another rank writes: it ignores all
  /// files.
  static folder_writer of_another_rank() { return folder_writer(); }
  folder_writer(const folder_writer&) = delete;
  folder_writer& operator=(const folder_writer&) = delete;
  /// Removes the temporary folder. It needs neither memory nor a descriptor, since the lack of them
  /// may be why the save was given up.
  ~folder_writer() {
    if (temporary_.empty()) return;
    for (const std::string& file : begun_) ::unlinkat(folder_.get(), file.c_str(), 0);
    ::unlinkat(parent(), temporary_.c_str(), AT_REMOVEDIR);
  }

  /// Rehearses a save to `target` at the start of a run that saves at its end: it does all that the
  /// save will do, but for most of the bytes, and undoes it. It tidies what a killed save has left,
  /// as a save does. `fill` is the save's own function; its files get their names, sizes and space,
  /// are synced, and renamed with their folder. So a refusal of names, sizes or space is thrown
  /// here, unless its reason arises later. Returns what the save takes. Throws mc::error.
  static detail::save_cost rehearse(folder_target target, const folder_kind& kind,
                                    const std::function<void(folder_writer&)>& fill) {
    const stopwatch clock;
    folder_writer probe(std::move(target), kind);
    probe.rehearsal_ = true;
    fill(probe);
    probe.require_space(probe.untaken_);
    if (!detail::sync_folder(probe.folder_.get()))
      throw detail::output_error("make durable", probe.target_.path, errno);
    std::string renamed = probe.temporary_ + "-renamed";
    if (!probe.rename(probe.temporary_, renamed, RENAME_NOREPLACE)) {
      const int problem = errno;
      throw detail::output_error("rename", probe.beside(probe.temporary_), problem);
    }
    probe.temporary_.swap(renamed);
    if (!probe.sync_parent())
      throw detail::output_error("make durable", probe.target_.folder, errno);
    const double rest = static_cast<double>(probe.promised_ - probe.tried_bytes_);
    const double a_byte = probe.tried_bytes_ == 0
                              ? 0
                              : probe.tried_seconds_ / static_cast<double>(probe.tried_bytes_);
    return {{probe.promised_, probe.begun_.size() + 1}, clock.seconds() + rest * a_byte};
  }
  /// Rehearses a save of which nothing but the target is known.
  static void check_target(folder_target target, const folder_kind& kind = model_kind) {
    rehearse(std::move(target), kind, [](folder_writer&) {});
  }

  /// Throws mc::error(exit_code::output) unless the file system has space for so many bytes.
  void require_space(std::uint64_t bytes) const {
    if (!folder_) return;
    const std::uint64_t available = detail::room_left(folder_.get(), target_.folder).bytes;
    if (available < bytes)
      throw error(
          exit_code::output,
          fmt::format(
              "{} needs {} bytes, but {} has {} left; free some space or choose another folder",
              target_.path, bytes, target_.folder, available));
  }

  /// Writes one file of `size` bytes: `fill(sink)` passes them to the sink in any number of pieces.
  /// The file is synced and closed when this returns. Throws mc::error(exit_code::output).
  void write(const std::string& name, std::uint64_t size,
             const std::function<void(const byte_sink&)>& fill) {
    if (!folder_) return fill([](std::span<const std::byte>) {});
    const std::string full = target_.path + '/' + name;
    if (!is_bare_name(name))
      throw error(exit_code::internal, fmt::format("\"{}\" is not a plain file name", name));
    begun_.push_back(name);
    descriptor file(::openat(folder_.get(), name.c_str(),
                             O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666));
    if (!file) throw detail::output_error("create", full, errno);
    file_record record{name, size, {}};
    if (rehearsal_) {
      const std::uint64_t room =
          (size + detail::page_bytes - 1) / detail::page_bytes * detail::page_bytes;
      const bool taken = detail::take_room(file.get(), size, full, kept());
      promised_ += room;
      const std::uint64_t tried = try_writing(file, full, size);
      if (!taken) untaken_ += room - std::min(room, tried);
      record.checksums.resize((size + bytes_per_checksum - 1) / bytes_per_checksum);
    } else {
      record.checksums = checksums_of(file, full, size, fill);
    }
    // A failed fsync is final: the kernel may drop the pages and report success the next time.
    if (::fsync(file.get()) != 0) throw detail::output_error("make durable", full, errno, kept());
    if (!file.reset()) throw detail::output_error("close", full, errno, kept());
    written_.push_back(std::move(record));
  }
  void write(const std::string& name, std::string_view text) {
    write(name, text.size(), [&](const byte_sink& sink) { sink(std::as_bytes(std::span(text))); });
  }

  /// Returns the files so far, in the order in which they were written.
  const std::vector<file_record>& written() const { return written_; }

  /// Puts the new folder in place, durably. Throws mc::error(exit_code::output).
  void commit() {
    if (!folder_) return;
    put_in_place();
    target_.made->keep();
  }

private:
  folder_writer() = default;
  int parent() const { return target_.parent->get(); }
  std::string beside(const std::string& name) const { return target_.folder + '/' + name; }
  static std::string_view kept() { return "; what was there before is unchanged"; }

  /// Writes the beginning of a rehearsed file, so that the speed of the file system is known.
  /// Returns how many bytes it wrote.
  std::uint64_t try_writing(const descriptor& file, const std::string& full, std::uint64_t size) {
    constexpr std::uint64_t most = std::uint64_t{32} << 20, block = 1 << 16;
    const std::uint64_t bytes = std::min(size, most - tried_bytes_);
    if (bytes < block) return 0; // the sync of a short file says nothing of the speed
    std::vector<std::byte> some(block);
    std::uint64_t random = 1; // file systems may compress what repeats
    const stopwatch clock;
    static_cast<void>(checksums_of(file, full, bytes, [&](const byte_sink& sink) {
      for (std::uint64_t left = bytes, n = 0; left > 0; left -= n) {
        for (std::size_t i = 0; i < some.size(); i += sizeof random)
          random = random * 6364136223846793005 + 1442695040888963407,
          std::memcpy(&some[i], &random, sizeof random);
        sink(std::span(some).first(n = std::min<std::uint64_t>(left, some.size())));
      }
    }));
    if (::fsync(file.get()) != 0) throw detail::output_error("make durable", full, errno, kept());
    tried_seconds_ += clock.seconds(), tried_bytes_ += bytes;
    return bytes;
  }
  /// Writes the bytes of a file, and returns their checksums.
  static std::vector<std::uint64_t> checksums_of(
      const descriptor& file, const std::string& full, std::uint64_t size,
      const std::function<void(const byte_sink&)>& fill) {
    file_checksums sums; // checksums of the bytes in memory, to find a disk that changes them
    const auto put = [&](std::span<const std::byte> bytes) {
      while (!bytes.empty()) {
        const ::ssize_t n = ::write(file.get(), bytes.data(), bytes.size());
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) throw detail::output_error("write", full, n == 0 ? EIO : errno, kept());
        bytes = bytes.subspan(static_cast<std::size_t>(n));
      }
    };
    constexpr std::size_t block = 1 << 16; // small pieces, such as norms, are written together
    std::vector<std::byte> pending;
    pending.reserve(block);
    const byte_sink sink = [&](std::span<const std::byte> bytes) {
      sums.add(bytes);
      if (pending.size() + bytes.size() > block) {
        put(pending);
        pending.clear();
      }
      if (bytes.size() >= block) put(bytes);
      else pending.insert(pending.end(), bytes.begin(), bytes.end());
    };
    fill(sink);
    put(pending);
    if (sums.size() != size)
      throw error(exit_code::internal, fmt::format("{} was to have {} bytes, but {} were given",
                                                   full, size, sums.size()));
    return sums.finish();
  }

  /// Returns the open target. Throws unless the target is absent, empty, or a folder of the kind
  /// without other files in it.
  detail::flat_folder check_replaceable() const {
    const auto refuse = [this](std::string_view why) {
      return error(exit_code::output,
                   fmt::format("{} {}; it is left as it is: choose another folder to save to",
                               target_.path, why));
    };
    detail::flat_folder old(parent(), target_.name, *kind_);
    if (old.get() < 0) {
      if (old.problem() == ENOENT) return old;
      if (old.problem() == ENOTDIR || old.problem() == ELOOP) throw refuse("is not a folder");
      throw detail::output_error("open", target_.path, old.problem());
    }
    if (is_mount_point(old.get()))
      throw refuse(
          "is a mount point, which cannot be replaced as a whole (a folder inside it can)");
    if (old.problem() != 0) throw detail::output_error("list", target_.path, old.problem());
    if (!old.foreign().empty())
      throw refuse(
          fmt::format("holds {}, which is not a file of a saved {}", old.foreign(), kind_->name));
    const auto& names = old.names();
    if (kind_->marker != nullptr && !names.empty() &&
        std::find(names.begin(), names.end(), kind_->marker) == names.end())
      throw refuse(fmt::format("is not a {} folder: it has no {}", kind_->name, kind_->marker));
    if (const int obstacle = old.obstacle())
      throw refuse(fmt::format("holds files that cannot be removed ({})", reason_of(obstacle)));
    return old;
  }

  static bool is_mount_point(int folder) {
    struct statx s {};
    constexpr std::uint64_t mount_root = 0x2000; // STATX_ATTR_MOUNT_ROOT, Linux 5.8
    return ::statx(folder, "", AT_EMPTY_PATH, 0, &s) == 0 && (s.stx_attributes & mount_root) != 0;
  }

  /// Opens and locks a temporary folder. The lock ends with the process, so a folder that can be
  /// locked belongs to no process. Returns none if another process has removed the folder before it
  /// was locked.
  descriptor claim(const std::string& name) const {
    descriptor folder(
        ::openat(parent(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (!folder) {
      const int problem = errno;
      ::unlinkat(parent(), name.c_str(), AT_REMOVEDIR);
      if (problem == ENOENT) return {};
      throw detail::output_error("open", beside(name), problem);
    }
    struct stat s {};
    ::flock(folder.get(), LOCK_EX | LOCK_NB); // if locks do not work, leftovers merely stay
    if (::fstat(folder.get(), &s) == 0 && s.st_nlink == 0) return {};
    return folder;
  }

  bool sync_parent() const { return detail::sync_folder(parent()); }

  bool rename(const std::string& from, const std::string& to, unsigned flags) const {
    return detail::rename_in_folder(parent(), from, to, flags);
  }

  void put_in_place() {
    if (!detail::sync_folder(folder_.get()))
      throw detail::output_error("make durable", target_.path, errno, kept());
    if (!rename(temporary_, target_.name, RENAME_NOREPLACE)) {
      if (errno != EEXIST)
        throw detail::output_error("rename a folder to", target_.path, errno, kept());
      replace();
    } else if (!sync_parent()) {
      const int problem = errno;
      if (::renameat(parent(), target_.name.c_str(), parent(), temporary_.c_str()) != 0)
        temporary_.clear();
      throw detail::output_error("make durable", target_.path, problem);
    } else {
      temporary_.clear();
    }
  }

  void replace() {
    const detail::flat_folder old = check_replaceable(); // again: a run may have lasted days
    if (rename(temporary_, target_.name, RENAME_EXCHANGE)) {
      std::string left = std::exchange(temporary_, {}); // this is the name of the old folder now
      if (!sync_parent()) {
        const int problem = errno;
        if (rename(left, target_.name, RENAME_EXCHANGE)) temporary_.swap(left);
        throw detail::output_error("make durable", target_.path, problem, kept());
      }
      old.remove(parent(), left);
      return;
    }
    if (errno == EXDEV) return replace_what_cannot_move(old);
    if (errno != EINVAL && errno != ENOSYS)
      throw detail::output_error("replace", target_.path, errno, kept());
    const std::string aside = detail::beside_of(target_.name, detail::aside_mark);
    if (!rename(target_.name, aside, RENAME_NOREPLACE))
      throw detail::output_error("rename", target_.path, errno, kept());
    if (!rename(temporary_, target_.name, RENAME_NOREPLACE)) {
      const int problem = errno;
      rename(aside, target_.name, RENAME_NOREPLACE);
      throw detail::output_error("replace", target_.path, problem, kept());
    }
    temporary_.clear();
    if (!sync_parent()) throw detail::output_error("make durable", target_.path, errno);
    old.remove(parent(), aside);
  }

  /// Replaces an old folder that cannot be renamed, as those of overlayfs's lower layer. The new
  /// folder gets a name that marks it as complete (detail::tidy). From the moment when the old
  /// folder lacks the file that is removed first, the new one takes its place: here, or in the next
  /// save to the target.
  void replace_what_cannot_move(const detail::flat_folder& old) {
    std::string whole = detail::beside_of(target_.name, detail::whole_mark);
    if (!rename(temporary_, whole, RENAME_NOREPLACE))
      throw detail::output_error("rename", target_.path, errno, kept());
    temporary_.swap(whole);
    if (!sync_parent()) throw detail::output_error("make durable", target_.path, errno, kept());
    if (const int problem = old.unmark())
      throw detail::output_error("replace", target_.path, problem, kept());
    whole = std::exchange(temporary_, {});
    const auto fail = [&](const char* what, int problem) {
      return detail::output_error(what, target_.path, problem,
                                  fmt::format("; what was to replace it is in {}", beside(whole)));
    };
    if (!detail::sync_folder(old.get())) throw fail("make durable", errno);
    if (const int problem = old.remove(parent(), target_.name)) throw fail("remove", problem);
    if (!rename(whole, target_.name, RENAME_NOREPLACE)) throw fail("replace", errno);
    if (!sync_parent()) throw detail::output_error("make durable", target_.path, errno);
  }

  const folder_kind* kind_ = nullptr; // the kind of folder that may be replaced
  folder_target target_;
  std::vector<file_record> written_;
  std::vector<std::string> begun_; // names of files
  std::string temporary_;          // name of the temporary folder; empty once committed
  bool rehearsal_ = false;
  std::uint64_t promised_ = 0;    // bytes that a rehearsal has counted
  std::uint64_t untaken_ = 0;     // bytes of these that the file system has not allocated
  std::uint64_t tried_bytes_ = 0; // bytes that a rehearsal has written
  double tried_seconds_ = 0;      // and how long that took
  descriptor folder_;
};

} // namespace mc
