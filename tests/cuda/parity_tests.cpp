// Programs for CUDA over the stand-in, on emulated blocks, against what transformers computed: the
// whole path of mc::cuda, and of a run none but its device.
#define BOOST_TEST_MODULE cuda_parity
#include <boost/test/unit_test.hpp>

#include <cuda/emulated_launch.hpp>
#include <cuda/machine.hpp>

#include <megacpp/run/interpreter.hpp>

#include <string>

#include <parity/checks.hpp>

namespace {

template <class Model>
void on_cuda(const Model& m,
             void (*check)(const mc::program_view&, mc::device&, const std::string&),
             const std::string& family) {
  const mc::interpreted_program<Model, mc::cuda> p(m, {.batch = test::tiny_batch}, "tiny");
  test::machine_with_device machine;
  check(p.view(), machine.device(), family);
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt2_logits_and_loss) {
  on_cuda(test::tiny_gpt2, &test::check_logits_and_loss, "gpt2");
}
BOOST_AUTO_TEST_CASE(gpt2_gradients) { on_cuda(test::tiny_gpt2, &test::check_gradients, "gpt2"); }
BOOST_AUTO_TEST_CASE(gpt2_ten_steps) { on_cuda(test::tiny_gpt2, &test::check_ten_steps, "gpt2"); }
BOOST_AUTO_TEST_CASE(qwen3_logits_and_loss) {
  on_cuda(test::tiny_qwen3, &test::check_logits_and_loss, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_gradients) {
  on_cuda(test::tiny_qwen3, &test::check_gradients, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_ten_steps) {
  on_cuda(test::tiny_qwen3, &test::check_ten_steps, "qwen3");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_logits_and_loss) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_logits_and_loss, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_gradients) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_gradients, "qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_ten_steps) {
  on_cuda(test::tiny_qwen3_moe_unbalanced, &test::check_ten_steps, "qwen3_moe");
}
