// The frame that every main has around its work: failures as one sentence and an exit code,
// signals, and precautions for a lack of memory.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapping_guard.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/reader.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <cstdio>
#include <new>
#include <string>
#include <string_view>

#include <execinfo.h>
#include <malloc.h>
#include <sys/resource.h>

namespace mc {

namespace detail {

/// Does what is cheap at the start and fails once memory is short: loads the code that unwinds a
/// thread's stack, and where address space is limited, has threads allocate from one heap, not from
/// 64 MiB of address space each. (Threads that compute would wait for each other's calls of malloc,
/// of which oneDNN makes several for every product.)
inline void prepare_for_little_memory() {
  rlimit space{};
  if (::getrlimit(RLIMIT_AS, &space) == 0 && space.rlim_cur != RLIM_INFINITY)
    ::mallopt(M_ARENA_MAX, 1);
  void* here = nullptr;
  ::backtrace(&here, 1);
}

} // namespace detail

/// The body of every program's main: returns the exit code of work(program, attempt), where
/// attempt(f) is that of f. Failures are one sentence on the standard error, behind `who()` and as
/// spelled(sentence) has it. The work has a thread of its own, so that its stack does not depend on
/// `ulimit -s`; the thread of main waits, and takes the signals.
template <class Who, class Spelled, class Work>
int guarded_main(int argc, char** argv, const Who& who, const Spelled& spelled, const Work& work) {
  fill_standard_descriptors();
  detail::prepare_for_little_memory();
  std::string program = argc > 0 ? argv[0] : "megacpp";
  program = printable(program.substr(program.rfind('/') + 1));
  const auto fail = [&](exit_code code, std::string_view sentence) {
    std::fflush(stdout);
    write_line_to_reader(STDERR_FILENO, {program, ": ", who(), sentence});
    return static_cast<int>(code);
  };
  const first_process_ends in_a_container;
  const stop_signals_taken even_if_held;
  const mapping_guard cut_files;
  const write_errors closed_pipes;
  const auto attempt = [&](const auto& f) {
    try {
      f();
      return static_cast<int>(exit_code::success);
    } catch (const errors& e) {
      const int code = fail(e.code(), e.title());
      for (const std::string& one : e.sentences())
        write_line_to_reader(STDERR_FILENO, {"  ", spelled(one)});
      return code;
    } catch (const error& e) {
      return fail(e.code(), spelled(e.what()));
    } catch (const std::bad_alloc&) {
      return fail(exit_code::memory,
                  "memory could not be reserved; use a smaller micro-batch, a shorter "
                  "sequence, or a machine with more memory");
    } catch (const std::exception& e) {
      return fail(exit_code::internal, e.what());
    }
  };
  int ended = 0;
  const int started =
      attempt([&] { const own_thread alone([&] { ended = work(program, attempt); }); });
  return started != 0 ? started : ended;
}

} // namespace mc
