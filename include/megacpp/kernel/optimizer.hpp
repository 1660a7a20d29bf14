// Kernels of op/optimizer.hpp.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/op/optimizer.hpp>

namespace mc {

template <> struct kernel_of<&op::add_gradient> { // g, h
  template <class G, class Call> static void run(Call& c) {
    G *g = c.template in_out<G>(0), *h = c.template in_out<G>(1);
    rows::add(c.device(), c.in_size(0), g, h, g);
    rows::fill(c.device(), c.in_size(0), G(0), h);
  }
};

template <> struct kernel_of<&op::reduce_gradient> { // g
  template <class G, class Call> static void run(Call& c) {
    G* g = c.template in_out<G>(0);
    c.comm().run(exchange::all_reduce(c.template attr<op::reduction>().over, dtype_of<G>, g, g,
                                      c.in_size(0), c.described().line));
  }
};

template <> struct kernel_of<&op::scatter_gradient> { // g, the rank's share of it
  template <class G, class Call> static void run(Call& c) {
    c.comm().run(exchange::reduce_scatter(c.template attr<op::reduction>().over, dtype_of<G>,
                                          c.template in<G>(0), c.template in_out<G>(1),
                                          c.in_size(1), c.described().line));
  }
};

template <> struct kernel_of<&op::gather_weight> { // the rank's share of w, w
  template <class T, class Call> static void run(Call& c) {
    c.comm().run(exchange::all_gather(c.template attr<op::reduction>().over, dtype_of<T>,
                                      c.template in<T>(0), c.template in_out<T>(1), c.in_size(0),
                                      c.described().line));
  }
};

template <> struct kernel_of<&op::sum_of_squares> {
  template <class G, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return rows::sum_squares_parts(c.in_size(0)) * std::int64_t{sizeof(double)};
  }
  template <class G, class Call> static void run(Call& c) {
    rows::sum_squares(c.device(), c.in_size(0), c.template in<G>(0),
                      reinterpret_cast<double*>(c.scratch()), c.template out<double>(0));
  }
};

template <>
struct kernel_of<&op::clip_factor> { // token count, summed loss, sums of squares -> factor, norm
  template <class T, class Call> static void run(Call& c) {
    static_assert(max_inputs - 2 <= rows::clip_factor::most_parts);
    rows::clip_factor f{};
    f.clip = c.constants().clip;
    f.count = c.template in<double>(0), f.loss = c.template in<double>(1);
    for (int k = 2; k < max_inputs; ++k)
      if (c.has(k)) f.squares[f.parts++] = c.template in<double>(k);
    f.factor = c.template out<double>(0), f.norm = c.template out<double>(1);
    for_one(c.device(), f);
  }
};

template <>
struct kernel_of<&op::adamw> { // gradient, master, moments, weight, factor, learning rate, step
  /// The factors lie before a byte of each block.
  static constexpr std::int64_t room_of_factors = 128;
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return room_of_factors + blocks_of(c.in_size(0));
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    static_assert(sizeof(rows::adamw_factors<G>) <= room_of_factors);
    const auto& s = c.constants();
    auto* const factors = reinterpret_cast<rows::adamw_factors<G>*>(c.scratch());
    for_one(c.device(), rows::factors_of_step<G>{
                            s.beta1, s.beta2, s.epsilon,
                            c.template attr<op::adamw_attributes>().decay ? s.weight_decay : 0.0,
                            c.template in<std::int64_t>(7), c.template in<double>(6),
                            c.template in<double>(5), factors});
    rows::adamw<T>(c.device(), c.in_size(0), factors, c.template in<G>(0), c.template in_out<G>(1),
                   c.template in_out<G>(2), c.template in_out<G>(3), c.template in_out<T>(4),
                   reinterpret_cast<std::uint8_t*>(c.scratch()) + room_of_factors,
                   c.template out<double>(0));
  }
};

template <> struct kernel_of<&op::balance_step> { // load, master, weight, factor
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t n = c.in_size(0);
    for_blocks(
        c.device(), n,
        rows::balance_block<T>{n, static_cast<G>(c.template attr<op::balance_attributes>().rate),
                               c.template in<G>(0), c.template in<double>(3),
                               c.template in_out<G>(1), c.template in_out<T>(2)});
  }
};

} // namespace mc
