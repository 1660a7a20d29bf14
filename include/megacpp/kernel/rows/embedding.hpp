// Embedding: rows of a table by id, for a table that holds ids [first, first + count) of a larger
// vocabulary. Other ids give zero rows and no gradient, so that shards add up to the whole.
//
//   y[t] = table[ids[t] - first]          dtable[ids[t] - first] += sum of dy[t] of an id's tokens
//
// The gradient is cut by columns, so that no two threads share an element, whatever ids repeat.
// Tokens are sorted by their ids, and an id that comes thousands of times is summed as columns.hpp
// sums rows, with no more than 65 roundings.
#pragma once

#include <megacpp/kernel/rows/columns.hpp>

namespace mc::rows {

template <class T, class Extent> struct embedding_row {
  using G = accumulator_t<T>;
  Extent width;
  std::int64_t first, count;
  const T* table;          // (count, width)
  const std::int32_t* ids; // (T)
  T* y;                    // (T, width)

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, table, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t id = ids[token] - first;
    T* out = y + token * width;
    if (id >= 0 && id < count) {
      const T* in = table + id * width;
      team.template each<T>(width, [&](auto i) { store(out, i, load<G>(in, i)); });
    } else {
      team.template each<T>(width,
                            [&](auto i) { store(out, i, vec<G, decltype(i)::count>(G(0))); });
    }
  }
};

/// The order in which the gradient of a table adds up tokens. Each token has a number, which sorts
/// by sequence, then by row of the table, and then by token. A bin is the tokens of one row in
/// one sequence; tokens without a row are one bin behind all others.
struct token_order {
  std::int64_t rows, bins; ///< rows of the table; bins of tokens that have a row
  int token_bits;          ///< bits of a number for the token, below the bits of the bin

  MEGACPP_HD constexpr token_order(const summed_rows& tokens, std::int64_t rows_of_table)
      : rows(rows_of_table),
        bins((tokens.count + tokens.sequence - 1) / tokens.sequence * rows_of_table),
        token_bits(bits_of(tokens.count)) {}

  MEGACPP_HD static constexpr int bits_of(std::int64_t numbers) {
    int bits = 0;
    while (bits < 63 && (std::int64_t{1} << bits) < numbers) ++bits;
    return bits;
  }
  /// Returns the bits of a token's number for its bin: all bins, and the one without a row.
  MEGACPP_HD constexpr int bin_bits() const { return bits_of(bins + 1); }
  /// Returns true if the 64 bits of a number are enough for bin and token.
  MEGACPP_HD constexpr bool fits() const { return token_bits + bin_bits() <= 64; }

  MEGACPP_HD std::uint64_t number(std::int64_t bin, std::int64_t token) const {
    return static_cast<std::uint64_t>(bin) << token_bits | static_cast<std::uint64_t>(token);
  }
  MEGACPP_HD std::int64_t bin_of(std::uint64_t number) const {
    return static_cast<std::int64_t>(number >> token_bits);
  }
  MEGACPP_HD std::int64_t token_of(std::uint64_t number) const {
    return static_cast<std::int64_t>(number & ((std::uint64_t{1} << token_bits) - 1));
  }
};

/// Computes the number by which each token is sorted, in the order of tokens.
struct number_tokens {
  summed_rows tokens;
  token_order order;
  std::int64_t first;      // id of the table's first row
  const std::int32_t* ids; // (T)
  std::uint64_t* numbers;  // (T)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t block) const {
    each_in_block<std::int64_t>(team, block, tokens.count, [&](auto i) {
      for (std::int64_t t = i.first; t < i.first + decltype(i)::count; ++t) {
        const std::int64_t row = ids[t] - first;
        const bool has_one = row >= 0 && row < order.rows;
        numbers[t] = order.number(has_one ? t / tokens.sequence * order.rows + row : order.bins, t);
      }
    });
  }
};

