// What transformers computed for its tiny models in fp32, and what a program says of them on any
// device: logits, loss, every gradient, ten steps of AdamW.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/generate/generator.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <parity/fixtures.hpp>

namespace test {

/// The tensors of the model as transformers has it.
inline std::vector<mc::hf_tensor> tensors_of(const mc::program_view& p) {
  return mc::hf_family_of(p).tensors(p);
}

template <class T> std::vector<T> read(const mc::safetensors_file& file, const std::string& name) {
  const mc::file_tensor t = file->at(name);
  std::vector<T> out(static_cast<std::size_t>(t.elements()));
  mc::read_values(t, std::span(out));
  return out;
}

/// Tokens with their labels, which a batch_view of them points at.
struct labelled_tokens {
  std::vector<std::int32_t> tokens, labels;

  /// Returns what a fixture's forward pass was given.
  static labelled_tokens of(const mc::safetensors_file& forward) {
    return {read<std::int32_t>(forward, "input_ids"), read<std::int32_t>(forward, "labels")};
  }
  /// Adds the sequence of `count` tokens each of which the next one of `ids` labels.
  void add(const std::int32_t* ids, std::ptrdiff_t count) {
    tokens.insert(tokens.end(), ids, ids + count);
    labels.insert(labels.end(), ids + 1, ids + 1 + count);
  }
  mc::batch_view view(std::size_t first = 0) const {
    mc::batch_view batch;
    batch.tokens = tokens.data() + first, batch.labels = labels.data() + first;
    return batch;
  }
};
inline labelled_tokens forward_of(const char* family) {
  return labelled_tokens::of(
      mc::safetensors_file((fixtures(family) / "forward.safetensors").string()));
}

/// A tensor of transformers' by the name it has in files. In memory transformers 5 holds experts
/// fused: gate_up_proj (E, 2 F, H), gate rows first, and down_proj (E, H, F).
inline std::vector<double> read_named(const mc::safetensors_file& file, const std::string& name) {
  const auto at = name.find(".experts.");
  if (at == std::string::npos || file->find(name)) return read<double>(file, name);
  const std::string scope = name.substr(0, at + 9), rest = name.substr(at + 9);
  const auto expert = static_cast<std::size_t>(std::stoi(rest));
  const bool down = rest.find("down_proj") != std::string::npos,
             up = rest.find("up_proj") < rest.size();
  const mc::file_tensor fused = file->at(scope + (down ? "down_proj" : "gate_up_proj"));
  std::vector<double> all(static_cast<std::size_t>(fused.elements()));
  mc::read_values(fused, std::span(all));
  const std::size_t parts = down ? 1 : 2,
                    size = all.size() / static_cast<std::size_t>(fused.shape[0]) / parts;
  const auto first =
      all.begin() + static_cast<std::ptrdiff_t>((expert * parts + (up && !down ? 1 : 0)) * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

inline std::int64_t elements_of(const mc::safetensors_file& file) {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < file->size(); ++i) n += file.tensors()[i].elements();
  return n;
}

/// |a - b| / |b| in the Euclidean norm, over elements [first, last).
inline double relative(const std::vector<double>& a, const std::vector<double>& b,
                       std::size_t first, std::size_t last) {
  double difference = 0, norm = 0;
  for (std::size_t i = first; i < last; ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}
inline double relative(const std::vector<double>& a, const std::vector<double>& b) {
  return relative(a, b, 0, a.size());
}
inline double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

/// The largest error of every kind of tensor: names without the layer's number.
class worst {
public:
  void add(std::string name, double error) {
    const auto digit =
        std::find_if(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (digit != name.end()) *digit = 'i';
    double& at = by_name_[name];
    at = std::max(at, error);
  }
  void print(const char* what) const {
    for (const auto& [name, error] : by_name_)
      BOOST_TEST_MESSAGE(what << " " << name << ": " << error);
  }

private:
  std::map<std::string, double> by_name_;
};

inline bool is_key_bias_holder(const std::string& name) {
  return name.ends_with("attn.c_attn.bias");
}

/// Returns the largest error of the logits of four sequences at every position, by prefill up to 7
/// tokens and then by decode, as a share of the largest logit.
inline double error_of_logits(const mc::program_view& p, mc::device& device,
                              const mc::stores& weights, const std::vector<std::int32_t>& tokens,
                              const std::vector<double>& expected) {
  double largest = 0, error = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  const auto rows = static_cast<std::size_t>(tiny_batch.sequence),
             vocabulary = expected.size() / tokens.size();
  mc::generator g(p, device, weights, {.sequences = 4, .tokens = tiny_batch.sequence, .prompt = 7});
  std::vector<std::span<const std::int32_t>> more(4);
  for (std::size_t n = 1; n <= rows; ++n) {
    for (std::size_t b = 0; b < 4; ++b) {
      const std::size_t from = n > 7 ? n - 1 : 0;
      if (from == 0) g.clear(static_cast<int>(b));
      more[b] = std::span(tokens).subspan(b * rows + from, n - from);
    }
    g.append(more);
    for (std::size_t b = 0; b < 4; ++b)
      for (std::size_t v = 0; v < vocabulary; ++v)
        error =
            std::max(error, std::abs(g.logit(static_cast<int>(b), static_cast<std::int32_t>(v)) -
                                     expected[(b * rows + n - 1) * vocabulary + v]));
  }
  return error / largest;
}

/// Compares the loss and the logits that loaded weights give with those of a fixture.
inline void check_logits_and_loss_of(mc::session& s, const mc::program_view& p, mc::device& device,
                                     const labelled_tokens& given,
                                     const mc::safetensors_file& forward, const std::string& name) {
  const double loss = read<double>(forward, "loss")[0];
  const mc::loss_sum sum = s.evaluate(given.view());
  BOOST_TEST(sum.count == 96.0);
  BOOST_TEST_MESSAGE(name << " loss: " << std::abs(sum.mean() - loss));
  BOOST_TEST(std::abs(sum.mean() - loss) <= 1e-5);
  const double error =
      error_of_logits(p, device, s.weights(), given.tokens, read<double>(forward, "logits"));
  BOOST_TEST_MESSAGE(name << " logits: " << error << " of the largest");
  BOOST_TEST(error <= 2e-5, name << ": " << error);
}
inline void check_logits_and_loss(const mc::program_view& p, mc::device& device,
                                  const std::string& family) {
  mc::session s(p, device, mc::purpose::inference);
  mc::load_model_folder(fixtures(family) / "model", p, s.weights());
  const mc::safetensors_file forward((fixtures(family) / "forward.safetensors").string());
  check_logits_and_loss_of(s, p, device, labelled_tokens::of(forward), forward, family);
}

inline void check_gradients(const mc::program_view& p, mc::device& device,
                            const std::string& family) {
  mc::session s(p, device, mc::purpose::training);
  mc::load_model_folder(fixtures(family) / "model", p, s.weights());
  const mc::safetensors_file forward((fixtures(family) / "forward.safetensors").string());
  const mc::safetensors_file gradients((fixtures(family) / "grads.safetensors").string());
  const auto given = labelled_tokens::of(forward);
  const mc::loss_sum sum = s.gradients(given.view());
  BOOST_TEST(std::abs(sum.mean() - read<double>(forward, "loss")[0]) <= 1e-5);

  worst errors;
  std::int64_t elements = 0;
  for (const mc::hf_tensor& t : tensors_of(p)) {
    const auto expected = read_named(gradients, t.name);
    auto ours = t.values(s.weights(), s.weights().gradients(), s.weights().precision().master);
    for (double& x : ours) x /= sum.count; // main grads are of the summed loss
    const double error = relative(ours, expected);
    errors.add(t.name, error);
    BOOST_TEST(error <= 1e-4, t.name << ": " << error);
    elements += t.elements();
  }
  BOOST_TEST(elements == elements_of(gradients));
  errors.print("gradient");
}

/// Losses and gradient norms of the fixture's ten steps, on the sequences of one of dp replicas in
/// micro-batches of the program's size, and the sum of the learning rates.
struct steps_taken {
  std::vector<double> losses, norms;
  double rates = 0;
};
inline steps_taken take_ten_steps(mc::session& s, const std::filesystem::path& folder,
                                  std::size_t replica = 0, std::size_t dp = 1) {
  const mc::json_value train = mc::read_json((folder / "train.json").string());
  const auto adamw = train.field<mc::json_value>("adamw");
  mc::step_numbers& n = s.numbers();
  const auto betas = adamw.field<std::vector<double>>("betas");
  n.beta1 = betas.at(0), n.beta2 = betas.at(1), n.epsilon = adamw.field<double>("eps");
  n.weight_decay = adamw.field<double>("weight_decay"), n.clip = adamw.field<double>("clip");
  const mc::safetensors_file ids_file((folder / "train_ids.safetensors").string());
  const auto ids = read<std::int32_t>(ids_file, "ids");
  constexpr std::size_t width = 25, sequences = 4;
  steps_taken taken;
  std::size_t at = 0;
  for (const auto& step : train.field<std::vector<mc::json_value>>("steps")) {
    labelled_tokens given;
    for (std::size_t b = 0; b < sequences; ++b)
      given.add(&ids[(at * sequences + b) * width], width - 1);
    ++at;
    n.learning_rate = step.field<double>("lr");
    taken.rates += n.learning_rate;
    const auto micro = static_cast<std::size_t>(s.program().numbers.batch.micro);
    std::vector<mc::batch_view> mine;
    for (std::size_t b = replica * sequences / dp; b < (replica + 1) * sequences / dp; b += micro) {
      mc::batch_view batch = given.view(b * (width - 1));
      batch.first_sample = static_cast<std::int64_t>(b);
      mine.push_back(batch);
    }
    const mc::step_result r = s.step(mine);
    taken.losses.push_back(r.loss.mean()), taken.norms.push_back(r.norm);
  }
  return taken;
}

/// Checks the losses and norms that ten steps tell.
inline void check_told(const std::filesystem::path& folder, const steps_taken& taken) {
  const mc::json_value train = mc::read_json((folder / "train.json").string());
  double worst_loss = 0, worst_norm = 0;
  std::size_t at = 0;
  for (const auto& step : train.field<std::vector<mc::json_value>>("steps")) {
    BOOST_REQUIRE(at < taken.losses.size());
    const double loss_error = relative(taken.losses[at], step.field<double>("loss"));
    const double norm_error = relative(taken.norms[at], step.field<double>("grad_norm"));
    ++at;
    BOOST_TEST(loss_error <= 1e-5, "step " << at << ": loss " << taken.losses[at - 1]);
    BOOST_TEST(norm_error <= 1e-5, "step " << at << ": gradient norm " << taken.norms[at - 1]);
    worst_loss = std::max(worst_loss, loss_error), worst_norm = std::max(worst_norm, norm_error);
  }
  BOOST_TEST(at == 10u);
  BOOST_TEST_MESSAGE(folder.filename().string()
                     << " losses: " << worst_loss << ", gradient norms: " << worst_norm);
}

/// What ten steps tell and leave, values(t) of each tensor, against transformers'.
template <class Values> void check_after_ten_steps(const mc::program_view& p,
                                                   const std::string& family,
                                                   const steps_taken& taken, Values values) {
  const mc::json_value train = mc::read_json((fixtures(family) / "train.json").string());
  BOOST_TEST(train.field<mc::json_value>("adamw").field<std::string>("decay_on") ==
             "dim >= 2"); // as the registry's flags
  check_told(fixtures(family), taken);

  const mc::safetensors_file after((fixtures(family) / "after10.safetensors").string());
  worst errors;
  std::int64_t elements = 0;
  for (const mc::hf_tensor& t : tensors_of(p)) {
    elements += t.elements();
    const auto expected = read_named(after, t.name);
    const std::vector<double> ours = values(t);
    if (!is_key_bias_holder(t.name)) {
      const double error = relative(ours, expected);
      errors.add(t.name, error);
      BOOST_TEST(error <= 1e-5, t.name << ": " << error);
      continue;
    }
    // A key bias adds the same to every score of a query, which softmax does not see: its gradient
    // is exactly zero, and AdamW scales the rounding that is left to steps. None is much larger
    // than its learning rate, so their sum is what this part can be held to.
    const std::size_t third = ours.size() / 3;
    const double queries = relative(ours, expected, 0, third),
                 values_of = relative(ours, expected, 2 * third, 3 * third);
    errors.add(t.name + " (query)", queries), errors.add(t.name + " (value)", values_of);
    BOOST_TEST(queries <= 1e-5, t.name << " (query): " << queries);
    BOOST_TEST(values_of <= 1e-5, t.name << " (value): " << values_of);
    double keys = 0;
    for (std::size_t i = third; i < 2 * third; ++i)
      keys = std::max(keys, std::abs(ours[i] - expected[i]));
    BOOST_TEST_MESSAGE(t.name << " (key): " << keys << " of a sum of learning rates of "
                              << taken.rates);
    BOOST_TEST(keys <= taken.rates, t.name << " (key): " << keys);
  }
  BOOST_TEST(elements == elements_of(after));
  errors.print("weight after ten steps");
}

inline void check_ten_steps(const mc::program_view& p, mc::device& device,
                            const std::string& family) {
  mc::session s(p, device, mc::purpose::training);
  mc::load_model_folder(fixtures(family) / "model", p, s.weights());
  const steps_taken taken = take_ten_steps(s, fixtures(family));
  check_after_ten_steps(p, family, taken, [&](const mc::hf_tensor& t) {
    return t.values(s.weights(), s.weights().weights(), s.weights().precision().weight);
  });
}

} // namespace test
