// Sums over rows, for each column: gradients of gains and biases.
//
//   grad[j] += sum over rows r of f(r, j)
//
// Columns are cut into slabs, one for each call of a body. Within a slab rows are taken in order:
// 64 rows make a partial sum, partial sums are added up in double, and the total is added to grad
// once. So a sum is off by at most 65 roundings of its terms' magnitudes, however many rows there
// are (the gains of q and k have a row for each token and head). Where gradients must not depend on
// the number of sequences in a micro-batch, each sequence is summed apart. No column's result
// depends on the cut, so cuts follow the number of threads, and no loop ends at the width: these
// kernels do not know it before they run.
//
// A core takes a slab from its first row to its last. On a device of many blocks a width has too
// few slabs for that: one launch computes every partial sum by itself there, and a second launch
// adds the partial sums up, in the same order, so with the same bits.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

inline constexpr std::int64_t rows_per_partial = 64;
inline constexpr std::int64_t most_columns = 1024;

/// The rows of whole sequences, each of which is summed apart; by default one sequence.
struct summed_rows {
  std::int64_t count, sequence;
  MEGACPP_HD constexpr summed_rows(std::int64_t n) : summed_rows(n, n) {}
  MEGACPP_HD constexpr summed_rows(std::int64_t n, std::int64_t of_sequence)
      : count(n), sequence(of_sequence) {}
  /// Returns the first row behind the sequence of row r.
  MEGACPP_HD std::int64_t end_of_sequence(std::int64_t r) const {
    return (r / sequence + 1) * sequence;
  }
  /// Return the number of partial sums of rows in one sequence, and in all sequences.
  MEGACPP_HD constexpr std::int64_t partials_of_sequence() const {
    return (sequence + rows_per_partial - 1) / rows_per_partial;
  }
  MEGACPP_HD constexpr std::int64_t partials() const {
    return count == 0 ? 0 : count / sequence * partials_of_sequence();
  }
};

namespace detail {

/// The memory for partial sums, (partial sums, arrays, width) of accumulators, and the number of
/// the partial sum that a call of a body computes; none where the call adds them up.
struct partial_sums {
  static constexpr std::int64_t none = -1;
  std::int64_t partial, width;
  std::byte* sums;
};
/// A team with which add_rows computes one partial sum, or adds up all of them.
template <class Team> struct team_of_partials : Team { partial_sums partials; };

template <class Lane> constexpr bool sums_by_partials() {
  if constexpr (requires { Lane::sums_by_partials; }) return Lane::sums_by_partials;
  else return false;
}

} // namespace detail

/// Computes a partial sum of the columns of a slab, by body `Slab`; its gradients are not touched.
template <class Slab> struct partial_of_slab {
  Slab slab;
  std::int64_t slabs;
  std::byte* sums;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    slab(detail::team_of_partials<Team>{team, {index / slabs, slab.width, sums}}, index % slabs);
  }
};
/// Adds all partial sums to the gradients of a slab, by body `Slab`; its rows are not read.
template <class Slab> struct total_of_slab {
  Slab slab;
  std::byte* sums;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    slab(detail::team_of_partials<Team>{team, {detail::partial_sums::none, slab.width, sums}},
         index);
  }
};

/// Returns the bytes that for_slabs needs on a lane for `arrays` gradients of accumulators G of a
/// width.
template <class Lane, class G> constexpr std::int64_t bytes_of_partials(const summed_rows& rows,
                                                                        std::int64_t width,
                                                                        int arrays = 1) {
  if (!detail::sums_by_partials<Lane>() || rows.partials() < 2) return 0;
  return rows.partials() * width * arrays * std::int64_t{sizeof(G)};
}

/// Starts body(team, slab) for every slab of the columns that a body sums; body.width is their
/// number. The columns of a slab depend on the device: for_slabs sets body.columns so that
/// there are as many slabs as the lane wants, in whole lines of 64 bytes of accumulators. A
/// body that has `rows` and sums them by add_rows is started for each partial sum and once for
/// the total, where the lane wants it and `sums` is memory for it (bytes_of_partials). Such a
/// body must call add_rows exactly once, and store nothing else.
template <class Lane, class Body>
void for_slabs(Lane& on, Body body, [[maybe_unused]] std::byte* sums = nullptr) {
  constexpr std::int64_t group = lane_count<typename Body::G>;
  const std::int64_t width = body.width;
  const auto in_slabs_of = [width](std::int64_t columns) {
    return (width + columns - 1) / columns;
  };
  const auto rounded = [](std::int64_t columns) {
    const std::int64_t lines = (columns + group - 1) / group * group;
    return lines < most_columns ? lines : most_columns;
  };
  const std::int64_t columns = rounded((width + on.slabs() - 1) / on.slabs());
  if constexpr (detail::sums_by_partials<Lane>() && requires { body.rows.partials(); }) {
    if (sums != nullptr && body.rows.partials() > 1) {
      body.columns = rounded(width);
      const std::int64_t slabs = in_slabs_of(body.columns);
      for_rows(on, slabs * body.rows.partials(), partial_of_slab<Body>{body, slabs, sums});
      body.columns = columns;
      return for_rows(on, in_slabs_of(columns), total_of_slab<Body>{body, sums});
    }
  }
  body.columns = columns;
  for_rows(on, in_slabs_of(columns), body);
}

