// Embedding: rows of a table by number, for a table that holds ids [first, first + count) of a
// larger vocabulary. Other ids give zero rows and no gradient, so that shards add up to the whole.
//
//   y[t] = table[ids[t] - first]          dtable[ids[t] - first] += dy[t], tokens in order
//
// The gradient is cut by columns: no two threads share an element, whatever ids repeat.
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

template <class T> struct embedding_gradient_slab {
  using G = accumulator_t<T>;
  std::int64_t width;
  std::int64_t tokens, columns, first, count;
  const T* dy;             // (T, width)
  const std::int32_t* ids; // (T)
  G* dtable;               // (count, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t index) const {
    const slab s(index, columns, width);
    for (std::int64_t t = 0; t < tokens; ++t) {
      const std::int64_t id = ids[t] - first;
      if (id < 0 || id >= count) continue;
      G* row = dtable + id * width + s.first;
      const T* in = dy + t * width + s.first;
      team.template each<T>(s.count,
                            [&](auto i) { store(row, i, load<G>(row, i) + load<G>(in, i)); });
    }
  }
};

/// A NaN in the table comes out as a quiet NaN; every other value comes out bit for bit.
template <class T, class Extent> void embedding(std::int64_t tokens, Extent width, const T* table,
                                                std::int64_t first, std::int64_t count,
                                                const std::int32_t* ids, T* y) {
  for_rows(tokens, embedding_row<T, Extent>{width, first, count, table, ids, y});
}

template <class T> void embedding_gradient(std::int64_t tokens, std::int64_t width, const T* dy,
                                           const std::int32_t* ids, std::int64_t first,
                                           std::int64_t count, accumulator_t<T>* dtable) {
  const std::int64_t columns = columns_per_slab<accumulator_t<T>>(width);
  for_slabs(width, columns,
            embedding_gradient_slab<T>{width, tokens, columns, first, count, dy, ids, dtable});
}

} // namespace mc::rows
