// What the cases of operands by name share: an op that hands its input on. Each case writes the op's
// kernel.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/graph/adjoint.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/run/interpreted_part.hpp>

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
