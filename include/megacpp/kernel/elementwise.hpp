// Kernels of op/elementwise.hpp and of the sums that differentiation writes.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/op/elementwise.hpp>

namespace mc {

template <> struct kernel_of<&op::add> {
  template <class T, class Call> static void run(Call& c) {
    rows::add(c.device(), c.in_size(0), c.template in<T>(0), c.template in<T>(1),
              c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::sum> : kernel_of<&op::add> {};

template <> struct kernel_of<&op::accumulate> {
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<0, 0, 0>();
    rows::bias_gradient(c.device(), 1, width, c.template in<T>(0),
                        c.template out<accumulator_t<T>>(0));
  }
};

template <> struct kernel_of<&op::cast> {
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.in_size(0);
    switch (c.value_out(0).type) {
    case dtype::f64:
      rows::cast(c.device(), n, c.template in<T>(0), c.template out<double>(0));
      break;
    case dtype::bf16:
      rows::cast(c.device(), n, c.template in<T>(0), c.template out<bf16>(0));
      break;
    default: rows::cast(c.device(), n, c.template in<T>(0), c.template out<float>(0)); break;
    }
  }
};

template <> struct kernel_of<&op::gelu> {
  template <class T, class Call> static void run(Call& c) {
    if (c.template attr<op::gelu_attributes>().form == gelu_form::exact)
      rows::activation<rows::gelu_exact>(c.device(), c.in_size(0), c.template in<T>(0),
                                         c.template out<T>(0));
    else
      rows::activation<rows::gelu_tanh>(c.device(), c.in_size(0), c.template in<T>(0),
                                        c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::gelu_grad> { // dy, x
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.in_size(0);
    if (c.template attr<op::gelu_attributes>().form == gelu_form::exact)
      rows::activation_dx<rows::gelu_exact>(c.device(), n, c.template in<T>(0), c.template in<T>(1),
                                            c.template out<T>(0));
    else
      rows::activation_dx<rows::gelu_tanh>(c.device(), n, c.template in<T>(0), c.template in<T>(1),
                                           c.template out<T>(0));
  }
};

template <> struct kernel_of<&op::swiglu> {
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<0, -1, 0>();
    rows::swiglu(c.device(), c.in_rows(0), width, width, c.template in<T>(0), c.template in<T>(1),
                 c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::swiglu_grad> { // dy, gate, up
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<0, -1, 0>();
    rows::swiglu_backward(c.device(), c.in_rows(0), width, width, c.template in<T>(0),
                          c.template in<T>(1), c.template in<T>(2), c.template out<T>(0),
                          c.template out<T>(1));
  }
};

} // namespace mc
