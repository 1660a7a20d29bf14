// The memory of a CUDA device. Any C++ compiler that finds CUDA's headers reads this.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/io/error.hpp>

#include <cuda_runtime_api.h>

#include <string>

namespace mc::cuda {

/// Throws mc::error that names the `call` and what CUDA says of it, unless it succeeded. An error
/// of a kernel shows in the first call that waits for it.
inline void require(cudaError_t status, const char* call, exit_code code = exit_code::internal) {
  if (status == cudaSuccess) return;
  throw error(code, std::string(call) + ": " + cudaGetErrorName(status) + ", " +
                        cudaGetErrorString(status));
}

/// Memory of the device that is current when it is reserved. What the functions do, they have done
/// when they return, and all kernels before them.
class memory : public memory_space {
public:
  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    void* p = nullptr;
    if (const cudaError_t status = cudaMalloc(&p, static_cast<std::size_t>(bytes));
        status == cudaErrorMemoryAllocation) {
      std::size_t free = 0, all = 0;
      (void)cudaGetLastError(); // this one is told here, and no later call should tell it again
      require(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
      throw error(exit_code::memory, "cannot reserve " + mebibytes(bytes) + " of the device for " +
                                         what + ", which has " +
                                         mebibytes(static_cast<std::int64_t>(free)) +
                                         " left: use " + remedy + " or a device with more memory");
    } else {
      require(status, "cudaMalloc");
    }
    fill(static_cast<std::byte*>(p), 0, bytes);
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, std::int64_t) override { (void)cudaFree(p); }
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    require(cudaMemset(to, byte, static_cast<std::size_t>(bytes)), "cudaMemset");
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize after cudaMemset");
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    require(cudaMemcpy(to, from_host, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice),
            "cudaMemcpy to the device");
    // A copy of pageable memory may return while its last piece is still on its way.
    require(cudaDeviceSynchronize(), "cudaDeviceSynchronize after cudaMemcpy");
  }
  void read(void* to_host, const std::byte* from, std::int64_t bytes) const override {
    require(cudaMemcpy(to_host, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost),
            "cudaMemcpy from the device");
  }
  std::byte* open(std::byte* p, std::int64_t bytes) override {
    auto* const seen = new std::byte[static_cast<std::size_t>(bytes)];
    try {
      read(seen, p, bytes);
    } catch (...) {
      delete[] seen;
      throw;
    }
    return seen;
  }
  void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) override {
    const cudaError_t status =
        changed ? cudaMemcpy(p, seen, static_cast<std::size_t>(bytes), cudaMemcpyHostToDevice)
                : cudaSuccess;
    delete[] seen;
    require(status, "cudaMemcpy to the device");
  }

private:
  static std::string mebibytes(std::int64_t bytes) {
    return std::to_string(((bytes - 1) >> 20) + 1) + " MiB";
  }
};

} // namespace mc::cuda
