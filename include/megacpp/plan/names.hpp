// The names of a model's parameters, over all its parts. Files tell parameters apart by them, so
// two parameters of one name would train apart and could not be saved. Stem and head keep
// "scope.name"; layer 7 of the blocks has "layers.7.scope.name".
#pragma once

#include <megacpp/graph/graph.hpp>

#include <span>

namespace mc {

namespace detail {

/// Returns whether a name can stand in a file without an escape and on a line without a gap.
constexpr bool is_plain(const char* s) {
  if (*s == 0) return false;
  for (; *s != 0; ++s)
    if (*s <= ' ' || *s > '~' || *s == '"' || *s == '\\') return false;
  return true;
}

/// Returns whether `whole` is "layers.<number>." and then `rest`.
constexpr bool is_name_of_layer(name_reader whole, name_reader rest) {
  for (const char* s = "layers."; *s != 0; ++s)
    if (whole.next() != *s) return false;
  char c = whole.next();
  if (c < '0' || c > '9') return false;
  while (c >= '0' && c <= '9') c = whole.next();
  return c == '.' && same_name(whole, rest);
}

constexpr const char* name_of_part(std::size_t p, std::size_t parts) {
  return p == 0 ? "the stem" : p + 1 == parts ? "the head" : "a block";
}

} // namespace detail

/// Returns MEGA-S006 for a name that cannot stand in a file, MEGA-S005 for a name of two
/// parameters. `parts` are the forward graphs of stem, block kinds and head.
constexpr fault_record fault_of_names(std::span<const graph* const> parts) {
  fault_record wrong;
  for (std::size_t p = 0; p < parts.size(); ++p)
    for (int i = 0; i < parts[p]->parameter_count; ++i) {
      const parameter_info& info = parts[p]->parameters[i];
      const value& v = parts[p]->at(info.v);
      const auto refuse = [&](fault f) {
        wrong.code = f, wrong.line = info.line;
        wrong.what << "parameter(" << v.scope << "." << v.name << ") of "
                   << detail::name_of_part(p, parts.size());
      };
      if (!detail::is_plain(v.scope) || !detail::is_plain(v.name)) {
        refuse(fault::S006);
        return wrong;
      }
      const bool in_block = p > 0 && p + 1 < parts.size();
      if (info.tied || in_block) continue;
      for (std::size_t q = 0; q < parts.size(); ++q) {
        const bool block = q > 0 && q + 1 < parts.size();
        if (q == p || (!block && q > p)) continue; // the builder checks names within one graph
        for (int k = 0; k < parts[q]->parameter_count; ++k) {
          const parameter_info& other = parts[q]->parameters[k];
          const value& w = parts[q]->at(other.v);
          if (other.tied ||
              !(block ? detail::is_name_of_layer(name_reader(v), name_reader(w)) : same_name(v, w)))
            continue;
          refuse(fault::S005);
          wrong.what << " and parameter(" << w.scope << "." << w.name << ") of "
                     << detail::name_of_part(q, parts.size());
          return wrong;
        }
      }
    }
  return wrong;
}

} // namespace mc
