// Leaves the first thread the processors that the process was started on. libgomp, which oneDNN may
// bring along, binds that thread to one of them before main where OMP_PROC_BIND, OMP_PLACES or
// GOMP_CPU_AFFINITY is set, as modules of clusters do; threads that it starts would inherit that,
// and so would their number. To be included by the unit that holds main, of a program and not of a
// shared library.
#pragma once

#include <cstddef>
#include <cstring>

#include <sys/syscall.h>
#include <unistd.h>

namespace mc::detail {
namespace {

/// What a thread may run on, as the kernel has it: of up to 8192 processors.
struct processor_mask {
  unsigned long words[128];
  long bytes; ///< that are known; not above 0: none
};
processor_mask mask_at_start;

// One system call and nothing else: libraries, and sanitizers, are not initialised yet, and the
// processor is not checked.
__attribute__((no_sanitize("address", "undefined", "thread"))) void note_mask_at_start() {
  mask_at_start.bytes =
      ::syscall(SYS_sched_getaffinity, 0, sizeof mask_at_start.words, mask_at_start.words);
}
// These functions of a program come before the constructors of its libraries.
__attribute__((section(".preinit_array"),
               used)) void (*const before_libraries)() = &note_mask_at_start;

// And these after them.
__attribute__((constructor, used)) void restore_mask_at_start() {
  const processor_mask& then = mask_at_start;
  processor_mask now{};
  now.bytes = ::syscall(SYS_sched_getaffinity, 0, sizeof now.words, now.words);
  if (then.bytes <= 0 || now.bytes != then.bytes ||
      std::memcmp(now.words, then.words, static_cast<std::size_t>(then.bytes)) == 0)
    return;
  ::syscall(SYS_sched_setaffinity, 0, then.bytes, then.words);
}

} // namespace
} // namespace mc::detail
