// What an op is: a name, a rule that infers its outputs, an adjoint that writes its backward pass,
// and its cost. An op is one constexpr op_info in a header of its own; nodes point to it; execution
// is the specialisation kernel_of<&the_op>. There is no list of ops anywhere.
#pragma once

#include <megacpp/graph/form.hpp>
#include <megacpp/graph/operand.hpp>
#include <megacpp/graph/wire.hpp>

#include <initializer_list>

namespace mc {

struct backward;

/// Work of one node on one rank: floating-point operations, bytes that must be read and written;
/// how many of the operations compute again what another node has computed.
struct work {
  std::int64_t flops = 0, read = 0, written = 0, again = 0;
  constexpr work& operator+=(const work& o) {
    flops += o.flops, read += o.read, written += o.written, again += o.again;
    return *this;
  }
};

/// What a rule sees and says: the operands of one node, and the outputs inferred from them.
struct inference {
  const graph& g;
  const node& n;
  value out[max_outputs]{};
  int outs = 0;
  fault wrong = fault::none;
  int first = -1, second = -1; ///< operands to blame
  int looking = -1;            ///< the axis whose places are being joined; -1: none
  int over = -1;               ///< the axis to blame
  const char* number = "";     ///< the attribute to blame,
  double is = 0;               ///< what it is,
  const char* range = "";      ///< and what it must be
  int misread = -1;            ///< the operand whose integers are others than the op reads,
  integer_kind need{};         ///< what they must be,
  std::int64_t most = 0;       ///< and below what; 0: any
  unsigned tables = 0;         ///< bit k: of operand k only table_rows(k) are read

  static constexpr value absent{};

  constexpr bool has(int k) const { return n.in[k] >= 0; }
  /// Operand k. An absent one reads as a number: `floats` and its like say that it is missing.
  constexpr const value& in(int k) const { return n.in[k] < 0 ? absent : g.values[n.in[k]]; }
  [[gnu::cold]] constexpr void fail(fault f, int a = -1, int b = -1) {
    if (wrong != fault::none) return;
    wrong = f, first = a, second = b, over = looking;
  }

  // What a rule says of its operands, one line a property that the kernel relies on. Each records a
  // fault where the operands are otherwise. Dims are compared by name, extent and order.

