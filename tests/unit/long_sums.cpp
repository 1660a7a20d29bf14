// Sums of thousands of terms and more, against double: each states by how much it may be off, in
// roundings (2^-24) of the sum of its terms' magnitudes. No bound grows with the number of terms but
// for those that say so, which count the additions that a term passes through.
#define BOOST_TEST_MODULE long_sums
#include <boost/test/unit_test.hpp>

#include <emulated_team.hpp>
#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/loss.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
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
  on(rows::loss_row<float>{c.words, c.words, r.gradient.data(), &c.label, &seed, z, &r.loss,
                           r.gradient.data()});
  return r;
}

// Operands and results of a node, for a kernel that is called alone.
struct call {
  std::vector<void*> inputs, outputs;
  int64_t parts, tokens;
  mc::op::cross_entropy_attributes attributes;
  template <class Name> const mc::element_t<Name, float>* in(Name) const {
    return static_cast<const mc::element_t<Name, float>*>(inputs[Name::at]);
  }
  template <class Name> mc::element_t<Name, float>* out(Name) const {
    return static_cast<mc::element_t<Name, float>*>(outputs[Name::at]);
  }
  template <class Name, class Dims> int64_t span(Name, Dims) const { return parts; }
  template <class Name> int64_t size(Name) const { return tokens; }
  template <class A> auto attr(A) const { return attributes; }
  const mc::cores& lane() const { return host; }
  std::byte* scratch() const { return reinterpret_cast<std::byte*>(losses.data()); }
  mutable std::vector<double> losses = std::vector<double>(static_cast<std::size_t>(tokens));
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
  const call forward{{lse.data(), &target, &label}, {&sum, &count}, parts, 1, {z}};
  mc::kernel_of<&mc::op::cross_entropy>::run<float>(forward);
  const call backward{{&seed, lse.data(), &target, &label}, {dlse.data(), &dtarget}, parts, 1, {z}};
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

// All tokens of a batch, most of which lose next to nothing beside a few.
BOOST_AUTO_TEST_CASE(the_sum_of_losses) {
  std::vector<double> lse;
  std::vector<float> targets;
  std::vector<std::int32_t> labels;
  long double want = 0;
  for (const logits_case& c : cases_of(257))
    for (int k = 0; k < 100; ++k) {
      double part = 0;
      float target = 0;
      on_core()(
          rows::logits_row<float>{c.words, c.words, 0, c.logits.data(), &c.label, &part, &target});
      lse.push_back(part), targets.push_back(target), labels.push_back(c.label);
      want += c.loss(0);
    }
  float sum = 0, count = 0;
  const call all{{lse.data(), targets.data(), labels.data()},
                 {&sum, &count},
                 1,
                 static_cast<int64_t>(labels.size()),
                 {0}};
  mc::kernel_of<&mc::op::cross_entropy>::run<float>(all);
  BOOST_TEST(std::fabs(wide(sum) / static_cast<double>(want) - 1) <= allowed);
  BOOST_TEST(count == static_cast<float>(labels.size()));
}

// --- everything else -----------------------------------------------------------------------------

namespace {

constexpr double rounding = 0x1p-24;

// What terms add up to, and their magnitudes.
struct long_sum {
  long double value = 0, magnitude = 0;
  void add(double x) { value += x, magnitude += std::fabs(x); }
  /// By how many roundings a result is off.
  double off(double got) const {
    return static_cast<double>(std::fabs(got - value) / (magnitude * rounding));
  }
};

// Terms whose rounding errors add up: equal ones, and ones of either sign about a mean.
constexpr int kinds_of_terms = 3;
std::vector<float> terms(int kind, int64_t n) {
  numbers from;
  auto x = kind == 0 ? std::vector<float>(static_cast<std::size_t>(n), 0.1f) : from.of<float>(n, 1);
  if (kind == 1)
    for (float& v : x) v = std::fabs(v) + 0.3f;
  return x;
}

} // namespace

// Rows are as wide as a model, some thousands: a lane of a core adds n / 32 terms, one of a block of
// 256 threads n / 1,024, and a tree the lanes. A rounding is a share of what a lane has added up so
// far, on average of half of its terms.
BOOST_AUTO_TEST_CASE(sums_over_a_row) {
  for (int64_t n : {16384, 65536 + 17})
    for (int kind = 0; kind < kinds_of_terms; ++kind) {
      const auto x = terms(kind, n);
      long_sum want;
      for (float v : x) want.add(wide(v));
      const auto f = [&](auto i) { return mc::load<float>(x.data(), i); };
      const double core = want.off(wide(mc::core_team().sum<float>(n, f)));
      BOOST_TEST(core <= static_cast<double>(n / 64 + 6));
      on_block()([&](const emulated_team& team, int64_t) {
        const double block = want.off(wide(team.sum<float>(n, f)));
        if (team.leader()) BOOST_TEST(block <= static_cast<double>(n / 2048 + 2 + 5 + 8));
      });
    }
}

// Norms of gradients: squares of fp32 are doubles without error.
BOOST_AUTO_TEST_CASE(sums_of_squares) {
  constexpr int64_t n = 3000017;
  for (int kind = 0; kind < kinds_of_terms; ++kind) {
    const auto x = terms(kind, n);
    long_sum want;
    for (float v : x) want.add(wide(v) * wide(v));
    std::vector<double> parts(static_cast<std::size_t>(rows::sum_squares_partials(n)));
    double sum = 0;
    rows::sum_squares(host, n, x.data(), parts.data(), &sum);
    BOOST_TEST(want.off(sum) <= 1e-5);
  }
}

// Gradients of biases and gains: 64 rows in fp32, the rest in double.
BOOST_AUTO_TEST_CASE(sums_over_rows) {
  constexpr int64_t count = 300001, width = 5;
  for (int kind = 0; kind < kinds_of_terms; ++kind) {
    const auto dy = terms(kind, count * width), x = terms(1, count * width);
    const std::vector<float> mean(count, 0.25f), rstd(count, 0.7f);
    long_sum bias[width], rms[width], layer[width];
    for (int64_t k = 0; k < count * width; ++k) {
      const auto at = static_cast<std::size_t>(k);
      const double d = wide(dy[at]), v = wide(x[at]), r = wide(rstd[0]);
      bias[k % width].add(d);
      rms[k % width].add(d * v * r);
      layer[k % width].add(d * (v - 0.25) * r);
    }
    std::vector<float> of_bias(width), of_rms(width), of_layer(width), with_layer(width);
    rows::bias_gradient(host, count, width, dy.data(), of_bias.data());
    rows::rms_norm_dgain(host, count, width, dy.data(), x.data(), rstd.data(), of_rms.data());
    rows::layer_norm_dgain_dbias(host, count, width, dy.data(), x.data(), mean.data(), rstd.data(),
                                 of_layer.data(), with_layer.data());
    std::vector<float> on_threads(width);
    on_block()(rows::bias_gradient_slab<float>{width, count, width, dy.data(), on_threads.data()});
    for (std::size_t j = 0; j < width; ++j) {
      BOOST_TEST(bias[j].off(wide(of_bias[j])) <= 65);
      BOOST_TEST(bias[j].off(wide(with_layer[j])) <= 65);
      BOOST_TEST(rms[j].off(wide(of_rms[j])) <= 65 + 2);     // a term is rounded twice
      BOOST_TEST(layer[j].off(wide(of_layer[j])) <= 65 + 5); // and by the rounding of x - mean
      BOOST_TEST(on_threads[j] == of_bias[j]);
    }
  }
}

// A word that comes again and again: its gradient is a sum over rows, too.
BOOST_AUTO_TEST_CASE(gradients_of_a_frequent_word) {
  constexpr int64_t tokens = 200000, width = 3, words = 7;
  std::vector<std::int32_t> ids;
  for (int64_t t = 0; t < tokens; ++t)
    ids.push_back(static_cast<std::int32_t>(t % 10 < 8 ? 2 : t / 10 % words));
  const ordered_tokens in_order(tokens, ids, 0, words);
  for (int kind = 0; kind < kinds_of_terms; ++kind) {
    const auto dy = terms(kind, tokens * width);
    std::vector<long_sum> want(words * width);
    for (int64_t k = 0; k < tokens * width; ++k)
      want[static_cast<std::size_t>(ids[static_cast<std::size_t>(k / width)] * width + k % width)]
          .add(wide(dy[static_cast<std::size_t>(k)]));
    std::vector<float> table(words * width);
    rows::embedding_gradient(host, tokens, in_order.order, width, dy.data(),
                             in_order.numbers.data(), table.data());
    for (std::size_t i = 0; i < table.size(); ++i) BOOST_TEST(want[i].off(wide(table[i])) <= 65);
  }
}

// Probabilities and squares of log-sum-exps of a router: 128 tokens in fp32, the rest in double.
BOOST_AUTO_TEST_CASE(statistics_of_a_router) {
  using block = rows::router_statistics_block<float>;
  constexpr int64_t tokens = 200000, experts = 3, width = 2 * experts + 1,
                    blocks = (tokens + block::tokens_of_block - 1) / block::tokens_of_block;
  for (int kind = 0; kind < kinds_of_terms; ++kind) {
    const auto logits = terms(kind, tokens * experts);
    std::vector<std::int32_t> chosen;
    long_sum probability[experts], z;
    for (int64_t t = 0; t < tokens; ++t) {
      const float* l = logits.data() + t * experts;
      double sum = 0;
      for (int64_t e = 0; e < experts; ++e) sum += std::exp(wide(l[e]));
      for (int64_t e = 0; e < experts; ++e) probability[e].add(std::exp(wide(l[e])) / sum);
      z.add(std::log(sum) * std::log(sum));
      chosen.push_back(static_cast<std::int32_t>(t % experts));
    }
    std::vector<float> parts(static_cast<std::size_t>(blocks * width));
    mc::for_rows(
        host, blocks,
        block{experts, tokens, blocks, 1, logits.data(), chosen.data(), parts.data(), nullptr});
    const auto got = [&](int64_t i) { return rows::sum_of_partials(&parts[0] + i, blocks, width); };
    constexpr double a_term = 8; // roundings of a probability, and of the square of a logarithm
    for (int64_t e = 0; e < experts; ++e) {
      BOOST_TEST(probability[e].off(got(e)) <= 128 + a_term);
      BOOST_TEST(got(experts + e) == static_cast<double>((tokens + experts - 1 - e) / experts));
    }
    BOOST_TEST(z.off(got(2 * experts)) <= 128 + a_term);
  }
}

// Exponentials are added up by tiles of 64 keys; what they weigh is one chain of fused multiply-adds
// in order of the keys, so that a token's bits depend on nothing beside it. So both errors grow: n
// roundings that are as often up as down add up to 6 sqrt(n) once in 10^7 times (Higham, Mary, "A
// new approach to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41, 2019).
BOOST_AUTO_TEST_CASE(attention_over_many_keys) {
  constexpr int64_t many = 100000, dim = 2;
  const auto q = terms(1, dim), k = terms(2, many * dim), v = terms(1, many * dim);
  std::vector<double> score;
  double top = -1e30;
  for (int64_t j = 0; j < many; ++j) {
    score.push_back(wide(q[0]) * wide(k[static_cast<std::size_t>(2 * j)]) +
                    wide(q[1]) * wide(k[static_cast<std::size_t>(2 * j + 1)]));
    top = std::max(top, score.back());
  }
  long_sum sum, weighed[dim];
  for (int64_t j = 0; j < many; ++j) {
    const double p = std::exp(score[static_cast<std::size_t>(j)] - top);
    sum.add(p);
    for (int64_t d = 0; d < dim; ++d)
      weighed[d].add(p * wide(v[static_cast<std::size_t>(j * dim + d)]));
  }
  const mc::attention_shape<> shape{1, 1, many, 1, 1, dim};
  const auto memory = std::make_unique<std::byte[]>(
      static_cast<std::size_t>(mc::attention_forward_bytes<float>(shape, 1)));
  std::vector<float> o(dim);
  float lse = 0;
  mc::attention_visibility all;
  all.causal = false;
  mc::attention_forward<float>(shape, all, {q.data(), dim}, {k.data(), dim}, {v.data(), dim},
                               mc::head_rows<float>{o.data(), dim}, &lse, {memory.get(), 1, host});
  const double keys = static_cast<double>(many), of_sum = 6 * std::sqrt(keys / 64 + 16);
  BOOST_TEST(sum.off(std::exp(wide(lse) - top)) <= of_sum);
  for (std::size_t d = 0; d < dim; ++d) {
    const auto total = static_cast<double>(sum.value);
    BOOST_TEST(weighed[d].off(wide(o[d]) * total) <= 6 * std::sqrt(keys) + of_sum);
  }
}
