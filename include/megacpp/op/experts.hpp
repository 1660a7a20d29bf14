// The way of tokens to experts and back, and the products of the experts.
//
// expert_rows: every choice (t, j), the j-th expert of token t, becomes one row on the rank that
// has the expert.
//   Rows of a rank are sorted by expert, then by the rank that sends them, then by (t, j): a stable
//   counting sort.
//   row (B, S, k) i32: the number of each choice's row on its rank, or -1 if it was dropped
//   counts (1, E, sequences) i32: rows of every expert for each sequence, or for each sending rank
//   where the tokens of a rank are summed at once (recipe/numerics.hpp). All ranks of ep and etp
//   have them, and so has the host of each, since they decide how much it starts
//   rounds (1) i32: how many rounds of R rows the fullest rank of ep and etp needs; all these ranks
//   have the same number, and other ranks of edp have their own
//   With a capacity C an expert takes the first C choices of a micro-batch and drops the rest. The
//   order is that of the micro-batch's tokens on all ranks of tp and cp, so operand `all` has the
//   choices of all of them.
// dispatch: rows[row(t, j)] = x[t]              (or x[t, j])
// combine:  y[t] = sum_j rows[row(t, j)]        (or y[t, j] = rows[row(t, j)])
//   Each is the other's adjoint. Round r holds the rows [r R, (r + 1) R); combine adds up over
//   rounds. Unused rows are zero.
// grouped_linear: y_i = x_i w_e^T for every row i of expert e: x (R, K), w (E, N, K), y (R, N),
//   sums over an expert's rows are taken apart for each column of counts
//   adjoint: dx_i = dy_i w_e,  dw_e += sum over rows i of e of dy_i^T x_i
// scale_rows: y_i = w_i x_i,  adjoint: dx_i = w_i dy_i,  dw_i = sum_j dy_ij x_ij
//   with w (..., G) for x (..., G F), each of the G parts of a row has a factor of its own
//
// Dispatch takes rows from the dense mesh (dp, cp, tp), where every token lies on one rank, to the
// expert mesh (edp, ep, etp) over the same ranks, and combine takes them back. On the expert mesh,
// rows are sharded over edp and ep, and equal on the ranks of etp, which share each expert; what
// combine reads is a pending sum over etp. A grouped product multiplies the rows of an ep rank by
// the experts of that rank. Saved: x, rows, counts. FLOPs of a grouped product: 2 N K a row, for
// the R rows of a full round.
//
// On the wire, over ep x etp: expert_rows gathers everyone's counts; dispatch gives each choice to
// the ranks of etp that share its expert, and combine takes their sums back, all-to-all by counts.
// The bytes that `wire` tells are those of a micro-batch in all rounds, as if every expert were
// chosen equally often (even_rows). Rows lie in scratch while they are exchanged
// (exchange_scratch).
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/op/redistribute.hpp>

#include <algorithm>

namespace mc {
namespace op {

struct expert_rows_in : input_names<expert_rows_in> {
  static constexpr name<0, element::i32> experts{};
  static constexpr name<1, element::i32> all{};
};
struct expert_rows_out : output_names<expert_rows_out> {
  static constexpr name<0, element::i32> row{};
  static constexpr name<1, element::i32> counts{};
  static constexpr name<2, element::i32> rounds{};
};
struct dispatch_in : input_names<dispatch_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::i32> experts{};
  static constexpr name<2, element::i32> row{};
  static constexpr name<3, element::i32> counts{};
};
struct dispatch_out : output_names<dispatch_out> {
  static constexpr name<0> rows{};
};
struct combine_in : input_names<combine_in> {
  static constexpr name<0> rows{};
  static constexpr name<1, element::i32> experts{};
  static constexpr name<2, element::i32> row{};
  static constexpr name<3, element::i32> counts{};
};
struct combine_out : output_names<combine_out> {
  static constexpr name<0> y{};
};
struct grouped_linear_in : input_names<grouped_linear_in> {
  static constexpr name<0> x{};
  static constexpr name<1> w{};
  static constexpr name<2, element::i32> counts{};
};
struct grouped_linear_out : output_names<grouped_linear_out> {
  static constexpr name<0> y{};
};
struct grouped_weight_grad_in : input_names<grouped_weight_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2, element::i32> counts{};
};
struct grouped_weight_grad_out : output_names<grouped_weight_grad_out> {
  static constexpr name<0, element::sum> dw{};
};
struct scale_rows_in : input_names<scale_rows_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::sum> w{};
};
struct scale_rows_out : output_names<scale_rows_out> {
  static constexpr name<0> y{};
};
struct scale_rows_weight_grad_in : input_names<scale_rows_weight_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
  static constexpr name<2, element::sum> w{};
};
struct scale_rows_weight_grad_out : output_names<scale_rows_weight_grad_out> {
  static constexpr name<0, element::sum> dw{};
};

