// Saved states: they hold every store of the model that they are of, any damage is found before
// anything is used, and what a run may change of another's flags is what the table of options says.
#define BOOST_TEST_MODULE state
#include <boost/test/unit_test.hpp>

#include <megacpp/generate/generate.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/start.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kernels.hpp>
#include <scratch.hpp>

#include "child.hpp"
#include "state_tests.hpp"

using namespace mc;
using namespace test;
using namespace test::states;

/// Families made of another one, which may compute something else, whatever they are called.
namespace mine {
enum class order : std::uint8_t { before, after };
struct gpt2 : mc::gpt {};
template <order> struct normed : mc::gpt {};
template <class T> struct of : mc::gpt {};
} // namespace mine
namespace yours {
struct gpt2 : mc::gpt {};
struct named : mc::gpt {
  static constexpr family_name<named> family{"gpt2"};
};
struct derived : named {};
} // namespace yours

BOOST_AUTO_TEST_CASE(a_family_is_the_struct_that_bears_its_name) {
  BOOST_TEST(family_of<gpt>().name == "gpt2");
  // All of them may stand in a namespace more.
  BOOST_TEST(family_of<mine::gpt2>().name.ends_with("mine::gpt2 from gpt2"));
  BOOST_TEST(family_of<yours::gpt2>().name.ends_with("yours::gpt2 from gpt2"));
  BOOST_TEST(family_of<yours::derived>().name.ends_with("yours::derived from gpt2"));
  const std::string after = family_of<mine::normed<mine::order::after>>().name;
  BOOST_TEST(after.find("mine::normed<") != std::string::npos);
  BOOST_TEST(after != family_of<mine::normed<mine::order::before>>().name);
  BOOST_TEST(family_of<mine::of<int[3]>>().name != family_of<mine::of<int[4]>>().name);
  BOOST_TEST(detail::short_type_name<mine::of<int[3]>>().starts_with("of<int"));
  BOOST_TEST(detail::short_type_name<mine::of<mine::gpt2>>().ends_with("mine::gpt2>"));
  BOOST_TEST(detail::short_type_name<mine::of<mine::gpt2>>().starts_with("of<"));
  const yours::named as_gpt2{small};
  BOOST_TEST((find_hf_family(trained<yours::named>(as_gpt2).view()) == nullptr));
  BOOST_TEST((find_hf_family(trained<gpt>(small).view()) != nullptr));
}

// Vectors of the reference implementation, and of its specification.
BOOST_AUTO_TEST_CASE(xxh64_vectors) {
  BOOST_TEST(hash("") == 0xef46db3751d8e999u);
  BOOST_TEST(hash("a") == 0xd24ec4f1a98c6e5bu);
  BOOST_TEST(hash("abc") == 0x44bc2cf5ad770999u);
  BOOST_TEST(hash("Nobody inspects the spammish repetition") == 0xfbcea83c8a378bf1u);
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 37 % 251);
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    xxh64 h;
    h.add(std::as_bytes(std::span(text).first(cut)));
    h.add(std::as_bytes(std::span(text).subspan(cut)));
    BOOST_REQUIRE(h.value() == hash(text));
  }
}

BOOST_AUTO_TEST_CASE(names_of_steps) {
  BOOST_TEST((step_of("iter_0000100") == 100));
  BOOST_TEST((step_of("iter_12345678") == 12345678));
  BOOST_TEST(step_folder_name(7) == "iter_0000007");
  for (const char* name : {"iter_100", "iter_00000100", "iter_", "iter_-000001", "iter_000010x",
                           "iter_0000100.megacpp-tmp-1", "latest_checkpointed_iteration.txt",
                           "iter_99999999999999999999"})
    BOOST_TEST(!step_of(name));
}

