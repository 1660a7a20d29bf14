// The end of a step: gradient norm, clipping and AdamW over ranges of the flat stores.
//
//   add_gradient    g = g + h,  h = 0
//   add_gradient    g = g + h,  h = 0
//   reduce_gradient   g = sum of g over the ranks of some axes
//   scatter_gradient  h = the rank's share of that sum
//   gather_weight     w = the shares v of all of these ranks
//   clip_factor     c = 1/n min(1, clip / (norm + 1e-6)),  norm = sqrt(sum of s) / n
//                   n = tokens of the batch that have a loss; c is NaN unless the norm and the
//                   summed loss are finite, and the norm is not where n is 0
//   adamw           g' = c g,  m = b1 m + (1-b1) g',  v = b2 v + (1-b2) g'^2
//                   p = p (1 - lr wd) - lr (m / (1-b1^t)) / (sqrt(v / (1-b2^t)) + eps)
//                   broken = blocks of elements of which a weight or a moment is not finite now
//   balance_step    b = b - rate sign(load), for biases that even out the load of experts
//
// Where the factor is not finite, adamw and balance_step change nothing.
//
// (Kingma, Ba 2015; Loshchilov, Hutter 2019; Wang et al. 2024.) The gradients are those of the
// summed loss; the division by the token count happens here, once, after everything is reduced.
// Placement: the sum of squares over a sharded range is a pending sum over that axis and a finished
// one over the others, so every element counts once however it is placed; so is the number of
// broken blocks. add_gradient, sum_of_squares and adamw go element by element, so that ranges may
// be cut over dp, whose size is known only at start; padding is zero, and stays so. adamw takes a
// gradient only if it is placed as its parameter (MEGA-P010).
#pragma once

#include <megacpp/graph/adjoint.hpp>

