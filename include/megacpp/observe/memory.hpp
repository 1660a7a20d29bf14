// The memory of this process as the kernel counts it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace mc {

/// The memory of a process in bytes; 0 if /proc does not give it.
struct memory_use {
  std::uint64_t resident = 0; // bytes in use now
  std::uint64_t peak = 0;     // most bytes in use since the process started
};

/// Reads VmRSS and VmHWM from /proc/self/status. It allocates no memory.
inline memory_use process_memory() {
  char text[4096];
  const int file = ::open("/proc/self/status", O_RDONLY | O_CLOEXEC);
  if (file < 0) return {};
  const ::ssize_t n = ::read(file, text, sizeof text - 1);
  ::close(file);
  if (n <= 0) return {};
  text[n] = '\0';
  const auto kibibytes = [&text](const char* field) -> std::uint64_t {
    const char* const at = std::strstr(text, field);
    return at ? std::strtoull(at + std::strlen(field), nullptr, 10) : 0;
  };
  return {kibibytes("\nVmRSS:") * 1024, kibibytes("\nVmHWM:") * 1024};
}

} // namespace mc