/// Returns the number of choices of experts on one rank: its tokens times k.
constexpr std::int64_t local_choices(const mesh& r, const value& experts) {
  return local_size(r, experts).n;
}
[[gnu::cold]] constexpr void on_one_rank_each(inference& c, int k) {
  for (axis a : {axis::dp, axis::cp, axis::tp}) {
    if (c.g.ranks.trivial(a) || c.in(k).at[a].s == state::shard) continue;
    c.looking = static_cast<int>(a);
    c.fail(fault::P015, k);
  }
  c.looking = -1;
}
/// Returns the number of sequences whose tokens the experts of one rank sum one by one. Where a
/// rank's tokens are summed at once, it is the number of ranks that send tokens.
[[gnu::cold]] constexpr std::int64_t sequences_of_group(const graph& g, const value& experts) {
  return g.ranks.of(axis::ep) * g.ranks.of(axis::etp) * sequences_apart(g.sums, g.ranks, experts);
}
/// Places rows on the expert mesh.
constexpr void place_rows(const inference& c, value& rows) {
  std::int8_t level = 0;
  for (axis a : {axis::edp, axis::ep})
    if (!c.g.ranks.trivial(a)) rows.at[a] = {state::shard, dim::rows, level++};
}

/// Returns the bytes of one row of rows (R, H) or (R).
constexpr std::int64_t bytes_of_row(const mesh& r, const value& rows) {
  return (rows.rank > 1 ? local_extent(r, rows, 1) : 1) * size_of(rows.type);
}

/// The axes over which ranks share the experts of a layer.
inline constexpr axis_set expert_group{axis::ep, axis::etp};
/// Returns the all-to-all by counts: a row for every choice and rank of etp.
[[gnu::cold]] constexpr transfers wire_of_choices(const graph& g, const value& experts,
                                                  const value& rows, const mesh& ranks) {
  const std::int64_t bytes =
      local_choices(g.ranks, experts) * ranks.of(axis::etp) * bytes_of_row(g.ranks, rows);
  const int n = ranks_of(ranks, expert_group);
  return transfers{}.add(
      {collective::all_to_all, expert_group, bytes, bytes_sent(collective::all_to_all, bytes, n)});
}

/// The number of rows on one rank, in all and in a round, as if every expert were chosen equally
/// often.
struct even_rows {
  std::int64_t all, of_round;

  constexpr even_rows(const mesh& r, const value& experts, std::int64_t rows)
      : all(local_choices(r, experts) * r.of(axis::etp)), of_round(rows) {}
  constexpr int rounds() const {
    return all <= of_round ? 1 : static_cast<int>((all + of_round - 1) / of_round);
  }
  constexpr std::int64_t in(int round) const {
    const std::int64_t left = all - round * of_round;
    return left < of_round ? left : of_round;
  }
};

/// The scratch of an exchange: offsets, in bytes, of a round's rows and their numbers. Rows lie in
/// it in the order of the ranks that they go to or come from. The host makes the tables of senders
/// and of experts.
struct exchange_scratch {
  /// The table of senders: three i64 for the rows that an expert of this rank has from one rank.
  std::int64_t of_senders = 0;
  std::int64_t of_experts = 0; ///< the table of experts: one i64 for each
  std::int64_t tables = 0;     ///< bytes of both tables
  std::int64_t of_choices = 0; ///< one i32 for each choice
  std::int64_t chosen = 0;     ///< rows of this rank's choices, for each rank of etp
  std::int64_t rows = 0;       ///< rows of this rank's experts
  std::int64_t bytes = 0;

