// The CUDA device: memory, lanes and events by cuda_runtime_api.h. Any C++ compiler that finds
// CUDA's headers compiles this header; units of nvcc have the kernels (exec/cuda/launch.hpp).
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/exec/cuda/lane.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/error.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// A choice among the visible devices, and the number of devices over which the processes of a
/// machine are spread.
struct cuda_choice {
  int ordinal = 0, spread_over = 1;
};

/// Returns the version of a library of NVIDIA as people write it.
inline std::string dotted_version(std::size_t v) {
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

/// The libraries of a CUDA device.
struct cuda_libraries {
  std::unique_ptr<product_source> products;
  std::unique_ptr<attention_source> attention; ///< nullptr: bodies compute all attention
  std::unique_ptr<range_tool> shows{};         ///< shows ranges; nullptr: no tool listens
};

/// A CUDA device. The threads of its host make feeds; its lanes compute.
class cuda : public device {
public:
  using lane_type = cuda_lane;
  static constexpr bool takes_constants = false;

  /// A function that opens the libraries of a device. The device is the current one and computes
  /// nothing yet.
  using libraries_maker = std::function<cuda_libraries(cuda&)>;
  /// Opens device `ordinal` of the visible devices.
  cuda(int ordinal, int threads, const libraries_maker& open_libraries)
      : ordinal_(chosen(ordinal)),
        taken_before_(memory_now().taken),
        threads_(threads),
        open_(std::make_unique<running>(*this)),
        libraries_(open_libraries(*this)) {
    set_thread_count(threads_);
    open_->origin = moment_now();
    open_->origin_time = monotonic_nanoseconds();
    cudaDeviceProp facts{};
    require_cuda(cudaGetDeviceProperties(&facts, ordinal_), "cudaGetDeviceProperties");
    name_ = "device " + std::to_string(ordinal_) + " (" + facts.name + ")";
  }
  /// Returns device `number` of the visible devices; for -1, the device of the process whose
  /// `place` among the processes of its machine this is: processes take the devices in turn. Throws
  /// mc::error: exit_code::machine where there is no device, exit_code::usage for a number without
  /// a device.
  static cuda_choice choice(int number, int place) {
    if (number >= 0) return {existing(number), 1};
    const int devices = visible();
    return {place % devices, devices};
  }
  /// Makes a device that only counts sizes: no work may be started on it. It asks CUDA only in
  /// room(), which opens the device that `choose` returns.
  cuda(std::function<cuda_choice()> choose, int threads, cuda_libraries libraries)
      : threads_(threads), choose_(std::move(choose)), libraries_(std::move(libraries)) {}

  int ordinal() const { return ordinal_; }
  /// Returns true if lanes keep work as graphs, which is the default.
  bool keeps_work() const { return keeps_work_; }
  void keep_work(bool keeps) { keeps_work_ = keeps; }
  /// Makes this the device of the calling thread's calls of CUDA.
  void make_current() const { make_current(ordinal_); }

  std::byte* reserve(std::int64_t bytes, const char* what, const char* remedy) override {
    make_current();
    main().require_order(); // this lane zeroes the memory
    void* p = nullptr;
    const cudaError_t status = cudaMalloc(&p, static_cast<std::size_t>(bytes));
    if (status == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError(); // clears the error, so that no later call reports it again
      throw error(exit_code::memory, "cannot reserve " + mebibytes(bytes) + " of device " +
                                         std::to_string(ordinal_) + " for " + what +
                                         ", which has " + mebibytes(memory_now().free) +
                                         " left: use " + remedy + " or a device with more memory");
    }
    require_cuda(status, "cudaMalloc");
    main().fill(static_cast<std::byte*>(p), 0, bytes);
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, std::int64_t /*bytes*/) override { (void)cudaFree(p); }
  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    main().fill(to, byte, bytes);
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    main().write(to, from_host, bytes);
  }
  void read(void* to_host, const std::byte* from, std::int64_t bytes) const override {
    if (bytes <= 0) return;
    main().require(cudaMemcpyAsync(to_host, from, static_cast<std::size_t>(bytes),
                                   cudaMemcpyDeviceToHost, main().stream()),
                   "cudaMemcpyAsync from the device");
    main().finish();
  }
  std::byte* open(std::byte* p, std::int64_t bytes) override {
    auto seen = std::make_unique<std::byte[]>(static_cast<std::size_t>(bytes));
    read(seen.get(), p, bytes);
    return seen.release();
  }
  void close(std::byte* p, std::int64_t bytes, std::byte* seen, bool changed) override {
    const std::unique_ptr<std::byte[]> own(seen);
    if (changed) write(p, seen, bytes);
  }

  int threads() const override { return threads_; }
  std::string name() const override { return name_; }
  memory_space& mirrored() override { return pinned_; }
  lane& main_lane() override { return main(); }
  std::unique_ptr<lane> make_lane() override {
    make_current();
    return std::make_unique<cuda_lane>(*this);
  }
  std::unique_ptr<event> make_event() override {
    make_current();
    return std::make_unique<cuda_event>(*this);
  }
  product_source& products() override { return *libraries_.products; }
  attention_source* attention() override { return libraries_.attention.get(); }

  /// Returns a table of `count` numbers: the one that was made for the same key, or a new one that
  /// `fill(T*)` writes in memory of the host and that is copied. Kernels ask for tables while
  /// programs are prepared.
  template <class Type, class F>
  auto table(Type, std::vector<double> key, std::int64_t count, F fill) {
    using T = typename Type::type;
    key.push_back(sizeof(T));
    auto [at, made] = tables_.try_emplace(std::move(key));
    if (made) {
      const std::int64_t bytes = count * std::int64_t{sizeof(T)};
      table_bytes_ += bytes;
      if (open_ != nullptr) {
        std::vector<T> of_host(static_cast<std::size_t>(count));
        fill(of_host.data());
        at->second = arena(*this, bytes, "a table of kernels", "a shorter sequence");
        write(at->second.data(), of_host.data(), bytes);
      }
    }
    return reinterpret_cast<const T*>(at->second.data());
  }
  std::int64_t table_bytes() const override { return table_bytes_; }
  /// Returns the room that is left. A device that only counts sizes returns that of the device that
  /// would be opened.
  std::optional<memory_room> room() const override {
    const cuda_choice c = open_ != nullptr ? cuda_choice{ordinal_, 1} : choose_();
    make_current(c.ordinal);
    return memory_room{memory_now().free, "device " + std::to_string(c.ordinal), c.spread_over};
  }

  std::optional<memory_taken> taken() const override {
    if (open_ == nullptr) return std::nullopt;
    make_current();
    return memory_taken{taken_before_, memory_now().taken};
  }

  /// The most bytes of workspace that cuBLASLt may ask for.
  static constexpr std::int64_t product_workspace = 32 << 20;
  static constexpr std::int64_t most_workspace(const product_shape& /*s*/, int /*threads*/) {
    return product_workspace;
  }
  static constexpr std::int64_t sort_bytes(std::int64_t n) { return sort_bytes_on_cuda(n); }

  /// The ranges of the scratch of cuDNN's attention: sums of rows (B, A, S) in fp32 from 0 on; dq
  /// in fp32, where the gradient is not deterministic; and the workspace that cuDNN 9.19 asks for:
  /// dS of all scores in bf16, where the gradient is deterministic, and dk and dv of all heads,
  /// where heads share keys.
  struct attention_places {
    std::int64_t accumulator, workspace, end; ///< offsets in bytes from the scratch's beginning
  };
  static constexpr attention_places ranges_of_attention(const fused_attention_shape& s,
                                                        bool deterministic) {
    const auto up = [](std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; };
    constexpr std::int64_t beside = 512;
    if (!s.gradient) return {0, 0, beside};
    const std::int64_t heads = s.sequences * s.heads, wide = 4 * heads * s.tokens * s.head_dim,
                       accumulator = up(4 * heads * s.tokens, 256),
                       workspace = accumulator + (deterministic ? 0 : up(wide, 256)),
                       scores = 2 * heads * up(s.tokens, 64) * up(s.tokens, 128);
    return {accumulator, workspace,
            workspace + beside + (deterministic ? scores : 0) + (s.heads == s.kv_heads ? 0 : wide)};
  }
  /// Returns the number of sequences that cuDNN computes at a time: the largest divisor of all
  /// sequences whose scratch fits `room` bytes, at least one.
  static constexpr std::int64_t attention_room = std::int64_t{1} << 30;
  static constexpr std::int64_t sequences_at_once(const fused_attention_shape& s,
                                                  bool deterministic,
                                                  std::int64_t room = attention_room) {
    fused_attention_shape some = s;
    if (s.apart) some.sequences = 1;
    while (some.sequences > 1 && (s.sequences % some.sequences != 0 ||
                                  ranges_of_attention(some, deterministic).end > room))
      --some.sequences;
    return some.sequences;
  }
  /// Returns the most bytes of scratch that cuDNN gets for a shape.
  static constexpr std::int64_t attention_scratch(const fused_attention_shape& s,
                                                  bool deterministic,
                                                  std::int64_t room = attention_room) {
    fused_attention_shape some = s;
    some.sequences = sequences_at_once(s, deterministic, room);
    return ranges_of_attention(some, deterministic).end;
  }
  static constexpr std::int64_t most_attention_scratch(const fused_attention_shape& s) {
    return std::max(attention_scratch(s, true), attention_scratch(s, false));
  }

private:
  friend class cuda_event;
  friend class cuda_lane;

  /// The members that exist once the device is open.
  struct running {
    explicit running(cuda& of) : lane(of) {}
    cuda_lane lane;
    cuda_moment origin;
    std::int64_t origin_time = 0;
  };
  cuda_lane& main() const { return open_->lane; }

  /// Bytes of the current device's memory: free, and taken.
  struct bytes_now {
    std::int64_t free = 0, taken = 0;
  };
  static bytes_now memory_now() {
    std::size_t free = 0, all = 0;
    require_cuda(cudaMemGetInfo(&free, &all), "cudaMemGetInfo");
    return {static_cast<std::int64_t>(free), static_cast<std::int64_t>(all - free)};
  }
  static int chosen(int ordinal) {
    make_current(existing(ordinal));
    return ordinal;
  }
  static int existing(int ordinal) {
    const int devices = visible();
    if (ordinal < 0 || ordinal >= devices)
      throw error(exit_code::usage,
                  "there is no device " + std::to_string(ordinal) + ": " +
                      (devices == 1 ? "one is visible, number 0"
                                    : std::to_string(devices) + " are visible, numbers 0 to " +
                                          std::to_string(devices - 1)) +
                      " (CUDA_VISIBLE_DEVICES chooses them)");
    return ordinal;
  }
  static int visible() {
    int devices = 0;
    const cudaError_t status = cudaGetDeviceCount(&devices);
    const std::string instead =
        "; give a machine with a GPU and its driver, or build the program "
        "with device=cpu";
    if (status == cudaErrorInsufficientDriver)
      throw error(exit_code::machine, "the driver of the GPU is missing, or older than CUDA " +
                                          version(CUDART_VERSION) +
                                          ", for which this program was built" + instead);
    const char* const named = std::getenv("CUDA_VISIBLE_DEVICES");
    if (status != cudaSuccess || devices < 1)
      throw error(exit_code::machine,
                  std::string("CUDA finds no device to run on (") +
                      (status != cudaSuccess ? cudaGetErrorString(status) : "there are 0") + ")" +
                      (named == nullptr || (status != cudaSuccess && status != cudaErrorNoDevice)
                           ? instead
                           : std::string(", and CUDA_VISIBLE_DEVICES is \"") + named +
                                 "\", which hides those that it does not name: unset it, or name a "
                                 "device that `nvidia-smi -L` lists"));
    return devices;
  }
  /// Sets the calling thread's device. No other function does, so that the thread's device is known
  /// here.
  static void make_current(int ordinal) {
    thread_local int current = -1;
    if (current == ordinal) return;
    const cudaError_t status = cudaSetDevice(ordinal);
    if (status == cudaErrorDevicesUnavailable)
      throw error(exit_code::machine,
                  "device " + std::to_string(ordinal) + " is not available (" +
                      cudaGetErrorName(status) +
                      "), as where one process alone may compute on it, and another one does: end "
                      "that one, choose another device by --device, or let its administrator set "
                      "the compute mode to Default (`nvidia-smi -c 0`)");
    require_cuda(status, "cudaSetDevice", exit_code::machine);
    current = ordinal;
  }
  static std::string version(int v) {
    return std::to_string(v / 1000) + "." + std::to_string(v % 1000 / 10);
  }
  static std::string mebibytes(std::int64_t bytes) {
    return std::to_string(((bytes - 1) >> 20) + 1) + " MiB";
  }

  /// Returns the time of a moment by the host's clock. CUDA measures in milliseconds of float, so
  /// the origin is moved to a moment of the last second.
  std::int64_t host_time(const cuda_moment& of) {
    constexpr std::int64_t long_ago = 1'000'000'000;
    const std::int64_t since = of.since(open_->origin), at = open_->origin_time + since;
    if (since > long_ago) { // the device's clock sets the new origin, so that times compare
      cuda_moment next = moment_now();
      open_->origin_time += next.since(open_->origin);
      open_->origin = std::move(next);
    }
    return at;
  }
  cuda_moment moment_now() const {
    make_current();
    cuda_moment now;
    now.record(main().stream());
    now.wait();
    return now;
  }

  int ordinal_ = -1;
  std::int64_t taken_before_ = 0; ///< bytes that CUDA and other processes had taken
  bool keeps_work_ = true;
  std::string name_;
  int threads_;
  std::function<cuda_choice()> choose_; ///< chooses the device of one that only counts sizes
  cuda_pinned pinned_;
  std::unique_ptr<running> open_;
  cuda_libraries libraries_; ///< the libraries close before the streams that they were given
  std::int64_t table_bytes_ = 0;
  std::map<std::vector<double>, arena> tables_;
};