/// A slab: the columns [first, first + count) that one call of a body sums.
struct slab {
  std::int64_t first, count;
  MEGACPP_HD slab(std::int64_t index, std::int64_t columns, std::int64_t width)
      : first(index * columns), count(width - first < columns ? width - first : columns) {}
  template <int N> MEGACPP_HD lanes<N> at(lanes<N> i) const { return {first + i.first}; }
};

namespace detail {

// The functions f(row, lanes) below return a vec, or a two<vec> for two gradients.
template <class V> MEGACPP_HD V sum_of(V a, V b) { return a + b; }
template <class V> MEGACPP_HD two<V> sum_of(two<V> a, two<V> b) {
  return {a.first + b.first, a.second + b.second};
}
template <class B, class A, int N> MEGACPP_HD vec<B, N> as_sum(vec<A, N> x) { return to<B>(x); }
template <class B, class V> MEGACPP_HD auto as_sum(two<V> x) {
  return two<decltype(to<B>(x.first))>{to<B>(x.first), to<B>(x.second)};
}

template <class G> struct one_gradient {
  static constexpr int arrays = 1;
  G* grad;
  MEGACPP_HD static one_gradient in(G* sums, std::int64_t /*width*/) { return {sums}; }
  template <int N> MEGACPP_HD vec<G, N> get(lanes<N> i) const { return load<G>(grad, i); }
  template <int N> MEGACPP_HD void set(lanes<N> i, vec<G, N> x) const { store(grad, i, x); }
};

template <class G> struct two_gradients {
  static constexpr int arrays = 2;
  G *first, *second;
  MEGACPP_HD static two_gradients in(G* sums, std::int64_t width) { return {sums, sums + width}; }
  template <int N> MEGACPP_HD two<vec<G, N>> get(lanes<N> i) const {
    return {load<G>(first, i), load<G>(second, i)};
  }
  template <int N> MEGACPP_HD void set(lanes<N> i, two<vec<G, N>> x) const {
    store(first, i, x.first);
    store(second, i, x.second);
  }
};

// Computes a partial sum on a core, in the first-level cache and four whole rows at a time: memory
// is read along rows.
template <class T, class Team, class Partial, class F>
MEGACPP_HD void sum_partial(const Team& team, slab s, std::int64_t r, std::int64_t end,
                            Partial partial, F f) {
  team.template each<T>(s.count, [&](auto i) { partial.set(i, f(r, s.at(i))); });
  for (++r; r + 4 <= end; r += 4) {
    team.template each<T>(s.count, [&](auto i) {
      auto p = sum_of(partial.get(i), f(r, s.at(i)));
      p = sum_of(p, f(r + 1, s.at(i)));
      p = sum_of(p, f(r + 2, s.at(i)));
      partial.set(i, sum_of(p, f(r + 3, s.at(i))));
    });
  }
  for (; r < end; ++r)
    team.template each<T>(s.count,
                          [&](auto i) { partial.set(i, sum_of(partial.get(i), f(r, s.at(i)))); });
}

// Adds the rows [r, end) of one sequence to grad.
template <class T, class Team, class Grad, class Sum, class F>
MEGACPP_HD void add_sequence(const Team& team, slab s, std::int64_t r, std::int64_t end, Grad grad,
                             Grad partial, Sum sum, F f) {
  using G = accumulator_t<T>;
  if (end - r == 1)
    return team.template each<T>(
        s.count, [&](auto i) { grad.set(s.at(i), sum_of(grad.get(s.at(i)), f(r, s.at(i)))); });
  if constexpr (Team::threads == 1) {
    for (bool first = true; r < end; first = false) {
      const std::int64_t next = r + rows_per_partial < end ? r + rows_per_partial : end;
      sum_partial<T>(team, s, r, next, partial, f);
      r = next;
      if (first && r == end) {
        team.template each<T>(
            s.count, [&](auto i) { grad.set(s.at(i), sum_of(grad.get(s.at(i)), partial.get(i))); });
      } else {
        team.template each<T>(s.count, [&](auto i) {
          const auto p = as_sum<double>(partial.get(i));
          const auto all = first ? p : sum_of(sum.get(i), p);
          if (r < end) sum.set(i, all);
          else grad.set(s.at(i), sum_of(grad.get(s.at(i)), as_sum<G>(all)));
        });
      }
    }
  } else { // a thread of a block keeps its columns in registers: the same order, the same bits
    team.template each<T>(s.count, [&](auto i) {
      decltype(as_sum<double>(f(r, s.at(i)))) all{};
      for (std::int64_t k = r; k < end; k += rows_per_partial) {
        const std::int64_t next = k + rows_per_partial < end ? k + rows_per_partial : end;
        auto p = f(k, s.at(i));
        for (std::int64_t j = k + 1; j < next; ++j) p = sum_of(p, f(j, s.at(i)));
        all = k == r ? as_sum<double>(p) : sum_of(all, as_sum<double>(p));
      }
      grad.set(s.at(i), sum_of(grad.get(s.at(i)), as_sum<G>(all)));
    });
  }
}

// Returns the place of a partial sum's gradients in memory.
template <class Grad, class G>
MEGACPP_HD Grad of_partial(const partial_sums& in, std::int64_t partial) {
  return Grad::in(reinterpret_cast<G*>(in.sums) + partial * in.width * Grad::arrays, in.width);
}

// Computes one partial sum, in the order of add_sequence.
template <class T, class Grad, class Team, class F>
MEGACPP_HD void sum_one_partial(const Team& team, slab s, summed_rows rows, F f) {
  const std::int64_t each = rows.partials_of_sequence(), of = team.partials.partial / each,
                     first = of * rows.sequence + team.partials.partial % each * rows_per_partial,
                     last = (of + 1) * rows.sequence,
                     end = first + rows_per_partial < last ? first + rows_per_partial : last;
  const Grad to = of_partial<Grad, accumulator_t<T>>(team.partials, team.partials.partial);
  team.template each<T>(s.count, [&](auto i) {
    auto p = f(first, s.at(i));
    for (std::int64_t r = first + 1; r < end; ++r) p = sum_of(p, f(r, s.at(i)));
    to.set(s.at(i), p);
  });
}

// Adds all partial sums to grad, sequence by sequence.
template <class T, class Team, class Grad>
MEGACPP_HD void add_partials(const Team& team, slab s, summed_rows rows, Grad grad) {
  using G = accumulator_t<T>;
  const std::int64_t each = rows.partials_of_sequence(), partials = rows.partials();
  team.template each<T>(s.count, [&](auto i) {
    auto g = grad.get(s.at(i));
    for (std::int64_t first = 0; first < partials; first += each) {
      auto all = as_sum<double>(of_partial<Grad, G>(team.partials, first).get(s.at(i)));
      for (std::int64_t p = first + 1; p < first + each; ++p)
        all = sum_of(all, as_sum<double>(of_partial<Grad, G>(team.partials, p).get(s.at(i))));
      g = sum_of(g, as_sum<G>(all));
    }
    grad.set(s.at(i), g);
  });
}

template <class T, class Team, class Grad, class Sum, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, Grad grad, Grad partial,
                         Sum sum, F f) {
  if constexpr (requires { team.partials; }) {
    if (team.partials.partial == partial_sums::none) add_partials<T>(team, s, rows, grad);
    else sum_one_partial<T, Grad>(team, s, rows, f);
  } else {
    for (std::int64_t r = 0; r < rows.count; r = rows.end_of_sequence(r))
      add_sequence<T>(team, s, r, rows.end_of_sequence(r), grad, partial, sum, f);
  }
}