namespace mc {
namespace op {

struct add_gradient_in : input_names<add_gradient_in> {
  static constexpr name<0> g{};
  static constexpr name<1> h{};
};
struct reduce_gradient_in : input_names<reduce_gradient_in> {
  static constexpr name<0> g{};
};
struct scatter_gradient_in : input_names<scatter_gradient_in> {
  static constexpr name<0> g{};
  static constexpr name<1> share{};
};
struct gather_weight_in : input_names<gather_weight_in> {
  static constexpr name<0> share{};
  static constexpr name<1> w{};
};
struct sum_of_squares_in : input_names<sum_of_squares_in> {
  static constexpr name<0> x{};
};
struct sum_of_squares_out : output_names<sum_of_squares_out> {
  static constexpr name<0, element::f64> sum{};
};
struct clip_factor_in : input_names<clip_factor_in> {
  static constexpr name<0, element::f64> count{};
  static constexpr name<1, element::f64> loss{};
  static constexpr name<2, element::f64> squares{};
};
struct clip_factor_out : output_names<clip_factor_out> {
  static constexpr name<0, element::f64> factor{};
  static constexpr name<1, element::f64> norm{};
};
struct adamw_in : input_names<adamw_in> {
  static constexpr name<0, element::sum> gradient{};
  static constexpr name<1, element::sum> master{};
  static constexpr name<2, element::moment> first{};
  static constexpr name<3, element::moment> second{};
  static constexpr name<4> weight{};
  static constexpr name<5, element::f64> factor{};
  static constexpr name<6, element::f64> rate{};
  static constexpr name<7, element::i64> step{};
  static constexpr name<8, element::i64> seed{};   ///< seed by which moments are rounded at random
  static constexpr name<9, element::i64> origin{}; ///< parameters and elements of these moments
};
struct adamw_out : output_names<adamw_out> {
  static constexpr name<0, element::f64> broken{};
};
struct balance_step_in : input_names<balance_step_in> {
  static constexpr name<0, element::sum> load{};
  static constexpr name<1, element::sum> master{};
  static constexpr name<2> weight{};
  static constexpr name<3, element::f64> factor{};
};

/// Checks that these operands have the dims and the placement of operand x.
[[gnu::cold]] constexpr void placed_alike(inference& c, std::initializer_list<int> operands,
                                          int x) {
  for (int k : operands) c.alike(k, x);
  for (int k : operands)
    for (c.looking = 0; c.looking < axes; ++c.looking) {
      const auto a = static_cast<axis>(c.looking);
      if (c.in(k).at[a] != c.in(x).at[a]) c.fail(fault::P010, x, k);
    }
}

[[gnu::cold]] constexpr void add_gradient_rule(inference& c) {
  using in = add_gradient_in;
  c.floats({in::g, in::h}), c.sums({in::g}, in::g);
  placed_alike(c, {in::h}, in::g);
}
[[gnu::cold]] constexpr work add_gradient_cost(const graph& g, const node& n) {
  using in = add_gradient_in;
  const std::int64_t bytes = local_bytes(g.ranks, g.at(n.in[in::g]));
  return {local_size(g.ranks, g.at(n.in[in::g])).n, 2 * bytes, 2 * bytes};
}
inline constexpr op_info add_gradient{
    .name = "add_gradient",
    .rule = &add_gradient_rule,
    .cost = &add_gradient_cost,
    .writes_operands = mask_of(add_gradient_in::g, add_gradient_in::h),
    .takes_ranges = true,
    .operands = named<add_gradient_in>};

/// The attributes of an exchange of a range of the stores, of which each rank may have a share. A
/// range of several layers is exchanged one layer at a time.
struct exchange_attributes {
  axis_set over; ///< axes over which ranks exchange the range
  dtype wire;    ///< type in which its elements go from rank to rank
};
/// Checks an exchange. Operand `whole` has the place `summed` on each of its axes. Operand `share`,
/// if there is one, is the equal part that each rank has. Where the number of ranks is unknown, the
/// extent of `share` is that of one rank.
[[gnu::cold]] constexpr void over_ranks(inference& c, int whole, place summed, int share = -1) {
  const auto [over, wire] = c.n.attr.as<exchange_attributes>();
  const int first = share >= 0 && share < whole ? share : whole; // operand to blame
  c.require(!over.empty() && on_one_mesh(over), fault::P013, first);
  c.require(value{.type = wire}.differentiable(), fault::P020, first);
  bool sized = true;
  for (int a = 0; a < axes; ++a)
    sized = sized && (!over.has(static_cast<axis>(a)) || c.g.ranks.sized(static_cast<axis>(a)));
  if (share >= 0 && sized) c.alike(share, whole);
  if (share >= 0 && !sized) {
    const value &w = c.in(whole), &s = c.in(share);
    c.require(is_range(w), fault::S003, whole), c.require(is_range(s), fault::S003, share);
    c.require(w.rank == s.rank && (w.rank == 1 || w.dims[0] == s.dims[0]), fault::S002, whole,
              share);
    const std::int64_t of = s.rank > 0 ? s.dims[s.rank - 1].n : 0,
                       n = w.rank > 0 ? w.dims[w.rank - 1].n : 0;
    c.require(of == n || (of > 0 && n % of == 0), fault::S002, whole, share);
  }
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    if (c.g.ranks.trivial(a)) continue;
    if (over.has(a) && c.in(whole).at[a] != summed) c.fail(fault::P010, whole);
    if (share < 0) continue;
    if (over.has(a) ? !c.in(share).at[a].is_shard(dim::elements)
                    : c.in(share).at[a].s != c.in(whole).at[a].s)
      c.fail(fault::P010, share);
  }
  c.looking = -1;
}
/// Returns the work of an op that reads operand From and writes operand To.
template <int From, int To>
[[gnu::cold]] constexpr work over_ranks_cost(const graph& g, const node& n) {
  return {0, local_bytes(g.ranks, g.at(n.in[From])), local_bytes(g.ranks, g.at(n.in[To]))};
}
template <collective What, int From>
[[gnu::cold]] constexpr transfers over_ranks_wire(const graph& g, const node& n,
                                                  const mesh& ranks) {
  const auto [over, wire] = n.attr.as<exchange_attributes>();
  const value& v = g.at(n.in[From]);
  const std::int64_t layers = What != collective::all_reduce && v.rank == 2 ? v.dims[0].n : 1;
  if (layers == 0) return transfers{};
  const std::int64_t bytes = local_size(g.ranks, v).n / layers * size_of(wire);
  return transfers{}.add(
      {What, over, bytes, bytes_sent(What, bytes, ranks_of(ranks, over)), layers});
}

[[gnu::cold]] constexpr void reduce_gradient_rule(inference& c) {
  using in = reduce_gradient_in;
  c.floats({in::g}), c.sums({in::g}, in::g);
  over_ranks(c, in::g, partial);
}
inline constexpr op_info reduce_gradient{
    .name = "reduce_gradient",
    .rule = &reduce_gradient_rule,
    .cost = &over_ranks_cost<reduce_gradient_in::g, reduce_gradient_in::g>,
    .wire = &over_ranks_wire<collective::all_reduce, reduce_gradient_in::g>,
    .writes_operands = mask_of(reduce_gradient_in::g),
    .takes_ranges = true,
    .attributes = attributes_of<exchange_attributes>,
    .operands = named<reduce_gradient_in>};

/// Checks operands that lie in one store: the share lies in its place in the whole, and the rest of
/// the whole is undefined afterwards.
[[gnu::cold]] constexpr void scatter_gradient_rule(inference& c) {
  using in = scatter_gradient_in;
  c.floats({in::g, in::share}), c.sums({in::g}, in::g);
  over_ranks(c, in::g, partial, in::share);
}
inline constexpr op_info scatter_gradient{
    .name = "scatter_gradient",
    .rule = &scatter_gradient_rule,
    .cost = &over_ranks_cost<scatter_gradient_in::g, scatter_gradient_in::share>,
    .wire = &over_ranks_wire<collective::reduce_scatter, scatter_gradient_in::g>,
    .writes_operands = mask_of(scatter_gradient_in::g, scatter_gradient_in::share),
    .takes_ranges = true,
    .attributes = attributes_of<exchange_attributes>,
    .operands = named<scatter_gradient_in>};

/// Checks operands that lie in one store: the share lies in its place in the whole.
[[gnu::cold]] constexpr void gather_weight_rule(inference& c) {
  using in = gather_weight_in;
  c.floats({in::share, in::w});
  c.require(c.n.attr.as<exchange_attributes>().wire == c.in(in::w).type, fault::P020, in::w);
  over_ranks(c, in::w, invariant, in::share);
}
inline constexpr op_info gather_weight{
    .name = "gather_weight",
    .rule = &gather_weight_rule,
    .cost = &over_ranks_cost<gather_weight_in::share, gather_weight_in::w>,
    .wire = &over_ranks_wire<collective::all_gather, gather_weight_in::share>,
    .writes_operands = mask_of(gather_weight_in::w),
    .takes_ranges = true,
    .attributes = attributes_of<exchange_attributes>,
    .operands = named<gather_weight_in>};

/// The attributes of an op on a range of the stores, of whose layers each rank may have a share.
struct share_attributes {
  axis_set over; ///< axes over which ranks share the range
};
[[gnu::cold]] constexpr void sum_of_squares_rule(inference& c) {
  using in = sum_of_squares_in;
  using out = sum_of_squares_out;
  c.floats({in::x}), c.sums({in::x}, in::x);
  c.declare(dtype::f64, {});
  place_output(c, out::sum, algebra::reduction, {in::x});
}
inline constexpr op_info sum_of_squares{.name = "sum_of_squares",
                                        .rule = &sum_of_squares_rule,
                                        .takes_ranges = true,
                                        .attributes = attributes_of<share_attributes>,
                                        .operands = named<sum_of_squares_in, sum_of_squares_out>};

[[gnu::cold]] constexpr void clip_factor_rule(
    inference& c) { // token count, summed loss, sums of squares...
  using in = clip_factor_in;
  using out = clip_factor_out;
  for (int k = 0; k < max_inputs; ++k)
    if (k < in::squares || c.has(k)) c.typed({k}, dtype::f64), c.rank(k, 0);
  for (int k = out::factor; k <= out::norm; ++k) {
    c.declare(dtype::f64, {});
    place_output(c, k, algebra::nonlinear, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}); // all operands
  }
}
inline constexpr op_info clip_factor{.name = "clip_factor",
                                     .rule = &clip_factor_rule,
                                     .operands = named<clip_factor_in, clip_factor_out>};

