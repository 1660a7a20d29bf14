// The law: a graph on any mesh computes the same as on one rank. The values and gradients that
// simulated ranks hold are assembled as their placements say, and compared with those of one rank.
#pragma once

#include "random_graph.hpp"

#include <megacpp/pass/verify_hoist.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/update.hpp>

#include <memory>
#include <optional>
#include <sstream>

namespace mc::laws {

inline constexpr double tolerance = 1e-10;

inline double norm_of(const array& x) {
  double s = 0;
  for (double e : x) s += e * e;
  return std::sqrt(s);
}
/// Returns whether |a - b| <= tolerance |b|, with a floor of `scale` for tensors that are zero
/// except for rounding.
inline bool close(const array& a, const array& b, double scale, double allowed = tolerance) {
  if (a.size() != b.size()) return false;
  double d = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i] != b[i]) d += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(d) <= allowed * std::max(norm_of(b), 1e-3 * scale);
}

/// Records the first fault of a graph's nodes, and of its gradients.
inline void examine(graph& g, const gradients* of_inputs = nullptr) {
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  if (g.wrong.code == fault::none && of_inputs != nullptr) g.wrong = verify_gradients(g, of_inputs);
}

/// Runs the passes over a drawn graph: redistributions of parameters are hoisted, the backward pass
/// is derived, and both are verified. Returns the code of the first fault.
inline fault derive(drawing& d, value_id output, gradients& found) {
  graph& g = d.b.g;
  g.outputs[0] = output;
  const auto written = std::make_unique<graph>(g);
  hoist(g);
  if (g.wrong.code == fault::none) g.wrong = verify_hoist(g, *written);
  examine(g);
  if (g.wrong.code != fault::none) return g.wrong.code;
  found = differentiate(d.b);
  examine(g, &found);
  return g.wrong.code;
}

/// Draws the same graph on one rank.
inline bool draw_single(sample& s) {
  for (const step& t : s.steps) s.single.draw(t);
  return s.single.sound() && s.single.values.size() == s.meshed.values.size();
}

inline std::string describe(const graph& g) {
  if (g.wrong.code == fault::none) return "no fault";
  std::ostringstream out;
  out << code_of(g.wrong.code) << " " << g.wrong.what.c_str();
  return out.str();
}

/// The feeds of one graph, and the values that one rank computes from them.
class comparison {
public:
  static constexpr int micro_batches = 2;

  /// A function that runs a step of several micro-batches on simulated ranks.
  using runner = void (*)(machine&, const feeds&, int);
  static void one_after_another(machine& m, const feeds& given, int micros) {
    m.run(given, micros);
  }

  comparison(const sample& sample_, std::uint64_t seed, const implementations& ops_ = plain::all(),
             runner run = &one_after_another)
      : s(sample_), ops(ops_), step(run) {
    random_source random(seed);
    for (std::size_t i = 0; i < s.leaves.size(); ++i) { // a batch has its documents once
      const auto documents = [&](std::size_t at) {
        return s.leaves[at].what == content::documents;
      };
      std::size_t k = 0;
      while (k < i && !(documents(i) && documents(k))) ++k;
      data.push_back(k < i ? data[k] : contents(s.leaves[i], random));
    }
    const value& out = s.single.at(s.output);
    for (int k = 0; k < micro_batches; ++k) {
      array x(static_cast<std::size_t>(logical_size(one, s.single.b.g.ranks, out)));
      for (double& e : x) e = uniform(random);
      seeds.push_back(x);
    }
    for (int k = 0; k < micro_batches; ++k) {
      reference.emplace_back(one, s.single.b.g, plain::all());
      reference.back().run(given(s.single, s.single.b.g, static_cast<std::size_t>(k)), 1);
    }
  }

