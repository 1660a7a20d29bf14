#include "cuda_device.hpp"

#include "kernels.hpp"

#include <megacpp/exec/cuda/device.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpu {
namespace {

void require(cudaError_t status, const char* call, mc::exit_code code = mc::exit_code::internal) {
  mc::require_cuda(status, call, code);
}

constexpr int most_calls = 50;
constexpr double enough_milliseconds = 25; // time of the calls whose median is taken

class event {
public:
  event() { require(cudaEventCreate(&e_), "cudaEventCreate"); }
  event(const event&) = delete;
  event& operator=(const event&) = delete;
  ~event() { (void)cudaEventDestroy(e_); }
  void record() const { require(cudaEventRecord(e_, nullptr), "cudaEventRecord"); }
  double milliseconds_since(const event& start) const {
    float ms = 0;
    require(cudaEventElapsedTime(&ms, start.e_, e_), "cudaEventElapsedTime");
    return static_cast<double>(ms);
  }

private:
  cudaEvent_t e_ = nullptr;
};

const cudaDeviceProp& properties() {
  static const cudaDeviceProp of_device = [] {
    cudaDeviceProp p{};
    require(cudaGetDeviceProperties(&p, 0), "cudaGetDeviceProperties");
    return p;
  }();
  return of_device;
}

/// Memory of the current device. Its functions are done when they return, and so are all kernels
/// before them.
class blocking_memory final : public mc::memory_space {
public:
  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    void* p = nullptr;
    if (const cudaError_t status = cudaMalloc(&p, static_cast<std::size_t>(bytes));
        status == cudaErrorMemoryAllocation) {
      std::size_t free = 0, all = 0;
      (void)cudaGetLastError(); // clears the error, which is reported here
      require(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
      throw mc::error(mc::exit_code::memory,
                      "cannot reserve " + mebibytes(bytes) + " of the device for " + what +
                          ", which has " + mebibytes(static_cast<std::int64_t>(free)) +
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
    // A copy of pageable memory may return while its last piece is still under way.
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

std::string version(int v) {
  return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
}

} // namespace

void open_device() {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  const auto refuse = [](const std::string& why) {
    throw mc::error(mc::exit_code::machine,
                    why + "; this program needs a GPU and a driver for CUDA 13 or later");
  };
  if (status != cudaSuccess)
    refuse("CUDA finds no device to run on (" + std::string(cudaGetErrorString(status)) + ")");
  if (devices == 0) refuse("this machine has no CUDA device that may be used");
  require(cudaSetDevice(0), "cudaSetDevice", mc::exit_code::machine);
  if (!kernels_run_here())
    refuse(std::string(properties().name) + " has compute capability " +
           std::to_string(properties().major) + "." + std::to_string(properties().minor) +
           ", and the kernels of this program are compiled for " + kernel_architecture());
}

figures device_facts() {
  const cudaDeviceProp& p = properties();
  int driver = 0, runtime = 0;
  require(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  require(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  std::size_t free = 0, all = 0;
  require(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
  return {{"device", std::string(p.name)},
          {"compute_capability", std::to_string(p.major) + "." + std::to_string(p.minor)},
          {"multiprocessors", static_cast<double>(p.multiProcessorCount)},
          {"memory_MiB", static_cast<double>(all >> 20)},
          {"free_MiB", static_cast<double>(free >> 20)},
          {"cache_MiB", static_cast<double>(p.l2CacheSize >> 20)},
          {"driver_cuda", version(driver)},
          {"runtime_cuda", version(runtime)}};
}

void require_device() { require(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }

mc::memory_space& memory() {
  static blocking_memory of_device;
  return of_device;
}

bool approximates() { return true; }
void require_launch(int status) { require(static_cast<cudaError_t>(status), "a kernel's launch"); }
void finish() { require(cudaDeviceSynchronize(), "cudaDeviceSynchronize after a kernel"); }

std::int64_t cache_bytes() { return properties().l2CacheSize; }

double milliseconds(const std::function<void(int)>& call, int copies) {
  std::vector<event> at(2);
  call(0); // loads code and reserves memory
  finish();
  at[0].record();
  call(1 % copies);
  at[1].record();
  finish();
  const double one = std::max(at[1].milliseconds_since(at[0]), 1e-3);
  const int calls =
      static_cast<int>(std::clamp(enough_milliseconds / one, 3.0, double{most_calls}));
  std::vector<event> between(static_cast<std::size_t>(calls) + 1);
  between[0].record();
  for (std::size_t i = 1; i < between.size(); ++i) {
    call(static_cast<int>(i + 1) % copies);
    between[i].record();
  }
  finish();
  std::vector<double> times;
  for (std::size_t i = 1; i < between.size(); ++i)
    times.push_back(between[i].milliseconds_since(between[i - 1]));
  std::nth_element(times.begin(), times.begin() + calls / 2, times.end());
  return times[static_cast<std::size_t>(calls / 2)];
}

} // namespace gpu
