// Kernels of op/embedding.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/op/embedding.hpp>

#include <algorithm>

namespace mc {

template <> struct kernel_of<&op::embedding> { // ids, table
  template <class T, class Call> static void run(Call& c) {
    rows::embedding(c.device(), c.in_size(0), c.template in_span<1, 1, 2>(), c.template in<T>(1),
                    c.origin(c.value_in(1), 0), std::int64_t{c.template in_span<1, 0, 1>()},
                    c.template in<std::int32_t>(0), c.template out<T>(0));
  }
};
namespace detail {
/// Puts the tokens that have one of `count` rows from `first` on in order: sequence by sequence,
/// each by row and then by token. Returns their number. Host code.
inline std::int64_t order_tokens(rows::summed_rows tokens, const std::int32_t* ids,
                                 std::int64_t first, std::int64_t count,
                                 rows::token_of_row* order) {
  std::int64_t n = 0;
  for (std::int64_t t = 0; t < tokens.count;) {
    const std::int64_t begin = n, end = tokens.end_of_sequence(t);
    for (; t < end; ++t) {
      const std::int64_t row = ids[t] - first;
      if (row >= 0 && row < count)
        order[n++] = static_cast<std::uint64_t>(row) << 32 | static_cast<std::uint64_t>(t);
    }
    std::sort(order + begin, order + n);
  }
  return n;
}
} // namespace detail

template <> struct kernel_of<&op::embedding_grad> { // dy, ids, table
  /// The number of tokens that are in order, and these.
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return (1 + c.in_size(1)) * std::int64_t{sizeof(rows::token_of_row)};
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const std::int64_t n = c.in_size(1), first = c.origin(c.value_in(2), 0),
                       count = c.template in_span<2, 0, 1>();
    const rows::summed_rows tokens{n, rows_at_once(c.sums(), c.ranks(), c.value_in(0), n)};
    const auto* ids = c.template in<std::int32_t>(1);
    auto* const ordered = reinterpret_cast<std::int64_t*>(c.scratch());
    auto* const order = reinterpret_cast<rows::token_of_row*>(ordered + 1);
    c.device().run_slots(
        1, [&](int) { *ordered = detail::order_tokens(tokens, ids, first, count, order); });
    rows::embedding_gradient(c.device(), tokens, c.template in_span<2, 1, 2>(), c.template in<T>(0),
                             ordered, order, c.template out<accumulator_t<T>>(0));
  }
};

} // namespace mc
