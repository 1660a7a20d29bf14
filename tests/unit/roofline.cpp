// The least time of a step on a GPU: it counts what the program does, and nothing twice.
#define BOOST_TEST_MODULE roofline
#include <boost/test/unit_test.hpp>

#include <megacpp/exec/cpu.hpp>
#include <megacpp/inspect/roofline.hpp>
#include <megacpp/megacpp.hpp>
#include <megacpp/run/interpreter.hpp>

#include <cmath>
#include <string_view>

namespace {

constexpr mc::gpu_ceilings arithmetic_alone{
    "", "", 1e30, 400e12, 50e12, {400e12, 400e12}, {400e12, 400e12}, 800e12};

template <class Model, class F> void with(const Model& m, mc::dtype type, F f) {
  const mc::interpreted_program<Model> p(
      m, {.batch = {.micro = 2, .sequence = 256}, .precision = type}, "roofline");
  f(p.view());
}
template <class F> void each_program(F f) {
  for (const mc::dtype type : {mc::dtype::f32, mc::dtype::bf16}) {
    with(mc::preset::gpt2_124m, type, f);
    with(mc::preset::qwen3_moe_165m, type, f);
  }
}
bool near(double a, double b) { return std::abs(a - b) <= 1e-9 * std::abs(b); }

} // namespace

BOOST_AUTO_TEST_CASE(its_rows_are_the_work_of_a_step) {
  each_program([](const mc::program_view& p) {
    const mc::work w = mc::work_of_step(p, 1).total();
    mc::work rows;
    double seconds = 0;
    const mc::roofline all = mc::roofline_of(p, mc::ceilings_of("h100"));
    for (const mc::roofline_row& r : all.rows) rows += r.does, seconds += r.seconds;
    BOOST_TEST(rows.flops == w.flops);
    BOOST_TEST(rows.read == w.read);
    BOOST_TEST(rows.written == w.written);
    BOOST_TEST(near(seconds, all.micro_batch + all.update));
    BOOST_TEST(all.tokens == 2 * 256);
    for (std::size_t i = 1; i < all.rows.size(); ++i)
      BOOST_TEST(all.rows[i].seconds <= all.rows[i - 1].seconds);
  });
}

// Stages wait for the slowest, here the one with the head, and have the mean of the model's operations.
BOOST_AUTO_TEST_CASE(stages_wait_for_the_slowest) {
  const mc::interpreted_program<mc::gpt> p(
      mc::preset::gpt2_124m, {.ranks = {.pp = 2}, .batch = {.micro = 2, .sequence = 256}},
      "staged");
  const mc::gpu_ceilings& c = mc::ceilings_of("h100");
  const auto found = mc::slowest_roofline(p.view(), c);
  const auto& slowest = found.first;
  BOOST_TEST(found.second == 1);
  BOOST_TEST(slowest.micro_batch > mc::roofline_of(p.view(), c, 0).micro_batch);
  with(mc::preset::gpt2_124m, mc::dtype::f32, [&](const mc::program_view& one) {
    const double whole = static_cast<double>(mc::model_flops(one, 1, 0));
    BOOST_TEST(std::abs(2 * slowest.model_flops / whole - 1) < 1e-6);
  });
}

// A token that is decoded does not read the experts that it has not chosen.
BOOST_AUTO_TEST_CASE(no_more_experts_are_read_than_there_are_rows) {
  mc::qwen3_moe m = mc::preset::qwen3_moe_165m;
  const auto read = [&m](int experts) {
    m.experts = experts;
    const mc::interpreted_program<mc::qwen3_moe> p(m, {.batch = {.micro = 1, .sequence = 1}},
                                                   "token");
    return mc::work_of(*p.view().parts[1].g, mc::phase::forward).read; // of a layer
  };
  const std::int64_t matrix = std::int64_t{m.hidden} * m.expert_ffn * 4;
  BOOST_TEST(read(4 * m.experts_per_token) - read(2 * m.experts_per_token) < matrix);
}

// Where nothing but arithmetic takes time, it is operations over the rate of their type.
BOOST_AUTO_TEST_CASE(arithmetic_takes_its_operations) {
  with(mc::preset::gpt2_124m, mc::dtype::bf16, [](const mc::program_view& p) {
    const mc::step_work w = mc::work_of_step(p, 1);
    const mc::roofline all = mc::roofline_of(p, arithmetic_alone);
    const double products = static_cast<double>(w.forward.flops + w.backward.flops);
    BOOST_TEST(near(all.micro_batch, products / 400e12) == true);
    // Nothing is computed again, so that the operations are the model's, but for a few of attention:
    // half of a peak of twice.
    BOOST_TEST(std::abs(all.mfu(800e12) - 0.5) < 5e-3);
  });
  with(mc::preset::gpt2_124m, mc::dtype::f32, [](const mc::program_view& p) {
    const mc::step_work w = mc::work_of_step(p, 1);
    BOOST_TEST(near(mc::roofline_of(p, arithmetic_alone).micro_batch,
                    static_cast<double>(w.forward.flops + w.backward.flops) / 50e12));
  });
}

// Twice as fast a GPU takes half the time; one with faster memory less for what memory holds back.
BOOST_AUTO_TEST_CASE(ceilings_are_what_takes_time) {
  each_program([](const mc::program_view& p) {
    const mc::gpu_ceilings& h100 = mc::ceilings_of("h100");
    mc::gpu_ceilings twice = h100;
    twice.copied *= 2, twice.bf16 *= 2, twice.fp32 *= 2;
    for (int i = 0; i < 2; ++i) twice.attention_64[i] *= 2, twice.attention_128[i] *= 2;
    const mc::roofline one = mc::roofline_of(p, h100), two = mc::roofline_of(p, twice),
                       more = mc::roofline_of(p, mc::ceilings_of("h200"));
    BOOST_TEST(near(one.micro_batch, 2 * two.micro_batch));
    BOOST_TEST(near(one.update, 2 * two.update));
    BOOST_TEST(more.micro_batch < one.micro_batch);
    BOOST_TEST(near(more.update * 4.8 / 3.35, one.update));
  });
}

// Attention in bf16 has a rate of its own, by the width of a head.
BOOST_AUTO_TEST_CASE(attention_has_its_own_rate) {
  mc::gpu_ceilings c = arithmetic_alone;
  c.attention_64[0] = 100e12, c.attention_64[1] = 50e12;
  with(mc::preset::gpt2_124m, mc::dtype::bf16, [&](const mc::program_view& p) {
    int seen = 0;
    for (const mc::roofline_row& r : mc::roofline_of(p, c).rows) {
      const std::string_view op = r.op;
      if (op != "attention" && op != "attention_grad") continue;
      const double rate = op == "attention" ? 100e12 : 50e12;
      BOOST_TEST(near(r.seconds, static_cast<double>(r.does.flops) / rate));
      ++seen;
    }
    BOOST_TEST(seen == 2);
  });
}
