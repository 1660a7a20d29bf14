// The faults of an adapter in the graphs that it has made (pass/adapt.hpp).
#pragma once

#include <megacpp/pass/adapt.hpp>

#include <span>
#include <string_view>

namespace mc {

namespace detail {
/// Returns whether a name means adapted linear layers, and none of experts.
constexpr bool adapts(std::span<const graph* const> parts, std::string_view name) {
  if (name == "all-linear") return false;
  bool found = false;
  for (const graph* g : parts)
    for (int i = 0; i < g->parameter_count; ++i)
      if (const value& v = g->at(g->parameters[i].v);
          std::string_view(v.name) == first_factor_name && names_layer(name, v.scope, false)) {
        if (v.find(dim::expert) >= 0) return false;
        found = true;
      }
  return found;
}
/// Returns whether two names mean one adapted layer, which would have two numbers.
constexpr bool meet(std::span<const graph* const> parts, std::string_view a, std::string_view b) {
  for (const graph* g : parts)
    for (int i = 0; i < g->parameter_count; ++i)
      if (const value& v = g->at(g->parameters[i].v);
          std::string_view(v.name) == first_factor_name && names_layer(a, v.scope, false) &&
          names_layer(b, v.scope, false))
        return true;
  return false;
}
/// Returns whether a name means weights of the model, by their names in files.
constexpr bool means(std::span<const graph* const> parts, std::string_view name,
                     const published_layers& published) {
  for (const graph* g : parts)
    for (int i = 0; i < g->parameter_count; ++i) {
      const value& v = g->at(g->parameters[i].v);
      const char* const other = published.of(v.scope);
      if (!g->parameters[i].added && std::string_view(v.name) == "weight" &&
          names_layer(name, other == nullptr ? v.scope : other, v.find(dim::expert) >= 0))
        return true;
    }
  return false;
}
/// Returns whether a name means modules of the model that can be trained as a whole.
constexpr bool saves(std::span<const graph* const> parts, std::string_view name,
                     const published_layers& published) {
  bool found = false;
  for (const graph* g : parts)
    for (int i = 0; i < g->parameter_count; ++i) {
      const value& v = g->at(g->parameters[i].v);
      const char* const other = published.of(v.scope);
      if (g->parameters[i].added || name == "all-linear" ||
          !names_layer(name, other == nullptr ? v.scope : other, false))
        continue;
      // PEFT would part a table from the head that shares it, and has no experts as modules.
      if (g->parameters[i].tied || v.find(dim::expert) >= 0) return false;
      found = true;
    }
  return found;
}
} // namespace detail

/// Returns MEGA-C010 for an adapter whose numbers are out of range, and for a target that means no
/// linear layer of the parts of a model with so many layers. A base in NF4 is refused for a family
/// whose files have several of its matrices as one, if these would share a nested block of it.
constexpr fault_record fault_of_adapter(std::span<const graph* const> parts, const lora& with,
                                        const published_layers& published, int layers) {
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
  if (!(with.dropout >= 0 && with.dropout < 1)) return refuse("dropout");
  if (const int last = with.layers.last(); last >= layers) {
    wrong.code = fault::C010;
    wrong.what << "adapter(layer " << last << ")";
    return wrong;
  }
  // A matrix of files that several parameters share is quantised as one, and each of these has
  // whole nested blocks of it.
  const auto shares_a_nested_block = [&](const value& v) {
    int layers = 0;
    constexpr std::int64_t nested = nf4_block * nf4_nested_block;
    for (const published_layer& p : published.all)
      layers += published.of(v.scope) != nullptr && p.layer != nullptr &&
                std::string_view(p.published) == published.of(v.scope);
    return layers > 1 && v.find(dim::expert) < 0 && detail::matrix_size(v) % nested != 0;
  };
  for (const graph* g : parts)
    for (int i = 0; i < g->parameter_count && g->wrong.code == fault::none; ++i)
      if (g->parameters[i].encoding == &nf4_encoding &&
          shares_a_nested_block(g->at(g->parameters[i].v)))
        return refuse(
            "base nf4, whose files have several of these matrices as one, in parts of no whole "
            "nested blocks of 16384");
  for (const lora_pattern* const p : {&with.ranks, &with.alphas})
    for (int k = 0; k < p->count; ++k) {
      const double x = p->all[k].value;
      const bool whole = p == &with.alphas || x == static_cast<double>(static_cast<int>(x));
      for (int j = 0; j < k; ++j)
        if (detail::meet(parts, p->all[k].layer, p->all[j].layer)) return refuse(p->all[k].layer);
      if (!(x > 0 && x <= (p == &with.ranks ? 4096 : 1e9) && whole) ||
          !detail::adapts(parts, p->all[k].layer))
        return refuse(p->all[k].layer);
    }
  for (int k = 0; k < with.excluded.count; ++k)
    if (!detail::means(parts, with.excluded.names[k], published))
      return refuse(with.excluded.names[k]);
  for (int k = 0; k < with.saved.count; ++k)
    if (!detail::saves(parts, with.saved.names[k], published)) return refuse(with.saved.names[k]);
  for (int k = 0; k < with.targets.count; ++k) {
    bool found = false;
    for (const graph* g : parts) {
      if (g->wrong.code != fault::none) return wrong; // the graph's fault is told first
      for (int i = 0; i < g->parameter_count; ++i) {
        const value& v = g->at(g->parameters[i].v);
        if (with.dropout > 0 && g->parameters[i].added && v.find(dim::expert) >= 0)
          return refuse("dropout, which PEFT has not for experts");
        found = found || (std::string_view(v.name) == first_factor_name &&
                          names_layer(with.targets.names[k], v.scope, v.find(dim::expert) >= 0));
      }
    }
    if (!found) return refuse(with.targets.names[k]);
  }
  return wrong;
}

} // namespace mc
