// A session's memory: every part, and the end of a step, has a place of its own for the values that
// it keeps. So steps have the same numbers for any micro-batch, evaluation changes nothing, and a
// model is evaluated alike by a session that trains and by one that does not.
#define BOOST_TEST_MODULE session
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <cstdint>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr int sequence = 8, sequences = 8, steps = 3;

template <class Model = gpt> constexpr Model small() {
  Model m;
  m.layers = 2, m.hidden = 12, m.heads = 3, m.ffn = 20, m.vocabulary = 17, m.positions = sequence;
  return m;
}
constexpr qwen3_moe experts() {
  auto m = small<qwen3_moe>();
  m.kv_heads = 3, m.head_dim = 4, m.expert_ffn = 7, m.experts = 5, m.experts_per_token = 2;
  m.aux_loss = 0; // it depends on the tokens of one micro-batch
  return m;
}
/// A model whose loss reads the stream itself.
struct without_final_norm : gpt {
  constexpr var final_norm(context& /*c*/, var x) const { return x; }
};
/// A model whose head's table is computed from parameters of its own.
struct factored_head : gpt {
  constexpr var head_table(context& c) const {
    const extent narrow{dim::ffn, 5}, rows = vocabulary_rows(c, vocabulary);
    const var a = weight(c, "a", "weight", {rows, narrow}, {}, normal_weights(0.3)),
              b = weight(c, "b", "weight", {hidden_extent(), narrow}, {}, normal_weights(0.3));
    return linear(gelu(a), b);
  }
};

/// A model with a weight that is used as it is and computed on: the gradients of the two uses meet
/// at a step's end.
struct used_twice : gpt {
  constexpr var block(context& c, int kind, var x) const {
    const extent H = hidden_extent();
    const var w = weight(c, "w", "weight", {H, {dim::ffn, hidden}}, {}, normal_weights(0.3));
    const var a = gpt::block(c, kind, x);
    const var u = linear(a, weight(c, "v", "weight", {{dim::ffn, hidden}, H}, {}, ones()));
    return a + linear(u, w) + linear(u, gelu(w));
  }
};

/// The results of a training session in some steps: losses and norms, and evaluations between them.
struct told {
  std::vector<double> trained, evaluated;
};

template <class Model> told run(const Model& m, int micro, bool evaluating = true) {
  const setup s{.batch = {micro, sequence}, .precision = dtype::f64};
  const interpreted_program<Model> program(m, s, "session");
  cpu device(product_type::automatic, 1);
  session trained(program.view(), device, purpose::training),
      evaluated(program.view(), device, purpose::inference);
  trained.weights().initialise(3);
  trained.numbers().learning_rate = 1e-2;
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < sequences * sequence; ++i)
    tokens.push_back(i * i % 17), labels.push_back((i + 1) * (i + 1) % 17);
  const auto batch = [&](int first) {
    return batch_view{tokens.data() + first * sequence, labels.data() + first * sequence, first};
  };
  told t;
  for (int step = 0; step < steps; ++step) {
    for (std::int64_t i = 0; i < trained.weights().total(); ++i)
      evaluated.weights().set_weight(i, trained.weights().weight(i));
    std::vector<batch_view> batches;
    double each = 0;
    for (int first = 0; first < sequences; first += micro) {
      batches.push_back(batch(first));
      if (!evaluating) continue;
      const double loss = trained.evaluate(batches.back()).sum;
      BOOST_TEST(evaluated.evaluate(batches.back()).sum == loss);
      t.evaluated.push_back(loss), each += loss;
    }
    if (evaluating) {
      const loss_sum all = trained.evaluate(batches);
      BOOST_TEST(all.sum == each);
      BOOST_TEST(all.count == sequences * sequence);
    }
    const step_result r = trained.step(batches);
    if (evaluating) BOOST_TEST(std::abs(each - r.loss.sum) <= 1e-12 * r.loss.sum);
    BOOST_TEST((r.applied && r.finite));
    BOOST_TEST(r.norm > 0.01);
    t.trained.push_back(r.loss.mean()), t.trained.push_back(r.norm);
  }
  return t;
}

