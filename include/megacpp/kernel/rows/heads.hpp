// Bodies of attention describe the tensors that they read by these: heads of tokens, and extents.
#pragma once

#include <megacpp/vectors/math.hpp>

#include <type_traits>

namespace mc {

/// Heads of tokens: element (b, s, a, d) is data[(b * S + s) * stride + a * D + d], so that a part
/// of a packed (T, 3H) row is read where it lies.
template <class T> struct head_rows {
  T* data;
  std::int64_t stride; // of a token, in elements
  template <class U>
  requires(std::is_same_v<U, const T> && !std::is_const_v<T>) operator head_rows<U>() const {
    return {data, stride};
  }
};

namespace rows {

/// Elements of a head for which a team holds a tile of sums.
template <class T> inline constexpr int attention_part = sizeof(T) == 8 ? 64 : 128;

/// The extents of an attention: B is that of its rows.
struct attention_extents {
  std::int64_t queries, keys;   // Sq, Sk
  std::int64_t heads, kv_heads; // A, K
  std::int64_t width;           // D

  MEGACPP_HD std::int64_t kv_head(std::int64_t head) const { return head / (heads / kv_heads); }
};

namespace detail {

/// The elements of a head that a tile computes at a time, from `part` on.
template <int W> MEGACPP_HD int width_of_part(std::int64_t width, std::int64_t part) {
  return static_cast<int>(width - part < W ? width - part : W);
}
/// e^x of one number.
template <class G> MEGACPP_HD G exp_of(G x) { return exp(vec<G, 1>(x)).v[0]; }

} // namespace detail
} // namespace rows
} // namespace mc
