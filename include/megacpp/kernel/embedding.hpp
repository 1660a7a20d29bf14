// Kernels of op/embedding.hpp.
#pragma once

#include <megacpp/io/error.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/op/embedding.hpp>

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
template <> struct kernel_of<&op::embedding_grad> { // dy, ids, table
  using in = op::embedding_grad_in;
  using out = op::embedding_grad_out;
  /// Returns the bytes for the numbers of tokens, for the device's sort, and for partial sums.
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const std::int64_t n = c.size(in::ids);
    const rows::token_order order = order_of(c);
    if (!order.fits())
      throw error(exit_code::usage,
                  "the gradient of an embedding cannot number the tokens of a micro-batch in 64 "
                  "bits, since tokens, sequences and rows of the table are too many together: use "
                  "a smaller micro-batch, or NUMERICS fast");
    return bytes_before_partials<Call>(n) +
           rows::bytes_of_token_partials<lane_of<Call>, accumulator_t<T>>(
               n, c.span(in::table, dims<1, 2>));
  }
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::ids), first = c.origin(c.value_of(in::table), 0);
    const rows::summed_rows tokens = tokens_of(c);
    const rows::token_order order = order_of(c);
    auto* const numbers = reinterpret_cast<std::uint64_t*>(c.scratch());
    rows::number_of_tokens(c.lane(), tokens, order, first, c.in(in::ids), numbers);
    c.lane().sort(numbers, n, order.token_bits, order.bin_bits(), c.scratch() + numbers_bytes(n));
    rows::embedding_gradient(c.lane(), tokens, order, c.span(in::table, dims<1, 2>), c.in(in::dy),
                             numbers, c.out(out::dtable),
                             c.scratch() + bytes_before_partials<Call>(n));
  }

private:
  template <class Call> static constexpr rows::summed_rows tokens_of(const Call& c) {
    const std::int64_t n = c.size(in::ids);
    return {n, rows_at_once(c.sums(), c.ranks(), c.value_of(in::dy), n)};
  }
  template <class Call> static constexpr rows::token_order order_of(const Call& c) {
    return {tokens_of(c), c.span(in::table, dims<0, 1>)};
  }
  template <class Call> static constexpr std::int64_t bytes_before_partials(std::int64_t n) {
    return (numbers_bytes(n) + Call::device_type::sort_bytes(n) + 255) / 256 * 256;
  }
  static constexpr std::int64_t numbers_bytes(std::int64_t n) {
    return (n * std::int64_t{sizeof(std::uint64_t)} + 255) / 256 * 256;
  }
};

} // namespace mc
