// The CUDA device: memory, lanes and events by cuda_runtime_api.h. Any C++ compiler that finds
// CUDA's headers compiles this header; units of nvcc have the kernels (exec/cuda/launch.hpp).
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/exec/cuda/ranges.hpp>
#include <megacpp/exec/host_memory.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/error.hpp>

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
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

/// Memory of the host that a CUDA device reaches by itself (pinned memory).
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

/// Pinned memory in which bytes wait for their copy to the device. One stream reads it.
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

class cuda;

/// An event of a lane of a CUDA device.
class cuda_event final : public event {
public:
  explicit cuda_event(cuda& of) : of_(of) {}
  void wait() override { at_.wait(); } // an event that was never recorded has come
  std::int64_t reached() override;

private:
  friend class cuda_lane;
  cuda& of_;
  cuda_moment at_;
  bool recorded_ = false;
};

/// A lane of a CUDA device: a stream.
class cuda_lane final : public lane {
public:
  explicit cuda_lane(cuda& of);
  /// Returns the stream. Throws mc::error while the lane has branches, since work that is started
  /// on the stream would not wait for them.
  cudaStream_t stream() const {
    require_order();
    return on_.get();
  }

  template <class Node, class F> void launch(const Node& n, F f);
  template <class Body> void for_rows(std::int64_t rows, const Body& body) {
    if (rows <= 0) return;
    require(static_cast<cudaError_t>(launch_on_cuda(stream(), rows, body)),
            "the launch of a kernel");
  }
  void sort(std::uint64_t* numbers, std::int64_t n, int first, int bits, std::byte* room) {
    std::int64_t needed = 0;
    const auto status =
        static_cast<cudaError_t>(sort_on_cuda(stream(), numbers, n, first, bits, room, &needed));
    if (status == cudaSuccess && needed > sort_bytes_on_cuda(n))
      throw error(exit_code::memory,
                  "this version of CUB sorts " + std::to_string(n) + " numbers in " +
                      std::to_string(needed) + " bytes, and " +
                      std::to_string(sort_bytes_on_cuda(n)) +
                      " are planned for it: build with another version of the CUDA toolkit");
    require(status, "the start of a sort");
  }
  int threads() const;
  int slabs() const { return most_slabs; }
  static constexpr bool sums_by_parts = true;

  /// Branches: a product of one expert is too small for a device, so several run side by side
  /// (side_by_side.hpp), on streams beside the lane's and in equal ranges of its workspace. From
  /// branch_out() to join() the lane takes only products, and throws mc::error for other work.
  static constexpr int most_branches = 4;
  void branch_out() {
    make_current();
    const cudaStream_t from = stream();
    if (branches_.empty()) branches_ = std::vector<branch>(most_branches);
    fork_.record(from);
    used_ = 0;
  }
  void next_branch() {
    if (!branched())
      throw error(exit_code::internal,
                  behind("a branch was asked for") + " of a lane that has none: call branch_out()");
    const branch& b = branches_[static_cast<std::size_t>(used_ % most_branches)];
    if (used_ < most_branches)
      require(cudaStreamWaitEvent(b.on.get(), fork_.get(), 0), "cudaStreamWaitEvent");
    ++used_;
  }
  void join() {
    const int used = std::exchange(used_, none);
    for (int k = 0; k < used && k < most_branches; ++k) {
      const branch& b = branches_[static_cast<std::size_t>(k)];
      b.done.record(b.on.get());
      require(cudaStreamWaitEvent(on_.get(), b.done.get(), 0), "cudaStreamWaitEvent");
    }
  }
  bool branched() const { return used_ != none; }
  /// The stream of the next product, and its range of the workspace.
  struct product_place {
    cudaStream_t on;
    std::byte* workspace;
    std::int64_t bytes;
  };
  product_place for_product() const {
    if (!branched()) return {on_.get(), workspace(), room().workspace};
    if (used_ == 0)
      throw error(exit_code::internal, behind("a product was started") +
                                           " before the first branch of its lane: call "
                                           "next_branch()");
    const std::int64_t each = room().workspace / most_branches / 256 * 256;
    const int k = (used_ - 1) % most_branches;
    return {branches_[static_cast<std::size_t>(k)].on.get(), workspace() + k * each, each};
  }
  /// Returns the name of a call and of the node whose kernel was called last, for people.
  std::string behind(const char* call) const {
    return last_.node == nullptr ? std::string(call)
                                 : std::string(call) + " behind " + last_.name(last_.node);
  }

