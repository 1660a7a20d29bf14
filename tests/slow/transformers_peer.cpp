// What transformers_peer.py holds against transformers: folders of models with random weights, the
// log-probabilities of all tokens and, of some, gradients and ten steps of AdamW; and afterwards the
// folders that transformers saved from them. For bitsandbytes_peer.py, folders in NF4.
//
//   transformers_peer write DIR   DIR/NAME/ours (a model folder), DIR/NAME/expected.safetensors,
//                                 DIR/NAME/trained.safetensors
//   transformers_peer read DIR    DIR/NAME/theirs* must hold the same weights, to the bit
//   transformers_peer nf4 DIR     DIR/NAME/ours (a model folder in NF4), DIR/NAME/expected.safetensors,
//                                 DIR/NAME/weights.safetensors (what its codes mean)
#include <megacpp/generate/generator.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/export.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <numbers>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <kernels.hpp>

namespace {

namespace fs = std::filesystem;

constexpr int batch = 2;
/// Tokens of a sequence: of stretched RoPE more than the original positions.
constexpr int sequence = 12, long_sequence = 40;

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

/// Tensors of a file, by name.
class tensors_to_write {
public:
  template <class T>
  void add(const std::string& name, std::vector<std::int64_t> shape, const std::vector<T>& values) {
    constexpr auto type =
        std::is_same_v<T, std::int32_t> ? mc::storage_type::i32 : mc::storage_type::f64;
    const auto bytes = std::as_bytes(std::span(values));
    specs_.push_back({name, type, std::move(shape)});
    values_[name].assign(bytes.begin(), bytes.end());
  }
  void write(const fs::path& path) const {
    const mc::safetensors_layout file(specs_);
    std::ofstream out(path, std::ios::binary);
    file.write(
        [&](std::span<const std::byte> b) {
          out.write(reinterpret_cast<const char*>(b.data()),
                    static_cast<std::streamsize>(b.size()));
        },
        [&](const mc::tensor_spec& t, const mc::byte_sink& sink) { sink(values_.at(t.name)); });
  }

private:
  std::vector<mc::tensor_spec> specs_;
  std::map<std::string, std::vector<std::byte>> values_;
};

std::vector<std::int32_t> drawn_tokens(unsigned seed, std::size_t count, int vocabulary) {
  std::mt19937 random(seed);
  std::vector<std::int32_t> tokens(count);
  for (auto& t : tokens)
    t = static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary));
  return tokens;
}

/// log p of every token at every position, by prefill and decode.
std::vector<double> log_p_of(const mc::program_view& p, mc::device& on, const mc::stores& weights,
                             const std::vector<std::int32_t>& tokens) {
  const auto length = tokens.size() / batch, width = static_cast<std::size_t>(p.vocabulary);
  std::vector<double> log_p(tokens.size() * width);
  mc::generator g(p, on, weights,
                  {.sequences = batch, .tokens = static_cast<std::int64_t>(length), .prompt = 7});
  std::vector<std::span<const std::int32_t>> more(batch);
  for (std::size_t n = 1; n <= length; ++n) {
    for (std::size_t b = 0; b < batch; ++b) {
      const std::size_t from = n > 7 ? n - 1 : 0;
      if (from == 0) g.clear(static_cast<int>(b));
      more[b] = std::span(tokens).subspan(b * length + from, n - from);
    }
    g.append(more);
    for (std::size_t b = 0; b < batch; ++b) {
      double* const row = &log_p[(b * length + n - 1) * width];
      double sum = 0;
      for (std::size_t v = 0; v < width; ++v) {
        row[v] = g.logit(static_cast<int>(b), static_cast<std::int32_t>(v));
        sum += std::exp(row[v]);
      }
      for (std::size_t v = 0; v < width; ++v) row[v] -= std::log(sum);
    }
  }
  return log_p;
}