template <class T> struct embedding_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width, tokens;
  token_order order;
  std::int64_t columns;
  const T* dy;                  // (T, width)
  const std::uint64_t* numbers; // (T): sorted
  G* dtable;                    // (rows of the table, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    for (std::int64_t k = 0; k < tokens;) {
      const std::int64_t begin = k, bin = order.bin_of(numbers[k]);
      if (bin == order.bins) return;
      while (k < tokens && order.bin_of(numbers[k]) == bin) ++k;
      add_rows_of<T>(team, s, begin, k, dtable + bin % order.rows * width,
                     [&](std::int64_t r, auto i) {
                       return load<G>(dy + order.token_of(numbers[r]) * width, i);
                     });
    }
  }
};

/// The places of partial sums among the sorted tokens: 64 tokens each, from a bin's first token
/// on.
struct token_partials {
  std::int64_t tokens;
  token_order order;
  const std::uint64_t* numbers; // (T): sorted

  MEGACPP_HD std::int64_t bin_at(std::int64_t k) const { return order.bin_of(numbers[k]); }
  /// Returns true if a bin of tokens is of this sequence and has a row of the table.
  MEGACPP_HD bool is_in(std::int64_t sequence, std::int64_t bin) const {
    return bin != order.bins && bin / order.rows == sequence;
  }
  /// Returns the first place from `low` on whose token is of the bin `key` or a later one;
  /// `high`, where there is none before it.
  MEGACPP_HD std::int64_t first_from(std::int64_t low, std::int64_t high, std::int64_t key) const {
    while (low < high) {
      const std::int64_t middle = low + (high - low) / 2;
      if (bin_at(middle) < key) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  /// Returns true if the bin of tokens that begins there has more than one partial sum.
  MEGACPP_HD bool is_long(std::int64_t begin) const {
    return begin + rows_per_partial < tokens && bin_at(begin + rows_per_partial) == bin_at(begin);
  }
  /// Returns the number, among the partial sums of long bins, of the one that begins at k.
  /// Within 64 tokens one partial sum of the bin before may begin, and one may begin with its
  /// bin.
  MEGACPP_HD static std::int64_t number(std::int64_t k, std::int64_t begin) {
    return k / rows_per_partial * 2 + (k == begin ? 1 : 0);
  }
  MEGACPP_HD static constexpr std::int64_t windows(std::int64_t of_tokens) {
    return (of_tokens + rows_per_partial - 1) / rows_per_partial;
  }
};

/// Computes the partial sum that begins at a token of a sequence, if one does, and adds it to the
/// table if the bin has no other. A launch is for one sequence: the table has one row for the
/// bins of an id in several sequences, which are added one after the other.
template <class T> struct embedding_gradient_partial {
  using G = accumulator_t<T>;
  std::int64_t width, sequence;
  token_partials of;
  const T* dy; // (T, width)
  G* dtable;   // (rows of the table, width)
  G* sums;     // (2 windows, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t k = of.first_from(0, of.tokens, sequence * of.order.rows) + token;
    if (k >= of.tokens) return;
    const std::int64_t bin = of.bin_at(k);
    if (!of.is_in(sequence, bin)) return;
    const std::int64_t begin = of.first_from(0, k, bin);
    if ((k - begin) % rows_per_partial != 0) return;
    const std::int64_t last = k + rows_per_partial < of.tokens ? k + rows_per_partial : of.tokens,
                       end = of.first_from(k + 1, last, bin + 1);
    const bool whole = !of.is_long(begin);
    G* const row = dtable + bin % of.order.rows * width;
    G* const sum = sums + token_partials::number(k, begin) * width;
    team.template each<T>(width, [&](auto i) {
      auto p = load<G>(dy + of.order.token_of(of.numbers[k]) * width, i);
      for (std::int64_t r = k + 1; r < end; ++r)
        p = p + load<G>(dy + of.order.token_of(of.numbers[r]) * width, i);
      if (whole) store(row, i, load<G>(row, i) + p);
      else store(sum, i, p);
    });
  }
};
/// Adds up the partial sums of the long bin that begins within 64 tokens of a sequence, if one
/// does.
template <class G> struct embedding_gradient_total {
  std::int64_t width, sequence;
  token_partials of;
  const G* sums; // (2 windows, width)
  G* dtable;     // (rows of the table, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t window) const {
    const std::int64_t first = window * rows_per_partial, end = first + rows_per_partial < of.tokens
                                                                    ? first + rows_per_partial
                                                                    : of.tokens;
    for (std::int64_t begin = first; begin < end; ++begin) {
      const std::int64_t bin = of.bin_at(begin);
      if (!of.is_in(sequence, bin) || (begin > 0 && of.bin_at(begin - 1) == bin) ||
          !of.is_long(begin))
        continue;
      G* const row = dtable + bin % of.order.rows * width;
      team.template each<G>(width, [&](auto i) {
        const auto partial = [&](std::int64_t k) {
          return to<double>(load<G>(sums + token_partials::number(k, begin) * width, i));
        };
        auto all = partial(begin);
        for (std::int64_t k = begin + rows_per_partial; k < of.tokens && of.bin_at(k) == bin;
             k += rows_per_partial)
          all = all + partial(k);
        store(row, i, load<G>(row, i) + to<G>(all));
      });
      return; // no other long bin begins in the window
    }
  }
};