BOOST_AUTO_TEST_CASE(a_state_gives_back_every_store) {
  const auto round_trip = [](const auto& model, dtype type) {
    scratch_folder dir;
    setup s = small_setup;
    s.precision = type;
    const trained saved(model, s);
    {
      state_root root(dir / "root");
      saved.save(root, 5);
    }
    trained loaded(model, s, 2);
    const auto found = find_saved(dir / "root", true);
    BOOST_REQUIRE((found && found->state));
    // Others may remove what was found: what was opened is read.
    std::filesystem::remove_all(dir / "root");
    load_weights(found->folder, loaded.view(), loaded.stores);
    const run_position at =
        load_moments(found->folder, found->state->state(), loaded.view(), loaded.stores);
    BOOST_TEST(at.step == 5);
    BOOST_TEST(at.samples == 20);
    const mc::stores &a = saved.stores, &b = loaded.stores;
    for_each_parameter(saved.view(), [&](const parameter_ref& r) {
      for (std::int64_t i = r.offset; i < r.offset + r.count.n; ++i) {
        const auto same = [&](const std::byte* x, const std::byte* y, dtype t) {
          return mc::stores::get(x, t, i) == mc::stores::get(y, t, i);
        };
        BOOST_REQUIRE(same(a.weights(), b.weights(), a.precision().weight));
        BOOST_REQUIRE(same(a.masters(), b.masters(), a.precision().master));
        BOOST_REQUIRE(same(a.first_moments(), b.first_moments(), a.precision().moment));
        BOOST_REQUIRE(same(a.second_moments(), b.second_moments(), a.precision().moment));
      }
    });
  };
  qwen3 q;
  q.layers = 1, q.hidden = 8, q.heads = 2, q.kv_heads = 1, q.head_dim = 4, q.ffn = 8;
  q.vocabulary = 11;
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) {
    round_trip(small, type);
    round_trip(own{small}, type);
    round_trip(q, type);
  }
}

BOOST_AUTO_TEST_CASE(every_initial_weight_is_drawn) {
  gpt m = small;
  m.hidden = 48, m.vocabulary = 401, m.ffn = 200, m.std = 0.25;
  const interpreted_program<gpt> program(m, small_setup, "drawn");
  mc::stores stores(program.view(), false);
  stores.initialise(7);
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    double sum = 0, squares = 0, largest = 0;
    for (std::int64_t i = r.offset; i < r.offset + r.count.n; ++i) {
      const double x = stores.weight(i);
      if (r.info->how != init::normal) BOOST_REQUIRE(x == (r.info->how == init::ones ? 1 : 0));
      else BOOST_REQUIRE(x != 0);
      sum += x, squares += x * x, largest = std::max(largest, std::abs(x));
    }
    if (r.info->how != init::normal) return;
    // Five standard deviations of a mean and of a variance.
    const auto n = static_cast<double>(r.count.n);
    const double std = r.info->std, variance = squares / n;
    BOOST_TEST(std::abs(sum / n) < 5 * std / std::sqrt(n), r.name);
    BOOST_TEST(std::abs(variance - std * std) < 5 * std * std * std::sqrt(2 / n), r.name);
    BOOST_TEST(largest < 7 * std, r.name);
  });
}

BOOST_AUTO_TEST_CASE(names_and_shapes_do_not_know_the_layout) {
  const two_states s;
  const safetensors_file file(s.newer + "/" + optimizer_file_name);
  std::size_t tensors = 0;
  for_each_parameter(s.model.view(), [&](const parameter_ref& r) {
    for (const char* prefix : {"optim.exp_avg.", "optim.exp_avg_sq."}) {
      const file_tensor t = file->at(prefix + r.name);
      BOOST_TEST(t.elements() == r.count.n);
      BOOST_TEST(t.shape.size() == static_cast<std::size_t>(r.v->rank));
      ++tensors;
    }
  });
  BOOST_TEST(tensors == file->size());
}