  void fill(std::byte* to, std::uint8_t byte, std::int64_t bytes) override {
    if (bytes > 0)
      require(cudaMemsetAsync(to, byte, static_cast<std::size_t>(bytes), stream()),
              "cudaMemsetAsync");
  }
  void write(std::byte* to, const void* from_host, std::int64_t bytes) override {
    require_not_taken("a copy from the host");
    make_current();
    const std::scoped_lock lock(mutex_);
    staging_.write(to, from_host, bytes, stream());
  }
  void mirror(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    require_not_taken("a mirror");
    if (bytes > 0)
      require(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToHost,
                              stream()),
              "cudaMemcpyAsync from the device");
  }
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes) override {
    if (bytes > 0)
      require(cudaMemcpyAsync(to, from, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                              stream()),
              "cudaMemcpyAsync within the device");
  }
  void reduce(reduction by, dtype t, std::span<const void* const> parts, void* out,
              std::int64_t n) override {
    if (n <= 0) return;
    if (std::ssize(parts) > most_reduced)
      throw error(exit_code::mismatch,
                  std::to_string(parts.size()) + " ranks add up on one device, which does so for " +
                      std::to_string(most_reduced) + " at most: use fewer ranks");
    require(static_cast<cudaError_t>(reduce_on_cuda(stream(), by, t, parts, out, n)),
            "the start of a sum over ranks");
  }
  void record(event& e) override {
    require_not_taken("an event");
    auto& of = static_cast<cuda_event&>(e);
    of.at_.record(stream()), of.recorded_ = true;
  }
  void wait(event& e) override {
    require_not_taken("a wait for an event");
    require(cudaStreamWaitEvent(stream(), static_cast<cuda_event&>(e).at_.get(), 0),
            "cudaStreamWaitEvent");
  }
  void finish() override {
    require_not_taken("a wait");
    require(cudaStreamSynchronize(stream()), "cudaStreamSynchronize");
  }

  bool is_shown() const override { return tool() != nullptr; }
  void begin_range(const std::string& name, std::int64_t number) override {
    tool()->begin(names_.of(*tool(), name), number);
  }
  void end_range() override { tool()->end(); }

  bool keeps_work() const override;
  /// Starts the work of f(): the first time f starts it, since libraries may have something left to
  /// prepare; the second time the work becomes a graph.
  void start_kept(std::unique_ptr<kept_work>& work, function_ref<> f) override;
  /// Returns how often a graph was started.
  std::int64_t graphs_started() const { return graphs_started_; }

private:
  friend class cuda;
  static constexpr int most_slabs = 256; ///< number of slabs: about two for each multiprocessor
  /// The node whose kernel was called last.
  struct launched {
    const void* node = nullptr;
    std::string (*name)(const void*) = nullptr;
  };
  void require(cudaError_t status, const char* call) const {
    if (status != cudaSuccess) require_cuda(status, behind(call));
  }
  void require_order() const override {
    if (branched())
      throw error(
          exit_code::internal,
          behind("work was started") +
              " on a lane whose branches it would not wait for: end side_by_side before it");
  }
  void make_current() const;
  range_tool* tool() const;
  cuda& of_;
  launched last_;
  range_names names_;
  bool taken_ = false; ///< true while the lane records work as a graph
  std::int64_t graphs_started_ = 0;
  /// Throws mc::error while work becomes a graph: a graph cannot repeat a copy from the host, nor a
  /// wait of the host.
  void require_not_taken(const char* what) const {
    if (taken_)
      throw error(exit_code::internal,
                  std::string(what) + " was asked for amid work that a lane keeps");
  }
  std::mutex mutex_; ///< guards staging_
  cuda_staging staging_;
  struct branch {
    cuda_stream on;
    cuda_moment done{moment_use::order};
  };
  static constexpr int none = -1;
  int used_ = none; ///< number of calls of next_branch() since branch_out(); none: there is no
                    ///< branch
  cuda_moment fork_{moment_use::order};
  cuda_stream on_; ///< the lane's stream; its copies read the staging memory
  std::vector<branch> branches_;
};

/// Kept work of a lane as a graph of CUDA, which the host starts by one call.
class cuda_graph final : public lane::kept_work {
public:
  cuda_graph() = default;
  cuda_graph(const cuda_graph&) = delete;
  cuda_graph& operator=(const cuda_graph&) = delete;
  ~cuda_graph() override {
    if (runs_ != nullptr) (void)cudaGraphExecDestroy(runs_);
  }
  bool made() const { return runs_ != nullptr; }
  bool refused() const { return refused_; }

  /// Records what f() starts on a stream, unless the graph would have too many nodes, or the work
  /// cannot be in a graph.
  void take(cudaStream_t on, function_ref<> f) {
    cudaGraph_t taken = nullptr;
    bool whole = true;
    if (cudaStreamBeginCapture(on, cudaStreamCaptureModeThreadLocal) != cudaSuccess)
      return refuse();
    try {
      f();
    } catch (...) {
      whole = false;
    }
    const cudaError_t ended = cudaStreamEndCapture(on, &taken);
    std::size_t nodes = 0;
    whole = whole && ended == cudaSuccess &&
            cudaGraphGetNodes(taken, nullptr, &nodes) == cudaSuccess && nodes <= most_nodes &&
            cudaGraphInstantiate(&runs_, taken, 0) == cudaSuccess &&
            cudaGraphUpload(runs_, on) == cudaSuccess; // takes memory for the graph
    if (taken != nullptr) (void)cudaGraphDestroy(taken);
    if (!whole) refuse();
  }
  cudaGraphExec_t get() const { return runs_; }

private:
  /// Gives up: the caller then starts the work without a graph, which shows what is wrong with it.
  void refuse() {
    refused_ = true;
    (void)cudaGetLastError();
  }
  /// The most nodes of a graph. Prompts whose products are computed apart have many more, and a
  /// graph of so many costs more than it saves.
  static constexpr std::size_t most_nodes = 16384;
  cudaGraphExec_t runs_ = nullptr;
  bool refused_ = false;
};

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
  static constexpr attention_places attention_parts(const fused_attention_shape& s,
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
    while (some.sequences > 1 &&
           (s.sequences % some.sequences != 0 || attention_parts(some, deterministic).end > room))
      --some.sequences;
    return some.sequences;
  }
  /// Returns the most bytes of scratch that cuDNN gets for a shape.
  static constexpr std::int64_t attention_scratch(const fused_attention_shape& s,
                                                  bool deterministic,
                                                  std::int64_t room = attention_room) {
    fused_attention_shape some = s;
    some.sequences = sequences_at_once(s, deterministic, room);
    return attention_parts(some, deterministic).end;
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
