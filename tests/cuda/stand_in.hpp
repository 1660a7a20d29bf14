// A CUDA runtime without a device: the functions of cuda_runtime_api.h that exec/cuda calls, for
// programs that link this in the place of CUDA's library.
//
// Memory of the device is closed to the host: a look at it ends the process, which names the work
// that was done last. What is started on a stream is kept, and is done when somebody waits: of several
// streams that could go on, one that chance chooses, and of a stream in order. So a copy lands as
// late as it may, and what was forgotten to be waited for is not there. Memory that is reserved holds
// numbers that are none, and what lies behind its end is looked at after all work.
//
// What is not seen: a read beyond the end of memory within its last page, and what kernels of one
// stream would do to each other if they ran at once.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace stand_in {

/// Work on a stream, as a kernel is. The memory is open while f runs; f must not throw, and starts
/// and waits for nothing.
void start(cudaStream_t on, std::string what, std::function<void()> f);

/// How the device is from now on. Nothing may be left of what was before.
struct machine {
  int devices = 1;
  std::size_t bytes = std::size_t{1} << 32; ///< of memory
  std::size_t taken = 0;                    ///< of these, by other processes
  /// A kernel is done when its launch returns, as CUDA_LAUNCH_BLOCKING=1 has it.
  bool blocking = false;
  std::uint64_t seed = 1;
  /// What each of the ways takes that cuBLASLt proposes for a product, in the order in which it
  /// guesses: nanoseconds by the clock of events.
  std::vector<std::int64_t> ways{0, 0};
  std::size_t cublaslt = 130100; ///< cublasLtGetVersion(), whatever the header's is
  int capability[2] = {9, 0};    ///< of the device
  std::size_t cudnn = 0;         ///< cudnnGetVersion(); 0: the header's
};
void begin(const machine& m);

/// How the device is, for stand-ins of libraries.
machine has();
/// What cuBLASLt was last told to expect of the groups of a product: terms of a sum, rows and columns
/// of a result that lies by columns.
std::array<std::int64_t, 3> usual_group();
/// Work that runs takes so many nanoseconds longer by the clock of events.
void spend(std::int64_t nanoseconds);

/// What a call of this name answers before it does anything, for libraries over the runtime.
cudaError_t entered(const char* call);
/// The call of this name that comes after so many others of it fails so.
void fail(const std::string& call, cudaError_t with, int after = 0);
/// A mistake that a program could have made.
enum class mistake {
  left_out,        ///< the call answers that all is well, and does nothing
  too_early,       ///< what the call starts waits for nothing
  short_of_memory, ///< the call reserves half of the memory
};
/// The call of this name that comes after so many others of it is such a mistake. Kernels, and what
/// libraries start, are calls of the name "kernel".
void mistake_in(const std::string& call, mistake m, int after);
/// A word for each call of this name since the device began: what it starts, or nothing.
std::vector<std::string> calls(const std::string& call);
/// What chance chooses from now on.
void shuffle(std::uint64_t seed);
/// After so many more pieces of work the device is lost: all calls fail from then on.
void lose_device(int after);

/// The device that the calling thread has chosen.
int current_device();

/// What has been done.
struct counts {
  std::int64_t started = 0, done = 0;      ///< pieces of work
  std::int64_t waits = 0;                  ///< of the host for a stream, an event or the device
  std::int64_t reserved = 0;               ///< bytes of the device that are reserved now
  std::int64_t most_reserved = 0;          ///< at once
  std::int64_t pinned = 0;                 ///< of the host
  int streams = 0, events = 0, graphs = 0; ///< that there are now
};
counts count();

} // namespace stand_in
