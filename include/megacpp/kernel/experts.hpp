// Kernels of op/experts.hpp. Between ranks that share experts, rows are packed by rank before the
// exchange and unpacked behind it (kernel/expert_exchange.hpp).
#pragma once

#include <megacpp/kernel/expert_exchange.hpp>
#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/plan/boxes.hpp>

#include <algorithm>
#include <span>
#include <string>
#include <utility>

namespace mc {

namespace detail {

/// Returns the number of rows of a round that each sequence has of each of this rank's experts,
/// expert by expert. Products take experts as groups and their sequences as segments, so that each
/// sequence has the bits that it has without others.
template <class Call> std::span<const std::int32_t> rows_of_experts(const Call& c,
                                                                    const seen_counts& counts,
                                                                    const round_of_rows& r) {
  auto* const rows = reinterpret_cast<std::int32_t*>(c.host_room());
  std::int32_t* to = rows;
  std::int64_t start = -r.base, last = 0;
  for (std::int64_t e = 0; e < counts.mine(); ++e)
    for (const std::int32_t n : counts.of(counts.first() + e)) {
      start += n;
      const std::int64_t end = std::clamp<std::int64_t>(start, 0, r.rows);
      *to++ = static_cast<std::int32_t>(end - last);
      last = end;
    }
  return {rows, to};
}

template <class Device, class T>
void clear_rows(Device& on, T* rows, const round_of_rows& r, std::int64_t width) {
  if (r.used < r.rows)
    on.fill(reinterpret_cast<std::byte*>(rows + r.used * width), 0,
            (r.rows - r.used) * width * std::int64_t{sizeof(T)});
}

/// Throws mc::error unless the counts of experts add up to so many choices of each rank.
template <class Call>
void require_whole(const Call& c, const seen_counts& counts, std::int64_t choices, bool drops) {
  std::int64_t all = 0;
  bool negative = false;
  for (std::int64_t e = 0; e < counts.experts(); ++e)
    for (const std::int32_t n : counts.of(e)) all += n, negative = negative || n < 0;
  const std::int64_t most = choices * counts.ranks();
  if (!negative && (drops ? all <= most : all == most)) return;
  throw error(exit_code::internal,
              "the counts of experts of layer " + std::to_string(c.layer()) + " add up to " +
                  std::to_string(all) + " rows, and the tokens of a micro-batch have chosen " +
                  std::to_string(most) +
                  ": the device or its memory is faulty; go on from the newest state");
}

/// Returns the grouped product of the rows of `experts`, with any number of rows from each
/// sequence.
template <class T, class Call>
constexpr product_list grouped_products(const Call& c, product_kind kind, std::int64_t experts,
                                        std::int64_t rows, std::int64_t n, std::int64_t k) {
  product_shape s = make_product_shape(
      kind, dtype_of<T>, std::min(rows, c.attr(of_type<op::grouped_attributes>).tokens), n, k);
  s.dynamic_rows = true, s.groups = experts;
  s.group_rows = std::max<std::int64_t>(rows / experts, 1);
  return s;
}

} // namespace detail

template <> struct kernel_of<&op::expert_rows> { // experts, [all] -> row, counts, rounds
  using elements = element_list<std::int32_t>;
  using in = op::expert_rows_in;
  using out = op::expert_rows_out;
  template <class, class Call> static void run(Call& c) {
    const auto a = c.attr(of_type<op::expert_rows_attributes>);
    auto& on = c.lane();
    const shape s(c);
    const auto* const chosen = c.in(in::experts);
    auto* const row = c.out(out::row);
    auto* const counts = c.out(out::counts);
    auto* const begin = reinterpret_cast<std::int32_t*>(c.scratch());
    auto* const of_ranges = begin + s.experts;
    auto* const own = of_ranges + s.ranges.count() * s.experts;
    auto* const all = own + s.experts * s.apart;
    const rows::taken_choices taken = take(c, s, begin, all + s.ranks * s.experts * s.apart);
    for_rows(on, s.ranges.count(),
             rows::count_choices{s.ranges, s.experts, taken, chosen, of_ranges});
    for_rows(on, s.experts, rows::add_counts{s.ranges, s.experts, of_ranges, own});
    c.comm().run(c.lane(), exchange::all_gather(op::expert_group, dtype::i32, own, all,
                                                s.experts * s.apart, c.described().line));
    for_rows(on, s.ep,
             rows::place_experts{s.experts / s.ep, s.ranks, c.comm().over(op::expert_group).rank(),
                                 s.apart, s.experts, all, counts, begin});
    for_rows(on, s.ranges.count(),
             rows::number_choices{s.ranges, s.experts, taken, chosen, begin, of_ranges, row});
    for_one(on, rows::count_rounds{a.rows, s.ep, s.experts / s.ep * s.ranks * s.apart, counts,
                                   c.out(out::rounds)});
  }
  template <class, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const shape s(c);
    return s.experts * (1 + s.ranges.count() + (1 + s.ranks) * s.apart) *
               std::int64_t{sizeof(std::int32_t)} +
           (c.has(in::all) ? c.size(in::all) : 0);
  }

private:
  struct shape {
    std::int64_t experts, ep;
    std::int64_t ranks, apart; ///< ranks that share experts; sequences of each, counted apart
    std::int64_t own, whole;   ///< choices of a sequence: this rank's choices, and all of them
    rows::choice_ranges ranges;