/// The gradient of the mean loss, and ten steps of AdamW on the first tokens again and again.
void train(mc::session& s, std::vector<std::int32_t> tokens, const fs::path& to) {
  const mc::program_view& p = s.program();
  auto labels = drawn_tokens(5, tokens.size(), p.vocabulary);
  mc::batch_view data;
  data.tokens = tokens.data(), data.labels = labels.data();
  tensors_to_write out;
  const auto shape = {std::int64_t{batch}, static_cast<std::int64_t>(tokens.size() / batch)};
  out.add("labels", shape, labels);
  const double count = s.gradients(data).count;
  for (const mc::hf_tensor& t : mc::hf_family_of(p).tensors(p)) {
    auto g = t.values(s.weights(), s.weights().gradients(), s.weights().precision().master);
    for (double& x : g) x /= count;
    out.add("gradient." + t.name, t.shape, g);
  }
  mc::step_numbers& n = s.numbers();
  n.beta1 = 0.9, n.beta2 = 0.95, n.epsilon = 1e-8, n.weight_decay = 0.1, n.clip = 1;
  n.learning_rate = 1e-3;
  std::vector<double> losses;
  for (int step = 0; step < 10; ++step) losses.push_back(s.step(data).loss.mean());
  out.add("losses", {10}, losses);
  out.write(to);
}

/// Of a model that trains, gradients and steps too: those of families without experts, which
/// transformers 5 would have under other names.
template <class Model> void run(bool writes, const fs::path& dir, const Model& m,
                                int length = sequence, bool trains = false) {
  mc::setup numbers;
  numbers.batch = {batch, length};
  const mc::interpreted_program<Model> program(m, numbers, dir.filename());
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(program.view(), device, trains ? mc::purpose::training : mc::purpose::inference);
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
  const auto tokens = drawn_tokens(
      3, static_cast<std::size_t>(batch) * static_cast<unsigned>(length), m.vocabulary);
  tensors_to_write expected;
  expected.add("tokens", {batch, length}, tokens);
  expected.add("log_p", {batch, length, m.vocabulary},
               log_p_of(program.view(), device, s.weights(), tokens));
  expected.write(dir / "expected.safetensors");
  if (trains) train(s, tokens, dir / "trained.safetensors");
}

/// Writes a folder in NF4 as `export --quantise nf4` does, what a program beside such a base computes
/// with it, and the weights that a plain program reads from it.
template <class Model> void write_nf4(const fs::path& dir, const Model& m) {
  mc::setup numbers;
  numbers.batch = {batch, sequence};
  const mc::interpreted_program<Model> plain(m, numbers, dir.filename());
  numbers.adapter = {.rank = 2, .alpha = 2, .base = mc::base_storage::nf4};
  const mc::interpreted_program<Model> beside(m, numbers, dir.filename());
  fs::create_directories(dir);
  mc::stores weights(plain.view(), false);
  randomise(plain.view(), weights);
  mc::save_model_folder(dir / "plain", plain.view(), weights);
  mc::export_request request;
  request.start.load = dir / "plain", request.save = dir / "ours", request.nf4 = true;
  mc::run_export(beside.view(), request);
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(beside.view(), device, mc::purpose::inference);
  const mc::model_folder ours(dir / "ours");
  mc::load_weights(ours, beside.view(), s.weights(), 3); // B is zero
  const auto tokens = drawn_tokens(3, batch * sequence, m.vocabulary);
  tensors_to_write expected, decoded;
  expected.add("tokens", {batch, sequence}, tokens);
  expected.add("log_p", {batch, sequence, m.vocabulary},
               log_p_of(beside.view(), device, s.weights(), tokens));
  expected.write(dir / "expected.safetensors");
  mc::load_weights(ours, plain.view(), weights);
  for (const mc::hf_tensor& t : mc::hf_family_of(plain.view()).tensors(plain.view()))
    decoded.add(t.name, t.shape, t.values(weights, weights.weights(), mc::dtype::f32));
  decoded.write(dir / "weights.safetensors");
}

