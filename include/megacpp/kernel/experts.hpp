// Kernels of op/experts.hpp for ranks that have all experts.
#pragma once

#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/op/experts.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mc {

namespace detail {

/// What a round is, as the nodes between dispatch and combine see it.
struct round_of_rows {
  std::int64_t base = 0; ///< the first row of the round among all rows of the rank
  std::int64_t rows = 0; ///< R
  std::int64_t used = 0; ///< rows of the round that hold a choice

  round_of_rows(std::int64_t rows_of_round, int round, const std::int32_t* counts, std::int64_t n)
      : base(round * rows_of_round), rows(rows_of_round) {
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < n; ++i) total += counts[i];
    used = std::clamp<std::int64_t>(total - base, 0, rows);
  }
};

/// f(expert, first row of the round, rows of each sequence, sequences) for every expert that has
/// some in this round. Products of an expert take its sequences as parts, so that each has the bits
/// it has without others.
template <class Call, class F> void for_experts(const Call& c, const round_of_rows& r, F f) {
  const auto* counts = c.template in<std::int32_t>(2);
  const std::int64_t sequences = c.template in_span<2, -1, 0>(), experts = c.in_size(2) / sequences;
  auto* rows = reinterpret_cast<std::int32_t*>(c.scratch());
  std::int64_t start = -r.base;
  for (std::int64_t e = 0; e < experts; ++e) {
    const std::int64_t first = std::clamp<std::int64_t>(start, 0, r.rows);
    std::int64_t last = first;
    for (std::int64_t s = 0; s < sequences; ++s) {
      start += counts[e * sequences + s];
      const std::int64_t end = std::clamp<std::int64_t>(start, 0, r.rows);
      rows[s] = static_cast<std::int32_t>(end - last);
      last = end;
    }
    if (first < last) f(e, first, rows, sequences);
  }
}

template <class T> void clear_rows(T* rows, const round_of_rows& r, std::int64_t width) {
  std::memset(static_cast<void*>(rows + r.used * width), 0,
              static_cast<std::size_t>((r.rows - r.used) * width) * sizeof(T));
}

/// The product of an expert's rows of one sequence, prepared for any number of them.
template <class T, class Call> void prepare_grouped(Call& c, product_kind kind, std::int64_t rows,
                                                    std::int64_t n, std::int64_t k) {
  product_shape s = make_product_shape(
      kind, dtype_of<T>, std::min(rows, c.template attr<op::grouped_attributes>().tokens), n, k);
  s.dynamic_rows = true;
  prepare_product(c, s);
}
/// For the rows of an expert in each sequence.
template <class Call> std::int64_t grouped_scratch_bytes(const Call& c) {
  return c.template in_span<2, -1, 0>() * std::int64_t{sizeof(std::int32_t)};
}

} // namespace detail

template <> struct kernel_of<&op::expert_rows> { // experts -> row, counts, rounds
  template <class, class Call> static void run(Call& c) {
    const auto [rows, experts, capacity] = c.template attr<op::expert_rows_attributes>();
    const std::int64_t n = c.in_size(0), sequences = c.template out_span<1, -1, 0>();
    const std::int32_t* chosen = c.template in<std::int32_t>(0);
    std::int32_t *row = c.template out<std::int32_t>(0), *counts = c.template out<std::int32_t>(1);
    std::fill(counts, counts + experts * sequences, 0);
    // How many rows each expert has, then where it begins: the sum of those before it.
    std::int32_t* begin = reinterpret_cast<std::int32_t*>(c.scratch());
    std::fill(begin, begin + experts, 0);
    for (std::int64_t i = 0; i < n; ++i) { // the number of the choice within its expert
      std::int32_t& count = begin[chosen[i]];
      const bool dropped = capacity > 0 && count == capacity;
      row[i] = dropped ? -1 : count++;
      if (!dropped) ++counts[chosen[i] * sequences + i / (n / sequences)];
    }
    std::int32_t total = 0;
    for (std::int64_t e = 0; e < experts; ++e) total += std::exchange(begin[e], total);
    for (std::int64_t i = 0; i < n; ++i)
      if (row[i] >= 0) row[i] += begin[chosen[i]];
    *c.template out<std::int32_t>(2) =
        static_cast<std::int32_t>(std::max<std::int64_t>(1, (total + rows - 1) / rows));
  }
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return c.template attr<op::expert_rows_attributes>().experts *
           std::int64_t{sizeof(std::int32_t)};
  }
};

template <> struct kernel_of<&op::dispatch> { // x, experts, row, counts -> rows
  template <class T, class Call> static void run(Call& c) {
    const auto* counts = c.template in<std::int32_t>(3);
    const detail::round_of_rows r(c.template attr<op::crossing_attributes>().rows, c.trip(), counts,
                                  c.in_size(3));
    const std::int32_t* row = c.template in<std::int32_t>(2);
    const T* x = c.template in<T>(0);
    T* to = c.template out<T>(0);
    if (c.value_out(0).rank == 1) { // a number for every choice
      for (std::int64_t i = 0; i < c.in_size(0); ++i)
        if (row[i] >= r.base && row[i] < r.base + r.rows) to[row[i] - r.base] = x[i];
      return detail::clear_rows(to, r, 1);
    }
    const auto width = c.template in_span<0, -1, 0>();
    const std::int64_t tokens = c.in_rows(0);
    for_rows(tokens,
             rows::dispatch_token<T, decltype(width)>{
                 width, static_cast<int>(c.in_size(2) / tokens), r.base, r.rows, x, row, to});
    detail::clear_rows(to, r, width);
  }
};

