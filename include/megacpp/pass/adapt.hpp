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
// The way from the stored W to the weight that the product reads, such as kv heads that ranks
// share, is the way of B, too.
#pragma once

#include <megacpp/num/elementary.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/op/linear.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/select.hpp>
#include <megacpp/recipe/lora.hpp>

#include <span>
#include <string_view>

namespace mc {

inline constexpr const char *first_factor_name = "lora_A.weight",
                            *second_factor_name = "lora_B.weight";

/// Returns whether a target means the linear layer of this scope.
constexpr bool names_layer(std::string_view target, std::string_view scope) {
  if (target == "all-linear") return true;
  return scope.ends_with(target) &&
         (scope.size() == target.size() || scope[scope.size() - target.size() - 1] == '.');
}

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
  constexpr adapting(const graph& from, const lora& with) : g_(from), with_(with), b_(from.ranks) {
    for (value_id& v : now_) v = -1;
    b_.g.sums = g_.sums, b_.g.wrong = g_.wrong;
  }

  constexpr graph result() {
    for (int i = 0; i < g_.value_count; ++i)
      if (g_.at(static_cast<value_id>(i)).producer < 0)
        now_[i] = b_.add(g_.at(static_cast<value_id>(i)), 0);
    for (int i = 0; i < g_.parameter_count; ++i) {
      parameter_info p = g_.parameters[i];
      p.v = of(p.v), p.frozen = true;
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
    if (old.op != &op::linear) return;
    const value_id w = moved_parameter(g_, old.in[op::linear_in::w]);
    if (w < 0 || !is_target(g_.at(w))) return;
    const value_id y = old.out[op::linear_out::y];
    now_[y] = (var{&b_, now_[y]} + located(added(old, g_.at(w)), old.line)).id;
  }
  constexpr bool is_target(const value& w) const {
    if (std::string_view(w.name) != "weight") return false;
    for (int k = 0; k < with_.targets.count; ++k)
      if (names_layer(with_.targets.names[k], w.scope)) return true;
    return false;
  }

  /// Returns B (scale (A x)) for a product x W^T of the old graph.
  constexpr var added(const node& n, const value& w) {
    const var x{&b_, of(n.in[op::linear_in::x])};
    const int summed = n.attr.as<op::product_attributes>().summed, kept = w.rank - summed;
    const extent r{dim::adapter, with_.rank};
    value a = w, b = w;
    a.rank = static_cast<std::int8_t>(1 + summed), b.rank = static_cast<std::int8_t>(kept + 1);
    a.dims[0] = r, b.dims[kept] = r;
    std::int64_t in = 1;
    for (int i = 0; i < summed; ++i) in *= (a.dims[i + 1] = w.dims[kept + i]).n;
    for (int i = 0; i < axes; ++i) {
      a.at.at[i] = is_shard_of(x.type().at.at[i], a) ? x.type().at.at[i] : invariant;
      b.at.at[i] = is_shard_of(w.at.at[i], b) ? w.at.at[i] : invariant;
    }
    // Kaiming's uniform numbers with a slope of sqrt(5), as PEFT draws them: between -1 / sqrt(in)
    // and 1 / sqrt(in).
    const double std = 1 / mc::square_root(3 * static_cast<double>(in));
    var first = parameter(a, first_factor_name, {.how = init::uniform, .std = std}, n.line);
    for (int i = 0; i < axes; ++i)
      if (const place p = x.type().at.at[i]; p.s != state::invariant && !is_shard_of(p, a))
        first = to(first, static_cast<axis>(i), replicate, n.line);
    const var narrow = mc::scale(linear(x, first, n.line), with_.scale(), n.line);
    var second = parameter(b, second_factor_name, {.how = init::zeros}, n.line);
    second = {&b_, as_weight(n.in[op::linear_in::w], second.id)};
    for (int i = 0; i < axes; ++i)
      if (narrow.type().at.at[i].s != state::invariant && second.type().at.at[i] == invariant)
        second = to(second, static_cast<axis>(i), replicate, n.line);
    return linear(narrow, second, n.line);
  }
  constexpr static bool is_shard_of(place p, const value& v) {
    return p.s == state::shard && v.find(p.d) >= 0;
  }
  constexpr var parameter(const value& v, const char* name, parameter_info info, source_line line) {
    info.decay = info.added = true;
    switch (v.rank) {
    case 2: return b_.parameter(v.scope, name, v.type, {v.dims[0], v.dims[1]}, v.at, info, line);
    case 3:
      return b_.parameter(v.scope, name, v.type, {v.dims[0], v.dims[1], v.dims[2]}, v.at, info,
                          line);
    default:
      return b_.parameter(v.scope, name, v.type, {v.dims[0], v.dims[1], v.dims[2], v.dims[3]}, v.at,
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
  builder b_;
  value_id now_[max_values]{}; ///< value that stands for one of the old graph
};

} // namespace detail

/// Returns a part's forward graph as an adapter leaves it: every parameter of the model is frozen,
/// and the linear layers of a block have factors. Those of the stem and of the head have none: the
/// head's product is the loss in training.
[[gnu::cold]] constexpr graph adapted(const graph& written, const lora& with, bool is_block) {
  if (with.rank == 0 || written.wrong.code != fault::none) return written;
  lora of_part = with;
  if (!is_block) of_part.targets = {};
  return detail::adapting(written, of_part).result();
}

/// Returns MEGA-C010 for an adapter whose numbers are out of range, for a target that means no
/// linear layer of the parts, and for all layers of a model whose experts would have none.
constexpr fault_record fault_of_adapter(std::span<const graph* const> parts, const lora& with) {
  fault_record wrong;
  if (with.rank == 0) return wrong;
  const auto refuse = [&](const char* what) {
    wrong.code = fault::C010;
    wrong.what << "adapter(" << what << ")";
    return wrong;
  };
  if (with.rank < 1 || with.rank > 4096) return refuse("rank");
  if (!(with.alpha > 0 && with.alpha < 1e9)) return refuse("alpha");
  if (with.targets.count == 0) return refuse("targets");
  for (int k = 0; k < with.targets.count; ++k) {
    bool found = false;
    for (const graph* g : parts) {
      if (g->wrong.code != fault::none) return wrong; // the graph's fault is told first
      for (int i = 0; i < g->node_count; ++i)
        if (g->nodes[i].op == &op::grouped_linear &&
            std::string_view(with.targets.names[k]) == "all-linear")
          return refuse("all-linear, whose experts have no adapter: name layers");
      for (int i = 0; i < g->parameter_count; ++i) {
        const value& v = g->at(g->parameters[i].v);
        found = found || (std::string_view(v.name) == first_factor_name &&
                          names_layer(with.targets.names[k], v.scope));
      }
    }
    if (!found) return refuse(with.targets.names[k]);
  }
  return wrong;
}

} // namespace mc
