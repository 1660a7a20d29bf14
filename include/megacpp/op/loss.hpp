// The projection to the vocabulary and the cross-entropy, some rows at a time: full logits never
// exist.
//
// vocabulary_partial: logits l_v = x . w_v over this rank's part of the vocabulary
//   local_lse (B, S, shards) f64 = log sum_v e^(l_v)
//   target (B, S) = l_label (0 where the label is elsewhere)
//   adjoint: dl_v = dlse e^(l_v - local_lse) + dtarget [v = label],  dx = dl w,  dw += dl^T x
// cross_entropy: lse = log sum_shards e^(local_lse), over rows whose label is not negative:
//   loss = sum (lse - target + z lse^2),   count = number of such rows
//   adjoint: dlse = dloss (1 + 2 z lse) e^(local_lse - lse),  dtarget = -dloss
//
// x (B, S, H), w (V, H), labels (B, S) i32. The z-loss keeps log-sum-exps near 0 (Chowdhery et al.
// 2022). Loss and count are sums, both reduced over ranks before one is divided by the other. The
// loss of a confident model is the difference of two logits and less than a step of either in
// single precision, so log-sum-exps and their cotangents are doubles whatever the type of x; a
// target is one of the logits, as it is. Rows of w at or beyond `vocabulary` (vocabulary padding)
// are not read. Saved: x, local_lse, target; the backward pass computes logits again.
// Placement: w sharded along V gives log-sum-exps sharded alike and a pending sum of targets. So
// the vocabulary-parallel loss is one gather of (B, S, shards) and one reduction of (B, S). FLOPs:
// 2 T V H forward, 6 T V H backward.
#pragma once

#include <megacpp/op/linear.hpp>