  /// Returns the first difference between one rank and `g`, a graph of s.meshed after any passes;
  /// "" if there is none. Numerical noise is relative to the largest gradient.
  std::string difference(const graph& g) { return difference(g, nullptr); }
  /// Returns the first difference with gradients at the addresses of the graph's memory plan, which
  /// is verified, too.
  std::string difference_in_memory(const graph& whole) {
    const graph g = whole.region_count > 0 ? in_regions(whole) : whole;
    if (g.wrong.code != fault::none) return describe(g);
    const auto plan = std::make_unique<memory_plan>(place_memory(g));
    const fault_record wrong = verify_memory(g, *plan);
    if (wrong.code != fault::none)
      return std::string("memory: ") + code_of(wrong.code) + " " + wrong.what.c_str();
    return difference(g, plan.get());
  }
  std::string difference(const graph& g, const memory_plan* plan) {
    try {
      machine m(s.ranks, g, ops);
      m.plan = plan;
      step(m, given(s.meshed, g, std::nullopt), micro_batches);
      std::string wrong = forward_difference(m);
      if (wrong.empty()) wrong = total_difference(m);
      if (wrong.empty()) wrong = gradient_difference(m);
      return wrong;
    } catch (const std::exception& e) {
      return e.what();
    }
  }

  /// Returns the first difference of a graph without a backward pass, as an evaluation has it.
  std::string forward_difference(const graph& g) {
    try {
      machine m(s.ranks, g, ops);
      step(m, given(s.meshed, g, std::nullopt), micro_batches);
      return forward_difference(m);
    } catch (const std::exception& e) {
      return e.what();
    }
  }

  /// Compares the gradient norm that the end of a step computes on the ranks with that of one rank,
  /// and checks that each element of the update is counted once. Stages have gradients of their
  /// own: those of stage k are k + 1 times as large.
  std::string norm_difference(const graph& g, const graph& update, const registry& r) {
    machine m(s.ranks, g, ops);
    m.run(given(s.meshed, g, std::nullopt), micro_batches);
    feeds f;
    for (int i = 0; i < update.value_count; ++i) {
      const auto v = static_cast<value_id>(i);
      const value& x = update.at(v);
      if (x.is != role::input) continue;
      if (x.from == feed::total) {
        if (x.feed_index == static_cast<int>(step_total::whole_tokens)) f.logical[v] = {{tokens}};
        continue;
      }
      const registry::bucket& group = r.buckets[static_cast<unsigned>(x.feed_index)];
      auto& local = f.local[v];
      local.assign(static_cast<std::size_t>(s.ranks.ranks()),
                   array(static_cast<std::size_t>(group.count)));
      if (x.from != feed::gradient) continue;
      for (int e = 0; e < r.entry_count; ++e) {
        const registry::entry& entry = r.entries[static_cast<unsigned>(e)];
        const parameter_info& p = g.parameters[static_cast<unsigned>(entry.parameter)];
        if (entry.bucket != x.feed_index || p.frozen) continue;
        const auto& held = m.of(s.of_meshed.of[static_cast<unsigned>(p.v)]);
        for (std::size_t k = 0; k < held.size(); ++k)
          std::transform(
              held[k].begin(), held[k].end(),
              local[k].begin() + static_cast<std::ptrdiff_t>(entry.offset - group.offset),
              [&](double x) { return x * scale_of(static_cast<int>(k)); });
      }
    }
    machine end(s.ranks, update, ops);
    end.run_forward(f);
    bool copies = true;
    const double got = end.logical(update.outputs[1], copies)[0];
    double squares = 0;
    for (std::size_t i = 0; i < s.leaves.size(); ++i)
      if (s.leaves[i].what == content::parameter && !s.leaves[i].frozen && has_gradient(g, i))
        squares += std::pow(norm_of(reference_gradient(i)), 2);
    double stages = 0;
    for (int k = 0; k < s.ranks.of(axis::pp); ++k) stages += (k + 1) * (k + 1);
    const double want = std::sqrt(squares * stages) / tokens;
    if (!copies) return "ranks have different gradient norms";
    if (std::abs(got - want) > tolerance * want) return "gradient norm";
    if (update.outputs[0] < 0) return "";
    end.phase_of(phase::epilogue);
    std::int64_t elements = 0;
    for (int k = 0; k < r.bucket_count; ++k) {
      const registry::bucket& group = r.buckets[static_cast<unsigned>(k)];
      std::int64_t n = group.frozen || group.update != update_rule::adamw ? 0 : group.count;
      for (int a = 0; a < axes; ++a)
        if (group.at.at[static_cast<unsigned>(a)].s == state::shard)
          n *= s.ranks.of(static_cast<axis>(a));
      elements += n;
    }
    // The plain implementation of adamw counts every element.
    const double counted = end.logical(update.outputs[0], copies)[0];
    if (!copies) return "ranks have counted differently";
    return counted == static_cast<double>(elements) ? "" : "a rank's count";
  }

