// Sums over rows, per column: gradients of gains and biases.
//
//   grad[j] += sum over rows r of f(r, j)
//
// Columns are cut into slabs, one per body call; within a slab rows are walked in order: 64 at a
// time are a part, parts are added up in double, and their sum goes into grad once. So a sum is off
// by at most 65 roundings of its terms' magnitudes, however many rows there are (the gains of q and
// k have a row a token and head). Where it is not to depend on how many sequences a micro-batch
// has, each sequence is summed apart. No column's result depends on how columns are cut, so cuts
// follow the number of threads, and no loop ends at the width: these kernels do not know it before
// they run.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

inline constexpr std::int64_t rows_per_part = 64;
inline constexpr std::int64_t most_columns = 1024;

/// body(team, slab) for every slab of the columns that a body sums; body.width is their number. How
/// many columns a slab has depends on the device: body.columns is set here, so that there are as
/// many slabs as the lane wishes, in whole lines of 64 bytes of accumulators.
template <class Device, class Body> void for_slabs(Device& on, Body body) {
  constexpr std::int64_t group = lane_count<typename Body::G>;
  const std::int64_t width = body.width, wish = on.slabs(), share = (width + wish - 1) / wish,
                     rounded = (share + group - 1) / group * group;
  body.columns = rounded < most_columns ? rounded : most_columns;
  for_rows(on, (width + body.columns - 1) / body.columns, body);
}

/// The columns [first, first + count) of one body call.
struct slab {
  std::int64_t first, count;
  MEGACPP_HD slab(std::int64_t index, std::int64_t columns, std::int64_t width)
      : first(index * columns), count(width - first < columns ? width - first : columns) {}
  template <int N> MEGACPP_HD lanes<N> at(lanes<N> i) const { return {first + i.first}; }
};

/// Rows of whole sequences that are summed apart; by default of one.
struct summed_rows {
  std::int64_t count, sequence;
  MEGACPP_HD constexpr summed_rows(std::int64_t n) : summed_rows(n, n) {}
  MEGACPP_HD constexpr summed_rows(std::int64_t n, std::int64_t of_sequence)
      : count(n), sequence(of_sequence) {}
  /// Where the sequence of row r ends.
  MEGACPP_HD std::int64_t end_of_sequence(std::int64_t r) const {
    return (r / sequence + 1) * sequence;
  }
};

namespace detail {

// f(row, lanes) returns a vec, or a two<vec> for two gradients.
template <class V> MEGACPP_HD V sum_of(V a, V b) { return a + b; }
template <class V> MEGACPP_HD two<V> sum_of(two<V> a, two<V> b) {
  return {a.first + b.first, a.second + b.second};
}
template <class B, class A, int N> MEGACPP_HD vec<B, N> as_sum(vec<A, N> x) { return to<B>(x); }
template <class B, class V> MEGACPP_HD auto as_sum(two<V> x) {
  return two<decltype(to<B>(x.first))>{to<B>(x.first), to<B>(x.second)};
}

template <class G> struct one_gradient {
  G* grad;
  template <int N> MEGACPP_HD vec<G, N> get(lanes<N> i) const { return load<G>(grad, i); }
  template <int N> MEGACPP_HD void set(lanes<N> i, vec<G, N> x) const { store(grad, i, x); }
};

template <class G> struct two_gradients {
  G *first, *second;
  template <int N> MEGACPP_HD two<vec<G, N>> get(lanes<N> i) const {
    return {load<G>(first, i), load<G>(second, i)};
  }
  template <int N> MEGACPP_HD void set(lanes<N> i, two<vec<G, N>> x) const {
    store(first, i, x.first);
    store(second, i, x.second);
  }
};

// On a core a part is summed in the first-level cache, four whole rows at a time: memory is read
// along rows.
template <class T, class Team, class Part, class F>
MEGACPP_HD void sum_part(const Team& team, slab s, std::int64_t r, std::int64_t end, Part part,
                         F f) {
  team.template each<T>(s.count, [&](auto i) { part.set(i, f(r, s.at(i))); });
  for (++r; r + 4 <= end; r += 4) {
    team.template each<T>(s.count, [&](auto i) {
      auto p = sum_of(part.get(i), f(r, s.at(i)));
      p = sum_of(p, f(r + 1, s.at(i)));
      p = sum_of(p, f(r + 2, s.at(i)));
      part.set(i, sum_of(p, f(r + 3, s.at(i))));
    });
  }
  for (; r < end; ++r)
    team.template each<T>(s.count,
                          [&](auto i) { part.set(i, sum_of(part.get(i), f(r, s.at(i)))); });
}

// grad += the rows [r, end) of one sequence.
template <class T, class Team, class Grad, class Sum, class F>
MEGACPP_HD void add_sequence(const Team& team, slab s, std::int64_t r, std::int64_t end, Grad grad,
                             Grad part, Sum sum, F f) {
  using G = accumulator_t<T>;
  if (end - r == 1)
    return team.template each<T>(
        s.count, [&](auto i) { grad.set(s.at(i), sum_of(grad.get(s.at(i)), f(r, s.at(i)))); });
  if constexpr (Team::threads == 1) {
    for (bool first = true; r < end; first = false) {
      const std::int64_t next = r + rows_per_part < end ? r + rows_per_part : end;
      sum_part<T>(team, s, r, next, part, f);
      r = next;
      if (first && r == end) {
        team.template each<T>(
            s.count, [&](auto i) { grad.set(s.at(i), sum_of(grad.get(s.at(i)), part.get(i))); });
      } else {
        team.template each<T>(s.count, [&](auto i) {
          const auto p = as_sum<double>(part.get(i));
          const auto all = first ? p : sum_of(sum.get(i), p);
          if (r < end) sum.set(i, all);
          else grad.set(s.at(i), sum_of(grad.get(s.at(i)), as_sum<G>(all)));
        });
      }
    }
  } else { // every thread of a block keeps its columns in registers: the same order, the same bits
    team.template each<T>(s.count, [&](auto i) {
      decltype(as_sum<double>(f(r, s.at(i)))) all{};
      for (std::int64_t k = r; k < end; k += rows_per_part) {
        const std::int64_t next = k + rows_per_part < end ? k + rows_per_part : end;
        auto p = f(k, s.at(i));
        for (std::int64_t j = k + 1; j < next; ++j) p = sum_of(p, f(j, s.at(i)));
        all = k == r ? as_sum<double>(p) : sum_of(all, as_sum<double>(p));
      }
      grad.set(s.at(i), sum_of(grad.get(s.at(i)), as_sum<G>(all)));
    });
  }
}

template <class T, class Team, class Grad, class Sum, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, Grad grad, Grad part, Sum sum,
                         F f) {
  for (std::int64_t r = 0; r < rows.count; r = rows.end_of_sequence(r))
    add_sequence<T>(team, s, r, rows.end_of_sequence(r), grad, part, sum, f);
}

