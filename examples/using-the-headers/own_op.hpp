// An op of one's own: the squared ReLU (So et al. 2021, Primer).
//
//   y = max(x, 0)^2                          dx = 2 dy max(x, 0)
//
// x and y (..., F). Saved: x. Placement: not linear, so no pending sums; any shards. Work: bound by
// bytes, each operand once.
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/kernel/kernel.hpp>

namespace own {

// --- what the compiler knows -----------------------------------------------------------------

namespace op {

constexpr void squared_relu_grad_rule(mc::inference& c) { // dy, x
  c.declare(c.in(0));
  place_output(c, 0, mc::algebra::product, {0, 1});
}
inline constexpr mc::op_info squared_relu_grad{
    .name = "squared_relu_grad", .rule = &squared_relu_grad_rule, .in_place = 0};

constexpr void squared_relu_rule(mc::inference& c) { // x
  c.declare(c.in(0));
  place_output(c, 0, mc::algebra::nonlinear, {0});
}
constexpr void squared_relu_adjoint(mc::backward& d, const mc::node& n) {
  const mc::value_id dy = d.of(n.out[0]), x = n.in[0];
  if (dy < 0 || !d.wants(x)) return;
  d.give(x, d.b.emit(squared_relu_grad, {dy, x}, n.line), n.line);
}
inline constexpr mc::op_info squared_relu{.name = "squared_relu",
                                          .rule = &squared_relu_rule,
                                          .adjoint = &squared_relu_adjoint,
                                          .in_place = 0,
                                          .cheap = true};

} // namespace op

/// x (..., F): y = max(x, 0)^2, (..., F).
constexpr mc::var squared_relu(mc::var x, int line = __builtin_LINE()) {
  return {x.b, x.b->emit(op::squared_relu, {x.id}, line)};
}

// --- what runs ---------------------------------------------------------------------------------

/// max(0, x); a NaN stays one, since vec's max gives its second operand then.
template <class V> MEGACPP_HD V positive_part(V x) { return max(V(typename V::value_type(0)), x); }

/// y = max(x, 0)^2 for one block of a flat range. y may be x.
template <class T> struct squared_relu_block {
  using G = mc::accumulator_t<T>;
  std::int64_t n;
  const T* x; // (n)
  T* y;       // (n)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    mc::each_in_block<T>(team, block, n, [&](auto i) {
      const auto positive = positive_part(mc::load<G>(x, i));
      mc::store(y, i, positive * positive);
    });
  }
};

/// dx = 2 dy max(x, 0) for one block. dx may be dy.
template <class T> struct squared_relu_dx_block {
  using G = mc::accumulator_t<T>;
  std::int64_t n;
  const T* dy; // (n)
  const T* x;  // (n)
  T* dx;       // (n)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    mc::each_in_block<T>(team, block, n, [&](auto i) {
      const auto positive = positive_part(mc::load<G>(x, i));
      mc::store(dx, i, mc::load<G>(dy, i) * (positive + positive));
    });
  }
};

} // namespace own

template <> struct mc::kernel_of<&own::op::squared_relu> { // x
  template <class T, class Call> static void run(Call& c) {
    mc::for_blocks(c.in_size(0), own::squared_relu_block<T>{c.in_size(0), c.template in<T>(0),
                                                            c.template out<T>(0)});
  }
};
template <> struct mc::kernel_of<&own::op::squared_relu_grad> { // dy, x
  template <class T, class Call> static void run(Call& c) {
    mc::for_blocks(c.in_size(0),
                   own::squared_relu_dx_block<T>{c.in_size(0), c.template in<T>(0),
                                                 c.template in<T>(1), c.template out<T>(0)});
  }
};
