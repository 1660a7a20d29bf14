// The description of an op: a name, a rule that infers its outputs, an adjoint that writes its
// backward pass, and its cost. Each op is one constexpr op_info in a header of its own, to which
// nodes point. The specialisation kernel_of<&the_op> executes it. There is no list of ops anywhere.
#pragma once

#include <megacpp/graph/form.hpp>
#include <megacpp/graph/operand.hpp>
#include <megacpp/graph/wire.hpp>

#include <initializer_list>

namespace mc {

struct backward;

/// The work of one node on one rank: floating-point operations, bytes that must be read and
/// written, and in `repeated` the operations that only repeat what another node has computed.
struct work {
  std::int64_t flops = 0, read = 0, written = 0, repeated = 0;
  constexpr work& operator+=(const work& o) {
    flops += o.flops, read += o.read, written += o.written, repeated += o.repeated;
    return *this;
  }
};

/// The state of a rule that infers a node: the operands that it reads, the outputs that it
/// declares, and the first fault.
struct inference {
  const graph& g;
  const node& n;
  value out[max_outputs]{};
  int outs = 0;
  fault wrong = fault::none;
  int first = -1, second = -1;       ///< operands that a fault blames
  int looking = -1;                  ///< axis whose places are being joined; -1: none
  int blamed_axis = -1;              ///< axis that a fault blames
  const char* blamed_attribute = ""; ///< attribute that a fault blames
  double attribute_value = 0;        ///< value of the blamed attribute
  const char* legal_values = "";     ///< values that the blamed attribute may have
  int misread = -1;              ///< operand whose integers are of another kind than the op reads
  integer_kind needed_kind{};    ///< kind of integers that the op reads
  std::int64_t needed_bound = 0; ///< bound below which these integers must be; 0: any
  unsigned tables = 0;           ///< bit k: of operand k, the op reads only table_rows(k) rows

  static constexpr value absent{};

  constexpr bool has(int k) const { return n.in[k] >= 0; }
  /// Returns operand k. An absent one reads as a number, and `floats` and the like report that it
  /// is missing.
  constexpr const value& in(int k) const { return n.in[k] < 0 ? absent : g.values[n.in[k]]; }
  [[gnu::cold]] constexpr void fail(fault f, int a = -1, int b = -1) {
    if (wrong != fault::none) return;
    wrong = f, first = a, second = b, blamed_axis = looking;
  }

  // The functions below check one property of operands each, on which the kernel relies, and record
  // a fault where an operand lacks it. Dims are compared by name, extent and order.

