// The numbers of a run that shape the graphs of its parts, and the feeds that a part has by them.
// Training, prefill and decode differ by their setup alone.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/recipe/batching.hpp>
#include <megacpp/recipe/frozen.hpp>
#include <megacpp/recipe/lora.hpp>
#include <megacpp/recipe/numerics.hpp>
#include <megacpp/recipe/precision.hpp>
#include <megacpp/recipe/recompute.hpp>

namespace mc {

/// The kinds of a part: what it computes.
enum class part_kind : std::uint8_t { stem, block, loss, logits };

/// The numbers of a run that shape its graphs.
struct setup {
  layout ranks{.at = {}}; // these braces are no line of a run
  batching batch{.at = {}};
  precision_policy precision = dtype::f32;
  recompute recompute_policy = recompute::none;
  numerics sums = numerics::fast;
  bool generating = false; ///< nothing is dropped, by chance or for want of room
  std::int64_t room = 0;   ///< tokens of a sequence in the caches of keys and values; 0: no caches
  mc::frozen frozen{};     ///< parameters that training does not change
  lora adapter{};          ///< factors beside linear layers, which alone are trained then
  /// Adapters that generation holds side by side, each with the ranks of `adapter`. A token has one
  /// of them or none. 0: all tokens have the only one.
  int held_adapters = 0;

  constexpr place stream() const {
    return ranks.sequence_parallel ? shard(dim::sequence) : invariant;
  }
};

/// Returns whether a part is fed f, by a session in training and evaluation or by a generator. The
/// graph of a part has no other inputs but the totals that a loss is added to.
constexpr bool fed(part_kind part, feed f, const setup& s) {
  switch (f) {
  case feed::positions:
  case feed::token_keys:
  case feed::seed:
  case feed::step: return true;
  case feed::documents: return s.batch.packed;
  case feed::order:
  case feed::all_order: return s.room == 0; // caches know their tokens' places
  case feed::all_documents: return s.room == 0 && s.batch.packed;
  case feed::tokens: return part == part_kind::stem || part == part_kind::block;
  case feed::stream: return part != part_kind::stem;
  case feed::labels: return part == part_kind::loss;
  case feed::last: return part == part_kind::logits;
  case feed::key_cache:
  case feed::value_cache:
  case feed::slots: return s.room > 0;
  default: return false;
  }
}

/// The integers of a feed: their kind, their name, and a bound that they are below; 0: none.
struct fed_integers {
  integer_kind kind{};
  const char* name = "";
  std::int64_t below = 0;
};
constexpr fed_integers integers_of(feed f, const setup& s, std::int64_t vocabulary) {
  switch (f) {
  case feed::positions:
    return {integer_kind::positions, "positions", s.room > 0 ? s.room : s.batch.sequence};
  case feed::order: return {integer_kind::order, "order", s.batch.sequence};
  case feed::all_order: return {integer_kind::order, "all_order", s.batch.sequence};
  case feed::all_documents: return {integer_kind::documents, "all_documents"};
  case feed::token_keys: return {integer_kind::token_keys, "token_keys"};
  case feed::documents: return {integer_kind::documents, "documents"};
  case feed::tokens: return {integer_kind::tokens, "tokens", vocabulary};
  case feed::labels: return {integer_kind::labels, "labels", vocabulary};
  case feed::last: return {integer_kind::last, "last", s.batch.sequence};
  case feed::slots: return {integer_kind::slots, "slots", s.room};
  default: return {};
  }
}

/// The kinds of block that a model's layers have, in the model's order. A kind without layers is
/// not built.
template <int Kinds> struct kind_list {
  int kinds[Kinds]{};
  int count = 0;

  /// Returns the model's number of the i-th kind in use; 0 if i is out of range, as for the stem
  /// and the head.
  constexpr int kind(int i) const { return i < 0 || i >= count ? 0 : kinds[i]; }
  constexpr int index(int kind_of_model) const {
    int i = 0;
    while (i < count - 1 && kinds[i] != kind_of_model) ++i;
    return i;
  }
};

/// The most layers that a compiler counts; more are an error (MEGA-C001).
inline constexpr int max_layers = 512;
template <class Model> constexpr int layers_of(const Model& m) {
  return m.layers < max_layers ? static_cast<int>(m.layers) : max_layers;
}

/// The most kinds of block of a program: those of its model, and behind them the same once more,
/// for layers that have no adapter where others have one.
template <class Model> inline constexpr int most_kinds = 2 * Model::kinds;
/// Returns the kind of block of a layer, of that list.
template <class Model> constexpr int kind_of_layer(const Model& m, const lora& adapter, int layer) {
  const bool bare = adapter.rank > 0 && !adapter.is_in(layer);
  return m.kind_of(layer) + (bare ? Model::kinds : 0);
}

template <class Model>
constexpr kind_list<most_kinds<Model>> used_kinds(const Model& m, const lora& adapter = {}) {
  bool used[most_kinds<Model>]{};
  for (int l = 0; l < layers_of(m); ++l)
    if (const int k = m.kind_of(l); k >= 0 && k < Model::kinds)
      used[kind_of_layer(m, adapter, l)] = true;
  kind_list<most_kinds<Model>> list;
  for (int k = 0; k < most_kinds<Model>; ++k)
    if (used[k]) list.kinds[list.count++] = k;
  if (list.count == 0) list.kinds[list.count++] = Model::kinds - 1;
  return list;
}

/// Returns the setup of generation: each of `sequences` has `tokens` new tokens, whose keys and
/// values are kept in caches of `room` tokens; without room, sequences are whole. Heads stay
/// sharded over tp as in training. One token cannot be sharded, so all ranks of cp compute the same
/// sequence. Experts take every row in one round, so that a token's sum has one order.
constexpr setup for_generation(setup s, int sequences, int tokens, std::int64_t room) {
  s.batch = {sequences, tokens, false, 1 << 30};
  s.ranks.cp = 1, s.ranks.sequence_parallel = false;
  s.generating = true, s.room = room;
  return s;
}

} // namespace mc
