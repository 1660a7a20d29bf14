// A device: memory, and what computes on it. run/ and train/ know it by this class, a task at a
// time. What runs the nodes of a part knows the device's own type, and asks it beside this for
//
//   d.launch(f)             f() calls the kernel of one node
//   d.repeat(trips, body)   body(trip, whether there are several), as often as the number in the
//                           device's memory says
//   d.scratch(), d.table()  memory that kernels share
//
// What a device reserves is read and written by its kernels during a launch, and by the functions
// here; nobody else looks at it, as nobody could on a GPU.
#pragma once

#include <megacpp/exec/product_source.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace mc {

class device {
public:
  device() = default;
  device(const device&) = delete;
  device& operator=(const device&) = delete;
  virtual ~device() = default;

  /// Zeroed memory, aligned for any kernel. Throws mc::error(exit_code::memory), which names `what`
  /// it is for and a `remedy`.
  virtual std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) = 0;
  virtual void release(std::byte* p, std::int64_t bytes) = 0;
  virtual void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) = 0;
  virtual void write(std::byte* to, const void* from_host, std::int64_t bytes) = 0;
  virtual void read(void* to_host, const std::byte* from, std::int64_t bytes) const = 0;

  /// Of the host, that work for it.
  virtual int threads() const = 0;
  virtual product_source& products() = 0;
};

/// Memory of a device, of a fixed size. The device must outlive it.
class device_arena {
public:
  device_arena() = default;
  device_arena(device& of, std::int64_t bytes, const char* what, const char* remedy)
      : of_(&of), data_(bytes > 0 ? of.reserve(bytes, what, remedy) : nullptr), size_(bytes) {}
  device_arena(device_arena&& o) noexcept
      : of_(o.of_), data_(std::exchange(o.data_, nullptr)), size_(std::exchange(o.size_, 0)) {}
  device_arena& operator=(device_arena&& o) noexcept {
    std::swap(of_, o.of_), std::swap(data_, o.data_), std::swap(size_, o.size_);
    return *this;
  }
  ~device_arena() {
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
  device* of_ = nullptr;
  std::byte* data_ = nullptr;
  std::int64_t size_ = 0;
};

} // namespace mc