    template <class Call> constexpr explicit shape(const Call& c)
        : experts(c.attr(of_type<op::expert_rows_attributes>).experts),
          ep(c.ranks().of(axis::ep)),
          ranks(ranks_of(c.ranks(), op::expert_group)),
          apart(c.span(out::counts, dims<-1>) / ranks),
          own(c.span(in::experts, dims<1>)),
          whole(c.value_of(in::experts).dims[1].n * c.value_of(in::experts).back().n),
          ranges{apart, c.size(in::experts) / apart} {}
  };

  /// Takes the first choices of each expert, up to its capacity, in the order of the micro-batch's
  /// tokens. `count` is memory for a number for each expert.
  template <class Call> static rows::taken_choices take(Call& c, const shape& s,
                                                        std::int32_t* count,
                                                        std::int32_t* scratch) {
    if (!c.has(in::all)) return {nullptr, s.own, s.whole, 0};
    const auto a = c.attr(of_type<op::expert_rows_attributes>);
    const std::int32_t* const all = c.in(in::all);
    bool* const taken = reinterpret_cast<bool*>(scratch);
    const value& v = c.value_of(in::all);
    bool begins = true;
    boxes(c.ranks(), v, c.comm().coordinate())
        .each_contiguous_within(
            {0}, global_size(v), [&](local_count first, global_count, std::int64_t n) {
              for_rows(c.lane(), s.experts,
                       rows::take_choices{first.n, n, a.capacity, begins, all, count, taken});
              begins = false;
            });
    return {taken, s.own, s.whole,
            c.origin(c.value_of(in::experts), 1) * c.value_of(in::experts).back().n};
  }
};

template <> struct kernel_of<&op::dispatch> { // x, experts, row, counts -> rows
  using in = op::dispatch_in;
  using out = op::dispatch_out;
  template <class T, class Call> static void run(Call& c) {
    auto& on = c.lane();
    const auto [rows_of_round, drops] = c.attr(of_type<op::crossing_attributes>);
    const detail::seen_counts counts(c, in::counts);
    const std::int64_t choices = c.size(in::row);
    if (c.trip() == 0) detail::require_whole(c, counts, choices, drops);
    const detail::round_of_rows r(rows_of_round, c.trip(), counts);
    const auto* const row = c.in(in::row);
    const T* const x = c.in(in::x);
    T* const to = c.out(out::rows);
    const bool numbers = c.value_of(out::rows).rank == 1; // one number for every choice
    const std::int64_t tokens = numbers ? choices : c.rows(in::x);
    const auto k = static_cast<int>(choices / tokens);
    if (counts.ranks() > 1) {
      const std::int64_t width = numbers ? std::int64_t{1} : std::int64_t{c.span(in::x, dims<-1>)};
      const detail::expert_exchange<T> way(c, of_type<in>, counts, r, width);
      for_rows(on, tokens,
               rows::dispatch_token<T, std::int64_t>{width, k, 0, way.chosen(), x, way.place(),
                                                     way.rows_of_choices()});
      way.go(on, c.comm(), c.described().line, to);
      return detail::clear_rows(on, to, r, width);
    }
    if (numbers) {
      for_blocks(on, choices, rows::dispatch_numbers<T>{choices, r.base, r.rows, x, row, to});
      return detail::clear_rows(on, to, r, 1);
    }
    auto width = c.span(in::x, dims<-1>);
    for_rows(on, tokens,
             rows::dispatch_token<T, decltype(width)>{width, k, r.base, r.rows, x, row, to});
    detail::clear_rows(on, to, r, width);
  }
};

template <> struct kernel_of<&op::combine> { // rows, experts, row, counts -> y, added
  using in = op::combine_in;
  using out = op::combine_out;
  template <class T, class Call> static void run(Call& c) {
    auto& on = c.lane();
    const detail::seen_counts counts(c, in::counts);
    const detail::round_of_rows r(c.attr(of_type<op::crossing_attributes>).rows, c.trip(), counts);
    const auto* const row = c.in(in::row);
    const T* const from = c.in(in::rows);
    T* const y = c.out(out::y);
    const bool numbers = c.value_of(in::rows).rank == 1;
    const std::int64_t choices = c.size(in::row);
    if (counts.ranks() > 1) {
      const std::int64_t width =
                             numbers ? std::int64_t{1} : std::int64_t{c.span(in::rows, dims<-1>)},
                         tokens = local_size(c.ranks(), c.value_of(out::y)).n / width;
      const detail::expert_exchange<T> way(c, of_type<in>, counts, r, width);
      way.come_back(on, c.comm(), c.described().line, from);
      return for_rows(on, tokens,
                      rows::combine_token<T, std::int64_t>{
                          width, static_cast<int>(choices / tokens), 0, way.chosen(),
                          way.rows_of_choices(), way.place(), y});
    }
    if (numbers)
      return for_blocks(on, choices,
                        rows::combine_numbers<T>{choices, r.base, r.rows, from, row, y});
    auto width = c.span(in::rows, dims<-1>);
    const std::int64_t tokens = local_size(c.ranks(), c.value_of(out::y)).n / width;
    for_rows(on, tokens,
             rows::combine_token<T, decltype(width)>{width, static_cast<int>(choices / tokens),
                                                     r.base, r.rows, from, row, y});
  }
};

