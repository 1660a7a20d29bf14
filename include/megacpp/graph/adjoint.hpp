// The deriving of a backward pass: an op's adjoint reads the cotangents of the op's outputs and
// gives cotangents to the op's inputs. For every op alike, this header checks that the placement of
// a cotangent is the dual of its value's placement; no adjoint can declare another one.
#pragma once

#include <megacpp/graph/builder.hpp>

namespace mc {
namespace op {
constexpr void sum_rule(inference& c) { // a, b
  c.floats({0, 1}), c.alike(1, 0);
  c.declare(c.in(0));
  place_output(c, 0, algebra::sum, {0, 1});
}
constexpr void accumulate_rule(inference& c) {
  c.floats({0});
  value& v = c.declare(c.in(0));
  v.type = accumulator_of(c.in(0).type);
  place_output(c, 0, algebra::sum, {0});
}
struct sum_in : input_names<sum_in> {
  static constexpr name<0> a{};
  static constexpr name<1> b{};
};
struct sum_out : output_names<sum_out> {
  static constexpr name<0> y{};
};
/// Adds two cotangents of one value.
inline constexpr op_info sum{.name = "sum",
                             .rule = &sum_rule,
                             .in_place = 0,
                             .commutes = true,
                             .operands = named<sum_in, sum_out>};
/// The rule of an op that sums_into() makes: `Op` plus a cotangent, which is operand D.
template <const op_info& Op, int D> constexpr void sum_into_rule(inference& c) {
  Op.rule(c);
  const value& y = c.out[0];
  c.typed({D}, y.type);
  c.require(y.rank == c.in(D).rank, fault::S003, 0, D);
  for (int i = 0; i < y.rank && y.rank == c.in(D).rank; ++i)
    c.agree(y.dims[i], c.in(D).dims[i], 0, D);
  if (y.at != c.in(D).at) c.fail(fault::P002, 0, D);
}
template <const op_info& Op, int D> constexpr work sum_into_cost(const graph& g, const node& n) {
  work w = Op.cost(g, n);
  w.read += local_bytes(g.ranks, g.at(n.in[D]));
  return w;
}
/// Returns the fused form of an op that has one output and D operands: the form adds the output to
/// a cotangent, which is its operand D. It rounds where `Op` and `sum` would, so it has the same
/// bits.
template <const op_info& Op, int D> constexpr op_info sums_into(const char* name, int in_place) {
  op_info f{.name = name, .rule = &sum_into_rule<Op, D>, .in_place = in_place};
  f.attributes = Op.attributes, f.operands = Op.operands;
  if (Op.cost != nullptr) f.cost = &sum_into_cost<Op, D>;
  f.form.ops[0].op = &Op, f.form.ops[1].op = &sum;
  for (int k = 0; k < D; ++k) f.form.ops[0].in[k] = k;
  f.form.ops[1].in[0] = out_of(0), f.form.ops[1].in[1] = D;
  f.form.outputs[0] = out_of(1);
  return f;
}
struct cast_attributes {
  dtype to;
};
constexpr void cast_rule(inference& c) {
  c.floats({0});
  value& y = c.declare(c.in(0));
  y.type = c.n.attr.as<cast_attributes>().to;
  c.require(y.differentiable(), fault::C001, 0);
  place_output(c, 0, algebra::sum, {0});
}
struct cast_in : input_names<cast_in> {
  static constexpr name<0> x{};
};
struct cast_out : output_names<cast_out> {
  static constexpr name<0, element::converted> y{};
};
/// Converts its input to another type. It stands where a sum in the accumulator type goes on as a
/// cotangent of narrower values, and where a finished gradient is stored in its own place.
inline constexpr op_info cast{.name = "cast",
                              .rule = &cast_rule,
                              .takes_ranges = true,
                              .attributes = attributes_of<cast_attributes>,
                              .operands = named<cast_in, cast_out>};
struct accumulate_in : input_names<accumulate_in> {
  static constexpr name<0> x{};
};
struct accumulate_out : output_names<accumulate_out> {
  static constexpr name<0, element::sum> total{};
};
/// Adds its input to a gradient. It stands where an adjoint hands on a cotangent unchanged.
inline constexpr op_info accumulate{.name = "accumulate",
                                    .rule = &accumulate_rule,
                                    .accumulates = true,
                                    .operands = named<accumulate_in, accumulate_out>};
} // namespace op

struct backward {
  builder& b;
  value_id ct[max_values]{};
  bool wanted[max_values]{};
  /// collects[v]: cotangents of v from the epilogue, too, add up in the store of main gradients.
  bool collects[max_values]{};
  bool asked[max_values]{};       ///< asked[v]: an adjoint has read the cotangent of v
  node_id given_by[max_values]{}; ///< given_by[v]: 1 + last node whose adjoint gave v one
  int at = 0;                     ///< the node whose adjoint runs now

  constexpr explicit backward(builder& builder) : b(builder) {
    for (value_id& v : ct) v = -1;
  }

  /// Returns the cotangent of a forward value, or -1 while it has none.
  constexpr value_id of(value_id v) {
    if (v < 0) return -1;
    asked[v] = true;
    return ct[v];
  }
  /// Returns whether the gradient of this value is needed: v depends on a trainable parameter or on
  /// the input of the block. An adjoint emits nothing for other operands.
  constexpr bool wants(value_id v) const { return v >= 0 && wanted[v]; }

