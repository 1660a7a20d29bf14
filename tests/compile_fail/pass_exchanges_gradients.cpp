// expect-error: MEGA-P019
// expect-text: gradient(ln_1.weight)
//
// A pass renumbers values and gives two parameters of one shape each other's gradient. Every node is
// right by its rule; what the graph owes is not what it owed.
#include "one_layer.hpp"

using namespace mc;

constexpr graph derived() {
  setup s;
  s.batch = small_run::batch;
  return derived_graph(forward_graph(small(), s, part_kind::block, 0));
}

constexpr graph renumbered(graph g) {
#ifdef MEGACPP_EXPECT_ERROR
  parameter_info* norms[2]{};
  int found = 0;
  for (parameter_info& p : g.parameters)
    if (p.v >= 0 && found < 2 && g.at(p.v).scope[0] == 'l' && g.at(p.v).name[0] == 'w')
      norms[found++] = &p;
  const value_id was = norms[0]->gradient;
  norms[0]->gradient = norms[1]->gradient, norms[1]->gradient = was;
#endif
  return g;
}

struct own_passes {
  static constexpr graph before = derived();
  static constexpr fault_record wrong = verified(renumbered(before), meaning_of(before)).wrong;
};
static_assert(reported<own_passes, own_passes>);
