// What transformers_peer.py holds against transformers: folders of models with random weights and
// the log-probabilities of all tokens, and afterwards the folders that transformers saved from
// them.
//
//   transformers_peer write DIR   DIR/NAME/ours (a model folder), DIR/NAME/expected.safetensors
//   transformers_peer read DIR    DIR/NAME/theirs* must hold the same weights, to the bit
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/run/session.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <numbers>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <kernels.hpp>

namespace {

namespace fs = std::filesystem;

constexpr int batch = 2, sequence = 12;

/// Every parameter random, norms and biases too: what is never read cannot pass.
void randomise(const mc::program_view& p, mc::stores& s) {
  std::mt19937_64 random(11);
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  mc::for_each_parameter(p, [&](const mc::parameter_ref& r) {
    const bool gain = r.info->how == mc::init::ones;
    for (std::int64_t i = 0; i < r.count.n; ++i) {
      const double x =
          std::sqrt(-2 * std::log(uniform())) * std::cos(2 * std::numbers::pi * uniform());
      s.set_weight(r.offset + i, gain ? 1 + 0.3 * x : 0.3 * x);
    }
  });
}

void write_expected(const fs::path& path, const std::vector<std::int32_t>& tokens,
                    const std::vector<float>& log_p, std::int64_t vocabulary) {
  const mc::safetensors_layout file(
      {{"tokens", mc::storage_type::i32, {batch, sequence}},
       {"log_p", mc::storage_type::f32, {batch, sequence, vocabulary}}});
  std::ofstream out(path, std::ios::binary);
  file.write(
      [&](std::span<const std::byte> b) {
        out.write(reinterpret_cast<const char*>(b.data()), static_cast<std::streamsize>(b.size()));
      },
      [&](const mc::tensor_spec& t, const mc::byte_sink& sink) {
        sink(t.name == "tokens" ? std::as_bytes(std::span(tokens))
                                : std::as_bytes(std::span(log_p)));
      });
}

template <class Model> void run(bool writes, const fs::path& dir, const Model& m) {
  mc::setup numbers;
  numbers.batch = {batch, sequence};
  const mc::interpreted_program<Model> program(m, numbers, dir.filename());
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(program.view(), device, mc::purpose::inference);
  randomise(program.view(), s.weights());
  if (!writes) {
    int folders = 0;
    mc::stores read(program.view(), false);
    for (const auto& entry : fs::directory_iterator(dir)) {
      if (!std::string_view(entry.path().filename().c_str()).starts_with("theirs")) continue;
      ++folders;
      mc::load_model_folder(entry.path(), program.view(), read);
      mc::for_each_parameter(program.view(), [&](const mc::parameter_ref& r) {
        const auto at = static_cast<std::size_t>(r.offset) * sizeof(float);
        if (std::memcmp(read.weights() + at, s.weights().weights() + at,
                        static_cast<std::size_t>(r.count.n) * sizeof(float)) != 0)
          throw std::runtime_error(entry.path().string() + ": " + r.name + " is another");
      });
    }
    if (folders == 0) throw std::runtime_error(dir.string() + " has no folder of theirs");
    return;
  }
  fs::create_directories(dir);
  mc::save_model_folder(dir / "ours", program.view(), s.weights(), {}, 20'000);
  std::mt19937 random(3);
  std::vector<std::int32_t> tokens(batch * sequence);
  for (auto& t : tokens)
    t = static_cast<std::int32_t>(random() % static_cast<unsigned>(m.vocabulary));
  const auto width = static_cast<std::size_t>(m.vocabulary);
  std::vector<float> log_p(tokens.size() * width);
  // -log p of every token at every position: the loss of that one label.
  mc::batch_view data;
  std::vector<std::int32_t> labels(tokens.size(), -1);
  data.tokens = tokens.data(), data.labels = labels.data();
  for (std::size_t at = 0; at < tokens.size(); ++at) {
    for (std::size_t v = 0; v < width; ++v) {
      labels[at] = static_cast<std::int32_t>(v);
      log_p[at * width + v] = static_cast<float>(-s.evaluate(data).sum);
    }
    labels[at] = -1;
  }
  write_expected(dir / "expected.safetensors", tokens, log_p, m.vocabulary);
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("give write or read, and a folder");
    const bool writes = std::string_view(argv[1]) == "write";
    const fs::path dir = argv[2];
    mc::gpt gpt2{
        .layers = 2, .hidden = 45, .heads = 3, .ffn = 70, .vocabulary = 61, .positions = 20};
    run(writes, dir / "gpt2", gpt2);
    gpt2.tied = false;
    run(writes, dir / "gpt2-not-tied", gpt2);
    gpt2.bias = false;
    run(writes, dir / "gpt2-without-biases", gpt2);
    mc::qwen3 qwen3{.layers = 3,
                    .hidden = 40,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .ffn = 50,
                    .vocabulary = 61,
                    .positions = 40,
                    .tied = true,
                    .rope_theta = 5000};
    run(writes, dir / "qwen3", qwen3);
    qwen3.tied = false, qwen3.heads = 3, qwen3.kv_heads = 1, qwen3.eps = 1e-5;
    run(writes, dir / "qwen3-one-kv-head", qwen3);
    qwen3.window = 5;
    run(writes, dir / "qwen3-window", qwen3);
    mc::qwen3_moe moe{.layers = 3,
                      .hidden = 40,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 16,
                      .ffn = 50,
                      .expert_ffn = 24,
                      .experts = 6,
                      .experts_per_token = 2,
                      .vocabulary = 61,
                      .positions = 40};
    run(writes, dir / "qwen3_moe", moe);
    moe.layers = 4, moe.sparse_step = 2, moe.mlp_only = {1}, moe.norm_topk = false;
    run(writes, dir / "qwen3_moe-mixed", moe);
    moe.window = 5;
    run(writes, dir / "qwen3_moe-window", moe);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "transformers_peer: " << e.what() << '\n';
    return 1;
  }
}
