// Attention (Vaswani et al. 2017), grouped queries (Ainslie et al. 2023), computed in tiles with an
// online softmax so that the S x S scores never exist (Dao et al. 2022).
//
//   q (B, S, A, D), k and v (B, S', K, D), A a multiple of K; head a reads kv head a K / A
//   p[i,j] = softmax_j(scale q_i . k_j) over the j that i sees
//   o_i = sum_j p[i,j] v_j,   lse_i = log sum_j e^(scale q_i . k_j)
//   i sees j if j's place in the sequence is <= i's (causal) and > i's - window (if there is one),
//   and both are of one document (packing); o_i = 0 where i sees nothing
//
//   adjoint, with delta_i = do_i . o_i and ds[i,j] = p[i,j] (do_i . v_j - delta_i):
//   dv_j = sum_i p[i,j] do_i,   dq_i = scale sum_j ds[i,j] k_j,   dk_j = scale sum_i ds[i,j] q_i
//
// Saved: q, k, v, o, lse (B, A, S).
// Placement: batch and heads may be sharded alike in all operands. A sharded query sequence needs
// the whole keys and values, replicated (their gradients are pending sums). D is needed whole.
// FLOPs: 4 B A S S' D forward and 10 B A S S' D backward, half of each when causal.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {

struct attention_options {
  double scale = 0; ///< factor of the scores; 0: D^-1/2
  bool causal = true;
  std::int64_t window = 0; ///< tokens that a causal query sees at most, itself included; 0: all
};

namespace op {

struct attention_in : input_names<attention_in> {
  static constexpr name<0> q{};
  static constexpr name<1> k{};
  static constexpr name<2> v{};
  static constexpr name<3, element::i32> q_order{};
  static constexpr name<4, element::i32> k_order{};
  static constexpr name<5, element::i32> q_document{};
  static constexpr name<6, element::i32> k_document{};
};
struct attention_out : output_names<attention_out> {
  static constexpr name<0> o{};
  static constexpr name<1, element::sum> lse{};
};
struct attention_grad_in : input_names<attention_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> q{};
  static constexpr name<2> k{};
  static constexpr name<3> v{};
  static constexpr name<4> o{};
  static constexpr name<5, element::sum> lse{};
  static constexpr name<6, element::i32> q_order{};
  static constexpr name<7, element::i32> k_order{};
  static constexpr name<8, element::i32> q_document{};
  static constexpr name<9, element::i32> k_document{};
};
struct attention_grad_out : output_names<attention_grad_out> {
  static constexpr name<0> dq{};
  static constexpr name<1> dk{};
  static constexpr name<2> dv{};
};

/// Returns the place on axis a of o, or of another value with the shape of q. The operands are
/// given by their numbers.
constexpr place attention_place(inference& c, axis a, int q, int k, int v, int ints) {
  const place at_q = c.in(q).at[a], at_k = c.in(k).at[a], at_v = c.in(v).at[a];
  if (at_q.s == state::partial || at_k.s == state::partial || at_v.s == state::partial)
    c.fail(fault::P005, at_q.s == state::partial ? q : at_k.s == state::partial ? k : v);
  if (at_k != at_v) c.fail(fault::P002, k, v);
  const auto expect = [&](int operand, place want) {
    if (!c.has(operand)) return;
    const place have = c.in(operand).at[a];
    if (want.s == state::shard ? have != want : have.s == state::shard)
      c.fail(fault::P002, q, operand);
  };
  if (at_q.s == state::shard) {
    place of_k = at_q, of_rows = at_q, of_columns = at_q;
    if (at_q.d == dim::heads) of_k.d = c.in(k).dims[2].d, of_rows = of_columns = invariant;
    if (at_q.d == dim::sequence) of_k = replicate, of_columns = invariant;
    if (at_q.d == dim::head_dim) c.fail(fault::P007, q);
    if (at_k != of_k)
      c.fail(at_k.s == state::invariant     ? fault::P004
             : at_k.is_shard(dim::sequence) ? fault::P007
                                            : fault::P002,
             k, q);
    expect(ints, of_rows), expect(ints + 2, of_rows);
    expect(ints + 1, of_columns), expect(ints + 3, of_columns);
    return at_q;
  }
  if (at_k.s == state::shard) c.fail(at_q.s == state::invariant ? fault::P004 : fault::P002, q, k);
  else if (at_k.s != at_q.s)
    c.fail(fault::P008, at_q.s == state::invariant ? q : k, at_q.s == state::invariant ? k : q);
  for (int i = 0; i < 4; ++i) expect(ints + i, invariant);
  return at_q;
}

