// A test that a family, its layers and its ops obey two laws. Gradients are those of the loss, by
// central differences. Under every layout that the model's graphs allow, ranks that are threads of
// this process compute the same as one rank. The test runs the kernels of training, in double.
#pragma once

#include <megacpp/comm/threads.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>

#include <chrono>
#include <cmath>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mc::laws {

/// One case of the test: a layout, its replicas (1, 2 or 4), and the policy of recomputation.
struct trial {
  layout ranks{};
  int dp = 1;
  recompute recompute_policy = recompute::none;

  /// Returns the case in words: "tp 2, cp 2, sequence parallel, recompute full".
  std::string name() const {
    std::string text;
    const auto add = [&](bool there, const std::string& words) {
      if (there) text += (text.empty() ? "" : ", ") + words;
    };
    const auto number = [&](const char* of, int n) {
      add(n > 1, std::string(of) + " " + std::to_string(n));
    };
    number("tp", ranks.tp), number("pp", ranks.pp), number("virtual stages", ranks.virtual_stages);
    number("cp", ranks.cp), number("ep", ranks.ep), number("etp", ranks.etp), number("dp", dp);
    add(ranks.sequence_parallel, "sequence parallel"), add(ranks.zero > 0, "zero 1");
    add(recompute_policy != recompute::none, std::string("recompute ") + name_of(recompute_policy));
    return text.empty() ? "one rank" : text;
  }
};

/// The findings of soundness().
struct verdict {
  std::vector<std::string> gradients; ///< parameters whose gradient agrees with the loss
  std::vector<std::string> equal;     ///< layouts under which ranks compute the same as one rank
  std::vector<std::string> refused;   ///< layouts that the graphs do not allow, with the sentence
  std::vector<std::string> broken;    ///< sentences about what does not hold
};

namespace detail {

/// Cuts layers evenly among virtual stages; the first stages have the rest.
inline layout cut_evenly(layout l, int layers) {
  const int stages = l.pp * l.virtual_stages;
  for (int v = 0; stages > 1 && v < stages; ++v)
    l.cut.layers[static_cast<unsigned>(v)] =
        static_cast<std::int16_t>(layers / stages + (v < layers % stages ? 1 : 0));
  return l;
}

/// Micro-batches of random tokens, some of them without a label. Where documents are packed, they
/// have random lengths.
struct random_batches {
  static constexpr int count = 4; ///< micro-batches of a step, on all replicas together
  int micro;
  std::vector<std::int32_t> tokens[count], labels[count], positions[count], documents[count];

  random_batches(const batching& b, std::int64_t vocabulary) : micro(b.micro) {
    std::mt19937_64 random(1);
    const auto below = [&](std::int64_t n) {
      return static_cast<std::int32_t>(random() % static_cast<std::uint64_t>(n));
    };
    for (int k = 0; k < count; ++k)
      for (int i = 0; i < b.micro * b.sequence; ++i) {
        tokens[k].push_back(below(vocabulary));
        labels[k].push_back(below(7) == 0 ? -1 : below(vocabulary));
        if (!b.packed) continue;
        const bool begins = i % b.sequence == 0 || below(6) == 0;
        documents[k].push_back(i == 0 ? 0 : documents[k].back() + (begins ? 1 : 0));
        positions[k].push_back(begins ? 0 : positions[k].back() + 1);
      }
  }
  batch_view view(int k) const {
    return {.tokens = tokens[k].data(),
            .labels = labels[k].data(),
            .first_sample = std::int64_t{k} * micro,
            .positions = positions[k].empty() ? nullptr : positions[k].data(),
            .documents = documents[k].empty() ? nullptr : documents[k].data()};
  }
};

/// The numbers of a step by name: those that ranks report, and the gradients and parameters that
/// they hold, each tensor in natural order.
using step_record = std::map<std::string, std::vector<double>>;

/// Adds the elements of tensors that one rank holds to the whole tensors. Returns whether elements
/// that another rank holds, too, are equal to the bit.
inline bool merge(step_record& whole, const step_record& of_rank) {
  bool same = true;
  for (const auto& [name, x] : of_rank) {
    std::vector<double>& all = whole[name];
    all.resize(x.size(), NAN);
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (std::isnan(all[i])) all[i] = x[i];
      same = same && (std::isnan(x[i]) || x[i] == all[i]);
    }
  }
  return same;
}

