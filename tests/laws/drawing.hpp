// A graph that is drawn twice: once on a mesh, with placements and redistributions, and once on one
// rank, where redistributions vanish. The steps are chosen while the first is drawn, by trying and
// keeping those that the builder accepts, and repeated for the second.
#pragma once

#include <megacpp/graph/letters.hpp>

#include "simulated_ranks.hpp"

#include <deque>
#include <functional>
#include <random>

namespace mc::laws {

struct random_source {
  std::mt19937_64 engine;

  explicit random_source(std::uint64_t seed) : engine(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine() % static_cast<std::uint64_t>(n));
  }
  bool chance(double p) { return static_cast<double>(engine() >> 11) * 0x1p-53 < p; }
  template <class T> const T& pick(const std::vector<T>& from) {
    return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))];
  }
  template <class T> void shuffle(std::vector<T>& x) {
    for (std::size_t i = x.size(); i > 1; --i)
      std::swap(x[i - 1], x[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
  }
};

/// Ops that replace others. With them a test breaks a rule or an adjoint without a hook in the
/// library: nodes are emitted again with the substitute, whose rule then decides.
using substitution = std::map<const op_info*, const op_info*>;

template <class F> auto emitted(builder& b, const substitution& swaps, F f) {
  const int nodes = b.g.node_count, values = b.g.value_count;
  const fault_record wrong = b.g.wrong;
  auto result = f();
  if (swaps.empty()) return result;
  const std::vector<node> made(b.g.nodes + nodes, b.g.nodes + b.g.node_count);
  int kept = values; // inputs that came before the nodes stay
  while (kept < b.g.value_count && b.g.values[kept].is == role::input) ++kept;
  b.g.node_count = nodes, b.g.value_count = kept, b.g.wrong = wrong;
  for (node n : made) {
    if (const auto s = swaps.find(n.op); s != swaps.end()) n.op = s->second;
    set(n.out, {});
    b.emit(n);
  }
  return result;
}

/// The kind of contents of a value that enters a graph.
enum class content : std::uint8_t {
  stream,
  parameter,
  tokens,
  labels,
  positions,
  order,
  slots,
  documents,
  token_keys,
  row,
  codes ///< bytes
};

struct leaf {
  content what = content::parameter;
  std::vector<extent> dims; ///< global extents
  std::int64_t range = 0; ///< tokens, labels and rows are below it; positions and slots begin at it
  bool frozen = false;
  order indexed = order::contiguous; ///< rows: order of the dim that they count

  bool whole_number() const { return what != content::stream && what != content::parameter; }
  integer_kind kind() const {
    switch (what) {
    case content::tokens: return integer_kind::tokens;
    case content::labels: return integer_kind::labels;
    case content::positions: return integer_kind::positions;
    case content::order: return integer_kind::order;
    case content::slots: return integer_kind::slots;
    case content::documents: return integer_kind::documents;
    case content::token_keys: return integer_kind::token_keys;
    case content::row: return integer_kind::last;
    default: return integer_kind::unknown;
    }
  }
  std::int64_t below() const {
    return what == content::positions || what == content::order || what == content::slots
               ? dims[1].n + range
               : range;
  }
};

struct move {
  axis a;
  place to;
};

/// An operand of a step: an earlier value or a new leaf, with the redistributions that bring it
/// into place.
struct operand {
  int value = -1; ///< index in drawing::values; -1: a new leaf
  leaf made;
  placement stored;
  std::vector<move> moves;
};

using emission = std::function<std::vector<var>(const std::vector<var>&)>;

struct step {
  std::vector<operand> operands;
  emission emit;
};

struct drawing {
  builder b;
  int dp = 1;            ///< size of dp, which the graph may not know
  bool one_rank = false; ///< dims are stored in their natural order
  substitution swaps;
  std::vector<value_id> values; ///< all drawn values, in one order on the mesh and on one rank
  std::vector<value_id> leaves;

  explicit drawing(const mesh& m) : b(m) {}

  struct mark {
    int nodes, values, parameters, regions;
    std::size_t drawn, leaves;
  };
  mark here() const {
    return {b.g.node_count,   b.g.value_count, b.g.parameter_count,
            b.g.region_count, values.size(),   leaves.size()};
  }
  /// Undoes a failed try: building only appends, so the counts are set back.
  void back(const mark& m) {
    b.g.node_count = m.nodes, b.g.value_count = m.values, b.g.parameter_count = m.parameters;
    b.g.region_count = m.regions;
    b.g.wrong = {};
    values.resize(m.drawn), leaves.resize(m.leaves);
  }
  bool sound() const { return b.g.wrong.code == fault::none; }

  const value& at(int drawn) const { return b.g.at(values[static_cast<std::size_t>(drawn)]); }
  /// Returns the global extents of a drawn value.
  std::vector<extent> extents(int drawn) const {
    std::vector<extent> e;
    const value& v = at(drawn);
    for (int i = 0; i < v.rank; ++i) {
      e.push_back(v.dims[static_cast<unsigned>(i)]);
      if (!b.g.ranks.sized(axis::dp) && v.at[axis::dp].is_shard(e.back().d)) e.back().n *= dp;
    }
    return e;
  }

  value_id make(const leaf& l, placement stored) {
    std::array<extent, max_rank> e{};
    for (std::size_t i = 0; i < l.dims.size(); ++i) {
      e[i] = l.dims[i];
      if (one_rank) e[i].o = order::contiguous;
      if (!one_rank && !b.g.ranks.sized(axis::dp) && stored[axis::dp].is_shard(e[i].d))
        e[i].n /= dp;
    }
    static std::deque<std::string> names;
    while (names.size() <= leaves.size()) names.push_back("v" + std::to_string(names.size()));
    const char* name = names[leaves.size()].c_str();
    const auto with_dims = [&](auto f) {
      switch (l.dims.size()) {
      case 1: return f({e[0]});
      case 2: return f({e[0], e[1]});
      case 3: return f({e[0], e[1], e[2]});
      default: return f({e[0], e[1], e[2], e[3]});
      }
    };
    value_id id;
    if (l.what == content::parameter) {
      parameter_info info;
      info.frozen = l.frozen, info.decay = l.dims.size() > 1;
      id = with_dims([&](std::initializer_list<extent> d) {
        return b.parameter("p", name, dtype::f64, d, stored, info, 1).id;
      });
    } else {
      id = with_dims([&](std::initializer_list<extent> d) {
        if (!l.whole_number()) return b.input(feed::stream, name, dtype::f64, d, stored, 1).id;
        return b
            .integers(l.what == content::order ? feed::order : feed::tokens, l.kind(), name, d,
                      stored, l.below(), 1)
            .id;
      });
    }
    leaves.push_back(id);
    values.push_back(id);
    return id;
  }

  /// Draws one step, and returns the index of its first result.
  int draw(const step& s) {
    std::vector<var> in;
    for (const operand& o : s.operands) {
      var x{&b, o.value >= 0 ? values[static_cast<std::size_t>(o.value)] : make(o.made, o.stored)};
      for (const move& m : o.moves) {
        x = emitted(b, swaps, [&] { return to(x, m.a, m.to, 2); });
        values.push_back(x.id);
      }
      in.push_back(x);
    }
    const auto first = static_cast<int>(values.size());
    if (s.emit == nullptr) return first - 1;
    const std::vector<var> made = emitted(b, swaps, [&] { return s.emit(in); });
    for (const var& v : made) values.push_back(v.id);
    return first;
  }
};

/// Draws steps with random placements. For every axis by itself, placements of the operands are
/// drawn until the op's rule accepts them on a mesh of that axis alone. Then redistributions that
/// lead there are tried in random order, with detours, until the builder accepts all of them.
struct placer_at_random {
  random_source& random;
  drawing& d;
  std::vector<step>& steps;
  builder trial{mesh{}};

  std::vector<axis> live_axes() const {
    std::vector<axis> a;
    for (axis x : {axis::dp, axis::cp, axis::tp})
      if (!d.b.g.ranks.trivial(x)) a.push_back(x);
    return a;
  }
  std::vector<extent> dims_of(const operand& o) const {
    return o.value >= 0 ? d.extents(o.value) : o.made.dims;
  }

  /// Returns the places to which redistributions can bring an operand on one axis.
  std::vector<place> reachable(const operand& o, axis a) const {
    const bool sized = d.b.g.ranks.sized(a);
    std::vector<place> cut;
    for (const extent& e : dims_of(o))
      if (e.n % (sized ? d.b.g.ranks.of(a) : d.dp) == 0) cut.push_back(S(e.d));
    std::vector<place> out{I, R};
    if (o.value < 0) {
      if (o.made.what == content::stream) out.push_back(P);
      out.insert(out.end(), cut.begin(), cut.end());
      return out;
    }
    const place now = d.at(o.value).at[a];
    if (now.s == state::partial) out.insert(out.end(), 3, P);
    if (sized) out.insert(out.end(), cut.begin(), cut.end());
    else if (now.s == state::shard) out = {now};
    else if (now.s == state::replicate) out = {R};
    return out;
  }

  bool acceptable(axis a, const std::vector<operand>& operands, const std::vector<place>& at,
                  const emission& emit) {
    trial.g.node_count = trial.g.value_count = 0;
    trial.g.wrong = {};
    trial.g.ranks = mesh::one_rank();
    trial.g.ranks.size[static_cast<unsigned>(a)] = d.b.g.ranks.of(a);
    std::vector<var> in;
    for (std::size_t k = 0; k < operands.size(); ++k) {
      value v;
      v.is = role::input;
      const operand& o = operands[k];
      if (o.value >= 0) {
        const value& x = d.at(o.value);
        v.type = x.type, v.holds = x.holds, v.below = x.below;
      } else if (o.made.whole_number()) {
        v.type = dtype::i32, v.holds = o.made.kind(), v.below = o.made.below();
      } else {
        v.type = dtype::f64;
      }
      v.at[a] = at[k];
      v.at[a].level = 0;
      for (extent e : dims_of(operands[k])) {
        if (!d.b.g.ranks.sized(a) && at[k].is_shard(e.d)) e.n /= d.dp;
        v.dims[static_cast<unsigned>(v.rank++)] = e;
      }
      in.push_back({&trial, trial.add(v, 0)});
    }
    emitted(trial, d.swaps, [&] { return emit(in); });
    return trial.g.wrong.code == fault::none;
  }

  /// Returns places of all operands on one axis, or nothing if no try was accepted. Half of the
  /// operands follow a theme, so that operands that belong together are often cut alike.
  std::vector<place> draw_places(axis a, const std::vector<operand>& operands,
                                 const emission& emit) {
    std::vector<std::vector<place>> can;
    std::vector<place> themes{I, R};
    for (const operand& o : operands) {
      can.push_back(reachable(o, a));
      themes.insert(themes.end(), can.back().begin(), can.back().end());
    }
    for (int attempt = 0; attempt < 160; ++attempt) {
      const place theme = random.pick(themes);
      const bool stay = random.chance(0.3);
      std::vector<place> at;
      for (std::size_t k = 0; k < operands.size(); ++k) {
        std::vector<place> wish;
        for (const place& p : can[k]) {
          const bool follows = p.s == theme.s &&
                               (p.d == theme.d || (theme.d == dim::heads && p.d == dim::kv_heads) ||
                                (theme.d == dim::kv_heads && p.d == dim::heads));
          if (follows) wish = {p};
        }
        if (stay && operands[k].value >= 0) wish = {d.at(operands[k].value).at[a]};
        if (wish.empty() && theme.s == state::shard && random.chance(0.7))
          for (const place& p : can[k])
            if (p.s == state::replicate) wish = {p};
        at.push_back(random.pick(wish.empty() || random.chance(0.25) ? can[k] : wish));
      }
      if (acceptable(a, operands, at, emit)) return at;
    }
    return {};
  }

  /// Returns the moves on one axis from one place to another, sometimes by a detour.
  std::vector<move> path(const operand& o, axis a, place from, place to, double detour) {
    std::vector<move> out;
    const auto go = [&](place p) {
      if (from.s == p.s && from.d == p.d) return;
      if (!redistributes(from, p, false)) {
        const std::vector<extent> e = dims_of(o);
        if (e.empty()) return; // a scalar cannot be cut
        out.push_back({a, S(random.pick(e).d)});
      }
      out.push_back({a, p});
      from = p;
    };
    if (d.b.g.ranks.sized(a) && random.chance(detour)) {
      std::vector<place> via{I, R};
      for (const extent& e : dims_of(o)) via.push_back(S(e.d));
      go(random.pick(via));
    }
    go(to);
    return out;
  }
  /// Returns the place where a new leaf is stored that is used at `goal`: parameters are invariant
  /// or sharded.
  place stored_for(const operand& o, axis a, place goal) {
    const bool sized = d.b.g.ranks.sized(a), free = o.made.what != content::parameter;
    std::vector<place> from;
    for (const place& p : reachable(o, a)) {
      if (p.s == state::replicate && !free) continue;
      if (p.s == goal.s && p.d == goal.d) from.insert(from.end(), 4, p);
      else if (redistributes(p, goal, false) && (sized || p.s != state::shard) &&
               (sized || goal.s != state::shard))
        from.push_back(p);
    }
    return random.pick(from);
  }

  /// Brings each operand to its goal by moves in random order over the axes.
  void route(operand& o, const placement& goal, double detour) {
    o.moves.clear();
    std::vector<std::vector<move>> by_axis;
    std::vector<std::size_t> turns;
    for (axis a : live_axes()) {
      if (o.value < 0) o.stored[a] = stored_for(o, a, goal[a]);
      by_axis.push_back(
          path(o, a, o.value < 0 ? o.stored[a] : d.at(o.value).at[a], goal[a], detour));
      turns.insert(turns.end(), by_axis.back().size(), by_axis.size() - 1);
    }
    random.shuffle(turns);
    std::vector<std::size_t> next(by_axis.size());
    for (std::size_t t : turns) o.moves.push_back(by_axis[t][next[t]++]);
  }

  /// Draws the step with random placements; returns -1 if none was found.
  int apply(std::vector<operand> operands, const emission& emit) {
    std::vector<placement> goal(operands.size());
    for (axis a : live_axes()) {
      const std::vector<place> at = draw_places(a, operands, emit);
      if (at.empty()) return -1;
      for (std::size_t k = 0; k < operands.size(); ++k) goal[k][a] = at[k];
    }
    const auto before = d.here();
    for (int attempt = 0; attempt < 12; ++attempt) {
      for (std::size_t k = 0; k < operands.size(); ++k)
        route(operands[k], goal[k], attempt < 2 ? 0.06 : 0.4);
      const step s{operands, emit};
      const int first = d.draw(s);
      if (d.sound()) {
        steps.push_back(s);
        return first;
      }
      d.back(before);
    }
    return -1;
  }
  /// Redistributes a drawn value along one axis.
  int wander(int drawn) {
    const std::vector<axis> live = live_axes();
    if (live.empty() || drawn < 0) return drawn;
    operand o;
    o.value = drawn;
    const axis a = random.pick(live);
    o.moves = path(o, a, d.at(drawn).at[a], random.pick(reachable(o, a)), 0);
    const auto before = d.here();
    const step s{{o}, nullptr};
    const int got = d.draw(s);
    if (d.sound()) {
      steps.push_back(s);
      return o.moves.empty() ? drawn : got;
    }
    d.back(before);
    return drawn;
  }
};

} // namespace mc::laws
