// Mixtures of experts in plain loops and double: the router on one rank, dispatch and combine over
// all ranks, as an all-to-all would move their rows.
#pragma once

#include "plain_rows.hpp"

#include <megacpp/op/experts.hpp>
#include <megacpp/op/router.hpp>

#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace mc::laws::plain {

// --- router --------------------------------------------------------------------------------------

inline array probabilities(const array& l, int64_t row, int64_t experts, double* lse = nullptr) {
  array p;
  double top = l[at(row * experts)], sum = 0;
  for (int64_t e = 0; e < experts; ++e) top = std::max(top, l[at(row * experts + e)]);
  for (int64_t e = 0; e < experts; ++e)
    p.push_back(std::exp(l[at(row * experts + e)] - top)), sum += p.back();
  for (double& x : p) x /= sum;
  if (lse != nullptr) *lse = top + std::log(sum);
  return p;
}
inline void route(node_task& t) { // l, [b] -> w, experts
  const int64_t experts = t.in_block(0).last(), k = t.attr<op::route_attributes>().choices;
  for (int64_t row = 0, rows = t.in_block(0).rows(); row < rows; ++row) {
    const array p = probabilities(t.in(0), row, experts);
    std::vector<int64_t> order;
    for (int64_t e = 0; e < experts; ++e) order.push_back(e);
    const auto score = [&](int64_t e) { return p[at(e)] + (t.has(1) ? t.in(1)[at(e)] : 0.0); };
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return score(a) > score(b); });
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) sum += p[at(order[at(j)])];
    for (int64_t j = 0; j < k; ++j) {
      t.out(0)[at(row * k + j)] =
          p[at(order[at(j)])] / (t.attr<op::route_attributes>().normalise ? sum : 1.0);
      t.out(1)[at(row * k + j)] = static_cast<double>(order[at(j)]);
    }
  }
}
inline void route_grad(
    node_task& t) { // dw, l, experts: by the Jacobians of softmax and of the quotient
  const int64_t experts = t.in_block(1).last(), k = t.attr<op::route_attributes>().choices;
  for (int64_t row = 0, rows = t.in_block(1).rows(); row < rows; ++row) {
    const array p = probabilities(t.in(1), row, experts);
    array dp(at(experts), 0.0);
    double sum = 0;
    const auto chosen = [&](int64_t j) { return whole_number(t.in(2)[at(row * k + j)]); };
    for (int64_t j = 0; j < k; ++j) sum += p[at(chosen(j))];
    for (int64_t i = 0; i < k; ++i)
      for (int64_t j = 0; j < k; ++j) {
        const double w = p[at(chosen(i))] / sum;
        const double slope = t.attr<op::route_attributes>().normalise
                                 ? ((i == j) - w) / sum
                                 : static_cast<double>(i == j); // dw_i / dp_j
        dp[at(chosen(j))] += t.in(0)[at(row * k + i)] * slope;
      }
    for (int64_t e = 0; e < experts; ++e)
      for (int64_t f = 0; f < experts; ++f)
        t.out(0)[at(row * experts + e)] += dp[at(f)] * p[at(f)] * ((e == f) - p[at(e)]);
  }
}
inline void expert_load(node_task& t) { // experts, b
  const int64_t experts = length(t.out(0));
  for (double e : t.in(0)) t.out(0)[at(whole_number(e))] += 1;
  for (double& x : t.out(0))
    x -= static_cast<double>(length(t.in(0))) / static_cast<double>(experts);
}
inline void router_statistics(node_task& t) { // l, experts -> s, c, z
  const block l = t.in_block(0), s = t.out_block(0);
  const int64_t experts = l.last(), group = l.rows() / s.local[0], k = t.in_block(1).last();
  for (int64_t row = 0; row < l.rows(); ++row) {
    double lse = 0;
    const array p = probabilities(t.in(0), row, experts, &lse);
    for (int64_t e = 0; e < experts; ++e) t.out(0)[at(row / group * experts + e)] += p[at(e)];
    for (int64_t j = 0; j < k; ++j)
      t.out(1)[at(row / group * experts + whole_number(t.in(1)[at(row * k + j)]))] += 1;
    t.out(2)[0] += lse * lse;
  }
}
inline void router_statistics_grad(node_task& t) { // ds, dz, l
  const block l = t.in_block(2);
  const int64_t experts = l.last(), group = l.rows() / (length(t.in(0)) / experts);
  for (int64_t row = 0; row < l.rows(); ++row) {
    double lse = 0;
    const array p = probabilities(t.in(2), row, experts, &lse);
    for (int64_t e = 0; e < experts; ++e) {
      double d = 2 * t.in(1)[0] * lse * p[at(e)];
      for (int64_t f = 0; f < experts; ++f)
        d += t.in(0)[at(row / group * experts + f)] * p[at(f)] * ((e == f) - p[at(e)]);
      t.out(0)[at(row * experts + e)] = d;
    }
  }
}
/// E c_e / (choices of its group): the choices of an expert, relative to an even number.
inline double times_its_share(const array& counts, std::size_t i, std::int64_t experts) {
  const std::size_t n = at(experts), first = i / n * n;
  double choices = 0;
  for (std::size_t e = first; e < first + n; ++e) choices += counts[e];
  return counts[i] / choices * static_cast<double>(experts);
}
inline void router_loss(node_task& t) { // s, c, z
  const auto [balance, z] = t.attr<op::router_loss_attributes>();
  for (std::size_t i = 0; i < t.in(0).size(); ++i)
    t.out(0)[0] += balance * t.in(0)[i] * times_its_share(t.in(1), i, t.in_block(1).last());
  t.out(0)[0] += z * t.in(2)[0];
}
inline void router_loss_grad(node_task& t) { // dL, c -> ds, dz
  const auto [balance, z] = t.attr<op::router_loss_attributes>();
  for (std::size_t i = 0; i < t.in(1).size(); ++i)
    t.out(0)[i] = balance * t.in(0)[0] * times_its_share(t.in(1), i, t.in_block(1).last());
  t.out(1)[0] = z * t.in(0)[0];
}

