// The graph of a step's end: gradients of tied uses join those of their parameters (phase prologue,
// before any is reduced), one gradient norm over all groups of the registry (phase forward), one
// update a group and the number of blocks that it broke (phase epilogue, which runs if the norm is
// finite).
#pragma once

#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/optimizer.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

/// `n` elements of a group as a flat value: sharded axes shard them.
constexpr var range_value(builder& b, const registry::group& group, std::int64_t n, feed from,
                          const char* name, dtype t, int slot) {
  value v;
  v.name = name, v.type = t, v.is = role::input, v.from = from,
  v.slot = static_cast<std::int8_t>(slot), v.rank = 1;
  for (int a = 0; a < axes; ++a) {
    if (group.at.at[static_cast<unsigned>(a)].s != state::shard) continue;
    v.at.at[static_cast<unsigned>(a)] = S(dim::elements);
    if (b.g.ranks.sized(static_cast<axis>(a))) n *= b.g.ranks.of(static_cast<axis>(a));
  }
  v.dims[0] = {dim::elements, n};
  b.normalise(v, 0, "update");
  return {&b, b.add(v, 0)};
}

/// A group's whole range.
constexpr var group_value(builder& b, const registry::group& group, feed from, const char* name,
                          dtype t, int slot) {
  return range_value(b, group, group.count, from, name, t, slot);
}

/// A number that is summed over a group's elements, complete on every rank.
constexpr var over_all_ranks(var s) {
  for (int a = 0; a < axes; ++a)
    if (s.at(static_cast<axis>(a)).s == state::partial) s = to(s, static_cast<axis>(a), I, 0);
  return s;
}

/// `ranks`: the mesh; `weights`: their type. Outputs: the number of blocks whose weights or moments
/// the update left infinite or not a number, and the norm of the mean gradient. A fault of the
/// registry is the graph's.
constexpr graph update_graph(const registry& r, const mesh& ranks, dtype weights) {
  builder b{ranks};
  b.g.wrong = r.wrong;
  if (r.wrong.code != fault::none) return b.g;
  const dtype main = accumulator_of(weights);
  b.when = phase::prologue;
  for_each_tie(r, [&](const registry::entry& e, int k) {
    // Before reductions both are pending sums over the same axes (plan/tied.hpp).
    const auto range = [&](feed f, const char* name) {
      return range_value(b, r.groups[static_cast<unsigned>(e.group)], e.count.n, f, name, main, k)
          .id;
    };
    const value_id declared = range(feed::declared_gradient, "declared_gradient");
    b.emit(op::add_gradient, {declared, range(feed::tied_gradient, "tied_gradient")}, 0);
  });
  b.when = phase::forward;
  value count;
  count.name = "token_count", count.type = dtype::f64, count.is = role::input,
  count.from = feed::token_count;
  node clip;
  clip.op = &op::clip_factor;
  clip.in[0] = b.add(count, 0);
  std::array<var, max_groups> gradients{};
  for (int k = 0; k < r.group_count; ++k) {
    const auto& group = r.groups[static_cast<unsigned>(k)];
    if (group.frozen) continue;
    gradients[static_cast<unsigned>(k)] =
        group_value(b, group, feed::gradient, "gradient", main, k);
    if (group.update == update_rule::balance) continue; // a load, not a gradient
    clip.in[static_cast<unsigned>(k + 1)] =
        over_all_ranks(
            {&b, b.emit(op::sum_of_squares, {gradients[static_cast<unsigned>(k)].id}, 0)})
            .id;
  }
  const value_id factor = b.emit(clip);
  const value_id norm = b.g.at_node(b.g.node_count - 1).out[1];
  var broken{};
  b.when = phase::epilogue;
  for (int k = 0; k < r.group_count; ++k) {
    const auto& group = r.groups[static_cast<unsigned>(k)];
    if (group.frozen) continue;
    const auto range = [&](feed f, const char* name, dtype t) {
      return group_value(b, group, f, name, t, k).id;
    };
    if (group.update == update_rule::balance) {
      b.emit(op::balance_step,
             {gradients[static_cast<unsigned>(k)].id, range(feed::master, "master", main),
              range(feed::weight, "weight", weights)},
             0, {{group.rate}, {}});
      continue;
    }
    const var here = over_all_ranks(
        {&b, b.emit(op::adamw,
                    {gradients[static_cast<unsigned>(k)].id, range(feed::master, "master", main),
                     range(feed::first_moment, "first_moment", main),
                     range(feed::second_moment, "second_moment", main),
                     range(feed::weight, "weight", weights), factor},
                    0, {{}, {group.decay, group.count}})});
    broken = broken.id < 0 ? here : var{&b, b.emit(op::add, {broken.id, here.id}, 0)};
  }
  b.g.outputs = {broken.id, norm};
  return b.g;
}

} // namespace mc
