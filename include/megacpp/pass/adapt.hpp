// adapt: adds the factors of an adapter (recipe/lora.hpp) to a model's forward graph. A linear
// layer y = W x becomes
//
//   y = W x + B (scale (A x)),   A (r, in...), B (out..., r)
//
// and every parameter of the model is frozen. Whoever writes a model writes nothing for this. The
// placements follow from those of x and W:
//
//   over an axis that shards      A is                           B is
//   what W sums (row parallel)    sharded as x is                the same on all ranks; B A x is a
//                                                                pending sum as W x is, so both are
//                                                                reduced at once
//   W's outputs                   the same on all ranks, whose   sharded as W is
//                                 gradients are summed
//   x otherwise (batch, tokens)   the same on all ranks          treated as W is
//
// Where W reads what is gathered from shards of the sequence, A reads the shard, and A x is
// gathered.
// The way from the stored W to the weight that the product reads, such as kv heads that ranks
// share, is the way of B, too. The matrices of experts have factors (E, r, in) and (E, out, r),
// which lie where the experts do. Layers that are one layer in the files of their family
// (recipe/lora.hpp) read one A x.
//
// Generation may hold several adapters at once (setup::held_adapters). Then A and B are those of
// all of them side by side, and A x is multiplied by an input that is 1 in the columns of the
// adapter that a token has, and 0 in all others. A row of an expert has the adapter of its token.
//
// Where the base is in NF4 (QLoRA), the weights of all linear layers but a router become what
// op/nf4.hpp decodes, and everything behind them stays.
#pragma once

#include <megacpp/num/elementary.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/op/linear.hpp>
#include <megacpp/op/nf4.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/router.hpp>
#include <megacpp/op/select.hpp>
#include <megacpp/recipe/lora.hpp>

#include <cstdint>
#include <span>
#include <string_view>

namespace mc {

inline constexpr const char *first_factor_name = "lora_A.weight",
                            *second_factor_name = "lora_B.weight";

namespace detail {

/// Returns the parameter that v is behind ops that move and repeat elements; -1 for another value.
constexpr value_id moved_parameter(const graph& g, value_id v) {
  while (v >= 0 && g.at(v).producer >= 0) {
    const node& n = g.at_node(g.at(v).producer);
    if (!n.op->redistributes && n.op != &op::repeat) return -1;
    v = n.in[0];
  }
  return v >= 0 && g.at(v).is == role::parameter ? v : value_id{-1};
}

/// A graph that is written anew, with an adapter.
class adapting {
public:
  constexpr adapting(const graph& from, const lora& with, const published_layers& published,
                     int held)
      : g_(from), with_(with), published_(published), held_(held), b_(from.ranks) {
    for (value_id& v : now_) v = -1;
    for (int i = 0; i < g_.node_count; ++i)
      if (const node& n = g_.nodes[i]; n.op == &op::dropout)
        if (const auto salt = n.attr.as<op::dropout_attributes>().salt; salt >= salt_)
          salt_ = salt + 1;
    b_.g.sums = g_.sums, b_.g.wrong = g_.wrong;
  }

  constexpr graph result() {
    bool stored_otherwise[max_values]{};
    if (with_.base == base_storage::nf4) find_linear_weights(stored_otherwise);
    for (int i = 0; i < g_.value_count; ++i)
      if (g_.at(static_cast<value_id>(i)).producer < 0 && !stored_otherwise[i])
        now_[i] = b_.add(g_.at(static_cast<value_id>(i)), 0);
    for (int i = 0; i < g_.parameter_count; ++i) {
      parameter_info p = g_.parameters[i];
      p.frozen = p.frozen || !with_.saves(published_name(g_.at(p.v)));
      if (stored_otherwise[p.v]) {
        now_[p.v] = decoded(g_.at(p.v), p);
        continue;
      }
      p.v = of(p.v);
      for (value_id& v : p.arrays) v = of(v);
      b_.g.parameters[b_.g.parameter_count++] = p;
    }
    b_.g.region_count = g_.region_count;
    for (int i = 0; i < g_.node_count; ++i) write(g_.at_node(i));
    for (unsigned i = 0; i < 2; ++i) b_.g.outputs[i] = of(g_.outputs[i]);
    b_.g.d_stream = of(g_.d_stream), b_.g.side_loss = of(g_.side_loss);
    return b_.g;
  }

private:
  constexpr value_id of(value_id v) const { return v < 0 ? v : now_[v]; }