  /// Lays out the scratch for `count` experts and rounds of `rows_of_round` rows of `row_bytes`
  /// each.
  constexpr exchange_scratch(const mesh& m, const value& experts, std::int64_t count,
                             std::int64_t rows_of_round, std::int64_t row_bytes) {
    const std::int64_t ep = m.of(axis::ep), etp = m.of(axis::etp), all = local_choices(m, experts),
                       most = all < ep * rows_of_round ? all : ep * rows_of_round;
    of_senders = take(3 * count * etp * size_of(dtype::i64));
    of_experts = take(count * size_of(dtype::i64));
    tables = bytes;
    of_choices = take(all * size_of(dtype::i32));
    chosen = take(most * etp * row_bytes), rows = take(rows_of_round * row_bytes);
  }

private:
  constexpr std::int64_t take(std::int64_t n) {
    const std::int64_t at = bytes;
    bytes += (n + 63) / 64 * 64;
    return at;
  }
};
/// Returns the bytes of host memory that an exchange needs: two numbers for each rank, and the
/// tables.
template <class In>
[[gnu::cold]] constexpr std::int64_t room_of_exchange(const graph& g, const node& n) {
  const mesh& m = g.ranks;
  const std::int64_t ranks = m.of(axis::ep) * m.of(axis::etp);
  if (ranks == 1) return 0;
  const exchange_scratch lies(m, g.at(n.in[In::experts]), g.at(n.in[In::counts]).dims[1].n, 1, 1);
  return 2 * ranks * size_of(dtype::i64) + lies.tables;
}
/// The attributes of dispatch and combine.
struct crossing_attributes {
  std::int64_t rows;  ///< rows of a round on one rank
  bool drops = false; ///< some choices may have no row
};
/// Declares the scratch of dispatch or combine where ranks share experts. `rows` are the rows that
/// the op exchanges.
template <class In> [[gnu::cold]] constexpr void declare_exchange(inference& c, const value& rows) {
  if (c.wrong != fault::none || (c.g.ranks.trivial(axis::ep) && c.g.ranks.trivial(axis::etp)))
    return;
  c.declare_scratch(exchange_scratch(c.g.ranks, c.in(In::experts), c.in(In::counts).dims[1].n,
                                     c.n.attr.as<crossing_attributes>().rows,
                                     bytes_of_row(c.g.ranks, rows))
                        .bytes);
}

/// Checks operand k, the chosen experts (B, S, k) i32, which are below `count`.
[[gnu::cold]] constexpr void chosen_experts(inference& c, int k, std::int64_t count) {
  c.indexes(k, integer_kind::experts, count), c.dims(k, {dim::batch, dim::sequence, dim::choices});
}
/// The most rows, since i32 numbers the rows of all choices of a group's tokens.
inline constexpr std::int64_t most_rows = 0x7fffffff;
constexpr bool numbers_rows(const mesh& r, const value& experts) {
  return local_choices(r, experts) <= most_rows / (r.of(axis::ep) * r.of(axis::etp));
}
struct expert_rows_attributes {
  std::int64_t rows;     ///< rows of a round on one rank
  std::int64_t experts;  ///< experts of all ranks
  std::int64_t capacity; ///< rows that an expert takes from one micro-batch; 0: all
};
struct grouped_attributes {
  std::int64_t tokens; ///< tokens of a rank that are summed at once, each in one row of an expert
};

/// Returns the number of rows of a round. Where that number is illegal, it blames operand k and
/// returns 1.
[[gnu::cold]] constexpr std::int64_t rows_of_round(inference& c, int k, std::int64_t rows) {
  c.require(rows > 0 && rows <= most_rows, fault::C001, k);
  return rows > 0 ? rows : 1;
}
/// Checks operand k, the counts (1, E, sequences) i32 of expert_rows. A fault names operand x, too.
[[gnu::cold]] constexpr void counts_of_experts(inference& c, int k, int x) {
  const value& v = c.in(k);
  c.indexes(k, integer_kind::expert_counts, 0);
  c.dims(k, {dim::replicas, dim::expert, dim::sequences});
  c.require(v.dims[0].n == 1, fault::S002, k);
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    const place at = a == axis::edp ? shard(dim::replicas) : invariant;
    if (!c.g.ranks.trivial(a) && v.at[a].s != at.s) c.fail(fault::P002, x, k);
  }
  c.looking = -1;
}