namespace mc {
namespace op {

struct vocabulary_partial_in : input_names<vocabulary_partial_in> {
  static constexpr name<0> x{};
  static constexpr name<1> w{};
  static constexpr name<2, element::i32> labels{};
};
struct vocabulary_partial_out : output_names<vocabulary_partial_out> {
  static constexpr name<0, element::f64> lse{};
  static constexpr name<1, element::sum> target{};
};
struct vocabulary_partial_grad_in : input_names<vocabulary_partial_grad_in> {
  static constexpr name<0, element::f64> dlse{};
  static constexpr name<1, element::sum> dtarget{};
  static constexpr name<2> x{};
  static constexpr name<3> w{};
  static constexpr name<4, element::i32> labels{};
  static constexpr name<5, element::f64> lse{};
};
struct vocabulary_partial_grad_out : output_names<vocabulary_partial_grad_out> {
  static constexpr name<0> dx{};
  static constexpr name<1, element::sum> dw{};
};
struct cross_entropy_in : input_names<cross_entropy_in> {
  static constexpr name<0, element::f64> lse{};
  static constexpr name<1> target{};
  static constexpr name<2, element::i32> labels{};
};
struct cross_entropy_out : output_names<cross_entropy_out> {
  static constexpr name<0> loss{};
  static constexpr name<1> count{};
};
struct cross_entropy_grad_in : input_names<cross_entropy_grad_in> {
  static constexpr name<0> dloss{};
  static constexpr name<1, element::f64> lse{};
  static constexpr name<2> target{};
  static constexpr name<3, element::i32> labels{};
};
struct cross_entropy_grad_out : output_names<cross_entropy_grad_out> {
  static constexpr name<0, element::f64> dlse{};
  static constexpr name<1> dtarget{};
};
struct vocabulary_loss_in : input_names<vocabulary_loss_in> {
  static constexpr name<0> x{};
  static constexpr name<1> w{};
  static constexpr name<2, element::i32> labels{};
  static constexpr name<3, element::sum> dloss{};
};
struct vocabulary_loss_out : output_names<vocabulary_loss_out> {
  static constexpr name<0, element::sum> loss{};
  static constexpr name<1, element::sum> count{};
  static constexpr name<2> dx{};
  static constexpr name<3, element::sum> dw{};
};

/// The number of rows of logits that exist at a time.
inline constexpr std::int64_t max_logit_rows = 128;

/// Returns the number of rows of x (..., H) on one rank.
constexpr std::int64_t local_rows(const mesh& r, const value& x) {
  std::int64_t n = 1;
  for (int i = 0; i + 1 < x.rank; ++i) n *= local_extent(r, x, i);
  return n;
}
[[gnu::cold]] constexpr std::int64_t logits_bytes(const graph& g, const value& x, const value& w) {
  const std::int64_t rows = rows_at_once(g.sums, g.ranks, x, local_rows(g.ranks, x));
  const std::int64_t element =
      size_of(accumulator_of(x.type)) + (x.type == dtype::bf16 ? size_of(x.type) : 0);
  return (rows < max_logit_rows ? rows : max_logit_rows) * local_extent(g.ranks, w, 0) * element;
}

constexpr std::int64_t vocabulary_shards(const mesh& r, const value& w) {
  std::int64_t n = 1;
  for (int a = 0; a < axes; ++a)
    if (w.at.at[a].is_shard(dim::vocabulary) && r.sized(static_cast<axis>(a)))
      n *= r.of(static_cast<axis>(a));
  return n;
}

struct vocabulary_attributes {
  std::int64_t vocabulary; ///< size of the vocabulary: the rows of w without those that pad it
  bool weights = false;    ///< whether a gradient of w is wanted
};
struct cross_entropy_attributes {
  double z; ///< coefficient of lse^2
};
struct vocabulary_loss_attributes {
  double z;
  std::int64_t vocabulary;
  bool weights;
};

/// Checks x (..., H), w (V, H) and labels (...) i32. The first `vocabulary` of the V rows are no
/// padding.
[[gnu::cold]] constexpr void vocabulary_operands(inference& c, int x, int w, int labels,
                                                 std::int64_t vocabulary) {
  const value &vx = c.in(x), &vw = c.in(w);
  c.floats({x, w}), c.ints({labels});
  c.rank(w, 2), c.leads(labels, x, 1);
  c.agree(vx.back(), vw.dims[1], x, w);
  c.in_range(vocabulary > 0 && vocabulary <= c.table_rows(w), "the vocabulary",
             static_cast<double>(vocabulary), "positive and within the rows of the table");
  c.indexes(labels, integer_kind::labels, vocabulary, x);
}
[[gnu::cold]] constexpr void z_of_loss(inference& c, double z) {
  c.in_range(z >= 0 && z < 1e30, "z_loss", z, "at least 0 and below 1e30");
}

[[gnu::cold]] constexpr void vocabulary_partial_rule(inference& c) {
  using in = vocabulary_partial_in;
  const value &x = c.in(in::x), &w = c.in(in::w), &labels = c.in(in::labels);
  vocabulary_operands(c, in::x, in::w, in::labels, c.n.attr.as<vocabulary_attributes>().vocabulary);
  value& lse = c.declare(labels);
  if (lse.rank == max_rank) --lse.rank;
  lse.type = dtype::f64;
  lse.dims[lse.rank++] = extent(dim::vocabulary_part, vocabulary_shards(c.g.ranks, w));
  value& target = c.declare(labels);
  target.type = accumulator_of(x.type);
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    const place of_w = w.at[a];
    if (of_w.is_shard(dim::vocabulary)) {
      if (x.at[a].s != state::replicate)
        c.fail(x.at[a].s == state::invariant ? fault::P004 : fault::P002, in::x, in::w);
      if (labels.at[a].s == state::shard) c.fail(fault::P002, in::labels, in::w);
      lse.at[a] = {state::shard, dim::vocabulary_part, of_w.level};
      target.at[a] = partial;
    } else {
      lse.at[a] = join(c, a, algebra::nonlinear, lse, {in::x, in::w, in::labels}, {x.back().d});
      target.at[a] =
          join(c, a, algebra::nonlinear, target, {in::x, in::w, in::labels}, {x.back().d});
    }
  }
  c.declare_scratch(logits_bytes(c.g, x, w));
}

[[gnu::cold]] constexpr void vocabulary_partial_grad_rule(inference& c) {
  using in = vocabulary_partial_grad_in;
  using out = vocabulary_partial_grad_out;
  const value &dlse = c.in(in::dlse), &x = c.in(in::x), &w = c.in(in::w);
  const auto [vocabulary, weights] = c.n.attr.as<vocabulary_attributes>();
  vocabulary_operands(c, in::x, in::w, in::labels, vocabulary);
  c.typed({in::dlse, in::lse}, dtype::f64), c.sums({in::dtarget}, in::x),
      c.alike(in::dlse, in::lse), c.alike(in::dtarget, in::labels), c.leads(in::labels, in::lse, 1);
  c.require(dlse.back() == extent(dim::vocabulary_part, vocabulary_shards(c.g.ranks, w)),
            fault::S003, in::dlse, in::w);
  c.declare(x);
  if (weights) c.declare(w).type = accumulator_of(x.type);
  value &dx = c.out[out::dx], &dw = c.out[out::dw];
  for (int i = 0; i < axes; ++i) {
    const auto a = static_cast<axis>(i);
    if (c.g.ranks.trivial(a)) continue;
    c.looking = i;
    if (w.at[a].is_shard(dim::vocabulary)) {
      if (dlse.at[a].s != state::shard || c.in(in::dtarget).at[a].s != state::replicate)
        c.fail(fault::P006, in::dlse, in::w);
      dx.at[a] = partial;
      if (weights) dw.at[a] = w.at[a];
    } else {
      dx.at[a] = join(c, a, algebra::product, dx, {in::dlse, in::x, in::w}, {x.back().d});
      if (weights) dw.at[a] = join(c, a, algebra::product, dw, {in::dlse, in::x}, {x.back().d});
    }
  }
  c.declare_scratch(logits_bytes(c.g, x, w));
}

[[gnu::cold]] constexpr work vocabulary_work(const graph& g, const node& n, const value& x,
                                             const value& w, int products) {
  work k;
  k.flops = 2 * products * local_size(g.ranks, x).n * local_extent(g.ranks, w, 0);
  for (value_id v : n.in)
    if (v >= 0) k.read += local_bytes(g.ranks, g.at(v));
  for (value_id v : n.out)
    if (v >= 0 && g.at(v).is != role::scratch) k.written += local_bytes(g.ranks, g.at(v));
  return k;
}
[[gnu::cold]] constexpr work vocabulary_partial_cost(const graph& g, const node& n) {
  using in = vocabulary_partial_in;
  return vocabulary_work(g, n, g.at(n.in[in::x]), g.at(n.in[in::w]), 1);
}
[[gnu::cold]] constexpr work vocabulary_partial_grad_cost(const graph& g, const node& n) {
  using in = vocabulary_partial_grad_in;
  const int products = n.attr.as<vocabulary_attributes>().weights ? 3 : 2; // one: the logits again
  work k = vocabulary_work(g, n, g.at(n.in[in::x]), g.at(n.in[in::w]), products);
  k.repeated = k.flops / products;
  return k;
}

extern const op_info vocabulary_loss;
inline constexpr op_info vocabulary_partial_grad{
    .name = "vocabulary_partial_grad",
    .rule = &vocabulary_partial_grad_rule,
    .cost = &vocabulary_partial_grad_cost,
    .typed_by = vocabulary_partial_grad_in::x,
    .accumulates = true,
    .attributes = attributes_of<vocabulary_attributes>,
    .operands = named<vocabulary_partial_grad_in, vocabulary_partial_grad_out>,
    .fuses = {&vocabulary_loss}};

[[gnu::cold]] constexpr void vocabulary_partial_adjoint(backward& d, const node& n) {
  using in = vocabulary_partial_in;
  using out = vocabulary_partial_out;
  const value_id dlse = d.of(n.out[out::lse]), dtarget = d.of(n.out[out::target]);
  if (dlse < 0 || dtarget < 0) return;
  auto attr = n.attr.as<vocabulary_attributes>();
  attr.weights = d.wants(n.in[in::w]);
  const value_id dx = d.b.emit(
      vocabulary_partial_grad,
      {dlse, dtarget, n.in[in::x], n.in[in::w], n.in[in::labels], n.out[out::lse]}, n.line, attr);
  const node made = d.b.g.at_node(d.b.g.at(dx).producer);
  d.give(n.in[in::x], dx, n.line);
  if (attr.weights) d.give(n.in[in::w], made.out[vocabulary_partial_grad_out::dw], n.line);
}
inline constexpr op_info vocabulary_partial{
    .name = "vocabulary_partial",
    .rule = &vocabulary_partial_rule,
    .adjoint = &vocabulary_partial_adjoint,
    .cost = &vocabulary_partial_cost,
    .attributes = attributes_of<vocabulary_attributes>,
    .operands = named<vocabulary_partial_in, vocabulary_partial_out>};

/// Checks local_lse (..., shards) f64, target (...) of the type of a sum, and labels (...) i32.
[[gnu::cold]] constexpr void cross_entropy_operands(inference& c, int lse, int target, int labels) {
  const value& part = c.in(lse);
  c.typed({lse}, dtype::f64), c.floats({target}), c.sums({target}, target);
  c.holds(labels, integer_kind::labels, lse);
  c.leads(target, lse, 1), c.leads(labels, lse, 1);
  c.require(part.back().d == dim::vocabulary_part, fault::S003, lse);
  z_of_loss(c, c.n.attr.as<cross_entropy_attributes>().z);
}
[[gnu::cold]] constexpr void cross_entropy_rule(inference& c) {
  using in = cross_entropy_in;
  using out = cross_entropy_out;
  cross_entropy_operands(c, in::lse, in::target, in::labels);
  for (int k = out::loss; k <= out::count; ++k) {
    c.declare(c.in(in::target).type, {});
    place_output(c, k, algebra::reduction, {in::lse, in::target, in::labels},
                 {dim::vocabulary_part});
  }
}
[[gnu::cold]] constexpr void cross_entropy_grad_rule(inference& c) {
  using in = cross_entropy_grad_in;
  using out = cross_entropy_grad_out;
  cross_entropy_operands(c, in::lse, in::target, in::labels);
  c.typed({in::dloss}, c.in(in::target).type), c.rank(in::dloss, 0);
  for (int k = out::dlse; k <= out::dtarget; ++k) {
    c.declare(c.in(in::lse + k));
    place_output(c, k, algebra::product, {in::dloss, in::lse, in::target, in::labels},
                 {dim::vocabulary_part});
  }
}
inline constexpr op_info cross_entropy_grad{
    .name = "cross_entropy_grad",
    .rule = &cross_entropy_grad_rule,
    .typed_by = cross_entropy_grad_in::target,
    .attributes = attributes_of<cross_entropy_attributes>,
    .operands = named<cross_entropy_grad_in, cross_entropy_grad_out>};
[[gnu::cold]] constexpr void cross_entropy_adjoint(backward& d, const node& n) {
  using in = cross_entropy_in;
  using out = cross_entropy_out;
  const value_id dloss = d.of(n.out[out::loss]);
  if (dloss < 0) return;
  const value_id dlse =
      d.b.emit(cross_entropy_grad, {dloss, n.in[in::lse], n.in[in::target], n.in[in::labels]},
               n.line, n.attr);
  const value_id dtarget =
      d.b.g.at_node(d.b.g.at(dlse).producer).out[cross_entropy_grad_out::dtarget];
  d.give(n.in[in::lse], dlse, n.line);
  d.give(n.in[in::target], dtarget, n.line);
}
inline constexpr op_info cross_entropy{.name = "cross_entropy",
                                       .rule = &cross_entropy_rule,
                                       .adjoint = &cross_entropy_adjoint,
                                       .typed_by = cross_entropy_in::target,
                                       .attributes = attributes_of<cross_entropy_attributes>,
                                       .operands = named<cross_entropy_in, cross_entropy_out>};

// vocabulary_loss computes the loss, dx and dw while some rows of logits are at hand, which saves
// one of four products:
//   (x, w, labels, dloss) -> loss, count, dx[, dw]
// It is used where each rank has the whole vocabulary and the loss is the last value of the graph.

/// Returns the bytes of the losses of so many rows. Logits lie behind them, at a multiple of 64
/// bytes.
constexpr std::int64_t losses_bytes(std::int64_t rows) {
  return (rows * std::int64_t{sizeof(double)} + 63) / 64 * 64;
}
[[gnu::cold]] constexpr std::int64_t loss_scratch_bytes(const graph& g, const value& x,
                                                        const value& w) {
  return logits_bytes(g, x, w) + losses_bytes(local_rows(g.ranks, x));
}
constexpr void vocabulary_loss_rule(inference& c) {
  using in = vocabulary_loss_in;
  using out = vocabulary_loss_out;
  const value &x = c.in(in::x), &w = c.in(in::w);
  const auto [z, vocabulary, weights] = c.n.attr.as<vocabulary_loss_attributes>();
  vocabulary_operands(c, in::x, in::w, in::labels, vocabulary);
  c.sums({in::dloss}, in::x), c.rank(in::dloss, 0);
  z_of_loss(c, z);
  for (int i = 0; i < axes; ++i)
    if (w.at.at[i].s == state::shard) c.fail(fault::P007, in::w);
  const dtype main = accumulator_of(x.type);
  for (int k = out::loss; k <= out::count; ++k) {
    c.declare(main, {});
    place_output(c, k, algebra::reduction, {in::x, in::w, in::labels}, {x.back().d});
  }
  c.declare(x);
  place_output(c, out::dx, algebra::product, {in::dloss, in::x, in::w}, {x.back().d});
  if (weights) {
    c.declare(w).type = main;
    place_output(c, out::dw, algebra::product, {in::dloss, in::x}, {x.back().d});
  }
  c.declare_scratch(loss_scratch_bytes(c.g, x, w));
}
[[gnu::cold]] constexpr work vocabulary_loss_cost(const graph& g, const node& n) {
  using in = vocabulary_loss_in;
  return vocabulary_work(g, n, g.at(n.in[in::x]), g.at(n.in[in::w]),
                         n.attr.as<vocabulary_loss_attributes>().weights ? 3 : 2);
}

/// Returns the attributes of the op number `op_index` that vocabulary_loss replaces.
constexpr attributes attributes_in_loss(const attributes& whole, int op_index) {
  const auto [z, vocabulary, weights] = whole.as<vocabulary_loss_attributes>();
  switch (op_index) {
  case 0: return vocabulary_attributes{vocabulary};
  case 3: return vocabulary_attributes{vocabulary, weights};
  default: return cross_entropy_attributes{z};
  }
}
constexpr attributes attributes_of_loss(const attributes (&ops)[max_form_ops]) {
  const auto [vocabulary, weights] = ops[3].as<vocabulary_attributes>();
  return vocabulary_loss_attributes{ops[1].as<cross_entropy_attributes>().z, vocabulary, weights};
}
constexpr fused_form form_of_loss() {
  using in = vocabulary_loss_in;
  constexpr auto lse = out_of(0, vocabulary_partial_out::lse),
                 target = out_of(0, vocabulary_partial_out::target),
                 dlse = out_of(2, cross_entropy_grad_out::dlse),
                 dtarget = out_of(2, cross_entropy_grad_out::dtarget);
  return {.ops = {{&vocabulary_partial, {in::x, in::w, in::labels}},
                  {&cross_entropy, {lse, target, in::labels}},
                  {&cross_entropy_grad, {in::dloss, lse, target, in::labels}},
                  {&vocabulary_partial_grad, {dlse, dtarget, in::x, in::w, in::labels, lse}}},
          .outputs = {out_of(1, cross_entropy_out::loss), out_of(1, cross_entropy_out::count),
                      out_of(3, vocabulary_partial_grad_out::dx),
                      out_of(3, vocabulary_partial_grad_out::dw)},
          .main = 1,
          .place = 1,
          .of_op = &attributes_in_loss,
          .joined = &attributes_of_loss};
}
inline constexpr op_info vocabulary_loss{.name = "vocabulary_loss",
                                         .rule = &vocabulary_loss_rule,
                                         .cost = &vocabulary_loss_cost,
                                         .accumulates = true,
                                         .attributes = attributes_of<vocabulary_loss_attributes>,
                                         .operands = named<vocabulary_loss_in, vocabulary_loss_out>,
                                         .form = form_of_loss()};

} // namespace op