/// Runs two steps of a model under a layout. The first moments after the first step are its
/// gradients, but for a factor, wherever the optimizer's state lies. Throws mc::error for a layout
/// that the graphs do not allow.
template <class Model, class Device> step_record two_steps(const Model& m, const setup& s, int dp,
                                                           const kernel_table<Device>& kernels,
                                                           const random_batches& data, bool& same) {
  const interpreted_program<Model, Device> program(m, s, "soundness", kernels);
  const mesh ranks = mesh_of(s.ranks, dp);
  std::vector<step_record> held(static_cast<std::size_t>(ranks_of(ranks)));
  const auto train = [&](communicator& hosts) {
    Device device(product_type::widened, 1);
    const auto c = hosts.make_ranks(device);
    session run(program.view(), device, purpose::training, *c);
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2, run.numbers().clip = 0;
    run.numbers().weight_decay = 0.1, run.numbers().epsilon = 1e-6;
    std::vector<batch_view> mine;
    const int each = random_batches::count / dp,
              first = hosts.coordinate()[static_cast<unsigned>(axis::dp)] * each;
    for (int k = first; k < first + each; ++k) mine.push_back(data.view(k));
    step_record& record = held[static_cast<std::size_t>(hosts.rank())];
    for (int step = 0; step < 2; ++step) {
      const step_result r = run.step(mine);
      record["the loss"].push_back(r.loss.sum + r.loss.side);
      record["the norm of the gradient"].push_back(r.norm);
      const stores& store = run.weights();
      for_each_parameter(run.program(), [&](const parameter_ref& p) {
        const bool gradient = step == 0;
        if (gradient && p.info->update != update_rule::adamw) return;
        auto& x = record[(gradient ? "the gradient of " : "the update of ") + p.name];
        x.resize(static_cast<std::size_t>(global_size(*p.v).n), NAN);
        store.held(p, {.states = gradient})
            .each_contiguous(
                {}, global_size(*p.v), [&](global_count at, std::int64_t from, std::int64_t n) {
                  for (std::int64_t k = 0; k < n; ++k)
                    x[static_cast<std::size_t>(at.n + k)] =
                        gradient
                            ? store.element(store.first_moments(), store.precision().moment,
                                            from + k)
                            : store.element(store.weights(), store.precision().weight, from + k);
                });
      });
    }
  };
  if (held.size() == 1) train(self::hosts());
  else thread_ranks(ranks, std::chrono::seconds(60)).run(train);
  step_record whole;
  same = true;
  for (const step_record& r : held) same = merge(whole, r) && same;
  return whole;
}

/// Returns the name of the record that differs most, and its difference relative to its largest
/// element, or to 1e-3 where all elements are smaller. A vocabulary may be padded to more rows.
inline std::pair<std::string, double> difference(const step_record& got, const step_record& want) {
  std::pair<std::string, double> worst{"", 0};
  for (const auto& [name, x] : want) {
    const auto found = got.find(name);
    double most = 1e-3,
           apart = found == got.end() || found->second.size() < x.size() ? INFINITY : 0;
    for (double e : x) most = std::max(most, std::abs(e));
    for (std::size_t i = 0; apart < INFINITY && i < x.size(); ++i) {
      const double d = std::abs(found->second[i] - x[i]) / most;
      apart = d > apart || std::isnan(d) ? (std::isnan(d) ? INFINITY : d) : apart;
    }
    if (apart > worst.second) worst = {name, apart};
  }
  return worst;
}

/// Compares the gradient of every trained parameter with central differences in random directions:
///   (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h = <g, d> + O(h^4),   |d| = 1
template <class Model, class Device>
void check_gradients(const Model& m, const setup& s, const kernel_table<Device>& kernels,
                     const random_batches& data, verdict& found) {
  constexpr int directions = 4;
  constexpr double h = 1e-4, tolerance = 1e-6;
  const interpreted_program<Model, Device> program(m, s, "soundness", kernels);
  Device device(product_type::widened, 1);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(3);
  constexpr std::int64_t size = sizeof(double);
  const std::int64_t total = run.weights().total();
  std::vector<double> w(static_cast<std::size_t>(total));
  device.read(w.data(), run.weights().weights(), total * size);
  for (std::size_t i = 0; i < w.size(); ++i) // so that no gain is 1 and no bias 0
    w[i] += 0.2 * std::sin(0.7 * static_cast<double>(i));
  device.write(run.weights().weights(), w.data(), total * size);
  const batch_view batch = data.view(0);
  run.gradients(batch);
  std::vector<double> g(w.size());
  device.read(g.data(), run.weights().gradients(), run.weights().entries().trained * size);
  std::mt19937_64 random(13);
  std::normal_distribution<double> normal;
  for_each_parameter(program.view(), [&](const parameter_ref& p) {
    if (p.info->frozen || p.info->update != update_rule::adamw) return;
    double* const own = w.data() + p.offset;
    const auto put = [&] {
      device.write(run.weights().weights() + p.offset * size, own, p.count.n * size);
    };
    const std::vector<double> kept(own, own + p.count.n);
    double norm = 0, worst = 0;
    for (std::size_t i = 0; i < kept.size(); ++i) {
      const double e = g[static_cast<std::size_t>(p.offset) + i];
      norm += e * e;
    }
    for (int k = 0; k < directions; ++k) {
      std::vector<double> d(kept.size());
      double length = 0, derived = 0;
      for (double& x : d) x = normal(random), length += x * x;
      for (std::size_t i = 0; i < d.size(); ++i)
        d[i] /= std::sqrt(length), derived += g[static_cast<std::size_t>(p.offset) + i] * d[i];
      const auto at = [&](double t) {
        for (std::size_t i = 0; i < kept.size(); ++i) own[i] = kept[i] + t * d[i];
        put();
        const loss_sum l = run.evaluate(batch, true);
        return l.sum + l.side;
      };
      const double quotient = (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h);
      worst = std::max(worst, std::abs(quotient - derived));
    }
    std::copy(kept.begin(), kept.end(), own);
    put();
    if (worst <= tolerance * std::max(std::sqrt(norm), 1e-3)) found.gradients.push_back(p.name);
    else
      found.broken.push_back(fmt::format(
          "The gradient of {}, whose norm is {:.3g}, is {:.3g} off the change of the loss.", p.name,
          std::sqrt(norm), worst));
  });
}