template <class Model> void check(const Model& m, const char* name) {
  BOOST_TEST_CONTEXT(name) {
    const told whole = run(m, sequences);
    BOOST_TEST(whole.trained[4] < whole.trained[0]); // the model learns
    BOOST_TEST(run(m, sequences, false).trained == whole.trained);
    for (const int micro : {1, 2}) {
      const told cut = run(m, micro);
      for (std::size_t i = 0; i < whole.trained.size(); ++i)
        BOOST_TEST(std::abs(cut.trained[i] - whole.trained[i]) <= 1e-10 * whole.trained[i]);
    }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(steps_are_the_same_for_any_micro_batch) {
  check(small(), "gpt");
  check(experts(), "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(a_model_without_a_final_norm) {
  check(small<without_final_norm>(), "without a final norm");
}
BOOST_AUTO_TEST_CASE(a_head_whose_table_is_computed) {
  check(small<factored_head>(), "a table that is a product");
}

// The vocabulary is so large that the head needs the most memory, and evaluation's head more than
// training's.
BOOST_AUTO_TEST_CASE(a_head_that_needs_the_most_memory) {
  gpt m = small();
  m.vocabulary = 1000;
  const interpreted_program<gpt> program(
      m, {.batch = {sequences, sequence}, .precision = dtype::f64}, "head");
  const program_view& p = program.view();
  for (const part_view* part : {&p.part(0), &p.block(0), &p.head()})
    BOOST_TEST(p.evaluation().plan->working > part->plan->working);
  BOOST_TEST(run(m, sequences).trained == run(m, sequences, false).trained);
}

// Evaluation keeps the capacity of experts as training does (run compares the two).
BOOST_AUTO_TEST_CASE(a_capacity_holds_in_evaluation) {
  qwen3_moe m = experts();
  m.capacity = 0.5;
  BOOST_TEST(run(m, sequences).trained.size() == 2 * steps);
}

// A batch that is refused, a step that is given up, one without a loss, and gradients without an
// update do not change the next steps.
BOOST_AUTO_TEST_CASE(what_is_refused_leaves_no_trace) {
  auto m = small<used_twice>();
  m.dropout = 0.4;
  const interpreted_program<used_twice> program(
      m, {.batch = {sequences, sequence}, .precision = dtype::f64}, "refused");
  std::vector<std::int32_t> tokens, labels;
  for (int i = 0; i < sequences * sequence; ++i)
    tokens.push_back(i * i % 17), labels.push_back((i + 1) * (i + 1) % 17);
  auto beyond = tokens;
  beyond[5] = 17;
  const std::vector<std::int32_t> unlabelled(tokens.size(), -100);
  const batch_view batch{tokens.data(), labels.data()}, bad{beyond.data(), labels.data()};
  const auto losses = [&](bool disturbed) {
    cpu device(product_type::automatic, 1);
    session trained(program.view(), device, purpose::training);
    trained.weights().initialise(3);
    trained.numbers().learning_rate = 1e-2;
    std::vector<double> told;
    for (int step = 0; step < steps; ++step) {
      if (disturbed) {
        const std::vector<batch_view> second_bad{batch, bad};
        BOOST_CHECK_THROW(static_cast<void>(trained.evaluate(bad)), error);
        BOOST_CHECK_THROW(static_cast<void>(trained.evaluate(second_bad)), error);
        BOOST_CHECK_THROW(static_cast<void>(trained.step(bad)), error);
        BOOST_CHECK_THROW(static_cast<void>(trained.step(second_bad)), error);
        BOOST_CHECK_THROW(static_cast<void>(trained.step(std::vector<batch_view>{})), error);
        BOOST_TEST(!trained.step(2, [&](int micro, batch_view& b) {
          b = batch;
          return micro == 0;
        }));
        BOOST_CHECK_THROW(static_cast<void>(trained.step(2,
                                                         [&](int micro, batch_view& b) {
                                                           b = batch;
                                                           if (micro == 1)
                                                             throw std::runtime_error("no more");
                                                           return true;
                                                         })),
                          std::runtime_error);
        const batch_view none_of{tokens.data(), unlabelled.data()};
        const auto asks = [&](int, batch_view& b) { // asks within a step, and goes on
          b = none_of;
          BOOST_CHECK_THROW(static_cast<void>(trained.evaluate(batch)), error);
          return true;
        };
        BOOST_TEST(!trained.step(1, asks)->applied);
        const step_result none = trained.step(none_of);
        BOOST_TEST(none.loss.count == 0);
        BOOST_TEST((!none.applied && none.finite && !std::isfinite(none.norm)));
        BOOST_TEST(trained.whole());
        static_cast<void>(trained.gradients(batch));
      }
      BOOST_TEST(trained.numbers().step == step);
      const step_result r = trained.step(batch);
      told.push_back(r.loss.mean()), told.push_back(r.norm);
    }
    return told;
  };
  BOOST_TEST(losses(true) == losses(false));
}