// What part of a team's sums lies in memory: none for a block.
template <class Team> inline constexpr std::int64_t part_columns =
    Team::threads == 1 ? most_columns : 1;

} // namespace detail

/// grad[j] += sum over rows of f(row, lanes j), for the columns of a slab.
template <class T, class Team, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, accumulator_t<T>* grad, F f) {
  using G = accumulator_t<T>;
  alignas(64) G part[detail::part_columns<Team>];
  alignas(64) double sum[detail::part_columns<Team>];
  using one = detail::one_gradient<G>;
  detail::add_rows<T>(team, s, rows, one{grad}, one{part}, detail::one_gradient<double>{sum}, f);
}

/// Adds up the rows [first, end) of one sum.
template <class T, class Team, class F>
MEGACPP_HD void add_rows_of(const Team& team, slab s, std::int64_t first, std::int64_t end,
                            accumulator_t<T>* grad, F f) {
  using G = accumulator_t<T>;
  alignas(64) G part[detail::part_columns<Team>];
  alignas(64) double sum[detail::part_columns<Team>];
  using one = detail::one_gradient<G>;
  detail::add_sequence<T>(team, s, first, end, one{grad}, one{part},
                          detail::one_gradient<double>{sum}, f);
}

/// The same for two gradients: f returns a two<vec>.
template <class T, class Team, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, accumulator_t<T>* first,
                         accumulator_t<T>* second, F f) {
  using G = accumulator_t<T>;
  alignas(64) G part[2][detail::part_columns<Team>];
  alignas(64) double sum[2][detail::part_columns<Team>];
  using both = detail::two_gradients<G>;
  detail::add_rows<T>(team, s, rows, both{first, second}, both{part[0], part[1]},
                      detail::two_gradients<double>{sum[0], sum[1]}, f);
}

// [slab]
/// bias gradient: grad[j] += sum over rows of dy[row, j].
template <class T> struct bias_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows rows;
  std::int64_t columns; // of a slab
  const T* dy;          // (rows, width)
  G* grad;              // (width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    add_rows<T>(team, slab(index, columns, width), rows, grad,
                [&](std::int64_t r, auto i) { return load<G>(dy + r * width, i); });
  }
};

template <class T, class Device> void bias_gradient(Device& on, summed_rows rows,
                                                    std::int64_t width, const T* dy,
                                                    accumulator_t<T>* grad) {
  for_slabs(on, bias_gradient_slab<T>{width, rows, 0, dy, grad});
}
// [/slab]

} // namespace mc::rows
