// [equations]
// An op of one's own: the squared ReLU (So et al. 2021, Primer).
//   y = max(x, 0)^2,   dx = 2 dy max(x, 0)
// x and y (..., F). Saved: x. Placement: not linear, so no pending sums; any shards.
// [/equations]
#pragma once

// [compiler]
#include <megacpp/graph/adjoint.hpp>
// [/compiler]
// [kernel]
#include <megacpp/kernel/kernel.hpp>
// [/kernel]
// [compiler]

namespace own {
namespace op {

struct squared_relu_in : mc::input_names<squared_relu_in> {
  static constexpr name<0> x{};
  static constexpr name<1> dy{}; // of the gradient
  static constexpr name<2> d{};  // of its fused form
};
struct squared_relu_out : mc::output_names<squared_relu_out> {
  static constexpr name<0> y{};
};
using in = squared_relu_in;

constexpr void squared_relu_grad_rule(mc::inference& c) {
  c.floats({in::x, in::dy}), c.alike(in::dy, in::x);
  c.declare(c.in(in::x));
  place_output(c, 0, mc::algebra::product, {in::x, in::dy});
}
// [form]
/// dx = squared_relu_grad(x, dy) + d, where x has another cotangent d: (x, dy, d), in d's place.
extern const mc::op_info squared_relu_grad_add;
inline constexpr mc::op_info squared_relu_grad{
    .name = "squared_relu_grad",
    .rule = &squared_relu_grad_rule,
    .in_place = in::dy,
    .operands = mc::named<squared_relu_in, squared_relu_out>,
    .fuses = {&squared_relu_grad_add}};
inline constexpr mc::op_info squared_relu_grad_add =
    mc::op::sums_into<squared_relu_grad, in::d>("squared_relu_grad_add", in::d);
// [/form]

constexpr void squared_relu_rule(mc::inference& c) {
  c.floats({in::x});
  c.declare(c.in(in::x));
  place_output(c, 0, mc::algebra::nonlinear, {in::x});
}
constexpr void squared_relu_adjoint(mc::backward& d, const mc::node& n) {
  const mc::value_id dy = d.of(n.out[squared_relu_out::y]), x = n.in[in::x];
  if (dy >= 0 && d.wants(x)) d.give(x, d.b.emit(squared_relu_grad, {x, dy}, n.line), n.line);
}
// [cost]
constexpr mc::work squared_relu_cost(const mc::graph& g, const mc::node& n) { // 2 FLOPs an element
  const mc::value& x = g.at(n.in[in::x]);
  const std::int64_t bytes = local_bytes(g.ranks, x);
  return {2 * local_size(g.ranks, x).n, bytes, bytes};
}
// [/cost]
inline constexpr mc::op_info squared_relu{.name = "squared_relu",
                                          .rule = &squared_relu_rule,
                                          .adjoint = &squared_relu_adjoint,
                                          .cost = &squared_relu_cost,
                                          .cheap = true,
                                          .operands = mc::named<squared_relu_in, squared_relu_out>};

} // namespace op

/// x (..., F): y = max(x, 0)^2, (..., F).
constexpr mc::var squared_relu(mc::var x, mc::source_line line = mc::here()) {
  return {x.b, x.b->emit(op::squared_relu, {x.id}, line)};
}
// [/compiler]
// [kernel]

/// One block of a flat range, by a core's lanes or a CUDA block's threads: y, or dx given dy, to
/// which d is added.
template <class T> struct squared_relu_block {
  std::int64_t n;
  const T *x, *dy, *d; // (n); dy and d may be null
  T* out;              // (n); may be one of them

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    using G = mc::accumulator_t<T>;
    mc::each_in_block<T>(team, block, n, [&](auto i) {
      const auto v = mc::load<G>(x, i), h = max(decltype(v)(G(0)), v); // a NaN stays one
      const auto y = dy == nullptr ? h * h : mc::load<G>(dy, i) * (h + h);
      mc::store(out, i, d == nullptr ? y : mc::round_to<T>(y) + mc::load<G>(d, i));
    });
  }
};

struct squared_relu_kernel {
  using in = op::squared_relu_in;
  using out = op::squared_relu_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::x);
    mc::for_blocks(c.lane(), n,
                   squared_relu_block<T>{n, c.in(in::x), c.in(in::dy), c.in(in::d), c.out(out::y)});
  }
};

} // namespace own
template <> struct mc::kernel_of<&own::op::squared_relu> : own::squared_relu_kernel {};
template <> struct mc::kernel_of<&own::op::squared_relu_grad> : own::squared_relu_kernel {};
template <> struct mc::kernel_of<&own::op::squared_relu_grad_add> : own::squared_relu_kernel {};
// [/kernel]