// --- experts -------------------------------------------------------------------------------------

/// Returns the expert of a row among the `mine` of the rank, by counts (E, sequences); -1: an
/// unused row.
inline int64_t expert_of(node_task& t, int64_t row, int64_t mine) {
  const array& counts = t.in(2);
  const int64_t sequences = t.in_block(2).last(), first = t.w.coordinate(t.rank, axis::ep) * mine;
  for (int64_t i = first * sequences; i < (first + mine) * sequences; ++i)
    if ((row -= whole_number(counts[at(i)])) < 0) return i / sequences - first;
  return -1;
}
inline void grouped_linear(node_task& t) { // x, w (E, N, K), counts
  const block w = t.in_block(1);
  const int64_t n = w.local[1], k = w.local[2];
  need(t.in_block(0).last() == k && t.in_block(2).rows() % w.local[0] == 0, "grouped_linear");
  for (int64_t row = 0, rows = t.in_block(0).rows(); row < rows; ++row) {
    const int64_t e = expert_of(t, row, w.local[0]);
    for (int64_t i = 0; e >= 0 && i < n; ++i)
      for (int64_t j = 0; j < k; ++j)
        t.out(0)[at(row * n + i)] += t.in(0)[at(row * k + j)] * t.in(1)[at((e * n + i) * k + j)];
  }
}
inline void grouped_input_grad(node_task& t) { // dy, w (E, N, K), counts
  const block w = t.in_block(1);
  const int64_t n = w.local[1], k = w.local[2];
  for (int64_t row = 0, rows = t.in_block(0).rows(); row < rows; ++row) {
    const int64_t e = expert_of(t, row, w.local[0]);
    for (int64_t i = 0; e >= 0 && i < n; ++i)
      for (int64_t j = 0; j < k; ++j)
        t.out(0)[at(row * k + j)] += t.in(0)[at(row * n + i)] * t.in(1)[at((e * n + i) * k + j)];
  }
}
inline void grouped_weight_grad(node_task& t) { // dy, x, counts
  const int64_t n = t.in_block(0).last(), k = t.in_block(1).last();
  for (int64_t row = 0, rows = t.in_block(0).rows(); row < rows; ++row) {
    const int64_t e = expert_of(t, row, t.out_block(0).local[0]);
    for (int64_t i = 0; e >= 0 && i < n; ++i)
      for (int64_t j = 0; j < k; ++j)
        t.out(0)[at((e * n + i) * k + j)] += t.in(0)[at(row * n + i)] * t.in(1)[at(row * k + j)];
  }
}
inline void scale_rows(node_task& t) { // x, w
  const int64_t width = length(t.in(0)) / std::max<int64_t>(length(t.in(1)), 1);
  for (int64_t i = 0; i < length(t.out(0)); ++i)
    t.out(0)[at(i)] = t.in(0)[at(i)] * t.in(1)[at(i / width)];
}
inline void scale_rows_weight_grad(node_task& t) { // dy, x, w
  const int64_t width = length(t.in(0)) / std::max<int64_t>(length(t.in(2)), 1);
  for (int64_t i = 0; i < length(t.in(0)); ++i)
    t.out(0)[at(i / width)] += t.in(0)[at(i)] * t.in(1)[at(i)];
}

