// Precision policies: the element type for each role that a value can have.
//
//   policy       activations, weights,  statistics, main gradients, masters, moments, wire, loss
//                and their gradients
//   fp32         f32                    f32
//   bf16_mixed   bf16                   f32; products accumulate in f32
//   bf16_moments bf16                   f32, but for moments: bf16, rounded stochastically
//   fp64         f64                    f64 (tests)
#pragma once

#include <megacpp/num/dtype.hpp>

namespace mc {

/// The element types of a run, one for each role. Graphs, stores and files ask for a role.
struct precision_policy {
  dtype activation = dtype::f32;    ///< values between ops
  dtype weight = dtype::f32;        ///< weights as ops read them
  dtype gradient = dtype::f32;      ///< cotangents of activations
  dtype main_gradient = dtype::f32; ///< gradients of weights, which all micro-batches add to
  dtype master = dtype::f32;        ///< weights as the optimizer updates them
  dtype moment = dtype::f32;        ///< the two moments of AdamW; a type narrower than sums is
                                    ///< rounded up or down at random, so that small changes are not
                                    ///< lost
  dtype statistic = dtype::f32;     ///< sums of the loss
  dtype wire = dtype::f32;          ///< main gradients on their way from rank to rank

  constexpr precision_policy() = default;
  /// Makes a policy with values of one type, and with sums in the type that sums of such values
  /// have.
  constexpr precision_policy(dtype values) // NOLINT(google-explicit-constructor): it is one
      : activation(values),
        weight(values),
        gradient(values),
        main_gradient(accumulator_of(values)),
        master(accumulator_of(values)),
        moment(accumulator_of(values)),
        statistic(accumulator_of(values)),
        wire(accumulator_of(values)) {}

  /// Returns whether moments are narrower than the type in which they are computed.
  constexpr bool narrows_moments() const { return size_of(moment) < size_of(main_gradient); }
  /// Returns whether masters are the weights themselves.
  constexpr bool updates_weights() const { return weight == master; }
  friend constexpr bool operator==(const precision_policy&, const precision_policy&) = default;
};

/// The precisions that a run can name.
struct fp32 {
  static constexpr precision_policy policy = dtype::f32;
};
struct bf16_mixed {
  static constexpr precision_policy policy = dtype::bf16;
};
struct bf16_moments {
  static constexpr precision_policy policy = [] {
    precision_policy p = dtype::bf16;
    p.moment = dtype::bf16;
    return p;
  }();
};
struct fp64 {
  static constexpr precision_policy policy = dtype::f64;
};

} // namespace mc
