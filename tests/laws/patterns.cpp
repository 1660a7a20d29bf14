// A model of two block kinds, written as a user would: full and sliding-window attention in turn.
// Both executors give the same bits, and recomputation changes nothing.
#define BOOST_TEST_MODULE patterns
#include <boost/test/unit_test.hpp>

#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>

#include <kernels.hpp>

using namespace mc;

namespace {

/// A Qwen3 whose odd layers look back eight tokens only.
struct alternating : qwen3 {
  static constexpr int kinds = 2;
  constexpr int kind_of(int layer) const { return layer % 2; }
  constexpr var block(context& c, int kind, var x) const {
    qwen3 m = *this;
    m.window = kind == 1 ? 8 : 0;
    return m.block(c, 0, x);
  }
};

constexpr alternating tiny() {
  alternating m;
  m.layers = 5, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48,
  m.vocabulary = 97;
  return m;
}

template <class Precision, mc::numerics Sums> struct run_of {
  static constexpr alternating model = tiny();
  static constexpr mc::layout layout{};
  static constexpr batching batch{.micro = 2, .sequence = 33};
  using precision = Precision;
  static constexpr auto numerics = Sums;
};

std::vector<double> train(const program_view& p, int threads) {
  cpu device(product_type::widened, threads);
  session run(p, device, purpose::training);
  run.weights().initialise(1);
  run.numbers().learning_rate = 1e-2, run.numbers().clip = 1, run.numbers().weight_decay = 0.1;
  std::vector<std::int32_t> tokens, labels, later;
  for (int i = 0; i < 66; ++i) later.push_back(i * 11 % 97);
  for (int i = 0; i < 66; ++i)
    tokens.push_back(i * 5 % 97), labels.push_back(i % 7 == 0 ? -100 : (i * 5 + 5) % 97);
  std::vector<double> out;
  for (int i = 0; i < 4; ++i) {
    const std::vector<batch_view> two{{tokens.data(), labels.data()},
                                      {later.data(), labels.data()}};
    const step_result r = run.step(two);
    out.push_back(r.loss.mean());
    out.push_back(r.norm);
  }
  for (std::int64_t i = 0; i < run.weights().total(); i += 17)
    out.push_back(run.weights().weight(i));
  return out;
}

template <class Precision, mc::numerics Sums> void agree() {
  using run = run_of<Precision, Sums>;
  const auto compiled = train(compiled_program<run>("alternating"), 1);
  interpreted_program<alternating> program(
      run::model, {.batch = run::batch, .precision = Precision::policy, .sums = Sums},
      "alternating");
  BOOST_TEST((compiled == train(program.view(), 1)));
  BOOST_TEST((compiled == train(program.view(), 2))); // and two threads
  BOOST_TEST(compiled[6] < compiled[0]);
}

} // namespace

BOOST_AUTO_TEST_CASE(compiled_and_interpreted) {
  agree<fp32, mc::numerics::fast>();
  agree<bf16_mixed, mc::numerics::batch_invariant>();
  agree<fp64, mc::numerics::fast>();
}
BOOST_AUTO_TEST_CASE(recomputed_gives_the_same_bits) {
  interpreted_program<alternating> none(tiny(), {.batch = {2, 33}}, "none"),
      selective(tiny(), {.batch = {2, 33}, .recompute_policy = recompute::selective}, "selective"),
      full(tiny(), {.batch = {2, 33}, .recompute_policy = recompute::full}, "full");
  const auto bits = train(none.view(), 1);
  BOOST_TEST((bits == train(selective.view(), 1)));
  BOOST_TEST((bits == train(full.view(), 1)));
}
BOOST_AUTO_TEST_CASE(the_window_matters) {
  qwen3 plain = tiny();
  interpreted_program<qwen3> without(plain, {.batch = {2, 33}}, "plain");
  interpreted_program<alternating> with(tiny(), {.batch = {2, 33}}, "windowed");
  BOOST_TEST((train(without.view(), 1)[0] != train(with.view(), 1)[0]));
}