  /// Returns the difference between one rank's gradient and the central difference of its output in
  /// one random direction, relative to the product of the norms: of all leaves, or of `only` one.
  double slope_error(std::uint64_t seed, std::optional<std::size_t> only = {}) {
    random_source random(seed);
    double along = 0, norms = 0, lengths = 0;
    std::vector<array> direction;
    for (std::size_t i = 0; i < s.leaves.size(); ++i) {
      direction.push_back({});
      if (!trainable(i) || !has_gradient(s.meshed.b.g, i) || (only && i != *only)) continue;
      bool copies = true;
      const value_id v = s.single.leaves[i], d = s.of_single.of[static_cast<unsigned>(v)];
      if (d < 0) continue;
      const array g = s.leaves[i].what == content::parameter ? reference[0].logical(d, copies)
                                                             : reference[0].logical(d, 0, copies);
      for (double e : g) {
        direction.back().push_back(uniform(random));
        along += e * direction.back().back();
        norms += e * e;
        lengths += direction.back().back() * direction.back().back();
      }
    }
    if (norms == 0) return 0;
    const auto value_at = [&](double t) {
      feeds f = given(s.single, s.single.b.g, 0);
      for (std::size_t i = 0; i < s.leaves.size(); ++i)
        for (std::size_t k = 0; k < direction[i].size(); ++k)
          f.logical[s.single.leaves[i]][0][k] += t * direction[i][k];
      machine m(one, s.single.b.g, plain::all());
      m.run_forward(f);
      const array& y = m.of(s.single.values[static_cast<std::size_t>(s.output)])[0];
      double sum = 0;
      for (std::size_t k = 0; k < y.size(); ++k) sum += y[k] * seeds[0][k];
      if (const value_id side = s.single.b.g.side_loss; side >= 0) sum += m.of(side)[0][0];
      return sum;
    };
    const double h = 2e-5, inner = value_at(h) - value_at(-h),
                 outer = value_at(2 * h) - value_at(-2 * h);
    return std::abs((8 * inner - outer) / (12 * h) - along) / std::sqrt(norms * lengths);
  }

private:
  const sample& s;
  const implementations& ops;
  runner step;
  world one;
  std::vector<std::vector<array>> data; ///< by leaf and micro-batch, in natural order
  std::vector<array> seeds;             ///< cotangents of the output, one for each micro-batch
  std::deque<machine> reference;
  static constexpr double tokens = 7;

  static double uniform(random_source& r) {
    return static_cast<double>(r.engine() >> 11) * 0x1p-52 - 1;
  }
  /// Returns the factor of the gradients on a rank's stage.
  double scale_of(int rank) const { return s.ranks.coordinate(rank, axis::pp) + 1; }
  bool trainable(std::size_t i) const {
    return s.leaves[i].what == content::stream ||
           (s.leaves[i].what == content::parameter && !s.leaves[i].frozen);
  }

  /// Returns whether leaf i has a gradient in the norm. A parameter that collects loads in place of
  /// a gradient has none.
  bool has_gradient(const graph& g, std::size_t i) const {
    const parameter_info* p = g.parameter_of(s.meshed.leaves[i]);
    return p == nullptr || p->update == update_rule::adamw;
  }

