// What docs/ shows of code that is part of no program: compiled, so that it can be pasted. Each
// part's wrong line is refused by a case of tests/compile_fail.
#include "../../examples/using-the-headers/own_run.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/inspect/description.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/nn/norm.hpp>
#include <megacpp/op/elementwise.hpp>

#include <fmt/format.h>

namespace {

using namespace mc;

[[maybe_unused]] constexpr var parameter_of(context& c, int ffn, extent hidden, double std) {
  const auto hidden_extent = [&] { return hidden; };
  // [parameter]
  const mc::var w = weight(c, "up", "weight", {{mc::dim::ffn, ffn}, hidden_extent()},
                           on(mc::axis::tp, S(mc::dim::ffn)), mc::normal_weights(std));
  // [/parameter]
  return w;
}

[[maybe_unused]] constexpr var mlp_of(context& c, var h, int ffn, extent hidden, double eps,
                                      double std) {
  const auto hidden_extent = [&] { return hidden; };
  const auto squared_relu = [](var x) { return own::squared_relu(x); };
  // [mlp]
  // I -> R, or S(sequence) -> R
  const mc::var m = to(rms_norm(c, "mlp_norm", h, eps), mc::axis::tp, mc::R);
  // S(ffn)
  const mc::var u = squared_relu(column_parallel(c, "up", m, {{mc::dim::ffn, ffn}}, false, std));
  // P -> c.stream, inside
  return h + row_parallel(c, "down", u, 1, hidden_extent(), false, std);
  // [/mlp]
}

[[maybe_unused]] constexpr var both_of(context& c, var x, var o, var u, const attention_sizes& s,
                                       int ffn, extent hidden, double std) {
  const auto hidden_extent = [&] { return hidden; };
  // [one-sum]
  const mc::var wo = weight(c, "attn.proj", "weight", {hidden_extent(), s.heads, s.head_dim},
                            on(mc::axis::tp, S(mc::dim::heads)), mc::normal_weights(std));
  const mc::var wd = weight(c, "mlp.down", "weight", {hidden_extent(), {mc::dim::ffn, ffn}},
                            on(mc::axis::tp, S(mc::dim::ffn)), mc::normal_weights(std));
  return x + to(linear(o, wo) + linear(u, wd), mc::axis::tp, c.stream); // P + P, summed once
  // [/one-sum]
}

// [members]
struct scaled_gpt : mc::gpt {
  double scale = 1; // behind mc::gpt's own
  static constexpr auto members = mc::gpt::members + mc::member_list<&scaled_gpt::scale>{};
};
// [/members]

[[maybe_unused]] constexpr var cached(context& c, var q, var k, var v, source_line line = here()) {
  // [cache]
  const mc::var keys = cache_like(c, feed::key_cache, "keys", k, line), // (B, C, K, D)
      values = cache_like(c, feed::value_cache, "values", v, line);
  ++c.caches; // the next ones have a number of their own, up to mc::max_feed_inputs of them a part
  return cached_attention(q, k, v, keys, values, c.slots, {}, line);
  // [/cache]
}

[[maybe_unused]] void try_a_layout() {
  // [layouts]
  const mc::setup s{.ranks = {.tp = 4, .cp = 2, .sequence_parallel = true}, .batch = {8, 128}};
  const mc::graph g = derived_graph(forward_graph(own::decoder{}, s, mc::part_kind::block, 0));
  if (g.wrong.code != mc::fault::none)
    fmt::print("{} {}\n", code_of(g.wrong.code), g.wrong.what.c_str());
  // [/layouts]
}

[[maybe_unused]] void faults(context& c, var x, var y, var h, var up, var down, var gain, var q,
                             var k, var v, double eps, extent hidden) {
  // [P001]
  linear(h, down);                  // h (T, F) sharded along F over tp, down (H, F) whole
  linear(to(h, axis::tp, R), down); // or declare down with on(axis::tp, S(dim::ffn))
  // [/P001]
  // [P002]
  x + y; // x sharded along the sequence, y invariant
  x + to(y, axis::tp, S(dim::sequence));
  // [/P002]
  // [P003]
  const var inner = to(x, axis::tp, R);
  to(inner, axis::tp, I) + y; // refused
  x + y;                      // x itself is still invariant
  // [/P003]
  // [P004]
  linear(x, up); // x invariant over tp, up sharded along its outputs
  linear(to(x, axis::tp, R), up);
  rms_norm(x, gain, eps); // x sharded along the sequence, gain whole
  rms_norm(x, to(gain, axis::tp, beside(x.at(axis::tp))), eps);
  // [/P004]
  // [P005]
  x + linear(h, down); // h and down sharded along the summed dim
  x + to(linear(h, down), axis::tp, c.stream);
  // [/P005]
  // [P007]
  rms_norm(x, gain, eps); // x sharded along hidden
  rms_norm(to(x, axis::tp, R), gain, eps);
  attention_masks m;         // its members: places and documents of queries and keys, MEGA-S008
  attention(q, k, v, m, {}); // all sharded along the sequence over cp
  attention(q, to(k, axis::cp, R), to(v, axis::cp, R), m, {});
  context_parallel_attention(c, q, k, v, {}); // does that
  // [/P007]
  // [S008]
  attention(q, k, v, {}, {}); // causal: refused
  attention_masks masks;
  masks.q_order = c.order, masks.k_order = c.all_order;
  attention(q, k, v, masks, {});
  // [/S008]
  // [P009]
  to(to(x, axis::cp, I), axis::tp, I); // the sequence is cut over cp, and every part over tp
  to(to(x, axis::tp, I), axis::cp, I);
  // [/P009]
  // [P010]
  weight(c, "norm", "weight", {hidden}, on(axis::tp, R), ones());
  to(weight(c, "norm", "weight", {hidden}, {}, ones()), axis::tp, R);
  // [/P010]
}

// Every call of the table "What there is to build from" of docs/writing-a-model.md.
[[maybe_unused]] constexpr var built_of_all(context& c, var tokens, var x, double eps, double std) {
  const extent H{dim::hidden, 64}, A{dim::heads, 4}, K{dim::kv_heads, 2}, D{dim::head_dim, 16};
  const extent F{dim::ffn, 32}, E{dim::expert, 4};
  const attention_sizes sizes{A, K, D};
  x = x + token_embedding(c, tokens, vocabulary_table(c, "table", 100, H, std, false));
  x = x + stream_dropout(c, position_embedding(c, "wpe", {dim::position, 64}, H, std), 0.1);
  const var a = to(rms_norm(c, "ln_1", x, eps), axis::tp, R);
  const var q = rope(column_parallel(c, "q", a, {A, D}, true, std), c.positions, 1e4);
  const rope_stretch stretch{.type = rope_type::yarn, .factor = 4, .original = 1024};
  const var k = rope(kv_projection(c, "k", a, sizes, true, std), c.positions,
                     rope_angles(1e4, stretch, 16, 4096)),
            v = kv_projection(c, "v", a, sizes, true, std);
  const attention_options options{.scale = 0, .causal = true, .window = 8};
  const var o = context_parallel_attention(c, q, k, v, options);
  x = x + row_parallel(c, "o", o, 2, H, true, std);
  const var m = to(layer_norm(c, "ln_2", x, true, eps), axis::tp, R);
  const var gate = column_parallel(c, "gate", m, {F}, false, std);
  const var up = column_parallel(c, "up", m, {F}, false, std);
  x = x + row_parallel(c, "down", swiglu(gelu(gate, gelu_form::exact), gelu(up)), 1, H, false, std);
  const expert_sizes experts{.experts = E, .ffn = F, .per_token = 2};
  return x + mixture_of_experts(c, {"router", "e.gate", "e.up", "e.down"}, x, experts, std);
}

// [C005]
struct small_run {
  static constexpr auto model = mc::preset::byte_gpt;
  static constexpr mc::layout layout{}; // a constant of the struct, not of each object
  static constexpr mc::batching batch{.micro = 4, .sequence = 128};
  using precision = mc::bf16_mixed; // a type
};
// [/C005]
static_assert(program<small_run>::ok);

// [frozen]
struct sent_in_bf16 { // as bf16_mixed, but for what main grads are sent in
  static constexpr mc::precision_policy policy = [] {
    mc::precision_policy p = mc::dtype::bf16;
    p.wire = mc::dtype::bf16;
    return p;
  }();
};
struct head_alone {
  static constexpr auto model = mc::preset::qwen3_30b_a3b; // whose head is not tied
  static constexpr mc::layout layout{.zero = 1};
  static constexpr mc::batching batch{.micro = 1, .sequence = 512};
  using precision = sent_in_bf16;
  static constexpr mc::frozen frozen{"embedding", "blocks"};
};
// [/frozen]
static_assert(program<head_alone>::ok);

} // namespace
