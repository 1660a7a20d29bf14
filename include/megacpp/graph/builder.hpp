// The builder of graphs: handles to values, parameters, inputs, and nodes that are checked when
// they are emitted. The builder records the first fault and goes on, so that one mistake gives one
// error. Its functions are marked cold: at run time they run once, so optimising them would waste
// compile time.
#pragma once

#include <megacpp/graph/op.hpp>

namespace mc {

struct builder;

/// A handle to a value of a graph that is being built. It is copyable and no template.
struct var {
  builder* b = nullptr;
  value_id id = -1;

  constexpr const value& type() const;
  constexpr place at(axis a) const { return type().at[a]; }
};

/// Writes the name of a parameter or input, also where v is a redistribution of it. For another
/// value it writes op@line.
constexpr void spell(const graph& g, value_id v, text<160>& out) {
  if (v < 0) return;
  while (g.at(v).producer >= 0 && g.at_node(g.at(v).producer).op->redistributes)
    v = g.at_node(g.at(v).producer).in[0];
  const value& x = g.at(v);
  if (x.scope[0] != 0) out << x.scope << ".";
  if (x.name[0] != 0) {
    out << x.name;
  } else if (x.producer >= 0) {
    const node& n = g.at_node(x.producer);
    out << n.op->name << "@" << n.line.number;
  }
}

/// Records a fault as "op(a, b) over axis", unless one is recorded already.
[[gnu::cold]] constexpr void record(fault_record& wrong, const graph& g, fault f, source_line line,
                                    const char* op, value_id a = -1, value_id b = -1,
                                    int over = -1) {
  if (wrong.code != fault::none) return;
  wrong.code = f;
  wrong.line = line;
  auto& out = wrong.what;
  out << op << "(";
  spell(g, a, out);
  if (a >= 0 && b >= 0) out << ", ";
  spell(g, b, out);
  out << ")";
  if (over >= 0) out << " over " << name_of(static_cast<axis>(over));
}
[[gnu::cold]] constexpr void record(graph& g, fault f, source_line line, const char* op,
                                    value_id a = -1, value_id b = -1, int over = -1) {
  record(g.wrong, g, f, line, op, a, b, over);
}

struct builder {
  graph g{};
  phase when = phase::forward;
  bool derived = false;
  region_id region = -1; ///< region that emitted nodes join, unless their operands name another one
  bool packed = false;   ///< sequences hold several documents, whose numbers attention needs

  constexpr explicit builder(const mesh& m) { g.ranks = m; }

  constexpr void fail(fault f, source_line line, const char* op, value_id a = -1, value_id b = -1,
                      int over = -1) {
    record(g, f, line, op, a, b, over);
  }
  /// Records the fault f of operand a, and appends the reason `why`.
  constexpr void fail(fault f, source_line line, const char* op, value_id a, const char* why) {
    const bool first = g.wrong.code == fault::none;
    fail(f, line, op, a);
    if (first) g.wrong.what << ": " << why;
  }
  /// Checks that a number of a layer, which the model calls `name`, is what `must` says; records
  /// MEGA-C001 if not.
  constexpr bool in_range(bool holds, source_line line, const char* op, value_id a,
                          const char* name, double x, const char* must) {
    if (holds || g.wrong.code != fault::none) return holds;
    fail(fault::C001, line, op, a);
    append_range(name, x, must);
    return false;
  }

  constexpr value_id add(const value& v, source_line line) {
    if (g.value_count == max_values) {
      fail(fault::S004, line, "value");
      g.value_count /= 2; // the builder goes on, overwriting older values
    }
    g.at(static_cast<value_id>(g.value_count)) = v;
    return static_cast<value_id>(g.value_count++);
  }

