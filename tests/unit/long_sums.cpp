// Sums of thousands of terms and more, against double: each states by how much it may be off, and
// no bound grows with the number of terms, but for those that say so.
#define BOOST_TEST_MODULE long_sums
#include <boost/test/unit_test.hpp>

#include <emulated_team.hpp>
#include <megacpp/kernel/loss.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

// --- cross-entropy -------------------------------------------------------------------------------

constexpr int64_t vocabularies[] = {257, 50257, 151936};

// Rows of logits of `words`, each with a label, and what they must give.
struct logits_case {
  std::string name;
  int64_t words;
  std::vector<float> logits;
  std::int32_t label;

  double top() const { return wide(*std::max_element(logits.begin(), logits.end())); }
  /// log sum e^(l - top): of the terms below the greatest, by log1p.
  double over_top() const {
    const double most = top();
    long double tail = -1;
    for (float l : logits) tail += std::exp(wide(l) - most);
    return static_cast<double>(std::log1p(tail));
  }
  double loss(double z) const {
    const double lse = top() + over_top();
    return over_top() + (top() - wide(logits[static_cast<std::size_t>(label)])) + z * lse * lse;
  }
  /// Of a loss that counts `seed` times.
  reference gradient(double seed, double z) const {
    const double most = top(), over = over_top(), of_lse = 2 * z * (most + over);
    const auto at = static_cast<std::size_t>(label);
    reference d;
    long double others = 0; // 1 - p of the label is what the others have together
    for (std::size_t v = 0; v < logits.size(); ++v) {
      const double p = std::exp(wide(logits[v]) - most - over);
      if (v != at) others += p;
      d.push_back(seed * (1 + of_lse) * p);
    }
    d[at] = d[at] / (1 + of_lse) * of_lse - seed * static_cast<double>(others);
    return d;
  }
};

std::vector<logits_case> cases_of(int64_t words) {
  const auto n = static_cast<std::size_t>(words);
  const auto last = static_cast<std::int32_t>(words - 1), middle = static_cast<std::int32_t>(n / 2);
  std::vector<logits_case> all;
  const auto add = [&](const char* name, std::vector<float> logits, std::int32_t label) {
    all.push_back({name, words, std::move(logits), label});
  };
  numbers from;
  const auto flat = [&](float x) { return std::vector<float>(n, x); };
  const auto peaks = [&](std::vector<float> l, std::vector<std::int32_t> at, float x) {
    for (std::int32_t v : at) l[static_cast<std::size_t>(v)] = x;
    return l;
  };
  const auto tail = from.of<float>(words, 3);
  const float edge = std::log(static_cast<float>(words)); // of a peak as likely as all others
  add("flat", flat(3.3f), middle);
  add("nearly flat", tail, 0);
  add(
      "nearly flat, far from 0",
      [&] {
        auto l = tail;
        for (float& x : l) x = x * 0.01f - 77.7f;
        return l;
      }(),
      last);
  for (const auto& [name, below] :
       {std::pair{"a peak over a flat tail", flat(0.1f)}, {"a peak over a tail", tail}})
    for (float height : {edge + 1.3f, edge + 3.7f, edge + 9.9f, 43.21f}) {
      for (std::int32_t at : {0, middle, last}) add(name, peaks(below, {at}, height), at);
      add((std::string(name) + ", the label beside it").c_str(), peaks(below, {5}, height), 17);
    }
  add("two equal peaks", peaks(tail, {3, last}, 21.7f), 3);
  add("two equal peaks, the label beside them", peaks(tail, {3, last}, 21.7f), middle);
  add("a peak and one other", peaks(peaks(flat(-60.0f), {7}, 12.34f), {23}, 5.4321f), 7);
  add("a peak and others across 0", peaks(flat(-edge - 3.1f), {9}, 2.7f), 9);
  return all;
}

// The greatest error of a token's loss, of a loss of all tokens and of a row of gradients, each as a
// share of what is allowed: 2e-7 max(loss, 1e-3), 2e-7, 2e-7 of the row's greatest magnitude plus
// 1e-10 of a loss that counts once.
constexpr double allowed = 2e-7;
double error_of_loss(double got, double want) {
  return std::fabs(got - want) / (allowed * std::max(std::fabs(want), 1e-3));
}
double error_of_gradient(const std::vector<float>& got, const reference& want, double seed) {
  double most = 0, worst = 0;
  for (double w : want) most = std::max(most, std::fabs(w));
  for (std::size_t v = 0; v < want.size(); ++v)
    worst = std::max(worst, std::fabs(wide(got[v]) - want[v]));
  return worst / (allowed * most + 1e-10 * seed);
}