// Nothing that is not finite is written, from whichever store it comes, and no older state goes.
BOOST_AUTO_TEST_CASE(what_is_not_finite_is_not_saved) {
  const auto refuses = []<class Model>(const Model& m, dtype type) {
    scratch_folder dir;
    setup numbers = small_setup;
    numbers.precision = type;
    const trained<Model> of(m, numbers);
    state_root root(dir / "root");
    of.save(root, 1);
    const mc::stores& s = of.stores;
    const double numbers_in_turn[] = {NAN, INFINITY, -INFINITY};
    std::size_t turn = 0;
    for (std::byte* store : {s.masters(), s.first_moments(), s.second_moments()})
      for_each_parameter(of.view(), [&](const parameter_ref& r) {
        const std::int64_t at = r.offset + r.count.n / 2;
        const double before = mc::stores::get(store, s.precision().master, at);
        mc::stores::set(store, s.precision().master, at, numbers_in_turn[turn++ % 3]);
        CHECK_REFUSED(of.save(root, 2, 1), exit_code::nonfinite, "is not saved: its element ");
        BOOST_TEST(s.nonfinite().find(r.name) != std::string::npos, s.nonfinite());
        mc::stores::set(store, s.precision().master, at, before);
        BOOST_TEST(newest_step(dir / "root") == 1);
      });
    BOOST_TEST(s.nonfinite() == "");
    BOOST_TEST(std::distance(fs::directory_iterator(dir / "root"), {}) == 2);
    of.save(root, 2, 1);
    BOOST_TEST(newest_step(dir / "root") == 2);
  };
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64}) refuses(small, type);
  refuses(own{small}, dtype::bf16);
}

// All elements at all positions, of every type that weights are stored in.
BOOST_AUTO_TEST_CASE(the_first_element_that_is_not_finite) {
  const auto check = []<class T>(storage_type type, T most, std::initializer_list<T> wrong) {
    for (const std::size_t n : {1u, 7u, 1024u, 1025u, 5000u}) {
      std::vector<T> x(n + 1, most);
      const auto bytes = std::as_bytes(std::span(x)).subspan(sizeof(T));
      BOOST_TEST(!first_nonfinite(bytes, type));
      for (const T bad : wrong)
        for (std::size_t i = 1; i <= n; i += n / 7 + 1) {
          x[i] = bad;
          BOOST_TEST((first_nonfinite(bytes, type) == static_cast<std::int64_t>(i - 1)));
          BOOST_TEST(
              (first_nonfinite_in_parallel(bytes, type) == static_cast<std::int64_t>(i - 1)));
          x[i] = most;
        }
    }
  };
  check(storage_type::f64, 1.7976931348623157e308, {double(NAN), double(-INFINITY)});
  check(storage_type::f32, 3.40282347e38f, {NAN, INFINITY, -INFINITY});
  check(storage_type::bf16, std::uint16_t{0xff7f}, {std::uint16_t{0x7f80}, std::uint16_t{0xffc0}});
  check(storage_type::f16, std::uint16_t{0x7bff}, {std::uint16_t{0x7c00}, std::uint16_t{0xfe00}});
  check(storage_type::i32, -1, {});
  std::vector<float> large(3u << 20);
  large[(2u << 20) + 5] = NAN, large.back() = INFINITY;
  BOOST_TEST((first_nonfinite_in_parallel(std::as_bytes(std::span(large)), storage_type::f32) ==
              (2 << 20) + 5));
  std::vector<float> rest((1u << 20) + 5); // whole pieces and a part of one
  rest.back() = NAN;
  BOOST_TEST((first_nonfinite_in_parallel(std::as_bytes(std::span(rest)), storage_type::f32) ==
              (1 << 20) + 4));
}

BOOST_AUTO_TEST_CASE(tensors_are_exactly_those_of_the_program) {
  const two_states s;
  trained<gpt> into(small);
  const std::string whole = read_text(s.newer + "/" + optimizer_file_name);
  struct tensor {
    std::vector<std::int64_t> shape;
    std::string bytes;
    storage_type type = storage_type::f32;
  };
  std::map<std::string, tensor> tensors;
  {
    const safetensors_file file(s.newer + "/" + optimizer_file_name);
    for (std::size_t i = 0; i < file->size(); ++i) {
      const file_tensor t = file.tensors()[i];
      tensors[std::string(t.name)] = {
          {t.shape.begin(), t.shape.end()},
          {reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size()}};
    }
  }
  const auto refused = [&](std::string_view says, auto change) {
    auto changed = tensors;
    change(changed);
    std::vector<tensor_spec> specs;
    for (const auto& [name, t] : changed) specs.push_back({name, t.type, t.shape});
    std::string bytes;
    safetensors_layout(specs).write(
        [&](std::span<const std::byte> b) {
          bytes.append(reinterpret_cast<const char*>(b.data()), b.size());
        },
        [&](const tensor_spec& t, const byte_sink& sink) {
          sink(std::as_bytes(std::span(changed.at(t.name).bytes)));
        });
    s.replace(optimizer_file_name, bytes);
    const auto found = find_saved(s.newer, true);
    CHECK_REFUSED(load_moments(found->folder, found->state->state(), into.view(), into.stores),
                  exit_code::mismatch, says);
  };
  const std::string name = tensors.begin()->first;
  refused("is missing", [&](auto& t) { t.erase(name); });
  refused("is not one of its", [&](auto& t) { t["optim.exp_avg.other"] = t.at(name); });
  refused("is needed", [&](auto& t) { t.at(name).shape.push_back(1); });
  refused("is needed", [&](auto& t) { t.at(name).type = storage_type::i32; });
  // Overlapping ranges, in a file whose checksums are right.
  std::string overlapping = whole;
  const auto at = overlapping.find("\"data_offsets\":[");
  BOOST_REQUIRE(at != std::string::npos);
  overlapping[overlapping.find(',', at) - 1] ^= 1;
  s.replace(optimizer_file_name, overlapping);
  CHECK_REFUSED(find_saved(s.newer, true), exit_code::model, "safetensors");
}

