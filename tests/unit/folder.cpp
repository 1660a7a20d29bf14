// Model folders: what is read stays beneath the folder; what is written appears complete or not at
// all, under failing system calls, full disks and kill -9.
#define BOOST_TEST_MODULE folder
#include <boost/test/unit_test.hpp>

#include <megacpp/io/folder_writer.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <scratch.hpp>

#include "child.hpp"

namespace {

namespace fs = std::filesystem;
using mc::exit_code;
using test::in_child;
using test::read_text;
using test::scratch_folder;
using test::write_text;

/// Saves a model whose two files say `version`, the weights `size` times.
void save(const std::string& target, const std::string& version, std::size_t size = 1000) {
  mc::folder_writer folder(target);
  folder.write("config.json", version);
  folder.write("model.safetensors", size * version.size(), [&](const mc::byte_sink& sink) {
    for (std::size_t i = 0; i < size; ++i) sink(std::as_bytes(std::span(version)));
  });
  folder.commit();
}

/// True if the folder is a complete model of one version.
bool is_whole(const std::string& target, const std::string& version, std::size_t size = 1000) {
  std::string weights;
  for (std::size_t i = 0; i < size; ++i) weights += version;
  return read_text(target + "/config.json") == version &&
         read_text(target + "/model.safetensors") == weights;
}

std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}
std::size_t entries_in(const fs::path& folder) { return names_in(folder).size(); }

/// From here on the system call fails with the error in this process. False if that cannot be
/// arranged.
bool make_fail(long call, int error_number) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | static_cast<unsigned>(error_number)),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

/// The system call fails with the error in this process when it is made for the nth time from here
/// on. False if that cannot be arranged.
bool fail_once(long call, int nth, int error_number) {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(call), 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{4, code};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return false;
  const auto asks = static_cast<int>(
      ::syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program));
  if (asks < 0) return false;
  std::thread([asks, nth, error_number]() mutable {
    seccomp_notif asked{};
    while (::ioctl(asks, SECCOMP_IOCTL_NOTIF_RECV, &asked) == 0) {
      seccomp_notif_resp answer{};
      answer.id = asked.id;
      if (--nth == 0) answer.error = -error_number;
      else answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
      ::ioctl(asks, SECCOMP_IOCTL_NOTIF_SEND, &answer);
      asked = {};
    }
  }).detach();
  return true;
}

BOOST_AUTO_TEST_CASE(a_folder_appears_and_is_replaced) {
  const scratch_folder dir;
  const std::string target = dir / "runs/one/model/"; // parents are made, the slash does not matter
  save(target, "first");
  BOOST_TEST(is_whole(target, "first"));
  save(target, "second");
  BOOST_TEST(is_whole(target, "second"));
  BOOST_TEST(entries_in(dir / "runs/one") == 1u);
  fs::create_directory(dir / "empty");
  save(dir / "empty", "third");
  BOOST_TEST(is_whole(dir / "empty", "third"));
  fs::create_directory_symlink(dir / "empty", dir / "latest");
  save(dir / "latest", "fourth");
  BOOST_TEST(fs::is_symlink(dir / "latest"));
  BOOST_TEST(is_whole(dir / "empty", "fourth"));
}

BOOST_AUTO_TEST_CASE(nothing_appears_without_commit) {
  const scratch_folder dir;
  save(dir / "model", "old");
  {
    mc::folder_writer folder(dir / "model");
    folder.write("config.json", "new");
  }
  BOOST_CHECK_THROW(
      [&] {
        mc::folder_writer folder(dir / "model");
        folder.write("config.json", 3,
                     [](const mc::byte_sink&) { throw std::runtime_error("out of memory"); });
      }(),
      std::runtime_error);
  mc::folder_writer::check_target(dir / "model");
  mc::folder_writer::check_target(dir / "other");
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
}

