// A run of a GPT that has the op of handed_on.hpp in each block.
#pragma once

#include "handed_on.hpp"
#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

struct handing_on : gpt {
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, {x.b, x.b->emit(handed_on, {x.id, c.positions.id}, here())});
  }
};

struct run : small_run {
  static constexpr handing_on model{small()};
  static constexpr mc::layout layout{};
};
