// Objects of CUDA's runtime as values: events, streams, pinned memory of the host, and the staging
// of bytes on their way to a device.
#pragma once

#include <megacpp/exec/host_memory.hpp>
#include <megacpp/io/error.hpp>

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <deque>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// Throws mc::error with the `call` and CUDA's message unless the call succeeded. An error of a
/// kernel shows in the first call that waits for the kernel.
inline void require_cuda(cudaError_t status, const std::string& call,
                         exit_code code = exit_code::internal) {
  if (status == cudaSuccess) return;
  throw error(code, call + ": " + cudaGetErrorName(status) + ", " + cudaGetErrorString(status));
}

/// The use of an event of CUDA: it orders work, or it also tells the time, which costs more.
enum class moment_use : std::uint8_t { order, time };

/// An event of CUDA, as a value.
class cuda_moment {
public:
  explicit cuda_moment(moment_use what = moment_use::time) {
    const unsigned flags = what == moment_use::time ? cudaEventDefault : cudaEventDisableTiming;
    require_cuda(cudaEventCreateWithFlags(&e_, flags), "cudaEventCreateWithFlags");
  }
  cuda_moment(cuda_moment&& o) noexcept : e_(std::exchange(o.e_, nullptr)) {}
  cuda_moment& operator=(cuda_moment&& o) noexcept {
    std::swap(e_, o.e_);
    return *this;
  }
  ~cuda_moment() {
    if (e_ != nullptr) (void)cudaEventDestroy(e_);
  }
  void record(cudaStream_t on) const { require_cuda(cudaEventRecord(e_, on), "cudaEventRecord"); }
  void wait() const { require_cuda(cudaEventSynchronize(e_), "cudaEventSynchronize"); }
  /// Returns nanoseconds from another moment to this one. Both have come, and tell the time.
  std::int64_t since(const cuda_moment& start) const {
    float milliseconds = 0;
    require_cuda(cudaEventElapsedTime(&milliseconds, start.e_, e_), "cudaEventElapsedTime");
    return static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
  }
  cudaEvent_t get() const { return e_; }

private:
  cudaEvent_t e_ = nullptr;
};

/// A stream of CUDA, as a value. Its destructor waits for the work that was started on it.
class cuda_stream {
public:
  cuda_stream() {
    require_cuda(cudaStreamCreateWithFlags(&s_, cudaStreamNonBlocking),
                 "cudaStreamCreateWithFlags");
  }
  cuda_stream(cuda_stream&& o) noexcept : s_(std::exchange(o.s_, nullptr)) {}
  cuda_stream& operator=(cuda_stream&& o) noexcept {
    std::swap(s_, o.s_);
    return *this;
  }
  ~cuda_stream() {
    if (s_ != nullptr) (void)cudaStreamSynchronize(s_), (void)cudaStreamDestroy(s_);
  }
  cudaStream_t get() const { return s_; }

private:
  cudaStream_t s_ = nullptr;
};

/// The memory of the host that a CUDA device reaches by itself (pinned memory).
class cuda_pinned final : public in_host_memory<memory_space> {
public:
  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    void* p = nullptr;
    const cudaError_t status =
        cudaHostAlloc(&p, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError(); // clears the error, which the next statement reports
      throw error(exit_code::memory, "cannot pin " + std::to_string(((bytes - 1) >> 20) + 1) +
                                         " MiB of the host for " + what + ": use " + remedy +
                                         " or a machine with more memory");
    }
    require_cuda(status, "cudaHostAlloc");
    std::memset(p, 0, static_cast<std::size_t>(bytes));
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, std::int64_t /*bytes*/) override {
    (void)cudaDeviceSynchronize();
    (void)cudaFreeHost(p);
  }
};

/// The pinned memory in which bytes wait for their copy to the device. One stream reads it.
class cuda_staging {
public:
  /// Copies bytes of the host to the device, behind the work that was started on the stream. The
  /// caller may change the bytes when write returns.
  void write(std::byte* to, const void* from_host, std::int64_t bytes, cudaStream_t on) {
    const auto* from = static_cast<const std::byte*>(from_host);
    for (std::int64_t n = 0; bytes > 0; to += n, from += n, bytes -= n) {
      n = std::min(bytes, size / 2);
      std::byte* const at = room(n);
      std::memcpy(at, from, static_cast<std::size_t>(n));
      require_cuda(cudaMemcpyAsync(to, at, static_cast<std::size_t>(n), cudaMemcpyHostToDevice, on),
                   "cudaMemcpyAsync to the device");
      cuda_moment read = free_.empty() ? cuda_moment(moment_use::order) : std::move(free_.back());
      if (!free_.empty()) free_.pop_back();
      read.record(on);
      copies_.push_back({end_, std::move(read)});
    }
  }

private:
  static constexpr std::int64_t size = 8 << 20;
  struct copy {
    std::int64_t end; ///< end of the bytes that the copy reads
    cuda_moment read;
  };

  /// Returns room for n bytes of one copy, which lie together. Bytes are counted from the first
  /// that was ever written; byte i lies at i modulo the size.
  std::byte* room(std::int64_t n) {
    if (data_.data() == nullptr)
      data_ = arena(pinned_, size, "what is written to the device", "fewer processes of a machine");
    const std::int64_t left = size - end_ % size;
    const std::int64_t first = n <= left ? end_ : end_ + left;
    end_ = first + n;
    while (!copies_.empty() && begin_ + size < end_) {
      copies_.front().read.wait();
      begin_ = copies_.front().end;
      free_.push_back(std::move(copies_.front().read));
      copies_.pop_front();
    }
    return data_.data() + first % size;
  }

  cuda_pinned pinned_;
  arena data_;
  std::int64_t begin_ = 0, end_ = 0; ///< range of the bytes that copies may still read
  std::deque<copy> copies_;
  std::vector<cuda_moment> free_;
};

} // namespace mc