  /// Holds, or the fault is recorded.
  constexpr void require(bool holds, fault f, int a = -1, int b = -1) {
    if (!holds) fail(f, a, b);
  }
  /// An attribute, the number that a model calls `name`, is what `must` says (MEGA-C001).
  [[gnu::cold]] constexpr void in_range(bool holds, const char* name, double x, const char* must) {
    if (!holds && wrong == fault::none) number = name, is = x, range = must;
    require(holds, fault::C001, 0);
  }
  /// These operands are there (MEGA-S008) and of type t (S007).
  [[gnu::cold]] constexpr void typed(std::initializer_list<int> operands, dtype t) {
    for (int k : operands)
      if (!has(k)) fail(fault::S008, 0, k == 1 ? -1 : 1);
      else if (in(k).type != t) fail(fault::S007, k);
  }
  /// These operands are there, of one floating-point type.
  [[gnu::cold]] constexpr void floats(std::initializer_list<int> operands) {
    typed(operands, in(*operands.begin()).type);
    require(in(*operands.begin()).differentiable(), fault::S007, *operands.begin());
  }
  constexpr void ints(std::initializer_list<int> operands) { typed(operands, dtype::i32); }
  /// Operand k, to be named beside operand x, is there, and its integers are of this kind, or of an
  /// op that does not say (MEGA-S010): for an op that finds no memory by them.
  [[gnu::cold]] constexpr void holds(int k, integer_kind kind, int x = -1) {
    ints({k});
    const integer_kind have = in(k).holds;
    if (have != integer_kind::unknown && !serves(have, kind)) misreads(k, kind, 0, x);
  }
  /// The same of integers that the op finds memory by: of this kind, and known to be below `rows`
  /// (0: below anything).
  [[gnu::cold]] constexpr void indexes(int k, integer_kind kind, std::int64_t rows, int x = -1) {
    ints({k});
    const value& v = in(k);
    if (!serves(v.holds, kind) || v.below <= 0 || (rows > 0 && v.below > rows))
      misreads(k, kind, rows, x);
  }
  /// The parameter that operand k is, also behind redistributions; null: none.
  [[gnu::cold]] constexpr const parameter_info* parameter(int k) const;
  /// Rows of the table that operand k is, without those that pad a parameter, which the op promises
  /// not to read.
  [[gnu::cold]] constexpr std::int64_t table_rows(int k) {
    tables |= 1u << k;
    const parameter_info* const p = parameter(k);
    return p != nullptr && p->valid_rows > 0 ? p->valid_rows : in(k).dims[0].n;
  }
  /// These operands are there, of the type in which sums over operand x are kept.
  [[gnu::cold]] constexpr void sums(std::initializer_list<int> operands, int x) {
    typed(operands, accumulator_of(in(x).type));
  }
  /// Operand k has so many dims (MEGA-S003).
  constexpr void rank(int k, int dims) { require(in(k).rank == dims, fault::S003, k); }
  /// Operand k has the dims of these names.
  [[gnu::cold]] constexpr void dims(int k, std::initializer_list<dim> names) {
    const value& v = in(k);
    rank(k, static_cast<int>(names.size()));
    for (int i = 0; i < v.rank && v.rank == static_cast<int>(names.size()); ++i)
      require(v.dims[i].d == names.begin()[i], fault::S003, k);
  }
  /// The dims of operand k are those of operand x from the `from`-th on, as many as k has.
  [[gnu::cold]] constexpr void dims_from(int k, int x, int from) {
    const value &a = in(x), &b = in(k);
    if (from < 0 || from + b.rank > a.rank) return fail(fault::S003, x, k);
    for (int i = 0; i < b.rank; ++i) agree(a.dims[from + i], b.dims[i], x, k);
  }
  [[gnu::cold]] constexpr void agree(const extent& a, const extent& b, int x, int k) {
    if (a == b) return;
    fail(a.d != b.d ? fault::S003 : a.n != b.n ? fault::S002 : fault::P012, x, k);
  }
  /// Operand k has the dims of operand x.
  constexpr void alike(int k, int x) { leads(k, x, 0); }
  /// The dims of operand k are the first ones of operand x: all but `rest`, or any number of them.
  [[gnu::cold]] constexpr void leads(int k, int x, int rest = -1) {
    if (rest >= 0 && in(k).rank != in(x).rank - rest) return fail(fault::S003, x, k);
    dims_from(k, x, 0);
  }
  /// The dims of operand k are the last ones of operand x.
  constexpr void trails(int k, int x) { dims_from(k, x, in(x).rank - in(k).rank); }
  /// No dim stands twice in output k, which is made of dims of several operands (MEGA-S003).
  [[gnu::cold]] constexpr void distinct(int k, int a, int b) {
    const value& v = out[k];
    for (int i = 0; i < v.rank; ++i) require(v.find(v.dims[i].d) == i, fault::S003, a, b);
  }

  [[gnu::cold]] constexpr void misreads(int k, integer_kind kind, std::int64_t rows, int x) {
    if (wrong == fault::none) misread = k, need = kind, most = rows;
    fail(fault::S010, k < x ? k : x, k < x ? x : k);
  }

