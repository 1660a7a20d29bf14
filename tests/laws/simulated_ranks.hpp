// Simulated ranks: the ranks of a small mesh as plain loops of one thread, in double.
//
// A graph is executed as by a machine of `world::ranks()` ranks: every rank holds its own shard of
// every value, nodes compute from the values of their rank, and only redistributions see other
// ranks. Only scatter() and assemble() know the meaning of a placement. They translate between the
// logical value (whole, in the natural order of its elements) and the shards of the ranks, by the
// map of plan/boxes.hpp, which unit/boxes compares with plain loops.
#pragma once

#include <megacpp/graph/letters.hpp>
#include <megacpp/graph/op.hpp>
#include <megacpp/op/numbers.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/plan/boxes.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

namespace mc::laws {

using array = std::vector<double>;

/// An error about something that no rank could do: shapes that do not fit, ids out of range.
struct mismatch : std::runtime_error {
  using std::runtime_error::runtime_error;
};
inline void need(bool fits, const char* what) {
  if (!fits) throw mismatch(what);
}

/// Returns the natural position of element i of a dim of n elements that is stored in balanced
/// order: rank r of `ranks` holds the pieces r and 2 ranks - 1 - r.
inline std::int64_t balanced_position(std::int64_t i, std::int64_t n, int ranks) {
  const std::int64_t chunk = n / (2 * ranks), which = i / chunk, r = which / 2;
  return (which % 2 == 0 ? r : 2 * ranks - 1 - r) * chunk + i % chunk;
}

/// A mesh whose sizes are all known, dp included. Ranks count with the last axis fastest. If it is
/// folded, the expert axes count over the same ranks as the dense axes, without pipeline stages.
struct world {
  std::array<int, axes> size{1, 1, 1, 1, 1, 1, 1};
  bool folded = false;

  int of(axis a) const { return size[static_cast<unsigned>(a)]; }
  int product(int from, int to) const {
    int n = 1;
    for (int a = from; a < to; ++a) n *= size[static_cast<unsigned>(a)];
    return n;
  }
  int ranks() const { return product(0, folded ? static_cast<int>(axis::edp) : axes); }
  int stride(axis a) const {
    const int edp = static_cast<int>(axis::edp), i = static_cast<int>(a);
    return product(i + 1, folded && i < edp ? edp : axes);
  }
  int coordinate(int rank, axis a) const { return rank / stride(a) % of(a); }
  /// Returns the rank that differs from `rank` only in its coordinate on `a`.
  int peer(int rank, axis a, int c) const { return rank + (c - coordinate(rank, a)) * stride(a); }
};

/// The box of a value that one rank holds, in elements of the stored order.
struct block {
  int rank = 0;
  std::array<std::int64_t, max_rank> whole{}, first{}, local{};

