// Memory of this process as the kernel counts it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include <fcntl.h>
#include <unistd.h>

namespace mc {

/// Bytes; 0 where /proc does not tell.
struct memory_use {
  std::uint64_t resident = 0; // now
  std::uint64_t peak = 0;     // the most since the start of the process
};

/// Reads VmRSS and VmHWM of /proc/self/status. Allocates nothing.
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
