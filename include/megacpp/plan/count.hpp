// The number of parameters of a model, which is counted in its graphs.
#pragma once

#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/registry.hpp>

namespace mc {

/// Returns the number of parameters of a model, with tied ones once and without vocabulary padding.
/// It may be used in a static_assert.
template <class Model> constexpr std::int64_t parameter_count(const Model& m) {
  setup s;
  s.batch = {1, 1};
  const auto used = used_kinds(m);
  std::int64_t total = 0;
  for (int i = 0; i < used.count + 2; ++i) {
    const part_kind what = i == 0           ? part_kind::stem
                           : i > used.count ? part_kind::loss
                                            : part_kind::block;
    const graph g = forward_graph(m, s, what, used.kind(i - 1));
    int layers = what == part_kind::block ? 0 : 1;
    if (what == part_kind::block)
      for (int l = 0; l < layers_of(m); ++l) layers += used.index(m.kind_of(l)) == i - 1;
    const graph* const part = &g;
    total += count_parameters({&part, 1}, {&layers, 1});
  }
  return total;
}

} // namespace mc