// A rehearsal is refused what the save would be refused, and leaves nothing.
BOOST_AUTO_TEST_CASE(a_rehearsal_finds_what_a_save_would_find_last) {
  const scratch_folder dir;
  save(dir / "model", "old");
  const auto rehearse = [&](const std::string& name, std::uint64_t size,
                            const std::string& target = "model") {
    mc::folder_writer::rehearse(dir / target, mc::model_kind, [&](mc::folder_writer& out) {
      out.write("config.json", "{}");
      out.write(name, size, [](const mc::byte_sink&) { BOOST_FAIL("no byte is asked for"); });
      BOOST_TEST(out.written().back().bytes == size);
      BOOST_TEST(out.written().back().checksums.size() ==
                 (size + mc::bytes_per_checksum - 1) / mc::bytes_per_checksum);
    });
  };
  rehearse("model.safetensors", 5'000'000);
  CHECK_REFUSED(rehearse("config.json", 1), exit_code::output, "File exists");
  CHECK_REFUSED(rehearse("a/b", 1), exit_code::internal, "not a plain file name");
  CHECK_REFUSED(rehearse("model.safetensors", std::uint64_t{1} << 50), exit_code::output, "");
  std::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const struct rlimit small { 1'000'000, before.rlim_max };
  ::setrlimit(RLIMIT_FSIZE, &small);
  rehearse("model.safetensors", 1'000'000);
  CHECK_REFUSED(rehearse("model.safetensors", 1'000'001), exit_code::output, "File too large");
  ::setrlimit(RLIMIT_FSIZE, &before);
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
  // Neither do folders above stay that were made for nothing; those of others do.
  rehearse("model.safetensors", 7, "new/deep/model");
  BOOST_TEST(entries_in(dir.path()) == 1u);
  fs::create_directory(dir / "mine");
  rehearse("model.safetensors", 7, "mine/deep/model");
  BOOST_TEST(fs::is_empty(dir / "mine"));
  save(dir / "mine/deep/model", "new");
  BOOST_TEST(is_whole(dir / "mine/deep/model", "new"));
}

BOOST_AUTO_TEST_CASE(a_file_has_the_size_that_was_promised) {
  const scratch_folder dir;
  for (const std::size_t given : {0u, 2u, 4u})
    CHECK_REFUSED(
        [&] {
          mc::folder_writer folder(dir / "model");
          folder.write("config.json", 3, [&](const mc::byte_sink& sink) {
            sink(std::as_bytes(std::span("1234")).first(given));
          });
        }(),
        exit_code::internal, "was to have 3 bytes");
  BOOST_TEST(entries_in(dir.path()) == 0u);
}

BOOST_AUTO_TEST_CASE(what_is_not_a_model_folder_is_never_replaced) {
  const scratch_folder dir;
  const auto refused = [&](const std::string& name, std::string_view why) {
    const auto before =
        fs::is_directory(dir / name) ? names_in(dir / name) : std::vector<std::string>{};
    CHECK_REFUSED(save(dir / name, "new"), exit_code::output, why);
    CHECK_REFUSED(mc::folder_writer::check_target(dir / name), exit_code::output,
                  "choose another folder");
    BOOST_TEST((!fs::is_directory(dir / name) || names_in(dir / name) == before));
  };
  write_text(dir / "file", "x");
  refused("file", "is not a folder");
  fs::create_directory(dir / "thesis");
  write_text(dir / "thesis/chapter.tex", "x");
  refused("thesis", "holds chapter.tex");
  save(dir / "notes", "old");
  write_text(dir / "notes/notes.txt", "x");
  refused("notes", "holds notes.txt");
  save(dir / "nested", "old");
  fs::create_directory(dir / "nested/model.safetensors.d");
  refused("nested", "holds model.safetensors.d");
  fs::create_directory(dir / "unmarked");
  write_text(dir / "unmarked/model.safetensors", "x");
  refused("unmarked", "no config.json");
  save(dir / "linked", "old");
  fs::remove(dir / "linked/config.json");
  fs::create_symlink(dir / "file", dir / "linked/config.json");
  refused("linked", "holds config.json");
  CHECK_REFUSED(save("", "new"), exit_code::output, "empty name");
  CHECK_REFUSED(save("/", "new"), exit_code::output, "name a new one");
  CHECK_REFUSED(save("/proc", "new"), exit_code::output, "mount point");
  CHECK_REFUSED(save(dir / "file/model", "new"), exit_code::output, "cannot");
  // What appears during a run is respected too.
  mc::folder_writer folder(dir / "late");
  folder.write("config.json", "new");
  fs::create_directory(dir / "late");
  write_text(dir / "late/diary", "x");
  CHECK_REFUSED(folder.commit(), exit_code::output, "holds diary");
  BOOST_TEST(read_text(dir / "late/diary") == "x");
}