// Whatever sequences the program that generates was built for.
BOOST_AUTO_TEST_CASE(texts_that_reach_positions_a_state_never_trained) {
  setup shorter = small_setup;
  shorter.batch.sequence = 4;
  const trained<gpt> saved(small, shorter), other(small);
  const scratch_folder dir;
  {
    state_root root(dir / "root");
    saved.save(root, 1);
  }
  const auto found = find_saved(dir / "root", false);
  for (const auto* p : {&saved, &other}) {
    BOOST_TEST(mc::detail::untrained_reached(found->folder, p->view(), 4).empty());
    const auto lines = mc::detail::untrained_reached(found->folder, p->view(), 5);
    BOOST_REQUIRE(lines.size() == 1u);
    BOOST_TEST(lines[0].find("has 8 positions, of which sequences of 4 tokens train the first 4") !=
                   lines[0].npos,
               lines[0]);
  }
  const auto said = [&](const char* most) {
    const auto ended = test::child_of([&] {
      options o;
      o.model.load.read(dir / "root", "load");
      o.sampling.ids.read("true", "ids");
      o.sampling.prompt.read("1 2", "prompt");
      o.sampling.max_new_tokens.read(most, "max-new-tokens");
      cpu device(product_type::automatic, 1);
      run_generation(saved.view(), generation_request_of(o), device);
      return 0;
    });
    BOOST_TEST(ended.status == 0);
    return ended.said.find("has 8 positions, of which") != ended.said.npos;
  };
  BOOST_TEST(!said("3")); // the last token is drawn behind the fourth
  BOOST_TEST(said("4"));
  // Nobody knows what trained a model of others.
  save_model_folder(dir / "model", saved.view(), saved.stores);
  const model_folder plain(dir / "model");
  BOOST_TEST(mc::detail::untrained_reached(plain, saved.view(), 8).empty());
}

// Another rank must not take what is left of a state for a model from anywhere.
BOOST_AUTO_TEST_CASE(another_rank_has_a_state_where_the_first_one_has) {
  const two_states s;
  for (const std::string& path : {s.root, s.newer}) {
    training_start first;
    first.from = find_saved(path, true);
    BOOST_TEST(for_another_rank(first).from->state.has_value());
    const std::string file = s.newer + "/" + state_file_name;
    fs::rename(file, s.dir / "kept");
    CHECK_REFUSED(for_another_rank(first), exit_code::model,
                  "another rank has found a state there");
    fs::rename(s.dir / "kept", file);
  }
  save_model_folder(s.dir / "model", s.model.view(), s.model.stores);
  training_start first;
  first.from = find_saved(s.dir / "model", true);
  BOOST_TEST(!for_another_rank(first).from->state);
}