struct adamw_attributes {
  bool decay;         ///< weight decay applies to the bucket
  std::int64_t count; ///< number of elements of the bucket
  axis_set over;      ///< axes over which ranks share the bucket
};
// The op maps gradient, master, first moment, second moment, weight, factor, learning rate, step to
// broken.
[[gnu::cold]] constexpr void adamw_rule(inference& c) {
  using in = adamw_in;
  using out = adamw_out;
  c.floats({in::weight}), c.floats({in::first}), c.sums({in::gradient, in::master}, in::weight),
      c.typed({in::second}, c.in(in::first).type), c.typed({in::factor, in::rate}, dtype::f64),
      c.rank(in::factor, 0), c.rank(in::rate, 0);
  const dtype moment = c.in(in::first).type, sum = accumulator_of(c.in(in::weight).type);
  const bool rounds = moment != sum;
  c.require(size_of(moment) <= size_of(sum) && (!rounds || moment == dtype::bf16), fault::S007,
            in::first);
  c.require(c.has(in::seed) == rounds && c.has(in::origin) == rounds, fault::S008, in::first);
  if (rounds) {
    c.typed({in::seed, in::origin}, dtype::i64), c.rank(in::seed, 0), c.rank(in::origin, 1);
    c.require(is_range(c.in(in::origin)), fault::S003, in::origin);
  }
  c.typed({in::step}, dtype::i64), c.rank(in::step, 0);
  placed_alike(c, {in::master, in::first, in::second, in::weight}, in::gradient);
  c.looking = -1;
  c.declare(dtype::f64, {});
  place_output(c, out::broken, algebra::reduction, {in::gradient});
}
[[gnu::cold]] constexpr work adamw_cost(const graph& g, const node& n) {
  using in = adamw_in;
  work w;
  for (int k = in::gradient; k <= in::weight; ++k) {
    const std::int64_t bytes = local_bytes(g.ranks, g.at(n.in[k]));
    if (k != in::weight) w.read += bytes;
    if (k != in::gradient) w.written += bytes;
  }
  return w;
}
inline constexpr op_info adamw{.name = "adamw",
                               .rule = &adamw_rule,
                               .cost = &adamw_cost,
                               .typed_by = adamw_in::weight,
                               .writes_operands = mask_of(adamw_in::master, adamw_in::first,
                                                          adamw_in::second, adamw_in::weight),
                               .takes_ranges = true,
                               .attributes = attributes_of<adamw_attributes>,
                               .operands = named<adamw_in, adamw_out>};

struct balance_attributes {
  double rate; ///< size of the step
};
[[gnu::cold]] constexpr void balance_step_rule(inference& c) {
  using in = balance_step_in;
  c.floats({in::weight}), c.sums({in::load, in::master}, in::weight),
      c.typed({in::factor}, dtype::f64), c.rank(in::factor, 0);
  const double rate = c.n.attr.as<balance_attributes>().rate;
  c.require(rate >= 0 && rate < 1e30, fault::C001, in::load);
  placed_alike(c, {in::master, in::weight}, in::load);
}
inline constexpr op_info balance_step{
    .name = "balance_step",
    .rule = &balance_step_rule,
    .typed_by = balance_step_in::weight,
    .writes_operands = mask_of(balance_step_in::master, balance_step_in::weight),
    .attributes = attributes_of<balance_attributes>,
    .operands = named<balance_step_in>};

} // namespace op
} // namespace mc
