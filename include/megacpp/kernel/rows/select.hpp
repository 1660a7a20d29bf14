// Rows that are chosen, repeated, or stored in a cache (op/select.hpp, op/cached_attention.hpp).
#pragma once

#include <megacpp/exec/launch.hpp>

namespace mc::rows {

/// Copies one row of each sequence: y[b] = x[b, index[b]], bit for bit.
template <class T> struct select_row {
  std::int64_t sequence, width;
  const T* x;                // (B, S, H)
  const std::int32_t* index; // (B)
  T* y;                      // (B, H)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t b) const {
    const T* const from = x + (b * sequence + index[b]) * width;
    team.template each<T>(width, [&](auto i) { copy(y + b * width, from, i); });
  }
};

/// y[i] = x[i / times], bit for bit.
template <class T> struct repeat_row {
  std::int64_t times, width;
  const T* x; // (n, width)
  T* y;       // (n times, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t i) const {
    team.template each<T>(width, [&](auto j) { copy(y + i * width, x + i / times * width, j); });
  }
};

/// dx[i] = sum over t of dy[i times + t].
template <class T> struct repeat_grad_row {
  using G = accumulator_t<T>;
  std::int64_t times, width;
  const T* dy; // (n times, width)
  T* dx;       // (n, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t i) const {
    team.template each<T>(width, [&](auto j) {
      vec<G, decltype(j)::count> sum(G(0));
      for (std::int64_t t = 0; t < times; ++t) sum = sum + load<G>(dy + (i * times + t) * width, j);
      store(dx + i * width, j, sum);
    });
  }
};

/// Copies one token of x to its slot of a cache, bit for bit. A token with a slot outside of the
/// cache is dropped.
template <class T> struct keep_token {
  std::int64_t queries, room, width; // tokens and slots of a sequence; elements of a row
  const T* x;                        // (B, queries, width)
  const std::int32_t* slots;         // (B, queries)
  T* cache;                          // (B, room, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t token) const {
    const std::int64_t slot = slots[token];
    if (slot < 0 || slot >= room) return;
    T* const to = cache + (token / queries * room + slot) * width;
    team.template each<T>(width, [&](auto i) { copy(to, x + token * width, i); });
  }
};

} // namespace mc::rows