/// Copies rows of the table. A NaN becomes a quiet NaN; every other number keeps its bits.
template <class T, class Extent, class Device>
void embedding(Device& on, std::int64_t tokens, Extent width, const T* table, std::int64_t first,
               std::int64_t count, const std::int32_t* ids, T* y) {
  for_rows(on, tokens, embedding_row<T, Extent>{width, first, count, table, ids, y});
}

/// Starts number_tokens. A lane then sorts the numbers (l.sort) by their bits from order.token_bits
/// on: numbers that agree in those bits are in the order of tokens already.
template <class Device> void number_of_tokens(Device& on, const summed_rows& tokens,
                                              const token_order& order, std::int64_t first,
                                              const std::int32_t* ids, std::uint64_t* numbers) {
  for_blocks(on, tokens.count, number_tokens{tokens, order, first, ids, numbers});
}

/// Returns the bytes that embedding_gradient needs on a lane for partial sums.
template <class Lane, class G>
constexpr std::int64_t bytes_of_token_partials(std::int64_t tokens, std::int64_t width) {
  if (!detail::sums_by_partials<Lane>()) return 0;
  return 2 * token_partials::windows(tokens) * width * std::int64_t{sizeof(G)};
}
/// Adds up the gradient of a table; the `numbers` of tokens are sorted. `sums` is memory for
/// partial sums (bytes_of_token_partials), on a lane with sums_by_partials.
template <class T, class Device>
void embedding_gradient(Device& on, const summed_rows& tokens, const token_order& order,
                        std::int64_t width, const T* dy, const std::uint64_t* numbers,
                        accumulator_t<T>* dtable, [[maybe_unused]] std::byte* sums = nullptr) {
  if constexpr (detail::sums_by_partials<Device>()) {
    using G = accumulator_t<T>;
    const token_partials of{tokens.count, order, numbers};
    auto* const partials = reinterpret_cast<G*>(sums);
    for (std::int64_t s = 0; s * tokens.sequence < tokens.count; ++s) {
      for_rows(on, tokens.sequence,
               embedding_gradient_partial<T>{width, s, of, dy, dtable, partials});
      for_rows(on, token_partials::windows(tokens.count),
               embedding_gradient_total<G>{width, s, of, partials, dtable});
    }
  } else {
    for_slabs(on, embedding_gradient_slab<T>{width, tokens.count, order, 0, dy, numbers, dtable});
  }
}

} // namespace mc::rows
