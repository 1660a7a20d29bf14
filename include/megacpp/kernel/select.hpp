// Kernels of op/select.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/op/select.hpp>

namespace mc {

template <> struct kernel_of<&op::select> { // x (B, S, H), index (B)
  using in = op::select_in;
  using out = op::select_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t batch = c.span(in::x, dims<0, 1>);
    for_rows(c.lane(), batch,
             rows::select_row<T>{c.span(in::x, dims<1, 2>), c.span(in::x, dims<2, 3>), c.in(in::x),
                                 c.in(in::index), c.out(out::y)});
  }
};

template <> struct kernel_of<&op::repeat> {
  using in = op::repeat_in;
  using out = op::repeat_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.attr(of_type<op::repeat_attributes>).times,
                       n = c.span(in::x, dims<0, 1>);
    for_rows(c.lane(), n * times,
             rows::repeat_row<T>{times, c.size(in::x) / n, c.in(in::x), c.out(out::y)});
  }
};
template <> struct kernel_of<&op::repeat_grad> {
  using in = op::repeat_grad_in;
  using out = op::repeat_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.attr(of_type<op::repeat_attributes>).times,
                       n = c.span(in::dy, dims<0, 1>) / times;
    for_rows(c.lane(), n,
             rows::repeat_grad_row<T>{times, c.size(in::dy) / (n * times), c.in(in::dy),
                                      c.out(out::dx)});
  }
};

} // namespace mc
