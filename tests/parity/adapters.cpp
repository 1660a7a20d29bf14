// An adapter of a tiny Qwen3 against what PEFT computed for it in fp32: loss and logits, every gradient,
// ten steps of AdamW, and the adapter after them, on many ranks, too.
#define BOOST_TEST_MODULE adapters
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/hf/adapter.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>

#include <chrono>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <parity/checks.hpp>
#include <scratch.hpp>

namespace {

constexpr mc::lora all_linears{.rank = 4, .alpha = 8, .targets = {"all-linear"}};

std::filesystem::path of_peft(const char* what) {
  return test::fixtures("qwen3").parent_path().parent_path() / "lora" / "qwen3" / what;
}
mc::interpreted_program<mc::qwen3> program_of(const mc::layout& l, int micro) {
  mc::setup s{
      .ranks = l,
      .batch = {.micro = micro, .sequence = test::tiny_batch.sequence, .micro_batches = 4 / micro}};
  s.adapter = all_linears;
  return {test::tiny_qwen3, s, "tiny"};
}
void load(const mc::program_view& p, mc::session& s) {
  mc::load_model_folder(test::fixtures("qwen3") / "model", p, s.weights());
  mc::load_adapter(mc::model_folder(of_peft("adapter").string()), p, s.weights());
}
/// PEFT names a tensor in memory by the adapter's name, too.
std::string in_memory(std::string name) { return name.insert(name.rfind(".weight"), ".default"); }

} // namespace

BOOST_AUTO_TEST_CASE(loss_and_gradients) {
  const auto p = program_of({}, 4);
  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(p.view(), device, mc::purpose::training);
  load(p.view(), s);
  const mc::safetensors_file ids(of_peft("train_ids.safetensors").string()),
      forward(of_peft("forward.safetensors").string()),
      gradients(of_peft("grads.safetensors").string());
  const auto all = test::read<std::int32_t>(ids, "ids");
  std::vector<std::int32_t> tokens, labels;
  for (std::size_t b = 0; b < 4; ++b)
    for (std::size_t i = 0; i < 24; ++i)
      tokens.push_back(all[b * 25 + i]), labels.push_back(all[b * 25 + i + 1]);
  mc::batch_view batch;
  batch.tokens = tokens.data(), batch.labels = labels.data();
  const mc::loss_sum sum = s.gradients(batch);
  BOOST_TEST(std::abs(sum.mean() - test::read<double>(forward, "loss")[0]) <= 1e-5);
  std::int64_t elements = 0;
  double worst = 0;
  for (const mc::hf_tensor& t : mc::adapter_tensors(p.view())) {
    const auto expected = test::read<double>(gradients, in_memory(t.name));
    auto ours = t.values(s.weights(), s.weights().gradients(), s.weights().precision().master);
    for (double& x : ours) x /= sum.count;
    const double error = test::relative(ours, expected);
    BOOST_TEST(error <= 1e-4, t.name << ": " << error);
    worst = std::max(worst, error);
    elements += t.elements();
  }
  BOOST_TEST_MESSAGE("gradients: " << worst);
  BOOST_TEST(elements == test::elements_of(gradients));
}

BOOST_AUTO_TEST_CASE(ten_steps_under_layouts) {
  const mc::layout layouts[] = {{},
                                {.tp = 2},
                                {.tp = 4, .sequence_parallel = true}, // two ranks share a kv head
                                {.pp = 2, .schedule = &mc::gpipe},
                                {.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}};
  const int replicas[] = {1, 1, 1, 1, 2};
  for (std::size_t k = 0; k < std::size(layouts); ++k) {
    const mc::layout& l = layouts[k];
    const int dp = replicas[k], micro = dp > 1 ? 2 : 4;
    const auto p = program_of(l, l.pp > 1 ? 2 : micro);
    const mc::mesh ranks = mc::mesh_of(l, dp);
    const auto count = static_cast<std::size_t>(mc::ranks_of(ranks));
    std::vector<test::steps_taken> taken(count);
    const test::scratch_folder dir;
    mc::thread_ranks(ranks, std::chrono::seconds(60)).run([&](mc::communicator& c) {
      mc::cpu device(mc::product_type::widened, 1);
      const auto others = c.make_ranks(device);
      mc::session s(p.view(), device, mc::purpose::training, *others);
      load(p.view(), s);
      taken[static_cast<std::size_t>(c.rank())] = test::take_ten_steps(
          s, of_peft(""),
          static_cast<std::size_t>(c.coordinate()[static_cast<unsigned>(mc::axis::dp)]),
          static_cast<std::size_t>(dp));
      mc::folder_writer out = c.rank() == 0 ? mc::folder_writer((dir / "adapter"))
                                            : mc::folder_writer::of_another_rank();
      mc::write_adapter_files(out, p.view(), s.weights(), c);
      out.commit();
    });
    test::check_told(of_peft(""), taken[0]);
    const mc::safetensors_file ours(dir / "adapter/adapter_model.safetensors"),
        expected((of_peft("adapter_after10") / "adapter_model.safetensors").string());
    BOOST_TEST(ours->size() == expected->size());
    double worst = 0;
    for (std::size_t i = 0; i < expected->size(); ++i) {
      const std::string name(expected.tensors()[i].name);
      const double error =
          test::relative(test::read<double>(ours, name), test::read<double>(expected, name));
      BOOST_TEST(error <= 1e-4, name << ": " << error);
      worst = std::max(worst, error);
    }
    BOOST_TEST_MESSAGE("layout " << k << ", adapter after ten steps: " << worst);
  }
}
