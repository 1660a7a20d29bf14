// What every layer of a graph under construction shares: the builder, the element type, the state
// of the residual stream, and the integer inputs. Layers hold no layout numbers.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/recipe/precision.hpp>

namespace mc {

/// Micro-batch and sequence of one rank's data-parallel replica, in samples and tokens.
struct batching {
  int micro = 1;
  int sequence = 1024;
  bool packed = false;   ///< documents are packed: attention stays within a document
  int expert_rows = 0;   ///< rows that go to a rank's experts at once; 0: 1.25 times the average
  int micro_batches = 0; ///< the most of a step, on each replica; 0: any number
  written_at at = here();

  constexpr source_line line() const { return at.outside(__FILE__); }
};

/// One of each part: what counts its dropouts and caches and collects its losses does so once.
struct context {
  constexpr context() = default;
  context(const context&) = delete; // a copy would count apart: take it as mc::context&
  context& operator=(const context&) = delete;

  builder* b = nullptr;
  precision_policy precision;
  place stream =
      invariant; ///< of the residual stream over tp: S(sequence) under sequence parallelism
  var positions, order, documents,
      token_keys; ///< (B, S) i32, sharded over dp and cp; documents may be absent
  /// The same of all cp ranks, for what they gather: a rank is fed them, so that none is sent. With
  /// caches these and `order` are absent.
  var all_order, all_documents;
  int salt = 0;        ///< tells the dropouts of one graph apart
  int expert_rows = 0; ///< of batching
  /// True in generation alone: nothing is dropped out, by chance or for want of room. Evaluation
  /// runs the graphs of training; what a kernel leaves out there asks step().dropping.
  bool generating = false;
  std::int64_t room = 0; ///< tokens of a sequence that each cache holds; 0: there are no caches
  var slots;             ///< (B, S) i32: where in the caches the tokens go; -1: padding
  int caches = 0;        ///< tells the caches of one graph apart

  constexpr const mesh& ranks() const { return b->g.ranks; }

  /// A summed loss of the part's own joins the one loss of training, whatever has joined it before.
  constexpr void add_side_loss(var loss, source_line line = here()) {
    if (loss.id < 0) return b->fail(fault::S008, line, "side loss", -1, "it has no value");
    side_loss_ = side_loss_.id < 0 ? loss : side_loss_ + loss;
  }
  constexpr var side_loss() const { return side_loss_; }

private:
  var side_loss_;
};

/// Where the residual stream lies: batch over dp, sequence over cp and, under sequence parallelism,
/// tp.
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

/// A parameter as the ranks that see different data use it: its gradient is a pending sum over dp
/// and cp, reduced once a step.
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
