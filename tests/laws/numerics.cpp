// The order of sums over tokens changes rounding and nothing else: both policies give the same
// gradients up to rounding, and each gives the same bits for any number of threads. laws/resume
// tests that batch_invariant has the same bits for any micro-batch; laws/patterns tests that both
// executors agree.
#define BOOST_TEST_MODULE numerics
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <laws/running.hpp>

using namespace mc;

namespace {

/// The sizes are no multiples of the rows that column sums and the loss take at once.
constexpr int sequence = 40, micro = 5, micro_batches = 2;

/// The model is so wide that products have several tiles, and that libraries cut their sums.
constexpr gpt tied{.layers = 2,
                   .hidden = 128,
                   .heads = 4,
                   .ffn = 512,
                   .vocabulary = 301,
                   .positions = sequence,
                   .bias = true,
                   .dropout = 0.1};

constexpr qwen3 grouped() {
  qwen3 m;
  m.layers = 2, m.hidden = 96, m.heads = 4, m.kv_heads = 2, m.head_dim = 32, m.ffn = 160,
  m.vocabulary = 301;
  return m;
}

constexpr qwen3_moe experts() {
  qwen3_moe m;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 96;
  m.expert_ffn = 48, m.experts = 5, m.experts_per_token = 2, m.mlp_only = {0};
  m.bias_rate = 0.001, m.shared_ffn = 16, m.aux_loss = 0.01, m.vocabulary = 301;
  return m;
}

/// The sums of the first step, and the stores after three steps.
struct result {
  std::vector<std::vector<double>> gradients; ///< of the first step, by parameter and layer
  double loss = 0;                            ///< loss of the first step
  std::string stores;                         ///< weights and moments after the third step, as
                                              ///< bytes
};

template <class Model> result run(const Model& m, dtype type, numerics sums, int threads) {
  test::running<Model> r(
      m, {.batch = {.micro = micro, .sequence = sequence}, .precision = type, .sums = sums},
      threads);
  const stores& weights = r.run.weights();
  r.run.weights().initialise(5);
  const test::drawn_text text(20000, m.vocabulary, sequence);
  std::int64_t at = 0;
  const auto next = [&](int i, batch_view& b) {
    r.feed(text, at)(i, b);
    r.batch.labels()[7] = -100;
    return true;
  };
  result found;
  found.loss = r.run.gradients(micro_batches, next)->mean();
  for_each_parameter(r.program.view(), [&](const parameter_ref& p) {
    std::vector<double>& of = found.gradients.emplace_back();
    for (std::int64_t i = 0; i < p.count.n; ++i)
      of.push_back(weights.element(weights.gradients(), accumulator_of(type), p.offset + i));
  });
  for (int step = 0; step < 3; ++step, at += micro * micro_batches) r.run.step(micro_batches, next);
  found.stores = r.stores();
  return found;
}

double norm_of(const std::vector<double>& x) {
  double sum = 0;
  for (const double v : x) sum += v * v;
  return std::sqrt(sum);
}

/// Returns the largest |a - b| / |b| of a parameter's gradient, in the Euclidean norm. A gradient
/// that is rounding alone, such as that of a bias of keys, which attention does not see, is
/// measured by the largest.
double apart(const result& a, const result& b) {
  double largest = 0, most = std::abs(a.loss - b.loss) / std::abs(b.loss);
  for (const std::vector<double>& g : b.gradients) largest = std::max(largest, norm_of(g));
  BOOST_REQUIRE(a.gradients.size() == b.gradients.size());
  for (std::size_t p = 0; p < b.gradients.size(); ++p) {
    std::vector<double> difference = a.gradients[p];
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] -= b.gradients[p][i];
    const double norm = norm_of(b.gradients[p]);
    most = std::max(most, norm_of(difference) / (norm > 1e-6 * largest ? norm : largest));
  }
  return most;
}

template <class Model> void agree(const Model& m) {
  const std::pair<dtype, double> bounds[] = {{dtype::f32, 1e-5}, {dtype::f64, 1e-12}};
  for (const auto& [type, bound] : bounds) BOOST_TEST_CONTEXT(name_of(type)) {
      const result fast = run(m, type, numerics::fast, 1);
      const result invariant = run(m, type, numerics::batch_invariant, 1);
      BOOST_TEST(apart(fast, invariant) < bound);
      BOOST_TEST((fast.stores != invariant.stores)); // the two policies are not the same
    }
}

template <class Model> void same_bits_on_any_number_of_threads(const Model& m) {
  for (const numerics sums : {numerics::fast, numerics::batch_invariant})
    for (const dtype type : {dtype::f32, dtype::bf16}) {
      const std::string one = run(m, type, sums, 1).stores;
      for (const int threads : {2, 3})
        BOOST_TEST((run(m, type, sums, threads).stores == one),
                   name_of(sums) << ", " << name_of(type) << ", " << threads << " threads");
    }
}

} // namespace

BOOST_AUTO_TEST_CASE(sums_of_gpt_differ_by_rounding) { agree(tied); }
BOOST_AUTO_TEST_CASE(sums_of_qwen3_differ_by_rounding) { agree(grouped()); }
BOOST_AUTO_TEST_CASE(sums_of_experts_differ_by_rounding) { agree(experts()); }
BOOST_AUTO_TEST_CASE(gpt_on_any_number_of_threads) { same_bits_on_any_number_of_threads(tied); }
BOOST_AUTO_TEST_CASE(experts_on_any_number_of_threads) {
  same_bits_on_any_number_of_threads(experts());
}