/// Checks operand k, the choices of the whole micro-batch; operand `own` has those of one rank.
[[gnu::cold]] constexpr void choices_of_micro_batch(inference& c, int k, int own,
                                                    std::int64_t count) {
  chosen_experts(c, k, count), c.alike(k, own);
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    const place at = c.in(k).at[a];
    if (a == axis::dp && at != c.in(own).at[a]) c.fail(fault::P002, own, k);
    if (a != axis::dp && at.s == state::shard) c.fail(fault::P007, k);
  }
  c.looking = -1;
}
[[gnu::cold]] constexpr void expert_rows_rule(inference& c) {
  using in = expert_rows_in;
  const value& experts = c.in(in::experts);
  const auto [rows, count, capacity] = c.n.attr.as<expert_rows_attributes>();
  chosen_experts(c, in::experts, count), rows_of_round(c, in::experts, rows);
  c.require(count > 0 && count <= most_rows && capacity >= 0 && numbers_rows(c.g.ranks, experts),
            fault::C001, in::experts);
  on_one_rank_each(c, in::experts);
  c.require(c.has(expert_rows_in::all) == (capacity > 0), fault::S008, in::experts);
  if (c.has(expert_rows_in::all)) choices_of_micro_batch(c, in::all, in::experts, count);
  value& row = c.declare(experts);
  row.at = experts.at, row.holds = integer_kind::expert_rows, row.below = most_rows;
  value& counts = c.declare(dtype::i32, {{dim::replicas, 1},
                                         {dim::expert, count},
                                         {dim::sequences, sequences_of_group(c.g, experts)}});
  counts.holds = integer_kind::expert_counts, counts.below = most_rows;
  const place counts_at = c.g.ranks.trivial(axis::edp) ? invariant : shard(dim::replicas);
  counts.at[axis::edp] = counts_at;
  if (count % c.g.ranks.of(axis::ep) != 0) c.fail(fault::S001, in::experts);
  value& rounds = c.declare(dtype::i32, {{dim::replicas, 1}});
  rounds.at[axis::edp] = counts_at;
}
/// Returns the all-gather of every rank's counts: one for each expert and sequence summed apart.
[[gnu::cold]] constexpr transfers expert_rows_wire(const graph& g, const node& n,
                                                   const mesh& ranks) {
  const value& experts = g.at(n.in[expert_rows_in::experts]);
  const std::int64_t bytes = n.attr.as<expert_rows_attributes>().experts *
                             sequences_apart(g.sums, g.ranks, experts) * size_of(dtype::i32);
  return transfers{}.add(
      {collective::all_gather, expert_group, bytes,
       bytes_sent(collective::all_gather, bytes, ranks_of(ranks, expert_group))});
}
inline constexpr op_info expert_rows{.name = "expert_rows",
                                     .rule = &expert_rows_rule,
                                     .wire = &expert_rows_wire,
                                     .changes_mesh = true,
                                     .attributes = attributes_of<expert_rows_attributes>,
                                     .operands = named<expert_rows_in, expert_rows_out>};

