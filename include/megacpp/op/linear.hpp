// The product of x and a weight, with or without a bias, and with GELU behind it.
//
//   y[lead..., out...] = sum over in... of x[lead..., in...] w[out..., in...] + bias[out...]
//
//   x  (M, K)   M = product of the leading dims, K = product of the dims x shares with w's tail
//   w  (N, K)   row-major, as torch.nn.Linear keeps it
//   y  (M, N)
//
//   adjoint: dx = dy w,   dw += dy^T x,   dbias += column sums of dy
//
// Saved: x. Placement: a product: separately linear in x and w, so a summed dim sharded in both
// gives a pending sum, and a pending sum times a replicated factor stays one. With a bias the
// result must not be pending, or the bias would be added once a rank. FLOPs: 2 M N K for each of
// the three products.
//
// Some libraries compute GELU, in its tanh form, at the end of a product with a bias, while the
// result z is at hand. For these the pass `fuse` makes one node
//
//   linear_gelu             y = gelu(z), z = x w^T + bias    where GELU alone reads z
//   linear_gelu_kept        z and y                          where others read z, too: the gradient
//   linear_input_grad_gelu  dz = (dy w) gelu'(z)             of the linear that reads gelu(z)
#pragma once

#include <megacpp/op/elementwise.hpp>

namespace mc {
namespace op {

struct linear_in : input_names<linear_in> {
  static constexpr name<0> x{};
  static constexpr name<1> w{};
  static constexpr name<2> bias{};
};
struct linear_out : output_names<linear_out> {
  static constexpr name<0> y{};
};
struct linear_input_grad_in : input_names<linear_input_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> w{};
  static constexpr name<2> d{};
};
struct linear_input_grad_out : output_names<linear_input_grad_out> {
  static constexpr name<0> dx{};
};
struct linear_gelu_kept_out : output_names<linear_gelu_kept_out> {
  static constexpr name<0> z{}; ///< operand of GELU
  static constexpr name<1> y{};
};
struct linear_input_grad_gelu_in : input_names<linear_input_grad_gelu_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> w{};
  static constexpr name<2> z{}; ///< operand of GELU
};
struct linear_weight_grad_in : input_names<linear_weight_grad_in> {
  static constexpr name<0> dy{};
  static constexpr name<1> x{};
};
struct linear_weight_grad_out : output_names<linear_weight_grad_out> {
  static constexpr name<0, element::sum> dw{};
};
struct add_bias_in : input_names<add_bias_in> {
  static constexpr name<0> x{};
  static constexpr name<1> bias{};
};
struct add_bias_out : output_names<add_bias_out> {
  static constexpr name<0> y{};
};
struct bias_grad_in : input_names<bias_grad_in> {
  static constexpr name<0> dy{};
};
struct bias_grad_out : output_names<bias_grad_out> {
  static constexpr name<0, element::sum> dbias{};
};

/// The sizes of a product as one rank computes it.
struct product_extents {
  std::int64_t m = 1, n = 1, k = 1;
};

/// Returns the sizes of x (M, K) times w (N, K)^T on one rank. The last `summed` dims of both are
/// K.
constexpr product_extents extents_of_product(const mesh& r, const value& x, const value& w,
                                             int summed) {
  product_extents e;
  for (int i = 0; i < x.rank - summed; ++i) e.m *= local_extent(r, x, i);
  for (int i = 0; i < w.rank - summed; ++i) e.n *= local_extent(r, w, i);
  for (int i = w.rank - summed; i < w.rank; ++i) e.k *= local_extent(r, w, i);
  return e;
}

/// Checks the place of a bias, which is added to a finished sum only: it is placed as the output.
[[gnu::cold]] constexpr void place_bias(inference& c) {
  using in = linear_in;
  constexpr int x = in::x, bias = in::bias;
  if (!c.has(bias)) return;
  const value& y = c.out[linear_out::y];
  for (int a = 0; a < axes; ++a) {
    c.looking = a;
    const place p = y.at.at[a], b = c.in(bias).at.at[a];
    if (p.s == state::partial && b != partial) c.fail(fault::P005, x, bias);
    if (p.s == state::shard && c.in(bias).find(p.d) < 0 && b.s != state::replicate)
      c.fail(fault::P004, bias, x);
    else if (p.s == state::shard && c.in(bias).find(p.d) >= 0 && b != p)
      c.fail(fault::P002, x, bias);
    else if (p.s != state::shard && p.s != state::partial && b.s != p.s)
      c.fail(fault::P008, b.s == state::invariant ? bias : x, b.s == state::invariant ? x : bias);
  }
}

