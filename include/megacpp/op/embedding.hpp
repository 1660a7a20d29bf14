// Embedding: y[b, s, :] = table[ids[b, s], :].
//
//   ids (B, S) i32, below V, table (V, H), y (B, S, H)
//   adjoint: dtable[ids[b, s], :] += dy[b, s, :]
//
// Placement: linear in the table. A table that is sharded along V gives a pending sum: a rank gives
// zeros for the ids that it does not hold (vocabulary-parallel embedding, Shoeybi et al. 2019).
// Saved: ids. Bytes: each row of y is read and written once.
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {
namespace op {

struct embedding_in : input_names<embedding_in> {
  static constexpr name<0, element::i32> ids{};
  static constexpr name<1> table{};
};
struct embedding_out : output_names<embedding_out> {
  static constexpr name<0> y{};
};
struct embedding_grad_in : input_names<embedding_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1, element::i32> ids{};
  static constexpr name<2> table{};
};
struct embedding_grad_out : output_names<embedding_grad_out> {
  static constexpr name<0, element::sum> dtable{};
};

[[gnu::cold]] constexpr void embedding_rule(inference& c) {
  using in = embedding_in;
  using out = embedding_out;
  const value &ids = c.in(in::ids), &table = c.in(in::table);
  c.floats({in::table}), c.rank(in::table, 2);
  c.indexes(in::ids, integer_kind::indices, c.table_rows(in::table), in::table);
  c.require(ids.rank < max_rank, fault::S003, in::ids);
  value& y = c.declare(ids);
  y.type = table.type;
  if (ids.rank == max_rank) return;
  y.dims[y.rank++] = table.dims[1];
  c.distinct(out::y, in::ids, in::table);
  place_output(c, out::y, algebra::product, {in::ids, in::table}, {table.dims[1].d});
}
[[gnu::cold]] constexpr void embedding_grad_rule(inference& c) {
  using in = embedding_grad_in;
  // The operands are dy, ids and table, of which only the shape is used.
  const value &dy = c.in(in::dy), &table = c.in(in::table);
  c.floats({in::dy, in::table}), c.rank(in::table, 2), c.leads(in::ids, in::dy, 1);
  c.indexes(in::ids, integer_kind::indices, c.table_rows(in::table), in::table);
  c.agree(dy.back(), table.dims[1], in::dy, in::table);
  value& d = c.declare(table);
  d.type = accumulator_of(dy.type);
  const dim rows = table.dims[0].d;
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    d.at[a] = join(c, a, algebra::product, d, {in::dy, in::ids}, {table.dims[1].d});
    if (!table.at[a].is_shard(rows)) continue;
    if (dy.at[a].s != state::replicate) c.fail(fault::P002, in::dy, in::table);
    d.at[a] = table.at[a];
  }
}
[[gnu::cold]] constexpr work embedding_cost(const graph& g, const node& n) {
  using in = embedding_in;
  using out = embedding_out;
  const std::int64_t rows = local_bytes(g.ranks, g.at(n.out[out::y]));
  return {0, rows + local_bytes(g.ranks, g.at(n.in[in::ids])), rows};
}
[[gnu::cold]] constexpr work embedding_grad_cost(const graph& g, const node& n) {
  using in = embedding_grad_in;
  const value& dy = g.at(n.in[in::dy]);
  const std::int64_t rows = local_size(g.ranks, dy).n * size_of(accumulator_of(dy.type));
  return {0, rows + local_bytes(g.ranks, dy) + local_bytes(g.ranks, g.at(n.in[in::ids])), rows};
}
inline constexpr op_info embedding_grad{.name = "embedding_grad",
                                        .rule = &embedding_grad_rule,
                                        .cost = &embedding_grad_cost,
                                        .accumulates = true,
                                        .operands = named<embedding_grad_in, embedding_grad_out>};

[[gnu::cold]] constexpr void embedding_adjoint(backward& d, const node& n) {
  using in = embedding_in;
  using out = embedding_out;
  const value_id dy = d.of(n.out[out::y]);
  if (dy < 0 || !d.wants(n.in[in::table])) return;
  d.give(n.in[in::table], d.b.emit(embedding_grad, {dy, n.in[in::ids], n.in[in::table]}, n.line),
         n.line);
}
inline constexpr op_info embedding{.name = "embedding",
                                   .rule = &embedding_rule,
                                   .adjoint = &embedding_adjoint,
                                   .cost = &embedding_cost,
                                   .typed_by = embedding_in::table,
                                   .operands = named<embedding_in, embedding_out>};

} // namespace op

/// Returns the rows of the table (V, H) with these ids, (B, S, H). ids (B, S) are i32 and below V.
/// A rank that does not hold the row of an id gives zeros, so y is a pending sum over an axis that
/// shards V.
constexpr var embedding(var ids, var table, source_line line = here()) {
  return {ids.b, ids.b->emit(op::embedding, {ids.id, table.id}, line)};
}

} // namespace mc