/// Checks that operand x is placed as the choices of experts.
[[gnu::cold]] constexpr void like_choices(inference& c, int x, int experts) {
  for (int a = 0; a < axes; ++a)
    if (c.in(x).at.at[a] != c.in(experts).at.at[a]) {
      c.looking = a;
      c.fail(fault::P002, x, experts);
    }
  c.looking = -1;
}
/// Checks the operands of dispatch and combine beside x: experts (B, S, k), row with the same dims,
/// and counts. Returns the number of rows of a round.
template <class In> [[gnu::cold]] constexpr std::int64_t assignment_operands(inference& c, int x) {
  const value &experts = c.in(In::experts), &counts = c.in(In::counts);
  chosen_experts(c, In::experts, counts.dims[1].n),
      c.indexes(In::row, integer_kind::expert_rows, 0);
  c.alike(In::row, In::experts), counts_of_experts(c, In::counts, x);
  c.require(counts.dims[2].n == sequences_of_group(c.g, experts), fault::S002, In::experts,
            In::counts);
  like_choices(c, In::row, In::experts);
  return rows_of_round(c, x, c.n.attr.as<crossing_attributes>().rows);
}
[[gnu::cold]] constexpr void dispatch_rule(inference& c) {
  using in = dispatch_in;
  using out = dispatch_out;
  // The operands are x (B, S, H) or (B, S, k), experts, row, counts.
  const value &x = c.in(in::x), &experts = c.in(in::experts);
  c.floats({in::x});
  const std::int64_t count = assignment_operands<in>(c, in::x);
  c.rank(in::x, 3);
  c.agree(x.dims[0], experts.dims[0], in::x, in::experts),
      c.agree(x.dims[1], experts.dims[1], in::x, in::experts);
  const bool choices = x.back().d == dim::choices;
  if (choices) c.agree(x.back(), experts.dims[2], in::x, in::experts);
  on_one_rank_each(c, in::x);
  like_choices(c, in::x, in::experts);
  value& rows = c.declare(x.type, {{dim::rows, count * c.g.ranks.of(axis::ep)}});
  if (!choices) rows.dims[rows.rank++] = x.back();
  c.distinct(out::rows, in::x, in::experts);
  place_rows(c, rows);
  if (!c.g.ranks.trivial(axis::etp)) rows.at[axis::etp] = replicate;
  declare_exchange<in>(c, rows);
}
[[gnu::cold]] constexpr void combine_rule(inference& c) {
  using in = combine_in;
  using out = combine_out;
  // The operands are rows (R, H) or (R), experts, row, counts.
  const value &rows = c.in(in::rows), &experts = c.in(in::experts);
  c.floats({in::rows});
  const std::int64_t count = assignment_operands<in>(c, in::rows);
  c.require(rows.rank == 1 || (rows.rank == 2 && rows.dims[1].d != dim::choices), fault::S003,
            in::rows);
  c.agree(rows.dims[0], {dim::rows, count * c.g.ranks.of(axis::ep)}, in::rows, in::experts);
  value& y = c.declare(rows);
  y.take_dims(experts), y.at = experts.at;
  if (rows.rank > 1) y.dims[2] = rows.dims[1];
  c.distinct(out::y, in::rows, in::experts);
  value wanted{};
  place_rows(c, wanted);
  if (!c.g.ranks.trivial(axis::etp)) wanted.at[axis::etp] = partial;
  for (axis a : {axis::edp, axis::ep, axis::etp})
    if (rows.at[a] != wanted.at[a]) {
      c.looking = static_cast<int>(a);
      c.fail(fault::P002, in::rows, in::experts);
    }
  c.looking = -1;
  declare_exchange<in>(c, rows);
}
[[gnu::cold]] constexpr transfers dispatch_wire(const graph& g, const node& n, const mesh& ranks) {
  using in = dispatch_in;
  using out = dispatch_out;
  return wire_of_choices(g, g.at(n.in[in::experts]), g.at(n.out[out::rows]), ranks);
}
[[gnu::cold]] constexpr transfers combine_wire(const graph& g, const node& n, const mesh& ranks) {
  using in = combine_in;
  return wire_of_choices(g, g.at(n.in[in::experts]), g.at(n.in[in::rows]), ranks);
}
[[gnu::cold]] constexpr void dispatch_adjoint(backward& d, const node& n);
[[gnu::cold]] constexpr void combine_adjoint(backward& d, const node& n);
inline constexpr op_info dispatch{.name = "dispatch",
                                  .rule = &dispatch_rule,
                                  .adjoint = &dispatch_adjoint,
                                  .wire = &dispatch_wire,
                                  .linear = true,
                                  .changes_mesh = true,
                                  .seen = dispatch_in::counts,
                                  .host_room = &room_of_exchange<dispatch_in>,
                                  .attributes = attributes_of<crossing_attributes>,
                                  .operands = named<dispatch_in, dispatch_out>};
inline constexpr op_info combine{.name = "combine",
                                 .rule = &combine_rule,
                                 .adjoint = &combine_adjoint,
                                 .wire = &combine_wire,
                                 .accumulates = true,
                                 .linear = true,
                                 .changes_mesh = true,
                                 .seen = combine_in::counts,
                                 .host_room = &room_of_exchange<combine_in>,
                                 .attributes = attributes_of<crossing_attributes>,
                                 .operands = named<combine_in, combine_out>};
/// Writes the adjoint of an op x -> y, where the op `back` takes rows the other way.
template <class In> [[gnu::cold]] constexpr void transpose_crossing(backward& d, const node& n,
                                                                    value_id x, value_id y,
                                                                    const op_info& back) {
  const value_id dy = d.of(y);
  if (dy < 0 || !d.wants(x)) return;
  d.give(x,
         d.b.emit(back, {dy, n.in[In::experts], n.in[In::row], n.in[In::counts]}, n.line, n.attr),
         n.line);
}
[[gnu::cold]] constexpr void dispatch_adjoint(backward& d, const node& n) {
  transpose_crossing<dispatch_in>(d, n, n.in[dispatch_in::x], n.out[dispatch_out::rows], combine);
}
[[gnu::cold]] constexpr void combine_adjoint(backward& d, const node& n) {
  transpose_crossing<combine_in>(d, n, n.in[combine_in::rows], n.out[combine_out::y], dispatch);
}