template <> struct kernel_of<&op::combine> { // rows, experts, row, counts -> y, added
  template <class T, class Call> static void run(Call& c) {
    const auto* counts = c.template in<std::int32_t>(3);
    const detail::round_of_rows r(c.template attr<op::crossing_attributes>().rows, c.trip(), counts,
                                  c.in_size(3));
    const std::int32_t* row = c.template in<std::int32_t>(2);
    const T* from = c.template in<T>(0);
    T* y = c.template out<T>(0);
    if (c.value_in(0).rank == 1) {
      for (std::int64_t i = 0; i < c.in_size(2); ++i)
        if (row[i] >= r.base && row[i] < r.base + r.rows) y[i] = from[row[i] - r.base];
      return;
    }
    const auto width = c.template in_span<0, -1, 0>();
    const std::int64_t tokens = local_size(c.ranks(), c.value_out(0)).n / width;
    for_rows(tokens,
             rows::combine_token<T, decltype(width)>{width, static_cast<int>(c.in_size(2) / tokens),
                                                     r.base, r.rows, from, row, y});
  }
};

namespace detail {
/// y (R, out) from x (R, in) by each expert's matrix.
template <class T, class Call> void grouped_product(Call& c) {
  const std::int64_t in = c.template in_span<0, 1, 2>(), out = c.template out_span<0, 1, 2>();
  const round_of_rows r(c.template in_span<0, 0, 1>(), c.trip(), c.template in<std::int32_t>(2),
                        c.in_size(2));
  const prepared_product& p = product_of(c);
  const T *x = c.template in<T>(0), *w = c.template in<T>(1);
  T* y = c.template out<T>(0);
  for_experts(
      c, r,
      [&](std::int64_t e, std::int64_t first, const std::int32_t* rows, std::int64_t sequences) {
        p.execute_parts(x + first * in, w + e * in * out, y + first * out, rows, sequences);
      });
  clear_rows(y, r, out);
}
} // namespace detail

template <> struct kernel_of<&op::grouped_linear> { // x, w, counts
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return detail::grouped_scratch_bytes(c);
  }
  template <class T, class Call> static void prepare(Call& c) {
    detail::prepare_grouped<T>(c, product_kind::forward, c.template in_span<0, 0, 1>(),
                               c.template out_span<0, 1, 2>(), c.template in_span<0, 1, 2>());
  }
  template <class T, class Call> static void run(Call& c) { detail::grouped_product<T>(c); }
};

template <> struct kernel_of<&op::grouped_input_grad> { // dy, w, counts
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return detail::grouped_scratch_bytes(c);
  }
  template <class T, class Call> static void prepare(Call& c) {
    detail::prepare_grouped<T>(c, product_kind::input_gradient, c.template in_span<0, 0, 1>(),
                               c.template in_span<0, 1, 2>(), c.template out_span<0, 1, 2>());
  }
  template <class T, class Call> static void run(Call& c) { detail::grouped_product<T>(c); }
};

template <> struct kernel_of<&op::grouped_weight_grad> { // dy, x, counts -> dw, added
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return detail::grouped_scratch_bytes(c);
  }
  template <class T, class Call> static void prepare(Call& c) {
    detail::prepare_grouped<T>(c, product_kind::weight_gradient, c.template in_span<0, 0, 1>(),
                               c.template in_span<0, 1, 2>(), c.template in_span<1, 1, 2>());
  }
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.template in_span<0, 1, 2>(), k = c.template in_span<1, 1, 2>();
    const detail::round_of_rows r(c.template in_span<0, 0, 1>(), c.trip(),
                                  c.template in<std::int32_t>(2), c.in_size(2));
    const T *dy = c.template in<T>(0), *x = c.template in<T>(1);
    auto* dw = c.template out<accumulator_t<T>>(0);
    detail::for_experts(
        c, r,
        [&](std::int64_t e, std::int64_t first, const std::int32_t* rows, std::int64_t sequences) {
          detail::product_of(c).execute_parts(dy + first * n, x + first * k, dw + e * n * k, rows,
                                              sequences);
        });
  }
};

template <> struct kernel_of<&op::scale_rows> { // x, w
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<0, -1, 0>();
    for_rows(c.in_rows(0), rows::scale_row<T, decltype(width)>{width, c.template in<T>(0),
                                                               c.template in<accumulator_t<T>>(1),
                                                               c.template out<T>(0)});
  }
};
template <> struct kernel_of<&op::scale_rows_weight_grad> { // dy, x, w
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<0, -1, 0>();
    for_rows(c.in_rows(0), rows::scale_weight_grad_row<T, decltype(width)>{
                               width, c.template in<T>(0), c.template in<T>(1),
                               c.template out<accumulator_t<T>>(0)});
  }
};

} // namespace mc