/// The attributes of the forward product and the two products of its backward pass.
struct product_attributes {
  int summed; ///< number of dims that the forward product sums
};
struct bias_attributes {
  int kept; ///< number of trailing dims of dy that bias_grad keeps
};

/// Returns the number of dims that the forward product sums. They are the last dims of operand k; a
/// fault names operands a and b.
constexpr int summed_dims(inference& c, int k, int a, int b) {
  const int n = c.n.attr.as<product_attributes>().summed;
  const bool fits = n >= 1 && n <= c.in(k).rank;
  c.require(fits, fault::S003, a, b);
  return fits ? n : 0;
}
/// Checks that n dims of operand a, from number `first` on, are those of operand b from number
/// `second` on.
[[gnu::cold]] constexpr void pairs(inference& c, int a, int first, int b, int second, int n) {
  if (first < 0 || second < 0 || first + n > c.in(a).rank || second + n > c.in(b).rank)
    return c.fail(fault::S003, a, b);
  for (int i = 0; i < n; ++i) c.agree(c.in(a).dims[first + i], c.in(b).dims[second + i], a, b);
}

[[gnu::cold]] constexpr void linear_rule(inference& c) {
  using in = linear_in;
  using out = linear_out;
  c.floats({in::x, in::w});
  const value &x = c.in(in::x), &w = c.in(in::w);
  const int summed = summed_dims(c, in::x, in::x, in::w);
  pairs(c, in::x, x.rank - summed, in::w, w.rank - summed, summed);
  if (c.has(linear_in::bias)) {
    c.typed({in::bias}, x.type);
    c.require(c.in(in::bias).rank == w.rank - summed, fault::S003, in::w, in::bias);
    c.leads(in::bias, in::w);
  }
  value& y = c.declare(x);
  y.rank = static_cast<std::int8_t>(x.rank - summed);
  if (y.rank + w.rank - summed > max_rank) {
    c.fail(fault::S004, in::x, in::w);
    return;
  }
  for (int i = 0; i < w.rank - summed; ++i) {
    if (y.find(w.dims[i].d) >= 0) c.fail(fault::S003, in::x, in::w);
    y.dims[y.rank++] = w.dims[i];
  }
  place_output(c, out::y, algebra::product, {in::x, in::w});
  place_bias(c);
}

[[gnu::cold]] constexpr void linear_input_grad_rule(inference& c) {
  using in = linear_input_grad_in;
  using out = linear_input_grad_out;
  c.floats({in::dy, in::w});
  const value &dy = c.in(in::dy), &w = c.in(in::w);
  const int kept = w.rank - summed_dims(c, in::w, in::dy, in::w), lead = dy.rank - kept;
  pairs(c, in::dy, lead, in::w, 0, kept);
  value& dx = c.declare(dy);
  dx.rank = static_cast<std::int8_t>(lead > 0 ? lead : 0);
  c.require(dx.rank + w.rank - kept <= max_rank, fault::S004, in::dy, in::w);
  for (int i = kept; i < w.rank && dx.rank < max_rank; ++i) dx.dims[dx.rank++] = w.dims[i];
  c.distinct(out::dx, in::dy, in::w);
  place_output(c, out::dx, algebra::product, {in::dy, in::w});
}