BOOST_AUTO_TEST_CASE(the_state_of_another_model_is_refused) {
  const two_states s;
  const auto found = find_saved(s.root, true);
  const auto refused = [&](auto model, setup numbers, std::string_view says) {
    const trained other(model, numbers);
    CHECK_REFUSED(require_same_program(found->state->state(), other.view()), exit_code::mismatch,
                  says);
  };
  BOOST_CHECK_NO_THROW(require_same_program(found->state->state(), s.model.view()));
  gpt m = small;
  m.vocabulary = 12;
  refused(m, small_setup, "vocabulary is 11 there and 12 here");
  m = small, m.layers = 2;
  refused(m, small_setup, "layers is 1 there and 2 here");
  m = small, m.dropout = 0.5;
  refused(m, small_setup, "dropout is 0 there and 0.5 here; build the program that wrote it");
  setup bf16 = small_setup;
  bf16.precision = dtype::bf16;
  refused(small, bf16, "precision is \"f32\" there and \"bf16\" here");
  qwen3 q;
  q.layers = 1, q.hidden = 8, q.heads = 2, q.kv_heads = 1, q.head_dim = 4, q.ffn = 8;
  q.vocabulary = 11;
  refused(q, small_setup, "family is \"gpt2\" there and \"qwen3\" here");
  const mine::gpt2 derived{small};
  const std::string name = family_of<mine::gpt2>().name;
  const std::string differs = "family is \"gpt2\" there and \"" + name + "\" here";
  refused(derived, small_setup, differs);
  trained<mine::gpt2> of_derived(derived);
  CHECK_REFUSED(hf_family_of(of_derived.view()), exit_code::mismatch,
                "is of the family \"" + name + "\", which has no Hugging Face form");
  // Its weights alone, too: it is a state, only of another family.
  CHECK_REFUSED(load_weights(found->folder, of_derived.view(), of_derived.stores),
                exit_code::mismatch, differs);

  qwen3_moe first; // as many parameters, in layers of another order
  first.layers = 2, first.hidden = 8, first.heads = 2, first.kv_heads = 1, first.head_dim = 4;
  first.ffn = first.expert_ffn = 8, first.experts = 2, first.experts_per_token = 1;
  first.vocabulary = 11;
  qwen3_moe second = first;
  first.mlp_only = {1}, second.mlp_only = {0};
  const trained<qwen3_moe> saved(first);
  const scratch_folder dir;
  {
    state_root root(dir / "root");
    saved.save(root, 1);
  }
  const auto of_first = find_saved(dir / "root", true);
  BOOST_CHECK_NO_THROW(require_same_program(of_first->state->state(), saved.view()));
  const trained<qwen3_moe> other(second);
  CHECK_REFUSED(require_same_program(of_first->state->state(), other.view()), exit_code::mismatch,
                "kinds is ");
}

BOOST_AUTO_TEST_CASE(every_training_flag_says_what_a_resumed_run_makes_of_it) {
  options o;
  std::size_t counts[5] = {};
  for (const named_flag& e : flags_of(o)) {
    if (!overlaps(e.flag->commands(), command::train) && !e.compiled) continue;
    BOOST_TEST(static_cast<int>(e.flag->resuming()) != static_cast<int>(on_resume::undecided),
               "--" << e.name << " has no class");
    ++counts[static_cast<std::size_t>(e.flag->resuming())];
  }
  for (std::size_t how = 1; how < 5; ++how) BOOST_TEST(counts[how] > 0u);
}

// A vocabulary above 256 is that of bytes where a run was told so, and need not be told again.
BOOST_AUTO_TEST_CASE(who_reads_a_state_has_the_type_of_its_tokenizer) {
  const auto type_of = [](const std::vector<std::pair<std::string, std::string>>& run,
                          const std::vector<std::pair<std::string, std::string>>& flags) {
    options of_run, o;
    for (const auto& [name, value] : run) find_flag(flags_of(of_run), name)->flag->ask(value, name);
    for (const auto& [name, value] : flags) find_flag(flags_of(o), name)->flag->ask(value, name);
    json saved;
    save_flags(saved, of_run);
    return with_tokenizer_of_run(tokenizer_request_of(o.data),
                                 json_value(saved, "state", exit_code::model))
        .type.value_or("");
  };
  for (const char* type : {"byte", "HuggingFaceTokenizer", "NullTokenizer"})
    BOOST_TEST(type_of({{"tokenizer-type", type}}, {}) == type);
  BOOST_TEST(type_of({}, {}).empty());
  BOOST_TEST(type_of({{"tokenizer-type", "char"}}, {}).empty()); // by characters.json
  BOOST_TEST(type_of({{"tokenizer-type", "byte"}}, {{"tokenizer-model", "other"}}).empty());
  BOOST_TEST(type_of({{"tokenizer-type", "byte"}}, {{"tokenizer-type", "char"}}) == "char");
  const json strange{{"flags", {{"tokenizer-type", "words"}}}, {"given", {"tokenizer-type"}}};
  CHECK_REFUSED(with_tokenizer_of_run({}, json_value(strange, "state", exit_code::model)),
                exit_code::model, "is \"words\", which is no type of a tokenizer");
}

