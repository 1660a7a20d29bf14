// Kernels of op/embedding.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/op/embedding.hpp>

#include <algorithm>

namespace mc {

template <> struct kernel_of<&op::embedding> { // ids, table
  using in = op::embedding_in;
  using out = op::embedding_out;
  template <class T, class Call> static void run(Call& c) {
    rows::embedding(c.lane(), c.size(in::ids), c.span(in::table, dims<1, 2>), c.in(in::table),
                    c.origin(c.value_of(in::table), 0), std::int64_t{c.span(in::table, dims<0, 1>)},
                    c.in(in::ids), c.out(out::y));
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
  using in = op::embedding_grad_in;
  using out = op::embedding_grad_out;
  /// The number of tokens that are in order, and these.
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return (1 + c.size(in::ids)) * std::int64_t{sizeof(rows::token_of_row)};
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const std::int64_t n = c.size(in::ids), first = c.origin(c.value_of(in::table), 0),
                       count = c.span(in::table, dims<0, 1>);
    const rows::summed_rows tokens{n, rows_at_once(c.sums(), c.ranks(), c.value_of(in::dy), n)};
    const auto* ids = c.in(in::ids);
    auto* const ordered = reinterpret_cast<std::int64_t*>(c.scratch());
    auto* const order = reinterpret_cast<rows::token_of_row*>(ordered + 1);
    c.lane().run_slots(
        1, [&](int) { *ordered = detail::order_tokens(tokens, ids, first, count, order); });
    rows::embedding_gradient(c.lane(), tokens, c.span(in::table, dims<1, 2>), c.in(in::dy), ordered,
                             order, c.out(out::dtable));
  }
};

} // namespace mc
