// Dropout (Srivastava et al., 2014) by counters: whether an element is kept is a function of the key, of
// its token and of its column in the unsharded tensor, so a mask is never stored and does not depend
// on layout, threads or vector width. Forward and backward are the same function.
//
//   y_j = x_j / (1 - p) where word(c) >> 8 >= p 2^24, else 0;  c = token_key global_width + first_column + j
//   word(c) = philox(key, c >> 2)[c & 3]
#pragma once

#include <megacpp/exec/parallel.hpp>
#include <megacpp/num/random.hpp>

namespace mc::rows {

/// The words of philox(key, first), philox(key, first + 1), ..., N / 4 calls side by side (mc::philox has
/// the method; here a lane holds one call, its 32-bit state in the lower half of 64 bits).
template <int N>
MEGACPP_HD vec<std::uint32_t, N> philox_words(std::uint64_t key, std::uint64_t first) {
  constexpr int calls = N / 4;
  using U = vec<std::uint64_t, calls>;
  std::uint64_t counters[calls];
  for (int k = 0; k < calls; ++k) counters[k] = first + static_cast<std::uint64_t>(k);
  const U low(0xffffffffu);
  U c0 = load<std::uint64_t>(counters, lanes<calls>{0}), c1 = shift_right<32>(c0), c2(0), c3(0);
  auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const U p0 = low_product(c0, U(0xD2511F53u)), p1 = low_product(c2, U(0xCD9E8D57u));
    c0 = shift_right<32>(p1) ^ c1 ^ U(k0);
    c1 = p1;
    c2 = shift_right<32>(p0) ^ c3 ^ U(k1);
    c3 = p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
    // c1 and c3 keep their upper halves: they reach only c0 and c2, of which the lower half counts.
  }
  const U pairs = (c0 & low) | shift_left<32>(c1), others = (c2 & low) | shift_left<32>(c3);
  return __builtin_bit_cast(vec<std::uint32_t, N>, interleave(pairs, others));
}

/// word(counter), ..., word(counter + N - 1).
template <int N>
MEGACPP_HD vec<std::uint32_t, N> random_words(std::uint64_t key, std::uint64_t counter) {
  if constexpr (N == 1) {
    return vec<std::uint32_t, 1>(philox(key, counter >> 2)[counter & 3]);
  } else {
    const auto first = philox_words<N>(key, counter >> 2);
    const auto offset = counter & 3;
    if (offset == 0) return first;
    // The counter lies inside a group of four: one call more.
    std::uint32_t words[N + 4];
    std::memcpy(words, &first, sizeof first);
    const auto last = philox(key, (counter >> 2) + N / 4);
    for (unsigned j = 0; j < 4; ++j) words[N + j] = last[j];
    // Constant positions: an array indexed at run time would leave registers on CUDA.
    if (offset == 1) return load<std::uint32_t>(words, lanes<N>{1});
    if (offset == 2) return load<std::uint32_t>(words, lanes<N>{2});
    return load<std::uint32_t>(words, lanes<N>{3});
  }
}

template <class T, class Extent> struct dropout_row {
  using G = accumulator_t<T>;
  Extent width;
  std::int64_t global_width, first_column; // of the unsharded tensor
  std::uint64_t key;
  std::uint32_t threshold; // p 2^24
  G scale;                 // 1 / (1 - p)
  const std::int32_t* token_key; // (rows): a number of its own for every token of the step
  const T* x;                    // (rows, width)
  T* y;                          // (rows, width)

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    const auto base =
        static_cast<std::uint64_t>(std::int64_t{token_key[row]} * global_width + first_column);
    team.template each_wide<T>(width, [&](auto i) {
      constexpr int N = decltype(i)::count;
      const auto words = random_words<N>(key, base + static_cast<std::uint64_t>(i.first));
      const auto dropped = shift_right<8>(words) < vec<std::uint32_t, N>(threshold);
      const auto kept = load<G>(x + at, i) * scale;
      store(y + at, i, select(to<int_like<G>>(dropped), vec<G, N>(G(0)), kept));
    });
  }
};

/// 0 <= p < 1. y may be x. For the backward, x is dy and y is dx.
template <class T, class Extent>
void dropout(std::int64_t rows, Extent width, std::int64_t global_width, std::int64_t first_column,
             std::uint64_t key, double p, const std::int32_t* token_key, const T* x, T* y) {
  using G = accumulator_t<T>;
  for_rows(rows, dropout_row<T, Extent>{width, global_width, first_column, key,
                                        static_cast<std::uint32_t>(p * 0x1p24),
                                        static_cast<G>(1 / (1 - p)), token_key, x, y});
}

} // namespace mc::rows
