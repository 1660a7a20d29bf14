// A tiny GPT-2, a tiny Qwen3 and a tiny Qwen3-MoE against what transformers computed for them in
// fp32: logits, loss, every gradient, and ten steps of AdamW, those on many ranks, too.
#define BOOST_TEST_MODULE hugging_face
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/hf/model_folder.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/train/state.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <type_traits>
#include <vector>

#include <kernels.hpp>
#include <parity/fixtures.hpp>
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
/// The fixture's loss has no load-balancing term.
struct qwen3_moe_run {
  static constexpr auto model = [] {
    mc::qwen3_moe m = test::tiny_qwen3_moe;
    m.aux_loss = 0;
    return m;
  }();
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch = test::tiny_batch;
  using precision = mc::fp32;
};

template <class Run> const mc::program_view& program() {
  static const mc::program_view p = mc::compiled_program<Run>("tiny");
  return p;
}

/// The tensors of the model as transformers has it.
template <class Run> std::vector<mc::hf_tensor> tensors_of() {
  return mc::hf_family_of(program<Run>()).tensors(program<Run>());
}

template <class T> std::vector<T> read(const mc::safetensors_file& file, const std::string& name) {
  const mc::tensor_view t = file->at(name);
  std::vector<T> out(static_cast<std::size_t>(t.elements()));
  mc::read_values(t, std::span(out));
  return out;
}

/// A tensor of transformers' by the name it has in files. In memory transformers 5 holds experts
/// fused: gate_up_proj (E, 2 F, H), gate rows first, and down_proj (E, H, F).
std::vector<double> read_named(const mc::safetensors_file& file, const std::string& name) {
  const auto at = name.find(".experts.");
  if (at == std::string::npos || file->find(name)) return read<double>(file, name);
  const std::string scope = name.substr(0, at + 9), rest = name.substr(at + 9);
  const auto expert = static_cast<std::size_t>(std::stoi(rest));
  const bool down = rest.find("down_proj") != std::string::npos,
             up = rest.find("up_proj") < rest.size();
  const mc::tensor_view fused = file->at(scope + (down ? "down_proj" : "gate_up_proj"));
  std::vector<double> all(static_cast<std::size_t>(fused.elements()));
  mc::read_values(fused, std::span(all));
  const std::size_t parts = down ? 1 : 2,
                    size = all.size() / static_cast<std::size_t>(fused.shape[0]) / parts;
  const auto first =
      all.begin() + static_cast<std::ptrdiff_t>((expert * parts + (up && !down ? 1 : 0)) * size);
  return {first, first + static_cast<std::ptrdiff_t>(size)};
}

std::int64_t elements_of(const mc::safetensors_file& file) {
  std::int64_t n = 0;
  for (std::size_t i = 0; i < file->size(); ++i) n += file.tensors()[i].elements();
  return n;
}

/// |a - b| / |b| in the Euclidean norm, over elements [first, last).
double relative(const std::vector<double>& a, const std::vector<double>& b, std::size_t first,
                std::size_t last) {
  double difference = 0, norm = 0;
  for (std::size_t i = first; i < last; ++i) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  return std::sqrt(difference / norm);
}
double relative(const std::vector<double>& a, const std::vector<double>& b) {
  return relative(a, b, 0, a.size());
}
double relative(double a, double b) { return std::abs(a - b) / std::abs(b); }

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

bool is_key_bias_holder(const std::string& name) { return name.ends_with("attn.c_attn.bias"); }

