// Counts of the cases that random graphs have exercised, so that the law cannot hold for lack of
// cases.
#pragma once

#include "random_graph.hpp"

#include <set>

namespace mc::laws {

struct coverage {
  std::map<std::string, int> forward, derived; ///< redistributions, "I -> R"
  std::map<std::string, int> sharded;          ///< ops with an operand or result that is sharded
  std::map<std::string, int> seen;             ///< ops that were executed
  /// Counts rules: the states of an op's operands over an axis with several ranks, "linear(S
  /// hidden, R)"; a redistribution with its axis, "to I -> R over tp".
  std::map<std::string, int> rules;
  int outer_first = 0,
      inner_first = 0; ///< values with two axes on one dim: in axis order, and not
  int over[axes]{};    ///< graphs with several ranks on each axis
  int balanced = 0, over_unsized_dp = 0, prologue = 0, epilogue = 0, tied = 0, frozen = 0;

  static const char* letter(state s) {
    constexpr const char* letters[] = {"I", "R", "P", "S"};
    return letters[static_cast<int>(s)];
  }
  static std::string arrow(state from, state to) {
    return std::string(letter(from)) + " -> " + letter(to);
  }

  void count(const sample& s, const graph& g) {
    for (int a = 0; a < axes; ++a) over[a] += s.ranks.size[static_cast<unsigned>(a)] > 1;
    const auto cut = [&](value_id v) {
      for (int a = 0; v >= 0 && a < axes; ++a)
        if (g.at(v).at.at[static_cast<unsigned>(a)].s == state::shard &&
            s.ranks.size[static_cast<unsigned>(a)] > 1)
          return true;
      return false;
    };
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      ++seen[n.op->name];
      bool any = false;
      for (value_id v : n.in) any = any || cut(v);
      for (value_id v : n.out) any = any || cut(v);
      if (any) ++sharded[n.op->name];
      for (int a = 0; a < axes; ++a)
        if (s.ranks.size[static_cast<unsigned>(a)] > 1) count_rule(g, n, static_cast<axis>(a));
      if (n.when == phase::prologue) ++prologue;
      if (n.when == phase::epilogue) ++epilogue;
      if (n.op != &op::redistribute) continue;
      if (const auto t = n.attr.as<op::transition>(); s.ranks.of(t.over) > 1)
        ++(n.derived ? derived : forward)[arrow(t.from.s, t.to.s)];
    }
    for (int i = 0; i < g.value_count; ++i) count_value(s, g, g.at(static_cast<value_id>(i)));
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
      frozen += p.frozen;
      int readers = 0;
      for (int k = 0; k < g.node_count; ++k)
        readers += !g.at_node(k).derived && std::ranges::count(g.at_node(k).in, p.v) > 0;
      tied += readers > 1;
    }
  }
  void count_rule(const graph& g, const node& n, axis a) {
    std::string rule = n.op->name;
    if (n.op == &op::redistribute) {
      const auto t = n.attr.as<op::transition>();
      if (t.over != a) return;
      rule += std::string(n.derived ? ", derived, " : " ") + arrow(t.from.s, t.to.s) + " over " +
              name_of(a);
    } else {
      bool any = false;
      rule += "(";
      for (value_id v : n.in) {
        if (v < 0) continue;
        const place p = g.at(v).at[a];
        any = any || p.s != state::invariant;
        rule += std::string(letter(p.s)) + (p.s == state::shard ? name_of(p.d) : "") + " ";
      }
      rule.back() = ')';
      if (!any) return;
    }
    ++rules[rule];
  }
  void count_value(const sample& s, const graph& g, const value& v) {
    for (int d = 0; d < v.rank; ++d) {
      const extent& e = v.dims[static_cast<unsigned>(d)];
      for (int a = 0; a < axes; ++a) {
        const place& p = v.at.at[static_cast<unsigned>(a)];
        if (!p.is_shard(e.d) || s.ranks.size[static_cast<unsigned>(a)] < 2) continue;
        if (e.o == order::balanced) ++balanced;
        if (!g.ranks.sized(axis(a))) ++over_unsized_dp;
        for (int b = a + 1; b < axes; ++b) {
          const place& q = v.at.at[static_cast<unsigned>(b)];
          if (q.is_shard(e.d) && s.ranks.size[static_cast<unsigned>(b)] > 1)
            ++(p.level < q.level ? outer_first : inner_first);
        }
      }
    }
  }

  /// Returns the cases that are missing: of every redistribution of the table and every transpose,
  /// every op, every op whose operands have dims on a sharded axis, both orders of two axes on one
  /// dim, and the other counts.
  std::vector<std::string> missing(int at_least) const {
    std::vector<std::string> out;
    using enum state;
    const std::pair<state, state> table[] = {
        {invariant, replicate}, {partial, invariant}, {partial, replicate},
        {shard, replicate},     {shard, invariant},   {partial, shard},
        {invariant, shard},     {replicate, shard},   {shard, shard}};
    const auto look = [&](const std::map<std::string, int>& in, const std::string& key,
                          const char* what) {
      const auto found = in.find(key);
      if (found == in.end() || found->second < at_least)
        out.push_back(std::string(what) + " " + key);
    };
    for (const auto& [from, to] : table) {
      look(forward, arrow(from, to), "redistribution");
      look(derived, arrow(cotangent(place{to}).s, cotangent(place{from}).s),
           "derived redistribution");
    }
    for (const auto& [op, run] : plain::dense()) {
      look(seen, op->name, "op");
      if (op != &op::clip_factor) look(sharded, op->name, "sharded op"); // it has scalars only
    }
    for (const op_info* op : {&op::route, &op::expert_rows, &op::dispatch, &op::combine,
                              &op::grouped_linear, &op::scale_rows, &op::grouped_weight_grad})
      look(sharded, op->name, "sharded op");
    for (const axis a : {axis::dp, axis::cp, axis::tp, axis::pp, axis::edp, axis::ep, axis::etp})
      if (over[static_cast<unsigned>(a)] < at_least)
        out.push_back(std::string("a graph over ") + name_of(a));
    const std::pair<int, const char*> counts[] = {
        {outer_first, "two axes on one dim, outer first"},
        {inner_first, "two axes on one dim, inner first"},
        {balanced, "a sharded dim in balanced order"},
        {over_unsized_dp, "a dim over dp of unknown size"},
        {tied, "a parameter used more than once"},
        {frozen, "a frozen parameter"},
        {prologue, "a node of the prologue"},
        {epilogue, "a node of the epilogue"}};
    for (const auto& [n, what] : counts)
      if (n < at_least) out.push_back(what);
    return out;
  }
};

} // namespace mc::laws
