// Sums over rows, per column: gradients of gains and biases.
//
//   grad[j] += sum over rows r of f(r, j)
//
// Columns are cut into slabs, one per body call; within a slab rows are walked in order, 64 at a
// time into registers and then into grad, and never across two sequences where a sum is not to
// depend on how many of them a micro-batch has. No column's result depends on how columns are cut,
// so cuts follow the number of threads, and no loop ends at the width: these kernels do not know it
// before they run.
#pragma once

#include <megacpp/exec/parallel.hpp>

namespace mc::rows {

inline constexpr std::int64_t rows_per_part = 64;
inline constexpr std::int64_t most_columns = 1024;

/// Columns of a slab so that every thread has one, in whole lines of 64 bytes of accumulators.
template <class G> std::int64_t columns_per_slab(std::int64_t width) {
  constexpr std::int64_t group = lane_count<G>;
  const std::int64_t threads = thread_count(), share = (width + threads - 1) / threads;
  const std::int64_t rounded = (share + group - 1) / group * group;
  return rounded < most_columns ? rounded : most_columns;
}

/// body(core_team{}, slab) for every slab of `columns` of `width`.
template <class Body> void for_slabs(std::int64_t width, std::int64_t columns, Body body) {
  for_rows((width + columns - 1) / columns, body);
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
  MEGACPP_HD summed_rows(std::int64_t n) : summed_rows(n, n) {}
  MEGACPP_HD summed_rows(std::int64_t n, std::int64_t of_sequence)
      : count(n), sequence(of_sequence) {}
  /// Where the part that begins with row r ends.
  MEGACPP_HD std::int64_t end_of_part(std::int64_t r) const {
    const std::int64_t border = (r / sequence + 1) * sequence;
    return r + rows_per_part < border ? r + rows_per_part : border;
  }
};

namespace detail {

// Partial sums of Grads gradients. f(row, lanes) returns a vec, or a two<vec> for two gradients.
template <class V> MEGACPP_HD V sum_of(V a, V b) { return a + b; }
template <class V> MEGACPP_HD two<V> sum_of(two<V> a, two<V> b) {
  return {a.first + b.first, a.second + b.second};
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
// along rows. In a block every thread keeps its columns in registers. Same order, same bits.
template <class T, class Team, class Grad, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, Grad grad, Grad part, F f) {
  for (std::int64_t r = 0; r < rows.count;) {
    const std::int64_t end = rows.end_of_part(r);
    if constexpr (Team::threads == 1) {
      team.template each<T>(s.count, [&](auto i) { part.set(i, f(r, s.at(i))); });
      for (++r; r + 4 <= end; r += 4) {
        team.template each<T>(s.count, [&](auto i) {
          auto p = sum_of(part.get(i), f(r, s.at(i)));
          p = sum_of(p, f(r + 1, s.at(i)));
          p = sum_of(p, f(r + 2, s.at(i)));
          part.set(i, sum_of(p, f(r + 3, s.at(i))));
        });
      }
      for (; r < end; ++r) {
        team.template each<T>(s.count,
                              [&](auto i) { part.set(i, sum_of(part.get(i), f(r, s.at(i)))); });
      }
      team.template each<T>(
          s.count, [&](auto i) { grad.set(s.at(i), sum_of(grad.get(s.at(i)), part.get(i))); });
    } else {
      team.template each<T>(s.count, [&](auto i) {
        auto p = f(r, s.at(i));
        for (std::int64_t k = r + 1; k < end; ++k) p = sum_of(p, f(k, s.at(i)));
        grad.set(s.at(i), sum_of(grad.get(s.at(i)), p));
      });
      r = end;
    }
  }
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
  using one = detail::one_gradient<G>;
  detail::add_rows<T>(team, s, rows, one{grad}, one{part}, f);
}

/// The same for two gradients: f returns a two<vec>.
template <class T, class Team, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, accumulator_t<T>* first,
                         accumulator_t<T>* second, F f) {
  using G = accumulator_t<T>;
  alignas(64) G part[2][detail::part_columns<Team>];
  using both = detail::two_gradients<G>;
  detail::add_rows<T>(team, s, rows, both{first, second}, both{part[0], part[1]}, f);
}

/// bias gradient: grad[j] += sum over rows of dy[row, j].
template <class T> struct bias_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows rows;
  std::int64_t columns;
  const T* dy; // (rows, width)
  G* grad;     // (width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    add_rows<T>(team, slab(index, columns, width), rows, grad,
                [&](std::int64_t r, auto i) { return load<G>(dy + r * width, i); });
  }
};

template <class T>
void bias_gradient(summed_rows rows, std::int64_t width, const T* dy, accumulator_t<T>* grad) {
  const std::int64_t columns = columns_per_slab<accumulator_t<T>>(width);
  for_slabs(width, columns, bias_gradient_slab<T>{width, rows, columns, dy, grad});
}

} // namespace mc::rows
