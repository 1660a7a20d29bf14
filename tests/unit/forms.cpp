// Fused forms: each that an op of the library declares is found in some preset's graphs, a pattern
// of an op of one's own as well, and none where one of its conditions does not hold. What a fused
// node means is held to its parts.
#define BOOST_TEST_MODULE forms
#include <boost/test/unit_test.hpp>

#include "graph_edits.hpp"

#include <megacpp/op/optimizer.hpp>
#include <megacpp/preset/models.hpp>

#include <map>
#include <memory>
#include <string>

using namespace mc_test;

namespace {

using graph_of = std::unique_ptr<graph>;

/// How many nodes of a graph stand for the parts of each form.
void count_forms(const graph& g, std::map<const op_info*, int>& forms) {
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (n.op->form.holds_for(n)) ++forms[n.op];
    for (const op_info* f : n.op->fuses)
      if (f != nullptr) forms.try_emplace(f, 0);
  }
}
template <class Model>
void count_forms(const Model& m, const setup& s, std::map<const op_info*, int>& forms) {
  for (const part_kind part : {part_kind::stem, part_kind::block, part_kind::loss}) {
    const graph_of derived(new graph(derived_graph(forward_graph(m, s, part, 0))));
    BOOST_REQUIRE(derived->wrong.code == fault::none);
    count_forms(*derived, forms);
    const graph_of g(new graph(verified(fused(*derived), meaning_of(*derived))));
    BOOST_TEST(said(g->wrong) == " ");
    count_forms(*g, forms);
    const graph_of forward(new graph(fused(forward_graph(m, s, part, 0)))); // an evaluation
    count_forms(*forward, forms);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(every_form_is_found_in_a_preset) {
  std::map<const op_info*, int> forms;
  setup s;
  s.batch = {2, 32};
  count_forms(preset::gpt2_124m, s, forms);
  count_forms(preset::qwen3_0_6b, s, forms);
  BOOST_TEST(forms.size() == 10u);
  for (const auto& [op, found] : forms) BOOST_TEST(found > 0, op->name);
}

namespace {

constexpr extent B{dim::batch, 2}, Sq{dim::sequence, 8}, H{dim::hidden, 4}, F{dim::ffn, 6};

var operand(builder& b, const char* name, std::initializer_list<extent> dims) {
  return b.parameter("", name, dtype::f32, dims, {}, {});
}
/// Nodes of an op after the pass, and that the graph means what it meant.
int left(const builder& b, const op_info& op) {
  BOOST_TEST(said(b.g.wrong) == " ");
  const graph_of g(new graph(verified(fused(b.g), meaning_of(b.g))));
  BOOST_TEST(said(g->wrong) == " ");
  int n = 0;
  for (int i = 0; i < g->node_count; ++i) n += g->at_node(i).op == &op;
  return n;
}

/// norm(x + a) in a graph of its own, after `change`.
int norms_left(auto change, bool sum_is_read = true) {
  builder b{mesh::one_rank()};
  const var x = operand(b, "x", {B, Sq, H}), a = operand(b, "a", {B, Sq, H}),
            gain = operand(b, "gain", {H});
  const var s = x + a;
  change(b, x, s);
  const var y = rms_norm(s, gain, 1e-6);
  b.g.outputs[0] = (sum_is_read ? y + s : y).id;
  return left(b, op::rms_norm);
}

// y = a b + c, of which a product and a sum are the parts, in any order of the sum's operands.
constexpr void product_rule(inference& c) {
  c.floats({0, 1}), c.alike(1, 0);
  c.declare(c.in(0));
  place_output(c, 0, algebra::product, {0, 1});
}
constexpr void product_and_sum_rule(inference& c) {
  product_rule(c), c.typed({2}, c.in(0).type), c.alike(2, 0);
  if (c.in(2).dims[0].n == 1) c.fail(fault::S002, 2); // a kernel that serves no batch of one
}
extern const op_info product_and_sum;
constexpr op_info product{.name = "product", .rule = &product_rule, .fuses = {&product_and_sum}};
constexpr op_info product_and_sum{
    .name = "product_and_sum",
    .rule = &product_and_sum_rule,
    .form = {.ops = {{&product, {0, 1}}, {&op::add, {out_of(0), 2}}}, .outputs = {out_of(1)}}};

struct multiplied {
  builder b{mesh::one_rank()};
  var x, y, z, p;
  explicit multiplied(extent batch = B) {
    x = operand(b, "x", {batch, Sq}), y = operand(b, "y", {batch, Sq}),
    z = operand(b, "z", {batch, Sq});
    p = {&b, b.emit(product, {x.id, y.id}, 0)};
  }
};

} // namespace

BOOST_AUTO_TEST_CASE(a_sum_that_somebody_else_reads_stays_a_value) {
  const auto nothing = [](builder&, var, var) {};
  BOOST_TEST(norms_left(nothing, true) == 0);
  BOOST_TEST(norms_left(nothing, false) == 0);
  // what is read before the norm is made before the norm
  BOOST_TEST(norms_left([](builder&, var, var s) { gelu(s); }) == 1);
}

BOOST_AUTO_TEST_CASE(nothing_moves_behind_what_writes_its_operands) {
  const auto write = [](builder& b, var, var) {
    const var g = operand(b, "g", {B, Sq, H}), h = operand(b, "h", {B, Sq, H});
    b.emit(op::add_gradient, {g.id, h.id}, 0);
  };
  BOOST_TEST(norms_left(write) == 0); // others
  BOOST_TEST(norms_left([](builder& b, var x, var) {
               const var h = operand(b, "h", {B, Sq, H});
               b.emit(op::add_gradient, {h.id, x.id}, 0);
             }) == 1);
}

BOOST_AUTO_TEST_CASE(parts_of_two_phases_stay_apart) {
  BOOST_TEST(norms_left([](builder& b, var, var) { b.when = phase::input_gradient; }, false) == 1);
}

BOOST_AUTO_TEST_CASE(a_product_that_somebody_else_reads_is_not_hidden) {
  for (const bool read : {false, true}) {
    builder b{mesh::one_rank()};
    const var x = operand(b, "x", {B, Sq, H}), w = operand(b, "w", {F, H}),
              bias = operand(b, "bias", {F});
    const var p = linear(x, w), y = add_bias(p, bias);
    b.g.outputs[0] = (read ? y + p : gelu(y)).id;
    BOOST_TEST(left(b, op::add_bias) == (read ? 1 : 0));
  }
}

BOOST_AUTO_TEST_CASE(a_form_of_an_op_of_ones_own) {
  const auto products = [](multiplied m, bool first) {
    m.b.g.outputs[0] = m.b.emit(op::add, {first ? m.p.id : m.z.id, first ? m.z.id : m.p.id}, 0);
    for (int i = 0; i < m.b.g.node_count; ++i) BOOST_TEST(m.b.g.at_node(i).op != &product_and_sum);
    return left(m.b, product);
  };
  BOOST_TEST(products(multiplied(), true) == 0);
  BOOST_TEST(products(multiplied(), false) == 0);
  // its rule says what it cannot do
  BOOST_TEST(products(multiplied({dim::batch, 1}), true) == 1);
}

// Of a sum of two products, one becomes part of it: the other is its operand.
BOOST_AUTO_TEST_CASE(one_operand_of_a_sum_is_taken) {
  multiplied m;
  const value_id q = m.b.emit(product, {m.y.id, m.z.id}, 0);
  m.b.g.outputs[0] = m.b.emit(op::add, {m.p.id, q}, 0);
  BOOST_TEST(left(m.b, product) == 1);
  BOOST_TEST(left(m.b, product_and_sum) == 1);
}

namespace {

/// Nodes of the ops that a linear and the GELU of its result become, in a graph that is not trained.
struct gelu_forms {
  int linear = 0, gelu = 0, alone = 0, kept = 0;
  bool operator==(const gelu_forms&) const = default;
  friend std::ostream& operator<<(std::ostream& o, const gelu_forms& f) {
    return o << f.linear << " " << f.gelu << " " << f.alone << " " << f.kept;
  }
};
gelu_forms gelu_forms_of(const builder& b) {
  return {left(b, op::linear), left(b, op::gelu), left(b, op::linear_gelu),
          left(b, op::linear_gelu_kept)};
}
enum class reader { none, before, behind };
gelu_forms gelu_of_linear(gelu_form form, bool biased, reader other) {
  builder b{mesh::one_rank()};
  const var x = operand(b, "x", {B, Sq, H}), w = operand(b, "w", {F, H});
  const var z = linear(x, w, biased ? operand(b, "bias", {F}) : var{});
  var more = z;
  if (other == reader::before) more = z + z;
  const var y = gelu(z, form);
  if (other == reader::behind) more = z + z;
  b.g.outputs[0] = (other == reader::none ? y : y + more).id;
  return gelu_forms_of(b);
}

/// Nodes of op in the training graph of gelu(linear(x, u)), read by the linears of v and, where that
/// is asked for, of w.
int in_training(const op_info& op, gelu_form form, bool twice = false, bool tail = true) {
  builder b{mesh::one_rank()};
  const extent O{dim::heads, 3};
  const var x = operand(b, "x", {B, Sq, H}), u = operand(b, "u", {F, H}),
            bias = operand(b, "bias", {F});
  var y = gelu(linear(x, u, bias), form);
  if (tail) {
    const var h = y;
    y = linear(h, operand(b, "v", {O, F}));
    if (twice) y = y + linear(h, operand(b, "w", {O, F}));
  }
  b.g.outputs[0] = y.id;
  const graph_of derived(new graph(derived_graph(b.g)));
  b.g = *derived;
  return left(b, op);
}

} // namespace

BOOST_AUTO_TEST_CASE(gelu_behind_a_linear) {
  using enum gelu_form;
  constexpr gelu_forms both{1, 1, 0, 0};
  BOOST_TEST(gelu_of_linear(tanh, true, reader::none) == (gelu_forms{0, 0, 1, 0}));
  BOOST_TEST(gelu_of_linear(tanh, true, reader::behind) == (gelu_forms{0, 0, 0, 1}));
  // what is read before GELU is made before GELU
  BOOST_TEST(gelu_of_linear(tanh, true, reader::before) == both);
  BOOST_TEST(gelu_of_linear(exact, true, reader::none) == both);
  BOOST_TEST(gelu_of_linear(tanh, false, reader::none) == both);
}

// Where ranks have parts of the sum, GELU is of what they make of it.
BOOST_AUTO_TEST_CASE(gelu_behind_a_redistribution) {
  builder b{mesh{}};
  b.g.ranks.size[static_cast<int>(axis::tp)] = 2;
  placement at;
  at.at[static_cast<int>(axis::tp)] = shard(dim::ffn);
  const var x = b.parameter("", "x", dtype::f32, {B, Sq, F}, at, {}),
            w = b.parameter("", "w", dtype::f32, {H, F}, at, {}), bias = operand(b, "bias", {H});
  b.g.outputs[0] = gelu(add_bias(to(linear(x, w), mc::axis::tp, mc::invariant), bias)).id;
  BOOST_TEST(gelu_forms_of(b) == (gelu_forms{1, 1, 0, 0}));
}

BOOST_AUTO_TEST_CASE(the_slope_of_gelu_behind_a_product) {
  using enum gelu_form;
  BOOST_TEST(in_training(op::linear_input_grad_gelu, tanh) == 1);
  BOOST_TEST(in_training(op::gelu_grad, tanh) == 0);
  BOOST_TEST(in_training(op::linear_gelu_kept, tanh) == 1);
  BOOST_TEST(in_training(op::linear_input_grad_gelu, exact) == 0);
  BOOST_TEST(in_training(op::gelu_grad, exact) == 1);
  // the slope belongs behind the sum of both products
  BOOST_TEST(in_training(op::linear_input_grad_gelu, tanh, true) == 0);
  BOOST_TEST(in_training(op::gelu_grad, tanh, true) == 1);
  // no product makes the cotangent of GELU's result
  BOOST_TEST(in_training(op::gelu_grad, tanh, false, false) == 1);
}

// Each rank has its part of what GELU is of, also where the stream's rows are cut between.
BOOST_AUTO_TEST_CASE(gelu_beside_tensor_parallelism) {
  for (const bool cut : {false, true}) {
    setup s;
    s.batch = {2, 32};
    s.ranks = {.tp = 2, .sequence_parallel = cut};
    const graph_of derived(
        new graph(derived_graph(forward_graph(preset::gpt2_124m, s, part_kind::block, 0))));
    const graph_of g(new graph(verified(fused(*derived), meaning_of(*derived))));
    BOOST_TEST(said(g->wrong) == " ");
    for (const op_info* op : {&op::linear_gelu_kept, &op::linear_input_grad_gelu}) {
      const node* const n = find_node(*g, *op);
      BOOST_REQUIRE(n != nullptr);
      for (const value_id v : n->out)
        if (v >= 0) BOOST_TEST((g->at(v).at[axis::tp] == shard(dim::ffn)));
    }
    BOOST_TEST(find_node(*g, op::gelu) == nullptr);
    BOOST_TEST(find_node(*g, op::gelu_grad) == nullptr);
  }
}

// Selective recomputation takes GELU of z again, alone, so that what GELU gave is not saved; the
// product is not run again. Full recomputation runs the whole node.
BOOST_AUTO_TEST_CASE(gelu_runs_again_without_its_product) {
  setup s;
  s.batch = {2, 32};
  const graph_of derived(
      new graph(derived_graph(forward_graph(preset::gpt2_124m, s, part_kind::block, 0))));
  for (const recompute again : {recompute::none, recompute::selective, recompute::full}) {
    const graph_of g(new graph(verified(recomputed(fused(*derived), again), meaning_of(*derived))));
    BOOST_TEST(said(g->wrong) == " ");
    int gelus = 0, products = 0;
    for (int i = 0; i < g->node_count; ++i) {
      gelus += g->at_node(i).op == &op::gelu;
      products += g->at_node(i).op == &op::linear_gelu_kept;
    }
    BOOST_TEST(gelus == (again == recompute::selective ? 1 : 0));
    BOOST_TEST(products == (again == recompute::full ? 2 : 1));
    const node& made = *find_node(*g, op::linear_gelu_kept);
    const value_id y = made.out[op::linear_gelu_kept_out::y];
    bool saved = false;
    for (int i = 0; i < g->node_count; ++i)
      for (const value_id v : g->at_node(i).in)
        saved = saved || (v == y && g->at_node(i).when > phase::forward);
    BOOST_TEST(saved == (again == recompute::none));
  }
}

// A form is held to the meaning of its parts: with two operands exchanged, it is another value.
BOOST_AUTO_TEST_CASE(a_fused_node_means_its_parts) {
  multiplied m;
  m.b.g.outputs[0] = m.b.emit(op::add, {m.p.id, m.z.id}, 0);
  const graph_of g(new graph(fused(m.b.g)));
  node* n = find_node(*g, product_and_sum);
  BOOST_REQUIRE(n != nullptr);
  std::swap(n->in[1], n->in[2]);
  BOOST_TEST(code_of(verified(*g, meaning_of(m.b.g)).wrong.code) == "MEGA-P019");
}

// A linear with a bias is one node and one value, also where they are the last that have room.
BOOST_AUTO_TEST_CASE(a_linear_with_a_bias_is_emitted_once) {
  builder b{mesh::one_rank()};
  const var x = operand(b, "x", {B, Sq, H}), w = operand(b, "w", {F, H}),
            bias = operand(b, "bias", {F});
  const int nodes = b.g.node_count, values = b.g.value_count;
  const var y = linear(x, w, bias);
  BOOST_TEST(b.g.node_count == nodes + 1);
  BOOST_TEST(b.g.value_count == values + 1);
  BOOST_TEST(b.g.at_node(y.type().producer).in[2] == bias.id);
}