inline std::int64_t cuda_event::reached() {
  if (!recorded_) return 0;
  at_.wait();
  return of_.host_time(at_);
}

inline cuda_lane::cuda_lane(cuda& of) : lane(of), of_(of) {}
inline int cuda_lane::threads() const { return of_.threads(); }
inline bool cuda_lane::keeps_work() const { return of_.keeps_work(); }
inline void cuda_lane::start_kept(std::unique_ptr<kept_work>& work, function_ref<> f) {
  make_current();
  const bool first = work == nullptr;
  if (first) work = std::make_unique<cuda_graph>();
  auto& graph = static_cast<cuda_graph&>(*work);
  if (first || graph.refused()) return f();
  if (!graph.made()) {
    const cudaStream_t on = stream();
    taken_ = true;
    graph.take(on, f);
    taken_ = false;
    if (graph.refused()) return f();
  }
  last_ = {this, [](const void*) {
             return std::string("a graph of kernels, which --no-cuda-graphs starts one by one");
           }};
  require(cudaGraphLaunch(graph.get(), stream()), "cudaGraphLaunch");
  ++graphs_started_;
}
inline void cuda_lane::make_current() const { of_.make_current(); }
inline range_tool* cuda_lane::tool() const { return of_.libraries_.shows.get(); }
template <class Node, class F> void cuda_lane::launch(const Node& n, F f) {
  of_.make_current();
  last_ = {&n, [](const void* p) {
             return "the kernel of " + name_of_launch(*static_cast<const Node*>(p));
           }};
  range_tool* const to = tool();
  if (to == nullptr) return f();
  to->begin(names_.of_node(*to, n), -1);
  const struct range_end {
    range_tool& of;
    ~range_end() { of.end(); }
  } at_end{*to};
  f();
}

} // namespace mc