  /// Marks the parameters that are weights of linear layers, but for a router.
  constexpr void find_linear_weights(bool* found) const {
    for (int i = 0; i < g_.node_count; ++i) {
      const node& n = g_.nodes[i];
      if (n.op != &op::linear && n.op != &op::grouped_linear) continue;
      const value_id w = moved_parameter(g_, n.in[op::linear_in::w]);
      if (w < 0 || is_router(n.out[op::linear_out::y])) continue;
      const parameter_info* const p = g_.parameter_of(w);
      found[w] = found[w] || (p != nullptr && p->encoding == nullptr && !p->tied &&
                              !with_.saves(published_name(g_.at(w))));
    }
  }
  /// Declares a parameter anew as it is stored in NF4, and returns its numbers.
  constexpr value_id decoded(const value& w, const parameter_info& info) {
    const auto declare = [&](std::initializer_list<extent> dims) {
      return b_.parameter(w.scope, w.name, nf4_encoding, dims, w.at, info, info.line);
    };
    const extent* const d = w.dims;
    const auto arrays = w.rank == 2   ? declare({d[0], d[1]})
                        : w.rank == 3 ? declare({d[0], d[1], d[2]})
                                      : declare({d[0], d[1], d[2], d[3]});
    return b_.emit(op::nf4_decode, {arrays[0].id, arrays[1].id, arrays[2].id}, info.line,
                   op::nf4_decode_attributes{w.type});
  }

  constexpr void write(const node& old) {
    node n = old;
    for (value_id& v : n.in) v = of(v);
    for (value_id& v : n.out) v = -1;
    b_.when = n.when, b_.derived = n.derived, b_.region = n.region;
    b_.emit(n);
    const node made = b_.g.at_node(b_.g.node_count - 1);
    for (int k = 0; k < max_outputs; ++k) {
      if (old.out[k] < 0 || made.out[k] < 0) continue;
      now_[old.out[k]] = made.out[k];
      const node_id producer = b_.g.at(made.out[k]).producer;
      b_.g.at(made.out[k]) = g_.at(old.out[k]);
      b_.g.at(made.out[k]).producer = producer;
    }
    for (int r = 0; r < g_.region_count; ++r)
      if (g_.regions[r].trips >= 0) b_.g.regions[r].trips = of(g_.regions[r].trips);
    const bool of_experts = old.op == &op::grouped_linear;
    if (old.op != &op::linear && !of_experts) return;
    static_assert(op::linear_in::x == op::grouped_linear_in::x &&
                  op::linear_in::w == op::grouped_linear_in::w &&
                  op::linear_out::y == op::grouped_linear_out::y);
    const value_id y = old.out[op::linear_out::y],
                   w = moved_parameter(g_, old.in[op::linear_in::w]);
    if (w < 0 || !is_target(g_.at(w), of_experts) || is_router(y)) return;
    b_.region = -1; // factors are moved outside of a region, and products are in that of x
    now_[y] = (var{&b_, now_[y]} + located(added(old, g_.at(w)), old.line)).id;
  }
  /// Returns the name of a layer in the files of its family.
  constexpr const char* published_name(const value& w) const {
    const char* const name = published_.of(w.scope);
    return name == nullptr ? w.scope : name;
  }
  /// Returns the columns of A x, of all adapters that are held.
  constexpr int columns_of(const value& w) const {
    const int r = with_.rank_of(published_name(w));
    return (r < 1 ? 1 : r) * (held_ > 1 ? held_ : 1); // fault_of_adapter refuses others
  }
  constexpr bool is_target(const value& w, bool of_experts) const {
    return std::string_view(w.name) == "weight" && !with_.saves(published_name(w)) &&
           with_.adapts(published_name(w), of_experts);
  }
  /// Returns whether the logits y choose experts.
  constexpr bool is_router(value_id y) const {
    for (int i = 0; i < g_.node_count; ++i)
      if (g_.nodes[i].op == &op::route && g_.nodes[i].in[op::route_in::logits] == y) return true;
    return false;
  }