/// Places output k of a grouped product on the expert mesh. Over ep, each rank multiplies its rows
/// by its experts; over other axes, the product is as any other.
[[gnu::cold]] constexpr void place_grouped(inference& c, int k, std::initializer_list<int> operands,
                                           place over_ep, int rows, int experts) {
  value& out = c.out[k];
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    if (c.g.ranks.trivial(a)) continue;
    if (a == axis::ep) {
      if (!c.in(rows).at[a].is_shard(dim::rows)) c.fail(fault::P002, rows, experts);
      if (experts >= 0 && !c.in(experts).at[a].is_shard(dim::expert))
        c.fail(fault::P002, rows, experts);
      out.at[a] = over_ep;
    } else {
      // The rows of an ep rank go to its experts, so no other axis may cut rows or experts again.
      if (a != axis::edp && c.in(rows).at[a].is_shard(dim::rows)) c.fail(fault::P007, rows);
      if (experts >= 0 && c.in(experts).at[a].is_shard(dim::expert)) c.fail(fault::P007, experts);
      out.at[a] = join(c, a, algebra::product, out, operands, {});
    }
  }
  c.looking = -1;
}
constexpr std::int8_t level_of_rows(const inference& c) {
  return c.g.ranks.trivial(axis::edp) ? std::int8_t{0} : std::int8_t{1};
}
/// Checks operand x, rows (R, ...), their counts, and the number of tokens that are summed at once.
[[gnu::cold]] constexpr void rows_by_expert(inference& c, int x, int counts) {
  c.require(c.in(x).rank == 2 && c.in(x).dims[0].d == dim::rows, fault::S003, x);
  c.require(c.n.attr.as<grouped_attributes>().tokens > 0, fault::C001, x);
  counts_of_experts(c, counts, x);
}
/// Checks x (R, K) or dy (R, N), w (E, N, K) and counts. Dim `shared` of w is the last dim of the
/// rows.
[[gnu::cold]] constexpr void check_grouped(inference& c, std::size_t shared) {
  using in = grouped_linear_in;
  const value &x = c.in(in::x), &w = c.in(in::w);
  c.floats({in::x, in::w}), rows_by_expert(c, in::x, in::counts), c.rank(in::w, 3);
  c.agree(x.dims[1], w.dims[shared], in::x, in::w);
  c.agree(w.dims[0], c.in(in::counts).dims[1], in::w, in::counts);
}
[[gnu::cold]] constexpr void grouped_linear_rule(inference& c) {
  using in = grouped_linear_in;
  using out = grouped_linear_out;
  // The operands are x (R, K), w (E, N, K), counts.
  check_grouped(c, 2);
  c.declare(c.in(in::x)).dims[1] = c.in(in::w).dims[1];
  c.distinct(out::y, in::x, in::w);
  place_grouped(c, out::y, {in::x, in::w}, {state::shard, dim::rows, level_of_rows(c)}, in::x,
                in::w);
}
[[gnu::cold]] constexpr void grouped_input_grad_rule(inference& c) {
  using in = grouped_linear_in;
  using out = grouped_linear_out;
  // The operands are dy (R, N), w (E, N, K), counts.
  check_grouped(c, 1);
  c.declare(c.in(in::x)).dims[1] = c.in(in::w).dims[2];
  c.distinct(out::y, in::x, in::w);
  place_grouped(c, out::y, {in::x, in::w}, {state::shard, dim::rows, level_of_rows(c)}, in::x,
                in::w);
}
[[gnu::cold]] constexpr void grouped_weight_grad_rule(inference& c) {
  using in = grouped_weight_grad_in;
  using out = grouped_weight_grad_out;
  // The operands are dy (R, N), x (R, K), counts.
  c.floats({in::dy, in::x}), rows_by_expert(c, in::dy, in::counts), c.rank(in::x, 2),
      c.agree(c.in(in::dy).dims[0], c.in(in::x).dims[0], in::dy, in::x);
  c.declare(accumulator_of(c.in(in::dy).type),
            {c.in(in::counts).dims[1], c.in(in::dy).dims[1], c.in(in::x).dims[1]});
  c.distinct(out::dw, in::dy, in::x);
  place_grouped(c, out::dw, {in::dy, in::x}, shard(dim::expert), in::dy, -1);
}
/// Returns the work of a grouped product with operands A (rows) and B and output Y.
template <int A, int B, int Y>
[[gnu::cold]] constexpr work grouped_cost(const graph& g, const node& n) {
  const value &a = g.at(n.in[A]), &b = g.at(n.in[B]), &y = g.at(n.out[Y]);
  const std::int64_t rows = local_extent(g.ranks, a, 0), width = local_extent(g.ranks, a, 1);
  const std::int64_t other = local_extent(g.ranks, y, y.rank - 1);
  // A product with fewer rows than experts reads no more matrices than it has rows.
  const std::int64_t experts = b.rank == 3 ? local_extent(g.ranks, b, 0) : 1;
  const std::int64_t read = local_bytes(g.ranks, b) / experts * std::min(rows, experts);
  return {2 * rows * width * other, local_bytes(g.ranks, a) + read, local_bytes(g.ranks, y)};
}
/// Returns the bytes of host memory that a grouped product needs: a number of rows for each
/// sequence of each expert of this rank.
template <int Counts>
[[gnu::cold]] constexpr std::int64_t room_of_products(const graph& g, const node& n) {
  const value& counts = g.at(n.in[Counts]);
  return counts.dims[1].n / g.ranks.of(axis::ep) * counts.dims[2].n * size_of(dtype::i32);
}
inline constexpr op_info grouped_input_grad{
    .name = "grouped_input_grad",
    .rule = &grouped_input_grad_rule,
    .cost = &grouped_cost<grouped_linear_in::x, grouped_linear_in::w, grouped_linear_out::y>,
    .seen = grouped_linear_in::counts,
    .host_room = &room_of_products<grouped_linear_in::counts>,
    .attributes = attributes_of<grouped_attributes>,
    .operands = named<grouped_linear_in, grouped_linear_out>};
