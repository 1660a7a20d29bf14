// A run: the model's numbers, the layout, the batch, the precision. Ready for one rank.
#pragma once

// [run]
#include "own_family.hpp"

#include <megacpp/megacpp.hpp>

struct own_run {
  static constexpr own::decoder model{};
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{.micro = 8, .sequence = 128};
  using precision = mc::fp32;
  using device = mc::cpu;
  static constexpr auto recompute = mc::recompute::none;
};
static_assert(mc::program<own_run>::parameters == 836'736);
// [/run]

/// The same model over eight ranks: checked and planned here, run by no communicator yet.
// [on-eight]
struct own_run_on_eight {
  static constexpr own::decoder model{};
  static constexpr mc::layout layout{.tp = 4, .cp = 2, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 8, .sequence = 128};
  using precision = mc::bf16_mixed;
  using device = mc::cpu;
  static constexpr auto recompute = mc::recompute::selective;
};
static_assert(mc::program<own_run_on_eight>::ok);
// [/on-eight]
