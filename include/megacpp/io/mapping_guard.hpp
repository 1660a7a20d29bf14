// A mapped file that is cut short while it is read, or whose disk fails: touching what is gone
// raises SIGBUS. Checks of the size before a stretch of reads leave a moment in which it can
// happen; the guard turns that into a sentence and the exit code of any other file that cannot be
// read.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/signals.hpp>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include <sys/stat.h>
#include <unistd.h>

namespace mc {

namespace detail {

/// A mapping, for a signal handler to find by address. `path` lives as long as `begin` is set.
struct known_mapping {
  std::atomic<std::uintptr_t> begin{0}; ///< 0: free; 1: being filled in
  std::atomic<std::size_t> size{0};
  std::atomic<int> file{-1};
  std::atomic<const char*> path{nullptr};
  std::atomic<int> code{0};
};
/// Room for the files of a model in a thousand shards. Those beyond are read all the same, but one
/// of them that is cut short ends the process by SIGBUS.
inline std::array<known_mapping, 1024> known_mappings;

inline known_mapping* note_mapping(const void* begin, std::size_t size, int file, const char* path,
                                   exit_code code) {
  for (known_mapping& m : known_mappings) {
    std::uintptr_t unused = 0;
    if (!m.begin.compare_exchange_strong(unused, 1)) continue;
    m.size = size, m.file = file, m.path = path, m.code = static_cast<int>(code);
    m.begin = reinterpret_cast<std::uintptr_t>(begin);
    return &m;
  }
  return nullptr;
}

/// Only async-signal-safe calls (POSIX.1-2017, 2.4.3).
extern "C" inline void tell_of_cut_file(int number, siginfo_t* info, void*) {
  if (info->si_code <= 0) end_by_signal(number); // somebody sent it
  const auto at = reinterpret_cast<std::uintptr_t>(info->si_addr);
  for (const known_mapping& m : known_mappings) {
    const std::uintptr_t begin = m.begin;
    if (begin < 2 || at < begin || at - begin >= m.size) continue;
    struct stat s {};
    const bool cut = ::fstat(m.file, &s) == 0 && static_cast<std::uint64_t>(s.st_size) < m.size;
    char sentence[2048];
    std::size_t n = 0;
    for (const char* part :
         {static_cast<const char*>(program_invocation_short_name), ": ", m.path.load(),
          cut ? " became shorter while it was being read; do not write to it during a run"
              : " could not be read (Input/output error); check the disk that it is on"})
      for (; *part != 0 && n + 1 < sizeof sentence; ++part) // a name may hold anything
        sentence[n++] = static_cast<unsigned char>(*part) < ' ' || *part == 0x7f ? '?' : *part;
    sentence[n++] = '\n';
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, sentence, n);
    ::_exit(m.code);
  }
  std::signal(SIGBUS, SIG_DFL); // another fault: it comes again, and ends the process as usual
}

} // namespace detail

/// While an object lives, a mapped_file that is cut short or cannot be read ends the process with a
/// sentence and the exit code of the file's class. What was being saved stays unsaved, what was
/// saved stays. One at a time, in main.
class mapping_guard {
public:
  mapping_guard() {
    struct sigaction action {};
    action.sa_sigaction = detail::tell_of_cut_file;
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    ::sigaction(SIGBUS, &action, &old_);
  }
  mapping_guard(const mapping_guard&) = delete;
  mapping_guard& operator=(const mapping_guard&) = delete;
  ~mapping_guard() { ::sigaction(SIGBUS, &old_, nullptr); }

private:
  struct sigaction old_ {};
};

} // namespace mc
