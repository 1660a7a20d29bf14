// The lanes of a CUDA device: streams with their branches, events, and work that is kept as a
// graph. exec/cuda/device.hpp defines what they ask of their device.
#pragma once

#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/exec/cuda/ranges.hpp>
#include <megacpp/exec/cuda/runtime.hpp>
#include <megacpp/exec/device.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace mc {

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
  static constexpr bool sums_by_partials = true;

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
  void reduce(reduction by, dtype t, std::span<const void* const> arrays, void* out,
              std::int64_t n) override {
    if (n <= 0) return;
    if (std::ssize(arrays) > most_reduced)
      throw error(exit_code::mismatch, std::to_string(arrays.size()) +
                                           " ranks add up on one device, which does so for " +
                                           std::to_string(most_reduced) +
                                           " at most: use fewer ranks");
    require(static_cast<cudaError_t>(reduce_on_cuda(stream(), by, t, arrays, out, n)),
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
  /// Returns how often this lane has started a graph of CUDA.
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
  int used_ = none; ///< calls of next_branch() since branch_out(); none: no branch
  cuda_moment fork_{moment_use::order};
  cuda_stream on_; ///< the lane's stream; its copies read the staging memory
  std::vector<branch> branches_;
};

/// The kept work of a lane as a graph of CUDA, which the host starts by one call.
class cuda_graph final : public lane::kept_work {
public:
  cuda_graph() = default;
  cuda_graph(const cuda_graph&) = delete;
  cuda_graph& operator=(const cuda_graph&) = delete;
  ~cuda_graph() override {
    if (executable_ != nullptr) (void)cudaGraphExecDestroy(executable_);
  }
  bool made() const { return executable_ != nullptr; }
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
            cudaGraphInstantiate(&executable_, taken, 0) == cudaSuccess &&
            cudaGraphUpload(executable_, on) == cudaSuccess; // takes memory for the graph
    if (taken != nullptr) (void)cudaGraphDestroy(taken);
    if (!whole) refuse();
  }
  cudaGraphExec_t get() const { return executable_; }

private:
  /// Gives up: the caller then starts the work without a graph, which shows what is wrong with it.
  void refuse() {
    refused_ = true;
    (void)cudaGetLastError();
  }
  /// The most nodes of a graph. Prompts whose products are computed apart have many more, and a
  /// graph of so many costs more than it saves.
  static constexpr std::size_t most_nodes = 16384;
  cudaGraphExec_t executable_ = nullptr;
  bool refused_ = false;
};

} // namespace mc
