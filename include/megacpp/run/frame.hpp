// What a node needs at run time beside its graph: base addresses, the layer, the step.
#pragma once

#include <megacpp/comm/self.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/graph.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/boxes.hpp>
#include <megacpp/plan/registry.hpp>

#include <array>
#include <cstddef>

namespace mc {

/// Numbers of one step that kernels read.
struct step_numbers {
  std::uint64_t seed = 0;
  std::int64_t step = 0; ///< optimizer steps done
  double learning_rate = 0, beta1 = 0.9, beta2 = 0.95, epsilon = 1e-8, weight_decay = 0, clip = 0;
  bool dropping = true; ///< false while evaluating: dropout hands its input on
};

/// Base addresses by space, feeds, and where in the model we are.
struct frame {
  std::array<std::byte*, static_cast<unsigned>(spaces)>
      base{}; ///< weights and gradients: of the whole store
  std::array<const void*, static_cast<unsigned>(feeds)> feed{};
  int index = 0; ///< of this layer among those of its kind
  int layer = 0; ///< of the model; -1 the stem, `layers` the head
  int round = 0; ///< of looped nodes
  const step_numbers* step = nullptr;
  coordinates coordinate{}; ///< of this rank on every axis
  self* ranks = nullptr;

  void set(space s, std::byte* p) { base[static_cast<unsigned>(s)] = p; }
  void set(mc::feed f, const void* p, int slot = 0) {
    feed[static_cast<unsigned>(static_cast<int>(f) * max_slots + slot)] = p;
  }
};

/// In which phases looped nodes run in rounds, as pass/rounds.hpp counts.
constexpr bool has_rounds(const graph& g, phases when) {
  return g.rounds >= 0 && (when == phase::forward || when == backward_pass) &&
         !span_of_rounds(g, when == backward_pass).empty();
}

/// State that a node's kernel prepares once.
struct node_slot {
  std::array<const void*, 3> plan{};
};

/// The address of a value in a frame. Parameters and gradients move with the layer.
inline std::byte* resolve(const address& a, const frame& f, const registry& r, int part,
                          std::int64_t element_bytes) {
  switch (a.in) {
  case space::feed:
    return static_cast<std::byte*>(const_cast<void*>(f.feed[static_cast<unsigned>(a.offset)]));
  case space::weights:
  case space::gradients: {
    const registry::entry& e = r.find(part, static_cast<int>(a.offset));
    const std::int64_t first = a.in == space::gradients ? e.gradient : e.offset;
    return f.base[static_cast<unsigned>(a.in)] + (first + f.index * e.stride) * element_bytes;
  }
  default: return f.base[static_cast<unsigned>(a.in)] + a.offset;
  }
}

/// How many rounds of rows go to experts in this layer.
inline int rounds_of(const graph& g, const memory_plan& p, const frame& f, const registry& r,
                     int part) {
  return *reinterpret_cast<const std::int32_t*>(
      resolve(p.at[static_cast<unsigned>(g.rounds)], f, r, part, sizeof(std::int32_t)));
}

} // namespace mc
