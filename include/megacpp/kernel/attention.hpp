// Kernels of op/attention.hpp: tiled on the host, by rows on other devices, so that scores of
// Sq x Sk are never held.
#pragma once

#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/op/attention.hpp>

#include <cmath>

namespace mc {

namespace detail {

/// Shape of a node, of the names of its q, and of its k or its cache of keys.
template <class Call, class Q, class K> constexpr auto shape_of_attention(const Call& c, Q q, K k) {
  return attention_shape{std::int64_t{c.span(q, dims<0, 1>)}, std::int64_t{c.span(q, dims<1, 2>)},
                         std::int64_t{c.span(k, dims<1, 2>)}, std::int64_t{c.span(q, dims<2, 3>)},
                         std::int64_t{c.span(k, dims<2, 3>)}, std::int64_t{c.span(q, dims<3, 4>)}};
}
template <class Call> attention_visibility visibility_of(const Call& c, std::int64_t head_dim) {
  attention_visibility v;
  const auto o = c.attr(of_type<attention_options>);
  v.scale = o.scale != 0 ? o.scale : 1 / std::sqrt(static_cast<double>(head_dim));
  v.causal = o.causal;
  v.window = o.window;
  return v;
}
/// Whether this rank's places of queries and keys are 0, 1, 2, ..., both: a kernel need not read
/// them. What cp ranks have gathered in balanced order is whole, but lies otherwise.
template <class In, class Call> constexpr bool counts_here(const Call& c) {
  if (!c.has(In::q_order) || !c.has(In::k_order)) return false;
  const value &q = c.value_of(In::q_order), &k = c.value_of(In::k_order);
  const auto whole = [&](const value& v) {
    return local_extent(c.ranks(), v, 1) == v.dims[1].n &&
           (v.dims[1].o == order::contiguous || c.ranks().of(axis::cp) == 1);
  };
  return q.counts && k.counts && whole(q) && whole(k) && q.dims[1].n == k.dims[1].n;
}
/// The visibility with the places and documents that the list In of the node's operands has.
template <class In, class Call>
attention_visibility visibility_of(const Call& c, std::int64_t head_dim) {
  attention_visibility v = visibility_of(c, head_dim);
  if (!counts_here<In>(c)) v.query_position = c.in(In::q_order), v.key_position = c.in(In::k_order);
  v.query_document = c.in(In::q_document), v.key_document = c.in(In::k_document);
  return v;
}
template <class U, class Shape> head_rows<U> query_rows(U* p, const Shape& s) {
  return {p, s.heads * s.head_dim};
}
template <class U, class Shape> head_rows<U> key_rows(U* p, const Shape& s) {
  return {p, s.kv_heads * s.head_dim};
}

template <class Shape> constexpr rows::attention_extents row_extents(const Shape& s) {
  return {s.queries, s.keys, s.heads, s.kv_heads, s.head_dim};
}

/// The bytes that attention with such queries and keys needs beside them.
template <class T, class Call, class Q, class K>
constexpr std::int64_t attention_bytes(const Call& c, Q q, K k) {
  if constexpr (on_host<Call>)
    return attention_forward_bytes<T>(shape_of_attention(c, q, k), c.threads());
  else return 0;
}
/// Starts the attention of a node, by at most `threads` threads where its device is the host.
template <class T, class Call, class Shape>
void attend(Call& c, const Shape& s, const attention_visibility& see, const T* q, const T* k,
            const T* v, T* o, accumulator_t<T>* lse, int threads) {
  const auto of_q = query_rows(q, s), of_k = key_rows(k, s), of_v = key_rows(v, s);
  const auto of_o = query_rows(o, s);
  if constexpr (on_host<Call>)
    attention_forward<T>(s, see, of_q, of_k, of_v, of_o, lse, {c.scratch(), threads, c.lane()});
  else
    for_rows(c.lane(), s.batch * s.heads * s.queries,
             rows::attention_row<T>{row_extents(s), see, of_q, of_k, of_v, of_o, lse});
}

} // namespace detail

template <> struct kernel_of<&op::attention> { // q, k, v, q_order, k_order, q_document,
                                               // k_document -> o, lse
  using in = op::attention_in;
  using out = op::attention_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return detail::attention_bytes<T>(c, in::q, in::k);
  }
  template <class T, class Call> static void run(Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::k);
    detail::attend<T>(c, s, detail::visibility_of<in>(c, s.head_dim), c.in(in::q), c.in(in::k),
                      c.in(in::v), c.out(out::o), c.out(out::lse), c.threads());
  }
};

template <>
struct kernel_of<&op::attention_grad> { // dy, q, k, v, o, lse, places, documents -> dq, dk, dv
  using in = op::attention_grad_in;
  using out = op::attention_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::k);
    if constexpr (on_host<Call>) return attention_backward_bytes<T>(s, c.threads());
    else return s.batch * s.heads * s.queries * std::int64_t{sizeof(accumulator_t<T>)}; // delta
  }
  template <class T, class Call> static void run(Call& c) {
    using namespace detail;
    const auto s = shape_of_attention(c, in::q, in::k);
    const attention_visibility see = visibility_of<in>(c, s.head_dim);
    const auto dy = query_rows(c.in(in::dy), s), q = query_rows(c.in(in::q), s),
               k = key_rows(c.in(in::k), s), v = key_rows(c.in(in::v), s),
               o = query_rows(c.in(in::o), s);
    const auto dq = query_rows(c.out(out::dq), s), dk = key_rows(c.out(out::dk), s),
               dv = key_rows(c.out(out::dv), s);
    const auto* const lse = c.in(in::lse);
    if constexpr (on_host<Call>) {
      attention_backward<T>(s, see, dy, q, k, v, o, lse, dq, dk, dv,
                            {c.scratch(), c.threads(), c.lane()});
    } else {
      auto* const delta = reinterpret_cast<accumulator_t<T>*>(c.scratch());
      for_rows(
          c.lane(), s.batch * s.heads * s.queries,
          rows::attention_query_grad_row<T>{row_extents(s), see, dy, q, k, v, o, lse, delta, dq});
      for_rows(
          c.lane(), s.batch * s.kv_heads * s.keys,
          rows::attention_key_grad_row<T>{row_extents(s), see, dy, q, k, v, lse, delta, dk, dv});
    }
  }
};

} // namespace mc
