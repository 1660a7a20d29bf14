// Embedding: rows of a table by number, for a table that holds ids [first, first + count) of a
// larger vocabulary. Other ids give zero rows and no gradient, so that shards add up to the whole.
//
//   y[t] = table[ids[t] - first]          dtable[ids[t] - first] += sum of dy[t] of an id's tokens
//
// The gradient is cut by columns: no two threads share an element, whatever ids repeat. Tokens are
// put in the order of their ids, so that an id that comes thousands of times is summed as
// columns.hpp sums rows, which costs it no more than 65 roundings.
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

/// The order in which the gradient of a table adds up tokens: each is a number, which orders by
/// sequence, then by row of the table, and then by token. A group is the tokens of one row in one
/// sequence; those that have no row are a group behind all others.
struct token_order {
  std::int64_t rows, groups; ///< rows of the table; groups of tokens that have one
  int token_bits;            ///< of a number, below those of the group

  MEGACPP_HD constexpr token_order(const summed_rows& tokens, std::int64_t rows_of_table)
      : rows(rows_of_table),
        groups((tokens.count + tokens.sequence - 1) / tokens.sequence * rows_of_table),
        token_bits(bits_of(tokens.count)) {}

  MEGACPP_HD static constexpr int bits_of(std::int64_t numbers) {
    int bits = 0;
    while (bits < 63 && (std::int64_t{1} << bits) < numbers) ++bits;
    return bits;
  }
  /// Bits of a number that tell its group: all groups, and the one of no row.
  MEGACPP_HD constexpr int group_bits() const { return bits_of(groups + 1); }
  /// Whether numbers are wide enough for both.
  MEGACPP_HD constexpr bool fits() const { return token_bits + group_bits() <= 64; }

  MEGACPP_HD std::uint64_t number(std::int64_t group, std::int64_t token) const {
    return static_cast<std::uint64_t>(group) << token_bits | static_cast<std::uint64_t>(token);
  }
  MEGACPP_HD std::int64_t group_of(std::uint64_t number) const {
    return static_cast<std::int64_t>(number >> token_bits);
  }
  MEGACPP_HD std::int64_t token_of(std::uint64_t number) const {
    return static_cast<std::int64_t>(number & ((std::uint64_t{1} << token_bits) - 1));
  }
};

/// The number of each token, in the order of tokens.
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
        numbers[t] =
            order.number(has_one ? t / tokens.sequence * order.rows + row : order.groups, t);
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
  const std::uint64_t* numbers; // (T): in order
  G* dtable;                    // (rows of the table, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    for (std::int64_t k = 0; k < tokens;) {
      const std::int64_t begin = k, group = order.group_of(numbers[k]);
      if (group == order.groups) return;
      while (k < tokens && order.group_of(numbers[k]) == group) ++k;
      add_rows_of<T>(team, s, begin, k, dtable + group % order.rows * width,
                     [&](std::int64_t r, auto i) {
                       return load<G>(dy + order.token_of(numbers[r]) * width, i);
                     });
    }
  }
};

/// A NaN in the table comes out as a quiet NaN; every other value comes out bit for bit.
template <class T, class Extent, class Device>
void embedding(Device& on, std::int64_t tokens, Extent width, const T* table, std::int64_t first,
               std::int64_t count, const std::int32_t* ids, T* y) {
  for_rows(on, tokens, embedding_row<T, Extent>{width, first, count, table, ids, y});
}

/// Starts number_tokens. A lane then sorts the numbers (l.sort) by their bits from order.token_bits
/// on: numbers that agree in those are in the order of tokens from the start.
template <class Device> void number_of_tokens(Device& on, const summed_rows& tokens,
                                              const token_order& order, std::int64_t first,
                                              const std::int32_t* ids, std::uint64_t* numbers) {
  for_blocks(on, tokens.count, number_tokens{tokens, order, first, ids, numbers});
}

/// Adds up the gradient of a table; the `numbers` of tokens are sorted.
template <class T, class Device>
void embedding_gradient(Device& on, const summed_rows& tokens, const token_order& order,
                        std::int64_t width, const T* dy, const std::uint64_t* numbers,
                        accumulator_t<T>* dtable) {
  for_slabs(on, embedding_gradient_slab<T>{width, tokens.count, order, 0, dy, numbers, dtable});
}

} // namespace mc::rows
