// The frame of a node at run time: the addresses of values, the layer, and the step's numbers.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/graph/graph.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/run/times.hpp>

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

namespace mc {

/// Numbers that kernels read and that stay the same in every step.
struct run_constants {
  double beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0, clip = 0;
  bool dropping = true; ///< dropout drops; false in evaluation

  bool operator==(const run_constants&) const = default;
};
/// The numbers of a step: the constants, and numbers that its graphs read as inputs
/// (op/numbers.hpp).
struct step_numbers : run_constants {
  std::uint64_t seed = 0;
  std::int64_t step = 0; ///< number of optimizer steps done before
  double learning_rate = 0;
};

/// The addresses of a graph's inputs, in the order in which place_memory counts inputs. The graph
/// must outlive this object.
class input_addresses {
public:
  explicit input_addresses(const graph& g) : g_(&g) {
    for (int i = 0; i < g.value_count; ++i)
      if (g.values[i].is == role::input) inputs_.push_back(&g.values[i]);
    at_.resize(inputs_.size());
  }
  /// Calls f(value, address) for every input. f may set the address.
  template <class F> void each(F f) {
    for (std::size_t i = 0; i < inputs_.size(); ++i) f(*inputs_[i], at_[i]);
  }
  /// Sets the address of the inputs that read feed `from` with index `index`. Kernels write to an
  /// input only where their ops change it.
  void set(feed from, const void* p, int index = 0) {
    each([&](const value& v, std::byte*& at) {
      if (v.from == from && v.feed_index == index)
        at = static_cast<std::byte*>(const_cast<void*>(p));
    });
  }
  std::byte* const* data() const { return at_.data(); }
  const graph& of() const { return *g_; }

private:
  const graph* g_;
  std::vector<const value*> inputs_;
  std::vector<std::byte*> at_;
};

/// An event that comes when a layer's mirror is complete. The host waits for it before it reads the
/// mirror first, and later reads do not wait.
class mirror_event {
public:
  explicit mirror_event(std::unique_ptr<event> e) : event_(std::move(e)) {}
  void record(lane& on) {
    on.record(*event_);
    there_ = false;
  }
  void wait() {
    if (!std::exchange(there_, true)) event_->wait();
  }

private:
  std::unique_ptr<event> event_;
  bool there_ = true; ///< the mirror is complete, or was never recorded
};

/// The base addresses that a node's values are found by, and the layer that runs.
struct frame {
  std::array<std::byte*, static_cast<unsigned>(spaces)>
      base{};                        ///< weights and gradients: beginning of the whole store
  std::byte* const* input = nullptr; ///< addresses of the graph's inputs (input_addresses)
  int index = 0;                     ///< index of this layer among those of its kind
  int layer = 0;                     ///< number of the layer in the model; -1 the stem, `layers`
                                     ///< the head
  int trip = 0;                      ///< number of the trip of the region that runs
  lane* on = nullptr;                ///< lane on which everything is started
  mirror_event* mirrored = nullptr;  ///< event of the layer's mirror
  step_times* times = nullptr;       ///< times of nodes; null: none are taken
  const run_constants* constants = nullptr;
  const registry* stores = nullptr; ///< registry of this rank's weights and gradients
  coordinates coordinate{};         ///< coordinate of this rank on every axis
  communicator* ranks = nullptr;    ///< communicator for memory of the device

  void set(space s, std::byte* p) { base[static_cast<unsigned>(s)] = p; }
};

/// The state that a node's kernel has prepared once.
struct prepared_node {
  std::array<const void*, 3> plan{};
};

/// Returns the address of a value in a frame. Parameters and gradients lie elsewhere in each layer.
inline std::byte* resolve(const address& a, const frame& f, int part, std::int64_t element_bytes) {
  switch (a.in) {
  case space::input: return f.input[a.offset];
  case space::weights:
  case space::gradients: {
    const registry::entry& e = f.stores->find(part, static_cast<int>(a.offset % max_parameters));
    std::byte* const base = f.base[static_cast<unsigned>(a.in)];
    if (e.encoding != nullptr)
      return base + f.stores->address(e, static_cast<int>(a.offset / max_parameters), f.index);
    const std::int64_t first = a.in == space::gradients ? e.gradient : e.offset;
    return base + (first + f.index * e.stride) * element_bytes;
  }
  default: return f.base[static_cast<unsigned>(a.in)] + a.offset;
  }
}

/// Runs the trips of a region: calls body(whether there are several) as often as the mirror says.
template <class F>
void for_trips(const graph& g, const memory_plan& p, frame& f, region_id region, F body) {
  const mirror* const trips = p.mirror_of(g.regions[static_cast<unsigned>(region)].trips);
  const std::byte* const at = f.base[static_cast<unsigned>(space::mirror)] + trips->offset;
  f.mirrored->wait();
  std::int32_t n = 0;
  std::memcpy(&n, at, sizeof n);
  for (f.trip = 0; f.trip < n; ++f.trip) body(n > 1);
  f.trip = 0;
}

} // namespace mc
