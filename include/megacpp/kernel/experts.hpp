// Kernels of op/experts.hpp. Between ranks that share experts, rows are packed by rank before the
// exchange and unpacked behind it (kernel/expert_exchange.hpp).
#pragma once

#include <megacpp/kernel/expert_exchange.hpp>
#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/plan/boxes.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace mc {

namespace detail {

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

template <> struct kernel_of<&op::expert_rows> { // experts, [all] -> row, counts, rounds
  template <class, class Call> static void run(Call& c) {
    const auto a = c.template attr<op::expert_rows_attributes>();
    const std::int64_t rows = a.rows, n = c.in_size(0);
    const shape s(c);
    const std::int32_t* chosen = c.template in<std::int32_t>(0);
    std::int32_t *row = c.template out<std::int32_t>(0), *counts = c.template out<std::int32_t>(1);
    std::int32_t* const begin = reinterpret_cast<std::int32_t*>(c.scratch());
    std::int32_t *const own = begin + s.experts, *const all = own + s.experts * s.apart;
    const std::int64_t before = c.origin(c.value_in(0), 1) * c.value_in(0).back().n;
    const bool* const taken = taken_choices(c, begin, all + s.ranks * s.experts * s.apart);
    std::fill(begin, all, 0);
    for (std::int64_t i = 0; i < n; ++i) { // the number of the choice within its expert
      const bool dropped = taken != nullptr && !taken[i / s.own * s.whole + before + i % s.own];
      row[i] = dropped ? -1 : begin[chosen[i]]++;
      if (!dropped) ++own[chosen[i] * s.apart + i / (n / s.apart)];
    }
    c.comm().run(exchange::all_gather(op::expert_group, dtype::i32, own, all, s.experts * s.apart,
                                      c.described().line));
    // Where this rank's rows of each expert begin: behind those of the experts before it on its
    // rank, and behind those of ranks before this one.
    const group g = c.comm().over(op::expert_group);
    const std::int64_t etp = c.ranks().of(axis::etp), first = g.rank() / etp * s.mine;
    std::int64_t most = 0, total = 0;
    for (std::int64_t e = 0; e < s.experts; ++e) {
      if (e % s.mine == 0) total = 0;
      for (std::int64_t q = 0; q < s.ranks; ++q) {
        if (q == g.rank()) begin[e] = static_cast<std::int32_t>(total);
        for (std::int64_t k = 0; k < s.apart; ++k) {
          const std::int32_t count = all[(q * s.experts + e) * s.apart + k];
          if (e >= first && e < first + s.mine)
            counts[((e - first) * s.ranks + q) * s.apart + k] = count;
          total += count;
        }
      }
      most = std::max(most, total);
    }
    for (std::int64_t i = 0; i < n; ++i)
      if (row[i] >= 0) row[i] += begin[chosen[i]];
    *c.template out<std::int32_t>(2) =
        static_cast<std::int32_t>(std::max<std::int64_t>(1, (most + rows - 1) / rows));
  }
  template <class, class Call> static std::int64_t scratch_bytes(const Call& c) {
    const shape s(c);
    return s.experts * (1 + (1 + s.ranks) * s.apart) * std::int64_t{sizeof(std::int32_t)} +
           (c.has(1) ? c.in_size(1) : 0);
  }

private:
  struct shape {
    std::int64_t experts, mine; ///< in all, and of this rank
    std::int64_t ranks, apart;  ///< that share them; sequences of each that are counted apart
    std::int64_t own, whole;    ///< choices of a sequence: this rank's, and all

    template <class Call> explicit shape(const Call& c)
        : experts(c.template attr<op::expert_rows_attributes>().experts),
          mine(c.template out_span<1, 1, 2>()),
          ranks(ranks_of(c.ranks(), op::expert_group)),
          apart(c.template out_span<1, -1, 0>() / ranks),
          own(c.template in_span<0, 1, 0>()),
          whole(c.value_in(0).dims[1].n * c.value_in(0).back().n) {}
  };

  /// Which choices of the micro-batch their experts take, the first ones in the order of its
  /// tokens; null: all. `count`: one number for each expert.
  template <class Call>
  static const bool* taken_choices(Call& c, std::int32_t* count, std::int32_t* scratch) {
    if (!c.has(1)) return nullptr;
    const auto a = c.template attr<op::expert_rows_attributes>();
    std::fill_n(count, a.experts, 0);
    const std::int32_t* all = c.template in<std::int32_t>(1);
    bool* const taken = reinterpret_cast<bool*>(scratch);
    const value& v = c.value_in(1);
    boxes(c.ranks(), v, c.comm().coordinate())
        .each_run_within({0}, global_size(v), [&](local_count first, global_count, std::int64_t n) {
          for (std::int64_t i = first.n; i < first.n + n; ++i)
            taken[i] = count[all[i]]++ < a.capacity;
        });
    return taken;
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
    const bool numbers = c.value_out(0).rank == 1; // one for every choice
    const std::int64_t choices = c.in_size(2), tokens = numbers ? choices : c.in_rows(0);
    const auto k = static_cast<int>(choices / tokens);
    if (ranks_of(c.ranks(), op::expert_group) > 1) {
      const std::int64_t width = numbers ? 1 : c.template in_span<0, -1, 0>();
      const detail::expert_exchange<T> way(detail::crossing_operands(c), r, width);
      for_rows(tokens, rows::dispatch_token<T, std::int64_t>{width, k, 0, way.chosen(), x,
                                                             way.place(), way.rows_of_choices()});
      way.go(c.comm(), c.described().line, to);
      return detail::clear_rows(to, r, width);
    }
    if (numbers) {
      for (std::int64_t i = 0; i < choices; ++i)
        if (row[i] >= r.base && row[i] < r.base + r.rows) to[row[i] - r.base] = x[i];
      return detail::clear_rows(to, r, 1);
    }
    const auto width = c.template in_span<0, -1, 0>();
    for_rows(tokens,
             rows::dispatch_token<T, decltype(width)>{width, k, r.base, r.rows, x, row, to});
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
    const bool numbers = c.value_in(0).rank == 1;
    const std::int64_t choices = c.in_size(2);
    if (ranks_of(c.ranks(), op::expert_group) > 1) {
      const std::int64_t width = numbers ? 1 : c.template in_span<0, -1, 0>(),
                         tokens = local_size(c.ranks(), c.value_out(0)).n / width;
      const detail::expert_exchange<T> way(detail::crossing_operands(c), r, width);
      way.come_back(c.comm(), c.described().line, from);
      return for_rows(tokens, rows::combine_token<T, std::int64_t>{
                                  width, static_cast<int>(choices / tokens), 0, way.chosen(),
                                  way.rows_of_choices(), way.place(), y});
    }
    if (numbers) {
      for (std::int64_t i = 0; i < choices; ++i)
        if (row[i] >= r.base && row[i] < r.base + r.rows) y[i] = from[row[i] - r.base];
      return;
    }
    const auto width = c.template in_span<0, -1, 0>();
    const std::int64_t tokens = local_size(c.ranks(), c.value_out(0)).n / width;
    for_rows(tokens, rows::combine_token<T, decltype(width)>{
                         width, static_cast<int>(choices / tokens), r.base, r.rows, from, row, y});
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
