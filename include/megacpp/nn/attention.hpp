// Self-attention layers, with heads over tp. In training, keys and values are those of the sequence
// itself, gathered over cp for the queries of each rank. In generation, they come from caches,
// inputs of the graph to which the keys and values of new tokens are appended.
#pragma once

#include <megacpp/nn/linear.hpp>
#include <megacpp/nn/norm.hpp>
#include <megacpp/op/cached_attention.hpp>
#include <megacpp/op/rope.hpp>
#include <megacpp/op/select.hpp>

namespace mc {

struct attention_sizes {
  extent heads, kv_heads, head_dim;
};

/// Returns the keys or values of x by a weight (K, D, H). When tp exceeds K, every kv head is
/// repeated for the ranks that share it; the repeated weight is cut over tp, and its gradient is
/// summed over the repeats.
constexpr var kv_projection(context& c, const char* scope, var x, const attention_sizes& s,
                            bool bias, double std, source_line line = here()) {
  const int tp = c.ranks().of(axis::tp);
  const std::int64_t copies = s.kv_heads.n < tp ? tp / s.kv_heads.n : 1;
  const placement stored = on(axis::tp, copies > 1 ? invariant : shard(dim::kv_heads));
  const var w = weight(c, scope, "weight", {s.kv_heads, s.head_dim, x.type().back()}, stored,
                       normal_weights(std), line);
  const var y_w = to(repeat(w, copies, line), axis::tp, shard(dim::kv_heads), line);
  if (!bias) return linear(x, y_w, line);
  const var b = weight(c, scope, "bias", {s.kv_heads, s.head_dim}, stored, zeros(), line);
  return linear(x, y_w, to(repeat(b, copies, line), axis::tp, shard(dim::kv_heads), line), line);
}

/// Returns an input: a cache (B, C, K, D) of keys or values with the placement of x (B, S, K, D).
constexpr var cache_like(context& c, feed from, const char* name, var x, source_line line) {
  const value v = x.type();
  return c.b->input(from, name, c.precision.activation,
                    {v.dims[0], {dim::sequence, c.room}, v.dims[2], v.dims[3]}, v.at, line,
                    c.caches);
}

/// Returns the attention of q (B, S, A, D) to k and v (B, S, K, D): every query sees the keys of
/// all cp ranks, or those of its cache.
constexpr var context_parallel_attention(context& c, var q, var k, var v, attention_options o,
                                         source_line line = here()) {
  if (c.room > 0) {
    if (!o.causal)
      c.b->fail(fault::C006, line, "attention", q.id, "it sees later tokens, which nobody has yet");
    const var keys = cache_like(c, feed::key_cache, "key_cache", k, line),
              values = cache_like(c, feed::value_cache, "value_cache", v, line);
    if (++c.caches > max_feed_inputs)
      c.b->fail(fault::C006, line, "attention", q.id, "a part has caches for eight of them");
    return cached_attention(q, k, v, keys, values, c.slots, o, line);
  }
  const var keys = to(k, axis::cp, replicate, line), values = to(v, axis::cp, replicate, line);
  const attention_masks m{c.order, c.all_order, c.documents, c.all_documents};
  return attention(q, keys, values, m, o, line);
}

} // namespace mc