  /// Returns B (scale (A x)) for a product x W^T of the old graph.
  constexpr var added(const node& n, const value& w) {
    const bool of_experts = n.op == &op::grouped_linear;
    const int leading = of_experts ? 1 : 0,
              summed = of_experts ? 1 : n.attr.as<op::product_attributes>().summed,
              kept = w.rank - summed;
    const var narrow = narrowed(n, w, leading, summed);
    value b = w;
    b.rank = static_cast<std::int8_t>(kept + 1);
    b.dims[kept] = {dim::adapter, columns_of(w)};
    for (int i = 0; i < axes; ++i) b.at.at[i] = is_shard_of(w.at.at[i], b) ? w.at.at[i] : invariant;
    var second = parameter(b, w.scope, second_factor_name, {.how = init::zeros}, n.line);
    second = {&b_, as_weight(n.in[op::linear_in::w], second.id)};
    for (int i = 0; i < axes; ++i)
      if (narrow.type().at.at[i].s != state::invariant && second.type().at.at[i] == invariant)
        second = to(second, static_cast<axis>(i), replicate, n.line);
    return product(n, narrow, second);
  }
  /// Returns scale (A x): that of an earlier layer, if both are one layer in files.
  constexpr var narrowed(const node& n, const value& w, int leading, int summed) {
    const char* const layer = published_name(w);
    const value_id of_x = of(n.in[op::linear_in::x]);
    for (int k = 0; k < narrow_count_; ++k)
      if (narrow_[k].x == of_x && std::string_view(narrow_[k].layer) == layer)
        return {&b_, narrow_[k].y};
    const node* const gather = gather_of_tokens(of_x);
    const var of_tokens{&b_, gather == nullptr ? of_x : gather->in[0]};
    const var x = leading > 0 ? of_tokens : dropped(of_tokens, n.line);
    const int kept = w.rank - summed;
    value a = w;
    a.rank = static_cast<std::int8_t>(leading + 1 + summed);
    a.dims[leading] = {dim::adapter, columns_of(w)};
    std::int64_t in = 1;
    for (int i = 0; i < summed; ++i) in *= (a.dims[leading + 1 + i] = w.dims[kept + i]).n;
    for (int i = 0; i < axes; ++i) {
      const place of_input = x.type().at.at[i], of_weight = w.at.at[i];
      a.at.at[i] = is_shard_of(of_input, a)                         ? of_input
                   : leading > 0 && of_weight.is_shard(w.dims[0].d) ? of_weight
                                                                    : invariant;
    }
    // Kaiming's uniform numbers with a slope of sqrt(5), as PEFT draws them: between -1 / sqrt(in)
    // and 1 / sqrt(in).
    const double std = 1 / mc::square_root(3 * static_cast<double>(in));
    var first = parameter(a, layer, first_factor_name, {.how = init::uniform, .std = std}, n.line);
    for (int i = 0; i < axes; ++i)
      if (x.type().at.at[i].s != state::invariant && first.type().at.at[i] == invariant)
        first = to(first, static_cast<axis>(i), replicate, n.line);
    var y = mc::scale(product(n, x, first), with_.scale_of(layer), n.line);
    if (gather != nullptr) y = to(y, gather->attr.as<op::transition>().over, replicate, n.line);
    if (held_ > 0) y = chosen(n, y, leading > 0);
    if (narrow_count_ < most_narrow) narrow_[narrow_count_++] = {layer, of_x, y.id};
    return y;
  }
  /// Returns y = A x of several adapters, with zeros for all but the one that a token has.
  constexpr var chosen(const node& n, var y, bool of_experts) {
    if (adapters_.id < 0) {
      const value* tokens = nullptr;
      for (int i = 0; i < g_.value_count; ++i)
        if (const value& v = g_.at(static_cast<value_id>(i));
            v.is == role::input && v.from == feed::positions)
          tokens = &v;
      if (tokens == nullptr) {
        b_.fail(fault::C006, n.line, "adapters", y.id, "the graph has no input of each token");
        return y;
      }
      adapters_ = b_.input(feed::adapters, "adapters", accumulator_of(y.type().type),
                           {tokens->dims[0], tokens->dims[1], {dim::adapter, held_}}, tokens->at);
    }
    if (!of_experts) return scale_rows(y, placed_as(adapters_, y, n.line), n.line);
    return scale_rows(y, rows_of_adapters(of(n.in[op::grouped_linear_in::counts]), n.line), n.line);
  }
  /// Returns the input of chosen(), dispatched to rows of experts as their tokens are.
  constexpr var rows_of_adapters(value_id counts, source_line line) {
    if (dispatched_.id >= 0 && of_counts_ == counts) return dispatched_;
    for (int i = 0, count = b_.g.node_count; i < count; ++i) {
      const node way = b_.g.at_node(i);
      if (way.op != &op::dispatch || way.in[op::dispatch_in::counts] != counts) continue;
      const var tokens = placed_as(adapters_, {&b_, way.in[op::dispatch_in::x]}, line);
      b_.region = way.region;
      dispatched_ = {&b_, b_.emit(op::dispatch,
                                  {tokens.id, way.in[op::dispatch_in::experts],
                                   way.in[op::dispatch_in::row], counts},
                                  line, way.attr)};
      b_.region = -1, of_counts_ = counts;
      return dispatched_;
    }
    return adapters_; // scale_rows refuses it
  }
  /// Returns an input of each token where x has its tokens.
  constexpr var placed_as(var input, var x, source_line line) {
    for (int i = 0; i < axes; ++i) {
      const auto a = static_cast<axis>(i);
      const place p = x.type().at[a];
      if (p.s == state::invariant || input.at(a) != invariant) continue;
      const bool cuts = p.s == state::shard && input.type().find(p.d) >= 0;
      input = to(input, a, cuts ? shard(p.d) : replicate, line);
    }
    return input;
  }
  /// Returns dropout of x, with a mask of its own for each layer.
  constexpr var dropped(var x, source_line line) {
    if (!(with_.dropout > 0 && with_.dropout < 1)) return x; // fault_of_adapter refuses others
    var keys;
    for (int i = 0; i < g_.value_count; ++i)
      if (const value& v = g_.at(static_cast<value_id>(i));
          v.is == role::input && v.from == feed::token_keys)
        keys = {&b_, of(static_cast<value_id>(i))};
    if (keys.id >= 0) keys = placed_as(keys, x, line);
    return dropout(x, keys, with_.dropout, salt_++, line);
  }
  /// Returns the redistribution that gathers x from shards of the sequence, or null. A x is
  /// computed before it, so that r numbers of a token are gathered, and x not again for A's
  /// gradient.
  constexpr const node* gather_of_tokens(value_id x) const {
    if (b_.g.at(x).producer < 0) return nullptr;
    const node& n = b_.g.at_node(b_.g.at(x).producer);
    if (n.op != &op::redistribute) return nullptr;
    const auto t = n.attr.as<op::transition>();
    return t.from.is_shard(dim::sequence) && t.to == replicate ? &n : nullptr;
  }
  /// Returns x w^T as the node computes it of its own operands.
  constexpr var product(const node& n, var x, var w) {
    if (n.op == &op::linear) return linear(x, w, n.line);
    return {&b_, b_.emit(op::grouped_linear, {x.id, w.id, of(n.in[op::grouped_linear_in::counts])},
                         n.line, n.attr)};
  }
  constexpr static bool is_shard_of(place p, const value& v) {
    return p.s == state::shard && v.find(p.d) >= 0;
  }
  constexpr var parameter(const value& v, const char* scope, const char* name, parameter_info info,
                          source_line line) {
    info.decay = info.added = true;
    switch (v.rank) {
    case 2: return b_.parameter(scope, name, v.type, {v.dims[0], v.dims[1]}, v.at, info, line);
    case 3:
      return b_.parameter(scope, name, v.type, {v.dims[0], v.dims[1], v.dims[2]}, v.at, info, line);
    default:
      return b_.parameter(scope, name, v.type, {v.dims[0], v.dims[1], v.dims[2], v.dims[3]}, v.at,
                          info, line);
    }
  }
  /// Returns what the ops between a weight of the old graph and its parameter make of `stored`.
  constexpr value_id as_weight(value_id used, value_id stored) {
    if (g_.at(used).producer < 0) return stored;
    node n = g_.at_node(g_.at(used).producer);
    const value_id x = as_weight(n.in[0], stored);
    for (value_id& v : n.out) v = -1;
    n.in[0] = x;
    return b_.emit(n);
  }