[[gnu::cold]] constexpr void linear_weight_grad_rule(inference& c) {
  using in = linear_weight_grad_in;
  using out = linear_weight_grad_out;
  c.floats({in::dy, in::x});
  const value &dy = c.in(in::dy), &x = c.in(in::x);
  const int summed = summed_dims(c, in::x, in::dy, in::x), lead = x.rank - summed;
  pairs(c, in::dy, 0, in::x, 0, lead);
  c.require(dy.rank + summed - lead <= max_rank, fault::S004, in::dy, in::x);
  value& dw = c.declare(dy);
  dw.type = accumulator_of(dy.type);
  dw.rank = 0;
  for (int i = lead; i < dy.rank; ++i) dw.dims[dw.rank++] = dy.dims[i];
  for (int i = lead; i < x.rank && dw.rank < max_rank; ++i) dw.dims[dw.rank++] = x.dims[i];
  c.distinct(out::dw, in::dy, in::x);
  place_output(c, out::dw, algebra::product, {in::dy, in::x});
}

/// Infers the column sums of dy over its leading dims.
[[gnu::cold]] constexpr void bias_grad_rule(inference& c) {
  using in = bias_grad_in;
  using out = bias_grad_out;
  c.floats({in::dy});
  const value& dy = c.in(in::dy);
  const int stay = c.n.attr.as<bias_attributes>().kept;
  const bool fits = stay >= 0 && stay <= dy.rank;
  c.require(fits, fault::S003, in::dy);
  const int kept = fits ? stay : 0;
  value& db = c.declare(dy);
  db.type = accumulator_of(dy.type);
  db.rank = 0;
  for (int i = dy.rank - kept; i < dy.rank; ++i) db.dims[db.rank++] = dy.dims[i];
  place_output(c, out::dbias, algebra::product, {in::dy});
}

[[gnu::cold]] constexpr work linear_cost(const graph& g, const node& n) {
  using in = linear_in;
  const value &x = g.at(n.in[in::x]), &w = g.at(n.in[in::w]);
  const auto e = extents_of_product(g.ranks, x, w, n.attr.as<product_attributes>().summed);
  return {2 * e.m * e.n * e.k, e.m * e.k * size_of(x.type) + e.n * e.k * size_of(w.type),
          e.m * e.n * size_of(x.type)};
}
[[gnu::cold]] constexpr work linear_input_grad_cost(const graph& g, const node& n) {
  using in = linear_input_grad_in;
  using out = linear_input_grad_out;
  const value &dy = g.at(n.in[in::dy]), &w = g.at(n.in[in::w]), &dx = g.at(n.out[out::dx]);
  const std::int64_t a = local_size(g.ranks, dy).n, b = local_size(g.ranks, w).n,
                     y = local_size(g.ranks, dx).n;
  std::int64_t k = 1;
  for (int i = w.rank - n.attr.as<product_attributes>().summed; i < w.rank; ++i)
    k *= local_extent(g.ranks, w, i);
  return {2 * a * k, (a + b) * size_of(dy.type), y * size_of(dx.type)};
}
[[gnu::cold]] constexpr work linear_weight_grad_cost(const graph& g, const node& n) {
  using in = linear_weight_grad_in;
  using out = linear_weight_grad_out;
  const value &dy = g.at(n.in[in::dy]), &x = g.at(n.in[in::x]), &dw = g.at(n.out[out::dw]);
  std::int64_t k = 1;
  for (int i = x.rank - n.attr.as<product_attributes>().summed; i < x.rank; ++i)
    k *= local_extent(g.ranks, x, i);
  const std::int64_t w = local_bytes(g.ranks, dw);
  return {2 * local_size(g.ranks, dy).n * k, local_bytes(g.ranks, dy) + local_bytes(g.ranks, x) + w,
          w};
}

extern const op_info linear_input_grad_add, linear_input_grad_gelu;
inline constexpr op_info linear_input_grad{
    .name = "linear_input_grad",
    .rule = &linear_input_grad_rule,
    .cost = &linear_input_grad_cost,
    .attributes = attributes_of<product_attributes>,
    .operands = named<linear_input_grad_in, linear_input_grad_out>,
    .fuses = {&linear_input_grad_add, &linear_input_grad_gelu}};
/// Computes dx = d + dy w for (dy, w, d), in the memory of d.
inline constexpr op_info linear_input_grad_add =
    sums_into<linear_input_grad, linear_input_grad_in::d>("linear_input_grad_add",
                                                          linear_input_grad_in::d);