/// Checks q (B, S, A, D), k and v (B, S', K, D), where K divides A: operands first, first + 1 and
/// first + 2. Where each query head has its own keys, k and v may have the dim of q's heads.
[[gnu::cold]] constexpr void attention_operands(inference& c, int first) {
  const int k = first + 1, v = first + 2;
  c.floats({first, k, v});
  c.dims(first, {dim::batch, dim::sequence, dim::heads, dim::head_dim});
  const auto &of_q = c.in(first).dims, &of_k = c.in(k).dims;
  const bool own = of_k[2].d == dim::heads;
  c.dims(k, {dim::batch, dim::sequence, own ? dim::heads : dim::kv_heads, dim::head_dim});
  c.alike(v, k);
  if (own) c.agree(of_q[2], of_k[2], first, k);
  c.require(of_q[0].n == of_k[0].n && of_q[3].n == of_k[3].n && of_k[2].n > 0 &&
                of_q[2].n % of_k[2].n == 0,
            fault::S002, first, k);
  const auto [scale, causal, window] = c.n.attr.as<attention_options>();
  c.in_range(scale >= 0 && scale < 1e30, "scale", scale, "at least 0 and below 1e30");
  const auto tokens = static_cast<double>(window);
  c.in_range(window >= 0, "window", tokens, "0 (none) or a number of tokens");
  c.in_range(window == 0 || causal, "window", tokens, "0 (none), as it is not causal");
}
/// Checks the operands ints and ints + 1, the places of queries (B, S) and of keys (B, S') in their
/// sequences. Causal attention needs them, since a rank may hold any tokens of a sequence. The next
/// two operands are document numbers; both are absent where each sequence is one document.
[[gnu::cold]] constexpr void attention_marks(inference& c, int q, int k, int ints) {
  const bool ordered = c.n.attr.as<attention_options>().causal || c.has(ints) || c.has(ints + 1);
  const bool documents = c.has(ints + 2) || c.has(ints + 3);
  for (int i = ordered ? 0 : 2; i < (documents ? 4 : 2); ++i) {
    const int marked = i % 2 == 0 ? q : k;
    c.holds(ints + i, i < 2 ? integer_kind::order : integer_kind::documents, marked);
    c.leads(ints + i, marked, 2);
  }
}

[[gnu::cold]] constexpr void attention_rule(inference& c) {
  using in = attention_in;
  using out = attention_out;
  const value& q = c.in(in::q);
  attention_operands(c, in::q);
  attention_marks(c, in::q, in::k, in::q_order);
  c.declare(q);
  value& lse = c.declare(accumulator_of(q.type), {q.dims[0], q.dims[2], q.dims[1]});
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    const place p = attention_place(c, a, in::q, in::k, in::v, in::q_order);
    c.out[out::o].at[a] = p;
    lse.at[a] = p;
  }
}

/// Infers dq, dk and dv from dy, q, k, v, o, lse and the integer operands of the forward op. On an
/// axis that shards the query sequence, dk and dv are pending sums, since queries of all ranks read
/// the keys and values.
[[gnu::cold]] constexpr void attention_grad_rule(inference& c) {
  using in = attention_grad_in;
  using out = attention_grad_out;
  attention_operands(c, in::q);
  attention_marks(c, in::q, in::k, in::q_order);
  c.typed({in::dy, in::o}, c.in(in::q).type), c.sums({in::lse}, in::q);
  c.alike(in::dy, in::q), c.alike(in::o, in::q);
  c.dims(in::lse, {dim::batch, dim::heads, dim::sequence});
  const auto &of_q = c.in(in::q).dims, &of_lse = c.in(in::lse).dims;
  c.require(of_lse[0] == of_q[0] && of_lse[1] == of_q[2] && of_lse[2] == of_q[1], fault::S002,
            in::q, in::lse);
  for (int k = in::q; k <= in::v; ++k) c.declare(c.in(k)).type = c.in(in::dy).type;
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    const place dy = c.in(in::dy).at[a], y = c.in(in::o).at[a];
    if (dy != cotangent(y)) c.fail(fault::P006, in::dy, in::o);
    c.out[out::dq].at[a] = dy;
    for (int k = out::dk; k <= out::dv; ++k) {
      place p = dy;
      if (dy.is_shard(dim::heads)) p.d = c.in(in::q + k).dims[2].d;
      if (dy.is_shard(dim::sequence)) p = partial;
      c.out[k].at[a] = p;
    }
  }
}

