// Embedding: rows of a table by number, for a table that holds ids [first, first + count) of a
// larger vocabulary. Other ids give zero rows and no gradient, so that shards add up to the whole.
//
//   y[t] = table[ids[t] - first]          dtable[ids[t] - first] += sum of dy[t] of an id's tokens
//
// The gradient is cut by columns: no two threads share an element, whatever ids repeat. Tokens are
// put in order of their ids, so that an id that comes thousands of times is summed as columns.hpp
// sums rows, which costs it no more than 65 roundings.
#pragma once

#include <megacpp/kernel/rows/columns.hpp>

#include <algorithm>

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

/// A token and the row of the table that it reads, in one number that orders by row and then by
/// token.
using token_of_row = std::uint64_t;
MEGACPP_HD std::int64_t row_in(token_of_row x) { return static_cast<std::int64_t>(x >> 32); }
MEGACPP_HD std::int64_t token_in(token_of_row x) {
  return static_cast<std::int64_t>(x & 0xffffffffu);
}

/// The tokens that have a row, sequence by sequence, each in order of rows; gives their number.
inline std::int64_t order_tokens(summed_rows tokens, const std::int32_t* ids, std::int64_t first,
                                 std::int64_t count, token_of_row* order) {
  std::int64_t n = 0;
  for (std::int64_t t = 0; t < tokens.count;) {
    const std::int64_t begin = n, end = tokens.end_of_sequence(t);
    for (; t < end; ++t) {
      const std::int64_t row = ids[t] - first;
      if (row >= 0 && row < count)
        order[n++] = static_cast<std::uint64_t>(row) << 32 | static_cast<std::uint64_t>(t);
    }
    std::sort(order + begin, order + n);
  }
  return n;
}

template <class T> struct embedding_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows tokens; // of which `ordered` have a row
  std::int64_t ordered, columns;
  const T* dy;               // (T, width)
  const token_of_row* order; // (ordered), as order_tokens puts them
  G* dtable;                 // (rows of the table, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    for (std::int64_t k = 0; k < ordered;) {
      const std::int64_t begin = k, row = row_in(order[k]),
                         border = tokens.end_of_sequence(token_in(order[k]));
      while (k < ordered && row_in(order[k]) == row && token_in(order[k]) < border) ++k;
      add_rows_of<T>(team, s, begin, k, dtable + row * width, [&](std::int64_t r, auto i) {
        return load<G>(dy + token_in(order[r]) * width, i);
      });
    }
  }
};

/// A NaN in the table comes out as a quiet NaN; every other value comes out bit for bit.
template <class T, class Extent> void embedding(std::int64_t tokens, Extent width, const T* table,
                                                std::int64_t first, std::int64_t count,
                                                const std::int32_t* ids, T* y) {
  for_rows(tokens, embedding_row<T, Extent>{width, first, count, table, ids, y});
}

/// `order` is memory for a token_of_row each token.
template <class T> void embedding_gradient(summed_rows tokens, std::int64_t width, const T* dy,
                                           const std::int32_t* ids, std::int64_t first,
                                           std::int64_t count, accumulator_t<T>* dtable,
                                           token_of_row* order) {
  const std::int64_t columns = columns_per_slab<accumulator_t<T>>(width),
                     ordered = order_tokens(tokens, ids, first, count, order);
  for_slabs(width, columns,
            embedding_gradient_slab<T>{width, tokens, ordered, columns, dy, order, dtable});
}

} // namespace mc::rows
