// Kernels of op/attention.hpp, by tiles: those of the host; on other devices the library's where it
// has the attention of the node, and else those of kernel/rows/attention.hpp. Kernels hold no (Sq,
// Sk) array, except that a library's deterministic gradient holds dS.
#pragma once

#include <megacpp/exec/attention_source.hpp>
#include <megacpp/kernel/attention_backward.hpp>
#include <megacpp/kernel/attention_forward.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/attention.hpp>
#include <megacpp/op/attention.hpp>

#include <algorithm>
#include <cmath>

namespace mc {

namespace detail {

/// Returns the shape of a node's attention. Q and K name the operands q, and k or the cache of
/// keys.
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
/// Returns true if the queries and the keys of this rank both have the places 0, 1, 2, ..., so that
/// a kernel need not read places. The tokens that cp ranks gather in balanced order are whole, but
/// have another order.
template <class In, class Call> constexpr bool counts_here(const Call& c) {
  if (!c.has(In::q_order) || !c.has(In::k_order)) return false;
  const value &q = c.value_of(In::q_order), &k = c.value_of(In::k_order);
  const auto whole = [&](const value& v) {
    return local_extent(c.ranks(), v, 1) == v.dims[1].n &&
           (v.dims[1].o == order::contiguous || c.ranks().of(axis::cp) == 1);
  };
  return q.counts && k.counts && whole(q) && whole(k) && q.dims[1].n == k.dims[1].n;
}
/// Returns true if each token has the same document as a query and as a key, so that it sees
/// itself: both numbers are the batch's, or one value.
template <class In, class Call> constexpr bool documents_agree(const Call& c) {
  if (!c.has(In::q_document)) return true;
  const value &q = c.value_of(In::q_document), &k = c.value_of(In::k_document);
  const auto fed = [](const value& v) {
    return v.from == feed::documents || v.from == feed::all_documents;
  };
  return &q == &k || (fed(q) && fed(k));
}
/// Returns the visibility with the places and documents among the node's operands, which In names.
template <class In, class Call>
attention_visibility visibility_of(const Call& c, std::int64_t head_dim) {
  attention_visibility v = visibility_of(c, head_dim);
  if (!counts_here<In>(c)) v.query_position = c.in(In::q_order), v.key_position = c.in(In::k_order);
  v.query_document = c.in(In::q_document), v.key_document = c.in(In::k_document);
  return v;
}
/// Returns the reason why no library computes the attention of a node with operands In; nullptr: a
/// library may (fused_attention_shape).
template <class T, class In, class Call> constexpr const char* why_not_fused(const Call& c) {
  if (!std::is_same_v<T, bf16>) return "its elements are not bf16, which libraries take";
  if (!c.attr(of_type<attention_options>).causal) return "it is not causal";
  if (!counts_here<In>(c))
    return "positions may be others than 0, 1, 2, ... (context parallelism, or positions that are "
           "fed)";
  if (!documents_agree<In>(c))
    return "its documents are not those of the batch, so that a token need not see itself";
  return nullptr;
}
template <class T, class In, class Call> constexpr bool is_fused(const Call& c) {
  if constexpr (requires { Call::device_type::most_attention_scratch(fused_attention_shape{}); })
    return why_not_fused<T, In>(c) == nullptr;
  else return false;
}
template <class In, class Call>
constexpr fused_attention_shape fused_shape(const Call& c, bool gradient) {
  const auto s = shape_of_attention(c, In::q, In::k);
  const auto o = c.attr(of_type<attention_options>);
  return {.sequences = s.batch,
          .tokens = s.queries,
          .heads = s.heads,
          .kv_heads = s.kv_heads,
          .head_dim = s.head_dim,
          .window = o.window < s.keys ? o.window : 0,
          .scale = o.scale,
          .gradient = gradient,
          .apart = c.sums() == numerics::batch_invariant,
          .packed = c.has(In::q_document)};
}
template <class T, class In, class Call>
constexpr std::int64_t fused_scratch(const Call& c, bool gradient) {
  if constexpr (requires { Call::device_type::most_attention_scratch(fused_attention_shape{}); })
    if (is_fused<T, In>(c)) return c.attention_scratch(fused_shape<In>(c, gradient));
  return 0;
}
/// Prepares a library's attention for a node; fused_here() returns it to run().
template <class T, class In, class Call> void prepare_fused(Call& c, bool gradient) {
  attention_source* const of = c.device().attention();
  c.prepared().plan[0] = nullptr;
  if (of == nullptr) return;
  if (const char* const why = why_not_fused<T, In>(c)) of->leave(why, false);
  else c.prepared().plan[0] = of->prepare(fused_shape<In>(c, gradient));
}
template <class T, class In, class Call> const fused_attention* fused_here(const Call& c) {
  if (!is_fused<T, In>(c)) return nullptr;
  return static_cast<const fused_attention*>(c.prepared().plan[0]);
}
template <class In, class Call> attention_documents documents_of(const Call& c) {
  return {c.in(In::q_document), c.in(In::k_document)};
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

} // namespace detail

template <> struct kernel_of<&op::attention> { // q, k, v, q_order, k_order, q_document,
                                               // k_document -> o, lse
  using in = op::attention_in;
  using out = op::attention_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    if constexpr (on_host<Call>)
      return attention_forward_bytes<T>(detail::shape_of_attention(c, in::q, in::k), c.threads());
    else return detail::fused_scratch<T, in>(c, false);
  }
  template <class T, class Call> static void prepare(Call& c) requires(!on_host<Call>) {
    detail::prepare_fused<T, in>(c, false);
  }
  template <class T, class Call> static void run(Call& c) {
    using namespace detail;
    if (const fused_attention* const of = fused_here<T, in>(c))
      return of->execute(fused_attention_call{c.lane(), c.scratch(), c.in(in::q), c.in(in::k),
                                              c.in(in::v), c.out(out::o), c.out(out::lse),
                                              documents_of<in>(c)});
    const auto s = shape_of_attention(c, in::q, in::k);
    const attention_visibility see = visibility_of<in>(c, s.head_dim);
    const auto q = query_rows(c.in(in::q), s), k = key_rows(c.in(in::k), s),
               v = key_rows(c.in(in::v), s);
    const auto o = query_rows(c.out(out::o), s);
    auto* const lse = c.out(out::lse);
    if constexpr (on_host<Call>)
      attention_forward<T>(s, see, q, k, v, o, lse, {c.scratch(), c.threads(), c.lane()});
    else
      for_rows(c.lane(), s.batch * s.heads * rows::attention_tile<T>::tiles(s.queries),
               rows::attention_tile<T>{row_extents(s), see, q, k, v, o, lse});
  }
};

template <>
struct kernel_of<&op::attention_grad> { // dy, q, k, v, o, lse, places, documents -> dq, dk, dv
  using in = op::attention_grad_in;
  using out = op::attention_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::k);
    if constexpr (on_host<Call>) return attention_backward_bytes<T>(s, c.threads());
    const std::int64_t delta =
        s.batch * s.heads * s.queries * std::int64_t{sizeof(accumulator_t<T>)};
    return std::max(delta, detail::fused_scratch<T, in>(c, true));
  }
  template <class T, class Call> static void prepare(Call& c) requires(!on_host<Call>) {
    detail::prepare_fused<T, in>(c, true);
  }
  template <class T, class Call> static void run(Call& c) {
    using namespace detail;
    if (const fused_attention* const of = fused_here<T, in>(c))
      return of->execute(fused_attention_grad_call{
          c.lane(), c.scratch(), c.in(in::dy), c.in(in::q), c.in(in::k), c.in(in::v), c.in(in::o),
          c.in(in::lse), c.out(out::dq), c.out(out::dk), c.out(out::dv), documents_of<in>(c)});
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
      using rows::attention_tile, rows::attention_query_grad_tile, rows::attention_key_grad_tile;
      for_rows(c.lane(), s.batch * s.heads * attention_tile<T>::tiles(s.queries),
               attention_query_grad_tile<T>{row_extents(s), see, dy, q, k, v, o, lse, delta, dq});
      for_rows(c.lane(), s.batch * s.kv_heads * attention_tile<T>::tiles(s.keys),
               attention_key_grad_tile<T>{row_extents(s), see, dy, q, k, v, lse, delta, dk, dv});
    }
  }
};

} // namespace mc