  std::int64_t count(int from, int to) const {
    std::int64_t n = 1;
    for (int i = from; i < to; ++i) n *= local[static_cast<unsigned>(i)];
    return n;
  }
  std::int64_t size() const { return count(0, rank); }
  std::int64_t last() const { return local[static_cast<unsigned>(rank - 1)]; }
  std::int64_t rows() const { return count(0, rank - 1); }
};

/// Returns the mesh of a world, with all sizes known.
inline mesh mesh_of(const world& w) {
  mesh m;
  for (unsigned a = 0; a < static_cast<unsigned>(axes); ++a) m.size[a] = w.size[a];
  return m;
}
inline coordinates coordinates_of(const world& w, int rank) {
  coordinates c{};
  for (int a = 0; a < axes; ++a) c[static_cast<unsigned>(a)] = w.coordinate(rank, axis(a));
  return c;
}
/// Returns a value with the extents of all ranks of a world together. Extents over an axis that the
/// graph does not know are one rank's, except those of a range, which are all ranks'.
inline value of_all_ranks(const world& w, const mesh& m, value v) {
  for (unsigned k = 0; k < static_cast<unsigned>(v.rank); ++k) {
    extent& e = v.dims[k];
    std::int64_t ranks = 1;
    for (int a = 0; a < axes; ++a) {
      if (!v.at[axis(a)].is_shard(e.d) || a == range_axis(m, v)) continue;
      ranks *= w.of(axis(a));
      if (!m.sized(axis(a))) e.n *= w.of(axis(a));
    }
    if (e.o == order::balanced) ranks = std::lcm(ranks, std::int64_t{2} * w.of(axis::cp));
    need(e.n % ranks == 0, "a sharded extent does not divide");
  }
  return v;
}
/// Returns the number of elements of a value that a rank holds, with those that pad a range behind
/// its own.
inline std::size_t held_size(const world& w, const mesh& m, const value& v) {
  return static_cast<std::size_t>(local_size(mesh_of(w), of_all_ranks(w, m, v)).n);
}
/// Returns the boxes of a value that a rank holds.
inline boxes boxes_of(const world& w, const mesh& m, const value& v, int rank) {
  return {mesh_of(w), of_all_ranks(w, m, v), coordinates_of(w, rank)};
}
inline block block_of(const world& w, const mesh& m, const value& v, int rank) {
  const value all = of_all_ranks(w, m, v);
  const mesh sizes = mesh_of(w);
  const coordinates here = coordinates_of(w, rank);
  block b;
  b.rank = v.rank;
  for (int i = 0; i < v.rank; ++i) {
    const auto k = static_cast<unsigned>(i);
    b.whole[k] = all.dims[k].n, b.local[k] = local_extent(sizes, all, i);
    b.first[k] = origin_of(sizes, all, i, here);
  }
  return b;
}

/// Returns the index in the logical value of every element that a rank holds, in order.
inline std::vector<std::int64_t> logical_indices(const world& w, const mesh& m, const value& v,
                                                 int rank) {
  const boxes held = boxes_of(w, m, v, rank);
  std::vector<std::int64_t> out;
  out.reserve(static_cast<std::size_t>(held.count().n));
  held.each_contiguous({}, held.count(), [&](local_count, global_count at, std::int64_t n) {
    for (std::int64_t i = 0; i < n; ++i) out.push_back(at.n + i);
  });
  return out;
}

inline std::int64_t logical_size(const world& w, const mesh& m, const value& v) {
  return global_size(of_all_ranks(w, m, v)).n;
}

/// Returns a number in (-1, 1) that depends on its arguments only (splitmix64).
inline double scrambled(std::uint64_t a, std::uint64_t b = 0, std::uint64_t c = 0) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xBF58476D1CE4E5B9u + c * 0x94D049BB133111EBu;
  for (int round = 0; round < 2; ++round) {
    x += 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return static_cast<double>(x >> 11) * 0x1p-52 - 1;
}

/// Returns the elements of a logical value that one rank holds, and zeros that pad it. A pending
/// sum is split at random into addends.
inline array scatter(const world& w, const mesh& m, const value& v, int rank,
                     const array& logical) {
  const auto where = logical_indices(w, m, v, rank);
  array out;
  out.reserve(where.size());
  for (std::int64_t i : where) {
    double x = logical[static_cast<std::size_t>(i)];
    for (int a = 0; a < axes; ++a) {
      const int n = w.size[static_cast<unsigned>(a)], me = w.coordinate(rank, axis(a));
      if (v.at.at[static_cast<unsigned>(a)].s != state::partial) continue;
      const auto share = [&](int c) {
        return scrambled(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(a),
                         static_cast<std::uint64_t>(c));
      };
      double mine = me + 1 < n ? share(me) : 1;
      for (int c = 0; me + 1 == n && c < me; ++c) mine -= share(c);
      x *= mine;
    }
    out.push_back(x);
  }
  out.resize(held_size(w, m, v));
  return out;
}

/// Returns the logical value that the ranks hold together: pending sums added up, shards side by
/// side. `copies` becomes false if ranks that should hold the same value do not, to the bit.
inline array assemble(const world& w, const mesh& m, const value& v, const std::vector<array>& held,
                      bool& copies) {
  const auto size = static_cast<std::size_t>(logical_size(w, m, v));
  std::map<std::vector<int>, array>
      copy_of; // by coordinates on the axes along which v is one value
  for (int r = 0; r < w.ranks(); ++r) {
    std::vector<int> at;
    for (int a = 0; a < axes; ++a) {
      const state s = v.at.at[static_cast<unsigned>(a)].s;
      // A folded value lies on one of the two meshes, and has no place on the other's axes.
      const bool expert_axis = a >= static_cast<int>(axis::edp);
      if (w.folded && a != static_cast<int>(axis::pp) && expert_axis != (spread(v.at) == 2))
        continue;
      if (s == state::invariant || s == state::replicate) at.push_back(w.coordinate(r, axis(a)));
    }
    array& out = copy_of[at];
    out.resize(size);
    const auto where = logical_indices(w, m, v, r);
    need(held_size(w, m, v) == held[static_cast<std::size_t>(r)].size(),
         "a rank holds another extent");
    for (std::size_t i = 0; i < where.size(); ++i)
      out[static_cast<std::size_t>(where[i])] += held[static_cast<std::size_t>(r)][i];
  }
  for (const auto& c : copy_of) copies = copies && c.second == copy_of.begin()->second;
  return copy_of.begin()->second;
}

/// A node on one rank, as its plain-loop implementation sees it.
struct node_task {
  const world& w;
  const graph& g;
  const node& n;
  int rank;
  std::array<const array*, max_inputs> inputs{};
  std::array<array, max_outputs> outputs{};