  static std::vector<array> contents(const leaf& l, random_source& r) {
    std::int64_t n = 1, inner = 1;
    for (const extent& e : l.dims) n *= e.n;
    for (std::size_t i = 1; i < l.dims.size(); ++i) inner *= l.dims[i].n;
    const std::int64_t seq = l.dims.size() > 1 ? l.dims[1].n : 1;
    std::vector<array> out;
    const bool fixed = l.what == content::parameter || l.what == content::codes;
    for (int k = 0; k < (fixed ? 1 : micro_batches); ++k) {
      array x;
      for (std::int64_t i = 0; i < n; ++i) {
        switch (l.what) {
        case content::stream: x.push_back(uniform(r)); break;
        case content::parameter:
          if (l.dims.back().d == dim::scales) x.push_back(0.2 * uniform(r)); // of weights in NF4
          else
            x.push_back(l.dims.size() > 1 ? 1.5 * uniform(r) / std::sqrt(static_cast<double>(inner))
                                          : 0.5 + uniform(r));
          break;
        case content::labels:
          x.push_back(r.chance(0.2) ? -1 : static_cast<double>(r.below(l.range)));
          break;
        case content::tokens:
        case content::row: x.push_back(static_cast<double>(r.below(l.range))); break;
        case content::positions:
        case content::order:
        case content::slots: x.push_back(static_cast<double>(i % seq + l.range)); break;
        case content::documents:
          x.push_back(i % seq == 0 ? 0 : x.back() + static_cast<double>(r.chance(0.3)));
          break;
        case content::codes: x.push_back(static_cast<double>(r.below(256))); break;
        case content::token_keys:
          x.push_back(static_cast<double>(r.below(std::int64_t{1} << 31)));
          break;
        }
      }
      out.push_back(x);
    }
    return out;
  }

  /// Returns the feeds of all micro-batches, or of one.
  feeds given(const drawing& d, const graph& g, std::optional<std::size_t> only) const {
    feeds f;
    const auto select = [&](const std::vector<array>& x) {
      return only ? std::vector<array>{x[std::min(*only, x.size() - 1)]} : x;
    };
    for (std::size_t i = 0; i < s.leaves.size(); ++i) {
      auto& x = f.logical[d.leaves[i]] = select(data[i]);
      for (array& e : x) // leaves out the rows that pad a vocabulary
        e.resize(std::min(e.size(), static_cast<std::size_t>(logical_size(
                                        d.one_rank ? one : s.ranks, g.ranks, g.at(d.leaves[i])))));
      if (d.one_rank || s.leaves[i].what != content::row || s.leaves[i].indexed != order::balanced)
        continue;
      for (array& rows : x) // a row counts in the order of storage
        for (double& e : rows) {
          std::int64_t stored = 0;
          while (balanced_position(stored, s.leaves[i].range, s.ranks.of(axis::cp)) !=
                 static_cast<std::int64_t>(e))
            ++stored;
          e = static_cast<double>(stored);
        }
    }
    for (int i = 0; i < g.value_count; ++i) {
      const value& v = g.at(static_cast<value_id>(i));
      if (v.is == role::input && v.from == feed::d_output)
        f.logical[static_cast<value_id>(i)] =
            v.feed_index == 0 ? select(seeds) : std::vector<array>{{1.0}}; // 1 for the side loss
    }
    return f;
  }

