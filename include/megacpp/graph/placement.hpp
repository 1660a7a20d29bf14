// Placement: for every mesh axis, how one tensor lies on the ranks of that axis.
//
//   state       meaning                                            its cotangent is
//   invariant   same value, one logical computation                invariant
//   replicate   same value, used differently by each rank          partial
//   partial     pending sum                                        replicate
//               pending maximum                                    none
//   shard(dim)  split along a named dim                            shard(dim)
//
// The four states and their duality are those of varying-manual-axes types (JAX shard_map,
// "invarying / varying / unreduced / reduced") and of spmd_types.
#pragma once

#include <megacpp/graph/wire.hpp>

#include <cstdint>

namespace mc {

/// The names of tensor dims. One tensor never has the same name twice.
enum class dim : std::uint8_t {
  none,
  batch,
  sequence,
  hidden,
  heads,
  kv_heads,
  head_dim,
  ffn,
  vocabulary,
  vocabulary_part,
  position,
  expert,
  rows,
  elements,
  copies,
  choices,   ///< experts that a token goes to
  sequences, ///< sequences of any rank that send tokens to the experts of one rank
  replicas,  ///< one element for each rank of an axis of unknown size
  layers,    ///< layers in a bucket of the stores, each with as many elements
  adapter,   ///< columns of A x, in the factors of an adapter (recipe/lora.hpp)
  scales     ///< numbers by which the codes of a matrix are decoded (op/nf4.hpp)
};

constexpr const char* name_of(dim d) {
  constexpr const char* names[] = {
      "-",      "batch",      "sequence",        "hidden",   "heads",  "kv_heads", "head_dim",
      "ffn",    "vocabulary", "vocabulary_part", "position", "expert", "rows",     "elements",
      "copies", "choices",    "sequences",       "replicas", "layers", "adapter",  "scales"};
  return names[static_cast<int>(d)];
}

enum class state : std::uint8_t { invariant, replicate, partial, shard };

/// The state of a tensor on one axis. A shard has a dim, and the level of this axis among the axes
/// that shard that dim, 0 for the outermost; only the innermost may be gathered or re-sharded. A
/// partial value is a pending sum or a pending maximum.
struct place {
  state s = state::invariant;
  dim d = dim::none;
  std::int8_t level = 0;
  reduction by = reduction::sum;

  constexpr bool operator==(const place&) const = default;
  constexpr bool is_shard(dim x) const { return s == state::shard && d == x; }
  constexpr bool is_pending_maximum() const {
    return s == state::partial && by == reduction::maximum;
  }
};

/// The states as places: to(x, axis::tp, replicate). graph/letters.hpp abbreviates them to letters.
inline constexpr place invariant{}, replicate{state::replicate}, partial{state::partial};
/// A pending maximum of fp32 numbers. Only to() takes one, and no gradient passes through it.
inline constexpr place partial_maximum{state::partial, dim::none, 0, reduction::maximum};
/// Returns the place of a tensor that is sharded along a named dim.
constexpr place shard(dim d) { return {state::shard, d, 0}; }

/// Returns the place that an operand without the sharded dim needs beside one at p: replicate
/// beside a shard (each rank uses the operand for its own shard, so the gradient is a pending sum),
/// invariant beside invariant.
constexpr place beside(place p) { return p.s == state::shard ? replicate : p; }

constexpr place cotangent(place p) {
  if (p.s == state::replicate) return partial;
  if (p.s == state::partial) return replicate;
  return p;
}

/// The placement of a tensor: its place on each axis.
struct placement {
  place at[axes];

  constexpr place& operator[](axis a) { return at[static_cast<int>(a)]; }
  constexpr const place& operator[](axis a) const { return at[static_cast<int>(a)]; }
  constexpr bool operator==(const placement&) const = default;

  /// Returns how many axes shard this dim.
  constexpr int levels(dim d) const {
    int n = 0;
    for (const place& p : at) n += p.is_shard(d);
    return n;
  }
};

constexpr placement cotangent(placement p) {
  for (place& q : p.at) q = cotangent(q);
  return p;
}

/// Returns whether a redistribution from -> to exists. Shard -> partial (zero-pad) exists only as
/// the derived adjoint of replicate -> shard.
constexpr bool redistributes(place from, place to, bool derived) {
  using enum state;
  switch (from.s) {
  case invariant: return to.s == replicate || to.s == shard;
  case replicate: return to.s == shard;
  case partial: return to.s != partial;
  case shard: return to.s != partial || (derived && to == mc::partial);
  }
  return false;
}

} // namespace mc