  /// Adds cotangent `id` to what the forward value `to` has collected so far.
  [[gnu::cold]] constexpr void give(value_id to, value_id id, source_line line) {
    if (!wants(to)) return;
    given_by[to] = static_cast<node_id>(at + 1);
    graph& g = b.g;
    const bool leaf = accumulates_in_store(to);
    const region_id here = b.region;
    if (region_of(g, g.at(id)) != here) b.region = -1; // a sum over trips is read after them
    if (leaf) {
      const value& c = g.at(id);
      const bool own = c.producer >= 0 && g.at_node(c.producer).op->accumulates && c.grad_of < 0;
      if (!own) id = b.emit(op::accumulate, {id}, line);
      g.at(id).is = role::gradient;
    } else {
      id = typed(id, type_of_cotangent(to), line);
    }
    b.region = here;
    value& c = g.at(id);
    const placement dual = mc::cotangent(g.at(to).at);
    if (!c.same_dims(g.at(to))) b.fail(fault::P006, line, "cotangent", to, id);
    if (c.type != type_of_cotangent(to)) b.fail(fault::P020, line, "gradient", to, id);
    for (int a = 0; a < axes; ++a)
      if (c.at.at[a] != dual.at[a])
        b.fail(c.at.at[a].is_pending_maximum() ? fault::P023 : fault::P006, line, "cotangent", to,
               id, a);
    if (c.grad_of < 0) c.grad_of = to;
    value_id& have = ct[to];
    if (have < 0 || leaf) {
      have = id;
      return;
    }
    // A value from before a region has one sum of cotangents, which is added after the last trip.
    b.region = region_of(g, g.at(to)) == here ? here : region_id{-1};
    have = b.emit(op::sum, {have, id}, line), g.at(have).grad_of = to;
    b.region = here;
  }

  /// Copies the cotangent of the stream where every adjoint handed on the seed itself, as those of
  /// x + bias do: the part before reads the stream's cotangent from a place of its own.
  constexpr void own_stream() {
    graph& g = b.g;
    for (int i = 0; i < g.value_count; ++i) {
      const value& x = g.at(static_cast<value_id>(i));
      value_id& dx = ct[i];
      if (x.is != role::input || x.from != feed::stream || dx < 0 || g.at(dx).producer >= 0)
        continue;
      dx = b.emit(op::cast, {dx}, 0, op::cast_attributes{x.type});
      g.at(dx).grad_of = static_cast<value_id>(i);
    }
  }

  /// Copies a finished gradient to a place of its own where adjoints handed one value to several
  /// parameters, or where a value computed from parameters has collected it.
  constexpr void own_gradients() {
    graph& g = b.g;
    for (int i = 0; i < g.parameter_count; ++i) {
      const value_id p = g.parameters[i].v;
      value_id& dp = ct[p];
      if (dp < 0) continue;
      bool other = g.at(dp).is == role::gradient && g.at(dp).grad_of != p;
      for (int k = 0; k < i; ++k) other = other || ct[g.parameters[k].v] == dp;
      if (!other) continue;
      dp = b.emit(op::cast, {dp}, g.parameters[i].line, op::cast_attributes{g.at(dp).type});
      g.at(dp).grad_of = p;
    }
  }

  /// Runs the adjoint of node i. Records MEGA-P017 where a gradient would be lost silently: the
  /// adjoint did not read a cotangent that came, or gave none to an operand that wants one.
  [[gnu::cold]] constexpr void apply_adjoint(int i, const node& n) {
    bool came = false;
    for (value_id v : n.out) came = came || (v >= 0 && ct[v] >= 0);
    at = i;
    b.region = n.region;
    if (n.op->adjoint != nullptr) n.op->adjoint(*this, n);
    b.region = -1;
    if (!came) return;
    for (value_id v : n.out)
      if (v >= 0 && ct[v] >= 0 && !asked[v]) b.fail(fault::P017, n.line, n.op->name, n.in[0]);
    for (value_id v : n.in)
      if (wants(v) && given_by[v] != i + 1) b.fail(fault::P017, n.line, n.op->name, v);
  }

  /// Returns the cotangent `id` converted to type t.
  constexpr value_id typed(value_id id, dtype t, source_line line) {
    if (b.g.at(id).type == t) return id;
    return b.emit(op::cast, {id}, line, op::cast_attributes{t});
  }
  /// Returns the type of v's cotangent: the type of v, or the accumulator type of main gradients
  /// where v exists before the forward pass.
  constexpr dtype type_of_cotangent(value_id v) const {
    const value& x = b.g.at(v);
    return before_forward(x) ? accumulator_of(x.type) : x.type;
  }
  constexpr bool before_forward(const value& x) const {
    return x.is == role::parameter ||
           (x.producer >= 0 && b.g.at_node(x.producer).when == phase::prologue);
  }

  /// Returns whether v collects its gradient over micro-batches in the store of main gradients, as
  /// parameters and values that the prologue derives from them do. Other values get one cotangent
  /// for each micro-batch.
  constexpr bool accumulates_in_store(value_id v) const {
    return (b.when != phase::epilogue || collects[v]) && before_forward(b.g.at(v));
  }
};

} // namespace mc
