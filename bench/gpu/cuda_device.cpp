#include "cuda_device.hpp"

#include "kernels.hpp"

#include <megacpp/exec/cuda/memory.hpp>

#include <algorithm>
#include <cmath>
#include <vector>

namespace gpu {
namespace {

using mc::cuda::require;

constexpr int most_calls = 50;
constexpr double enough_milliseconds = 25; // of calls whose median is taken

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
  static mc::cuda::memory of_device;
  return of_device;
}

void finish() { require(cudaDeviceSynchronize(), "cudaDeviceSynchronize after a kernel"); }

std::int64_t cache_bytes() { return properties().l2CacheSize; }

double milliseconds(const std::function<void(int)>& call, int copies) {
  std::vector<event> at(2);
  call(0); // loads code and takes memory
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
