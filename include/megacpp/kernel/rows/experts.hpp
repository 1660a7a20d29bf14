// Rows between tokens and experts (op/experts.hpp). A round holds the rows [base, base + rows) of a
// rank; row[t k + j] is the row of choice j of token t, -1 if the choice was dropped.
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

/// Dispatch: copies the values of one token to the rows of its choices of experts.
template <class T, class Extent> struct dispatch_token {
  Extent width; // H
  int k;
  std::int64_t base, rows;
  const T* x;              // (tokens, H)
  const std::int32_t* row; // (tokens, k)
  T* to;                   // (rows, H)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, to); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t t) const {
    using G = accumulator_t<T>;
    for (int j = 0; j < k; ++j) {
      const std::int64_t at = row[t * k + j] - base;
      if (row[t * k + j] < 0 || at < 0 || at >= rows) continue;
      team.template each<T>(width,
                            [&](auto i) { store(to + at * width, i, load<G>(x + t * width, i)); });
    }
  }
};

/// Combine: adds the rows of one token's choices in this round to its y.
template <class T, class Extent> struct combine_token {
  Extent width; // H
  int k;
  std::int64_t base, rows;
  const T* from;           // (rows, H)
  const std::int32_t* row; // (tokens, k)
  T* y;                    // (tokens, H)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, from, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t t) const {
    using G = accumulator_t<T>;
    team.template each<T>(width, [&](auto i) {
      auto sum = load<G>(y + t * width, i);
      for (int j = 0; j < k; ++j) {
        const std::int64_t at = row[t * k + j] - base;
        if (row[t * k + j] < 0 || at < 0 || at >= rows) continue;
        sum = sum + load<G>(from + at * width, i);
      }
      store(y + t * width, i, sum);
    });
  }
};

/// Dispatch: copies one number of each choice to its row, for choices in the round.
template <class T> struct dispatch_numbers {
  std::int64_t choices, base, rows;
  const T* x;              // (choices)
  const std::int32_t* row; // (choices)
  T* to;                   // (rows)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, choices, [&](auto i) {
      for (std::int64_t k = i.first; k < i.first + decltype(i)::count; ++k)
        if (const std::int64_t at = row[k] - base; row[k] >= 0 && at >= 0 && at < rows)
          to[at] = x[k];
    });
  }
};

/// Combine: copies one number from its row to each choice in the round.
template <class T> struct combine_numbers {
  std::int64_t choices, base, rows;
  const T* from;           // (rows)
  const std::int32_t* row; // (choices)
  T* y;                    // (choices)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, choices, [&](auto i) {
      for (std::int64_t k = i.first; k < i.first + decltype(i)::count; ++k)
        if (const std::int64_t at = row[k] - base; row[k] >= 0 && at >= 0 && at < rows)
          y[k] = from[at];
    });
  }
};

/// Ranges of choices. Choices are numbered range by range; no range has choices of two sequences.
struct choice_ranges {
  static constexpr std::int64_t in_range = 1024;
  std::int64_t sequences, of_sequence; // number of choices of each sequence

  MEGACPP_HD constexpr std::int64_t in_sequence() const {
    return (of_sequence + in_range - 1) / in_range;
  }
  MEGACPP_HD constexpr std::int64_t count() const { return sequences * in_sequence(); }
  MEGACPP_HD constexpr std::int64_t begin(std::int64_t range) const {
    return range / in_sequence() * of_sequence + range % in_sequence() * in_range;
  }
  MEGACPP_HD constexpr std::int64_t end(std::int64_t range) const {
    const std::int64_t last = (range / in_sequence() + 1) * of_sequence,
                       to = begin(range) + in_range;
    return to < last ? to : last;
  }
};

/// Marks the choices among [first, first + n) of a micro-batch that one expert takes: the first
/// ones, up to `capacity` in all launches together. `begins`: this launch is the first.
struct take_choices {
  std::int64_t first, n, capacity;
  bool begins;
  const std::int32_t* chosen; // (choices)
  std::int32_t* count;        // (E)
  bool* taken;                // (choices)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t expert) const {
    if (!team.leader()) return;
    std::int32_t k = begins ? 0 : count[expert];
    for (std::int64_t i = first; i < first + n; ++i)
      if (chosen[i] == expert) taken[i] = k++ < capacity;
    count[expert] = k;
  }
};

/// The choices that their experts take: all choices, or this rank's among those of a micro-batch
/// that are `taken`.
struct taken_choices {
  const bool* taken;               // null: all choices are taken
  std::int64_t own, whole, before; // a sequence's choices: this rank's, all, those before

  MEGACPP_HD bool operator()(std::int64_t i) const {
    return taken == nullptr || taken[i / own * whole + before + i % own];
  }
};

/// Counts how often each range of choices has chosen each expert.
struct count_choices {
  choice_ranges ranges;
  std::int64_t experts;
  taken_choices taken;
  const std::int32_t* chosen; // (choices)
  std::int32_t* count;        // (ranges, E)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t range) const {
    if (!team.leader()) return;
    std::int32_t* const n = count + range * experts;
    for (std::int64_t e = 0; e < experts; ++e) n[e] = 0;
    for (std::int64_t i = ranges.begin(range); i < ranges.end(range); ++i)
      if (taken(i)) ++n[chosen[i]];
  }
};

