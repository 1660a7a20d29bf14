// Arenas: one anonymous mapping each, reserved at start, never grown.
#pragma once

#include <megacpp/io/error.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include <sys/mman.h>

namespace mc {

/// Throws mc::error(exit_code::memory) unless there is room for what libraries make at their first
/// calls: oneDNN ends the process where it gets no memory for its code (2.6.3).
inline void require_room(const char* what) {
  constexpr std::size_t bytes = std::size_t{64} << 20;
  void* const p =
      ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw error(exit_code::memory, std::string("less than ") + std::to_string(bytes >> 20) +
                                       " MiB of memory are left for " + what +
                                       "; raise the limits on memory (ulimit -v), or use a smaller "
                                       "micro-batch or a machine with more memory");
  ::munmap(p, bytes);
}

/// Zeroed pages, huge ones where the system grants them. Throws mc::error(exit_code::memory), which
/// names `what` the memory is for and a `remedy` beside a machine with more of it.
inline std::byte* map_pages(std::int64_t bytes, const char* what, const char* remedy) {
  void* const p = ::mmap(nullptr, static_cast<std::size_t>(bytes), PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    throw error(exit_code::memory, std::string("cannot reserve ") +
                                       std::to_string(((bytes - 1) >> 20) + 1) + " MiB for " +
                                       what + ": use " + remedy + " or a machine with more memory");
  ::madvise(p, static_cast<std::size_t>(bytes), MADV_HUGEPAGE);
  return static_cast<std::byte*>(p);
}
inline void unmap_pages(std::byte* p, std::int64_t bytes) {
  ::munmap(p, static_cast<std::size_t>(bytes));
}

/// Pages of a fixed size.
class arena {
public:
  arena() = default;
  /// As map_pages.
  arena(std::int64_t bytes, const char* what, const char* remedy)
      : data_(bytes == 0 ? nullptr : map_pages(bytes, what, remedy)), size_(bytes) {}
  arena(arena&& o) noexcept
      : data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  arena& operator=(arena&& o) noexcept {
    std::swap(data_, o.data_);
    std::swap(size_, o.size_);
    return *this;
  }
  ~arena() {
    if (data_ != nullptr) unmap_pages(data_, size_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }

private:
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

} // namespace mc