BOOST_AUTO_TEST_CASE(only_plain_names_are_opened_and_links_are_not_followed) {
  const scratch_folder dir;
  save(dir / "model", "v");
  write_text(dir / "secret", "s");
  const mc::model_folder folder(dir / "model");
  BOOST_TEST(folder.open("config.json").size() == 1u);
  BOOST_TEST(folder.contains("config.json"));
  BOOST_TEST(!folder.contains("../secret"));
  for (const char* name : {"../secret", "/etc/passwd", "", ".", "..", "a/b"})
    CHECK_REFUSED(folder.open(name), exit_code::model, "not a plain file name");
  fs::create_symlink(dir / "secret", dir / "model/link");
  CHECK_REFUSED(folder.open("link"), exit_code::model, "symbolic link");
  CHECK_REFUSED(folder.open("none"), exit_code::model, "has no file none");
  fs::create_directory(dir / "model/sub");
  CHECK_REFUSED(folder.open("sub"), exit_code::model, "is a directory");
  CHECK_REFUSED(mc::model_folder(dir / "none"), exit_code::model, "does not exist");
  CHECK_REFUSED(mc::model_folder(dir / "secret"), exit_code::model, "is not a folder");
  mc::folder_writer writer(dir / "other");
  CHECK_REFUSED(writer.write("../secret", "x"), exit_code::internal, "not a plain file name");
  BOOST_TEST(read_text(dir / "secret") == "s");
}

BOOST_AUTO_TEST_CASE(a_failing_system_call_leaves_the_old_folder_and_nothing_else) {
  struct fault {
    long call;
    int error_number;
    std::string_view says;
  };
  const std::vector<fault> faults{
      {SYS_mkdirat, EROFS, "another folder"}, {SYS_mkdirat, EACCES, "permissions or"},
      {SYS_write, ENOSPC, "free some space"}, {SYS_write, EIO, "cannot write"},
      {SYS_write, EDQUOT, "free some space"}, {SYS_fsync, EIO, "cannot make durable"},
      {SYS_fsync, ENOSPC, "free some space"}, {SYS_renameat2, EACCES, "cannot rename"},
      {SYS_renameat2, EIO, "cannot rename"},
  };
  for (const bool existing : {true, false})
    for (const fault& f : faults) {
      const scratch_folder dir;
      if (existing) save(dir / "model", "old");
      const int status = in_child([&] {
        if (!make_fail(f.call, f.error_number)) return 77;
        const auto refused = test::refusal_of([&] { save(dir / "model", "new"); });
        return !refused                             ? 1
               : refused->code != exit_code::output ? 2
               : !refused->says(f.says)             ? 3
                                                    : 0;
      });
      if (WEXITSTATUS(status) == 77) {
        test::left_out("seccomp is not available");
        return;
      }
      BOOST_TEST_CONTEXT("call " << f.call << " error " << f.error_number << " existing "
                                 << existing) {
        BOOST_TEST(status == 0);
        BOOST_TEST(entries_in(dir.path()) == (existing ? 1u : 0u));
        if (existing) BOOST_TEST(is_whole(dir / "model", "old"));
      }
    }
}