BOOST_AUTO_TEST_CASE(flags_of_a_run_that_goes_on) {
  const auto with = [](std::vector<std::pair<std::string, std::string>> values) {
    options o;
    const auto list = flags_of(o);
    for (const auto& [name, value] : values) find_flag(list, name)->flag->ask(value, name);
    return o;
  };
  json saved;
  save_flags(saved, with({{"lr", "0.25"},
                          {"seed", "7"},
                          {"train-iters", "30"},
                          {"eval-iters", "0"},
                          {"metrics-jsonl", "m"},
                          {"data-path", "d"}}));
  BOOST_TEST(!saved["flags"].contains("metrics-jsonl"));
  const json_value state(saved, "state", exit_code::model);

  options left_out = with({});
  BOOST_TEST(resume_flags(state, left_out, "p").empty());
  BOOST_TEST(left_out.optimizer.lr() == 0.25);
  BOOST_TEST(left_out.model.seed() == 7);
  BOOST_TEST(left_out.training.train_iters() == 30);
  BOOST_TEST(left_out.training.eval_iters.given()); // 0 given is no evaluation
  BOOST_TEST(left_out.data.data_path() == std::vector<std::string>{"d"},
             boost::test_tools::per_element());
  BOOST_TEST(!left_out.optimizer.adam_beta1.given());
  BOOST_TEST(!left_out.report.metrics_jsonl.given());
  BOOST_TEST(!left_out.optimizer.lr_decay_iters.given()); // derived from train-iters again

  json decaying; // given, and so not derived
  save_flags(decaying, with({{"train-iters", "30"}, {"lr-decay-iters", "20"}}));
  options longer = with({{"train-iters", "50"}});
  resume_flags({decaying, "state", exit_code::model}, longer, "p");
  BOOST_TEST((longer.optimizer.lr_decay_iters.given() && longer.optimizer.lr_decay_iters() == 20));

  options changed = with({{"lr", "0.5"}, {"train-iters", "30"}});
  const auto lines = resume_flags(state, changed, "p");
  BOOST_TEST(lines == std::vector<std::string>{"lr: 0.25 -> 0.5 (may change)"},
             boost::test_tools::per_element());
  BOOST_TEST(changed.optimizer.lr() == 0.5);

  // What is said in another way is not said twice.
  const auto left = [](const std::string& what, const std::string& for_flag) {
    return fmt::format("{} -> left out, for --{} is given (may change)", what, for_flag);
  };
  json sampled;
  save_flags(sampled,
             with({{"train-samples", "64"}, {"lr-decay-samples", "32"}, {"data-path", "d"}}));
  options stepped = with({{"train-iters", "9"}, {"data-args-path", "f"}});
  BOOST_TEST(
      resume_flags({sampled, "state", exit_code::model}, stepped, "p") ==
          (std::vector<std::string>{
              left("data-path: d", "data-args-path"), "data-args-path: none -> f (may change)",
              "train-iters: 1000 -> 9 (may change)", left("train-samples: 64", "train-iters"),
              left("lr-decay-samples: 32", "train-iters")}),
      boost::test_tools::per_element());
  BOOST_TEST((!stepped.training.train_samples.given() &&
              !stepped.optimizer.lr_decay_samples.given() && !stepped.data.data_path.given()));
  json parts; // which go together
  save_flags(parts, with({{"epochs", "3"}, {"lr-decay-iters", "5"}, {"train-data-path", "t"}}));
  options more = with({{"train-iters", "9"}, {"valid-data-path", "v"}});
  BOOST_TEST(resume_flags({parts, "state", exit_code::model}, more, "p") ==
                 (std::vector<std::string>{"valid-data-path: none -> v (may change)",
                                           "train-iters: 1000 -> 9 (may change)",
                                           left("epochs: 3", "train-iters")}),
             boost::test_tools::per_element());
  BOOST_TEST((more.optimizer.lr_decay_iters() == 5 && more.data.train_data_path.given()));

  // Of what is compiled in, the micro-batch changes bits where sums over tokens depend on it.
  const auto told = [&](const char* then, const char* micro_then, const char* now,
                        const char* micro_now, bool tells = true) {
    json of_run;
    save_flags(of_run, with({{"numerics", then}, {"micro-batch-size", micro_then}}));
    if (!tells) of_run["flags"].erase("numerics"); // as in states of before there was a choice
    options here = with({{"numerics", now}, {"micro-batch-size", micro_now}});
    for (const std::string& line : resume_flags({of_run, "state", exit_code::model}, here, "p"))
      if (line.find("other bits") != std::string::npos) return true;
    return false;
  };
  BOOST_TEST(!told("fast", "4", "fast", "4"));
  BOOST_TEST(told("fast", "4", "fast", "2"));
  BOOST_TEST(!told("batch_invariant", "4", "batch_invariant", "2"));
  BOOST_TEST(told("batch_invariant", "4", "fast", "4"));
  BOOST_TEST(told("fast", "4", "batch_invariant", "4"));
  BOOST_TEST(told("batch_invariant", "4", "fast", "4", false));
  BOOST_TEST(!told("batch_invariant", "4", "batch_invariant", "2", false));

  options other = with({{"seed", "8"}, {"split", "1,1,1"}});
  CHECK_REFUSED(resume_flags(state, other, "p"), exit_code::mismatch, "seed is 7 there and 8");
  CHECK_REFUSED(resume_flags(state, other, "p"), exit_code::mismatch,
                "split is 969,30,1 there and 1,1,1");

  // With other fields, conversations are other data.
  json of_chat;
  const std::string keys = "user=q,assistant=a";
  save_flags(of_chat, with({{"data-type", "chat"}, {"chat-keys", keys}}));
  options same = with({{"chat-keys", keys}}), none = with({}),
          turned = with({{"chat-keys", "user=a,assistant=q"}});
  BOOST_TEST(resume_flags({of_chat, "state", exit_code::model}, same, "p").empty());
  BOOST_TEST(resume_flags({of_chat, "state", exit_code::model}, none, "p").empty());
  BOOST_TEST(none.data.chat_keys() == keys);
  CHECK_REFUSED(resume_flags({of_chat, "state", exit_code::model}, turned, "p"),
                exit_code::mismatch,
                "chat-keys is user=q,assistant=a there and user=a,assistant=q here");
  CHECK_REFUSED(resume_flags(state, same, "p"), exit_code::mismatch,
                "chat-keys is none there and user=q,assistant=a here");

  json wrong = saved;
  wrong["flags"]["lr"] = "fast";
  options o = with({});
  CHECK_REFUSED(resume_flags({wrong, "state", exit_code::model}, o, "p"), exit_code::model,
                "another type");
  wrong["flags"]["lr"] = -1;
  CHECK_REFUSED(resume_flags({wrong, "state", exit_code::model}, o, "p"), exit_code::model,
                "0 or at least 1.4");
  options given = with({{"lr", "0.5"}, {"train-iters", "30"}}); // what another program took
  BOOST_TEST(resume_flags({wrong, "state", exit_code::model}, given, "p") ==
                 std::vector<std::string>{"lr: -1 -> 0.5 (may change)"},
             boost::test_tools::per_element());
  CHECK_REFUSED(resume_flags({wrong, "state", exit_code::model}, o, "p"), exit_code::model,
                "; give --lr to go on with another");
  wrong = saved, wrong["flags"]["learning"] = 1;
  CHECK_REFUSED(resume_flags({wrong, "state", exit_code::model}, o, "p"), exit_code::model,
                "\"learning\"");
  wrong = saved, wrong["flags"]["metrics-jsonl"] = "m"; // one that no state keeps
  CHECK_REFUSED(resume_flags({wrong, "state", exit_code::model}, o, "p"), exit_code::model,
                "\"metrics-jsonl\"");
}