  const graph& g_;
  const lora& with_;
  const published_layers& published_;
  int held_; ///< adapters side by side
  builder b_;
  var adapters_{};             ///< input that says which adapter a token has
  var dispatched_{};           ///< the same of rows of experts
  value_id of_counts_ = -1;    ///< counts of these rows
  std::int64_t salt_ = 0;      ///< of the next dropout
  value_id now_[max_values]{}; ///< value that stands for one of the old graph
  struct narrow_product {
    const char* layer;
    value_id x, y;
  };
  static constexpr int most_narrow = 64;
  narrow_product narrow_[most_narrow]{}; ///< scale (A x) of the layers so far
  int narrow_count_ = 0;
};

} // namespace detail

/// The parts of a model to an adapter: a block with its factors; one that has none, but is stored
/// as the others; or the stem or the head.
enum class adapted_as : std::uint8_t { layer, bare_layer, other };

/// Returns a part's forward graph as an adapter leaves it: the parameters of the model are frozen,
/// but for modules that are trained as a whole, and the linear layers of a block have factors,
/// behind dropout unless it is a graph of generation. Those of the stem and of the head have none:
/// the head's product is the loss in training. `held`: setup::held_adapters.
[[gnu::cold]] constexpr graph adapted(const graph& written, const lora& with, adapted_as part,
                                      bool drops, const published_layers& published, int held = 0) {
  if (with.rank == 0 || written.wrong.code != fault::none) return written;
  lora of_part = with;
  if (part != adapted_as::layer) of_part.targets = {};
  if (part == adapted_as::other) of_part.base = base_storage::plain;
  if (!drops) of_part.dropout = 0;
  return detail::adapting(written, of_part, published, held).result();
}

} // namespace mc