  /// Checks a value that enters the graph or that a rule declares. A state on an axis of one rank
  /// becomes invariant, levels are numbered from outside to inside in the order of the axes, no dim
  /// stands twice, and a sharded dim exists and its extent divides. Over pp, a number may be a
  /// pending sum, and a range of the stores may be sharded or pending. Each fault is recorded and
  /// then repaired, so that rules can rely on sound values.
  [[gnu::cold]] constexpr void normalise(value& v, source_line line, const char* op) {
    if (over_stages(v) && refuse(fault::P018, line, op, v)) g.wrong.what << ") over pp";
    for (int a = 0; a < axes; ++a) {
      place& p = v.at.at[a];
      const bool lacks = p.s == state::shard && v.find(p.d) < 0;
      if (lacks && refuse(fault::S003, line, op, v)) g.wrong.what << ": no " << name_of(p.d) << ")";
      if (lacks || g.ranks.trivial(static_cast<axis>(a))) p = invariant;
    }
    if (spread(v.at) == 3 && refuse(fault::P013, line, op, v)) g.wrong.what << ")";
    for (int i = 0; i < v.rank; ++i) {
      extent& e = v.dims[i];
      if (v.find(e.d) != i && refuse(fault::S003, line, op, v))
        g.wrong.what << ": " << name_of(e.d) << " twice, call one of the two otherwise)";
      const std::int64_t ranks = ranks_of(v, e.d);
      std::int8_t level = 0;
      for (const bool at_start : {false, true}) // of a range, an axis sized at start shards last
        for (int a = 0; a < axes; ++a) {
          place& p = v.at.at[a];
          if (!p.is_shard(e.d)) continue;
          if (at_start == (e.d == dim::elements && !g.ranks.sized(static_cast<axis>(a))))
            p.level = level++;
        }
      const bool exists = e.n > 0 || (e.n == 0 && e.d == dim::elements); // a range may be empty
      if (exists && e.n % ranks == 0) continue;
      if (refuse(fault::S001, line, op, v)) tell_divisors(e, ranks);
      e.n = ranks;
    }
    if (countable(v)) return;
    if (refuse(fault::S004, line, op, v)) g.wrong.what << ": more than 2^48 elements)";
    shrink(v);
  }

  /// Adds an input: a value that the caller feeds, with its feed, name, element type, global
  /// extents (local ones over an axis of unknown size) and placement. Faults: MEGA-S001 if a shard
  /// does not divide, S003 if a dim stands twice or is sharded and missing, S004 above max_rank
  /// dims, P013 over both meshes.
  [[gnu::cold]] constexpr var input(feed from, const char* name, dtype t,
                                    std::initializer_list<extent> dims, placement at,
                                    source_line line = here(), int feed_index = 0) {
    value v;
    v.name = name, v.type = t, v.is = role::input, v.from = from, v.at = at;
    v.feed_index = static_cast<std::int8_t>(feed_index), v.counts = counts_tokens(from);
    take(v, dims, line, "input");
    normalise(v, line, "input");
    return {this, add(v, line)};
  }

  /// Adds an input of integers. `kind` says their meaning; integers that are numbers of rows are
  /// less than `below`.
  [[gnu::cold]] constexpr var integers(feed from, integer_kind kind, const char* name,
                                       std::initializer_list<extent> dims, placement at,
                                       std::int64_t below = 0, source_line line = here()) {
    const var v = input(from, name, dtype::i32, dims, at, line);
    g.at(v.id).holds = kind, g.at(v.id).below = below;
    return v;
  }

  /// Adds a parameter "scope.name" with the placement in which it is stored. That is invariant or
  /// sharded, never replicated, so that the optimizer sees a complete gradient. Faults: those of
  /// input(), and MEGA-S005 for a name that the graph has already, S004 above max_parameters, C001
  /// for initial values, a rate or valid rows outside their ranges.
  [[gnu::cold]] constexpr var parameter(const char* scope, const char* name, dtype t,
                                        std::initializer_list<extent> dims, placement at,
                                        parameter_info info, source_line line = here()) {
    value v;
    v.scope = scope, v.name = name, v.type = t, v.is = role::parameter, v.at = at;
    take(v, dims, line, "parameter");
    normalise(v, line, "parameter");
    for (int i = 0; i < g.parameter_count; ++i) {
      const value_id other = g.parameters[i].v;
      if (same_name(g.at(other), v)) fail(fault::S005, line, "parameter", other);
    }
    const value_id id = add(v, line);
    in_range(info.std >= 0 && info.std < 1e30, line, "parameter", id, "std", info.std,
             "at least 0 and below 1e30");
    in_range(info.rate >= 0 && info.rate < 1e30, line, "parameter", id, "rate", info.rate,
             "at least 0 and below 1e30");
    in_range(info.valid_rows >= 0 && info.valid_rows <= v.dims[0].n, line, "parameter", id,
             "valid_rows", static_cast<double>(info.valid_rows), "0 (all) or some of its rows");
    if (g.parameter_count == max_parameters) {
      fail(fault::S004, line, "parameter", id);
      return {this, id};
    }
    info.v = id;
    info.line = line;
    g.parameters[g.parameter_count++] = info;
    return {this, id};
  }

