// The memory of one rank, item by item, as a constant of the program.
#pragma once

#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/registry.hpp>

#include <span>

namespace mc {

/// Sizes of memory: 80_GiB.
constexpr std::int64_t operator""_GiB(unsigned long long n) {
  return static_cast<std::int64_t>(n) << 30;
}

/// Bytes of one rank.
struct memory_items {
  std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0; ///< the flat stores
  std::int64_t saved = 0;   ///< forward values the backward pass reads, all layers
  std::int64_t streams = 0; ///< the residual stream between layers, and its cotangents
  std::int64_t working = 0; ///< values of the part that runs
  std::int64_t feeds = 0;   ///< token ids, labels, positions, keys, documents
  std::int64_t derived = 0; ///< values the prologue computes, and their gradients
  std::int64_t caches = 0;  ///< keys and values of the tokens so far (generation)

  constexpr std::int64_t total() const {
    return weights + gradients + masters + moments + saved + streams + working + feeds + derived +
           caches;
  }
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

/// Tokens, labels and documents, which the caller has, positions and token keys.
inline constexpr int token_feeds = 5, given_feeds = 3;
/// Bytes of one of them.
constexpr std::int64_t feed_bytes(const graph& block) {
  return aligned_bytes(local_tokens(block) * 4);
}
inline constexpr std::int64_t seed_bytes = memory_alignment; ///< of the cotangent of the loss

/// Bytes of a plan by space.
struct part_bytes {
  std::int64_t saved = 0, working = 0, derived = 0, derived_gradients = 0;

  constexpr explicit part_bytes(const memory_plan& p)
      : saved(p.saved),
        working(p.working),
        derived(p.derived),
        derived_gradients(p.derived_gradients) {}
  /// Of two graphs that take turns in the same memory.
  constexpr part_bytes(const memory_plan& p, const memory_plan& other) : part_bytes(p) {
    const part_bytes o(other);
    if (o.saved > saved) saved = o.saved;
    if (o.working > working) working = o.working;
    if (o.derived > derived) derived = o.derived;
    if (o.derived_gradients > derived_gradients) derived_gradients = o.derived_gradients;
  }
};

/// How many layers of each part (0 stem, 1 ... kinds blocks, kinds + 1 head) stage `stage` of `pp`
/// has: the layers are cut in equal runs, the stem is on the first stage, the head on the last.
template <class Kind>
constexpr void stage_layers(int layers, int pp, int stage, Kind kind_of, std::span<int> of_part) {
  for (int& n : of_part) n = 0;
  of_part.front() = stage == 0;
  of_part.back() = stage == pp - 1;
  for (int l = layers / pp * stage; l < layers / pp * (stage + 1); ++l)
    ++of_part[static_cast<unsigned>(1 + kind_of(l))];
}

/// The stage of `pp` of which amount(stage) is most; the first of several.
template <class Amount> constexpr int largest_stage(int pp, Amount amount) {
  int largest = 0;
  auto most = amount(0);
  for (int stage = 1; stage < pp; ++stage)
    if (const auto n = amount(stage); n > most) largest = stage, most = n;
  return largest;
}

/// Parameters of one stage, local, in elements of the flat stores: those of one group, or all. The
/// last stage has a copy of what its head shares with the first one's stem.
constexpr std::int64_t stored_elements(const registry& r, std::span<const int> layers,
                                       int group = -1) {
  std::int64_t n = 0;
  for (int i = 0; i < r.entry_count; ++i) {
    const registry::entry& e = r.entries[i];
    if (group >= 0 && e.group != group) continue;
    const int uses = layers[static_cast<unsigned>(e.part)];
    if (!e.tied) n += aligned_elements(e.count.n) * uses;
    else if (layers.front() == 0 && uses > 0) n += aligned_elements(e.count.n);
  }
  return n;
}

/// Elements of the gradients that tied uses collect beside those of declarations on one stage.
constexpr std::int64_t tied_elements(const registry& r, std::span<const int> layers) {
  std::int64_t n = 0;
  for_each_tie(r, [&](const registry::entry& e, int) {
    if (layers.front() != 0 && layers[static_cast<unsigned>(e.part)] != 0)
      n += aligned_elements(e.count.n);
  });
  return n;
}

/// Bytes of one rank of a pipeline stage for training. `plans` and `layers` are by part, as in
/// stage_layers; `in_flight` micro-batches keep what their backward pass reads (1F1B: pp - stage);
/// `evaluation` is the head without its backward pass, in the head's place; `update` is the step's
/// end; `type` the weights'; `block` any block's graph, for the shape of the residual stream, of
/// which every layer's input is kept and two cotangents live.
constexpr memory_items training_memory(std::span<const memory_plan* const> plans,
                                       std::span<const int> layers, int in_flight,
                                       const memory_plan& evaluation, const memory_plan& update,
                                       const registry& r, dtype type, const graph& block) {
  memory_items m;
  const dtype main = accumulator_of(type);
  const std::int64_t elements = stored_elements(r, layers);
  m.weights = elements * size_of(type);
  m.gradients = (elements + tied_elements(r, layers)) * size_of(main);
  m.masters = type == main ? 0 : elements * size_of(main);
  m.moments = 2 * elements * size_of(main);
  const auto add = [&m](const part_bytes& p, int uses, int flights) {
    m.saved += p.saved * uses * flights;
    m.derived += (p.derived + p.derived_gradients) * uses;
    if (p.working > m.working) m.working = p.working;
  };
  add(part_bytes(update), 1, 1);
  int blocks = 0;
  for (unsigned i = 0; i < plans.size(); ++i) {
    if (layers[i] == 0) continue;
    const bool head = i + 1 == plans.size();
    if (i > 0 && !head) blocks += layers[i];
    add(head ? part_bytes(*plans[i], evaluation) : part_bytes(*plans[i]), layers[i], in_flight);
  }
  m.streams = ((blocks + 1) * in_flight + 2) * stream_bytes(block);
  m.feeds = token_feeds * feed_bytes(block) + seed_bytes;
  return m;
}

/// Bytes of one rank for evaluation. `plans` and `layers` as above, with the plan of evaluation as
/// the head's. Parts run one at a time, and leave nothing for a backward pass.
constexpr memory_items inference_memory(std::span<const memory_plan* const> plans,
                                        std::span<const int> layers, const registry& r, dtype type,
                                        const graph& block) {
  memory_items m;
  m.weights = stored_elements(r, layers) * size_of(type);
  for (unsigned i = 0; i < plans.size(); ++i) {
    const part_bytes p(*plans[i]); // evaluation runs the training graphs' forward nodes
    m.derived += p.derived * layers[i];
    if (p.saved > m.saved) m.saved = p.saved;
    if (p.working > m.working) m.working = p.working;
  }
  m.streams = 2 * stream_bytes(block);
  m.feeds = token_feeds * feed_bytes(block) + seed_bytes;
  return m;
}

} // namespace mc