  /// The next output, which a node has at most max_outputs of (MEGA-S004).
  [[gnu::cold]] constexpr value& next_output() {
    if (outs == max_outputs) fail(fault::S004, 0), --outs;
    return out[outs++];
  }
  /// Declares the next output, starting from a copy of `like` without its name, role and placement.
  [[gnu::cold]] constexpr value& declare(const value& like) {
    value& v = next_output();
    v.type = like.type, v.take_dims(like);
    return v;
  }
  [[gnu::cold]] constexpr value& declare(dtype t, std::initializer_list<extent> dims) {
    value& v = next_output();
    v.type = t;
    for (const extent& e : dims) v.dims[v.rank++] = e;
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
/// What a node asks of its communicator, on a mesh whose sizes are all known.
using wire_function = transfers (*)(const graph&, const node&, const mesh&);
using room_function = std::int64_t (*)(const graph&, const node&);

struct op_info {
  const char* name;
  rule_function rule;
  adjoint_function adjoint = nullptr; ///< null: no gradient may be wanted through it (MEGA-P017)
  cost_function cost = nullptr;       ///< null: reads its inputs and writes its outputs once
  wire_function wire = nullptr;       ///< null: it needs no other rank
  int typed_by = 0;                   ///< the input whose dtype selects the kernel's element type
  bool accumulates = false;           ///< adds into outputs that are gradients, or sums over trips
  int in_place = -1;                  ///< the input whose memory its first output may take over
  bool cheap = false;                 ///< bound by bytes: selective recomputation runs it again
  bool linear = false;                ///< its adjoint reads the cotangent alone, in any type
  bool crosses = false;               ///< takes values of one mesh to the other
  unsigned constants = 0;             ///< bit k: output k has no gradient, whatever it depends on
  unsigned changes = 0;               ///< bit k: writes its operand k
  bool decodes = false; ///< its result is larger than the parameters that it reads: it runs
                        ///< where that is read, again in the backward pass, and nobody keeps it
  bool takes_ranges = false;  ///< element by element, however many: ranges cut at start (MEGA-P022)
  bool commutes = false;      ///< its operands 0 and 1 have no order
  bool redistributes = false; ///< its output is its operand, placed as an op::transition says
  int seen = -1; ///< the operand that the host reads, too: its integers decide what is started
  room_function host_room = nullptr; ///< bytes of the host that its kernel needs beside these
  const attribute_type* attributes = nullptr; ///< its nodes' type of attributes; null: none
  operand_lists operands{};                   ///< names of its operands and outputs
  fused_form form{}; ///< of an op that a pass writes: the parts in whose place it stands
  const op_info* fuses[max_forms]{}; ///< fused ops of which a node of this op is a part
};

constexpr const parameter_info* inference::parameter(int k) const {
  value_id v = n.in[k];
  for (int p = 0; p >= 0 && v >= 0;) {
    p = g.at(v).producer;
    if (p >= 0 && !g.at_node(p).op->redistributes) p = -1;
    if (p >= 0) v = g.at_node(p).in[0];
  }
  return g.parameter_of(v);
}

/// The region of which each trip makes v anew, or -1. A sum over its trips outlives them.
constexpr region_id region_of(const graph& g, const value& v) {
  if (v.producer < 0 || g.at_node(v.producer).op->accumulates) return -1;
  return g.at_node(v.producer).region;
}

/// The values that the host reads: how often regions run, and what ops name (op_info::seen).
struct seen_values {
  bool has[max_values]{};

  constexpr explicit seen_values(const graph& g) {
    for (int r = 0; r < g.region_count; ++r) add(g.regions[r].trips);
    for (int i = 0; i < g.node_count; ++i)
      if (const node& n = g.at_node(i); n.op->seen >= 0) add(n.in[n.op->seen]);
  }

private:
  constexpr void add(value_id v) {
    if (v >= 0) has[v] = true;
  }
};

/// The mesh over which a placement spreads: bit 0 the dense axes (dp, cp, tp), bit 1 the expert
/// axes (edp, ep, etp). Neither: the value is the same on every rank of a stage, thus of both
/// meshes.
constexpr unsigned spread(const placement& at) {
  const place* const p = at.at; // in the order of enum axis: steps of clang are counted here
  constexpr auto same = state::invariant;
  return (p[0].s != same || p[1].s != same || p[2].s != same ? 1u : 0u) |
         (p[4].s != same || p[5].s != same || p[6].s != same ? 2u : 0u);
}

/// The link from an op to its kernel; specialised in kernel/ (and in a user's header).
template <const op_info* Op> struct kernel_of;
/// The kernel of an op on a device: by default the one that all devices share, if there is one;
/// specialised for a device that needs another.
template <const op_info* Op, class Device> struct kernel_on;
template <const op_info* Op, class Device>
requires requires { sizeof(kernel_of<Op>); }
struct kernel_on<Op, Device> : kernel_of<Op> {};

/// Infers the outputs of c's node by its op's rule. Dense and expert mesh fold over the same ranks,
/// so a value lies on one of them, and only an op that crosses sees both (MEGA-P013).
[[gnu::cold]] constexpr void infer(inference& c) {
  if (!c.n.op->crosses) {
    unsigned seen = 0;
    int last = -1, k = -1;
    for (const value_id v : c.n.in) {
      ++k;
      const unsigned s = v < 0 ? 0 : spread(c.g.values[v].at);
      if (s == 0) continue;
      if ((seen | s) == 3 && seen != 3) c.fail(fault::P013, k, last);
      last = k, seen |= s;
      if (c.n.op->takes_ranges) continue;
      c.looking = range_axis(c.g.ranks, c.g.values[v]);
      if (c.looking >= 0) c.fail(fault::P022, k);
      c.looking = -1;
    }
  }
  const op_info& op = *c.n.op;
  if (op.typed_by < 0 || op.typed_by >= max_inputs || !c.has(op.typed_by)) c.fail(fault::S008);
  if (c.n.attr.type != op.attributes) c.fail(fault::S012, 0);
  else if (op.rule != nullptr) op.rule(c);
  if (c.outs == 0 && op.changes == 0) c.fail(fault::S008), c.declare(c.in(0));
  for (int k = 0; k < c.outs; ++k)
    if (spread(c.out[k].at) == 3) c.fail(fault::P013, 0);
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
  unsigned states = 0; // of operands that have gradients, a bit each
  for (int k : operands) {
    if (c.n.in[k] < 0) continue;
    const value& v = c.g.values[c.n.in[k]];
    const place& p = v.at.at[static_cast<int>(a)];
    if (p.s == state::shard && cutter < 0) cut = p, cutter = k;
    states |= v.type > dtype::bf16 ? 0 : 1u << static_cast<int>(p.s);
  }
  if (states == 1u << static_cast<int>(state::invariant) && cutter < 0) return mc::invariant;
  if (states == 1u << static_cast<int>(state::replicate) && cutter < 0) return mc::replicate;
  if (cutter >= 0) {
    for (dim d : whole)
      if (d == cut.d) c.fail(fault::P007, cutter);
    const bool contracted = out.find(cut.d) < 0;
    const order how_ordered = c.in(cutter).dims[c.in(cutter).find(cut.d)].o;
    for (int k : operands) {
      if (!c.has(k) || k == cutter) continue;
      const value& v = c.in(k);
      const place p = v.at[a];
      const int where = v.find(cut.d);
      if (where >= 0) {
        if (p.s == state::partial) c.fail(fault::P005, k, cutter);
        if (p != cut) c.fail(contracted ? fault::P001 : fault::P002, cutter, k);
        if (v.dims[where].o != how_ordered) c.fail(fault::P012, cutter, k);
      } else if (p.s == state::shard) {
        c.fail(fault::P002, cutter, k);
      } else if (v.differentiable()) {
        if (p.s == state::invariant) c.fail(fault::P004, k, cutter);
        if (p.s == state::partial) c.fail(fault::P005, k, cutter);
      }
    }
    if (!contracted) return cut;
    if (how != algebra::product && how != algebra::reduction) c.fail(fault::P007, cutter);
    return mc::partial;
  }
  int partial = -1, invariant = -1, replicate = -1, partials = 0, others = 0;
  bool maximum = false;
  for (int k : operands) {
    if (!c.has(k) || !c.in(k).differentiable()) continue;
    switch (c.in(k).at[a].s) {
    case state::partial:
      partial = k, ++partials;
      maximum = maximum || c.in(k).at[a].is_pending_maximum();
      break;
    case state::invariant: invariant = k, ++others; break;
    default: replicate = k, ++others; break;
    }
  }
  if (partial >= 0) {
    const bool legal = how == algebra::sum
                           ? others == 0
                           : how == algebra::product && partials == 1 && invariant < 0;
    if (!legal || maximum) c.fail(fault::P005, partial, invariant >= 0 ? invariant : replicate);
    return mc::partial;
  }
  if (invariant >= 0 && replicate >= 0) c.fail(fault::P008, invariant, replicate);
  if (invariant < 0 && replicate < 0)
    for (int k : operands)
      if (c.has(k)) return c.in(k).at[a];
  return replicate >= 0 ? mc::replicate : mc::invariant;
}

/// Places output k on every axis by join(). Dims that the op needs whole lie in their natural order
/// (MEGA-P012): an element's index tells where it stands.
[[gnu::cold]] constexpr void place_output(inference& c, int k, algebra how,
                                          std::initializer_list<int> operands,
                                          std::initializer_list<dim> whole = {}) {
  value& out = c.out[k];
  for (int a = 0; a < axes; ++a) {
    if (c.g.ranks.trivial(static_cast<axis>(a))) continue;
    c.looking = a;
    out.at.at[a] = join(c, static_cast<axis>(a), how, out, operands, whole);
  }
  c.looking = -1;
  for (dim d : whole)
    for (int i : operands)
      if (const int at = c.in(i).find(d); at >= 0 && c.in(i).dims[at].o != order::contiguous)
        c.fail(fault::P012, i);
}

} // namespace mc