/// Adds up the counts of one expert: its choices in each sequence, and before each range.
struct add_counts {
  choice_ranges ranges;
  std::int64_t experts;
  std::int32_t* count; // (ranges, E): becomes the number of choices before the range
  std::int32_t* own;   // (E, sequences)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t expert) const {
    if (!team.leader()) return;
    std::int32_t before = 0, begin = 0;
    for (std::int64_t p = 0; p < ranges.count(); ++p) {
      std::int32_t& n = count[p * experts + expert];
      const std::int32_t in_range = n;
      n = before, before += in_range;
      if ((p + 1) % ranges.in_sequence() != 0) continue;
      own[expert * ranges.sequences + p / ranges.in_sequence()] = before - begin;
      begin = before;
    }
  }
};

/// Sorts the counts of the experts of one rank of ep: from all ranks, by expert and then by rank.
/// Also finds the first row of this rank's choices for each expert.
struct place_experts {
  std::int64_t mine, ranks, me, apart, experts;
  const std::int32_t* all; // (ranks, E, apart)
  std::int32_t* counts;    // (E, ranks, apart)
  std::int32_t* begin;     // (E)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t ep) const {
    if (!team.leader()) return;
    std::int32_t row = 0;
    for (std::int64_t e = ep * mine; e < (ep + 1) * mine; ++e)
      for (std::int64_t q = 0; q < ranks; ++q) {
        if (q == me) begin[e] = row;
        for (std::int64_t k = 0; k < apart; ++k) {
          const std::int32_t n = all[(q * experts + e) * apart + k];
          counts[(e * ranks + q) * apart + k] = n, row += n;
        }
      }
  }
};

/// Computes the row of each choice of a range; -1: the choice is dropped.
struct number_choices {
  choice_ranges ranges;
  std::int64_t experts;
  taken_choices taken;
  const std::int32_t* chosen; // (choices)
  const std::int32_t* begin;  // (E): first row of an expert
  std::int32_t* count;        // (ranges, E): number of choices before the range; it is overwritten
  std::int32_t* row;          // (choices)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t range) const {
    if (!team.leader()) return;
    std::int32_t* const n = count + range * experts;
    for (std::int64_t i = ranges.begin(range); i < ranges.end(range); ++i)
      row[i] = taken(i) ? begin[chosen[i]] + n[chosen[i]]++ : -1;
  }
};

/// Computes how many rounds of so many rows the fullest rank of ep needs, at least one.
struct count_rounds {
  std::int64_t rows, ep, of_rank; // of_rank: number of counts of one rank's experts
  const std::int32_t* counts;     // (ep, of_rank)
  std::int32_t* rounds;           // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    std::int64_t most = 1;
    for (std::int64_t r = 0; r < ep; ++r) {
      std::int64_t n = 0;
      for (std::int64_t i = 0; i < of_rank; ++i) n += counts[r * of_rank + i];
      if (n > most) most = n;
    }
    *rounds = static_cast<std::int32_t>((most + rows - 1) / rows);
  }
};

/// The rows of one expert from one rank: n rows from `row` of the round, which are on the way from
/// element `at` on.
struct piece_of_rows {
  std::int64_t row, at, n;
};

/// Computes the place of each choice on the way; -1: the choice is not in the round, or dropped.
struct place_choices {
  std::int64_t choices, base, end;
  const std::int32_t* chosen; // (choices)
  const std::int32_t* row;    // (choices)
  const std::int64_t* shift;  // (E)
  std::int32_t* place;        // (choices)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<float>(team, block, choices, [&](auto i) {
      for (std::int64_t k = i.first; k < i.first + decltype(i)::count; ++k) {
        const bool here = row[k] >= base && row[k] < end;
        place[k] = here ? static_cast<std::int32_t>(shift[chosen[k]] + row[k]) : -1;
      }
    });
  }
};

/// Copies rows of experts that have arrived from another rank to their places.
template <class T> struct rows_from_way {
  std::int64_t width;
  const piece_of_rows* piece; // (pieces)
  const T* way;
  T* rows; // (R, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t k) const {
    const piece_of_rows p = piece[k];
    team.template each<T>(p.n * width, [&](auto i) { copy(rows + p.row * width, way + p.at, i); });
  }
};
/// Copies rows of experts to the memory from which they are sent back.
template <class T> struct rows_to_way {
  std::int64_t width;
  const piece_of_rows* piece; // (pieces)
  const T* rows;              // (R, width)
  T* way;

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t k) const {
    const piece_of_rows p = piece[k];
    team.template each<T>(p.n * width, [&](auto i) { copy(way + p.at, rows + p.row * width, i); });
  }
};

/// Computes the sum of x (copies, n) over copies, from the first copy on, in place of the first.
template <class T> struct sum_of_copies {
  using G = accumulator_t<T>;
  std::int64_t n, copies;
  T* x;

  bool aligned() const { return rows_aligned<T>(n, x); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<T>(team, block, n, [&](auto i) {
      auto sum = load<G>(x, i);
      for (std::int64_t k = 1; k < copies; ++k) sum = sum + load<G>(x + k * n, i);
      store(x, i, sum);
    });
  }
};

template <class T, class Extent> struct scale_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* x; // (rows, F)
  const G* w; // (rows)
  T* y;       // (rows, F)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    team.template each<T>(width, [&](auto i) {
      const auto v = load<G>(x + row * width, i);
      store(y + row * width, i, v * decltype(v)(w[row]));
    });
  }
};

template <class T, class Extent> struct scale_weight_grad_row {
  using G = accumulator_t<T>;
  Extent width;
  const T* dy; // (rows, F)
  const T* x;  // (rows, F)
  G* dw;       // (rows)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, dy, x); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const G sum = team.template sum<T>(
        width, [&](auto i) { return load<G>(dy + row * width, i) * load<G>(x + row * width, i); });
    if (team.leader()) dw[row] = sum;
  }
};

} // namespace mc::rows