  bool has(int k) const { return n.in[static_cast<unsigned>(k)] >= 0; }
  const array& in(int k) const { return *inputs[static_cast<unsigned>(k)]; }
  array& out(int k) { return outputs[static_cast<unsigned>(k)]; }
  const value& value_in(int k) const { return g.at(n.in[static_cast<unsigned>(k)]); }
  block in_block(int k) const { return block_of(w, g.ranks, value_in(k), rank); }
  block out_block(int k) const {
    return block_of(w, g.ranks, g.at(n.out[static_cast<unsigned>(k)]), rank);
  }
  template <class A> A attr() const {
    need(n.attr.are<A>(), "attributes of another type");
    return n.attr.as<A>();
  }
};

/// The plain-loop implementations of ops; null for a redistribution, which sees other ranks.
using implementation = void (*)(node_task&);
using implementations = std::map<const op_info*, implementation>;

/// Returns the elements of local array `x` (outer, whole, inner) whose middle index is in [first,
/// first + n).
inline array part_of(const array& x, std::int64_t outer, std::int64_t whole, std::int64_t inner,
                     std::int64_t first, std::int64_t n) {
  need(static_cast<std::int64_t>(x.size()) == outer * whole * inner, "a rank holds another extent");
  array out;
  out.reserve(static_cast<std::size_t>(outer * n * inner));
  for (std::int64_t o = 0; o < outer; ++o)
    for (std::int64_t j = first; j < first + n; ++j)
      for (std::int64_t i = 0; i < inner; ++i)
        out.push_back(x[static_cast<std::size_t>((o * whole + j) * inner + i)]);
  return out;
}

/// Returns a redistributed value, as a communicator would move it between the ranks of one group.
/// Only (from, to) of the node decide what happens.
inline array redistributed(const world& w, const mesh& m, const value& v, const node& n, int rank,
                           const std::vector<array>& held) {
  const auto [over, from, to] = n.attr.as<op::transition>();
  const axis along = over;
  const int ranks = w.of(along), me = w.coordinate(rank, along);
  const auto peer = [&](int c) -> const array& {
    return held[static_cast<std::size_t>(w.peer(rank, along, c))];
  };
  const block b = block_of(w, m, v, rank);
  const auto split = [&](dim d, std::int64_t& outer, std::int64_t& inner) {
    const int at = v.find(d);
    need(at >= 0, "a dim is missing");
    outer = b.count(0, at), inner = b.count(at + 1, b.rank);
  };
  array x = held[static_cast<std::size_t>(rank)];
  if (from.s == state::partial) {
    const bool maximum = from.by == reduction::maximum;
    std::fill(x.begin(), x.end(), maximum ? -std::numeric_limits<double>::infinity() : 0.0);
    for (int c = 0; c < ranks; ++c) {
      need(peer(c).size() == x.size(), "ranks hold different extents");
      for (std::size_t i = 0; i < x.size(); ++i)
        x[i] = maximum ? std::max(x[i], peer(c)[i]) : x[i] + peer(c)[i];
    }
  }
  if (from.s == state::shard) { // side by side; a zero-pad keeps only its own shard
    std::int64_t outer = 1, inner = 1;
    split(from.d, outer, inner);
    const std::size_t run = x.size() / static_cast<std::size_t>(std::max<std::int64_t>(1, outer));
    array whole;
    whole.reserve(x.size() * static_cast<std::size_t>(ranks));
    for (int c = 0; c < ranks; ++c)
      need(peer(c).size() == x.size() && x.size() == run * static_cast<std::size_t>(outer),
           "ranks hold different extents");
    for (std::int64_t o = 0; o < outer; ++o)
      for (int c = 0; c < ranks; ++c) {
        const auto first =
            peer(c).begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(o) * run);
        if (to.s == state::partial && c != me) whole.insert(whole.end(), run, 0.0);
        else whole.insert(whole.end(), first, first + static_cast<std::ptrdiff_t>(run));
      }
    x = std::move(whole);
    value gathered = v;
    gathered.at[along] = I;
    if (range_axis(m, v) >= 0) x.resize(held_size(w, m, gathered)); // removes padding
  }
  if (to.s == state::shard) {
    std::int64_t outer = 1, inner = 1;
    const int at = v.find(to.d);
    need(at >= 0, "a dim is missing");
    for (int i = 0; i < v.rank; ++i) {
      std::int64_t e = b.local[static_cast<unsigned>(i)];
      if (from.is_shard(v.dims[static_cast<unsigned>(i)].d)) e *= ranks;
      if (i < at) outer *= e;
      if (i > at) inner *= e;
    }
    const std::int64_t whole =
        static_cast<std::int64_t>(x.size()) / std::max<std::int64_t>(1, outer * inner);
    const std::int64_t part = sharded_extent(v.dims[static_cast<unsigned>(at)], whole, ranks);
    const bool range = v.rank == 1 && to.is_shard(dim::elements) && !m.sized(along);
    need(range || whole % ranks == 0, "a slice does not divide");
    x.resize(static_cast<std::size_t>(outer * part * ranks * inner)); // pads a range
    x = part_of(x, outer, part * ranks, inner, me * part, part);
  }
  return x;
}

