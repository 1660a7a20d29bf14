// The machine that MEGACPP_STAND_IN says, as in "devices=1 bytes=1000000 lose=100": memory of the device,
// of which others have "taken=1000", and pieces of work after which it is lost. "way=5" adds a way of
// cuBLASLt that takes 5 milliseconds, in the place of those that it has otherwise. "capability=80" is that
// of the device, "cublaslt=120000" the version of the library. After "malloc=3" pieces of memory there is
// none, and "unavailable=0" is a device that another process has for itself.
#pragma once

#include <cuda/stand_in.hpp>

#include <cublasLt.h>

#include <cstdlib>
#include <sstream>
#include <string>

namespace test {

/// False where a word is none of these.
inline bool begin_said_machine() {
  const char* const said = std::getenv("MEGACPP_STAND_IN");
  std::istringstream words(said != nullptr ? said : "");
  stand_in::machine has;
  has.cublaslt = CUBLAS_VERSION;
  std::vector<std::int64_t> ways;
  int lost_after = -1;
  struct {
    const char* call = nullptr;
    cudaError_t with = cudaSuccess;
    long after = 0;
  } fails;
  for (std::string word; words >> word;) {
    const std::size_t at = word.find('=');
    const long number = std::stol(word.substr(at + 1));
    if (word.starts_with("devices=")) has.devices = static_cast<int>(number);
    else if (word.starts_with("bytes=")) has.bytes = static_cast<std::size_t>(number);
    else if (word.starts_with("lose=")) lost_after = static_cast<int>(number);
    else if (word.starts_with("taken=")) has.taken = static_cast<std::size_t>(number);
    else if (word.starts_with("capability="))
      has.capability[0] = static_cast<int>(number / 10),
      has.capability[1] = static_cast<int>(number % 10);
    else if (word.starts_with("cublaslt=")) has.cublaslt = static_cast<std::size_t>(number);
    else if (word.starts_with("malloc=")) fails = {"cudaMalloc", cudaErrorMemoryAllocation, number};
    else if (word.starts_with("unavailable="))
      fails = {"cudaSetDevice", cudaErrorDevicesUnavailable, number};
    else if (word.starts_with("way=")) ways.push_back(1'000'000 * number);
    else return false;
  }
  if (!ways.empty()) has.ways = ways;
  stand_in::begin(has);
  if (fails.call != nullptr) stand_in::fail(fails.call, fails.with, static_cast<int>(fails.after));
  if (lost_after >= 0) stand_in::lose_device(lost_after);
  return true;
}

} // namespace test
