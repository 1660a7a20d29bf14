// Kernels of op/elementwise.hpp and of the sums that the derivation of the backward pass adds.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>
#include <megacpp/op/elementwise.hpp>

namespace mc {

template <> struct kernel_of<&op::add> {
  using in = op::sum_in;
  using out = op::sum_out;
  template <class T, class Call> static void run(Call& c) {
    rows::add(c.lane(), c.size(in::a), c.in(in::a), c.in(in::b), c.out(out::y));
  }
};
template <> struct kernel_of<&op::sum> : kernel_of<&op::add> {};

template <> struct kernel_of<&op::accumulate> {
  using in = op::accumulate_in;
  using out = op::accumulate_out;
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.span(in::x, dims<0>);
    rows::bias_gradient(c.lane(), 1, width, c.in(in::x), c.out(out::total));
  }
};

template <> struct kernel_of<&op::cast> {
  using in = op::cast_in;
  using out = op::cast_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::x);
    const T* const x = c.in(in::x);
    std::byte* const y = c.out(out::y);
    with_float_type(c.value_of(out::y).type,
                    [&]<class To>(To) { rows::cast(c.lane(), n, x, reinterpret_cast<To*>(y)); });
  }
};

template <> struct kernel_of<&op::scale> {
  using in = op::scale_in;
  using out = op::scale_out;
  template <class T, class Call> static void run(Call& c) {
    const double factor = c.attr(of_type<op::scale_attributes>).factor;
    rows::scale(c.lane(), c.size(in::x), static_cast<accumulator_t<T>>(factor), c.in(in::x),
                c.out(out::y));
  }
};

template <> struct kernel_of<&op::gelu> {
  using in = op::gelu_in;
  using out = op::gelu_out;
  template <class T, class Call> static void run(Call& c) {
    if (c.attr(of_type<op::gelu_attributes>).form == gelu_form::exact)
      rows::activation<rows::gelu_exact>(c.lane(), c.size(in::x), c.in(in::x), c.out(out::y));
    else rows::activation<rows::gelu_tanh>(c.lane(), c.size(in::x), c.in(in::x), c.out(out::y));
  }
};
template <> struct kernel_of<&op::gelu_grad> { // dy, x
  using in = op::gelu_grad_in;
  using out = op::gelu_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::dy);
    if (c.attr(of_type<op::gelu_attributes>).form == gelu_form::exact)
      rows::activation_dx<rows::gelu_exact>(c.lane(), n, c.in(in::dy), c.in(in::x), c.out(out::dx));
    else
      rows::activation_dx<rows::gelu_tanh>(c.lane(), n, c.in(in::dy), c.in(in::x), c.out(out::dx));
  }
};

template <> struct kernel_of<&op::swiglu> {
  using in = op::swiglu_in;
  using out = op::swiglu_out;
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.span(in::gate, dims<-1>);
    rows::swiglu(c.lane(), c.rows(in::gate), width, width, c.in(in::gate), c.in(in::up),
                 c.out(out::y));
  }
};
template <> struct kernel_of<&op::swiglu_grad> { // dy, gate, up
  using in = op::swiglu_grad_in;
  using out = op::swiglu_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.span(in::dy, dims<-1>);
    rows::swiglu_backward(c.lane(), c.rows(in::dy), width, width, c.in(in::dy), c.in(in::gate),
                          c.in(in::up), c.out(out::dgate), c.out(out::dup));
  }
};

} // namespace mc