/// Returns the number of pairs of a query and a key that it sees: causal attention sees half of the
/// square, and at most `window` keys for each query.
constexpr std::int64_t visible_pairs(std::int64_t s, std::int64_t keys, bool causal,
                                     std::int64_t window) {
  if (!causal) return s * keys;
  if (window <= 0 || window >= keys) return s * (keys - s) + s * (s + 1) / 2;
  const std::int64_t full = s > window ? s - window : 0;
  return full * window + (s - full) * (s - full + 1) / 2;
}
[[gnu::cold]] constexpr work attention_work(const graph& g, const node& n, int q, int k,
                                            int products) {
  const value &x = g.at(n.in[q]), &y = g.at(n.in[k]);
  const auto o = n.attr.as<attention_options>();
  const std::int64_t pairs =
      visible_pairs(local_extent(g.ranks, x, 1), local_extent(g.ranks, y, 1), o.causal, o.window);
  work w;
  w.flops = 2 * products * pairs * local_extent(g.ranks, x, 0) * local_extent(g.ranks, x, 2) *
            x.dims[3].n;
  for (value_id i : n.in)
    if (i >= 0) w.read += local_bytes(g.ranks, g.at(i));
  for (value_id o : n.out)
    if (o >= 0) w.written += local_bytes(g.ranks, g.at(o));
  return w;
}
[[gnu::cold]] constexpr work attention_cost(const graph& g, const node& n) {
  return attention_work(g, n, attention_in::q, attention_in::k, 2);
}
/// Returns the work of the backward op: four products, and the product for the scores again.
[[gnu::cold]] constexpr work attention_grad_cost(const graph& g, const node& n) {
  work w = attention_work(g, n, attention_grad_in::q, attention_grad_in::k, 5);
  w.repeated = w.flops / 5;
  return w;
}

inline constexpr op_info attention_grad{.name = "attention_grad",
                                        .rule = &attention_grad_rule,
                                        .cost = &attention_grad_cost,
                                        .attributes = attributes_of<attention_options>,
                                        .operands = named<attention_grad_in, attention_grad_out>};

[[gnu::cold]] constexpr void attention_adjoint(backward& d, const node& n) {
  using in = attention_in;
  using out = attention_out;
  using grad = attention_grad_out;
  const value_id dy = d.of(n.out[out::o]);
  if (dy < 0) return;
  const value_id dq =
      d.b.emit(attention_grad,
               {dy, n.in[in::q], n.in[in::k], n.in[in::v], n.out[out::o], n.out[out::lse],
                n.in[in::q_order], n.in[in::k_order], n.in[in::q_document], n.in[in::k_document]},
               n.line, n.attr);
  const node made = d.b.g.at_node(d.b.g.at(dq).producer);
  d.give(n.in[in::q], made.out[grad::dq], n.line);
  d.give(n.in[in::k], made.out[grad::dk], n.line);
  d.give(n.in[in::v], made.out[grad::dv], n.line);
}
inline constexpr op_info attention{.name = "attention",
                                   .rule = &attention_rule,
                                   .adjoint = &attention_adjoint,
                                   .cost = &attention_cost,
                                   .attributes = attributes_of<attention_options>,
                                   .operands = named<attention_in, attention_out>};

} // namespace op

/// The integers by which attention decides which keys a query sees. `q_order` and `k_order` are
/// places in the sequences, (B, S) and (B, S') i32. Causal attention needs them (MEGA-S008), since
/// a rank may hold any part of a sequence, and positions may begin anew in it. `q_document` and
/// `k_document` are document numbers of the same shapes, and a query sees keys of its own document.
/// Both are absent (vars without builder) where no documents are packed.
struct attention_masks {
  var q_order, k_order, q_document, k_document;
};

/// Returns softmax(scale q k^T) v over the keys that the masks leave, (B, S, A, D). q is (B, S, A,
/// D), k and v are (B, S', K, D), where K divides A; its dim is kv_heads, or that of q's heads.
/// Scale 0 is 1 / sqrt(D). A query without a visible key gives zeros.
constexpr var attention(var q, var k, var v, attention_masks m, attention_options o,
                        source_line line = here()) {
  if (q.b->packed && m.q_document.b == nullptr)
    q.b->fail(fault::S008, line, "attention", q.id, k.id);
  return {q.b, q.b->emit(
                   op::attention,
                   {q.id, k.id, v.id, m.q_order.id, m.k_order.id, m.q_document.id, m.k_document.id},
                   line, o)};
}

} // namespace mc