/// The values that the caller gives to parameters and inputs: logical values (one for each
/// micro-batch; the last one serves all further), or, in `local`, the values of each rank.
struct feeds {
  std::map<value_id, std::vector<array>> logical;
  std::map<value_id, std::vector<array>> local;
};

/// A machine that runs a step on simulated ranks.
struct machine {
  const world& w;
  const graph& g;
  const implementations& ops;
  const memory_plan* plan = nullptr;             ///< plan by which gradients lie in memory, or null
  std::vector<std::vector<array>> held;          ///< values of each rank
  std::map<value_id, std::vector<array>> stores; ///< gradients of each leaf
  std::map<std::pair<space, std::int64_t>, std::vector<array>> memory; ///< values at each address
  std::vector<std::vector<std::vector<array>>> after_micro_batch;      ///< copies of `held`

  machine(const world& ranks, const graph& graph_, const implementations& table)
      : w(ranks), g(graph_), ops(table) {
    held.assign(static_cast<std::size_t>(g.value_count),
                std::vector<array>(static_cast<std::size_t>(w.ranks())));
    for (int i = 0; i < g.value_count; ++i) // totals are cleared at the beginning of a step
      if (g.values[i].is == role::input && g.values[i].from == feed::total)
        for (array& x : held[static_cast<std::size_t>(i)]) x = {0.0};
      else if (g.values[i].is == role::input && is_number(g.values[i].from))
        for (array& x : held[static_cast<std::size_t>(i)]) x = {number_of(g.values[i].from)};
  }
  static double number_of(feed f) { return f == feed::seed ? 5 : f == feed::step ? 3 : 0.01; }

  /// Returns whether v lies where the plan says: a gradient that collects, or a value made of such
  /// at the end of the step.
  bool in_memory(value_id v) const {
    const value& x = g.at(v);
    return plan != nullptr && x.producer >= 0 &&
           (x.is == role::gradient || g.at_node(x.producer).when == phase::epilogue);
  }
  std::pair<space, std::int64_t> address_of(value_id v) const {
    return {plan->at[v].in, plan->at[v].offset};
  }
  const std::vector<array>& of(value_id v) const {
    const value& x = g.at(v);
    if (in_memory(v)) return memory.at(address_of(v));
    return x.is == role::gradient ? stores.at(x.grad_of) : held[static_cast<std::size_t>(v)];
  }
  /// Returns the logical value, assembled as its placement says.
  array logical(value_id v, bool& copies) const {
    return assemble(w, g.ranks, g.at(v), of(v), copies);
  }
  array logical(value_id v, std::size_t micro_batch, bool& copies) const {
    return assemble(w, g.ranks, g.at(v),
                    after_micro_batch[micro_batch][static_cast<std::size_t>(v)], copies);
  }

