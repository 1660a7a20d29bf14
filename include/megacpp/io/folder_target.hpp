// The target of a save: where a folder is to appear, and the folders above it that are made for it.
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// Returns an error about a path. `rest`: the end of the sentence, about the consequences.
inline error output_error(std::string_view what, std::string_view path, int error_number,
                          std::string_view rest = "") {
  return error(exit_code::output,
               fmt::format("cannot {} {}: {}{}{}", what, path, reason_of(error_number),
                           advice_on_writing(error_number, "choose another folder"), rest));
}

/// Bytes that file systems allocate at once.
inline constexpr std::uint64_t page_bytes = 4096;

/// The space of a file system for a user, or the space that a save takes. Each file and each folder
/// takes an inode.
struct disk_room {
  std::uint64_t bytes = 0, inodes = 0;
};
/// The room and the time that a save takes. The seconds are those of a rehearsal, which writes a
/// part of the bytes.
struct save_cost {
  disk_room room;
  double seconds = 0;
};

/// Returns the space that is left to this user in the file system of an open folder. A number that
/// the file system does not limit, such as the bytes of ramfs, is the largest number. Throws
/// mc::error.
inline disk_room room_left(int folder, std::string_view path) {
  struct statvfs s {};
  if (::fstatvfs(folder, &s) != 0) throw output_error("examine the space of", path, errno);
  constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();
  return {s.f_blocks == 0 ? any : std::uint64_t{s.f_bavail} * s.f_frsize,
          s.f_files == 0 ? any : std::uint64_t{s.f_favail}};
}

/// Allocates the space of a file in the file system, which checks quotas, too. Returns false if the
/// file system can only allocate by writing: then the file just gets its size. Throws mc::error,
/// also for a size beyond the limit on files.
inline bool take_room(int file, std::uint64_t size, std::string_view path, std::string_view rest) {
  const auto bytes = static_cast<::off_t>(size);
  int taken = 0;
  do taken = ::fallocate(file, 0, 0, bytes);
  while (taken != 0 && errno == EINTR);
  if (taken == 0) return true;
  const bool none = errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
  if (none || ::ftruncate(file, bytes) != 0) throw output_error("write", path, errno, rest);
  return false;
}

/// Makes changes to the names in a folder durable. Returns false, with errno set, on failure. Some
/// file systems (of FUSE or of the network) cannot do this for folders, which is no failure.
inline bool sync_folder(int folder) {
  return ::fsync(folder) == 0 || errno == EINVAL || errno == EOPNOTSUPP;
}

/// Folders that were made for a save. The destructor removes those that are still empty, unless
/// keep() was called.
class made_folders {
public:
  made_folders() = default;
  made_folders(made_folders&& o) noexcept : made_(std::exchange(o.made_, {})) {}
  made_folders& operator=(made_folders&&) = delete;
  ~made_folders() {
    for (auto path = made_.rbegin(); path != made_.rend(); ++path) ::rmdir(path->c_str());
  }

  /// Creates a folder and the missing ones above it, each durable before the next. Returns the
  /// errno of the first failure; 0 if there is none. Throws mc::error if a folder cannot be made
  /// durable.
  int create(const std::filesystem::path& path) {
    struct stat s {};
    if (path.empty() || ::stat(path.c_str(), &s) == 0) return 0;
    if (errno != ENOENT) return errno;
    const std::filesystem::path above = path.parent_path();
    if (const int problem = create(above)) return problem;
    if (::mkdir(path.c_str(), 0777) != 0) return errno == EEXIST ? 0 : errno;
    made_.push_back(path);
    const descriptor parent(
        ::open(above.empty() ? "." : above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!parent) return errno;
    if (!sync_folder(parent.get())) throw output_error("make durable", path.native(), errno);
    return 0;
  }
  /// Lets the folders stay, because something was saved in them.
  void keep() { made_.clear(); }

private:
  std::vector<std::filesystem::path> made_;
};

} // namespace detail

/// The place where a folder is to appear: a path, or a name in an open folder.
struct folder_target {
  folder_target() = default;
  /// Follows links in the part of the path that exists, so that a link to a folder stays a link,
  /// and makes the missing folders above the target. Throws mc::error(exit_code::output).
  folder_target(const std::string& target) {
    namespace fs = std::filesystem;
    if (target.empty())
      throw error(exit_code::output, "the folder to save to has an empty name; give one");
    std::error_code problem;
    fs::path full = fs::absolute(target, problem);
    if (!problem) full = fs::weakly_canonical(full, problem);
    if (problem) throw detail::output_error("resolve", target, problem.value());
    if (!full.has_filename()) full = full.parent_path();
    if (!full.has_filename())
      throw error(exit_code::output,
                  fmt::format("{} cannot be replaced by a model folder; name a new one", target));
    path = full.string(), folder = full.parent_path().string(), name = full.filename().string();
    if (const int number = made->create(full.parent_path()))
      throw detail::output_error("create the folder", folder, number);
    auto open = std::make_shared<descriptor>();
    *open = descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!*open) throw detail::output_error("open the folder", folder, errno);
    parent = std::move(open);
  }
  /// `above`: the path of the open folder, for messages only.
  folder_target(std::string above, std::shared_ptr<const descriptor> open, std::string entry)
      : path(above + '/' + entry),
        folder(std::move(above)),
        name(std::move(entry)),
        parent(std::move(open)) {}

  std::string path;   // path of the target, without links and trailing slashes
  std::string folder; // path of the folder that holds the target
  std::string name;   // name of the target in that folder
  std::shared_ptr<const descriptor> parent;
  std::shared_ptr<detail::made_folders> made = // folders made above the target
      std::make_shared<detail::made_folders>();
};

} // namespace mc
