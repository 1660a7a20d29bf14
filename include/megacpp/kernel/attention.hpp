// Kernels of op/attention.hpp: tiled, so that scores of Sq x Sk are never held.
#pragma once

#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/op/attention.hpp>

#include <cmath>

namespace mc {

namespace detail {

/// Shape of a node whose q and k are inputs q and k.
template <int Q, int K, class Call> auto shape_of_attention(const Call& c) {
  return attention_shape{
      std::int64_t{c.template in_span<Q, 0, 1>()}, std::int64_t{c.template in_span<Q, 1, 2>()},
      std::int64_t{c.template in_span<K, 1, 2>()}, std::int64_t{c.template in_span<Q, 2, 3>()},
      std::int64_t{c.template in_span<K, 2, 3>()}, std::int64_t{c.template in_span<Q, 3, 4>()}};
}
/// `ints` is the first of the four integer operands.
template <class Call> attention_visibility visibility_of(const Call& c, std::int64_t head_dim) {
  attention_visibility v;
  const auto o = c.template attr<attention_options>();
  v.scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(head_dim));
  v.causal = o.causal;
  v.window = o.window;
  return v;
}
template <class Call>
attention_visibility visibility_of(const Call& c, int ints, std::int64_t head_dim) {
  attention_visibility v = visibility_of(c, head_dim);
  v.query_position = c.template in<std::int32_t>(ints);
  v.key_position = c.template in<std::int32_t>(ints + 1);
  v.query_document = c.template in<std::int32_t>(ints + 2);
  v.key_document = c.template in<std::int32_t>(ints + 3);
  return v;
}
template <class U, class Shape> head_rows<U> query_rows(U* p, const Shape& s) {
  return {p, s.heads * s.head_dim};
}
template <class U, class Shape> head_rows<U> key_rows(U* p, const Shape& s) {
  return {p, s.kv_heads * s.head_dim};
}

} // namespace detail

template <> struct kernel_of<&op::attention> { // q, k, v, q_position, k_position, q_document,
                                               // k_document -> o, lse
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return attention_forward_bytes<T>(detail::shape_of_attention<0, 1>(c), c.device().threads());
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const auto s = detail::shape_of_attention<0, 1>(c);
    attention_forward<T>(
        s, detail::visibility_of(c, 3, s.head_dim), detail::query_rows(c.template in<T>(0), s),
        detail::key_rows(c.template in<T>(1), s), detail::key_rows(c.template in<T>(2), s),
        detail::query_rows(c.template out<T>(0), s), c.template out<accumulator_t<T>>(1),
        {c.scratch(), c.device().threads(), c.device()});
  }
};

template <>
struct kernel_of<&op::attention_grad> { // dy, q, k, v, o, lse, positions, documents -> dq, dk, dv
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return attention_backward_bytes<T>(detail::shape_of_attention<1, 2>(c), c.device().threads());
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const auto s = detail::shape_of_attention<1, 2>(c);
    attention_backward<T>(
        s, detail::visibility_of(c, 6, s.head_dim), detail::query_rows(c.template in<T>(0), s),
        detail::query_rows(c.template in<T>(1), s), detail::key_rows(c.template in<T>(2), s),
        detail::key_rows(c.template in<T>(3), s), detail::query_rows(c.template in<T>(4), s),
        c.template in<accumulator_t<T>>(5), detail::query_rows(c.template out<T>(0), s),
        detail::key_rows(c.template out<T>(1), s), detail::key_rows(c.template out<T>(2), s),
        {c.scratch(), c.device().threads(), c.device()});
  }
};

} // namespace mc
