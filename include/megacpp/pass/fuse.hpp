// fuse: makes one node of neighbours that read each other's results. This pass knows no op: the
// headers of ops say which neighbours become which op (op_info::fuses, graph/form.hpp).
// A form is looked for at each node that may be its last op: the forms that this node's op, or an
// op whose result it reads, names. The fused node replaces the nodes where
//   - all ops of the form are there, and read each other and the operands of the fused node as the
//     form says;
//   - no other node reads a result that the fused node does not give;
//   - they run together: in one region and phase. Nodes of later phases move forward to where the
//     graph's output is made, for its cotangent is a constant that is there from the start;
//   - no node between reads or writes a value that would then be made later or read earlier;
//   - the fused op's rule takes the operands, and gives the outputs that the nodes gave.
#pragma once

#include <megacpp/graph/op.hpp>

namespace mc {

namespace detail {

struct fuser {
  graph g;
  bool dead[max_nodes]{};
  std::int16_t uses[max_values]{};

  // The form that is being looked for, and the nodes and operands that were found of it.
  const op_info* fused = nullptr;
  struct found {
    node_id nodes[max_form_ops]{-1, -1, -1, -1};
    value_id in[max_inputs]{unknown, unknown, unknown, unknown, unknown,
                            unknown, unknown, unknown, unknown, unknown};
  };
  static constexpr value_id unknown = -2;

  constexpr explicit fuser(const graph& whole) : g(whole) {
    for (int i = 0; i < g.node_count; ++i)
      for (value_id v : g.at_node(i).in)
        if (v >= 0) ++uses[v];
    for (value_id v : g.outputs)
      if (v >= 0) ++uses[v];
    for (value_id v : {g.d_stream, g.side_loss})
      if (v >= 0) ++uses[v];
    for (int r = 0; r < g.region_count; ++r) ++uses[g.regions[r].trips];
  }

  /// Returns whether node i may be op j of the form beside the nodes found, and adds it to them.
  /// With `swapped`, its first two operands, whose order does not matter, are exchanged.
  constexpr bool takes(found& f, int j, int i, bool swapped) const {
    const fused_form& form = fused->form;
    const form_op& p = form.ops[j];
    const node& n = g.at_node(i);
    if (dead[i] || n.op != p.op) return false;
    f.nodes[j] = static_cast<node_id>(i);
    for (int k = 0; k < max_inputs; ++k) {
      const form_operand want = p.in[swapped && k < 2 ? 1 - k : k];
      const value_id v = n.in[k];
      if (want.absent()) {
        if (v >= 0) return false;
      } else if (want.outer()) {
        value_id& known = f.in[want.at];
        if (known != unknown && known != v) return false;
        known = v;
      } else {
        const node_id made = v < 0 ? node_id{-1} : g.at(v).producer;
        node_id& known = f.nodes[want.index()];
        if (made < 0 || (known >= 0 && known != made) || g.at_node(made).out[want.output()] != v)
          return false;
        known = made;
      }
    }
    return true;
  }
  /// Tries node i as op j of the form with its operands as they are, and then exchanged.
  constexpr bool takes(found& f, int j, int i) const {
    found swapped = f;
    if (takes(f, j, i, false)) return true;
    if (!fused->form.ops[j].op->commutes || !takes(swapped, j, i, true)) return false;
    f = swapped;
    return true;
  }
  /// Finds the ops before op `last` of the form: by the results that later ones read, or, for an op
  /// whose results none of them reads, by its own operands.
  constexpr bool finds(found& f, int last) const {
    for (int j = last - 1; j >= 0; --j) {
      if (f.nodes[j] >= 0) {
        if (!takes(f, j, f.nodes[j])) return false;
        continue;
      }
      bool there = false;
      for (int i = 0; i < g.node_count && !there; ++i) {
        if (g.at_node(i).op != fused->form.ops[j].op) continue;
        found with = f;
        there = takes(with, j, i);
        if (there) f = with;
      }
      if (!there) return false;
    }
    return true;
  }

