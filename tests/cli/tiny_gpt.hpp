// A program for the tests of the command line: a vocabulary of 128 takes ASCII as bytes, and any
// text of at most 128 distinct bytes as characters.
#pragma once

#include <megacpp/megacpp.hpp>

struct tiny_gpt {
  static constexpr mc::gpt model{.layers = 2,
                                 .hidden = 32,
                                 .heads = 2,
                                 .ffn = 64,
                                 .vocabulary = 128,
                                 .positions = 32,
                                 .bias = false};
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{.micro = 4, .sequence = 32};
  using precision = mc::fp32;
  using device = mc::cpu;
};
