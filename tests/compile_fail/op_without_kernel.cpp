// expect-error: MEGA-B001
// expect-text: nameless(
//
// An op of one's own with a rule, and no kernel for the device. Host compilers only: the kernels of
// the CPU are no CUDA.
// It stands alone: the compiler gives its error at the end of a source.
#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;

constexpr void nameless_rule(inference& c) {
  c.declare(c.in(0));
  place_output(c, 0, algebra::sum, {0});
}
constexpr void nameless_adjoint(backward& d, const node& n) {
  if (d.of(n.out[0]) >= 0) d.give(n.in[0], d.of(n.out[0]), n.line);
}
inline constexpr op_info nameless{
    .name = "nameless", .rule = &nameless_rule, .adjoint = &nameless_adjoint};

struct unfinished : gpt {
  constexpr var block(context& c, int kind, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    x = {x.b, x.b->emit(nameless, {x.id}, here())}; // expect-line
#endif
    return gpt::block(c, kind, x);
  }
};

struct run : small_run {
  static constexpr unfinished model{small()};
  static constexpr mc::layout layout{};
};
const program_view program_of_run = compiled_program<run>("run");
