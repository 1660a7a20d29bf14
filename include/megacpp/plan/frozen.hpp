// Frozen parts of a run: parameters that training reads and leaves as they are. They have no main
// gradient, master or moments.
#pragma once

#include <megacpp/graph/graph.hpp>

#include <concepts>
#include <span>
#include <string_view>

namespace mc {

/// Which part of a model has a parameter.
enum class parameter_of : std::uint8_t { stem, block, head };

/// What a run freezes: static constexpr mc::frozen frozen{"blocks", "embedding"}. A name is
/// "embedding", all that the stem declares, with tied uses of it; "blocks" or "head", all that
/// these declare; or a parameter's as describe lists it, without the number of its layer, or the
/// beginning of one up to a point.
struct frozen {
  static constexpr int most = 8;
  const char* names[most]{};
  int count = 0;

  constexpr frozen() = default;
  template <class... Names>
  requires(sizeof...(Names) > 0 && (... && std::convertible_to<Names, const char*>)) //
      constexpr explicit(false) frozen(Names... all)
      : names{all...}, count(sizeof...(Names)) {
    static_assert(sizeof...(Names) <= most, "a run freezes at most 8 names: take shorter ones");
  }

  /// Whether a name means a parameter of a part. What is tied is the stem's, unless a model ties to
  /// its head: then a name of the head's parameter means both.
  static constexpr bool means(std::string_view name, const value& v, bool tied, parameter_of part) {
    if (tied || part == parameter_of::stem) {
      if (name == "embedding") return true;
    } else if (name == (part == parameter_of::block ? "blocks" : "head")) {
      return true;
    }
    const std::string_view scope = v.scope, last = v.name;
    if (name.size() <= scope.size())
      return scope.starts_with(name) && (scope.size() == name.size() || scope[name.size()] == '.');
    if (!name.starts_with(scope) || name[scope.size()] != '.') return false;
    const std::string_view rest = name.substr(scope.size() + 1);
    return last.starts_with(rest) && (last.size() == rest.size() || last[rest.size()] == '.');
  }
  constexpr bool has(const value& v, bool tied, parameter_of part) const {
    for (int k = 0; k < count; ++k)
      if (means(names[k], v, tied, part)) return true;
    return false;
  }
};

/// MEGA-C009 for a name that means no parameter, and where all parameters are frozen. `parts` are
/// the forward graphs of stem, block kinds and head.
constexpr fault_record fault_of_frozen(std::span<const graph* const> parts, const frozen& f) {
  fault_record wrong;
  bool all = f.count > 0;
  for (int k = 0; k <= f.count; ++k) {
    bool found = k == f.count;
    for (std::size_t p = 0; p < parts.size(); ++p) {
      const graph& g = *parts[p];
      const parameter_of part = p == 0                 ? parameter_of::stem
                                : p + 1 < parts.size() ? parameter_of::block
                                                       : parameter_of::head;
      if (g.wrong.code != fault::none) return wrong; // is told first
      for (int i = 0; i < g.parameter_count; ++i) {
        const parameter_info& info = g.parameters[i];
        all = all && info.frozen;
        found = found || frozen::means(f.names[k], g.at(info.v), info.tied, part);
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
