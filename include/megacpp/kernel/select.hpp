// Kernels of op/select.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/op/select.hpp>

namespace mc {

template <> struct kernel_of<&op::select> { // x (B, S, H), index (B)
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t batch = c.template in_span<0, 0, 1>();
    for_rows(c.device(), batch,
             rows::select_row<T>{c.template in_span<0, 1, 2>(), c.template in_span<0, 2, 3>(),
                                 c.template in<T>(0), c.template in<std::int32_t>(1),
                                 c.template out<T>(0)});
  }
};

template <> struct kernel_of<&op::repeat> {
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.template attr<op::repeat_attributes>().times,
                       n = c.template in_span<0, 0, 1>();
    for_rows(
        c.device(), n * times,
        rows::repeat_row<T>{times, c.in_size(0) / n, c.template in<T>(0), c.template out<T>(0)});
  }
};
template <> struct kernel_of<&op::repeat_grad> {
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.template attr<op::repeat_attributes>().times,
                       n = c.template in_span<0, 0, 1>() / times;
    for_rows(c.device(), n,
             rows::repeat_grad_row<T>{times, c.in_size(0) / (n * times), c.template in<T>(0),
                                      c.template out<T>(0)});
  }
};

} // namespace mc