BOOST_AUTO_TEST_CASE(without_an_exchange_the_old_folder_is_moved_aside_and_back) {
  // A file system without renameat2's flags.
  for (const bool existing : {true, false}) {
    const scratch_folder dir;
    if (existing) save(dir / "model", "old");
    const int status = in_child([&] {
      if (!make_fail(SYS_renameat2, EINVAL)) return 77;
      save(dir / "model", "new");
      return 0;
    });
    if (WEXITSTATUS(status) == 77) {
      test::left_out("seccomp is not available");
      return;
    }
    BOOST_TEST(status == 0);
    BOOST_TEST(is_whole(dir / "model", "new"));
    BOOST_TEST(entries_in(dir.path()) == 1u);
  }
  const scratch_folder dir;
  save(dir / "model", "old");
  const int status = in_child([&] {
    if (!make_fail(SYS_renameat2, EINVAL)) return 77;
    mc::folder_writer folder(dir / "model");
    folder.write("config.json", "new");
    if (!make_fail(SYS_renameat, EIO)) return 77;
    return test::refusal_of([&] { folder.commit(); })->code == exit_code::output ? 0 : 1;
  });
  BOOST_TEST(status == 0);
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
  // Aside already, when the new one turns out to be gone.
  const int gone = in_child([&] {
    if (!make_fail(SYS_renameat2, EINVAL)) return 77;
    mc::folder_writer folder(dir / "model");
    folder.write("config.json", "new");
    for (const std::string& name : names_in(dir.path()))
      if (name != "model") fs::rename(dir / name, dir / "taken");
    const auto refused = test::refusal_of([&] { folder.commit(); });
    return refused && refused->says("cannot replace") ? 0 : 1;
  });
  BOOST_TEST(gone == 0);
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(names_in(dir.path()) == (std::vector<std::string>{"model", "taken"}),
             boost::test_tools::per_element());
}

// What has the target's name is durable, or the old folder has it again.
BOOST_AUTO_TEST_CASE(a_folder_whose_place_is_not_durable_gives_it_back) {
  for (const bool existing : {true, false}) {
    const scratch_folder dir;
    if (existing) save(dir / "model", "old");
    const int status = in_child([&] {
      mc::folder_writer folder(dir / "model");
      folder.write("config.json", "new");
      if (!fail_once(SYS_fsync, 2, EIO)) return 77; // of the new folder, and of that which holds it
      const auto refused = test::refusal_of([&] { folder.commit(); });
      return refused && refused->says("cannot make durable") ? 0 : 1;
    });
    if (WEXITSTATUS(status) == 77) {
      test::left_out("seccomp cannot ask");
      return;
    }
    BOOST_TEST(status == 0);
    BOOST_TEST(entries_in(dir.path()) == (existing ? 1u : 0u));
    if (existing) BOOST_TEST(is_whole(dir / "model", "old"));
  }
}