// --- crossings -----------------------------------------------------------------------------------

/// Returns the rank at these coordinates of the expert mesh.
inline int expert_rank(const world& w, int edp, int ep, int etp) {
  return (edp * w.of(axis::ep) + ep) * w.of(axis::etp) + etp;
}
inline block block_on(const machine& m, value_id v, int rank) {
  return block_of(m.w, m.g.ranks, m.g.at(v), rank);
}
/// Calls f(rank that sends, number of the choice there, expert) in the order of a group's rows.
template <class F> void for_choices(const machine& m, value_id experts, int edp, F f) {
  for (int rank = 0; rank < m.w.ranks(); ++rank) {
    if (m.w.coordinate(rank, axis::edp) != edp) continue;
    const array& chosen = m.of(experts)[at(rank)];
    for (int64_t i = 0; i < length(chosen); ++i) f(rank, i, whole_number(chosen[at(i)]));
  }
}
/// Returns the choices that their experts drop, by rank and number: those behind the first
/// `capacity` of a micro-batch, sorted by their tokens' positions in it.
inline std::set<std::pair<int, int64_t>> dropped_choices(const machine& m, value_id experts,
                                                         int64_t capacity) {
  std::map<std::tuple<int, int64_t>, std::pair<int, int64_t>> sorted; // by replica and place
  for (int rank = 0; rank < m.w.ranks(); ++rank) {
    const auto place = logical_indices(m.w, m.g.ranks, m.g.at(experts), rank);
    for (int64_t i = 0; i < length(m.of(experts)[at(rank)]); ++i)
      sorted[{m.w.coordinate(rank, axis::dp), place[at(i)]}] = {rank, i};
  }
  std::map<std::pair<int, int64_t>, int64_t> taken; // by replica and expert
  std::set<std::pair<int, int64_t>> dropped;
  for (const auto& [key, choice] : sorted) {
    const int64_t e = whole_number(m.of(experts)[at(choice.first)][at(choice.second)]);
    if (taken[{std::get<0>(key), e}]++ >= capacity) dropped.insert(choice);
  }
  return dropped;
}
inline void expert_rows(machine& m, const node& n) { // experts, [all] -> row, counts, rounds
  const int groups = m.w.of(axis::edp), ep = m.w.of(axis::ep), etp = m.w.of(axis::etp);
  const auto [round, experts, most] = n.attr.as<op::expert_rows_attributes>();
  const int64_t mine = experts / ep;
  std::set<std::pair<int, int64_t>> over;
  if (most > 0) over = dropped_choices(m, n.in[0], most);
  std::vector<array> row(at(m.w.ranks()));
  for (int rank = 0; rank < m.w.ranks(); ++rank) row[at(rank)] = m.of(n.in[0])[at(rank)];
  for (int g = 0; g < groups; ++g) {
    const int64_t sequences = m.g.at(n.out[1]).back().n;
    array counts(at(experts * sequences), 0.0);
    for (int q = 0; q < ep; ++q) {
      int64_t next = 0;
      for (int64_t e = q * mine; e < (q + 1) * mine; ++e) {
        std::map<int, int64_t> sender;
        for_choices(m, n.in[0], g, [&](int rank, int64_t i, int64_t chosen) {
          const int64_t number =
              sender.emplace(rank, static_cast<int64_t>(sender.size())).first->second;
          if (chosen != e) return;
          const int64_t of_rank = sequences / (ep * etp);
          const int64_t s = number * of_rank + i / (length(row[at(rank)]) / of_rank);
          const bool dropped = over.contains({rank, i});
          if (!dropped) ++counts[at(e * sequences + s)];
          row[at(rank)][at(i)] = dropped ? -1.0 : static_cast<double>(next++);
        });
      }
      need(next <= round, "more rows than a round holds");
    }
    for (int q = 0; q < ep; ++q)
      for (int s = 0; s < etp; ++s) m.give(n.out[1], expert_rank(m.w, g, q, s), counts);
  }
  for (int rank = 0; rank < m.w.ranks(); ++rank) {
    m.give(n.out[0], rank, row[at(rank)]);
    m.give(n.out[2], rank, {1.0});
  }
}
/// The elements that one choice moves: [first, first + count) of the sender's value, and of a row.
struct parcel {
  int64_t first, count;
};
inline parcel parcel_of(const value& sent, int64_t choice, int64_t k) {
  if (sent.back().d == dim::choices) return {choice, 1};
  return {choice / k * sent.back().n, sent.back().n};
}
// Dispatches the rows of the first round; rows of later rounds are not in it.
inline void dispatch(machine& m, const node& n) { // x, experts, row, counts -> rows
  const int64_t round = n.attr.as<op::crossing_attributes>().rows;
  const int ep = m.w.of(axis::ep), etp = m.w.of(axis::etp);
  const int64_t mine = m.g.at(n.in[3]).dims[1].n / ep, k = m.g.at(n.in[1]).back().n;
  std::vector<array> rows;
  for (int rank = 0; rank < m.w.ranks(); ++rank)
    rows.emplace_back(at(block_on(m, n.out[0], rank).size()), 0.0);
  for (int g = 0; g < m.w.of(axis::edp); ++g)
    for_choices(m, n.in[1], g, [&](int rank, int64_t i, int64_t e) {
      const int64_t to = whole_number(m.of(n.in[2])[at(rank)][at(i)]);
      const parcel p = parcel_of(m.g.at(n.in[0]), i, k);
      for (int s = 0; to >= 0 && to < round && s < etp; ++s)
        for (int64_t j = 0; j < p.count; ++j)
          rows[at(expert_rank(m.w, g, static_cast<int>(e / mine), s))][at(to * p.count + j)] =
              m.of(n.in[0])[at(rank)][at(p.first + j)];
    });
  for (int rank = 0; rank < m.w.ranks(); ++rank) m.give(n.out[0], rank, rows[at(rank)]);
}
inline void combine(machine& m, const node& n) { // rows, experts, row, counts -> y
  const int64_t round = n.attr.as<op::crossing_attributes>().rows;
  const int ep = m.w.of(axis::ep), etp = m.w.of(axis::etp);
  const int64_t mine = m.g.at(n.in[3]).dims[1].n / ep, k = m.g.at(n.in[1]).back().n;
  std::vector<array> y;
  for (int rank = 0; rank < m.w.ranks(); ++rank)
    y.emplace_back(at(block_on(m, n.out[0], rank).size()), 0.0);
  for (int g = 0; g < m.w.of(axis::edp); ++g)
    for_choices(m, n.in[1], g, [&](int rank, int64_t i, int64_t e) {
      const int64_t from = whole_number(m.of(n.in[2])[at(rank)][at(i)]);
      const parcel p = parcel_of(m.g.at(n.out[0]), i, k);
      for (int s = 0; from >= 0 && from < round && s < etp; ++s)
        for (int64_t j = 0; j < p.count; ++j)
          y[at(rank)][at(p.first + j)] +=
              m.of(n.in[0])[at(expert_rank(m.w, g, static_cast<int>(e / mine), s))]
                           [at(from * p.count + j)];
    });
  for (int rank = 0; rank < m.w.ranks(); ++rank) m.give(n.out[0], rank, y[at(rank)]);
}
inline const bool crossings_known = [] {
  machine::crossings() = {
      {"expert_rows", &expert_rows}, {"dispatch", &dispatch}, {"combine", &combine}};
  return true;
}();

} // namespace mc::laws::plain