/// Matrices whose rows are whole blocks, and some whose blocks go over the ends of rows.
void write_all_nf4(const fs::path& dir) {
  mc::qwen3 qwen3{.layers = 2,
                  .hidden = 192,
                  .heads = 4,
                  .kv_heads = 2,
                  .head_dim = 32,
                  .ffn = 320,
                  .vocabulary = 61,
                  .positions = 40,
                  .tied = false,
                  .rope_theta = 5000};
  write_nf4(dir / "qwen3", qwen3);
  qwen3.hidden = 40, qwen3.ffn = 72, qwen3.head_dim = 16, qwen3.tied = true;
  write_nf4(dir / "qwen3-narrow", qwen3);
  mc::llama llama{.layers = 2,
                  .hidden = 64,
                  .heads = 4,
                  .kv_heads = 4,
                  .head_dim = 16,
                  .ffn = 128,
                  .vocabulary = 61,
                  .positions = 64};
  llama.attention_bias = llama.mlp_bias = true;
  write_nf4(dir / "llama-biases", llama);
  write_nf4(
      dir / "gpt2",
      mc::gpt{
          .layers = 2, .hidden = 128, .heads = 4, .ffn = 320, .vocabulary = 61, .positions = 40});
  mc::qwen3_moe moe{.layers = 2,
                    .hidden = 64,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 16,
                    .ffn = 128,
                    .expert_ffn = 64,
                    .experts = 4,
                    .experts_per_token = 2,
                    .vocabulary = 61,
                    .positions = 40};
  write_nf4(dir / "experts", moe);
}

} // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw std::runtime_error("give write, read or nf4, and a folder");
    const bool writes = std::string_view(argv[1]) == "write";
    const fs::path dir = argv[2];
    if (std::string_view(argv[1]) == "nf4") {
      write_all_nf4(dir);
      return 0;
    }
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
    qwen3.window = 0;
    qwen3.rope_scaling = {.type = mc::rope_type::yarn, .factor = 2.5, .original = 16};
    run(writes, dir / "qwen3-yarn", qwen3, long_sequence, true);
    qwen3.rope_scaling = {.type = mc::rope_type::yarn,
                          .factor = 4,
                          .slow = 0.5,
                          .fast = 8,
                          .attention = 1.3,
                          .truncated = false};
    run(writes, dir / "qwen3-yarn-not-truncated", qwen3, long_sequence, true);
    qwen3.rope_scaling = {.type = mc::rope_type::linear, .factor = 3};
    run(writes, dir / "qwen3-linear", qwen3, long_sequence, true);
    const mc::llama llama{
        .layers = 2,
        .hidden = 40,
        .heads = 4,
        .kv_heads = 2,
        .head_dim = 16,
        .ffn = 50,
        .vocabulary = 61,
        .positions = 64,
        .rope_theta = 50,
        .rope_scaling = {.type = mc::rope_type::llama3, .factor = 8, .original = 16, .fast = 4}};
    run(writes, dir / "llama", llama, long_sequence, true);
    mc::llama biased = llama;
    biased.attention_bias = biased.mlp_bias = biased.tied = true, biased.kv_heads = 4;
    biased.rope_scaling = {.type = mc::rope_type::linear, .factor = 2};
    run(writes, dir / "llama-biases", biased, long_sequence, true);
    mc::qwen2 qwen2{.layers = 2,
                    .hidden = 40,
                    .heads = 4,
                    .kv_heads = 2,
                    .head_dim = 10,
                    .ffn = 50,
                    .vocabulary = 61,
                    .positions = 40,
                    .rope_theta = 5000};
    run(writes, dir / "qwen2", qwen2, sequence, true);
    qwen2.tied = false;
    qwen2.rope_scaling = {.type = mc::rope_type::yarn, .factor = 4}; // as its page has it
    run(writes, dir / "qwen2-yarn", qwen2, long_sequence, true);
    qwen2.rope_scaling = {}, qwen2.window = 5;
    run(writes, dir / "qwen2-window", qwen2);
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
    moe.window = 0;
    moe.rope_scaling = {.type = mc::rope_type::yarn, .factor = 2.5, .original = 16};
    run(writes, dir / "qwen3_moe-yarn", moe, long_sequence);
    return 0;
  } catch (const std::exception& e) {
    std::cerr << "transformers_peer: " << e.what() << '\n';
    return 1;
  }
}
