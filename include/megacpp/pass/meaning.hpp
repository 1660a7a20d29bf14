// meaning: the results that a graph must give, as terms (graph/terms.hpp): its outputs, the
// cotangent of its stream, the gradient of every parameter with all contributions, and what it
// writes into operands. The terms include what each input and parameter is, the ranks that share
// them, and the order of sums over tokens. A pass may change anything that leaves the meaning as it
// is.
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/graph/terms.hpp>
#include <megacpp/pass/pending.hpp>

namespace mc {

/// The values that a graph must give beside the gradients of its parameters.
enum class owed : std::uint8_t { output, count, side_loss, d_stream };
inline constexpr int owed_values = 4;

constexpr const char* name_of(owed o) {
  constexpr const char* names[] = {"output", "count", "side loss", "cotangent"};
  return names[static_cast<int>(o)];
}
constexpr value_id owed_value(const graph& g, owed o) {
  switch (o) {
  case owed::output: return g.outputs[0];
  case owed::count: return g.outputs[1];
  case owed::side_loss: return g.side_loss;
  case owed::d_stream: return g.d_stream;
  }
  return -1;
}

struct meaning {
  term values[owed_values]{};
  term trips[max_regions]{};
  term gradients[max_parameters]{};
  /// The sum of the terms of all contributions to gradients, each mixed with the value whose
  /// gradient it is.
  term collected = 0;
  term changed = 0;             ///< term of the operands that ops write
  term names[max_parameters]{}; ///< terms of parameters, with types, dims and placements
  parameter_info parameters[max_parameters]{};
  int parameter_count = 0, region_count = 0;
  mesh ranks;
  numerics sums = numerics::fast;
  met_ops ops; ///< ops that were met while the terms were made
};

/// Returns the meaning of a graph. `met` are the ops of the meaning with which it will be compared.
[[gnu::cold]] constexpr meaning meaning_of(const graph& g, const met_ops& met = {}) {
  meaning m;
  m.ops = met;
  terms t(g, m.ops);
  term sums[max_values]{}; // contributions to the gradient of each value
  m.parameter_count = g.parameter_count, m.region_count = g.region_count;
  m.ranks = g.ranks, m.sums = g.sums;
  for (int i = 0; i < g.parameter_count; ++i) m.parameters[i] = g.parameters[i];
  for (int i = 0; i < g.value_count; ++i) {
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::input)
      t.of[i] = mixed(
          mixed(static_cast<term>(v.from) << 8 | static_cast<term>(v.feed_index), "input"), v);
  }
  for (int i = 0; i < g.parameter_count; ++i) {
    const value_id id = g.parameters[i].v;
    const value& v = g.at(id);
    t.of[id] = m.names[i] =
        mixed(mixed(mixed(static_cast<term>(i) << 8 | term(v.is), v.scope), v.name), v);
    const parameter_info& p = g.parameters[i];
    for (int k = 0; p.encoding != nullptr && k < p.encoding->count; ++k)
      t.of[p.arrays[k]] = mixed(mixed(m.names[i], p.encoding->arrays[k].name), g.at(p.arrays[k]));
  }
  const auto run = [&](phase first, phase last) {
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (n.when < first || n.when > last) continue;
      t.read(n);
      if (!n.op->accumulates) continue;
      for (value_id v : n.out)
        if (v >= 0 && g.at(v).is == role::gradient && g.at(v).grad_of >= 0)
          sums[g.at(v).grad_of] += mixed(t.of[v], "contribution");
    }
  };
  run(phase::prologue, phase::prologue);
  run(phase::forward, phase::forward);
  run(backward_pass.first, backward_pass.last);
  for (int i = 0; i < g.value_count; ++i) { // a gradient is read when it is complete
    const value& v = g.at(static_cast<value_id>(i));
    if (v.is == role::gradient && v.grad_of >= 0) t.of[i] = mixed(sums[v.grad_of], t.of[v.grad_of]);
    if (sums[i] != 0) m.collected += mixed(sums[i], t.of[i]);
  }
  term early[max_values]{};
  for (int i = 0; i < g.value_count; ++i) early[i] = sums[i];
  run(phase::epilogue, phase::epilogue);
  for (int i = 0; i < g.value_count; ++i) // tied uses in several states add to gradients at the end
    if (sums[i] != early[i]) m.collected += mixed(sums[i] - early[i], t.of[i] + 1);
  for (int k = 0; k < owed_values; ++k) m.values[k] = t.at(owed_value(g, static_cast<owed>(k)));
  for (int r = 0; r < g.region_count; ++r) m.trips[r] = t.at(g.regions[r].trips);
  for (int i = 0; i < g.parameter_count; ++i) { // gradients before their last reductions
    const pending_gradient of = pending_gradient_of(g, g.parameters[i]);
    m.gradients[i] = mixed(t.at(of.v), of.over.bits);
  }
  m.changed = t.written;
  return m;
}

/// Returns MEGA-P019 for the first result in which g differs from `before`. With `derived`, the
/// backward pass is new, and only results of the forward pass are compared.
[[gnu::cold]] constexpr fault_record verify_meaning(const graph& g, const meaning& before,
                                                    bool derived = false) {
  const meaning after = meaning_of(g, before.ops);
  fault_record wrong;
  const auto refuse = [&](const char* what, value_id v = -1, source_line line = {}) {
    record(wrong, g, fault::P019, line, what, v);
  };
  if (after.ranks != before.ranks) return refuse("ranks"), wrong;
  if (after.sums != before.sums) return refuse("sums over tokens"), wrong;
  if (after.parameter_count != before.parameter_count) return refuse("parameters"), wrong;
  for (int i = 0; i < after.parameter_count; ++i) {
    const parameter_info &p = after.parameters[i], &was = before.parameters[i];
    if (after.names[i] != before.names[i] || p.tied != was.tied || !p.declares_alike(was))
      refuse("parameter", p.v, p.line);
    if (!derived && after.gradients[i] != before.gradients[i]) refuse("gradient", p.v, p.line);
  }
  for (int k = 0; k < owed_values - (derived ? 1 : 0); ++k)
    if (after.values[k] != before.values[k])
      refuse(name_of(static_cast<owed>(k)), owed_value(g, static_cast<owed>(k)));
  if (after.region_count != before.region_count) return refuse("regions"), wrong;
  for (int r = 0; r < after.region_count; ++r)
    if (after.trips[r] != before.trips[r]) refuse("trips", g.regions[r].trips);
  if (!derived && after.collected != before.collected) refuse("gradients");
  if (after.changed != before.changed) refuse("operands that are written");
  return wrong;
}

} // namespace mc
