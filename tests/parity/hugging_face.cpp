// A tiny GPT-2, a tiny Qwen3 and a tiny Qwen3-MoE against what transformers computed for them in
// fp32: logits, loss, every gradient, and ten steps of AdamW, those on many ranks, too.
#define BOOST_TEST_MODULE hugging_face
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/state.hpp>

#include <chrono>
#include <cstdint>
#include <string>
#include <type_traits>
#include <vector>

#include <kernels.hpp>
#include <parity/checks.hpp>
#include <scratch.hpp>

namespace {

struct gpt2_run {
  static constexpr auto model = test::tiny_gpt2;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch = test::tiny_batch;
  using precision = mc::fp32;
};
struct qwen3_run {
  static constexpr auto model = test::tiny_qwen3;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch = test::tiny_batch;
  using precision = mc::fp32;
};
struct qwen3_moe_run {
  static constexpr auto model = test::tiny_qwen3_moe_unbalanced;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch = test::tiny_batch;
  using precision = mc::fp32;
};

template <class Run> const mc::program_view& program() {
  static const mc::program_view p = mc::compiled_program<Run>("tiny");
  return p;
}

template <class Run>
void on_cpu(void (*check)(const mc::program_view&, mc::device&, const std::string&),
            const std::string& family) {
  mc::cpu device(mc::product_type::automatic, 1);
  check(program<Run>(), device, family);
}

/// Ten steps by the ranks of a layout, which read the model and write what they have trained.
template <class Run>
void check_ten_steps_of_ranks(const std::string& family, const mc::layout& l, int dp, int micro) {
  BOOST_TEST_MESSAGE(family << " tp " << l.tp << " pp " << l.pp << " cp " << l.cp << " ep " << l.ep
                            << " zero " << l.zero << " dp " << dp);
  const mc::interpreted_program<std::remove_const_t<decltype(Run::model)>> p(
      Run::model,
      {.ranks = l,
       .batch = {.micro = micro,
                 .sequence = test::tiny_batch.sequence,
                 .micro_batches = 4 / micro}},
      "tiny");
  const mc::mesh ranks = mc::mesh_of(l, dp);
  std::vector<test::steps_taken> all(static_cast<std::size_t>(mc::ranks_of(ranks)));
  const test::scratch_folder dir;
  mc::thread_ranks(ranks, std::chrono::seconds(60)).run([&](mc::communicator& c) {
    mc::cpu device(mc::product_type::widened, 1);
    const auto others = c.make_ranks(device);
    mc::session s(p.view(), device, mc::purpose::training, *others);
    mc::load_model_folder(test::fixtures(family) / "model", p.view(), s.weights());
    all[static_cast<std::size_t>(c.rank())] = test::take_ten_steps(
        s, test::fixtures(family),
        static_cast<std::size_t>(c.coordinate()[static_cast<unsigned>(mc::axis::dp)]),
        static_cast<std::size_t>(dp));
    const auto write = [&](mc::folder_writer&& out) {
      mc::write_state(out, p.view(), s.weights(), {10, 40}, nlohmann::json::object(), {},
                      std::uint64_t{1} << 40, c);
      out.commit();
    };
    if (c.rank() == 0) write(mc::folder_writer(dir / "trained"));
    else write(mc::folder_writer::of_another_rank());
  });
  for (const test::steps_taken& x : all)
    BOOST_TEST((x.losses == all[0].losses && x.norms == all[0].norms), "ranks tell other numbers");
  const mc::safetensors_file trained(dir / "trained/model.safetensors");
  test::check_after_ten_steps(p.view(), family, all[0], [&](const mc::hf_tensor& t) {
    return test::read<double>(trained, t.name);
  });
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt2_logits_and_loss) {
  on_cpu<gpt2_run>(&test::check_logits_and_loss, "gpt2");
}
BOOST_AUTO_TEST_CASE(gpt2_gradients) { on_cpu<gpt2_run>(&test::check_gradients, "gpt2"); }
BOOST_AUTO_TEST_CASE(gpt2_ten_steps) { on_cpu<gpt2_run>(&test::check_ten_steps, "gpt2"); }
BOOST_AUTO_TEST_CASE(qwen3_logits_and_loss) {
  on_cpu<qwen3_run>(&test::check_logits_and_loss, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_gradients) { on_cpu<qwen3_run>(&test::check_gradients, "qwen3"); }
BOOST_AUTO_TEST_CASE(qwen3_ten_steps) { on_cpu<qwen3_run>(&test::check_ten_steps, "qwen3"); }
BOOST_AUTO_TEST_CASE(qwen3_moe_logits_and_loss) {
  on_cpu<qwen3_moe_run>(&test::check_logits_and_loss, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_gradients) {
  on_cpu<qwen3_moe_run>(&test::check_gradients, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_ten_steps) {
  on_cpu<qwen3_moe_run>(&test::check_ten_steps, "qwen3_moe");
}

BOOST_AUTO_TEST_CASE(ten_steps_under_layouts) {
  const mc::layout all{.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 1};
  check_ten_steps_of_ranks<gpt2_run>("gpt2", {.tp = 4, .sequence_parallel = true}, 1, 4);
  check_ten_steps_of_ranks<gpt2_run>("gpt2", {.pp = 2, .schedule = &mc::gpipe}, 1, 2);
  check_ten_steps_of_ranks<gpt2_run>("gpt2", all, 2, 2);
  check_ten_steps_of_ranks<qwen3_run>("qwen3", {.tp = 4}, 1, 4); // two ranks share a kv head
  check_ten_steps_of_ranks<qwen3_run>("qwen3", all, 2, 2);
  check_ten_steps_of_ranks<qwen3_moe_run>("qwen3_moe", {.cp = 2, .ep = 2, .zero = 1}, 2, 2);
  check_ten_steps_of_ranks<qwen3_moe_run>(
      "qwen3_moe", {.tp = 2, .ep = 4, .etp = 1, .sequence_parallel = true}, 2, 2);
  check_ten_steps_of_ranks<qwen3_moe_run>(
      "qwen3_moe", {.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2, 1);
}
