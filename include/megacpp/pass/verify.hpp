// verify: run after every pass. Every node's outputs are still what its op's rule says of its
// inputs; every input is produced before it is read; every trainable parameter's gradient reaches
// the optimizer with the parameter's own placement, so that no reduction is missing and none is
// done twice; no pending sum leaves the graph unless it is the loss.
#pragma once

#include <megacpp/pass/differentiate.hpp>

namespace mc {

/// Re-infers every node.
[[gnu::cold]] constexpr void verify_nodes(graph& g) {
  std::array<bool, max_values> known{};
  for (int i = 0; i < g.value_count; ++i) {
    const role is = g.at(static_cast<value_id>(i)).is;
    known[static_cast<unsigned>(i)] = is == role::input || is == role::parameter;
  }
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    for (value_id v : n.in)
      if (v >= 0 && !known[static_cast<unsigned>(v)]) record(g, fault::P014, n.line, n.op->name, v);
    inference c{g, n};
    infer(c);
    if (c.wrong != fault::none)
      record(g, c.wrong, n.line, n.op->name,
             c.first < 0 ? value_id{-1} : n.in[static_cast<unsigned>(c.first)],
             c.second < 0 ? value_id{-1} : n.in[static_cast<unsigned>(c.second)], c.over);
    for (int k = 0; k < c.outs; ++k) {
      const value_id v = n.out[static_cast<unsigned>(k)];
      const value& inferred = c.out[static_cast<unsigned>(k)];
      if (v < 0 || !g.at(v).same_dims(inferred) || g.at(v).at != inferred.at ||
          g.at(v).type != inferred.type)
        record(g, fault::P014, n.line, n.op->name, v);
    }
    for (value_id v : n.out)
      if (v >= 0) known[static_cast<unsigned>(v)] = true;
  }
}

/// A pass's result, examined.
constexpr graph verified(graph g) {
  if (g.wrong.code == fault::none) verify_nodes(g);
  return g;
}

/// An output lies as `wanted` does, where what comes after the part expects it.
[[gnu::cold]] constexpr void verify_output(builder& b, value_id out, const value& wanted,
                                           const char* part) {
  const value& v = b.g.at(out);
  const source_line line = v.producer >= 0 ? b.g.at_node(v.producer).line : source_line{};
  if (!v.same_dims(wanted)) b.fail(fault::S003, line, part, out);
  for (int a = 0; a < axes; ++a) {
    const place have = v.at.at[static_cast<unsigned>(a)],
                want = wanted.at.at[static_cast<unsigned>(a)];
    if (have != want)
      b.fail(have.s == state::partial ? fault::P005 : fault::P002, line, part, out, -1, a);
  }
}

/// Each trainable parameter: a finished gradient whose placement is the parameter's. A tied one is
/// finished where it is declared first; here its contribution must be the dual of the value used.
constexpr void verify_gradients(builder& b, const gradients& d) {
  const graph& g = b.g;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    if (p.frozen) continue;
    const value& v = g.at(p.v);
    const value_id id = d.of[static_cast<unsigned>(p.v)];
    if (id < 0 || !g.at(id).same_dims(v)) {
      b.fail(fault::P010, p.line, "gradient", p.v);
      continue;
    }
    const value& grad = g.at(id);
    const placement want = p.tied ? cotangent(g.at(grad.grad_of).at) : v.at;
    for (int a = 0; a < axes; ++a)
      if (grad.at.at[static_cast<unsigned>(a)] != want.at[static_cast<unsigned>(a)])
        b.fail(fault::P010, p.line, "gradient", p.v, -1, a);
  }
}

} // namespace mc
