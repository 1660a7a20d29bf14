// The memory of one rank, item by item, as a constant of the program.
#pragma once

#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

/// Bytes of one rank.
struct memory_items {
  std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0; ///< the flat stores
  std::int64_t saved = 0;   ///< forward values the backward pass reads, all layers
  std::int64_t streams = 0; ///< the residual stream between layers, and its cotangents
  std::int64_t working = 0; ///< values of the part that runs
  std::int64_t feeds = 0;   ///< token ids, labels, positions, keys, documents
  std::int64_t derived = 0; ///< values the prologue computes, and their gradients

  constexpr std::int64_t total() const {
    return weights + gradients + masters + moments + saved + streams + working + feeds + derived;
  }
};

/// What the plans of one part contribute.
struct part_memory {
  memory_plan const* plan = nullptr;
  int layers = 1;
};

constexpr std::int64_t stream_bytes(const graph& block) {
  for (int i = 0; i < block.value_count; ++i) {
    const value& v = block.at(static_cast<value_id>(i));
    if (v.is == role::input && v.from == feed::stream)
      return aligned_bytes(local_bytes(block.ranks, v));
  }
  return 0;
}

/// Tokens of one rank's micro-batch.
constexpr std::int64_t local_tokens(const graph& g) {
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::input && v.from == feed::positions) return local_size(g.ranks, v).n;
  }
  return 0;
}

inline constexpr int token_feeds = 5; ///< tokens, labels, positions, token keys, documents

template <unsigned N>
constexpr memory_items training_memory(const std::array<part_memory, N>& parts,
                                       const memory_plan& update, const registry& r, dtype type,
                                       const graph& block, int layers) {
  memory_items m;
  const dtype main = accumulator_of(type);
  m.weights = r.total * size_of(type);
  m.gradients = r.total * size_of(main);
  m.masters = type == main ? 0 : r.total * size_of(main);
  m.moments = 2 * r.total * size_of(main);
  for (const part_memory& p : parts) {
    m.saved += p.plan->saved * p.layers;
    m.derived += (p.plan->derived + p.plan->derived_gradients) * p.layers;
    if (p.plan->working > m.working) m.working = p.plan->working;
  }
  if (update.working > m.working) m.working = update.working;
  m.streams = (layers + 1 + 2) * stream_bytes(block);
  m.feeds = token_feeds * aligned_bytes(local_tokens(block) * 4) + memory_alignment;
  return m;
}

} // namespace mc