inline constexpr op_info grouped_weight_grad{
    .name = "grouped_weight_grad",
    .rule = &grouped_weight_grad_rule,
    .cost = &grouped_cost<grouped_weight_grad_in::dy, grouped_weight_grad_in::x,
                          grouped_weight_grad_out::dw>,
    .accumulates = true,
    .seen = grouped_weight_grad_in::counts,
    .host_room = &room_of_products<grouped_weight_grad_in::counts>,
    .attributes = attributes_of<grouped_attributes>,
    .operands = named<grouped_weight_grad_in, grouped_weight_grad_out>};
[[gnu::cold]] constexpr void grouped_linear_adjoint(backward& d, const node& n) {
  using in = grouped_linear_in;
  using out = grouped_linear_out;
  const value_id dy = d.of(n.out[out::y]), x = n.in[in::x], w = n.in[in::w],
                 counts = n.in[in::counts];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(grouped_input_grad, {dy, w, counts}, n.line, n.attr), n.line);
  if (d.wants(w)) d.give(w, d.b.emit(grouped_weight_grad, {dy, x, counts}, n.line, n.attr), n.line);
}
inline constexpr op_info grouped_linear{
    .name = "grouped_linear",
    .rule = &grouped_linear_rule,
    .adjoint = &grouped_linear_adjoint,
    .cost = &grouped_cost<grouped_linear_in::x, grouped_linear_in::w, grouped_linear_out::y>,
    .seen = grouped_linear_in::counts,
    .host_room = &room_of_products<grouped_linear_in::counts>,
    .attributes = attributes_of<grouped_attributes>,
    .operands = named<grouped_linear_in, grouped_linear_out>};

/// Checks operand w, which has a factor for each row of operand x, or for each of G equal parts.
[[gnu::cold]] constexpr void factors_of_rows(inference& c, int w, int x) {
  const value &factors = c.in(w), &rows = c.in(x);
  if (factors.rank != rows.rank || rows.rank == 0) return c.leads(w, x, 1);
  for (int i = 0; i + 1 < rows.rank; ++i) c.agree(factors.dims[i], rows.dims[i], w, x);
  c.require(factors.back().d == rows.back().d, fault::S003, x, w);
  c.require(factors.back().n > 0 && rows.back().n % factors.back().n == 0, fault::S002, x, w);
}
[[gnu::cold]] constexpr void scale_rows_rule(inference& c) {
  using in = scale_rows_in;
  using out = scale_rows_out;
  // The operands are x (..., F), w (...), or x (..., G F), w (..., G).
  c.floats({in::x}), c.sums({in::w}, in::x), factors_of_rows(c, in::w, in::x);
  c.declare(c.in(in::x));
  place_output(c, out::y, algebra::product, {in::x, in::w});
}
[[gnu::cold]] constexpr void scale_rows_weight_grad_rule(inference& c) {
  using in = scale_rows_weight_grad_in;
  using out = scale_rows_weight_grad_out;
  // The operands are dy (..., F), x (..., F), w (...), or w (..., G) for dy and x (..., G F).
  c.floats({in::dy, in::x}), c.sums({in::w}, in::dy), c.alike(in::x, in::dy),
      factors_of_rows(c, in::w, in::dy);
  c.declare(c.in(in::w));
  place_output(c, out::dw, algebra::product, {in::dy, in::x});
}
inline constexpr op_info scale_rows_weight_grad{
    .name = "scale_rows_weight_grad",
    .rule = &scale_rows_weight_grad_rule,
    .operands = named<scale_rows_weight_grad_in, scale_rows_weight_grad_out>};
