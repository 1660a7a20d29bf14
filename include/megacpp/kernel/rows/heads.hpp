// Heads of tokens and extents: the descriptions of the tensors that bodies of attention read.
#pragma once

#include <megacpp/vectors/math.hpp>

#include <type_traits>

namespace mc {

/// Heads of tokens: element (b, s, a, d) is data[(b * S + s) * stride + a * D + d], so that heads
/// can be read in place from packed (T, 3H) rows.
template <class T> struct head_rows {
  T* data;
  std::int64_t stride; // elements from a token to the next
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) operator head_rows<U>() const {
    return {data, stride};
  }
};

namespace rows {

/// The number of elements of a head for which a team holds a tile of sums: a section of the head.
template <class T> inline constexpr int attention_section = sizeof(T) == 8 ? 64 : 128;

/// The extents of an attention except the number of sequences, which follows from its rows.
struct attention_extents {
  std::int64_t queries, keys;   // Sq, Sk
  std::int64_t heads, kv_heads; // A, K
  std::int64_t width;           // D

  MEGACPP_HD std::int64_t kv_head(std::int64_t head) const { return head / (heads / kv_heads); }
};

namespace detail {

/// Returns the number of elements of a head that a tile computes from `section` on.
template <int W> MEGACPP_HD int width_of_section(std::int64_t width, std::int64_t section) {
  return static_cast<int>(width - section < W ? width - section : W);
}
/// Returns e^x of one number.
template <class G> MEGACPP_HD G exp_of(G x) { return exp(vec<G, 1>(x)).v[0]; }

} // namespace detail
} // namespace rows
} // namespace mc