/// Returns whether a block of the model has experts.
template <class Model> bool has_experts(const Model& m, const setup& s) {
  for (int kind = 0; kind < Model::kinds; ++kind) {
    const graph g = forward_graph(m, s, part_kind::block, kind);
    for (int i = 0; i < g.node_count; ++i)
      if (g.at_node(i).op->changes_mesh) return true;
  }
  return false;
}

} // namespace detail

/// Returns layouts of 2 to 4 ranks. Together they use tp, cp, pp and dp, 1F1B and interleaved
/// stages, ZeRO 1, and each policy of recomputation; with experts also ep and etp.
inline std::vector<trial> usual_trials(bool experts) {
  std::vector<trial> all{
      {{.tp = 2}},
      {{.tp = 2, .sequence_parallel = true}},
      {{.cp = 2}},
      {{.tp = 2, .cp = 2, .sequence_parallel = true}, 1, recompute::full},
      {{.pp = 2}},
      {{.tp = 2, .pp = 2, .sequence_parallel = true}, 1, recompute::selective},
      {{.tp = 2, .pp = 2, .virtual_stages = 2}},
      {{}, 2},
      {{.cp = 2, .zero = 1}, 2},
  };
  if (experts) {
    all.push_back({{.ep = 2}, 2});
    all.push_back({{.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2, recompute::full});
    all.push_back({{.tp = 2, .pp = 2, .ep = 2}});
  }
  return all;
}

/// Tests both laws for a small model, whose batches have at least two sequences. `kernels` are
/// those of a device, kernel_table<Device>::all(), and those of a user's ops, for double. Under a
/// layout with stages the layers are spread evenly over them. The numbers of all ranks must agree
/// with those of one rank to 1e-9 of the largest element of a tensor, and gradients with
/// differences of the loss to 1e-6 of their norm: an op whose value jumps, as one that rounds does,
/// has no such gradient. Throws mc::error where one rank cannot train the model.
template <class Model, class Device> verdict soundness(const Model& m, const batching& batch,
                                                       const kernel_table<Device>& kernels,
                                                       std::vector<trial> trials = {}) {
  constexpr double tolerance = 1e-9;
  verdict found;
  const setup one{.batch = batch, .precision = dtype::f64};
  const detail::random_batches data(batch, m.vocabulary);
  detail::check_gradients(m, one, kernels, data, found);
  bool same = true;
  const detail::step_record want = detail::two_steps(m, one, 1, kernels, data, same);
  if (trials.empty()) trials = usual_trials(detail::has_experts(m, one));
  for (const trial& t : trials) {
    const std::string name = t.name();
    if (t.dp < 1 || detail::random_batches::count % t.dp != 0)
      throw error(exit_code::usage, name + ": 1, 2 or 4 replicas can divide the micro-batches");
    setup s = one;
    s.ranks = detail::cut_evenly(t.ranks, m.layers), s.recompute_policy = t.recompute_policy;
    try {
      const auto [what, apart] =
          detail::difference(detail::two_steps(m, s, t.dp, kernels, data, same), want);
      if (!same) found.broken.push_back("Ranks that hold the same differ under " + name + ".");
      else if (apart > tolerance)
        found.broken.push_back(
            fmt::format("Under {} {} is {:.3g} off that of one rank.", name, what, apart));
      else found.equal.push_back(name);
    } catch (const error& e) {
      found.refused.push_back(name + ": " + e.what());
    }
  }
  return found;
}

} // namespace mc::laws