  /// Adds a frozen parameter that is stored in several arrays. Returns these arrays, which ops read
  /// in place of the parameter. Faults: MEGA-S001 where a shard would cut a block of the encoding,
  /// MEGA-C001 for an encoding beyond the limits.
  [[gnu::cold]] constexpr std::array<var, max_arrays> parameter(const char* scope, const char* name,
                                                                const parameter_encoding& encoding,
                                                                std::initializer_list<extent> dims,
                                                                placement at, parameter_info info,
                                                                source_line line = here()) {
    info.frozen = true, info.encoding = &encoding;
    const var whole = parameter(scope, name, dtype::u8, dims, at, info, line);
    std::array<var, max_arrays> arrays;
    const value box = whole.type();
    if (box.rank == 0) {
      fail(fault::S003, line, "parameter", whole.id);
      return {};
    }
    in_range(info.valid_rows == 0, line, "parameter", whole.id, "valid_rows",
             static_cast<double>(info.valid_rows), "0 for what is stored in several arrays");
    in_range(encoding.block >= 1 && encoding.block <= most_in_block, line, "parameter", whole.id,
             "block", static_cast<double>(encoding.block), "1 to 512");
    in_range(encoding.count >= 1 && encoding.count <= max_arrays, line, "parameter", whole.id,
             "count", encoding.count, "1 to 3");
    value blocks = box;
    const int divided = divide_into_blocks(blocks, encoding.block);
    const auto refuse_cut = [&](const extent& e) {
      if (refuse(fault::S001, line, "parameter", box))
        g.wrong.what << ": " << name_of(e.d) << " " << e.n << " over " << ranks_of(box, e.d)
                     << " ranks, stored in blocks of " << encoding.block << ")";
    };
    // Blocks that are encoded by themselves lie along the last dim.
    const extent& last = box.dims[box.rank - 1];
    if (g.wrong.code == fault::none && encoding.encode_matrix == nullptr &&
        last.n % (encoding.block * ranks_of(box, last.d)) != 0)
      refuse_cut(last);
    for (int i = 0; i < box.rank && g.wrong.code == fault::none; ++i)
      if (const std::int64_t ranks = ranks_of(box, box.dims[i].d);
          divided < 0 || (i > divided && ranks > 1) || blocks.dims[i].n % ranks != 0)
        refuse_cut(box.dims[i]);
    if (g.wrong.code != fault::none) return arrays.fill(whole), arrays;
    parameter_info& kept = g.parameters[g.parameter_count - 1];
    for (int k = 0; k < encoding.count; ++k) {
      value v = box;
      encoding.arrays[k].shape(v);
      v.name = encoding.arrays[k].name, v.type = encoding.arrays[k].type;
      if (encoding.arrays[k].of_matrix) {
        for (place& p : v.at.at)
          if (p.s == state::shard && v.find(p.d) < 0) p = invariant;
      } else {
        // The array has as many elements for each block as for any other, in the order of the
        // blocks.
        bool of_blocks = v.rank == box.rank;
        for (int i = 0; of_blocks && i < v.rank; ++i)
          of_blocks = v.dims[i].d == box.dims[i].d && v.dims[i].n > 0 &&
                      v.dims[i].n % blocks.dims[i].n == 0;
        if (!of_blocks) fail(fault::S003, line, "parameter", whole.id);
      }
      normalise(v, line, "parameter");
      kept.arrays[k] = add(v, line);
      arrays[static_cast<unsigned>(k)] = {this, kept.arrays[k]};
    }
    return arrays;
  }

