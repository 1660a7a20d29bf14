// The memory of one rank, item by item, as a constant of the program.
#pragma once

#include <megacpp/plan/buffers.hpp>
#include <megacpp/plan/registry.hpp>
#include <megacpp/recipe/precision.hpp>

#include <span>

namespace mc {

/// Makes sizes of memory: 80_GiB.
constexpr std::int64_t operator""_GiB(unsigned long long n) {
  return static_cast<std::int64_t>(n) << 30;
}

/// The memory that kernels need beside their operands, in bytes.
struct kernel_room {
  std::int64_t scratch = 0;   ///< scratch of one kernel at a time
  std::int64_t workspace = 0; ///< workspace of one product at a time
  std::int64_t tables = 0;    ///< tables that kernels share, prepared once

  constexpr std::int64_t total() const { return scratch + workspace + tables; }
};

/// A table that kernels share: its bytes, and a key that is the same for all nodes with this table.
struct table_room {
  std::int64_t bytes = 0;
  std::uint64_t key = 0;
};
/// The memory that kernels need when one of them runs at a time.
class kernel_rooms {
public:
  constexpr void add(const kernel_room& of_node, const table_room& table) {
    if (most_.scratch < of_node.scratch) most_.scratch = of_node.scratch;
    if (most_.workspace < of_node.workspace) most_.workspace = of_node.workspace;
    for (const table_room& t : tables_)
      if (t.key == table.key && t.bytes == table.bytes) return;
    tables_.push(table), most_.tables += table.bytes;
  }
  constexpr const kernel_room& most() const { return most_; }

private:
  kernel_room most_;
  list<table_room> tables_;
};

/// The bytes of one rank, by their use.
struct memory_items {
  std::int64_t weights = 0, gradients = 0, masters = 0, moments = 0; ///< bytes of the flat stores
  std::int64_t saved = 0;   ///< forward values that the backward pass reads, of all layers
  std::int64_t streams = 0; ///< the residual stream between layers, and its cotangents
  std::int64_t working = 0; ///< values of the part that runs
  std::int64_t feeds = 0;   ///< token ids, labels and other integers, and the numbers of a step
  std::int64_t derived = 0; ///< values that the prologue computes, and their gradients
  std::int64_t caches = 0;  ///< keys and values of the tokens so far (generation)
  std::int64_t mirrors = 0; ///< host memory: copies of values of a device
  kernel_room kernels;      ///< memory of kernels on a device; nothing without one

  /// Returns the bytes of values that steps compute and are fed, which lie in one block of memory.
  constexpr std::int64_t values() const {
    return saved + streams + working + feeds + derived + caches;
  }
  constexpr std::int64_t total() const {
    return weights + gradients + masters + moments + values() + mirrors + kernels.total();
  }
};

/// Returns the number of tokens of one rank's micro-batch.
constexpr std::int64_t local_tokens(const graph& g) {
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::input && v.from == feed::positions) return local_size(g.ranks, v).n;
  }
  return 0;
}

/// Returns the stage for which amount(stage) is greatest; the first of several.
template <class Amount> constexpr int largest_stage(int pp, Amount amount) {
  int largest = 0;
  auto most = amount(0);
  for (int stage = 1; stage < pp; ++stage)
    if (const auto n = amount(stage); n > most) largest = stage, most = n;
  return largest;
}

/// Returns how many layers of a stage have parameter i of the registry. Of a parameter that stages
/// share, a stage whose parts use it has one copy.
constexpr int held_layers(const registry& r, std::span<const int> layers, int i) {
  const registry::entry& e = r.entries[i];
  if (e.tied) return 0;
  int uses = layers[static_cast<unsigned>(e.part)];
  for (int j = 0; uses == 0 && r.buckets[e.bucket].shared && j < r.entry_count; ++j)
    if (const registry::entry& o = r.entries[j]; o.declared == i)
      uses = layers[static_cast<unsigned>(o.part)] > 0 ? 1 : 0;
  return uses;
}