  std::string forward_difference(const machine& m) {
    for (std::size_t k = 0; k < micro_batches; ++k)
      for (std::size_t i = 0; i < s.meshed.values.size(); ++i) {
        const value_id v = s.meshed.values[i], w = s.single.values[i];
        // Row numbers count differently on ranks, and other values were fused away, here or there.
        if (!m.g.at(v).differentiable() && m.g.at(v).rank == 1) continue;
        if (m.after_micro_batch[k][static_cast<std::size_t>(v)][0].empty()) continue;
        if (reference[k].of(w)[0].empty() && reference[k].g.at(w).producer < 0) continue;
        bool copies = true;
        array got = m.logical(v, k, copies);
        array want = reference[k].logical(w, 0, copies);
        const value& x = m.g.at(v);
        if (x.rank > 0 && x.back().d == dim::vocabulary_part) { // partial log-sum-exps
          array whole;
          for (std::int64_t row = 0; row < static_cast<std::int64_t>(want.size()); ++row)
            whole.push_back(
                plain::total_lse(got, row, static_cast<std::int64_t>(got.size() / want.size())));
          got = whole;
        }
        if (!copies) return "copies of a forward value differ: " + name(m.g, v);
        if (!close(got, want, norm_of(want))) return "forward value: " + name(m.g, v);
      }
    return "";
  }
  /// Returns the first total whose sum over all ranks differs from one rank's, over all
  /// micro-batches.
  std::string total_difference(const machine& m) const {
    for (int i = 0; i < m.g.value_count; ++i) {
      const value& v = m.g.at(static_cast<value_id>(i));
      if (v.is != role::input || v.from != feed::total) continue;
      bool copies = true;
      const double got = m.logical(static_cast<value_id>(i), copies)[0];
      double want = 0;
      for (const machine& r : reference)
        for (int k = 0; k < r.g.value_count; ++k)
          if (const value& x = r.g.at(static_cast<value_id>(k));
              x.is == role::input && x.from == v.from && x.feed_index == v.feed_index)
            want += r.held[static_cast<std::size_t>(k)][0][0];
      if (!copies || !close({got}, {want}, std::abs(want))) return std::string("total ") + v.name;
    }
    return "";
  }
  array reference_gradient(std::size_t i) const {
    array sum;
    bool copies = true;
    const value_id of = s.of_single.of[static_cast<unsigned>(s.single.leaves[i])];
    for (const machine& m : reference) {
      if (of < 0) break;
      const array g = m.logical(of, copies);
      sum.resize(g.size());
      for (std::size_t k = 0; k < g.size(); ++k) sum[k] += g[k];
    }
    return sum;
  }
  std::string gradient_difference(const machine& m) {
    double scale = 0;
    for (std::size_t i = 0; i < s.leaves.size(); ++i)
      if (s.leaves[i].what == content::parameter && trainable(i))
        scale = std::max(scale, norm_of(reference_gradient(i)));
    for (std::size_t i = 0; i < s.leaves.size(); ++i) {
      if (!trainable(i)) continue;
      const value_id of = s.meshed.leaves[i];
      value_id d = s.of_meshed.of[static_cast<unsigned>(of)];
      const value_id e = s.of_single.of[static_cast<unsigned>(s.single.leaves[i])];
      const parameter_info* p = m.g.parameter_of(of);
      if (p != nullptr && d >= 0) d = p->gradient;
      if ((d < 0) != (e < 0)) return "one of two gradients is missing: " + name(m.g, of);
      if (d < 0) continue;
      // The gradient of a tied parameter is finished elsewhere: here it is that of the value used.
      // The same holds for sums that are left pending.
      placement want = cotangent(m.g.at(p != nullptr && p->tied ? m.g.at(d).grad_of : of).at);
      for (int a = 0; p != nullptr && a < axes; ++a)
        if (p->pending.has(static_cast<axis>(a))) want.at[static_cast<unsigned>(a)] = partial;
      if (m.g.at(d).at != want) return "gradient is placed otherwise: " + name(m.g, of);
      bool copies = true;
      if (s.leaves[i].what == content::parameter) {
        const array want = reference_gradient(i);
        array got = m.logical(d, copies);
        for (std::size_t k = want.size(); k < got.size(); ++k) // rows that pad a vocabulary
          if (got[k] != 0) return "gradient of padding: " + name(m.g, of);
        got.resize(want.size());
        if (!close(got, want, scale)) return "parameter gradient: " + name(m.g, of);
      } else {
        for (std::size_t k = 0; k < micro_batches; ++k)
          if (!close(m.logical(d, k, copies), reference[k].logical(e, 0, copies), scale))
            return "stream gradient: " + name(m.g, of);
      }
      if (!copies) return "copies of a gradient differ: " + name(m.g, of);
    }
    return "";
  }
  static std::string name(const graph& g, value_id v) {
    const value& x = g.at(v);
    return x.producer < 0 ? x.name : g.at_node(x.producer).op->name;
  }
};

} // namespace mc::laws