  /// Adds a node whose op, inputs, attributes and line are set. The op's rule infers the outputs,
  /// which are added, too. Returns the first output; the others are in the node's `out`. A fault is
  /// recorded with the operands' names, and the node is added all the same: a fault of the rule,
  /// MEGA-P016 for operands of two regions or of two assignments to experts, MEGA-S004 for a full
  /// graph.
  [[gnu::cold]] constexpr value_id emit(node n) {
    if (g.node_count == max_nodes) {
      fail(fault::S004, n.line, n.op->name, n.in[0]);
      // The caller may read this value's producer and further outputs, so they are set to valid
      // ids.
      const auto last = static_cast<value_id>(max_values - 1);
      g.at(last).producer = static_cast<node_id>(max_nodes - 1);
      for (value_id& v : g.at_node(max_nodes - 1).out) v = last;
      return last;
    }
    n.when = when;
    n.derived = derived;
    n.region = region;
    for (value_id v : n.in) { // in the backward pass, adjoints say which region
      const region_id of = derived || v < 0 ? region_id{-1} : region_of(g, g.at(v));
      if (of < 0) continue;
      if (n.region >= 0 && n.region != of) fail(fault::P016, n.line, n.op->name, v);
      n.region = of;
    }
    for (value_id v : n.in)
      if (v >= 0 && of_another_assignment(n, g.at(v))) fail(fault::P016, n.line, n.op->name, v);
    inference c{g, n};
    infer(c);
    const bool first = g.wrong.code == fault::none;
    if (c.wrong != fault::none)
      fail(c.wrong, n.line, n.op->name, operand(n, c.first), operand(n, c.second), c.blamed_axis);
    if (first && *c.legal_values != 0)
      append_range(c.blamed_attribute, c.attribute_value, c.legal_values);
    if (first && c.misread >= 0) tell_integers(c);
    for (int k = 0; k < c.outs; ++k) {
      value& v = c.out[k];
      if (!sound(v)) normalise(v, n.line, n.op->name);
      v.producer = static_cast<node_id>(g.node_count);
      n.out[k] = add(v, n.line);
      g.at(n.out[k]).producer = v.producer;
    }
    g.at_node(g.node_count++) = n;
    return n.out[0];
  }
  [[gnu::cold]] constexpr value_id emit(const op_info& op, std::initializer_list<value_id> in,
                                        source_line line, attributes attr = {}) {
    node n;
    n.op = &op;
    n.line = line;
    n.attr = attr;
    unsigned k = 0;
    for (value_id v : in) {
      if (k < max_inputs) n.in[k++] = v;
      else fail(fault::S004, line, op.name, v);
    }
    return emit(n);
  }

