// A device: memory, and what computes on it. run/ and train/ know it by this class, a task at a
// time. What runs the nodes of a part knows the device's own type, and asks it beside this for
//
//   d.launch(n, f)          f() calls the kernel of node n, which starts what it does on d
//   d.for_rows(rows, body)  starts body(team, row) for every row (exec/launch.hpp)
//   d.table()               numbers that kernels share
#pragma once

#include <megacpp/exec/product_source.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mc {

/// Memory that kernels see. What it reserves is read and written by the bodies that kernels start,
/// by products, by exchanges, and by the functions here; nobody else may look at it, as nobody
/// could on a GPU. Several threads may call fill, write, read, open and close at once, of other
/// bytes each; reserve and release are for one. When write returns, it has copied what it was
/// given.
class memory_space {
public:
  memory_space() = default;
  memory_space(const memory_space&) = delete;
  memory_space& operator=(const memory_space&) = delete;
  virtual ~memory_space() = default;

  /// Zeroed memory, aligned for any kernel. Throws mc::error(exit_code::memory), which names `what`
  /// it is for and a `remedy`.
  virtual std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) = 0;
  virtual void release(std::byte* p, std::int64_t bytes) = 0;
  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  virtual void read(void* to_host, const std::byte* from, std::int64_t bytes) const = 0;
  /// Where the host sees the bytes from p on until they are closed: in their place, or as a copy,
  /// which closing puts back if they were `changed`. Several may be open, of any threads.
  virtual std::byte* open(std::byte* p, std::int64_t bytes) = 0;
  virtual void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) = 0;
};

/// Bytes of a memory space as the host sees them while this lives.
class host_view {
public:
  host_view(memory_space& in, std::byte* p, std::int64_t bytes, bool changing = false)
      : in_(in),
        p_(p),
        bytes_(bytes),
        seen_(p != nullptr ? in.open(p, bytes) : nullptr),
        changing_(changing) {}
  host_view(const host_view&) = delete;
  host_view& operator=(const host_view&) = delete;
  ~host_view() {
    if (p_ != nullptr) in_.close(p_, bytes_, seen_, changing_);
  }
  std::byte* data() const { return seen_; }

private:
  memory_space& in_;
  std::byte* p_;
  std::int64_t bytes_;
  std::byte* seen_;
  bool changing_;
};

class device : public memory_space {
public:
  /// Of the host, that work for it.
  virtual int threads() const = 0;
  /// Memory of the host to which the device copies what the host has to know (mirror).
  virtual memory_space& mirrored() = 0;
  /// Starts a copy of the device's memory to mirrored() memory.
  virtual void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) = 0;
  /// Waits until the copy that was started to this address has been made.
  virtual void await_mirror(const std::byte* at) = 0;
  virtual product_source& products() = 0;
};

/// Memory of a fixed size. Its space must outlive it.
class arena {
public:
  arena() = default;
  arena(memory_space& of, std::int64_t bytes, const char* what, const char* remedy)
      : of_(&of), data_(bytes > 0 ? of.reserve(bytes, what, remedy) : nullptr), size_(bytes) {}
  arena(arena&& o) noexcept
      : of_(o.of_), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  arena& operator=(arena&& o) noexcept {
    std::swap(of_, o.of_), std::swap(data_, o.data_), std::swap(size_, o.size_);
    return *this;
  }
  ~arena() {
    if (data_ != nullptr) of_->release(data_, size_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size() const { return size_; }
  /// Fills with a pattern that is a NaN in every floating-point type, so that reads of values
  /// nobody wrote are seen.
  void poison() {
    if (data_ != nullptr) of_->fill(data_, 0xff, size_);
  }

private:
  memory_space* of_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

} // namespace mc
