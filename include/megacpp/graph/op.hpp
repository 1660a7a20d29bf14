// What an op is: a name, a rule that infers its outputs, an adjoint that writes its backward pass,
// and its cost. An op is one constexpr op_info in a header of its own; nodes point to it; execution
// is the specialisation kernel_of<&the_op>. There is no list of ops anywhere.
#pragma once

#include <megacpp/graph/graph.hpp>

#include <initializer_list>

namespace mc {

struct backward;

/// Work of one node on one rank: floating-point operations, bytes that must be read and written.
struct work {
  std::int64_t flops = 0, read = 0, written = 0;
  constexpr work& operator+=(const work& o) {
    flops += o.flops, read += o.read, written += o.written;
    return *this;
  }
};

/// What a rule sees and says: the operands of one node, and the outputs inferred from them.
struct inference {
  const graph& g;
  const node& n;
  std::array<value, max_outputs> out{};
  int outs = 0;
  fault wrong = fault::none;
  int first = -1, second = -1; ///< operands to blame
  int looking = -1;            ///< the axis whose places are being joined; -1: none
  int over = -1;               ///< the axis to blame

  constexpr bool has(int k) const { return n.in[static_cast<unsigned>(k)] >= 0; }
  constexpr const value& in(int k) const { return g.at(n.in[static_cast<unsigned>(k)]); }
  constexpr void fail(fault f, int a = -1, int b = -1) {
    if (wrong != fault::none) return;
    wrong = f, first = a, second = b, over = looking;
  }
  /// The dims of operand k are the first dims of operand x: same names, extents and order.
  constexpr void leads(int k, int x) {
    if (!has(k)) return;
    looking = -1;
    for (int i = 0; i < in(k).rank; ++i) {
      const extent &a = in(x).dims[static_cast<unsigned>(i)],
                   &b = in(k).dims[static_cast<unsigned>(i)];
      if (i >= in(x).rank || a.d != b.d) fail(fault::S003, x, k);
      else if (a.n != b.n) fail(fault::S002, x, k);
      else if (a.o != b.o) fail(fault::P012, x, k);
    }
  }
  /// Declares the next output, starting from a copy of `like` without its name, role and placement.
  constexpr value& declare(const value& like) {
    value& v = out[static_cast<unsigned>(outs++)];
    v.type = like.type, v.rank = like.rank, v.dims = like.dims;
    return v;
  }
  constexpr value& declare(dtype t, std::initializer_list<extent> dims) {
    value& v = out[static_cast<unsigned>(outs++)];
    v.type = t;
    for (const extent& e : dims) v.dims[static_cast<unsigned>(v.rank++)] = e;
    return v;
  }
  /// Memory for this node alone: `bytes` on each rank.
  constexpr value& declare_scratch(std::int64_t bytes) {
    value& v = declare(dtype::u8, {extent(dim::elements, bytes)});
    v.is = role::scratch;
    return v;
  }
};

using rule_function = void (*)(inference&);
using adjoint_function = void (*)(backward&, const node&);
using cost_function = work (*)(const graph&, const node&);

struct op_info {
  const char* name;
  rule_function rule;
  adjoint_function adjoint = nullptr; ///< null: its outputs carry no gradient
  cost_function cost = nullptr;       ///< null: reads its inputs and writes its outputs once
  int typed_by = 0;                   ///< the input whose dtype selects the kernel's element type
  bool accumulates = false;           ///< adds into outputs that are gradients
  int in_place = -1;                  ///< the input whose memory its first output may take over
  bool cheap = false;                 ///< bound by bytes: selective recomputation runs it again
  bool linear = false;                ///< its adjoint reads the cotangent alone, in any type
  bool crosses = false;               ///< takes values of one mesh to the other
};

/// The mesh over which a placement spreads: bit 0 the dense axes (dp, cp, tp), bit 1 the expert
/// axes (edp, ep, etp). Neither: the value is the same on every rank of a stage, thus of both
/// meshes.
constexpr unsigned spread(const placement& at) {
  const auto over = [&at](axis a) { return at[a].s != state::invariant; };
  return (over(axis::dp) || over(axis::cp) || over(axis::tp) ? 1u : 0u) |
         (over(axis::edp) || over(axis::ep) || over(axis::etp) ? 2u : 0u);
}

/// The link from an op to its kernel on a device; specialised in kernel/ (and in a user's header).
template <const op_info* Op> struct kernel_of;

/// Infers the outputs of c's node by its op's rule. Dense and expert mesh fold over the same ranks,
/// so a value lies on one of them, and only an op that crosses sees both (MEGA-P013).
[[gnu::cold]] constexpr void infer(inference& c) {
  if (!c.n.op->crosses) {
    unsigned seen = 0;
    int last = -1;
    for (int k = 0; k < max_inputs; ++k) {
      if (!c.has(k)) continue;
      const unsigned s = spread(c.in(k).at);
      if ((seen | s) == 3 && seen != 3) c.fail(fault::P013, k, last);
      if (s != 0) last = k;
      seen |= s;
    }
  }
  c.n.op->rule(c);
  for (int k = 0; k < c.outs; ++k)
    if (spread(c.out[static_cast<unsigned>(k)].at) == 3) c.fail(fault::P013, 0);
}

// --- inference of placements ---------------------------------------------------------------------

/// How an op depends on its differentiable operands: separately linear in each (a product), linear
/// in all of them together (a sum), any function of each element (nonlinear), or the sum of such a
/// function over the dims that the output lacks (reduction).
enum class algebra : std::uint8_t { product, sum, nonlinear, reduction };

/// The place of an output with the dims of `out` on one axis. `operands` index the node's inputs;
/// `whole` names dims that the op needs unsharded. Faults are recorded in c.
[[gnu::cold]] constexpr place join(inference& c, axis a, algebra how, const value& out,
                                   std::initializer_list<int> operands,
                                   std::initializer_list<dim> whole) {
  place cut{};
  int cutter = -1;
  for (int k : operands)
    if (c.has(k) && c.in(k).at[a].s == state::shard) {
      cut = c.in(k).at[a];
      cutter = k;
      break;
    }
  if (cutter >= 0) {
    for (dim d : whole)
      if (d == cut.d) c.fail(fault::P007, cutter);
    const bool contracted = out.find(cut.d) < 0;
    const order how_ordered = c.in(cutter).dims[static_cast<unsigned>(c.in(cutter).find(cut.d))].o;
    for (int k : operands) {
      if (!c.has(k) || k == cutter) continue;
      const value& v = c.in(k);
      const place p = v.at[a];
      const int where = v.find(cut.d);
      if (where >= 0) {
        if (p.s == state::partial) c.fail(fault::P005, k, cutter);
        if (p != cut) c.fail(contracted ? fault::P001 : fault::P002, cutter, k);
        if (v.dims[static_cast<unsigned>(where)].o != how_ordered) c.fail(fault::P012, cutter, k);
      } else if (p.s == state::shard) {
        c.fail(fault::P002, cutter, k);
      } else if (v.differentiable()) {
        if (p.s == state::invariant) c.fail(fault::P004, k, cutter);
        if (p.s == state::partial) c.fail(fault::P005, k, cutter);
      }
    }
    if (!contracted) return cut;
    if (how != algebra::product && how != algebra::reduction) c.fail(fault::P007, cutter);
    return P;
  }
  int partial = -1, invariant = -1, replicate = -1, partials = 0, others = 0;
  for (int k : operands) {
    if (!c.has(k) || !c.in(k).differentiable()) continue;
    switch (c.in(k).at[a].s) {
    case state::partial: partial = k, ++partials; break;
    case state::invariant: invariant = k, ++others; break;
    default: replicate = k, ++others; break;
    }
  }
  if (partial >= 0) {
    const bool legal = how == algebra::sum
                           ? others == 0
                           : how == algebra::product && partials == 1 && invariant < 0;
    if (!legal) c.fail(fault::P005, partial, invariant >= 0 ? invariant : replicate);
    return P;
  }
  if (invariant >= 0 && replicate >= 0) c.fail(fault::P008, invariant, replicate);
  if (invariant < 0 && replicate < 0)
    for (int k : operands)
      if (c.has(k)) return c.in(k).at[a];
  return replicate >= 0 ? R : I;
}

/// Places output k on every axis by join().
[[gnu::cold]] constexpr void place_output(inference& c, int k, algebra how,
                                          std::initializer_list<int> operands,
                                          std::initializer_list<dim> whole = {}) {
  value& out = c.out[static_cast<unsigned>(k)];
  for (int a = 0; a < axes; ++a) {
    if (c.g.ranks.trivial(static_cast<axis>(a))) continue;
    c.looking = a;
    out.at.at[static_cast<unsigned>(a)] = join(c, static_cast<axis>(a), how, out, operands, whole);
  }
  c.looking = -1;
}

} // namespace mc
