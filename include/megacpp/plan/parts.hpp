// The parts of a step as graphs: stem (embeddings), one block per kind, head (loss or logits).
// Layers are a run-time loop over kinds of block, so 48 layers compile as fast as one. The same
// functions of the model build training, prefill and decode; `setup` says how they differ.
#pragma once

#include <megacpp/nn/head.hpp>
#include <megacpp/op/numbers.hpp>
#include <megacpp/op/select.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/pass/adapt.hpp>
#include <megacpp/pass/hoist.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/pass/verify_hoist.hpp>
#include <megacpp/plan/check_graph.hpp>
#include <megacpp/plan/check_model.hpp>
#include <megacpp/plan/frozen.hpp>

namespace mc {

/// Returns the forward graph of one part as the model writes it. The next step, hoisted_graph(), is
/// apart from this, since compilers limit the steps of each evaluation.
template <class Model> [[gnu::cold]] constexpr graph written_graph(const Model& m, const setup& s,
                                                                   part_kind part, int kind) {
  builder b{mesh(s.ranks)};
  b.g.sums = s.sums;
  b.g.wrong = detail::check(m, s);
  if (b.g.wrong.code != fault::none) return b.g;
  const extent B{dim::batch, s.batch.micro};
  const extent Sq{dim::sequence, s.batch.sequence,
                  s.ranks.cp > 1 ? order::balanced : order::contiguous};
  const placement tokens_at = stream_placement(invariant);
  placement all_at = tokens_at;
  all_at[axis::cp] = replicate;
  context c;
  c.b = &b;
  c.precision = s.precision;
  c.stream = s.stream();
  c.expert_rows = s.batch.expert_rows;
  c.generating = s.generating;
  c.room = s.room;
  b.packed = s.batch.packed;
  const auto ints = [&](feed f) {
    const fed_integers is = integers_of(f, s, m.vocabulary);
    return b.integers(f, is.kind, is.name, {B, Sq}, is_of_all(f) ? all_at : tokens_at, is.below);
  };
  const auto stream = [&] {
    return b.input(feed::stream, "x", s.precision.activation, {B, Sq, m.hidden_extent()},
                   stream_placement(c.stream));
  };
  value as_stream, as_loss;
  as_stream.name = "x", as_stream.is = role::input;
  as_stream.type = s.precision.activation, as_loss.type = s.precision.statistic;
  as_stream.rank = 3, as_stream.dims[0] = B, as_stream.dims[1] = Sq,
  as_stream.dims[2] = m.hidden_extent(), as_stream.at = stream_placement(c.stream);
  as_loss.at[axis::dp] = as_loss.at[axis::cp] = partial;
  for (value* v : {&as_stream, &as_loss}) b.normalise(*v, 0, "input");
  c.positions = ints(feed::positions);
  c.token_keys = ints(feed::token_keys);
  if (s.batch.packed) c.documents = ints(feed::documents);
  if (s.room > 0) {
    c.slots = ints(feed::slots);
  } else {
    c.order = ints(feed::order), c.all_order = ints(feed::all_order);
  }
  if (s.room == 0 && s.batch.packed) c.all_documents = ints(feed::all_documents);
  const value as_tokens = c.positions.type();
  const value as_all = s.room > 0 ? as_tokens : c.all_order.type();
  switch (part) {
  case part_kind::stem:
    b.g.outputs[0] = m.stem(c, ints(feed::tokens)).id;
    verify_output(b, b.g.outputs[0], as_stream, "stem");
    break;
  case part_kind::block:
    b.g.outputs[0] = m.block(c, kind, stream()).id;
    verify_output(b, b.g.outputs[0], as_stream, "block");
    break;
  case part_kind::loss: {
    const var labels = ints(feed::labels);
    const var x = m.final_norm(c, stream()), table = m.head_table(c); // one order of parameters
    if (!detail::given(b, x, "final_norm") || !detail::given(b, table, "head_table")) return b.g;
    const source_line at = line_of(b.g, x.id);
    const summed_loss l = vocabulary_loss(x, table, labels, m.vocabulary, m.z_loss, at);
    b.g.outputs = {l.sum.id, l.count.id};
    for (value_id v : b.g.outputs) verify_output(b, v, as_loss, "loss");
    break;
  }
  case part_kind::logits: {
    placement one = tokens_at;
    one[axis::cp] = invariant;
    const fed_integers is = integers_of(feed::last, s, m.vocabulary);
    const var last = b.integers(feed::last, is.kind, is.name, {B}, one, is.below);
    const var normed = m.final_norm(c, stream());
    if (!detail::given(b, normed, "final_norm")) return b.g;
    const source_line at = line_of(b.g, normed.id);
    const var x = to(to(normed, axis::tp, replicate, at), axis::cp, replicate, at);
    const var table = m.head_table(c);
    if (!detail::given(b, table, "head_table")) return b.g;
    const var own = linear(select(x, last, at), table, at); // the rank's logits
    b.g.outputs[0] =
        (own.at(axis::tp).s == state::shard ? to(own, axis::tp, invariant, at) : own).id;
    break;
  }
  }
  if (!s.generating && part != part_kind::logits) b.g.side_loss = c.side_loss().id;
  if (b.g.side_loss >= 0) verify_output(b, b.g.side_loss, as_loss, "side loss");
  for (int i = 0; i < b.g.parameter_count; ++i) {
    parameter_info& p = b.g.parameters[i];
    if (p.encoding == nullptr && b.g.at(p.v).type != s.precision.weight)
      b.fail(fault::S006, p.line, "parameter", p.v);
    p.frozen = p.frozen || freezes(s.frozen, b.g.at(p.v), p.tied,
                                   part == part_kind::stem    ? declared_in::stem
                                   : part == part_kind::block ? declared_in::block
                                                              : declared_in::head);
  }
  detail::check_inputs(b, part, s, as_tokens, as_all, as_stream, m.vocabulary);
  detail::check_changes(b, s.generating);
  if (part != part_kind::logits) detail::check_padding(b); // texts use none of those rows
  detail::check_salts(b.g);
  if (part == part_kind::loss && b.g.wrong.code == fault::none) {
    add_to(step_total::loss, {&b, b.g.outputs[0]});
    add_to(step_total::tokens, {&b, b.g.outputs[1]});
  }
  if (b.g.side_loss >= 0 && b.g.wrong.code == fault::none)
    add_to(step_total::side_loss, {&b, b.g.side_loss});
  if (s.room > 0) detail::check_caches(b);
  return b.g;
}
/// Returns the graph of written_graph() with a prologue, verified.
[[gnu::cold]] constexpr graph hoisted_graph(const graph& written) {
  graph g = written;
  hoist(g);
  if (g.wrong.code == fault::none) g.wrong = verify_hoist(g, written);
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}
/// Returns a part's graph as a run's adapter leaves it. `kind` is one of most_kinds<Model>.
template <class Model>
constexpr graph adapted_graph(const graph& written, const setup& s, part_kind part, int kind) {
  const adapted_as as = part != part_kind::block ? adapted_as::other
                        : kind < Model::kinds    ? adapted_as::layer
                                                 : adapted_as::bare_layer;
  return adapted(written, s.adapter, as, !s.generating, published_of<Model>(), s.held_adapters);
}
/// Returns the forward graph of one part with a prologue, verified. `kind` is one of
/// most_kinds<Model>.
template <class Model>
constexpr graph forward_graph(const Model& m, const setup& s, part_kind part, int kind) {
  return hoisted_graph(
      adapted_graph<Model>(written_graph(m, s, part, kind % Model::kinds), s, part, kind));
}

} // namespace mc
