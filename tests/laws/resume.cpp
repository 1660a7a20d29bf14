// A run that stops and goes on has the same bits as one that did not stop, wherever it stops, for
// any number of threads, in every precision, with dropout; and for any micro-batch, if numerics are
// batch_invariant. A new model is one line in `resumes`.
#define BOOST_TEST_MODULE resume
#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/states/find_saved.hpp>
#include <megacpp/train/trainer.hpp>

#include <initializer_list>
#include <string>
#include <vector>

#include <laws/flagged_run.hpp>
#include <laws/running.hpp>
#include <scratch.hpp>

using namespace mc;

namespace {

constexpr int sequence = 24, global_batch = 4;

constexpr gpt dropping{.layers = 2,
                       .hidden = 32,
                       .heads = 2,
                       .ffn = 64,
                       .vocabulary = 101,
                       .positions = sequence,
                       .bias = true,
                       .dropout = 0.2};

/// A GPT with widths at which libraries cut sums by the number of rows.
constexpr gpt wide{
    .layers = 1, .hidden = 128, .heads = 4, .ffn = 512, .vocabulary = 101, .positions = sequence};

constexpr qwen3 grouped() {
  qwen3 m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48,
  m.vocabulary = 101;
  return m;
}

/// A mixture that has layers with experts and without, balanced by a loss.
constexpr qwen3_moe experts() {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 48;
  m.expert_ffn = 24, m.experts = 5, m.experts_per_token = 2, m.mlp_only = {0};
  m.aux_loss = 0.01, m.vocabulary = 101;
  return m;
}

/// A mixture with parts that transformers' Qwen3-MoE lacks: a balancing bias, a shared expert.
constexpr qwen3_moe shared_experts() {
  qwen3_moe m = experts();
  m.bias_rate = 0.001, m.shared_ffn = 16;
  return m;
}

/// Returns a model balanced by sequence: the load of a micro-batch, and a loss on it, would depend
/// on its size.
constexpr qwen3_moe balanced_by_sequence(qwen3_moe m) {
  m.aux_per_sequence = true;
  return m;
}

/// A family that transformers does not know.
struct own_family : gpt {
  static constexpr family_name<own_family> family{"own"};
};
constexpr own_family own{dropping};

/// A family with weights that every step computes from parameters, before its micro-batches.
struct computed_weights : gpt {
  static constexpr family_name<computed_weights> family{"computed"};
  static constexpr int kinds = 1;
  constexpr var block(context& c, int /*kind*/, var x) const {
    const extent h = hidden_extent(), f{dim::ffn, ffn};
    const var up = weight(c, "up", "weight", {f, h}, {}, normal_weights(0.3)),
              more = weight(c, "more", "weight", {f, h}, {}, normal_weights(0.3)),
              down = weight(c, "down", "weight", {h, f}, {}, normal_weights(0.3));
    return x + linear(gelu(linear(x, gelu(up) + more)), down);
  }
};
constexpr computed_weights computed{dropping};

/// Trains as one process does: a program of `micro` sequences at once, as the flags say.
template <class Model>
void train(const Model& m, dtype type, int micro, int threads, test::flag_values flags) {
  interpreted_program<Model> program(
      m, {.batch = {.micro = micro, .sequence = sequence}, .precision = type}, "resumed");
  flags.insert(flags.end(), {{"global-batch-size", std::to_string(global_batch)},
                             {"lr", "1e-2"},
                             {"lr-decay-iters", "60"},
                             {"lr-decay-style", "cosine"},
                             {"lr-warmup-iters", "3"},
                             {"weight-decay", "0.1"},
                             {"eval-iters", "1"},
                             {"eval-interval", "13"}});
  options o = test::options_of(flags);
  training_start start = prepare_start(program.view(), o);
  cpu device(product_type::widened, threads);
  trainer t(program.view(), training_request_of(program.view(), o), device, std::move(start));
  t.run();
}

std::string state_of(const std::string& root, int step, const char* file) {
  return test::read_text(root + "/" + step_folder_name(step) + "/" + file);
}

void check_same_state(const std::string& root, const std::string& other, int step) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string bytes = state_of(root, step, file);
    BOOST_REQUIRE(bytes.size() > 1000);
    BOOST_TEST((bytes == state_of(other, step, file)), other << " differs in " << file);
  }
}

/// Stops after 1, 7 and 50 of 53 steps and goes on, each time with another number of threads.
template <class Model> void resumes(const Model& m, dtype type) {
  test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  const test::flag_values data{{"data-path", dir / "text"}, {"split", "90,10,0"}};
  const auto with = [&](test::flag_values more) {
    more.insert(more.end(), data.begin(), data.end());
    return more;
  };
  const std::string whole = dir / "whole";
  train(m, type, 2, 1, with({{"train-iters", "53"}, {"save", whole}}));
  for (const char* stop : {"1", "7", "50"}) {
    const std::string parts = dir / stop;
    train(m, type, 2, 1, with({{"train-iters", stop}, {"save", parts}}));
    train(m, type, 2, 3, with({{"train-iters", "53"}, {"load", parts}, {"save", parts}}));
    check_same_state(whole, parts, 53);
  }
}