struct vocabulary_statistics {
  var local_lse; ///< log-sum-exp of a row over each rank's vocabulary, (B, S, shards) f64
  var target;    ///< logit of the label, (B, S)
};

/// Returns, for x (B, S, H), w (V, H) and labels (B, S), the log-sum-exp of each row's logits over
/// this rank's shard of the vocabulary, and the label's logit. The first `valid` of the V rows are
/// no padding.
constexpr vocabulary_statistics vocabulary_partial(var x, var w, var labels, std::int64_t valid,
                                                   source_line line = here()) {
  builder& b = *x.b;
  const value_id lse = b.emit(op::vocabulary_partial, {x.id, w.id, labels.id}, line,
                              op::vocabulary_attributes{valid});
  return {{&b, lse},
          {&b, b.g.at_node(b.g.at(lse).producer).out[op::vocabulary_partial_out::target]}};
}

/// The sum of the losses of the tokens, in nats, and the number of tokens that have a loss. Both
/// are scalars of the accumulator type, and pending sums over the axes that shard the tokens.
struct summed_loss {
  var sum, count;
};

/// Returns the cross-entropy of the statistics of vocabulary_partial, which must be whole over the
/// vocabulary. labels are (B, S) i32; a token with a negative label has no loss. z: coefficient of
/// logsumexp^2.
constexpr summed_loss cross_entropy(vocabulary_statistics s, var labels, double z,
                                    source_line line = here()) {
  builder& b = *labels.b;
  const value_id sum = b.emit(op::cross_entropy, {s.local_lse.id, s.target.id, labels.id}, line,
                              op::cross_entropy_attributes{z});
  return {{&b, sum}, {&b, b.g.at_node(b.g.at(sum).producer).out[op::cross_entropy_out::count]}};
}

} // namespace mc