  /// Records fault f unless the condition holds.
  constexpr void require(bool holds, fault f, int a = -1, int b = -1) {
    if (!holds) fail(f, a, b);
  }
  /// Checks that an attribute, which the model calls `name`, is what `must` says (MEGA-C001).
  [[gnu::cold]] constexpr void in_range(bool holds, const char* name, double x, const char* must) {
    if (!holds && wrong == fault::none)
      blamed_attribute = name, attribute_value = x, legal_values = must;
    require(holds, fault::C001, 0);
  }
  /// Checks that these operands are there (MEGA-S008) and of type t (S007).
  [[gnu::cold]] constexpr void typed(std::initializer_list<int> operands, dtype t) {
    for (int k : operands)
      if (!has(k)) fail(fault::S008, 0, k == 1 ? -1 : 1);
      else if (in(k).type != t) fail(fault::S007, k);
  }
  /// Checks that these operands are there and have one floating-point type.
  [[gnu::cold]] constexpr void floats(std::initializer_list<int> operands) {
    typed(operands, in(*operands.begin()).type);
    require(in(*operands.begin()).differentiable(), fault::S007, *operands.begin());
  }
  constexpr void ints(std::initializer_list<int> operands) { typed(operands, dtype::i32); }
  /// Checks that operand k is there, and that its integers are of this kind or unknown (MEGA-S010).
  /// It is for an op that does not find memory by them. The fault names operand x, too.
  [[gnu::cold]] constexpr void holds(int k, integer_kind kind, int x = -1) {
    ints({k});
    const integer_kind have = in(k).holds;
    if (have != integer_kind::unknown && !serves(have, kind)) misreads(k, kind, 0, x);
  }
  /// Checks integers by which the op finds memory: they are of this kind, and known to be below
  /// `rows` (0: below any number). The fault names operand x, too.
  [[gnu::cold]] constexpr void indexes(int k, integer_kind kind, std::int64_t rows, int x = -1) {
    ints({k});
    const value& v = in(k);
    if (!serves(v.holds, kind) || v.below <= 0 || (rows > 0 && v.below > rows))
      misreads(k, kind, rows, x);
  }
  /// Returns the parameter that operand k is, also behind redistributions; null: it is none.
  [[gnu::cold]] constexpr const parameter_info* parameter(int k) const;
  /// Returns the rows of a table, which is operand k, without the rows that pad a parameter. An op
  /// that calls this promises not to read those.
  [[gnu::cold]] constexpr std::int64_t table_rows(int k) {
    tables |= 1u << k;
    const parameter_info* const p = parameter(k);
    return p != nullptr && p->valid_rows > 0 ? p->valid_rows : in(k).dims[0].n;
  }
  /// Checks that these operands are there, and of the type in which sums over operand x are kept.
  [[gnu::cold]] constexpr void sums(std::initializer_list<int> operands, int x) {
    typed(operands, accumulator_of(in(x).type));
  }
  /// Checks that operand k has so many dims (MEGA-S003).
  constexpr void rank(int k, int dims) { require(in(k).rank == dims, fault::S003, k); }
  /// Checks that operand k has the dims of these names.
  [[gnu::cold]] constexpr void dims(int k, std::initializer_list<dim> names) {
    const value& v = in(k);
    rank(k, static_cast<int>(names.size()));
    for (int i = 0; i < v.rank && v.rank == static_cast<int>(names.size()); ++i)
      require(v.dims[i].d == names.begin()[i], fault::S003, k);
  }
  /// Checks that the dims of operand k are those of operand x from number `from` on, as many as k
  /// has.
  [[gnu::cold]] constexpr void dims_from(int k, int x, int from) {
    const value &a = in(x), &b = in(k);
    if (from < 0 || from + b.rank > a.rank) return fail(fault::S003, x, k);
    for (int i = 0; i < b.rank; ++i) agree(a.dims[from + i], b.dims[i], x, k);
  }
  [[gnu::cold]] constexpr void agree(const extent& a, const extent& b, int x, int k) {
    if (a == b) return;
    fail(a.d != b.d ? fault::S003 : a.n != b.n ? fault::S002 : fault::P012, x, k);
  }
  /// Checks that operand k has the dims of operand x.
  constexpr void alike(int k, int x) { leads(k, x, 0); }
  /// Checks that operand k has the first dims of operand x: all but `rest`, or any number if that
  /// is -1.
  [[gnu::cold]] constexpr void leads(int k, int x, int rest = -1) {
    if (rest >= 0 && in(k).rank != in(x).rank - rest) return fail(fault::S003, x, k);
    dims_from(k, x, 0);
  }
  /// Checks that operand k has the last dims of operand x.
  constexpr void trails(int k, int x) { dims_from(k, x, in(x).rank - in(k).rank); }
  /// Checks that no dim stands twice in output k, which takes its dims from operands a and b
  /// (MEGA-S003).
  [[gnu::cold]] constexpr void distinct(int k, int a, int b) {
    const value& v = out[k];
    for (int i = 0; i < v.rank; ++i) require(v.find(v.dims[i].d) == i, fault::S003, a, b);
  }

  [[gnu::cold]] constexpr void misreads(int k, integer_kind kind, std::int64_t rows, int x) {
    if (wrong == fault::none) misread = k, needed_kind = kind, needed_bound = rows;
    fail(fault::S010, k < x ? k : x, k < x ? x : k);
  }

