// Dropout (Srivastava et al., 2014) by counters: a key, the token and the column in the unsharded
// tensor decide if an element is kept. So a mask is never stored and does not depend on layout,
// threads or vector width. Forward and backward are the same function.
//
//   y_j = x_j / (1 - p) where word(c) >> 8 >= p 2^24, else 0
//   c = token_key global_width + first_column + j,   word(c) = philox(key, c >> 2)[c & 3]
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/random.hpp>

namespace mc::rows {

/// The random words of philox(key, first + k), for each lane k, each in the lower half of 64 bits.
template <int Calls> struct philox_calls {
  using U = vec<std::uint64_t, Calls>;
  U w0, w1, w2, w3;

  /// Computes the random words; mc::philox has the method.
  MEGACPP_HD philox_calls(std::uint64_t key, std::uint64_t first)
      : w0(counting<std::uint64_t, Calls>(first)), w1(shift_right<32>(w0)), w2(0), w3(0) {
    auto k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      // w1 and w3 keep their upper halves, since low_product and `words` do not look at them.
      const U p0 = low_product(w0, U(0xD2511F53u)), p1 = low_product(w2, U(0xCD9E8D57u));
      w0 = shift_right<32>(p1) ^ w1 ^ U(k0);
      w1 = p1;
      w2 = shift_right<32>(p0) ^ w3 ^ U(k1);
      w3 = p0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
  }

  /// Returns the random words of all calls in order.
  MEGACPP_HD vec<std::uint32_t, 4 * Calls> words() const {
    if constexpr (mc::detail::representation_of<std::uint64_t, Calls> ==
                  mc::detail::representation::array) {
      vec<std::uint32_t, 4 * Calls> r;
      for (int k = 0; k < Calls; ++k) {
        r.v[4 * k] = static_cast<std::uint32_t>(w0.v[k]);
        r.v[4 * k + 1] = static_cast<std::uint32_t>(w1.v[k]);
        r.v[4 * k + 2] = static_cast<std::uint32_t>(w2.v[k]);
        r.v[4 * k + 3] = static_cast<std::uint32_t>(w3.v[k]);
      }
      return r;
    } else {
      const U low(0xffffffffu);
      const U pairs = (w0 & low) | shift_left<32>(w1), others = (w2 & low) | shift_left<32>(w3);
      return __builtin_bit_cast(vec<std::uint32_t, 4 * Calls>, interleave(pairs, others));
    }
  }
};

/// Returns the random words word(counter), ..., word(counter + N - 1).
template <int N>
MEGACPP_HD vec<std::uint32_t, N> random_words(std::uint64_t key, std::uint64_t counter) {
  const auto offset = static_cast<unsigned>(counter & 3);
  if constexpr (N == 1) {
    // Masks choose the random word: an array indexed at run time would leave registers on CUDA.
    const philox_calls<1> p(key, counter >> 2);
    const std::uint64_t high = 0 - std::uint64_t{offset >> 1}, low = 0 - std::uint64_t{offset & 1};
    const std::uint64_t a = p.w0.v[0], b = p.w1.v[0];
    const std::uint64_t even = a ^ ((a ^ p.w2.v[0]) & high), odd = b ^ ((b ^ p.w3.v[0]) & high);
    return vec<std::uint32_t, 1>(static_cast<std::uint32_t>(even ^ ((even ^ odd) & low)));
  } else if constexpr (N < 4) {
    vec<std::uint32_t, N> r;
    for (int i = 0; i < N; ++i)
      r.v[i] = random_words<1>(key, counter + static_cast<unsigned>(i)).v[0];
    return r;
  } else {
    const auto first = philox_calls<N / 4>(key, counter >> 2).words();
    if (offset == 0) return first;
    // The counter lies within four random words, so the last of them take one more call.
    const auto last = philox_calls<1>(key, (counter >> 2) + N / 4).words();
#if defined(__CUDACC__)
    vec<std::uint32_t, N> r;
    const auto word = [&](int i) { return i < N ? first.v[i] : last.v[i - N]; };
    for (int i = 0; i < N; ++i) {
      const std::uint32_t w1 = word(i + 1), w2 = word(i + 2), w3 = word(i + 3);
      r.v[i] = offset == 1 ? w1 : offset == 2 ? w2 : w3;
    }
    return r;
#else
    std::uint32_t words[N + 4];
    std::memcpy(words, &first, sizeof first);
    std::memcpy(words + N, &last, sizeof last);
    return load<std::uint32_t>(words, lanes<N>{offset});
#endif
  }
}

/// Computes the key of the random numbers of one dropout of a step.
struct dropout_key {
  std::uint64_t salt;       // number of the layer and the node
  const std::int64_t* seed; // ()
  const std::int64_t* step; // ()
  std::uint64_t* key;       // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (team.leader())
      *key = random_key(static_cast<std::uint64_t>(*seed),
                        (static_cast<std::uint64_t>(*step) << 24) | salt);
  }
};

template <class T, class Extent> struct dropout_row {
  using G = accumulator_t<T>;
  Extent width;
  std::int64_t global_width, first_column; // width and first column in the unsharded tensor
  const std::uint64_t* key;                // ()
  std::uint32_t threshold;                 // p 2^24
  G scale;                                 // 1 / (1 - p)
  const std::int32_t* token_key;           // (rows): a different number for every token of the step
  const T* x;                              // (rows, width)
  T* y;                                    // (rows, width)
  std::int64_t of_token = 1;               // number of rows of x for each token
  std::int64_t row_stride = 0;             // columns from a row of a token to the next, unsharded

  std::int64_t row_bytes() const { return std::int64_t{width} * std::int64_t{sizeof(T)}; }
  bool aligned() const { return rows_aligned<T>(width, x, y); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const std::int64_t at = row * width;
    const std::uint64_t k = *key;
    const auto base =
        static_cast<std::uint64_t>(std::int64_t{token_key[row / of_token]} * global_width +
                                   first_column + row % of_token * row_stride);
    team.template each_wide<T>(width, [&](auto i) {
      constexpr int N = decltype(i)::count;
      const auto words = random_words<N>(k, base + static_cast<std::uint64_t>(i.first));
      const auto dropped = shift_right<8>(words) < vec<std::uint32_t, N>(threshold);
      const auto kept = load<G>(x + at, i) * scale;
      store(y + at, i, select(to<int_like<G>>(dropped), vec<G, N>(G(0)), kept));
    });
  }
};

/// Applies dropout with probability p, 0 <= p < 1. A token has `of_token` rows of x, whose columns
/// are `row_stride` apart. y may be x. In the backward pass, x is dy and y is dx.
template <class T, class Extent, class Device>
void dropout(Device& on, std::int64_t rows, Extent width, std::int64_t global_width,
             std::int64_t first_column, const std::uint64_t* key, double p,
             const std::int32_t* token_key, const T* x, T* y, std::int64_t of_token = 1,
             std::int64_t row_stride = 0) {
  using G = accumulator_t<T>;
  for_rows(on, rows,
           dropout_row<T, Extent>{
               width, global_width, first_column, key, static_cast<std::uint32_t>(p * 0x1p24),
               static_cast<G>(1 / (1 - p)), token_key, x, y, of_token, row_stride});
}

} // namespace mc::rows