// The columns of a partial sum that a team holds in memory; a block holds none.
template <class Team> inline constexpr std::int64_t partial_columns =
    Team::threads == 1 ? most_columns : 1;

} // namespace detail

/// Computes grad[j] += sum over rows of f(row, lanes j), for the columns of a slab.
template <class T, class Team, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, accumulator_t<T>* grad, F f) {
  using G = accumulator_t<T>;
  alignas(64) G partial[detail::partial_columns<Team>];
  alignas(64) double sum[detail::partial_columns<Team>];
  using one = detail::one_gradient<G>;
  detail::add_rows<T>(team, s, rows, one{grad}, one{partial}, detail::one_gradient<double>{sum}, f);
}

/// Adds the rows [first, end), as one sum, to grad.
template <class T, class Team, class F>
MEGACPP_HD void add_rows_of(const Team& team, slab s, std::int64_t first, std::int64_t end,
                            accumulator_t<T>* grad, F f) {
  using G = accumulator_t<T>;
  alignas(64) G partial[detail::partial_columns<Team>];
  alignas(64) double sum[detail::partial_columns<Team>];
  using one = detail::one_gradient<G>;
  detail::add_sequence<T>(team, s, first, end, one{grad}, one{partial},
                          detail::one_gradient<double>{sum}, f);
}

/// Computes the sums over rows of two gradients: f returns a two<vec>.
template <class T, class Team, class F>
MEGACPP_HD void add_rows(const Team& team, slab s, summed_rows rows, accumulator_t<T>* first,
                         accumulator_t<T>* second, F f) {
  using G = accumulator_t<T>;
  alignas(64) G partial[2][detail::partial_columns<Team>];
  alignas(64) double sum[2][detail::partial_columns<Team>];
  using both = detail::two_gradients<G>;
  detail::add_rows<T>(team, s, rows, both{first, second}, both{partial[0], partial[1]},
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

template <class T, class Device>
void bias_gradient(Device& on, summed_rows rows, std::int64_t width, const T* dy,
                   accumulator_t<T>* grad, std::byte* sums = nullptr) {
  for_slabs(on, bias_gradient_slab<T>{width, rows, 0, dy, grad}, sums);
}
// [/slab]

} // namespace mc::rows
