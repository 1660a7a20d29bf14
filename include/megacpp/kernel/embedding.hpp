// Kernels of op/embedding.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/op/embedding.hpp>

namespace mc {

template <> struct kernel_of<&op::embedding> { // ids, table
  template <class T, class Call> static void run(Call& c) {
    rows::embedding(c.in_size(0), c.template in_span<1, 1, 2>(), c.template in<T>(1),
                    c.origin(c.value_in(1), 0), std::int64_t{c.template in_span<1, 0, 1>()},
                    c.template in<std::int32_t>(0), c.template out<T>(0));
  }
};
template <> struct kernel_of<&op::embedding_grad> { // dy, ids, table
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return c.in_size(1) * std::int64_t{sizeof(rows::token_of_row)};
  }
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t tokens = c.in_size(1);
    rows::embedding_gradient(
        {tokens, rows_at_once(c.sums(), c.ranks(), c.value_in(0), tokens)},
        c.template in_span<2, 1, 2>(), c.template in<T>(0), c.template in<std::int32_t>(1),
        c.origin(c.value_in(2), 0), std::int64_t{c.template in_span<2, 0, 1>()},
        c.template out<accumulator_t<T>>(0), reinterpret_cast<rows::token_of_row*>(c.scratch()));
  }
};

} // namespace mc