// Runs a row's body on a core, and on an emulated block.
struct on_core {
  static constexpr const char* name = "core";
  template <class Body> void operator()(const Body& body) const { body(mc::core_team(), 0); }
};
struct on_block {
  static constexpr const char* name = "block";
  template <class Body> void operator()(const Body& body) const {
    static emulated_block block(256);
    const std::string fault =
        block.run([&](const emulated_team& team) { body(team, 0); }, {turns::last_first});
    BOOST_REQUIRE(fault.empty());
  }
};

struct outcome {
  double loss;
  std::vector<float> gradient;
};

// In one visit.
template <class On> outcome fused(const logits_case& c, float seed, double z, On on) {
  outcome r{0, c.logits};
  on(rows::loss_row<float>{c.words, c.words, r.gradient.data(), &c.label, seed, z, &r.loss,
                           r.gradient.data()});
  return r;
}

// Operands and results of a node, for a kernel that is called alone.
struct call {
  std::vector<void*> inputs, outputs;
  int64_t parts;
  mc::op::cross_entropy_attributes attributes;
  template <class T> const T* in(int k) const {
    return static_cast<const T*>(inputs[static_cast<std::size_t>(k)]);
  }
  template <class T> T* out(int k) const {
    return static_cast<T*>(outputs[static_cast<std::size_t>(k)]);
  }
  template <int, int, int> int64_t in_span() const { return parts; }
  int64_t in_size(int) const { return 1; }
  template <class T> T attr() const { return attributes; }
};

// A vocabulary cut into parts, as ranks of tp have it: partial log-sum-exps, the loss from all of
// them, and each part's gradient.
template <class On>
outcome in_parts(const logits_case& c, int64_t parts, float seed, double z, On on) {
  const int64_t width = (c.words + parts - 1) / parts;
  std::vector<double> lse(static_cast<std::size_t>(parts)), dlse = lse;
  std::vector<float> padded = c.logits;
  padded.resize(static_cast<std::size_t>(parts * width), 1e30f);
  float target = 0, sum = 0, count = 0, dtarget = 0;
  std::int32_t label = c.label;
  const auto valid = [&](int64_t p) { return std::clamp<int64_t>(c.words - p * width, 0, width); };
  for (int64_t p = 0; p < parts; ++p) {
    float mine = 0;
    on(rows::logits_row<float>{width, valid(p), p * width, padded.data() + p * width, &label,
                               &lse[static_cast<std::size_t>(p)], &mine});
    target += mine;
  }
  const call forward{{lse.data(), &target, &label}, {&sum, &count}, parts, {z}};
  mc::kernel_of<&mc::op::cross_entropy>::run<float>(forward);
  const call backward{{&seed, lse.data(), &target, &label}, {dlse.data(), &dtarget}, parts, {z}};
  mc::kernel_of<&mc::op::cross_entropy_grad>::run<float>(backward);
  for (int64_t p = 0; p < parts; ++p)
    on(rows::logits_grad_row<float>{width, valid(p), p * width, padded.data() + p * width, &label,
                                    &lse[static_cast<std::size_t>(p)],
                                    &dlse[static_cast<std::size_t>(p)], &dtarget,
                                    padded.data() + p * width});
  padded.resize(c.logits.size());
  return {wide(sum), padded};
}

template <class On> void check(const logits_case& c, double z, On on) {
  const float seed = 0.37f;
  const double loss = c.loss(z);
  const reference gradient = c.gradient(wide(seed), z);
  const auto one = [&](const std::string& how, const outcome& got) {
    const double of_loss = error_of_loss(got.loss, loss),
                 of_gradient = error_of_gradient(got.gradient, gradient, wide(seed));
    BOOST_TEST(of_loss <= 1, c.name << " of " << c.words << " words, z " << z << ", " << On::name
                                    << ", " << how << ": a loss of " << got.loss << ", should be "
                                    << loss << ": " << of_loss << " of what is allowed");
    BOOST_TEST(of_gradient <= 1, c.name << " of " << c.words << " words, z " << z << ", "
                                        << On::name << ", " << how << ": a gradient is off by "
                                        << of_gradient << " of what is allowed");
  };
  one("in one visit", fused(c, seed, z, on));
  for (int64_t parts : {1, 2, 3})
    one(std::to_string(parts) + " parts", in_parts(c, parts, seed, z, on));
}

} // namespace

BOOST_AUTO_TEST_CASE(losses_and_gradients_of_any_vocabulary) {
  for (int64_t words : vocabularies)
    for (const logits_case& c : cases_of(words)) check(c, 0, on_core());
  for (const logits_case& c : cases_of(50257)) check(c, 1e-4, on_core());
}
BOOST_AUTO_TEST_CASE(losses_and_gradients_of_any_vocabulary_on_a_block) {
  for (int64_t words : {257, 50257})
    for (const logits_case& c : cases_of(words)) check(c, 0, on_block());
}
