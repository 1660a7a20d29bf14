// Three ops of a user: a number that the device makes; an op whose kernel needs that number on the
// host, outside of any region; and a parameter that is read beside that number, whose gradient no
// op adds by itself.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>

#include <cstdint>

namespace mc_test {

struct number_in : mc::input_names<number_in> {
  static constexpr name<0> x{};
};
struct number_out : mc::output_names<number_out> {
  static constexpr name<0, mc::element::i32> n{};
};
constexpr void number_rule(mc::inference& c) {
  c.floats({number_in::x});
  c.declare(mc::dtype::i32, {{mc::dim::elements, 1}});
}
inline constexpr mc::op_info made_number{.name = "made_number",
                                         .rule = &number_rule,
                                         .outputs_without_gradient = 1,
                                         .operands = mc::named<number_in, number_out>};
struct filled_in : mc::input_names<filled_in> {
  static constexpr name<0> x{};
  static constexpr name<1, mc::element::i32> n{};
};
struct filled_out : mc::output_names<filled_out> {
  static constexpr name<0> y{};
};
constexpr void filled_rule(mc::inference& c) {
  c.floats({filled_in::x});
  c.declare(c.in(filled_in::x));
  place_output(c, 0, mc::algebra::nonlinear, {filled_in::x});
}
inline constexpr mc::op_info filled{.name = "filled",
                                    .rule = &filled_rule,
                                    .outputs_without_gradient = 1,
                                    .seen = filled_in::n,
                                    .operands = mc::named<filled_in, filled_out>};
struct taken_in : mc::input_names<taken_in> {
  static constexpr name<0, mc::element::i32> n{};
  static constexpr name<1> a{};
};
struct taken_out : mc::output_names<taken_out> {
  static constexpr name<0> y{};
};
constexpr void taken_rule(mc::inference& c) {
  c.floats({taken_in::a});
  c.declare(c.in(taken_in::a));
  place_output(c, taken_out::y, mc::algebra::nonlinear, {taken_in::a});
}
constexpr void taken_adjoint(mc::backward& d, const mc::node& n) {
  d.give(n.in[taken_in::a], d.of(n.out[taken_out::y]), n.line);
}
inline constexpr mc::op_info taken{.name = "taken",
                                   .rule = &taken_rule,
                                   .adjoint = &taken_adjoint,
                                   .typed_by = taken_in::a,
                                   .operands = mc::named<taken_in, taken_out>};
struct three_row {
  std::int32_t* n;
  template <class Team> void operator()(const Team& /*team*/, std::int64_t /*row*/) const {
    *n = 3;
  }
};

} // namespace mc_test

template <> struct mc::kernel_of<&mc_test::made_number> {
  template <class, class Call> static void run(Call& c) {
    for_one(c.lane(), mc_test::three_row{c.out(mc_test::number_out::n)});
  }
};
template <> struct mc::kernel_of<&mc_test::taken> {
  template <class, class Call> static void run(Call& c) {
    rows::cast(c.lane(), c.size(mc_test::taken_in::a), c.in(mc_test::taken_in::a),
               c.out(mc_test::taken_out::y));
  }
};
template <> struct mc::kernel_of<&mc_test::filled> {
  template <class T, class Call> static void run(Call& c) {
    const std::int32_t n = *c.mirrored(mc_test::filled_in::n);
    rows::fill(c.lane(), c.size(mc_test::filled_in::x), convert<T>(static_cast<float>(n) / 8),
               c.out(mc_test::filled_out::y));
  }
};