  /// Returns the region that runs as often as `trips` says, at least once; a new one if there is
  /// none. `trips` is one i32 on each rank, made by a node. Faults: MEGA-S007 for another value,
  /// S004 above max_regions.
  [[gnu::cold]] constexpr region_id region_of_trips(value_id trips, source_line line) {
    for (int r = 0; r < g.region_count; ++r)
      if (g.regions[r].trips == trips) return static_cast<region_id>(r);
    if (g.region_count == max_regions) {
      fail(fault::S004, line, "region", trips);
      return max_regions - 1;
    }
    const bool counts = trips < 0 || (g.at(trips).type == dtype::i32 && g.at(trips).producer >= 0 &&
                                      local_bytes(g.ranks, g.at(trips)) == size_of(dtype::i32));
    if (!counts) fail(fault::S007, line, "region", trips);
    g.regions[g.region_count].trips = trips;
    return static_cast<region_id>(g.region_count++);
  }

private:
  /// Returns whether v holds rows or counts of another assignment to experts than the one whose
  /// rounds n runs in.
  constexpr bool of_another_assignment(const node& n, const value& v) const {
    if (v.holds != integer_kind::expert_rows && v.holds != integer_kind::expert_counts)
      return false;
    if (n.region < 0 || n.region >= g.region_count) return false;
    const value_id trips = g.regions[n.region].trips;
    return trips >= 0 && v.producer != g.at(trips).producer;
  }
  /// Returns whether v has an illegal state over pp: pipeline stages may hold summands of a number,
  /// or parts of a range of their stores, and nothing else.
  constexpr bool over_stages(const value& v) const {
    const state s = v.at[axis::pp].s;
    if (s == state::invariant || g.ranks.trivial(axis::pp)) return false;
    const bool range =
        is_range(v) && (v.is == role::input ? is_store(v.from) : v.is != role::parameter);
    return s == state::partial ? v.rank > 0 && !range : s != state::shard || !range;
  }
  /// Returns the number of ranks that shard dim d of a value, over axes of known size.
  constexpr std::int64_t ranks_of(const value& v, dim d) const {
    std::int64_t ranks = 1;
    for (int a = 0; a < axes; ++a)
      if (v.at.at[a].is_shard(d) && g.ranks.sized(static_cast<axis>(a)))
        ranks *= g.ranks.of(static_cast<axis>(a));
    return ranks;
  }
  /// Returns whether normalise() would find no fault in a value that a rule declares. Scratch may
  /// be empty.
  [[gnu::cold]] constexpr bool sound(const value& v) const {
    std::int64_t over[max_rank]{1, 1, 1, 1};
    const place* const p = v.at.at; // clang limits the steps of a constant evaluation
    if (p[3].s != state::invariant && over_stages(v)) return false;
    for (int a = 0; a < axes; ++a) {
      if (p[a].s != state::shard) continue;
      const int i = v.find(p[a].d);
      if (i < 0) return false;
      if (g.ranks.sized(static_cast<axis>(a))) over[i] *= g.ranks.of(static_cast<axis>(a));
    }
    const extent* const e = v.dims;
    for (int i = 0; i < v.rank; ++i)
      if (e[i].n < (v.is != role::scratch) || e[i].n % over[i] != 0 || v.find(e[i].d) != i)
        return false;
    return countable(v);
  }
  /// Appends the number of ranks and extents near it that divide: ": heads 6 over 4 ranks; 3 or 6
  /// divide it)".
  constexpr void tell_divisors(const extent& e, std::int64_t ranks) {
    auto& out = g.wrong.what << ": " << name_of(e.d) << " " << e.n << " over " << ranks << " ranks";
    if (e.d == dim::kv_heads && e.n > 0 && ranks % e.n == 0) {
      out << "; kv_projection repeats them";
    } else if (e.n > 0) {
      std::int64_t below = ranks - 1, above = ranks + 1;
      while (e.n % below != 0) --below;
      while (above < e.n && above < 16 * ranks && e.n % above != 0) ++above;
      out << "; " << below;
      if (e.n % above == 0) out << " or " << above;
      out << " divide it";
    }
    out << ")";
  }
  /// Sets the smallest extents that divide, so that rules can go on after a fault.
  constexpr void shrink(value& v) const {
    for (int i = 0; i < v.rank; ++i) {
      extent& e = v.dims[i];
      e.n = ranks_of(v, e.d);
    }
  }
  constexpr void append_range(const char* name, double x, const char* must) {
    (g.wrong.what << ": " << name << " is ").decimal(x) << ", not " << must;
  }
  constexpr void take(value& v, std::initializer_list<extent> dims, source_line line,
                      const char* op) {
    for (const extent& e : dims) {
      if (v.rank < max_rank) v.dims[v.rank++] = e;
      else if (refuse(fault::S004, line, op, v)) g.wrong.what << ")";
    }
  }
  /// Records a fault of a value that is not in the graph yet. Returns whether it is the first
  /// fault; then the caller appends the details and the closing parenthesis.
  constexpr bool refuse(fault f, source_line line, const char* op, const value& v) {
    if (g.wrong.code != fault::none) return false;
    g.wrong.code = f;
    g.wrong.line = line;
    g.wrong.what << op << "(";
    if (v.scope[0] != 0) g.wrong.what << v.scope << ".";
    g.wrong.what << (v.is == role::input || v.is == role::parameter ? v.name : "its output");
    return true;
  }

  /// Appends what an operand holds and what the op needs: "tokens holds token ids below 11, not
  /// indices below 7".
  [[gnu::cold]] constexpr void tell_integers(const inference& c) {
    const value& v = c.in(c.misread);
    auto& out = g.wrong.what << ": ";
    spell(g, operand(c.n, c.misread), out);
    out << " holds " << name_of(v.holds);
    if (v.below > 0) out << " below " << v.below;
    else if (serves(v.holds, c.needed_kind)) out << " without a bound";
    out << ", not " << name_of(c.needed_kind);
    if (c.needed_bound > 0) out << " below " << c.needed_bound;
  }

  static constexpr value_id operand(const node& n, int k) { return k < 0 ? value_id{-1} : n.in[k]; }
};

constexpr const value& var::type() const { return b->g.at(id); }

/// An operand together with the source line of its expression. Operators take it, since they can
/// have no default arguments.
struct located {
  var x;
  source_line line;
  constexpr located(var v, source_line l = here()) : x(v), line(l) {}
};

} // namespace mc