/// Returns the elements of the parameters of a bucket, or of all, in the flat stores of a stage's
/// rank.
constexpr std::int64_t stored_elements(const registry& r, std::span<const int> layers,
                                       int bucket = -1) {
  std::int64_t n = 0;
  for (int i = 0; i < r.entry_count; ++i)
    if (bucket < 0 || r.entries[i].bucket == bucket)
      n += registry::taken(r.entries[i]) * held_layers(r, layers, i);
  return n;
}
/// Returns the number of a bucket's parameters on a stage, one for each layer.
constexpr std::int64_t stored_parameters(const registry& r, std::span<const int> layers,
                                         int bucket) {
  std::int64_t n = 0;
  for (int i = 0; i < r.entry_count; ++i)
    if (r.entries[i].bucket == bucket) n += held_layers(r, layers, i);
  return n;
}

/// Returns the elements of the gradients that tied uses of one stage collect apart from
/// declarations.
constexpr std::int64_t tied_elements(const registry& r, std::span<const int> layers) {
  std::int64_t n = 0;
  for_each_tie(r, [&](const registry::entry& e, int) {
    if (layers[static_cast<unsigned>(e.part)] != 0) n += aligned_elements(e.count.n);
  });
  return n;
}

/// The elements of the flat stores of one rank; `states` are those of the masters, and of each
/// moment. Behind the weights lie the bytes of encoded ones.
struct store_sizes {
  std::int64_t weights = 0, gradients = 0, states = 0, encoded = 0, origins = 0;
};
/// Returns the sizes of the stores of a registry.
constexpr store_sizes sizes_of(const registry& r) {
  store_sizes s{r.total, r.gradients, r.states, r.encoded};
  for (int k = 0; k < r.bucket_count; ++k)
    s.origins += r.buckets[k].frozen ? 0 : r.buckets[k].origins;
  return s;
}
/// Returns the sizes of the stores of one stage, from the model's registry, on a mesh.
constexpr store_sizes sizes_of(const registry& r, std::span<const int> layers, const mesh& ranks) {
  store_sizes s;
  for (int k = 0; k < r.bucket_count; ++k) {
    const int shares = shares_of(ranks, r.buckets[k].scattered);
    const int part = r.buckets[k].part;
    const std::int64_t held = stored_elements(r, layers, k),
                       many = part < 0 ? 1 : layers[static_cast<unsigned>(part)],
                       n = many == 0 ? 0 : padded_to_shares(held / many, shares) * many;
    (r.buckets[k].of_bytes ? s.encoded : s.weights) += n;
    if (r.buckets[k].frozen) continue;
    s.gradients += n, s.states += n / shares;
    s.origins += stored_parameters(r, layers, k);
  }
  s.gradients += tied_elements(r, layers);
  return s;
}

/// The numbers of the graphs of a run: the stem, the kinds of block and the head, and behind them
/// the update, the head of evaluation and the totals.
inline constexpr int other_parts = 5; ///< graphs beside the kinds of block
constexpr int part_of_update(int kinds) { return kinds + 2; }
constexpr int part_of_evaluation(int kinds) { return kinds + 3; }
constexpr int part_of_totals(int kinds) { return kinds + 4; }

/// The work of a pipeline stage: its uses of the graphs, with the update and the totals, and its
/// steps of training and evaluation.
struct stage_shape {
  list<part_use> uses;
  step_shape training, evaluation;
  list<int> layers;    ///< number of layers of each part, the head's last
  int micros = 1;      ///< micro-batches by which buffers are laid out
  int most_micros = 0; ///< micro-batches of a training step at most; 0: any number

