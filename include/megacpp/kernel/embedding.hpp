// Kernels of op/embedding.hpp, op/select.hpp and op/dropout.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/num/random.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/embedding.hpp>
#include <megacpp/op/select.hpp>

#include <cstring>

namespace mc {

template <> struct kernel_of<&op::embedding> { // ids, table
  template <class T, class Call> static void run(Call& c) {
    rows::embedding(c.in_size(0), c.template in_span<1, 1, 2>(), c.template in<T>(1),
                    c.origin(c.value_in(1), 0), std::int64_t{c.template in_span<1, 0, 1>()},
                    c.template in<std::int32_t>(0), c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::embedding_grad> { // dy, ids, table
  template <class T, class Call> static void run(Call& c) {
    rows::embedding_gradient(c.in_size(1), c.template in_span<2, 1, 2>(), c.template in<T>(0),
                             c.template in<std::int32_t>(1), c.origin(c.value_in(2), 0),
                             std::int64_t{c.template in_span<2, 0, 1>()},
                             c.template out<accumulator_t<T>>(0));
  }
};

template <> struct kernel_of<&op::dropout> { // x (..., N) or (..., A, D), token_keys, seed, step
  template <class T, class Call> static void run(Call& c) {
    const value& x = c.value_in(0);
    const auto stream = (static_cast<std::uint64_t>(*c.template in<std::int64_t>(3)) << 24) |
                        (static_cast<std::uint64_t>(c.layer() + 1) << 8) |
                        static_cast<std::uint64_t>(c.attr().i[0]);
    const int heads = x.rank - 2; // a dim between the tokens' and the last, if there is one
    const bool apart = heads == c.value_in(1).rank;
    const std::int64_t width = x.back().n, of_token = c.in_rows(0) / c.in_size(1),
                       whole = apart ? x.dims[static_cast<unsigned>(heads)].n * width : width,
                       first = apart ? c.origin(x, heads) * width : 0;
    rows::dropout(c.in_rows(0), c.template in_span<0, -1, 0>(), whole,
                  first + c.origin(x, x.rank - 1),
                  random_key(static_cast<std::uint64_t>(*c.template in<std::int64_t>(2)), stream),
                  c.constants().dropping ? c.attr().f[0] : 0.0, c.template in<std::int32_t>(1),
                  c.template in<T>(0), c.template out<T>(0), of_token, width);
  }
};

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
    const std::int64_t times = c.attr().i[0], n = c.template in_span<0, 0, 1>(),
                       width = c.in_size(0) / n;
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
    const std::int64_t times = c.attr().i[0], n = c.template in_span<0, 0, 1>() / times,
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
