// Kernels of op/select.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/op/select.hpp>

#include <cstring>

namespace mc {

template <> struct kernel_of<&op::select> { // x (B, S, H), index (B)
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t batch = c.template in_span<0, 0, 1>(),
                       sequence = c.template in_span<0, 1, 2>(),
                       width = c.template in_span<0, 2, 3>();
    const std::int32_t* index = c.template in<std::int32_t>(1);
    const T* x = c.template in<T>(0);
    T* y = c.template out<T>(0);
    for (std::int64_t b = 0; b < batch; ++b)
      std::memcpy(static_cast<void*>(y + b * width), x + (b * sequence + index[b]) * width,
                  static_cast<std::size_t>(width) * sizeof(T));
  }
};

template <> struct kernel_of<&op::repeat> {
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.template attr<op::repeat_attributes>().times,
                       n = c.template in_span<0, 0, 1>(), width = c.in_size(0) / n;
    const T* x = c.template in<T>(0);
    T* y = c.template out<T>(0);
    parallel_for(n * times, [=](std::int64_t i) {
      std::memcpy(static_cast<void*>(y + i * width), x + i / times * width,
                  static_cast<std::size_t>(width) * sizeof(T));
    });
  }
};
template <> struct kernel_of<&op::repeat_grad> {
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t times = c.template attr<op::repeat_attributes>().times,
                       n = c.template in_span<0, 0, 1>() / times,
                       width = c.in_size(0) / (n * times);
    const T* dy = c.template in<T>(0);
    T* dx = c.template out<T>(0);
    parallel_for(n, [=](std::int64_t i) {
      for (std::int64_t j = 0; j < width; ++j) {
        accumulator_t<T> sum = 0;
        for (std::int64_t t = 0; t < times; ++t)
          sum += convert<accumulator_t<T>>(dy[(i * times + t) * width + j]);
        dx[i * width + j] = convert<T>(sum);
      }
    });
  }
};

} // namespace mc