template <class Run> void check_logits_and_loss(const std::string& family) {
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(program<Run>(), device, mc::purpose::inference);
  mc::load_model_folder(test::fixtures(family) / "model", program<Run>(), s.weights());
  const mc::safetensors_file forward((test::fixtures(family) / "forward.safetensors").string());
  const auto tokens = read<std::int32_t>(forward, "input_ids"),
             labels = read<std::int32_t>(forward, "labels");
  const auto expected = read<double>(forward, "logits");
  const double loss = read<double>(forward, "loss")[0];

  mc::batch_view batch;
  batch.tokens = tokens.data(), batch.labels = labels.data();
  const mc::loss_sum sum = s.evaluate(batch);
  BOOST_TEST(sum.count == 96.0);
  BOOST_TEST_MESSAGE(family << " loss: " << std::abs(sum.mean() - loss));
  BOOST_TEST(std::abs(sum.mean() - loss) <= 1e-5);

  double largest = 0, error = 0;
  for (const double x : expected) largest = std::max(largest, std::abs(x));
  const auto rows = static_cast<std::size_t>(test::tiny_batch.sequence),
             vocabulary = expected.size() / tokens.size();
  mc::generator g(program<Run>(), device, s.weights(),
                  {.sequences = 4, .tokens = test::tiny_batch.sequence, .prompt = 7});
  std::vector<std::span<const std::int32_t>> more(4);
  for (std::size_t n = 1; n <= rows; ++n) { // every position: by prefill up to 7, then by decode
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
  BOOST_TEST_MESSAGE(family << " logits: " << error / largest << " of the largest");
  BOOST_TEST(error <= 2e-5 * largest);
}

template <class Run> void check_gradients(const std::string& family) {
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(program<Run>(), device, mc::purpose::training);
  mc::load_model_folder(test::fixtures(family) / "model", program<Run>(), s.weights());
  const mc::safetensors_file forward((test::fixtures(family) / "forward.safetensors").string());
  const mc::safetensors_file gradients((test::fixtures(family) / "grads.safetensors").string());
  const auto tokens = read<std::int32_t>(forward, "input_ids"),
             labels = read<std::int32_t>(forward, "labels");
  mc::batch_view batch;
  batch.tokens = tokens.data(), batch.labels = labels.data();
  const mc::loss_sum sum = s.gradients(batch);
  BOOST_TEST(std::abs(sum.mean() - read<double>(forward, "loss")[0]) <= 1e-5);

  worst errors;
  std::int64_t elements = 0;
  for (const mc::hf_tensor& t : tensors_of<Run>()) {
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
steps_taken take_ten_steps(mc::session& s, const std::string& family, std::size_t replica = 0,
                           std::size_t dp = 1) {
  const mc::json_value train = mc::read_json((test::fixtures(family) / "train.json").string());
  const auto adamw = train.field<mc::json_value>("adamw");
  mc::step_numbers& n = s.numbers();
  const auto betas = adamw.field<std::vector<double>>("betas");
  n.beta1 = betas.at(0), n.beta2 = betas.at(1), n.epsilon = adamw.field<double>("eps");
  n.weight_decay = adamw.field<double>("weight_decay"), n.clip = adamw.field<double>("clip");
  const mc::safetensors_file ids_file((test::fixtures(family) / "train_ids.safetensors").string());
  const auto ids = read<std::int32_t>(ids_file, "ids");
  constexpr std::size_t width = 25, sequences = 4;
  steps_taken taken;
  std::size_t at = 0;
  for (const auto& step : train.field<std::vector<mc::json_value>>("steps")) {
    std::vector<std::int32_t> tokens, labels;
    for (std::size_t b = 0; b < sequences; ++b)
      for (std::size_t i = 0; i + 1 < width; ++i) {
        tokens.push_back(ids[(at * sequences + b) * width + i]);
        labels.push_back(ids[(at * sequences + b) * width + i + 1]);
      }
    ++at;
    n.learning_rate = step.field<double>("lr");
    taken.rates += n.learning_rate;
    const auto micro = static_cast<std::size_t>(s.program().numbers.batch.micro);
    std::vector<mc::batch_view> mine;
    for (std::size_t b = replica * sequences / dp; b < (replica + 1) * sequences / dp; b += micro) {
      mc::batch_view batch;
      batch.tokens = &tokens[b * (width - 1)], batch.labels = &labels[b * (width - 1)];
      batch.first_sample = static_cast<std::int64_t>(b);
      mine.push_back(batch);
    }
    const mc::step_result r = s.step(mine);
    taken.losses.push_back(r.loss.mean()), taken.norms.push_back(r.norm);
  }
  return taken;
}

/// What ten steps tell and leave, values(t) of each tensor, against transformers'.
template <class Run, class Values>
void check_after_ten_steps(const std::string& family, const steps_taken& taken, Values values) {
  const mc::json_value train = mc::read_json((test::fixtures(family) / "train.json").string());
  BOOST_TEST(train.field<mc::json_value>("adamw").field<std::string>("decay_on") ==
             "dim >= 2"); // as the registry's flags
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
  BOOST_TEST_MESSAGE(family << " losses: " << worst_loss << ", gradient norms: " << worst_norm);

  const mc::safetensors_file after((test::fixtures(family) / "after10.safetensors").string());
  worst errors;
  std::int64_t elements = 0;
  for (const mc::hf_tensor& t : tensors_of<Run>()) {
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

template <class Run> void check_ten_steps(const std::string& family) {
  mc::cpu device(mc::product_type::automatic, 1);
  mc::session s(program<Run>(), device, mc::purpose::training);
  mc::load_model_folder(test::fixtures(family) / "model", program<Run>(), s.weights());
  const steps_taken taken = take_ten_steps(s, family);
  check_after_ten_steps<Run>(family, taken, [&](const mc::hf_tensor& t) {
    return t.values(s.weights(), s.weights().weights(), s.weights().precision().weight);
  });
}

/// The same by the ranks of a layout, which read the model and write what they have trained.
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
  std::vector<steps_taken> all(static_cast<std::size_t>(mc::ranks_of(ranks)));
  const test::scratch_folder dir;
  mc::thread_ranks(ranks, std::chrono::seconds(60)).run([&](mc::communicator& c) {
    mc::cpu device(mc::product_type::widened, 1);
    const auto others = c.make_ranks(device);
    mc::session s(p.view(), device, mc::purpose::training, *others);
    mc::load_model_folder(test::fixtures(family) / "model", p.view(), s.weights());
    all[static_cast<std::size_t>(c.rank())] = take_ten_steps(
        s, family, static_cast<std::size_t>(c.coordinate()[static_cast<unsigned>(mc::axis::dp)]),
        static_cast<std::size_t>(dp));
    const auto write = [&](mc::folder_writer&& out) {
      mc::write_state(out, p.view(), s.weights(), {10, 40}, nlohmann::json::object(), {},
                      std::uint64_t{1} << 40, c);
      out.commit();
    };
    if (c.rank() == 0) write(mc::folder_writer(dir / "trained"));
    else write(mc::folder_writer::of_another_rank());
  });
  for (const steps_taken& x : all)
    BOOST_TEST((x.losses == all[0].losses && x.norms == all[0].norms), "ranks tell other numbers");
  const mc::safetensors_file trained(dir / "trained/model.safetensors");
  check_after_ten_steps<Run>(family, all[0],
                             [&](const mc::hf_tensor& t) { return read<double>(trained, t.name); });
}

} // namespace

BOOST_AUTO_TEST_CASE(gpt2_logits_and_loss) { check_logits_and_loss<gpt2_run>("gpt2"); }
BOOST_AUTO_TEST_CASE(gpt2_gradients) { check_gradients<gpt2_run>("gpt2"); }
BOOST_AUTO_TEST_CASE(gpt2_ten_steps) { check_ten_steps<gpt2_run>("gpt2"); }
BOOST_AUTO_TEST_CASE(qwen3_logits_and_loss) { check_logits_and_loss<qwen3_run>("qwen3"); }
BOOST_AUTO_TEST_CASE(qwen3_gradients) { check_gradients<qwen3_run>("qwen3"); }
BOOST_AUTO_TEST_CASE(qwen3_ten_steps) { check_ten_steps<qwen3_run>("qwen3"); }
BOOST_AUTO_TEST_CASE(qwen3_moe_logits_and_loss) {
  check_logits_and_loss<qwen3_moe_run>("qwen3_moe");
}
BOOST_AUTO_TEST_CASE(qwen3_moe_gradients) { check_gradients<qwen3_moe_run>("qwen3_moe"); }
BOOST_AUTO_TEST_CASE(qwen3_moe_ten_steps) { check_ten_steps<qwen3_moe_run>("qwen3_moe"); }

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