/// Returns the attributes of an op of the form: of the product (number 0) or of the GELU behind it.
constexpr attributes of_product_and_gelu(const attributes& whole, int op_index) {
  return op_index == 0 ? whole : attributes(gelu_attributes{gelu_form::tanh});
}
[[gnu::cold]] constexpr void linear_input_grad_gelu_rule(inference& c) {
  using in = linear_input_grad_gelu_in;
  using out = linear_input_grad_out;
  linear_input_grad_rule(c);
  const value& dx = c.out[out::dx];
  c.typed({in::z}, dx.type);
  c.require(dx.rank == c.in(in::z).rank, fault::S003, in::dy, in::z);
  for (int i = 0; i < dx.rank && dx.rank == c.in(in::z).rank; ++i)
    c.agree(dx.dims[i], c.in(in::z).dims[i], in::dy, in::z);
  // The gradient of GELU is linear in dx. So where dx is a pending sum, all ranks must have z.
  for (int a = 0; a < axes; ++a) {
    c.looking = a;
    const place p = dx.at.at[a], z = c.in(in::z).at.at[a];
    if (p.s == state::shard ? z != p : z.s != (p.s == state::partial ? state::replicate : p.s))
      c.fail(p.s == state::partial ? fault::P005 : fault::P002, in::dy, in::z);
  }
  c.looking = -1;
}
[[gnu::cold]] constexpr work linear_input_grad_gelu_cost(const graph& g, const node& n) {
  work w = linear_input_grad_cost(g, n);
  w.read += local_bytes(g.ranks, g.at(n.in[linear_input_grad_gelu_in::z]));
  return w;
}
/// Computes dx = (dy w) gelu'(z) for (dy, w, z).
inline constexpr op_info linear_input_grad_gelu{
    .name = "linear_input_grad_gelu",
    .rule = &linear_input_grad_gelu_rule,
    .cost = &linear_input_grad_gelu_cost,
    .attributes = attributes_of<product_attributes>,
    .operands = named<linear_input_grad_gelu_in, linear_input_grad_out>,
    .form = {
        .ops = {{&linear_input_grad, {linear_input_grad_gelu_in::dy, linear_input_grad_gelu_in::w}},
                {&gelu_grad, {out_of(0), linear_input_grad_gelu_in::z}}},
        .outputs = {out_of(1)},
        .of_op = &of_product_and_gelu}};

inline constexpr op_info linear_weight_grad{
    .name = "linear_weight_grad",
    .rule = &linear_weight_grad_rule,
    .cost = &linear_weight_grad_cost,
    .accumulates = true,
    .attributes = attributes_of<product_attributes>,
    .operands = named<linear_weight_grad_in, linear_weight_grad_out>};
inline constexpr op_info bias_grad{.name = "bias_grad",
                                   .rule = &bias_grad_rule,
                                   .accumulates = true,
                                   .attributes = attributes_of<bias_attributes>,
                                   .operands = named<bias_grad_in, bias_grad_out>};

[[gnu::cold]] constexpr void linear_adjoint(backward& d, const node& n) {
  using in = linear_in;
  using out = linear_out;
  const value_id dy = d.of(n.out[out::y]), x = n.in[in::x], w = n.in[in::w], bias = n.in[in::bias];
  if (dy < 0) return;
  if (d.wants(x)) d.give(x, d.b.emit(linear_input_grad, {dy, w}, n.line, n.attr), n.line);
  if (d.wants(w)) d.give(w, d.b.emit(linear_weight_grad, {dy, x}, n.line, n.attr), n.line);
  if (d.wants(bias))
    d.give(bias, d.b.emit(bias_grad, {dy}, n.line, bias_attributes{d.b.g.at(bias).rank}), n.line);
}

