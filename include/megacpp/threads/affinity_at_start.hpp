// Gives the first thread back the processors that the process was started on. oneDNN may bring
// along libgomp, which binds that thread to a single processor before main where OMP_PROC_BIND,
// OMP_PLACES or GOMP_CPU_AFFINITY is set, as modules of clusters do. Later threads would inherit
// the binding, and the library would start only one. The unit that holds main of a program includes
// this header; a shared library does not.
#pragma once

#include <cstddef>
#include <cstring>

#include <sys/syscall.h>
#include <unistd.h>

namespace mc::detail {
namespace {

/// The processors that a thread may run on, in the format of the kernel: a bit for each of up to
/// 8192.
struct processor_mask {
  unsigned long bits[128];
  long bytes; ///< bytes of the mask that the kernel filled in; 0 or less: the call failed
};
processor_mask mask_at_start;

// note_mask_at_start makes one system call and nothing else: at that time libraries and sanitizers
// are not initialised yet, and the instructions of the processor are not checked.
__attribute__((no_sanitize("address", "undefined", "thread"))) void note_mask_at_start() {
  mask_at_start.bytes =
      ::syscall(SYS_sched_getaffinity, 0, sizeof mask_at_start.bits, mask_at_start.bits);
}
// The program calls functions of .preinit_array before the constructors of its libraries.
__attribute__((section(".preinit_array"),
               used)) void (*const before_libraries)() = &note_mask_at_start;

// restore_mask_at_start runs after the constructors of the libraries.
__attribute__((constructor, used)) void restore_mask_at_start() {
  const processor_mask& then = mask_at_start;
  processor_mask now{};
  now.bytes = ::syscall(SYS_sched_getaffinity, 0, sizeof now.bits, now.bits);
  if (then.bytes <= 0 || now.bytes != then.bytes ||
      std::memcmp(now.bits, then.bits, static_cast<std::size_t>(then.bytes)) == 0)
    return;
  ::syscall(SYS_sched_setaffinity, 0, then.bytes, then.bits);
}

} // namespace
} // namespace mc::detail