  constexpr ~stage_shape() = default; // nvcc needs it written out, and so the next one
  constexpr stage_shape(const stage_shape&) = default;
  /// Makes the shape of a stage. `most`: micro-batches of a training step on each replica at most;
  /// 0: any number. `lowest`: the lowest layer that is trained, -1 being the stem.
  template <class Kind>
  constexpr stage_shape(int layer_count, int kinds, const layout& ranks, int stage, Kind kind_of,
                        int most = 0, int lowest = -1)
      : layers(kinds + 2), micros(micros_to_lay_out(ranks, most)), most_micros(most) {
    for_each_use(layer_count, kinds, ranks, stage, kind_of, [&](const part_use& u) {
      if (u.chunk > 0 && training.begins[u.chunk] == 0)
        training.begins[u.chunk] = evaluation.begins[u.chunk] = uses.size();
      if (lowest >= 0 && u.layer == lowest) training.lowest = uses.size();
      uses.push(u);
      ++layers[u.part];
    });
    const int n = uses.size();
    training.uses = evaluation.uses = n;
    training.of = evaluation.of = ranks, training.stage = evaluation.stage = stage;
    while (training.lowest_stage + 1 < training.of.virtual_stages() &&
           lowest >= first_layer_of_stage(ranks, layer_count, training.lowest_stage + 1))
      ++training.lowest_stage;
    training.order = schedule_of(ranks), evaluation.order = &forward_only;
    training.update = n;
    uses.push({part_of_update(kinds), layer_count + 1, 0, -1, 0, used_as::update});
    training.totals = evaluation.totals = n + 1;
    uses.push({part_of_totals(kinds), layer_count + 1, 0, -1, 0, used_as::totals});
    if (stage + 1 < ranks.pp) return;
    evaluation.head = n + 2;
    part_use head = uses[n - 1];
    head.part = part_of_evaluation(kinds);
    uses.push(head);
  }
  /// Returns the most micro-batches of a training step that are in flight in a chunk, for any
  /// number of them.
  constexpr int flights(int chunk = 0) const {
    return in_flight(training.order, training.of, training.stage, {false, 0, chunk},
                     {true, 0, chunk}, micros);
  }
  /// Returns the number of micro-batches whose proof holds for any number: one more than are in
  /// flight, if a step may have so many.
  constexpr int micros_to_prove() const {
    const pipeline& p = training.of;
    const int more = flights() + 1,
              legal = p.chunks == 1 ? more : (more + p.stages - 1) / p.stages * p.stages;
    return most_micros > 0 && legal > micros ? micros : legal;
  }
};

/// Returns the buffers of a stage, for its training steps and the evaluations between them, or for
/// evaluations alone. `graphs` are by part, and must outlive the buffers.
constexpr buffers buffers_of(std::span<const planned_graph> graphs, const stage_shape& s,
                             bool training = true) {
  list<step_shape> steps;
  if (training) steps.push(s.training);
  steps.push(s.evaluation);
  return {graphs, s.uses, steps, s.micros};
}

/// Returns the bytes of the stores for training.
constexpr memory_items memory_of_stores(const store_sizes& s, const precision_policy& of) {
  memory_items m;
  m.weights = s.weights * size_of(of.weight);
  if (s.encoded > 0) m.weights = aligned_elements(s.weights) * size_of(of.weight) + s.encoded;
  m.gradients = s.gradients * size_of(of.main_gradient);
  m.masters = of.updates_weights() ? 0 : s.states * size_of(of.master);
  m.moments = 2 * s.states * size_of(of.moment);
  if (of.narrows_moments()) m.moments += s.origins * numbers_of_origin * size_of(dtype::i64);
  return m;
}
/// Returns the bytes of the buffers alone.
constexpr memory_items memory_of_buffers(const buffers& b) {
  memory_items m;
  m.saved = b.bytes(arena_of::saved), m.streams = b.bytes(arena_of::streams);
  m.working = b.bytes(arena_of::working), m.derived = b.bytes(arena_of::derived);
  m.feeds = b.bytes(arena_of::fed), m.caches = b.bytes(arena_of::caches);
  m.mirrors = b.bytes(arena_of::host);
  return m;
}
/// Returns the bytes of one rank of a stage, for training or for evaluation alone.
constexpr memory_items memory_of(const buffers& b, const store_sizes& s, const precision_policy& of,
                                 bool training) {
  memory_items m = memory_of_buffers(b);
  const memory_items held = memory_of_stores(s, of);
  m.weights = held.weights;
  if (!training) return m;
  m.gradients = held.gradients, m.masters = held.masters, m.moments = held.moments;
  return m;
}
constexpr memory_items stage_memory(std::span<const planned_graph> graphs, const stage_shape& s,
                                    const registry& r, const precision_policy& of,
                                    const mesh& ranks, bool training = true) {
  return memory_of(buffers_of(graphs, s, training), sizes_of(r, s.layers, ranks), of, training);
}

} // namespace mc
