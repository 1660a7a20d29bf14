// Frozen parameters of a run: training reads them and does not change them. They have no main
// gradients, masters or moments. The backward pass ends at the lowest layer that has others.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/plan/list.hpp>
#include <megacpp/recipe/frozen.hpp>

#include <span>
#include <string_view>

namespace mc {

/// The part of a model that declares a parameter.
enum class declared_in : std::uint8_t { stem, block, head };

/// Returns whether a name means a parameter of a part. A tied use counts as one of the stem.
/// Where a model ties to its head, the parameter's own name means both uses.
constexpr bool names_parameter(std::string_view name, const value& v, bool tied, declared_in part) {
  if (tied || part == declared_in::stem) {
    if (name == "embedding") return true;
  } else if (name == (part == declared_in::block ? "blocks" : "head")) {
    return true;
  }
  const std::string_view scope = v.scope, last = v.name;
  if (name.size() <= scope.size())
    return scope.starts_with(name) && (scope.size() == name.size() || scope[name.size()] == '.');
  if (!name.starts_with(scope) || name[scope.size()] != '.') return false;
  const std::string_view rest = name.substr(scope.size() + 1);
  return last.starts_with(rest) && (last.size() == rest.size() || last[rest.size()] == '.');
}
/// Returns whether a run that freezes `f` freezes a parameter of a part.
constexpr bool freezes(const frozen& f, const value& v, bool tied, declared_in part) {
  for (int k = 0; k < f.count; ++k)
    if (names_parameter(f.names[k], v, tied, part)) return true;
  return false;
}

/// Returns whether gradients change a parameter of a part.
constexpr bool is_trained(const graph& g) {
  for (int i = 0; i < g.parameter_count; ++i)
    if (!g.parameters[i].frozen && g.parameters[i].update == update_rule::adamw) return true;
  return false;
}
/// Returns the lowest layer that has a trained parameter: -1 is the stem, and the number of layers
/// is the head. `part` returns the graph of a part by its number: 0 is the stem, then come the
/// kinds of block, which kind_of(layer) counts.
template <class Kind, class Part>
constexpr int lowest_trained(int layers, int kinds, Kind kind_of, Part part) {
  if (is_trained(part(0))) return -1;
  list<char> trains;
  for (int k = 0; k < kinds; ++k) trains.push(is_trained(part(1 + k)));
  int l = 0;
  while (l < layers && trains[kind_of(l)] == 0) ++l;
  return l;
}

/// Returns MEGA-C009 for a name that means no parameter, and where all parameters are frozen.
/// `parts` are the forward graphs of stem, block kinds and head.
constexpr fault_record fault_of_frozen(std::span<const graph* const> parts, const frozen& f) {
  fault_record wrong;
  bool all = f.count > 0;
  for (int k = 0; k <= f.count; ++k) {
    bool found = k == f.count;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const graph& g = *parts[p];
      const declared_in part = p == 0                 ? declared_in::stem
                               : p + 1 < parts.size() ? declared_in::block
                                                      : declared_in::head;
      if (g.wrong.code != fault::none) return wrong; // the graph's fault is told first
      for (int i = 0; i < g.parameter_count; ++i) {
        const parameter_info& info = g.parameters[i];
        all = all && info.frozen;
        found = found || names_parameter(f.names[k], g.at(info.v), info.tied, part);
      }
    }
    if (found) continue;
    wrong.code = fault::C009;
    wrong.what << "frozen(" << f.names[k] << ")";
    return wrong;
  }
  if (all) wrong.code = fault::C009, wrong.what << "frozen: everything";
  return wrong;
}

} // namespace mc
