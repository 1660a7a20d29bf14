// What the cases of operands by name share: an op that hands its input on, and a run of a GPT that
// has this op in each block. Each case writes the op's kernel.
#pragma once

#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;

struct handed_on_in : input_names<handed_on_in> {
  static constexpr name<0> x{};
  static constexpr name<1> positions{}; // i32, as the rule says
};
struct handed_on_out : output_names<handed_on_out> {
  static constexpr name<0> y{};
};
constexpr void handed_on_rule(inference& c) {
  c.floats({handed_on_in::x});
  c.typed({handed_on_in::positions}, dtype::i32);
  c.declare(c.in(handed_on_in::x));
  place_output(c, 0, algebra::product, {handed_on_in::x});
}
constexpr void handed_on_adjoint(backward& d, const node& n) {
  if (d.of(n.out[0]) >= 0) d.give(n.in[0], d.of(n.out[0]), n.line);
}
inline constexpr op_info handed_on{.name = "handed_on",
                                   .rule = &handed_on_rule,
                                   .adjoint = &handed_on_adjoint,
                                   .operands = named<handed_on_in, handed_on_out>};

struct handing_on : gpt {
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, {x.b, x.b->emit(handed_on, {x.id, c.positions.id}, here())});
  }
};

struct run : small_run {
  static constexpr handing_on model{small()};
  static constexpr mc::layout layout{};
};
