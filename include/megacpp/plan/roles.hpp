// The element types that a run's policy gives to the values of its graphs and stores, by their
// roles.
#pragma once

#include <megacpp/pass/verify.hpp>
#include <megacpp/recipe/precision.hpp>

#include <span>

namespace mc {

/// Returns the element type of a store that the update reads and writes.
constexpr dtype type_of_store(const precision_policy& p, feed f) {
  switch (f) {
  case feed::weight: return p.weight;
  case feed::master: return p.master;
  case feed::first_moment:
  case feed::second_moment: return p.moment;
  case feed::origin: return dtype::i64;
  default: return p.main_gradient;
  }
}

/// Returns MEGA-P020 for the first gradient with another element type than its role has: that of a
/// parameter is added to the main gradients, and that of the stream goes to the part before.
/// `parts` are the differentiated graphs of all parts.
constexpr fault_record fault_of_roles(std::span<const graph* const> parts,
                                      const precision_policy& precision) {
  fault_record wrong;
  for (const graph* g : parts) {
    if (g->wrong.code != fault::none) return wrong; // the graph's fault is told first
    for (int i = 0; i < g->parameter_count; ++i) {
      const parameter_info& p = g->parameters[i];
      if (p.gradient >= 0 && g->at(p.gradient).type != precision.main_gradient)
        record(wrong, *g, fault::P020, p.line, "gradient", p.v, p.gradient);
    }
    if (const value_id d = g->d_stream; d >= 0 && g->at(d).type != precision.gradient)
      record(wrong, *g, fault::P020, line_of(*g, d), "cotangent", d);
  }
  return wrong;
}

} // namespace mc
