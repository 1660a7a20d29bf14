// The context that all layers of a graph under construction share: the builder, the element types,
// the place of the residual stream, and the integer inputs. Layers hold no layout numbers.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/recipe/batching.hpp>
#include <megacpp/recipe/precision.hpp>

namespace mc {

/// The context of the layers of one part. A part has one context, since that counts its dropouts
/// and caches and adds up its losses.
struct context {
  constexpr context() = default;
  context(const context&) = delete; // a copy would count apart: layers take a mc::context&
  context& operator=(const context&) = delete;

  builder* b = nullptr;
  precision_policy precision;
  place stream =
      invariant; ///< place of the residual stream over tp: S(sequence) under sequence parallelism
  var positions, order, documents,
      token_keys; ///< one number a token, (B, S) i32 over dp and cp; documents may be absent
  /// The order and the documents of the tokens of all cp ranks, for keys that are gathered. Each
  /// rank is fed them, so none is sent. With caches these and `order` are absent.
  var all_order, all_documents;
  int salt = 0;        ///< number of the next dropout of the graph
  int expert_rows = 0; ///< batching::expert_rows
  /// Generation sets this: it drops nothing, by chance or for want of room. Evaluation runs the
  /// graphs of training; a kernel there asks step().dropping whether it drops.
  bool generating = false;
  std::int64_t room = 0; ///< tokens of a sequence in each cache; 0: there are no caches
  var slots;             ///< slots of the tokens in the caches, (B, S) i32; -1: padding
  int caches = 0;        ///< number of the next cache of the graph

  constexpr const mesh& ranks() const { return b->g.ranks; }

  /// Adds a summed loss of this part to the loss of training.
  constexpr void add_side_loss(var loss, source_line line = here()) {
    if (loss.id < 0) return b->fail(fault::S008, line, "side loss", -1, "it has no value");
    side_loss_ = side_loss_.id < 0 ? loss : side_loss_ + loss;
  }
  constexpr var side_loss() const { return side_loss_; }

private:
  var side_loss_;
};

/// Returns the placement of the residual stream: batch over dp, sequence over cp and, under
/// sequence parallelism, over tp.
constexpr placement stream_placement(place over_tp) {
  placement p;
  p[axis::dp] = shard(dim::batch);
  p[axis::cp] = shard(dim::sequence);
  p[axis::tp] = over_tp;
  return p;
}

constexpr placement on(axis a, place p) {
  placement x;
  x[a] = p;
  return x;
}

/// Returns a parameter for use by ranks that see different data: its gradient is a pending sum over
/// dp and cp, which is reduced once a step.
constexpr var weight(context& c, const char* scope, const char* name,
                     std::initializer_list<extent> dims, placement stored, parameter_info info,
                     source_line line = here()) {
  const var w = c.b->parameter(scope, name, c.precision.weight, dims, stored, info, line);
  return to(to(w, axis::dp, replicate, line), axis::cp, replicate, line);
}

constexpr parameter_info normal_weights(double std) { return {-1, init::normal, std, true}; }
constexpr parameter_info ones() { return {-1, init::ones}; }
constexpr parameter_info zeros() { return {-1, init::zeros}; }

} // namespace mc