namespace detail {
/// y (R, out) = x (R, in) times each expert's matrix.
template <class T, class Call> void grouped_product(Call& c) {
  using in = op::grouped_linear_in;
  using out = op::grouped_linear_out;
  const std::int64_t narrow = c.span(out::y, dims<1, 2>);
  const seen_counts counts(c, in::counts);
  const round_of_rows r(c.span(in::x, dims<0, 1>), c.trip(), counts);
  T* const y = c.out(out::y);
  c.product(0).execute_groups({.on = c.lane(), .a = c.in(in::x), .b = c.in(in::w), .out = y},
                              rows_of_experts(c, counts, r));
  clear_rows(c.lane(), y, r, narrow);
}
} // namespace detail

template <> struct kernel_of<&op::grouped_linear> { // x, w, counts
  using in = op::grouped_linear_in;
  using out = op::grouped_linear_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::grouped_products<T>(c, product_kind::forward, c.span(in::w, dims<0, 1>),
                                       c.span(in::x, dims<0, 1>), c.span(out::y, dims<1, 2>),
                                       c.span(in::x, dims<1, 2>));
  }
  template <class T, class Call> static void run(Call& c) { detail::grouped_product<T>(c); }
};

template <> struct kernel_of<&op::grouped_input_grad> { // dy, w, counts
  using in = op::grouped_linear_in;
  using out = op::grouped_linear_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::grouped_products<T>(c, product_kind::input_gradient, c.span(in::w, dims<0, 1>),
                                       c.span(in::x, dims<0, 1>), c.span(in::x, dims<1, 2>),
                                       c.span(out::y, dims<1, 2>));
  }
  template <class T, class Call> static void run(Call& c) { detail::grouped_product<T>(c); }
};

template <> struct kernel_of<&op::grouped_weight_grad> { // dy, x, counts -> dw, added
  using in = op::grouped_weight_grad_in;
  using out = op::grouped_weight_grad_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::grouped_products<T>(c, product_kind::weight_gradient,
                                       c.span(out::dw, dims<0, 1>), c.span(in::dy, dims<0, 1>),
                                       c.span(in::dy, dims<1, 2>), c.span(in::x, dims<1, 2>));
  }
  template <class T, class Call> static void run(Call& c) {
    const detail::seen_counts counts(c, in::counts);
    const detail::round_of_rows r(c.span(in::dy, dims<0, 1>), c.trip(), counts);
    c.product(0).execute_groups(
        {.on = c.lane(), .a = c.in(in::dy), .b = c.in(in::x), .out = c.out(out::dw)},
        detail::rows_of_experts(c, counts, r));
  }
};

namespace detail {
/// Returns how many elements of x a factor of w is for.
template <class Call, class X, class W> std::int64_t factor_width(const Call& c, X x, W w) {
  return c.size(w) == 0 ? 0 : c.size(x) / c.size(w);
}
} // namespace detail

template <> struct kernel_of<&op::scale_rows> { // x, w
  using in = op::scale_rows_in;
  using out = op::scale_rows_out;
  template <class T, class Call> static void run(Call& c) {
    const auto scale = [&](std::int64_t n, auto width) {
      for_rows(c.lane(), n,
               rows::scale_row<T, decltype(width)>{width, c.in(in::x), c.in(in::w), c.out(out::y)});
    };
    if (c.value_of(in::w).rank < c.value_of(in::x).rank)
      return scale(c.rows(in::x), c.span(in::x, dims<-1>));
    scale(c.size(in::w), detail::factor_width(c, in::x, in::w));
  }
};
template <> struct kernel_of<&op::scale_rows_weight_grad> { // dy, x, w
  using in = op::scale_rows_weight_grad_in;
  using out = op::scale_rows_weight_grad_out;
  template <class T, class Call> static void run(Call& c) {
    const auto sum = [&](std::int64_t n, auto width) {
      for_rows(c.lane(), n,
               rows::scale_weight_grad_row<T, decltype(width)>{width, c.in(in::dy), c.in(in::x),
                                                               c.out(out::dw)});
    };
    if (c.value_of(in::w).rank < c.value_of(in::dy).rank)
      return sum(c.rows(in::dy), c.span(in::dy, dims<-1>));
    sum(c.size(in::w), detail::factor_width(c, in::dy, in::w));
  }
};

} // namespace mc
