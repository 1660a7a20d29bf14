// Kernels of op/norm.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/rms_norm.hpp>
#include <megacpp/op/norm.hpp>

namespace mc {

template <> struct kernel_of<&op::rms_norm> {
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::rms_norm(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(), c.template in<T>(0),
                   c.template in<T>(1), static_cast<G>(c.template attr<op::norm_attributes>().eps),
                   c.template out<T>(0), c.template out<G>(1));
  }
};
template <> struct kernel_of<&op::rms_norm_grad> { // dy, x, gain, rstd
  template <class T, class Call> static void run(Call& c) {
    rows::rms_norm_dx(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(), c.template in<T>(0),
                      c.template in<T>(1), c.template in<T>(2), c.template in<accumulator_t<T>>(3),
                      c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::rms_norm_gain_grad> { // dy, x, rstd
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::rms_norm_dgain(
        c.device(), {c.in_rows(0), rows_at_once(c.sums(), c.ranks(), c.value_in(0), c.in_rows(0))},
        c.template in_span<0, -1, 0>(), c.template in<T>(0), c.template in<T>(1),
        c.template in<G>(2), c.template out<G>(0));
  }
};

template <> struct kernel_of<&op::layer_norm> {
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::layer_norm(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(), c.template in<T>(0),
                     c.template in<T>(1), c.template in<T>(2),
                     static_cast<G>(c.template attr<op::norm_attributes>().eps),
                     c.template out<T>(0), c.template out<G>(1), c.template out<G>(2));
  }
};
template <> struct kernel_of<&op::layer_norm_grad> { // dy, x, gain, mean, rstd
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::layer_norm_dx(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(),
                        c.template in<T>(0), c.template in<T>(1), c.template in<T>(2),
                        c.template in<G>(3), c.template in<G>(4), c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::layer_norm_gain_grad> { // dy, x, mean, rstd
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::layer_norm_dgain_dbias(
        c.device(), {c.in_rows(0), rows_at_once(c.sums(), c.ranks(), c.value_in(0), c.in_rows(0))},
        c.template in_span<0, -1, 0>(), c.template in<T>(0), c.template in<T>(1),
        c.template in<G>(2), c.template in<G>(3), c.template out<G>(0), static_cast<G*>(nullptr));
  }
};

template <> struct kernel_of<&op::add_rms_norm> { // x, a, gain -> s, y, rstd
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::add_rms_norm(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(),
                       c.template in<T>(0), c.template in<T>(1), c.template in<T>(2),
                       static_cast<G>(c.template attr<op::norm_attributes>().eps),
                       c.template out<T>(0), c.template out<T>(1), c.template out<G>(2));
  }
};
template <> struct kernel_of<&op::add_layer_norm> { // x, a, gain, bias -> s, y, mean, rstd
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::add_layer_norm(
        c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(), c.template in<T>(0),
        c.template in<T>(1), c.template in<T>(2), c.template in<T>(3),
        static_cast<G>(c.template attr<op::norm_attributes>().eps), c.template out<T>(0),
        c.template out<T>(1), c.template out<G>(2), c.template out<G>(3));
  }
};
template <> struct kernel_of<&op::rms_norm_grad_add> { // dy, x, gain, rstd, d
  template <class T, class Call> static void run(Call& c) {
    rows::add_rms_norm_dx(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(),
                          c.template in<T>(0), c.template in<T>(1), c.template in<T>(2),
                          c.template in<accumulator_t<T>>(3), c.template in<T>(4),
                          c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::layer_norm_grad_add> { // dy, x, gain, mean, rstd, d
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::add_layer_norm_dx(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(),
                            c.template in<T>(0), c.template in<T>(1), c.template in<T>(2),
                            c.template in<G>(3), c.template in<G>(4), c.template in<T>(5),
                            c.template out<T>(0));
  }
};

} // namespace mc