BOOST_AUTO_TEST_CASE(a_write_that_is_interrupted_or_stops_short_goes_on) {
  const scratch_folder dir;
  const int interrupted = in_child([&] {
    if (!fail_once(SYS_write, 1, EINTR)) return 77;
    return test::refusal_of([&] { save(dir / "model", "new"); }) ? 1 : 0;
  });
  if (WEXITSTATUS(interrupted) == 77) {
    test::left_out("seccomp cannot ask");
  } else {
    BOOST_TEST(interrupted == 0);
    BOOST_TEST(is_whole(dir / "model", "new"));
  }
  const int short_of_one = in_child([&] { // the last piece, but for a byte
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{99'999, 99'999};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    const auto refused =
        test::refusal_of([&] { save(dir / "other", std::string(100'000, 'n'), 1); });
    return refused && refused->says("File too large") ? 0 : 1;
  });
  BOOST_TEST(short_of_one == 0);
  BOOST_TEST(!fs::exists(dir / "other"));
}

// A folder that cannot be listed may hold anything.
BOOST_AUTO_TEST_CASE(a_listing_that_breaks_off_is_none) {
  const scratch_folder dir;
  save(dir / "model", "old");
  const int status = in_child([&] {
    const mc::model_folder folder(dir / "model");
    if (!make_fail(SYS_getdents64, EIO)) return 77;
    const auto listed = test::refusal_of([&] { folder.names(); });
    const auto replaced = test::refusal_of([&] { save(dir / "model", "new"); });
    return listed && listed->says("cannot list") && replaced && replaced->says("cannot list") ? 0
                                                                                              : 1;
  });
  if (WEXITSTATUS(status) == 77) {
    test::left_out("seccomp is not available");
    return;
  }
  BOOST_TEST(status == 0);
  BOOST_TEST(is_whole(dir / "model", "old"));
}

// Some file systems of FUSE and of the network know fsync of files alone.
BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_synced_is_saved_to) {
  const auto saved = [](int error_number) {
    const scratch_folder dir;
    const std::string target = dir / "runs/one/model";
    const int status = in_child([&] {
      if (!make_fail(SYS_fsync, error_number)) return 77;
      const auto refused = test::refusal_of([&] {
        mc::folder_writer::check_target(target);
        mc::folder_writer(target).commit(); // without files
        mc::folder_writer(target).commit(); // in its place
      });
      return !refused ? 0 : refused->says("cannot make durable " + (dir / "runs")) ? 1 : 2;
    });
    BOOST_TEST((WEXITSTATUS(status) == 77 || fs::exists(target) == (status == 0)));
    return WEXITSTATUS(status);
  };
  if (saved(EIO) == 77) return test::left_out("seccomp is not available");
  BOOST_TEST(saved(EIO) == 1);
  for (const int unknown : {EINVAL, EOPNOTSUPP}) BOOST_TEST(saved(unknown) == 0);
}

BOOST_AUTO_TEST_CASE(a_file_size_limit_is_an_error) {
  const scratch_folder dir;
  save(dir / "model", "old");
  const int status = in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 77;
    const auto refused = test::refusal_of([&] { save(dir / "model", std::string(4096, 'n')); });
    return refused && refused->says("File too large") ? 0 : 1;
  });
  BOOST_TEST(status == 0);
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
}

// A quota of a user is in no number that the file system tells.
BOOST_AUTO_TEST_CASE(a_quota_is_foreseen) {
  const scratch_folder dir;
  const auto rehearsed = [&](int error_number) {
    return in_child([&] {
      if (!make_fail(SYS_fallocate, error_number)) return 2;
      const auto refused = test::refusal_of([&] {
        mc::folder_writer::rehearse(dir / "model", mc::model_kind,
                                    [](mc::folder_writer& out) { out.write("config.json", "x"); });
      });
      if (!refused) return 0;
      return refused->says("cannot write ") && refused->says("quota exceeded; free some") ? 1 : 3;
    });
  };
  BOOST_TEST(rehearsed(EDQUOT) == 1 << 8);
  for (const int cannot : {EOPNOTSUPP, ENOSYS, EPERM}) BOOST_TEST(rehearsed(cannot) == 0);
  BOOST_TEST(entries_in(dir.path()) == 0u);
}

BOOST_AUTO_TEST_CASE(a_full_disk_is_foreseen_or_survived) {
  const scratch_folder dir;
  fs::create_directory(dir / "disk");
  if (::mount("none", (dir / "disk").c_str(), "tmpfs", 0, "size=1m") != 0) {
    test::left_out("a small file system cannot be mounted");
    return;
  }
  const struct unmounted {
    std::string path;
    ~unmounted() { ::umount2(path.c_str(), MNT_DETACH); }
  } at_the_end{dir / "disk"};
  const std::string target = dir / "disk/model";
  save(target, "old");
  {
    mc::folder_writer folder(target);
    folder.require_space(100'000);
    CHECK_REFUSED(folder.require_space(2'000'000), exit_code::output, "needs 2000000 bytes");
  }
  CHECK_REFUSED(save(target, std::string(4096, 'n')), exit_code::output, "No space left on device");
  BOOST_TEST(is_whole(target, "old"));
  BOOST_TEST(entries_in(dir / "disk") == 1u);
  CHECK_REFUSED(save(dir / "disk", "new"), exit_code::output, "mount point");
  save(target, "new");
  BOOST_TEST(is_whole(target, "new"));
}

// What is in a lower layer of overlayfs, as all of a container's image is, cannot be renamed.
BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_renamed_is_replaced) {
  const scratch_folder dir;
  const std::string top = dir / "top";
  for (const char* name : {"disk", "top"}) fs::create_directory(dir / name);
  struct mounts {
    std::vector<std::string> at;
    bool add(const char* kind, const std::string& path, const std::string& data) {
      const bool done = ::mount("none", path.c_str(), kind, 0, data.c_str()) == 0;
      if (done) at.push_back(path);
      return done;
    }
    ~mounts() {
      for (auto path = at.rbegin(); path != at.rend(); ++path) ::umount2(path->c_str(), MNT_DETACH);
    }
  } mounted;
  const auto layer = [&](const char* name) { return dir / (std::string("disk/") + name); };
  const bool disk = mounted.add("tmpfs", dir / "disk", "size=8m");
  if (disk) {
    for (const char* name : {"low", "high", "work"}) fs::create_directory(layer(name));
    for (const char* name : {"model", "killed", "half"}) save(layer("low") + '/' + name, "old");
  }
  if (!disk || !mounted.add("overlay", top,
                            "lowerdir=" + layer("low") + ",upperdir=" + layer("high") +
                                ",workdir=" + layer("work"))) {
    test::left_out("overlayfs cannot be mounted");
    return;
  }
  save(top + "/model", "new");
  BOOST_TEST(is_whole(top + "/model", "new"));
  save(top + "/model", "newer");
  BOOST_TEST(is_whole(top + "/model", "newer"));
  // Killed before and after the old one lost the file that goes first.
  save(top + "/killed.megacpp-new-1", "new");
  mc::folder_writer::check_target(top + "/killed");
  BOOST_TEST(is_whole(top + "/killed", "old"));
  save(top + "/half.megacpp-new-1", "new");
  fs::remove(top + "/half/config.json");
  mc::folder_writer::check_target(top + "/half");
  BOOST_TEST(is_whole(top + "/half", "new"));
  BOOST_TEST(entries_in(top) == 3u);
}

// Memory that is found elsewhere than where it was first asked for leaves an errno.
BOOST_AUTO_TEST_CASE(a_folder_is_listed_whatever_becomes_of_errno) {
  const scratch_folder dir;
  constexpr int files = 3000;
  for (int i = 0; i < files; ++i) write_text(dir / (std::string(200, 'x') + std::to_string(i)), "");
  const int status = in_child([&] {
    const mc::model_folder folder(dir.path().string());
    // The heap cannot grow where it is.
    const auto end = (reinterpret_cast<std::uintptr_t>(::sbrk(0)) + 4095) / 4096 * 4096;
    ::mmap(reinterpret_cast<void*>(end), 4096, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
    return folder.names().size() == files ? 0 : 1;
  });
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_CASE(missing_folders_above_are_made_or_refused_at_once) {
  const scratch_folder dir;
  std::string deep = dir.path().string();
  while (deep.size() < 5000) deep += "/a";
  CHECK_REFUSED(save(deep, "new"), exit_code::output, "File name too long");
  BOOST_TEST(entries_in(dir.path()) == 0u);
  const int status = in_child([&] {
    fs::create_directory(dir / "gone");
    fs::current_path(dir / "gone");
    fs::remove(dir / "gone");
    const auto refused = test::refusal_of([&] { save("model", "new"); });
    return refused && refused->says("cannot resolve model: No such file") ? 0 : 1;
  });
  BOOST_TEST(status == 0);
}

BOOST_AUTO_TEST_CASE(a_folder_without_permission_is_refused) {
  const scratch_folder dir;
  BOOST_REQUIRE(::chmod(dir.path().c_str(), 0555) == 0);
  {
    const test::unprivileged nobody;
    CHECK_REFUSED(mc::folder_writer::check_target(dir / "model"), exit_code::output,
                  "Permission denied; check its permissions or choose another folder");
  }
  ::chmod(dir.path().c_str(), 0755);
}

BOOST_AUTO_TEST_CASE(what_a_killed_run_left_is_tidied) {
  const scratch_folder dir;
  save(dir / "model", "good");
  for (const std::string form : {"", "-2", "-renamed", "-2-renamed", "-old"}) {
    const std::string name = dir / ("model.megacpp-tmp-1" + form);
    fs::create_directory(name);
    write_text(name + "/model.safetensors", "half");
  }
  // Of a former process like us.
  fs::create_directory(dir / ("model.megacpp-tmp-" + std::to_string(::getpid())));
  {
    // One that is being written now, by a live process, stays.
    mc::folder_writer live(dir / "model");
    live.write("config.json", "live");
    save(dir / "model", "newer");
    BOOST_TEST(entries_in(dir.path()) == 2u);
    live.commit();
  }
  BOOST_TEST(names_in(dir.path()) == (std::vector<std::string>{"model"}),
             boost::test_tools::per_element());
  BOOST_TEST(read_text(dir / "model/config.json") == "live");
  // A crash between the two renames of a file system without exchange.
  fs::rename(dir / "model", dir / "model.megacpp-old-4711");
  mc::folder_writer::check_target(dir / "model");
  BOOST_TEST(read_text(dir / "model/config.json") == "live");
  // Then an empty folder is not what was to come.
  fs::rename(dir / "model", dir / "model.megacpp-old-4711");
  fs::create_directory(dir / "model");
  mc::folder_writer::check_target(dir / "model");
  BOOST_TEST(read_text(dir / "model.megacpp-old-4711/config.json") == "live");
  fs::remove(dir / "model");
  mc::folder_writer::check_target(dir / "model");
  BOOST_TEST(read_text(dir / "model/config.json") == "live");
  // And after them, before what was there was removed.
  save(dir / "model.megacpp-old-4711", "older");
  save(dir / "model.megacpp-old-4712", "older");
  write_text(dir / "model.megacpp-old-4712/notes.txt", "mine");
  mc::folder_writer::check_target(dir / "model");
  BOOST_TEST(read_text(dir / "model/config.json") == "live");
  BOOST_TEST(names_in(dir.path()) == (std::vector<std::string>{"model", "model.megacpp-old-4712"}),
             boost::test_tools::per_element());
  BOOST_TEST(entries_in(dir / "model.megacpp-old-4712") == 3u);
}

// The lack of descriptors may be why a save is given up.
BOOST_AUTO_TEST_CASE(what_is_given_up_goes_without_another_descriptor) {
  const scratch_folder dir;
  struct limited {
    struct rlimit before {};
    limited() {
      ::getrlimit(RLIMIT_NOFILE, &before);
      const struct rlimit none { 0, before.rlim_max };
      ::setrlimit(RLIMIT_NOFILE, &none);
    }
    ~limited() { ::setrlimit(RLIMIT_NOFILE, &before); }
  };
  {
    std::optional<limited> limit;
    mc::folder_writer out(dir / "model");
    out.write("config.json", "{}");
    limit.emplace();
    CHECK_REFUSED(out.write("model.safetensors", "x"), exit_code::output,
                  "Too many open files (ulimit -n");
  }
  {
    std::optional<limited> limit;
    mc::folder_writer::rehearse(dir / "model", mc::model_kind, [&](mc::folder_writer& out) {
      out.write("config.json", "{}");
      limit.emplace();
    });
  }
  BOOST_TEST(entries_in(dir.path()) == 0u);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_removed_is_not_replaced) {
  const scratch_folder dir;
  BOOST_REQUIRE(::chmod(dir.path().c_str(), 0777) == 0);
  const test::unprivileged nobody;
  save(dir / "model", "old");
  fs::permissions(dir / "model", fs::perms(0555));
  CHECK_REFUSED(save(dir / "model", "new"), exit_code::output, "cannot be removed");
  BOOST_TEST(is_whole(dir / "model", "old"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
  fs::permissions(dir / "model", fs::perms(0755));
}

BOOST_AUTO_TEST_CASE(what_others_left_beside_a_target_stays) {
  const scratch_folder dir;
  // Names of people's own, and names like a killed save's.
  std::vector<std::string> names = {"model.old-1",
                                    "model.tmp-1",
                                    "model.tmp-mine",
                                    "model.megacpp-tmp-",
                                    "model.megacpp-tmp-mine",
                                    "model.megacpp-tmp-1-",
                                    "model.megacpp-tmp-1x",
                                    "model.megacpp-tmp--1",
                                    "model.megacpp-tmp-1-2-3",
                                    "model.megacpp-old-",
                                    "model.megacpp-old-best",
                                    "model.megacpp-old-1-renamed",
                                    "model.megacpp-tmp-1-renamed-renamed"};
  for (const std::string& name : names) {
    fs::create_directory(dir / name);
    write_text(dir / name + "/config.json", "mine");
  }
  // A killed save's name, with a file, a folder or a link that no save makes.
  for (const std::string what : {"notes.txt", "model.safetensors", "config.json"}) {
    names.push_back("model.megacpp-tmp-" + std::to_string(names.size()));
    const std::string folder = dir / names.back();
    fs::create_directory(folder);
    write_text(folder + "/generation_config.json", "mine");
    if (what == "notes.txt") write_text(folder + '/' + what, "mine");
    else if (what == "config.json") fs::create_symlink("elsewhere", folder + '/' + what);
    else fs::create_directory(folder + '/' + what);
  }
  const auto all_stay = [&] {
    for (const std::string& name : names) {
      const bool own = name == names[names.size() - 1] || name == names[names.size() - 2] ||
                       name == names[names.size() - 3];
      BOOST_TEST(fs::exists(dir / name + (own ? "/generation_config.json" : "/config.json")), name);
      BOOST_TEST(entries_in(fs::path(dir / name)) == (own ? 2u : 1u), name);
    }
  };
  mc::folder_writer::check_target(dir / "model");
  BOOST_TEST(!fs::exists(dir / "model")); // none of them took its place
  BOOST_TEST(entries_in(dir.path()) == names.size());
  save(dir / "model", "one");
  save(dir / "model", "two");
  BOOST_TEST(is_whole(dir / "model", "two"));
  BOOST_TEST(entries_in(dir.path()) == names.size() + 1);
  all_stay();
  // What comes into a temporary folder that is given up stays, too.
  {
    mc::folder_writer given_up(dir / "other");
    for (const std::string& name : names_in(dir.path()))
      if (name.starts_with("other.")) write_text(dir / name + "/notes.txt", "mine");
  }
  BOOST_TEST(entries_in(dir.path()) == names.size() + 2);
}

BOOST_AUTO_TEST_CASE(killed_at_any_moment_there_is_always_a_whole_model) {
  const scratch_folder dir;
  const std::string target = dir / "model";
  save(target, "0");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 5; ++i) save(target, "0");
  const double one_save =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 5;
  constexpr int trials = 100;
  int saved = 0;
  for (int trial = 0; trial < trials; ++trial) {
    const pid_t child = ::fork();
    if (child == 0) {
      for (int i = 1;; ++i) save(target, std::to_string(1 + i % 9));
    }
    // From before the first save to within the fourth.
    std::this_thread::sleep_for(std::chrono::duration<double>(4 * one_save * trial / trials));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    BOOST_REQUIRE(WIFSIGNALED(status));
    BOOST_REQUIRE(WTERMSIG(status) == SIGKILL);
    const std::string version = read_text(target + "/config.json");
    BOOST_REQUIRE(version.size() == 1);
    BOOST_REQUIRE(is_whole(target, version));
    saved += version != "0";
  }
  BOOST_TEST(saved > 0);
  save(target, "last");
  BOOST_TEST(is_whole(target, "last"));
  BOOST_TEST(entries_in(dir.path()) == 1u);
}

} // namespace
