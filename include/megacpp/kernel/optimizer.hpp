// Kernels of op/optimizer.hpp.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/op/optimizer.hpp>

#include <algorithm>
#include <cmath>
#include <limits>

namespace mc {

template <> struct kernel_of<&op::add_gradient> { // g, h
  template <class G, class Call> static void run(Call& c) {
    G *g = c.template in_out<G>(0), *h = c.template in_out<G>(1);
    rows::add(c.in_size(0), g, h, g);
    rows::fill(c.in_size(0), G(0), h);
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
    return (c.in_size(0) / rows::sum_squares_elements + 1) * std::int64_t{sizeof(double)};
  }
  template <class G, class Call> static void run(Call& c) {
    *c.template out<double>(0) = rows::sum_squares(c.in_size(0), c.template in<G>(0),
                                                   reinterpret_cast<double*>(c.scratch()));
  }
};

template <>
struct kernel_of<&op::clip_factor> { // token count, summed loss, sums of squares -> factor, norm
  template <class T, class Call> static void run(Call& c) {
    double squares = 0;
    for (int k = 2; k < max_inputs; ++k)
      if (c.has(k)) squares += *c.template in<double>(k);
    const double count = *c.template in<double>(0), loss = *c.template in<double>(1),
                 norm = std::sqrt(squares) / count, clip = c.constants().clip;
    *c.template out<double>(0) =
        !std::isfinite(norm) || !std::isfinite(loss)
            ? std::numeric_limits<double>::quiet_NaN()
            : (clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0) / count;
    *c.template out<double>(1) = norm;
  }
};

template <>
struct kernel_of<&op::adamw> { // gradient, master, moments, weight, factor, learning rate, step
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return blocks_of(c.in_size(0));
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    double& broken = *c.template out<double>(0);
    broken = 0;
    if (!std::isfinite(*c.template in<double>(5))) return;
    const auto& s = c.constants();
    const auto factors = rows::adamw_step<G>(
        *c.template in<std::int64_t>(7) + 1, *c.template in<double>(6), s.beta1, s.beta2, s.epsilon,
        c.template attr<op::adamw_attributes>().decay ? s.weight_decay : 0.0,
        *c.template in<double>(5));
    broken = static_cast<double>(rows::adamw<T>(c.in_size(0), factors, c.template in<G>(0),
                                                c.template in_out<G>(1), c.template in_out<G>(2),
                                                c.template in_out<G>(3), c.template in_out<T>(4),
                                                reinterpret_cast<std::uint8_t*>(c.scratch())));
  }
};

template <> struct kernel_of<&op::balance_step> { // load, master, weight, factor
  template <class T, class Call> static void run(Call& c) {
    if (!std::isfinite(*c.template in<double>(3))) return;
    using G = accumulator_t<T>;
    const G *load = c.template in<G>(0),
            rate = static_cast<G>(c.template attr<op::balance_attributes>().rate);
    G* master = c.template in_out<G>(1);
    T* weight = c.template in_out<T>(2);
    for (std::int64_t i = 0; i < c.in_size(0); ++i) {
      master[i] -= rate * static_cast<G>((load[i] > 0) - (load[i] < 0));
      weight[i] = convert<T>(master[i]);
    }
  }
};

} // namespace mc
