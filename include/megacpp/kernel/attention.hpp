// Kernels of op/attention.hpp: tiled, so that scores of Sq x Sk are never held.
#pragma once

#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>
#include <megacpp/kernel/kernel.hpp>
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

} // namespace detail

template <> struct kernel_of<&op::attention> { // q, k, v, q_order, k_order, q_document,
                                               // k_document -> o, lse
  using in = op::attention_in;
  using out = op::attention_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return attention_forward_bytes<T>(detail::shape_of_attention(c, in::q, in::k), c.threads());
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::k);
    attention_forward<T>(s, detail::visibility_of<in>(c, s.head_dim),
                         detail::query_rows(c.in(in::q), s), detail::key_rows(c.in(in::k), s),
                         detail::key_rows(c.in(in::v), s), detail::query_rows(c.out(out::o), s),
                         c.out(out::lse), {c.scratch(), c.threads(), c.lane()});
  }
};

template <>
struct kernel_of<&op::attention_grad> { // dy, q, k, v, o, lse, places, documents -> dq, dk, dv
  using in = op::attention_grad_in;
  using out = op::attention_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return attention_backward_bytes<T>(detail::shape_of_attention(c, in::q, in::k), c.threads());
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::k);
    attention_backward<T>(
        s, detail::visibility_of<in>(c, s.head_dim), detail::query_rows(c.in(in::dy), s),
        detail::query_rows(c.in(in::q), s), detail::key_rows(c.in(in::k), s),
        detail::key_rows(c.in(in::v), s), detail::query_rows(c.in(in::o), s), c.in(in::lse),
        detail::query_rows(c.out(out::dq), s), detail::key_rows(c.out(out::dk), s),
        detail::key_rows(c.out(out::dv), s), {c.scratch(), c.threads(), c.lane()});
  }
};

} // namespace mc
