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

template <class T> struct embedding_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  summed_rows tokens;
  std::int64_t columns;
  const T* dy;                 // (T, width)
  const std::int64_t* ordered; // (): tokens that have a row
  const token_of_row* order;   // (*ordered): these, sequence by sequence, each in order of rows
  G* dtable;                   // (rows of the table, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    const std::int64_t n = *ordered;
    for (std::int64_t k = 0; k < n;) {
      const std::int64_t begin = k, row = row_in(order[k]),
                         border = tokens.end_of_sequence(token_in(order[k]));
      while (k < n && row_in(order[k]) == row && token_in(order[k]) < border) ++k;
      add_rows_of<T>(team, s, begin, k, dtable + row * width, [&](std::int64_t r, auto i) {
        return load<G>(dy + token_in(order[r]) * width, i);
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

/// `ordered` and `order`: the tokens in the order that embedding_gradient_slab wants.
template <class T, class Device>
void embedding_gradient(Device& on, summed_rows tokens, std::int64_t width, const T* dy,
                        const std::int64_t* ordered, const token_of_row* order,
                        accumulator_t<T>* dtable) {
  for_slabs(on, embedding_gradient_slab<T>{width, tokens, 0, dy, ordered, order, dtable});
}

} // namespace mc::rows