/// Returns the setup of a program whose sums do not depend on its micro-batch.
setup invariant(dtype type, int micro) {
  return {.batch = {.micro = micro, .sequence = sequence},
          .precision = type,
          .sums = numerics::batch_invariant};
}
template <class Model> void take_steps(test::running<Model>& r, const test::drawn_text& text,
                                       run_position& at, std::int64_t steps) {
  for (const std::int64_t end = at.step + steps; at.step < end; ++at.step) {
    r.run.step(global_batch / r.run.micro_batch(), r.feed(text, at.samples));
    at.samples += global_batch;
  }
}

/// Trains in micro-batches of the whole global batch, saves, and goes on in smaller ones.
template <class Model> void goes_on_in_other_micro_batches(const Model& m) {
  const test::drawn_text text(6000, 101, sequence);
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
    test::scratch_folder dir;
    test::running whole(m, invariant(type, global_batch));
    whole.run.weights().initialise(5);
    run_position at;
    take_steps(whole, text, at, 7);
    state_root(dir / "root").save(at.step, 0, [&](folder_writer& out) {
      write_state(out, whole.program.view(), whole.run.weights(), at, {});
    });
    take_steps(whole, text, at, 5);
    for (const int micro : {1, 2}) {
      const auto saved = find_saved(dir / "root", true);
      BOOST_REQUIRE((saved && saved->state));
      test::running resumed(m, invariant(type, micro));
      const program_view& p = resumed.program.view();
      load_weights(saved->folder, p, resumed.run.weights());
      run_position here =
          load_moments(saved->folder, saved->state->state(), p, resumed.run.weights());
      BOOST_TEST(here.step == 7);
      BOOST_TEST(here.samples == 7 * global_batch);
      resumed.run.numbers().step = here.step;
      take_steps(resumed, text, here, 5);
      BOOST_TEST((resumed.stores() == whole.stores()), name_of(type)
                                                           << " in micro-batches of " << micro);
    }
  }
}

/// Returns the main grads of five sequences, `micro` at a time. Taken twice they are the same.
template <class Model> std::string gradients_of_five(const Model& m, int micro) {
  const test::drawn_text text(6000, 101, sequence);
  test::running r(m, invariant(dtype::f32, micro));
  r.run.weights().initialise(5);
  const stores& s = r.run.weights();
  const auto reduced = [&] {
    r.run.gradients(5 / micro, r.feed(text, 0));
    return std::string(
        reinterpret_cast<const char*>(s.gradients()),
        static_cast<std::size_t>(s.entries().gradients * size_of(s.precision().main_gradient)));
  };
  std::string once = reduced();
  BOOST_TEST((reduced() == once));
  return once;
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt_with_dropout_fp32) { resumes(dropping, dtype::f32); }
BOOST_AUTO_TEST_CASE(gpt_with_dropout_bf16) { resumes(dropping, dtype::bf16); }
BOOST_AUTO_TEST_CASE(qwen3_fp32) { resumes(grouped(), dtype::f32); }
BOOST_AUTO_TEST_CASE(qwen3_bf16) { resumes(grouped(), dtype::bf16); }
BOOST_AUTO_TEST_CASE(qwen3_moe_fp32) { resumes(experts(), dtype::f32); }
BOOST_AUTO_TEST_CASE(qwen3_moe_bf16) { resumes(experts(), dtype::bf16); }
BOOST_AUTO_TEST_CASE(shared_experts_fp32) { resumes(shared_experts(), dtype::f32); }
BOOST_AUTO_TEST_CASE(shared_experts_bf16) { resumes(shared_experts(), dtype::bf16); }
BOOST_AUTO_TEST_CASE(family_without_a_hugging_face_form_fp32) { resumes(own, dtype::f32); }
BOOST_AUTO_TEST_CASE(family_without_a_hugging_face_form_bf16) { resumes(own, dtype::bf16); }