  /// Returns how often the nodes of the form read v.
  constexpr int reads_of_form(const found& f, value_id v) const {
    int n = 0;
    for (int j : f.nodes)
      if (j >= 0)
        for (value_id x : g.at_node(j).in) n += x == v;
    return n;
  }
  constexpr bool is_found(const found& f, int i) const {
    bool is = false;
    for (int j : f.nodes) is = is || j == i;
    return is;
  }
  static constexpr bool lists(const auto& ids, value_id v) {
    bool there = false;
    for (value_id x : ids) there = there || (v >= 0 && x == v);
    return there;
  }
  /// Returns whether node i may run at the place of node `at`, within the fused node n.
  constexpr bool moves(const found& f, int i, int at, const node& n) const {
    const node &moved = g.at_node(i), &there = g.at_node(at);
    if (moved.region != there.region) return false;
    const bool forward = i > at && moved.when > there.when;
    if (moved.when != there.when && !(forward && lists(n.out, g.outputs[0]))) return false;
    if (i > at) // the operands of n must be made before node `at`
      for (value_id v : n.in)
        if (lists(moved.in, v) && g.at(v).producer >= at) return false;
    for (int k = (i < at ? i : at) + 1; k < (i < at ? at : i); ++k) {
      const node& other = g.at_node(k);
      if (dead[k] || is_found(f, k)) continue;
      for (int x = 0; x < max_inputs; ++x) {
        const value_id v = other.in[x];
        if (i < at && lists(moved.out, v)) return false;
        const bool written = (other.op->writes_operands >> x & 1u) != 0;
        if (written && (lists(moved.in, v) || lists(moved.out, v))) return false;
        if (moved.op->writes_operands != 0 && lists(moved.in, v)) return false;
      }
    }
    return true;
  }
  /// Sets the outputs of the fused node to those of the nodes that it replaces. Returns whether the
  /// rule of the fused op infers the same values. Scratch stays `unknown` until names_scratch().
  constexpr bool gives(const found& f, node& n) const {
    inference c{g, n};
    infer(c);
    if (c.wrong != fault::none) return false;
    for (int k = 0; k < c.outs; ++k) {
      const value& said = c.out[k];
      if (said.is == role::scratch) {
        n.out[k] = unknown;
        continue;
      }
      const form_operand p = fused->form.outputs[k];
      if (p.absent()) return false;
      n.out[k] = g.at_node(f.nodes[p.index()]).out[p.output()];
      if (n.out[k] < 0) return false;
      const value& was = g.at(n.out[k]);
      if (was.type != said.type || was.at != said.at || !was.same_dims(said)) return false;
    }
    return true;
  }
  /// Returns whether no other node reads a value that the fused node does not give, and no gradient
  /// would be lost.
  constexpr bool hides(const found& f, const node& n) const {
    for (int j : f.nodes)
      if (j >= 0)
        for (value_id v : g.at_node(j).out)
          if (v >= 0 && !lists(n.out, v) &&
              (g.at(v).is == role::gradient || uses[v] != reads_of_form(f, v)))
            return false;
    return true;
  }
  constexpr bool names_scratch(node& n) {
    inference c{g, n};
    infer(c);
    for (int k = 0; k < c.outs; ++k) {
      if (n.out[k] != unknown) continue;
      if (g.value_count == max_values) {
        g.wrong.code = fault::S004;
        return false;
      }
      n.out[k] = static_cast<value_id>(g.value_count++);
      g.at(n.out[k]) = c.out[k];
    }
    return true;
  }
  /// Replaces node i by n, which becomes the producer of its outputs.
  constexpr void put(int i, const node& n) {
    g.at_node(i) = n;
    for (value_id v : n.out)
      if (v >= 0) g.at(v).producer = static_cast<node_id>(i);
  }

  /// Replaces the nodes found by a fused node, if all conditions hold.
  constexpr bool replace(const found& f, int last) {
    const fused_form& form = fused->form;
    const int at = f.nodes[form.place < 0 ? last : form.place];
    const node &there = g.at_node(at), &main = g.at_node(f.nodes[form.main]);
    node n;
    n.op = fused, n.line = main.line;
    n.when = there.when, n.derived = there.derived, n.region = there.region;
    for (int k = 0; k < max_inputs; ++k) n.in[k] = f.in[k] == unknown ? value_id{-1} : f.in[k];
    if (!form.holds_for(n)) return false;
    attributes of[max_form_ops]{};
    for (int j = 0; j <= last; ++j) of[j] = g.at_node(f.nodes[j]).attr;
    n.attr = form.attributes_of_ops(of);
    for (int j = 0; j <= last; ++j)
      if (form.attributes_of_op(n.attr, j) != of[j]) return false;
    if (!gives(f, n) || !hides(f, n)) return false;
    for (int j = 0; j <= last; ++j)
      if (f.nodes[j] != at && !moves(f, f.nodes[j], at, n)) return false;
    if (!names_scratch(n)) return false;
    for (int j : f.nodes)
      if (j >= 0) dead[j] = j != at;
    put(at, n);
    return true;
  }
  /// Looks for the forms that extend `op` and whose last op is node i.
  constexpr bool fuse(const op_info& op, int i) {
    for (const op_info* form : op.fuses) {
      if (form == nullptr) return false;
      fused = form;
      const int last = form->form.count() - 1;
      if (last < 1 || form->form.ops[last].op != g.at_node(i).op) continue;
      for (const bool swapped : {false, true}) {
        if (swapped && !g.at_node(i).op->commutes) continue;
        found f;
        if (takes(f, last, i, swapped) && finds(f, last) && replace(f, last)) return true;
      }
    }
    return false;
  }
  constexpr bool fuse(int i) {
    if (fuse(*g.at_node(i).op, i)) return true;
    const node n = g.at_node(i);
    for (value_id v : n.in) {
      const int made = v < 0 ? -1 : g.at(v).producer;
      if (made >= 0 && fuse(*g.at_node(made).op, i)) return true;
    }
    return false;
  }

  constexpr graph compact() {
    int kept = 0;
    for (int i = 0; i < g.node_count; ++i) {
      if (dead[i]) {
        for (value_id v : g.at_node(i).out)
          if (v >= 0 && g.at(v).producer == i) g.at(v).producer = -1;
        continue;
      }
      if (kept != i) put(kept, g.at_node(i));
      ++kept;
    }
    for (int i = kept; i < g.node_count; ++i) g.at_node(i) = node{};
    g.node_count = kept;
    return g;
  }
};

} // namespace detail

constexpr graph fused(const graph& whole) {
  if (whole.wrong.code != fault::none) return whole;
  detail::fuser f(whole);
  for (int i = 0; i < f.g.node_count; ++i)
    if (!f.dead[i]) f.fuse(i);
  return f.compact();
}

} // namespace mc