[[gnu::cold]] constexpr void add_bias_rule(inference& c) {
  using in = add_bias_in;
  using out = add_bias_out;
  c.floats({in::x, in::bias}), c.trails(in::bias, in::x);
  c.declare(c.in(in::x));
  place_output(c, out::y, algebra::sum, {in::x, in::bias});
}
[[gnu::cold]] constexpr void add_bias_adjoint(backward& d, const node& n) {
  using in = add_bias_in;
  using out = add_bias_out;
  const value_id dy = d.of(n.out[out::y]), bias = n.in[in::bias];
  if (dy < 0) return;
  d.give(n.in[in::x], dy, n.line);
  if (d.wants(bias))
    d.give(bias, d.b.emit(bias_grad, {dy}, n.line, bias_attributes{d.b.g.at(bias).rank}), n.line);
}
inline constexpr op_info add_bias{.name = "add_bias",
                                  .rule = &add_bias_rule,
                                  .adjoint = &add_bias_adjoint,
                                  .in_place = add_bias_in::x,
                                  .cheap = true,
                                  .operands = named<add_bias_in, add_bias_out>};

extern const op_info linear_gelu, linear_gelu_kept;
/// The product. With a bias, it is a form of a product without bias and add_bias.
inline constexpr op_info linear{.name = "linear",
                                .rule = &linear_rule,
                                .adjoint = &linear_adjoint,
                                .cost = &linear_cost,
                                .attributes = attributes_of<product_attributes>,
                                .operands = named<linear_in, linear_out>,
                                .form = {.ops = {{&linear, {linear_in::x, linear_in::w}},
                                                 {&add_bias, {out_of(0), linear_in::bias}}},
                                         .outputs = {out_of(1)},
                                         .with = linear_in::bias},
                                .fuses = {&linear, &linear_gelu, &linear_gelu_kept}};

template <bool Kept> [[gnu::cold]] constexpr void linear_gelu_rule(inference& c) {
  linear_rule(c);
  c.typed({linear_in::bias}, c.in(linear_in::x).type); // so there must be a bias
  if (c.outs == 0) return;
  const value z = c.out[0];
  for (int a = 0; a < axes; ++a) {
    c.looking = a;
    if (z.at.at[a].s == state::partial) c.fail(fault::P005, linear_in::x, linear_in::w);
  }
  c.looking = -1;
  if (Kept) c.declare(z).at = z.at;
}
template <bool Kept> [[gnu::cold]] constexpr work linear_gelu_cost(const graph& g, const node& n) {
  work w = linear_cost(g, n);
  if (Kept) w.written *= 2;
  return w;
}
template <bool Kept> constexpr op_info gelu_behind_linear(const char* name) {
  using in = linear_in;
  op_info f{.name = name, .rule = &linear_gelu_rule<Kept>, .cost = &linear_gelu_cost<Kept>};
  f.attributes = attributes_of<product_attributes>;
  f.operands = Kept ? named<linear_in, linear_gelu_kept_out> : named<linear_in, linear_out>;
  f.form = {.ops = {{&linear, {in::x, in::w, in::bias}}, {&gelu, {out_of(0)}}},
            .outputs = {out_of(Kept ? 0 : 1), out_of(1)},
            .rerun = 1,
            .of_op = &of_product_and_gelu};
  if (!Kept) f.form.outputs[1] = {};
  return f;
}
/// Computes y = gelu(z), z = x w^T + bias, for (x, w, bias); linear_gelu_kept also gives z.
inline constexpr op_info linear_gelu = gelu_behind_linear<false>("linear_gelu");
inline constexpr op_info linear_gelu_kept = gelu_behind_linear<true>("linear_gelu_kept");

} // namespace op

/// Returns x w^T + bias, or x w^T if bias is a var without builder. The last dims of x and w, as
/// many as are the same, are summed.
constexpr var linear(var x, var w, var bias, source_line line = here()) {
  const value &a = x.type(), &b = w.type();
  int summed = 0;
  while (summed < a.rank && summed < b.rank &&
         a.dims[a.rank - 1 - summed].d == b.dims[b.rank - 1 - summed].d)
    ++summed;
  return {x.b, x.b->emit(op::linear, {x.id, w.id, bias.id}, line, op::product_attributes{summed})};
}
/// Returns x w^T.
constexpr var linear(var x, var w, source_line line = here()) { return linear(x, w, {}, line); }

/// Returns x + bias, where the dims of bias are the last dims of x.
constexpr var add_bias(var x, var bias, source_line line = here()) {
  return {x.b, x.b->emit(op::add_bias, {x.id, bias.id}, line)};
}

} // namespace mc
