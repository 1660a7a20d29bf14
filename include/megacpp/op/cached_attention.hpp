// Attention of new tokens to earlier tokens of their sequences, which caches of keys and values
// hold.
//
//   q (B, S, A, D), k and v (B, S, K, D): the new tokens' own;  keys, values (B, C, K, D): the
//   caches;  slots (B, S) i32: token s of sequence b has slot p in its sequence's caches
//
//   first    keys[b, p] = k[b, s],  values[b, p] = v[b, s]
//   then     o[b, s] = attention (op/attention.hpp) of q[b, s] to slots 0 ... p of b's caches,
//            with a window to slots above p - window
//
// Slots stand for positions: all slots below a sequence's newest token must have been written. A
// token whose slot is -1 is padding: no cache keeps it, it sees nothing, and its o is 0. So one
// batch may have sequences of different lengths and finished ones, and no unwritten slot is read.
// No value has the size S x C.
//
// The op writes the caches in place: the caller gives them as operands, and they are no result. The
// op is only in graphs of generation; it has no adjoint and saves nothing.
// Placement: batch and heads may be sharded alike in all operands, the caches as k and v. The new
// tokens are needed whole (a cache has no part of a token), and so is D.
// FLOPs: 4 A D for every pair of a token and a slot it sees, counted as if the caches were full.
#pragma once

#include <megacpp/op/attention.hpp>

namespace mc {
namespace op {

struct cached_attention_in : input_names<cached_attention_in> {
  static constexpr name<0> q{};
  static constexpr name<1> k{};
  static constexpr name<2> v{};
  static constexpr name<3> keys{};
  static constexpr name<4> values{};
  static constexpr name<5, element::i32> slots{};
};
struct cached_attention_out : output_names<cached_attention_out> {
  static constexpr name<0> o{};
};

/// The most slots of a cache, since they are numbered by i32.
inline constexpr std::int64_t most_slots = 0x7fffffff;

[[gnu::cold]] constexpr void cached_attention_rule(inference& c) {
  using in = cached_attention_in;
  const value &q = c.in(in::q), &k = c.in(in::k), &keys = c.in(in::keys);
  attention_operands(c, in::q);
  c.require(q.dims[1] == k.dims[1], fault::S002, in::q, in::k);
  c.typed({in::keys, in::values}, k.type), c.rank(in::keys, 4), c.alike(in::values, in::keys);
  c.require(keys.dims[0] == k.dims[0] && keys.dims[2] == k.dims[2] && keys.dims[3] == k.dims[3],
            fault::S002, in::k, in::keys);
  c.indexes(in::slots, integer_kind::slots, keys.dims[1].n, in::keys), c.leads(in::slots, in::q, 2);
  c.require(keys.dims[1].n <= most_slots, fault::S002, in::keys);
  c.require(c.n.attr.as<attention_options>().causal, fault::C001, in::q,
            in::k); // later tokens do not exist yet
  value& o = c.declare(q);
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    o.at[a] = attention_place(c, a, in::q, in::k, in::v, in::slots);
    if (q.at[a].is_shard(dim::sequence)) c.fail(fault::P007, in::q);
    if (keys.at[a] != k.at[a]) c.fail(fault::P002, in::k, in::keys);
    if (c.in(in::values).at[a] != c.in(in::v).at[a]) c.fail(fault::P002, in::v, in::values);
  }
}
[[gnu::cold]] constexpr work cached_attention_cost(const graph& g, const node& n) {
  using in = cached_attention_in;
  work w = attention_work(g, n, in::q, in::keys, 2);
  w.written += local_bytes(g.ranks, g.at(n.in[in::k])) + local_bytes(g.ranks, g.at(n.in[in::v]));
  return w;
}
inline constexpr op_info cached_attention{
    .name = "cached_attention",
    .rule = &cached_attention_rule,
    .cost = &cached_attention_cost,
    .writes_operands = mask_of(cached_attention_in::keys, cached_attention_in::values),
    .attributes = attributes_of<attention_options>,
    .operands = named<cached_attention_in, cached_attention_out>};

} // namespace op

/// Returns o (B, S, A, D). q is (B, S, A, D), k and v are (B, S, K, D), the caches are (B, C, K,
/// D), and slots are (B, S) i32.
constexpr var cached_attention(var q, var k, var v, var keys, var values, var slots,
                               attention_options o, source_line line = here()) {
  return {q.b, q.b->emit(op::cached_attention, {q.id, k.id, v.id, keys.id, values.id, slots.id},
                         line, o)};
}

} // namespace mc