// A state does not depend on micro-batches, and no sum depends on how many sequences are computed
// together: a program of another micro-batch goes on with the bits of the uninterrupted run.
BOOST_AUTO_TEST_CASE(gpt_in_other_micro_batches) { goes_on_in_other_micro_batches(dropping); }
BOOST_AUTO_TEST_CASE(wide_gpt_in_other_micro_batches) { goes_on_in_other_micro_batches(wide); }
BOOST_AUTO_TEST_CASE(computed_weights_in_other_micro_batches) {
  goes_on_in_other_micro_batches(computed);
}
BOOST_AUTO_TEST_CASE(qwen3_in_other_micro_batches) { goes_on_in_other_micro_batches(grouped()); }
// Five sequences have as many choices as five experts can share evenly; one sequence has not.
BOOST_AUTO_TEST_CASE(gradients_and_loads_in_other_micro_batches) {
  const qwen3_moe m = balanced_by_sequence(shared_experts());
  BOOST_TEST((gradients_of_five(m, 5) == gradients_of_five(m, 1)));
  BOOST_TEST((gradients_of_five(dropping, 5) == gradients_of_five(dropping, 1)));
}
BOOST_AUTO_TEST_CASE(experts_in_other_micro_batches) {
  goes_on_in_other_micro_batches(balanced_by_sequence(experts()));
  goes_on_in_other_micro_batches(balanced_by_sequence(shared_experts()));
  qwen3_moe m = balanced_by_sequence(experts());
  m.hidden = 128, m.expert_ffn = 512;
  goes_on_in_other_micro_batches(m);
}

namespace {
/// Returns the stores after four steps, with `change(run)` before each of them.
template <class F> std::string after_four_steps(F change) {
  const test::drawn_text text(6000, 101, sequence);
  test::running r(dropping, invariant(dtype::bf16, 2));
  r.run.weights().initialise(5);
  run_position at;
  for (int step = 0; step < 4; ++step) {
    change(r.run);
    take_steps(r, text, at, 1);
  }
  return r.stores();
}
} // namespace

BOOST_AUTO_TEST_CASE(evaluations_between_steps_change_nothing) {
  const std::vector<std::int32_t> tokens(2 * sequence, 7), labels(2 * sequence, 3);
  BOOST_TEST((after_four_steps([&](session& run) {
                run.evaluate(batch_view{tokens.data(), labels.data()});
              }) == after_four_steps([](session&) {})));
}

// A gradient whose norm is below the limit is not changed, however far below.
BOOST_AUTO_TEST_CASE(a_limit_above_the_norm_changes_nothing) {
  const auto with = [](double clip) {
    return after_four_steps([=](session& run) { run.numbers().clip = clip; });
  };
  BOOST_TEST((with(1e6) == with(0)));
  BOOST_TEST((with(1e-3) != with(0)));
}

// A program without a command line fills in requests: the run is the same, and requests that
// contradict each other are refused before anything is read.
BOOST_AUTO_TEST_CASE(a_run_needs_no_flags) {
  const test::scratch_folder dir;
  test::write_text(dir / "text", test::text_of_101_bytes());
  train(dropping, dtype::f32, 2, 1,
        {{"data-path", dir / "text"}, {"train-iters", "3"}, {"save", dir / "flags"}});

  const interpreted_program<gpt> program(
      dropping, {.batch = {.micro = 2, .sequence = sequence}, .precision = dtype::f32}, "resumed");
  const program_view& p = program.view();
  training_request r;
  r.data.paths = {dir / "text"};
  r.loop.steps = 3, r.loop.sequences_of_all_replicas = 2, r.loop.batches.last = global_batch;
  r.loop.rates = {.lr = 1e-2, .style = decay_style::cosine, .warmup = 3, .decay = 60};
  r.loop.decays_to_end = false;
  r.loop.numbers.weight_decay = 0.1;
  r.loop.eval_iters = 1, r.loop.eval_interval = 13;
  r.loop.save = dir / "request";
  cpu device(product_type::widened, 1);
  const auto refused = [&](const auto& change, const char* says) {
    training_request wrong = r;
    change(wrong.loop);
    CHECK_REFUSED(trainer(p, wrong, device), exit_code::usage, says);
  };
  refused([](loop_request& l) { l.sequences_of_all_replicas = 1; },
          "counts 1 sequences at once, but replicas take 2");
  refused([](loop_request& l) { l.batches.last = 3; }, "batch_schedule::last is 3");
  refused([](loop_request& l) { l.batches.start = 3; }, "batch_schedule::start is 3");
  refused([](loop_request& l) { l.batches.start = 2, l.batches.increment = 1; },
          "batch_schedule::increment is 1");
  refused([](loop_request& l) { l.eval_interval = 0; }, "loop_request::eval_interval is 0");
  refused([](loop_request& l) { l.rates.min_lr = 1; }, "schedule::min_lr is above");
  setup adapted{.batch = {.micro = 2, .sequence = sequence}, .precision = dtype::f32};
  adapted.adapter.rank = 2;
  const interpreted_program<gpt> of_adapter(dropping, adapted, "adapted");
  CHECK_REFUSED(trainer(of_adapter.view(), r, device), exit_code::usage,
                "an adapter would be trained beside random weights");
  trainer(p, r, device).run();
  check_same_state(dir / "flags", dir / "request", 3);
}
