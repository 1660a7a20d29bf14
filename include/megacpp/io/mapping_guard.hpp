// A guard against SIGBUS, which a mapped file raises that is cut short, or whose disk fails, while
// it is read. Checking the size before reading leaves a moment in which this can happen. The guard
// turns the signal into a sentence and an exit code, as for any other file that cannot be read.
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

/// A mapping that the signal handler finds by address. `path` must live as long as `begin` is set.
struct known_mapping {
  std::atomic<std::uintptr_t> begin{0}; ///< 0: this record is free; 1: it is being filled in
  std::atomic<std::size_t> size{0};
  std::atomic<int> file{-1};
  std::atomic<const char*> path{nullptr};
  std::atomic<int> code{0};
};
/// The mappings that the guard knows, enough for a model in a thousand shards. Further files can be
/// read, but SIGBUS ends the process without a sentence if one of them is cut short.
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

/// Handles SIGBUS. It makes only async-signal-safe calls (POSIX.1-2017, 2.4.3).
extern "C" inline void tell_of_cut_file(int number, siginfo_t* info, void*) {
  if (info->si_code <= 0) end_by_signal(number); // a process has sent the signal
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
      for (; *part != 0 && n + 1 < sizeof sentence; ++part) // a name may hold any character
        sentence[n++] = static_cast<unsigned char>(*part) < ' ' || *part == 0x7f ? '?' : *part;
    sentence[n++] = '\n';
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, sentence, n);
    ::_exit(m.code);
  }
  std::signal(SIGBUS, SIG_DFL); // another fault: raised again, it ends the process
}

} // namespace detail

/// Ends the process with a sentence and the exit code of the file if a mapped_file is cut short or
/// cannot be read, while a guard lives. An unfinished save stays without effect. main has one guard
/// at a time.
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