  void take(const feeds& given, std::size_t micro_batch) {
    for (const auto& [v, data] : given.logical) {
      const array& x = data[std::min(micro_batch, data.size() - 1)];
      need(static_cast<std::int64_t>(x.size()) == logical_size(w, g.ranks, g.at(v)),
           "a fed value has another extent");
      for (int r = 0; r < w.ranks(); ++r)
        held[static_cast<std::size_t>(v)][static_cast<std::size_t>(r)] =
            scatter(w, g.ranks, g.at(v), r, x);
    }
    for (const auto& [v, data] : given.local) held[static_cast<std::size_t>(v)] = data;
  }
  /// Runs a whole step: prologue, forward and all parts of the backward pass for each
  /// micro-batch, epilogue.
  void run(const feeds& given, int micro_batches) {
    take(given, 0);
    phase_of(phase::prologue);
    for (int k = 0; k < micro_batches; ++k) {
      forget();
      take(given, static_cast<std::size_t>(k));
      phase_of(phase::forward);
      phase_of(phase::input_gradient);
      phase_of(phase::weight_gradient);
      phase_of(phase::stream_gradient);
      after_micro_batch.push_back(held);
    }
    forget();
    phase_of(phase::epilogue);
  }
  /// Forgets the values of a micro-batch, which end with it.
  void forget() {
    for (int i = 0; i < g.node_count; ++i)
      if (g.at_node(i).when != phase::prologue)
        for (value_id v : g.at_node(i).out)
          if (v >= 0)
            for (array& x : held[static_cast<std::size_t>(v)]) x.clear();
  }
  /// Runs the prologue and the forward pass alone.
  void run_forward(const feeds& given) {
    take(given, 0);
    phase_of(phase::prologue);
    phase_of(phase::forward);
  }
  void phase_of(phase p) {
    for (int i = 0; i < g.node_count; ++i)
      if (g.at_node(i).when == p) execute(g.at_node(i));
  }

  void execute(const node& n) {
    for (value_id v : n.in)
      if (v >= 0) need(!of(v).empty() && !of(v)[0].empty(), "a value is read before it is written");
    if (n.op == &op::add_total) {
      for (int r = 0; r < w.ranks(); ++r)
        held[static_cast<std::size_t>(n.in[0])][static_cast<std::size_t>(r)][0] +=
            of(n.in[1])[static_cast<std::size_t>(r)][0];
      return;
    }
    if (const auto c = crossings().find(n.op->name); n.op->changes_mesh && c != crossings().end())
      return c->second(*this, n);
    const implementation run_op = ops.at(n.op);
    if (run_op == nullptr) {
      const std::vector<array> x = of(n.in[0]);
      for (int r = 0; r < w.ranks(); ++r)
        give(n.out[0], r, redistributed(w, g.ranks, g.at(n.in[0]), n, r, x));
      return;
    }
    for (int r = 0; r < w.ranks(); ++r) {
      node_task t{w, g, n, r};
      for (unsigned k = 0; k < max_inputs; ++k)
        if (n.in[k] >= 0) t.inputs[k] = &of(n.in[k])[static_cast<std::size_t>(r)];
      for (unsigned k = 0; k < max_outputs; ++k)
        if (n.out[k] >= 0 && g.at(n.out[k]).is != role::scratch)
          t.outputs[k].assign(static_cast<std::size_t>(t.out_block(static_cast<int>(k)).size()),
                              0.0);
      run_op(t);
      for (unsigned k = 0; k < max_outputs; ++k)
        if (n.out[k] >= 0 && g.at(n.out[k]).is != role::scratch)
          give(n.out[k], r, std::move(t.outputs[k]));
    }
  }
  /// Ops that see other ranks, besides redistributions, by name.
  using crossing = void (*)(machine&, const node&);
  static std::map<std::string, crossing>& crossings() {
    static std::map<std::string, crossing> table;
    return table;
  }
  /// Writes an output. An output in the main-grad store is added to it.
  void give(value_id v, int rank, array x) {
    const auto r = static_cast<std::size_t>(rank);
    const bool collects = g.at(v).is == role::gradient;
    auto& store = in_memory(v) ? memory[address_of(v)]
                  : collects   ? stores[g.at(v).grad_of]
                               : held[static_cast<std::size_t>(v)];
    store.resize(static_cast<std::size_t>(w.ranks()));
    if (!collects) {
      store[r] = std::move(x);
      return;
    }
    if (store[r].empty()) store[r].assign(x.size(), 0.0);
    need(store[r].size() == x.size(), "gradients of one leaf have different extents");
    for (std::size_t i = 0; i < x.size(); ++i) store[r][i] += x[i];
  }
};

} // namespace mc::laws
