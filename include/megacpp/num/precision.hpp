// Precision policies: which element type activations, weights and gradients have.
//
//   policy       activations, weights   statistics, gradients, masters, moments, loss
//   fp32         f32                    f32
//   bf16_mixed   bf16                   f32; products accumulate in f32
//   fp64         f64                    f64 (tests)
#pragma once

#include <megacpp/num/dtype.hpp>

namespace mc {

struct fp32 {
  static constexpr dtype type = dtype::f32;
  static constexpr const char* name = "fp32";
};
struct bf16_mixed {
  static constexpr dtype type = dtype::bf16;
  static constexpr const char* name = "bf16_mixed";
};
struct fp64 {
  static constexpr dtype type = dtype::f64;
  static constexpr const char* name = "fp64";
};

} // namespace mc