  /// Returns the next output; a node has at most max_outputs (MEGA-S004).
  [[gnu::cold]] constexpr value& next_output() {
    if (outs == max_outputs) fail(fault::S004, 0), --outs;
    return out[outs++];
  }
  /// Declares the next output with the type and the dims of `like`, and nothing else of it.
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
  /// Declares scratch: memory of `bytes` on each rank that lives during this node alone.
  constexpr value& declare_scratch(std::int64_t bytes) {
    value& v = declare(dtype::u8, {extent(dim::elements, bytes)});
    v.is = role::scratch;
    return v;
  }
};

using rule_function = void (*)(inference&);
using adjoint_function = void (*)(backward&, const node&);
using cost_function = work (*)(const graph&, const node&);
/// Returns the calls of the communicator that a node makes, on a mesh whose sizes are all known.
using wire_function = transfers (*)(const graph&, const node&, const mesh&);
using room_function = std::int64_t (*)(const graph&, const node&);

struct op_info {
  const char* name;
  rule_function rule;
  adjoint_function adjoint = nullptr; ///< null: no gradient passes through the op (MEGA-P017)
  cost_function cost = nullptr;       ///< null: the op reads its inputs and writes its outputs once
  wire_function wire = nullptr;       ///< null: the op needs no other rank
  int typed_by = 0;                   ///< input whose dtype selects the kernel's element type
  bool accumulates = false;           ///< the op adds to outputs that are gradients, or over trips
  int in_place = -1;                  ///< input whose memory the first output may take over
  bool cheap = false;                 ///< bound by bandwidth: selective recomputation runs it
  bool linear = false;                ///< the adjoint reads the cotangent alone, in any type
  bool changes_mesh = false;          ///< the op takes values from one mesh to the other
  unsigned outputs_without_gradient = 0; ///< bit k: output k has no gradient
  unsigned writes_operands = 0;          ///< bit k: the op writes its operand k
  /// The result of such an op is larger than the parameters that it reads. The op runs where the
  /// result is read, again in the backward pass, and the result is never kept.
  bool decodes = false;
  bool takes_ranges = false;  ///< works element by element, also on ranges cut at start (MEGA-P022)
  bool commutes = false;      ///< operands 0 and 1 may be exchanged
  bool redistributes = false; ///< the output is the operand, placed as an op::transition says
  int seen = -1; ///< operand that the host reads, too: its integers decide how much is started
  room_function host_room = nullptr;          ///< host memory in bytes that its kernel needs
  const attribute_type* attributes = nullptr; ///< type of the nodes' attributes; null: none
  operand_lists operands{};                   ///< names of the op's operands and outputs
  fused_form form{};                          ///< for a fused op: the ops that it replaces
  const op_info* fuses[max_forms]{}; ///< fused ops that replace a node of this op and others
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

/// Returns the region in whose trips v is made anew, or -1. A sum over trips belongs to no region.
constexpr region_id region_of(const graph& g, const value& v) {
  if (v.producer < 0 || g.at_node(v.producer).op->accumulates) return -1;
  return g.at_node(v.producer).region;
}

/// The set of values that the host reads: numbers of trips, and operands that ops name
/// (op_info::seen).
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

/// Returns the meshes over which a placement spreads: bit 0 for a dense axis (dp, cp, tp), bit 1
/// for an expert axis (edp, ep, etp). A value without either bit is the same on every rank of a
/// stage, so it lies on both meshes.
constexpr unsigned spread(const placement& at) {
  const place* const p = at.at; // in the order of enum axis; clang limits steps of evaluation
  constexpr auto same = state::invariant;
  return (p[0].s != same || p[1].s != same || p[2].s != same ? 1u : 0u) |
         (p[4].s != same || p[5].s != same || p[6].s != same ? 2u : 0u);
}

/// The link from an op to its kernel. kernel/ and headers of users specialise it.
template <const op_info* Op> struct kernel_of;
/// The kernel of an op on a device. By default it is the kernel that all devices share, if there is
/// one; a device that needs another kernel specialises it.
template <const op_info* Op, class Device> struct kernel_on;
template <const op_info* Op, class Device>
requires requires { sizeof(kernel_of<Op>); }
struct kernel_on<Op, Device> : kernel_of<Op> {};

/// Infers the outputs of c's node by its op's rule. The dense and the expert mesh arrange the same
/// ranks, so a value lies on one of them, and only an op with `changes_mesh` may see both
/// (MEGA-P013).
[[gnu::cold]] constexpr void infer(inference& c) {
  if (!c.n.op->changes_mesh) {
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
  if (c.outs == 0 && op.writes_operands == 0) c.fail(fault::S008), c.declare(c.in(0));
  for (int k = 0; k < c.outs; ++k)
    if (spread(c.out[k].at) == 3) c.fail(fault::P013, 0);
}

// --- inference of placements ---------------------------------------------------------------------

/// The way in which an op depends on its differentiable operands: linear in each of them (a
/// product), linear in all of them together (a sum), any function of each element (nonlinear), or a
/// sum of such a function over the dims that the output lacks (reduction).
enum class algebra : std::uint8_t { product, sum, nonlinear, reduction };

/// Returns the place on axis a of an output with the dims of `out`. `operands` are numbers of the
/// node's inputs; `whole` names dims that the op needs unsharded. Faults are recorded in c.
[[gnu::cold]] constexpr place join(inference& c, axis a, algebra how, const value& out,
                                   std::initializer_list<int> operands,
                                   std::initializer_list<dim> whole) {
  place cut{};
  int cutter = -1;
  unsigned states = 0; // a bit for each state that a differentiable operand has
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

/// Places output k on every axis by join(). Dims that the op needs whole must lie in contiguous
/// order (MEGA-P012), since an element's index tells its place.
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
