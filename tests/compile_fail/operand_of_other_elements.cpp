// expect-error: MEGA-B003
// expect-text: other elements than its name says
//
// A kernel that takes positions for numbers of the type that the node computes in.
// Host compilers only: the kernels of the CPU are no CUDA.
#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;

struct shifted_in : input_names<shifted_in> {
  static constexpr name<0> x{};
  static constexpr name<1> positions{}; // i32, as the rule says
};
struct shifted_out : output_names<shifted_out> {
  static constexpr name<0> y{};
};
constexpr void shifted_rule(inference& c) {
  c.floats({shifted_in::x});
  c.typed({shifted_in::positions}, dtype::i32);
  c.declare(c.in(shifted_in::x));
  place_output(c, 0, algebra::product, {shifted_in::x});
}
constexpr void shifted_adjoint(backward& d, const node& n) {
  if (d.of(n.out[0]) >= 0) d.give(n.in[0], d.of(n.out[0]), n.line);
}
inline constexpr op_info shifted{.name = "shifted",
                                 .rule = &shifted_rule,
                                 .adjoint = &shifted_adjoint,
                                 .operands = named<shifted_in, shifted_out>};

template <> struct mc::kernel_of<&shifted> {
  using in = shifted_in;
  using out = shifted_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::x);
#ifdef MEGACPP_EXPECT_ERROR
    const auto* x = c.in(in::positions);
#else
    const auto* x = c.in(in::x);
#endif
    for_blocks(c.device(), n, rows::copy_block<T>{n, reinterpret_cast<const T*>(x), c.out(out::y)});
  }
};

struct shifting : gpt {
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, {x.b, x.b->emit(shifted, {x.id, c.positions.id}, here())});
  }
};

struct run : small_run {
  static constexpr shifting model{small()};
  static constexpr mc::layout layout{};
};
const program_view program_of_run = compiled_program<run>("run");