[[gnu::cold]] constexpr void scale_rows_adjoint(backward& d, const node& n);
inline constexpr op_info scale_rows{.name = "scale_rows",
                                    .rule = &scale_rows_rule,
                                    .adjoint = &scale_rows_adjoint,
                                    .cheap = true,
                                    .operands = named<scale_rows_in, scale_rows_out>};
[[gnu::cold]] constexpr void scale_rows_adjoint(backward& d, const node& n) {
  using in = scale_rows_in;
  using out = scale_rows_out;
  const value_id dy = d.of(n.out[out::y]), x = n.in[in::x], w = n.in[in::w];
  if (dy < 0) return;
  if (d.wants(w)) d.give(w, d.b.emit(scale_rows_weight_grad, {dy, x, w}, n.line), n.line);
  if (d.wants(x)) d.give(x, d.b.emit(scale_rows, {dy, w}, n.line), n.line);
}

} // namespace op

/// The assignment of tokens to experts: it says which row each choice of an expert has.
struct expert_assignment {
  var experts; ///< chosen experts, (B, S, k) i32
  var row;     ///< number of each choice's row, (B, S, k) i32
  var counts;  ///< rows of each expert, (1, E, sequences) i32, on each rank of edp

  /// Returns the node of expert_rows that made this assignment.
  constexpr const node& made() const {
    const node_id i = row.type().producer;
    return i >= 0 && row.b->g.at_node(i).op == &op::expert_rows ? row.b->g.at_node(i) : none;
  }
  /// Returns the attributes of dispatch and combine for this assignment.
  constexpr op::crossing_attributes crossing() const {
    const attributes& a = made().attr;
    if (!a.are<op::expert_rows_attributes>()) return {};
    const auto of = a.as<op::expert_rows_attributes>();
    return {of.rows, of.capacity > 0};
  }

private:
  static constexpr node none{};
};

/// Assigns the tokens of a micro-batch to experts. A round has `rows` rows on each rank, and each
/// expert takes `capacity` rows from one micro-batch; 0: all (dropless).
constexpr expert_assignment expert_rows(var experts, int rows, std::int64_t count,
                                        std::int64_t capacity, source_line line = here()) {
  builder& b = *experts.b;
  var all;
  if (capacity > 0) all = to(to(experts, axis::tp, replicate, line), axis::cp, replicate, line);
  const value_id row = b.emit(op::expert_rows, {experts.id, all.id}, line,
                              op::expert_rows_attributes{rows, count, capacity});
  const node& n = b.g.at_node(b.g.at(row).producer);
  return {experts, {&b, row}, {&b, n.out[op::expert_rows_out::counts]}};
}

/// Returns rows (R, H), a token for each choice, from x (B, S, H); or rows (R) from x (B, S, k).
/// The rows and all that is computed from them, up to combine, are a region: it runs once for each
/// round of the assignment.
constexpr var dispatch(var x, const expert_assignment& p, source_line line = here()) {
  builder& b = *x.b;
  const region_id around = b.region;
  b.region = b.region_of_trips(p.made().out[op::expert_rows_out::rounds], line);
  const value_id rows =
      b.emit(op::dispatch, {x.id, p.experts.id, p.row.id, p.counts.id}, line, p.crossing());
  b.region = around;
  return {&b, rows};
}
/// Returns (B, S, H), the sum of each token's rows, from rows (R, H); or (B, S, k) from rows (R).
constexpr var combine(var rows, const expert_assignment& p, source_line line = here()) {
  return {rows.b, rows.b->emit(op::combine, {rows.id, p.experts.id, p.row.id, p.counts.id}, line,
                               p.crossing())};
}
/// Returns (R, N): each row of x (R, K) times the matrix of its expert in w (E, N, K).
constexpr var grouped_linear(var x, var w, const expert_assignment& p, source_line line = here()) {
  const graph& g = x.b->g;
  const value& experts = p.experts.type();
  const std::int64_t tokens = local_extent(g.ranks, experts, 0) * local_extent(g.ranks, experts, 1);
  return {x.b, x.b->emit(op::grouped_linear, {x.id, w.id, p.counts.id}, line,
                         op::grouped_attributes{rows_at_once(g.sums, g.ranks, experts, tokens)})};
}
/// Returns each row of x (R, F) times its number in w (R), whose type is that of sums over x.
constexpr var scale_rows(var x, var w, source_line line = here()) {
  return {x.b, x.b->emit(op::scale_rows, {x.id, w.id}, line)};
}

} // namespace mc
