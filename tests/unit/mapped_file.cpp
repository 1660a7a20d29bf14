// Files in memory: one that is cut short, or cannot be read, while it is mapped ends with a sentence,
// and other faults stay what they are.
#define BOOST_TEST_MODULE mapped_file
#include <boost/test/unit_test.hpp>

#include <megacpp/io/mapped_file.hpp>
#include <megacpp/io/mapping_guard.hpp>

#include <csignal>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <scratch.hpp>

#include "child.hpp"

using namespace mc;
using namespace test;

BOOST_AUTO_TEST_CASE(a_signal_that_somebody_sends_is_no_cut_file) {
  const int status = in_child([] {
    const mapping_guard guard;
    return ::kill(::getpid(), SIGBUS);
  });
  BOOST_TEST(WIFSIGNALED(status));
  BOOST_TEST(WTERMSIG(status) == SIGBUS);
}

BOOST_AUTO_TEST_CASE(a_fault_outside_of_mapped_files_is_none_of_theirs) {
  const scratch_folder dir;
  write_text(dir / "file", "x");
  write_text(dir / "own", std::string(1 << 16, 'x'));
  const int status = in_child([&] {
    const mapping_guard guard;
    const descriptor own(::open((dir / "own").c_str(), O_RDONLY));
    const mapped_file file(dir / "file", exit_code::model);
    void* above = MAP_FAILED; // the file, wherever there is room
    for (std::size_t at = 1 << 16; above == MAP_FAILED && at < std::size_t{1} << 45; at *= 2)
      above = ::mmap(const_cast<std::byte*>(file.data()) + at, 1 << 16, PROT_READ,
                     MAP_SHARED | MAP_FIXED_NOREPLACE, own.get(), 0);
    if (above == MAP_FAILED || ::truncate((dir / "own").c_str(), 1) != 0) return 77;
    const volatile char* const bytes = static_cast<char*>(above);
    static_cast<void>(bytes[1 << 15]);
    return 0;
  });
  BOOST_TEST(WIFSIGNALED(status));
  BOOST_TEST(WTERMSIG(status) == SIGBUS);
}

BOOST_AUTO_TEST_CASE(a_mapped_file_that_is_cut_short_is_a_sentence) {
  const scratch_folder dir;
  write_text(dir / "file", std::string(1 << 20, 'x'));
  write_text(dir / "shard", "x");
  const auto [status, said] = child_of([&] {
    const mapping_guard guard;
    for (int i = 0; i < 2000; ++i) // those that are gone take no room
      static_cast<void>(mapped_file(dir / "shard", exit_code::data));
    std::vector<mapped_file> shards; // as a model of many files has them
    for (int i = 0; i < 1000; ++i) shards.emplace_back(dir / "shard", exit_code::data);
    mapped_file moved(dir / "file", exit_code::model);
    const mapped_file file(std::move(moved));
    if (::truncate((dir / "file").c_str(), 100) != 0) return 77;
    const volatile std::byte* const bytes = file.data();
    static_cast<void>(bytes[1 << 19]);
    return 0;
  });
  BOOST_TEST(WIFEXITED(status));
  BOOST_TEST(WEXITSTATUS(status) == static_cast<int>(exit_code::model));
  BOOST_TEST(said.find((dir / "file") + " became shorter") != std::string::npos, said);
}

// As a disk that fails below a file: the signal is the same, but the file is as long as it was.
BOOST_AUTO_TEST_CASE(a_mapped_file_that_cannot_be_read_is_not_called_shorter) {
  const scratch_folder dir;
  write_text(dir / "file", std::string(1 << 20, 'x'));
  const auto [status, said] = child_of([&] {
    const mapped_file file(dir / "file", exit_code::data);
    siginfo_t info{};
    info.si_code = BUS_ADRERR;
    info.si_addr = const_cast<std::byte*>(file.data() + 5);
    detail::tell_of_cut_file(SIGBUS, &info, nullptr);
    return 0;
  });
  BOOST_TEST(WEXITSTATUS(status) == static_cast<int>(exit_code::data));
  BOOST_TEST(
      said.find((dir / "file") + " could not be read (Input/output error)") != std::string::npos,
      said);
}
