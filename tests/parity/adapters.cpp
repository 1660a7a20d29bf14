// Adapters of tiny models against what PEFT computed for them in fp32: loss and logits, every gradient,
// ten steps of AdamW, and the adapter after them, on many ranks, too. GPT-2's c_attn is one layer there
// and three here, and the experts' gate_up_proj is one there and two here.
#define BOOST_TEST_MODULE adapters
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/hf/adapter.hpp>
#include <megacpp/hf/merge.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/interpreter.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/start.hpp>
#include <megacpp/train/unlearned_factors.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <parity/checks.hpp>
#include <scratch.hpp>

namespace {

/// One of the fixtures: an adapter of a tiny model.
template <class Model> struct adapter_case {
  const char *folder, *base;
  Model model;
  mc::lora adapter;

  std::filesystem::path of_peft(const char* what) const {
    return test::fixtures(base).parent_path().parent_path() / "lora" / folder / what;
  }
  mc::interpreted_program<Model> program(const mc::layout& l, int micro) const {
    mc::setup s{
        .ranks = l,
        .batch = {
            .micro = micro, .sequence = test::tiny_batch.sequence, .micro_batches = 4 / micro}};
    s.adapter = adapter;
    return {model, s, "tiny"};
  }
  void load(const mc::program_view& p, mc::session& s) const {
    mc::load_model_folder(test::fixtures(base) / "model", p, s.weights());
    mc::load_adapter(mc::model_folder(of_peft("adapter").string()), p, s.weights());
  }
};

constexpr adapter_case<mc::qwen3> of_qwen3{
    "qwen3", "qwen3", test::tiny_qwen3, {.rank = 4, .alpha = 8, .targets = {"all-linear"}}};
constexpr adapter_case<mc::qwen3> of_nf4{
    "qwen3_nf4",
    "qwen3",
    test::tiny_qwen3,
    {.rank = 4, .alpha = 8, .targets = {"all-linear"}, .base = mc::base_storage::nf4}};
constexpr adapter_case<mc::gpt> of_gpt2{
    "gpt2",
    "gpt2",
    test::tiny_gpt2,
    {.rank = 4, .alpha = 16, .rslora = true, .targets = {"c_attn", "c_fc", "c_proj"}}};
constexpr adapter_case<mc::qwen3_moe> of_moe{
    "qwen3_moe",
    "qwen3_moe",
    test::tiny_qwen3_moe_unbalanced,
    {.rank = 3, .alpha = 6, .targets = {"q_proj", "k_proj", "v_proj", "o_proj"}}};
constexpr adapter_case<mc::qwen3_moe> of_experts{
    "qwen3_moe_experts",
    "qwen3_moe",
    test::tiny_qwen3_moe_unbalanced,
    {.rank = 2, .alpha = 4, .targets = {"q_proj", "v_proj", "experts"}}};

struct adapted_run { // its head is frozen, too
  static constexpr auto model = test::tiny_qwen3;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch = test::tiny_batch;
  using precision = mc::fp32;
  static constexpr mc::lora adapter = of_qwen3.adapter;
};

std::filesystem::path of_peft(const char* what) { return of_qwen3.of_peft(what); }
mc::interpreted_program<mc::qwen3> program_of(const mc::layout& l, int micro) {
  return of_qwen3.program(l, micro);
}
/// PEFT names a tensor in memory by the adapter's name, too.
std::string in_memory(std::string name) { return name.insert(name.rfind(".weight"), ".default"); }

/// What the first of a fixture's ten steps is given, of which its logits, loss and gradients are.
template <class Model> test::labelled_tokens first_batch(const adapter_case<Model>& of) {
  const mc::safetensors_file ids(of.of_peft("train_ids.safetensors").string());
  const auto all = test::read<std::int32_t>(ids, "ids");
  test::labelled_tokens given;
  for (std::size_t b = 0; b < 4; ++b) given.add(&all[b * 25], 24);
  return given;
}

/// The head's product in generation is none that training has, so an adapter of all layers has none
/// there.
template <class Model> void check_logits_and_loss(const adapter_case<Model>& of) {
  const auto p = of.program({}, 4);
  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(p.view(), device, mc::purpose::inference);
  of.load(p.view(), s);
  const mc::safetensors_file forward(of.of_peft("forward.safetensors").string());
  test::check_logits_and_loss_of(s, p.view(), device, first_batch(of), forward, of.folder);
}

template <class Model> void check_gradients(const adapter_case<Model>& of) {
  const auto p = of.program({}, 4);
  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(p.view(), device, mc::purpose::training);
  of.load(p.view(), s);
  const mc::safetensors_file gradients(of.of_peft("grads.safetensors").string());
  const test::labelled_tokens given = first_batch(of);
  const mc::loss_sum sum = s.gradients(given.view());
  std::int64_t elements = 0;
  double worst = 0;
  for (const mc::adapter_tensor& of_layer : mc::adapter_tensors(p.view())) {
    const mc::hf_tensor& t = of_layer.tensor;
    const auto expected = test::read<double>(gradients, in_memory(t.name));
    auto ours = t.values(s.weights(), s.weights().gradients(), s.weights().precision().master);
    for (double& x : ours) x /= sum.count;
    const double error = test::relative(ours, expected);
    BOOST_TEST(error <= 1e-4, t.name << ": " << error);
    worst = std::max(worst, error);
    elements += t.elements();
  }
  BOOST_TEST_MESSAGE(of.folder << ", gradients: " << worst);
  BOOST_TEST(elements == test::elements_of(gradients));
}

/// Merges the adapter that PEFT had after ten steps, and compares the weights with what PEFT merged.
template <class Model> void check_merged(const adapter_case<Model>& of) {
  const auto p = of.program({}, 4);
  const test::scratch_folder dir;
  const mc::adapter_in_folder values(mc::model_folder(of.of_peft("adapter_after10").string()),
                                     p.view());
  mc::merging change(p.view(), values);
  mc::export_model_folder(
      mc::model_folder((test::fixtures(of.base) / "model").string()), dir / "merged", p.view(),
      std::nullopt, mc::hf_shard_limit, mc::self::hosts(), {},
      {.change = &change, .through_nf4 = of.adapter.base == mc::base_storage::nf4});
  BOOST_TEST(change.checked() > 0);
  const mc::safetensors_file ours(dir / "merged/model.safetensors"),
      expected(of.of_peft("merged_after10.safetensors").string());
  double worst = 0;
  for (std::size_t i = 0; i < ours->size(); ++i) {
    const std::string name(ours.tensors()[i].name);
    const double error =
        test::relative(test::read<double>(ours, name), test::read_named(expected, name));
    BOOST_TEST(error <= 1e-6, name << ": " << error);
    worst = std::max(worst, error);
  }
  BOOST_TEST_MESSAGE(of.folder << ", merged: " << worst);
}

/// What a layout needs: replicas, and micro-batches of one sequence or two.
struct tried_layout {
  mc::layout l;
  int replicas = 1, micro = 4;
};
template <class Model>
void check_ten_steps(const adapter_case<Model>& of, const std::vector<tried_layout>& layouts) {
  for (const auto& [l, dp, micro] : layouts) {
    const auto p = of.program(l, micro);
    const mc::mesh ranks = mc::mesh_of(l, dp);
    const auto replicas = static_cast<std::size_t>(dp);
    const auto count = static_cast<std::size_t>(mc::ranks_of(ranks));
    std::vector<test::steps_taken> taken(count);
    const test::scratch_folder dir;
    mc::thread_ranks(ranks, std::chrono::seconds(60)).run([&](mc::communicator& c) {
      mc::cpu device(mc::product_type::widened, 1);
      const auto others = c.make_ranks(device);
      mc::session s(p.view(), device, mc::purpose::training, *others);
      of.load(p.view(), s);
      taken[static_cast<std::size_t>(c.rank())] = test::take_ten_steps(
          s, of.of_peft(""),
          static_cast<std::size_t>(c.coordinate()[static_cast<unsigned>(mc::axis::dp)]), replicas);
      mc::folder_writer out = c.rank() == 0 ? mc::folder_writer((dir / "adapter"))
                                            : mc::folder_writer::of_another_rank();
      mc::write_adapter_files(out, p.view(), s.weights(), c);
      out.commit();
    });
    test::check_told(of.of_peft(""), taken[0]);
    const mc::safetensors_file ours(dir / "adapter/adapter_model.safetensors"),
        expected((of.of_peft("adapter_after10") / "adapter_model.safetensors").string());
    BOOST_TEST(ours->size() == expected->size());
    double worst = 0;
    for (std::size_t i = 0; i < expected->size(); ++i) {
      const std::string name(expected.tensors()[i].name);
      const double error =
          test::relative(test::read<double>(ours, name), test::read<double>(expected, name));
      BOOST_TEST(error <= 1e-4, name << ": " << error);
      worst = std::max(worst, error);
    }
    BOOST_TEST_MESSAGE(of.folder << ", layout " << mc::detail::layout_text(l)
                                 << ", adapter after ten steps: " << worst);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(logits_and_loss) {
  check_logits_and_loss(of_qwen3), check_logits_and_loss(of_gpt2), check_logits_and_loss(of_moe);
  check_logits_and_loss(of_experts), check_logits_and_loss(of_nf4);
}
BOOST_AUTO_TEST_CASE(gradients) {
  check_gradients(of_qwen3), check_gradients(of_gpt2), check_gradients(of_moe);
  check_gradients(of_experts), check_gradients(of_nf4);
}

BOOST_AUTO_TEST_CASE(ten_steps_of_a_compiled_program) {
  const mc::program_view p = mc::compiled_program<adapted_run>("tiny");
  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(p, device, mc::purpose::training);
  of_qwen3.load(p, s);
  test::check_told(of_peft(""), test::take_ten_steps(s, of_peft("")));
}

BOOST_AUTO_TEST_CASE(ten_steps_of_qwen3) {
  check_ten_steps(of_qwen3,
                  {{},
                   {{.tp = 2}},
                   {{.tp = 4, .sequence_parallel = true}}, // two ranks share a kv head
                   {{.pp = 2, .schedule = &mc::gpipe}, 1, 2},
                   {{.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}, 2, 2}});
}
BOOST_AUTO_TEST_CASE(ten_steps_of_gpt2) {
  check_ten_steps(of_gpt2, {{},
                            {{.tp = 2, .cp = 2, .sequence_parallel = true, .zero = 1}, 2, 2},
                            {{.tp = 4, .pp = 2}, 1, 2}});
}
BOOST_AUTO_TEST_CASE(ten_steps_of_nf4) {
  check_ten_steps(
      of_nf4, {{}, {{.cp = 2}}, {{.pp = 2, .schedule = &mc::gpipe}, 1, 2}, {{.zero = 1}, 2, 2}});
}

// Codes and scales are those of whole matrices, so a base in NF4 is the same on any ranks. A layout
// that would cut a block is refused.
template <class Model> void check_on_ranks(const Model& model, const mc::lora& with,
                                           const std::vector<tried_layout>& layouts) {
  const adapter_case<Model> of{"qwen3", "qwen3", model, with};
  const test::scratch_folder dir;
  mc::interpreted_program<Model> plain(model, {.ranks = {}, .batch = {.micro = 4, .sequence = 24}},
                                       "plain");
  mc::stores random(plain.view(), false);
  random.initialise(5);
  mc::save_model_folder(dir / "model", plain.view(), random);
  std::vector<double> first;
  for (const auto& [l, dp, micro] : layouts) {
    const auto p = of.program(l, micro);
    const mc::mesh ranks = mc::mesh_of(l, dp);
    const auto replicas = static_cast<std::size_t>(dp);
    std::vector<test::steps_taken> taken(static_cast<std::size_t>(mc::ranks_of(ranks)));
    mc::thread_ranks(ranks, std::chrono::seconds(60)).run([&](mc::communicator& c) {
      mc::cpu device(mc::product_type::widened, 1);
      const auto others = c.make_ranks(device);
      mc::session s(p.view(), device, mc::purpose::training, *others);
      mc::load_weights(mc::model_folder(dir / "model"), p.view(), s.weights(), 3);
      taken[static_cast<std::size_t>(c.rank())] = test::take_ten_steps(
          s, of_peft(""),
          static_cast<std::size_t>(c.coordinate()[static_cast<unsigned>(mc::axis::dp)]), replicas);
    });
    if (first.empty()) first = taken[0].losses;
    for (std::size_t i = 0; i < first.size(); ++i)
      BOOST_TEST(test::relative(taken[0].losses[i], first[i]) <= 2e-6, mc::detail::layout_text(l)
                                                                           << ", step " << i + 1);
  }
}
BOOST_AUTO_TEST_CASE(nf4_on_ranks) {
  mc::qwen3 dense = test::tiny_qwen3;
  dense.ffn = 256;
  const mc::lora in_nf4{.rank = 4, .alpha = 8, .base = mc::base_storage::nf4};
  check_on_ranks(dense, in_nf4,
                 {{}, {{.tp = 2, .sequence_parallel = true}}, {{.tp = 2, .pp = 2, .cp = 2}, 1, 2}});
  mc::qwen3_moe experts = test::tiny_qwen3_moe_unbalanced;
  experts.expert_ffn = 128;
  check_on_ranks(experts, in_nf4,
                 {{},
                  {{.cp = 2, .ep = 2}, 2, 2},
                  {{.tp = 2, .ep = 2, .etp = 2}, 2, 2},
                  {{.tp = 2, .ep = 1, .etp = 2}}});
}
// The mask of dropout is that of a token and a column, and each layer has its own; an evaluation and
// a text have none.
BOOST_AUTO_TEST_CASE(dropout_on_ranks) {
  const mc::lora dropping{.rank = 4, .alpha = 8, .targets = {"all-linear"}, .dropout = 0.3};
  check_on_ranks(test::tiny_qwen3, dropping,
                 {{},
                  {{.tp = 2, .sequence_parallel = true}},
                  {{.tp = 2, .pp = 2, .cp = 2}, 1, 2},
                  {{.zero = 1}, 2, 2}});
  mc::gpt gpt2 = test::tiny_gpt2;
  gpt2.vocabulary = 160;
  check_on_ranks(gpt2, dropping, {{}, {{.tp = 2, .cp = 2, .sequence_parallel = true}}});
  mc::cpu device(mc::product_type::widened, 1);
  std::vector<double> losses;
  for (const double p : {0.0, 0.3}) {
    adapter_case<mc::qwen3> of = of_qwen3;
    of.adapter.dropout = p;
    const auto program = of.program({}, 4);
    mc::session s(program.view(), device, mc::purpose::training);
    of.load(program.view(), s);
    const test::labelled_tokens given = test::forward_of("qwen3");
    losses.push_back(s.evaluate(given.view()).mean());
    losses.push_back(s.gradients(given.view()).mean());
  }
  BOOST_TEST(losses[0] == losses[2]);
  BOOST_TEST(losses[1] != losses[3]);
}
BOOST_AUTO_TEST_CASE(ten_steps_of_experts) {
  check_ten_steps(of_moe, {{}, {{.tp = 2, .ep = 2, .sequence_parallel = true}, 2, 2}});
  check_ten_steps(of_experts,
                  {{},
                   {{.cp = 2, .ep = 2, .zero = 1}, 2, 2},
                   {{.tp = 2, .ep = 4, .etp = 1, .sequence_parallel = true}, 2, 2},
                   {{.tp = 2, .ep = 1, .etp = 2}, 1, 4},
                   {{.tp = 2, .pp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2, 1}});
}

// A layer on no way to the loss is named: with A zero, too, neither factor has a gradient. So are
// experts that no token has chosen.
BOOST_AUTO_TEST_CASE(factors_that_learn_nothing) {
  const auto p = of_experts.program({}, 4);
  mc::cpu device(mc::product_type::widened, 1);
  for (const bool broken : {false, true}) {
    mc::session s(p.view(), device, mc::purpose::training);
    mc::load_weights(mc::model_folder((test::fixtures("qwen3_moe") / "model").string()), p.view(),
                     s.weights(), 3);
    mc::for_each_parameter(p.view(), [&](const mc::parameter_ref& r) {
      const std::string_view scope = r.v->scope;
      const std::vector<double> zeros(static_cast<std::size_t>(r.count.n));
      if (broken && r.info->added && scope == "self_attn.q_proj")
        s.weights().set_weights(r.offset, zeros);
      if (broken && scope == "mlp.gate") s.weights().set_weights(r.offset, zeros);
    });
    test::take_ten_steps(s, of_experts.of_peft(""));
    const auto told = mc::unlearned_factors(p.view(), s.weights(), mc::self::hosts());
    BOOST_TEST(told.size() == (broken ? 4u : 0u));
    if (!broken) continue;
    BOOST_TEST(told[0].find("learns nothing in self_attn.q_proj: the gradient") !=
               std::string::npos);
    // Where all logits are equal, every token goes to the first two of eight experts.
    for (std::size_t i = 1; i < told.size(); ++i)
      BOOST_TEST(told[i].find("12 experts of mlp.experts.") != std::string::npos, told[i]);
  }
}

BOOST_AUTO_TEST_CASE(merged_weights) {
  check_merged(of_qwen3), check_merged(of_gpt2), check_merged(of_moe), check_merged(of_nf4);
}

// A model without an adapter begins one that changes nothing, and a state goes on with its own.
BOOST_AUTO_TEST_CASE(states_of_adapters) {
  const auto p = program_of({}, 4);
  mc::interpreted_program<mc::qwen3> of_base(
      test::tiny_qwen3, {.ranks = {}, .batch = {.micro = 4, .sequence = 24}}, "tiny");
  mc::cpu device(mc::product_type::widened, 1);
  const mc::model_folder base((test::fixtures("qwen3") / "model").string());
  const test::labelled_tokens given = test::forward_of("qwen3");
  mc::session plain(of_base.view(), device, mc::purpose::inference),
      adapted(p.view(), device, mc::purpose::training),
      again(p.view(), device, mc::purpose::training);
  mc::load_weights(base, of_base.view(), plain.weights());
  mc::load_weights(base, p.view(), adapted.weights(), 7);
  const double before = plain.evaluate(given.view()).mean();
  BOOST_TEST(adapted.evaluate(given.view()).mean() == before);
  const auto factors = mc::adapter_tensors(p.view());
  const auto values = [&](mc::session& s, const mc::hf_tensor& t) {
    return t.values(s.weights(), s.weights().weights(), mc::dtype::f32);
  };
  // A is uniform between -1 / sqrt(in) and 1 / sqrt(in), and B is zeros.
  double most = 0;
  for (const double x : values(adapted, factors[0].tensor)) most = std::max(most, std::abs(x));
  BOOST_TEST((most <= 1 / std::sqrt(64.0) && most > 0.9 / std::sqrt(64.0)), most);
  for (const double x : values(adapted, factors[1].tensor)) BOOST_TEST(x == 0);

  test::take_ten_steps(adapted, of_peft(""));
  BOOST_TEST(adapted.evaluate(given.view()).mean() != before);
  const test::scratch_folder dir;
  const mc::adapter_base beside{base.path(),
                                mc::checksum_of_values(base, of_base.view(), mc::self::hosts())};
  {
    mc::folder_writer out(dir / "state", mc::state_kind);
    mc::write_state(out, p.view(), adapted.weights(), {10, 40}, nlohmann::json::object(), {},
                    mc::hf_shard_limit, mc::self::hosts(), beside);
    out.commit();
  }
  // The state has the adapter alone, and goes on beside its base.
  const mc::model_folder state(dir / "state");
  BOOST_TEST(!state.contains("model.safetensors"));
  const auto found = [&] {
    mc::found_model f = *mc::find_saved(dir / "state", true);
    mc::detail::open_base_and_adapter(f, {});
    return f;
  };
  BOOST_TEST(
      (mc::load_start(found(), {}, p.view(), again.weights(), 8, mc::self::hosts()) == beside));
  BOOST_TEST(again.evaluate(given.view()).mean() == adapted.evaluate(given.view()).mean());
  mc::load_weights(base, p.view(), again.weights(), 8);
  mc::load_adapter(state, p.view(), again.weights());
  BOOST_TEST(again.evaluate(given.view()).mean() == adapted.evaluate(given.view()).mean());
  CHECK_REFUSED(mc::load_weights(state, of_base.view(), plain.weights()), mc::exit_code::mismatch,
                "is the state of an adapter, and holds no model by itself");
  CHECK_REFUSED(mc::load_start(found(), {}, of_base.view(), plain.weights(), 8, mc::self::hosts()),
                mc::exit_code::mismatch, "has no adapter to load");
  // Another base is refused, unless it is meant.
  mc::stores other(of_base.view(), false);
  other.initialise(3);
  mc::save_model_folder(dir / "other", of_base.view(), other);
  mc::start_request beside_other;
  beside_other.pretrained = dir / "other";
  mc::start_request meant = beside_other;
  meant.other_base = true;
  const auto of_other = [&] {
    mc::found_model f = *mc::find_saved(dir / "state", true);
    mc::detail::open_base_and_adapter(f, beside_other);
    return f;
  };
  CHECK_REFUSED(
      mc::load_start(of_other(), beside_other, p.view(), again.weights(), 8, mc::self::hosts()),
      mc::exit_code::mismatch, "than the model beside which the adapter in");
  mc::load_start(of_other(), meant, p.view(), again.weights(), 8, mc::self::hosts());
  BOOST_TEST(again.evaluate(given.view()).mean() != adapted.evaluate(given.view()).mean());
  CHECK_REFUSED(mc::save_model_folder(dir / "model", p.view(), adapted.weights()),
                mc::exit_code::mismatch, "has an adapter");
  BOOST_TEST(mc::describe_text(p.view(), device).find("rank 4, scale 2, all-linear") !=
             std::string::npos);
}

// Numbers that two names would give one layer, that experts would have, or a table that the head
// shares, are refused when the program is made.
BOOST_AUTO_TEST_CASE(numbers_that_are_refused) {
  const auto code = [](const auto& of, const mc::lora& with) {
    adapter_case changed = of;
    changed.adapter = with;
    const auto make = [&] { return changed.program({}, 4); };
    CHECK_REFUSED(make(), mc::exit_code::mismatch, "MEGA-C010");
  };
  constexpr mc::lora_pattern both{{{"mlp.up_proj", 2}, {"up_proj", 3}}}, all{{{"all-linear", 2}}},
      down{{{"down_proj", 2}}};
  code(of_qwen3, {.rank = 4, .alpha = 8, .alphas = both});
  code(of_qwen3, {.rank = 4, .alpha = 8, .alphas = all});
  code(of_experts, {.rank = 4, .alpha = 8, .ranks = down});
  code(of_experts, {.rank = 4, .alpha = 8, .saved = {"down_proj"}});
  code(of_gpt2, {.rank = 4, .alpha = 8, .saved = {"wte"}});
  code(of_gpt2, {.rank = 4, .alpha = 8, .base = mc::base_storage::nf4});
  code(of_experts, {.rank = 4, .alpha = 8, .dropout = 0.1});
  code(of_qwen3, {.rank = 4, .alpha = 8, .dropout = 1});
}

// Layers may have another rank and another alpha: such a program computes what one with the scale in
// B does, and its folder says so to PEFT, and to a program of the highest rank everywhere.
BOOST_AUTO_TEST_CASE(patterns) {
  mc::cpu device(mc::product_type::widened, 1);
  adapter_case<mc::qwen3> of = of_qwen3;
  constexpr mc::lora_pattern ranks{{{"q_proj", 2}, {"mlp.up_proj", 1}}}, alphas{{{"q_proj", 3}}};
  of.adapter.ranks = ranks, of.adapter.alphas = alphas;
  const auto p = of.program({}, 4), whole = program_of({}, 4);
  mc::session s(p.view(), device, mc::purpose::training),
      loaded(whole.view(), device, mc::purpose::inference);
  const mc::model_folder base((test::fixtures("qwen3") / "model").string());
  mc::load_weights(base, p.view(), s.weights(), 7);
  test::take_ten_steps(s, of_peft(""));
  const test::scratch_folder dir;
  {
    mc::folder_writer out(dir / "adapter", mc::adapter_kind);
    mc::write_adapter_files(out, p.view(), s.weights());
    out.commit();
  }
  const mc::json_value config = mc::read_json(dir / "adapter/adapter_config.json");
  BOOST_TEST(config.field<mc::json_value>("rank_pattern").field<int>("q_proj") == 2);
  BOOST_TEST(config.field<mc::json_value>("rank_pattern").field<int>("mlp\\.up_proj") == 1);
  BOOST_TEST(config.field<mc::json_value>("alpha_pattern").field<double>("q_proj") == 3);
  const mc::safetensors_file file(dir / "adapter/adapter_model.safetensors");
  const auto shape =
      file->at("base_model.model.model.layers.1.self_attn.q_proj.lora_A.weight").shape;
  BOOST_TEST((shape[0] == 2 && shape[1] == 64));

  mc::load_weights(base, whole.view(), loaded.weights(), 8);
  mc::load_adapter(mc::model_folder(dir / "adapter"), whole.view(), loaded.weights());
  const test::labelled_tokens given = test::forward_of("qwen3");
  BOOST_TEST(test::relative(loaded.evaluate(given.view()).mean(),
                            s.evaluate(given.view()).mean()) <= 1e-7);
  // An adapter on its way to another folder keeps its numbers, whatever the program's scale is.
  const mc::adapter_in_folder in(mc::model_folder(dir / "adapter"), whole.view());
  mc::export_adapter_folder(in, dir / "again", whole.view(), {}, mc::adapter_layout::peft, {});
  BOOST_TEST((test::read_text(dir / "adapter/adapter_model.safetensors") ==
              test::read_text(dir / "again/adapter_model.safetensors")));
  mc::merging change(whole.view(), in);
  mc::export_model_folder(base, dir / "merged", whole.view(), std::nullopt, mc::hf_shard_limit,
                          mc::self::hosts(), {}, {.change = &change});
  mc::interpreted_program<mc::qwen3> plain(
      test::tiny_qwen3, {.ranks = {}, .batch = {.micro = 4, .sequence = 24}}, "tiny");
  mc::session merged(plain.view(), device, mc::purpose::inference);
  mc::load_model_folder(dir / "merged", plain.view(), merged.weights());
  BOOST_TEST(test::relative(merged.evaluate(given.view()).mean(),
                            s.evaluate(given.view()).mean()) <= 1e-6);
}

// An adapter may be in some blocks alone, and leave out layers that a target means. Its folder says so to
// PEFT by whole names, and is for a program with factors everywhere what it is for its own.
// `excluded` means the layers `left_out`.
template <class Model>
void check_some_layers(adapter_case<Model> of, const mc::layer_set& layers,
                       const mc::lora_targets& excluded, const std::set<std::string>& left_out,
                       const char* says = "is not one of the adapter of tiny") {
  const auto everywhere = of.program({}, 4);
  of.adapter.layers = layers, of.adapter.excluded = excluded;
  mc::cpu device(mc::product_type::widened, 1);
  const mc::model_folder base((test::fixtures(of.base) / "model").string());
  const test::labelled_tokens given = test::forward_of(of.base);
  const test::scratch_folder dir;
  std::vector<test::steps_taken> taken;
  for (const auto& l : {mc::layout{}, mc::layout{.tp = 2}, mc::layout{.pp = 2}}) {
    const auto p = of.program(l, l.pp > 1 ? 1 : 4);
    const std::string to = dir / std::to_string(taken.size());
    std::vector<test::steps_taken> by_rank(static_cast<std::size_t>(l.tp * l.pp));
    mc::thread_ranks(mc::mesh_of(l, 1), std::chrono::seconds(60)).run([&](mc::communicator& c) {
      mc::cpu on(mc::product_type::widened, 1);
      const auto others = c.make_ranks(on);
      mc::session s(p.view(), on, mc::purpose::training, *others);
      mc::load_weights(base, p.view(), s.weights(), 7);
      by_rank[static_cast<std::size_t>(c.rank())] = test::take_ten_steps(s, of.of_peft(""));
      mc::folder_writer out = c.rank() == 0 ? mc::folder_writer(to, mc::adapter_kind)
                                            : mc::folder_writer::of_another_rank();
      mc::write_adapter_files(out, p.view(), s.weights(), c);
      out.commit();
    });
    taken.push_back(by_rank[0]);
    BOOST_TEST(taken.back().norms.back() > 0);
    for (std::size_t i = 0; i < taken[0].losses.size(); ++i)
      BOOST_TEST(test::relative(taken.back().losses[i], taken[0].losses[i]) <= 1e-5);
  }
  const auto p = of.program({}, 4);
  const mc::model_folder folder(dir / "0");
  const mc::adapter_in_folder own(folder, p.view()), elsewhere(folder, everywhere.view());
  int there = 0;
  for (const mc::adapter_tensor& t : mc::adapter_tensors(everywhere.view())) {
    const bool meant = layers.holds(t.number) && !left_out.contains(t.layer);
    BOOST_TEST(elsewhere.has(t.layer, t.number) == meant, t.tensor.name);
    there += meant;
  }
  BOOST_TEST(std::ssize(own.matches()) == there);
  const auto loss_in = [&](const mc::program_view& with) {
    mc::session s(with, device, mc::purpose::inference);
    mc::load_weights(base, with, s.weights(), 8);
    mc::load_adapter(folder, with, s.weights());
    return s.evaluate(given.view()).mean();
  };
  const double loss = loss_in(p.view());
  BOOST_TEST(test::relative(loss_in(everywhere.view()), loss) <= 1e-7);
  mc::merging change(p.view(), own);
  mc::export_model_folder(base, dir / "merged", p.view(), std::nullopt, mc::hf_shard_limit,
                          mc::self::hosts(), {}, {.change = &change});
  of.adapter = {};
  const auto plain = of.program({}, 4);
  mc::session merged(plain.view(), device, mc::purpose::inference);
  mc::load_model_folder(dir / "merged", plain.view(), merged.weights());
  BOOST_TEST(test::relative(merged.evaluate(given.view()).mean(), loss) <= 1e-6);
  // A folder with factors elsewhere is refused.
  CHECK_REFUSED(mc::adapter_in_folder(mc::model_folder(of.of_peft("adapter").string()), p.view()),
                mc::exit_code::model, says);
}
BOOST_AUTO_TEST_CASE(some_layers) {
  const auto wrong = [](const mc::layer_set& layers, const mc::lora_targets& excluded,
                        const char* says) {
    adapter_case<mc::qwen3> of = of_qwen3;
    of.adapter.layers = layers, of.adapter.excluded = excluded;
    CHECK_REFUSED(of.program({}, 4), mc::exit_code::mismatch, says);
  };
  wrong({0, 2}, {}, "adapter(layer 2)");
  wrong({0}, {"k_porj"}, "adapter(k_porj)");
  check_some_layers(of_qwen3, {1}, {"k_proj", "mlp.up_proj"}, {"self_attn.k_proj", "mlp.up_proj"});
  check_some_layers(of_gpt2, {0}, {"attn.c_proj"}, {"attn.c_proj"});
  check_some_layers(of_experts, {1}, {"experts.down_proj"}, {"mlp.experts.down_proj"},
                    "but tiny needs"); // a matrix alone has the name that two give to the other
  // A block without an adapter is in NF4 as the others.
  adapter_case<mc::qwen3> of = of_nf4;
  of.adapter.layers = {1};
  const auto p = of.program({}, 4);
  BOOST_REQUIRE(p.view().kinds() == 2);
  int encoded[2]{}, added[2]{};
  for (const int kind : {0, 1}) {
    const mc::graph& g = *p.view().block(kind).g;
    for (int i = 0; i < g.parameter_count; ++i) {
      const mc::parameter_info& info = g.parameters[static_cast<unsigned>(i)];
      encoded[kind] += info.encoding != nullptr, added[kind] += info.added;
    }
  }
  BOOST_TEST((encoded[0] > 0 && encoded[1] == encoded[0] && added[0] > 0 && added[1] == 0));
}

// A module that is trained as a whole is in the adapter's folder, as PEFT has modules_to_save, and
// not in the codes of a base in NF4. Loaded and merged it is what was trained.
BOOST_AUTO_TEST_CASE(modules_saved) {
  mc::cpu device(mc::product_type::widened, 1);
  const mc::model_folder base((test::fixtures("qwen3") / "model").string());
  const test::labelled_tokens given = test::forward_of("qwen3");
  for (const mc::base_storage storage : {mc::base_storage::plain, mc::base_storage::nf4}) {
    adapter_case<mc::qwen3> of = of_qwen3;
    of.adapter.saved = {"lm_head", "input_layernorm", "mlp.up_proj"}, of.adapter.base = storage;
    const auto p = of.program({}, 4);
    mc::session s(p.view(), device, mc::purpose::training),
        loaded(p.view(), device, mc::purpose::inference);
    mc::load_weights(base, p.view(), s.weights(), 7);
    test::take_ten_steps(s, of_peft(""));
    const test::scratch_folder dir;
    {
      mc::folder_writer out(dir / "adapter", mc::adapter_kind);
      mc::write_adapter_files(out, p.view(), s.weights());
      out.commit();
    }
    const mc::json_value config = mc::read_json(dir / "adapter/adapter_config.json");
    BOOST_TEST(config.field<std::vector<std::string>>("modules_to_save").size() == 3u);
    const mc::safetensors_file file(dir / "adapter/adapter_model.safetensors");
    const auto head = test::read<double>(file, "base_model.model.lm_head.weight");
    const mc::safetensors_file model(base.open("model.safetensors"));
    const double moved = test::relative(head, test::read<double>(model, "lm_head.weight"));
    BOOST_TEST((moved > 1e-3 && moved < 1), moved);
    BOOST_TEST(!file->find("base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"));
    BOOST_TEST(file->find("base_model.model.model.layers.0.mlp.up_proj.weight").has_value());

    mc::load_weights(base, p.view(), loaded.weights(), 8);
    mc::load_adapter(mc::model_folder(dir / "adapter"), p.view(), loaded.weights());
    BOOST_TEST(loaded.evaluate(given.view()).mean() == s.evaluate(given.view()).mean());
    const mc::adapter_in_folder in(mc::model_folder(dir / "adapter"), p.view());
    mc::merging change(p.view(), in);
    mc::export_model_folder(base, dir / "merged", p.view(), std::nullopt, mc::hf_shard_limit,
                            mc::self::hosts(), {},
                            {.change = &change, .through_nf4 = storage == mc::base_storage::nf4});
    mc::interpreted_program<mc::qwen3> plain(
        test::tiny_qwen3, {.ranks = {}, .batch = {.micro = 4, .sequence = 24}}, "tiny");
    mc::session merged(plain.view(), device, mc::purpose::inference);
    mc::load_model_folder(dir / "merged", plain.view(), merged.weights());
    BOOST_TEST(test::relative(merged.evaluate(given.view()).mean(),
                              s.evaluate(given.view()).mean()) <= 1e-6);
    // A program that does not train these modules has no place for them.
    const auto without = program_of({}, 4);
    CHECK_REFUSED(mc::adapter_in_folder(mc::model_folder(dir / "adapter"), without.view()),
                  mc::exit_code::model, "build a preset with");
  }
}

BOOST_AUTO_TEST_CASE(adapters_that_are_refused) {
  const auto p = program_of({}, 4);
  mc::cpu device(mc::product_type::widened, 1);
  mc::session s(p.view(), device, mc::purpose::inference);
  const test::scratch_folder dir;
  const auto refused = [&](const char* field, const nlohmann::json& value, const char* says) {
    std::filesystem::copy(of_peft("adapter"), dir / "other",
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    std::ifstream in(of_peft("adapter/adapter_config.json"));
    nlohmann::json config = nlohmann::json::parse(in);
    config[field] = value;
    std::ofstream(dir / "other/adapter_config.json") << config;
    CHECK_REFUSED(mc::load_adapter(mc::model_folder(dir / "other"), p.view(), s.weights()),
                  mc::exit_code::model, says);
  };
  refused("r", 8, "has rank 8 for model.layers.0.self_attn.q_proj, but the adapter of tiny has");
  refused("lora_alpha", 0, "lora_alpha");
  refused("use_dora", true, "use_dora true, which changes what it computes");
  refused("init_lora_weights", "pissa", "init_lora_weights");
  refused("a_later_variant", true, "a_later_variant true");
  refused(
      "rank_pattern", {{"q_proj", 8}},
      "has rank 8 for model.layers.0.self_attn.q_proj, but the adapter of tiny has rank 4 there");
  refused("rank_pattern", {{"q_proj", 2}}, "but tiny needs [2, 64]");
  refused("rank_pattern", {{"(q_proj", 2}}, "which is no expression that is read");
  refused("alpha_pattern", {{"q_proj", 2}, {".*attn\\..*", 3}},
          "gives model.layers.0.self_attn.q_proj two numbers");
  refused("peft_type", "LOHA", "peft_type LOHA");
}
