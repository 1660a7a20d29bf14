// expect-error: MEGA-P007
// expect-text: gated(linear@
//
// Two matrices are packed into one, whose rows tp cuts evenly: one rank has all gates, and the other
// what they are to gate (NVIDIA/Megatron-LM#1989: packed rows of queries, keys, values and gates cut
// across, https://github.com/NVIDIA/Megatron-LM/pull/1989; hpcaitech/ColossalAI#817: cut elsewhere
// by another number of ranks). An op that tells elements apart by where they stand in a dim needs
// the whole of it; matrices of their own are cut each for itself.
#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>
#include <megacpp/pass/verify.hpp>
#include <megacpp/run/report.hpp>

using namespace mc;

constexpr void gated_rule(inference& c) { // x (..., 2 F): gates, and behind them what they gate
  value& y = c.declare(c.in(0));
  y.dims[y.rank - 1].n /= 2;
  place_output(c, 0, algebra::nonlinear, {0}, {dim::ffn});
}
inline constexpr op_info gated_op{.name = "gated", .rule = &gated_rule};

constexpr graph built() {
  builder b{mesh(layout{2})};
  const extent rows{dim::rows, 8}, hidden{dim::hidden, 16};
  const var x = b.input(feed::stream, "x", dtype::f32, {rows, hidden}, on(axis::tp, R));
  const auto matrix = [&](const char* name, int n) {
    return b.parameter("mlp", name, dtype::f32, {{dim::ffn, n}, hidden}, on(axis::tp, S(dim::ffn)),
                       normal_weights(1));
  };
#ifdef MEGACPP_EXPECT_ERROR
  const var both = linear(x, matrix("packed", 64));
  b.g.outputs[0] = b.emit(gated_op, {both.id}, here()); // expect-line
#else
  b.g.outputs[0] = swiglu(linear(x, matrix("gate", 32)), linear(x, matrix("up", 32))).id;
#endif
  return b.g;
}

struct mlp {
  static constexpr graph forward = built();
  static constexpr fault_record wrong = forward.wrong;
};
static_assert(reported<mlp, mlp>);
