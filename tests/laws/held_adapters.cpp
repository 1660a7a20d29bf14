// A generator that holds several adapters continues each text as a program with the text's adapter
// alone does, and a text without one as the model does, bit for bit, on one rank and on many.
#define BOOST_TEST_MODULE held_adapters
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/generate/prompts.hpp>
#include <megacpp/hf/adapter.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/held_adapters.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/states/start.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include <kernels.hpp>
#include <scratch.hpp>

using namespace mc;

namespace {

constexpr int words = 64;

constexpr gpt of_gpt = [] {
  gpt m;
  m.layers = 2, m.hidden = 32, m.heads = 4, m.ffn = 64, m.vocabulary = words, m.positions = 32;
  return m;
}();
constexpr qwen3 grouped = [] {
  qwen3 m;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 128;
  m.vocabulary = words, m.positions = 32;
  return m;
}();
constexpr qwen3_moe mixture = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.kv_heads = 2, m.head_dim = 16, m.ffn = 128;
  m.expert_ffn = 64, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
  m.vocabulary = words, m.positions = 32;
  return m;
}();

/// The two adapters: one of all that the programs have, and one of a lower rank and fewer layers.
constexpr lora widest{.rank = 4, .alpha = 6}, narrow{.rank = 2, .alpha = 40, .rslora = true};

template <class Model>
std::unique_ptr<interpreted_program<Model>> made(const Model& m, const layout& l, lora with,
                                                 base_storage base = base_storage::plain,
                                                 precision_policy in = dtype::f64) {
  with.base = base;
  return std::make_unique<interpreted_program<Model>>(
      m, setup{.ranks = l, .batch = {2, 32}, .precision = in, .adapter = with}, "writes");
}

/// Writes an adapter whose factors are random numbers, B, too.
template <class Model> void write_adapter(const Model& m, const lora& with, std::uint64_t seed,
                                          const std::string& folder) {
  const auto program = made(m, {}, with);
  const program_view& p = program->view();
  stores s(p, false);
  s.initialise(seed);
  std::uint64_t key = seed;
  for_each_parameter(p, [&](const parameter_ref& r) {
    if (!r.info->added) return;
    for (std::int64_t i = 0; i < r.count.n; ++i) {
      const auto w = philox(++key, static_cast<std::uint64_t>(i));
      s.set_weight(r.offset + i, static_cast<double>(w[0]) * 0x1p-34 - 0.125);
    }
  });
  folder_writer out(folder, adapter_kind);
  write_adapter_files(out, p, s);
  out.commit();
}

using ids = std::vector<std::int32_t>;
const std::vector<ids> prompts{{5, 17, 2, 40, 40, 9, 60}, {1, 0, 33}, {12, 13}, {63, 4, 4, 4, 21}};
const std::vector<int> chosen{0, -1, 1, 0}; ///< adapter of each prompt
constexpr int steps = 5;

/// Returns the logits before `steps` tokens that continue each text, by text.
std::vector<std::vector<double>> continued(generator& g, std::vector<ids> texts) {
  std::vector<std::vector<double>> logits(texts.size());
  std::vector<std::span<const std::int32_t>> more(texts.begin(), texts.end());
  for (int step = 0; step < steps; ++step) {
    g.append(more);
    for (std::size_t b = 0; b < texts.size(); ++b) {
      for (std::int32_t t = 0; t < words; ++t) logits[b].push_back(g.logit(static_cast<int>(b), t));
      const auto now = std::span(logits[b]).last(words);
      texts[b].push_back(static_cast<std::int32_t>(std::ranges::max_element(now) - now.begin()));
    }
    for (std::size_t b = 0; b < texts.size(); ++b) more[b] = std::span(texts[b]).last(1);
  }
  return logits;
}

/// Continues texts by a program with the adapters in these folders: the only one for all, or, where
/// the program holds several, that which `of` says for each text.
std::vector<std::vector<double>> continued(const program_view& whole, communicator& c,
                                           const std::vector<std::string>& folders,
                                           const std::vector<ids>& texts,
                                           const std::vector<int>& of = {}) {
  const program_of_adapters held(whole, of.empty() ? 0 : static_cast<int>(folders.size()));
  const rank_program of_rank(held.view(), c);
  cpu device(product_type::widened, 1, product_rows::apart);
  stores weights(of_rank.view(), false, c.coordinate(), device, c.ranks());
  weights.initialise(3);
  std::vector<std::unique_ptr<const adapter_in_folder>> adapters;
  for (const std::string& folder : folders)
    adapters.push_back(std::make_unique<const adapter_in_folder>(
        model_folder(folder), held.view(), std::nullopt, static_cast<int>(adapters.size())));
  if (whole.numbers.adapter.rank > 0) load_adapters(adapters, weights, 9);
  const auto others = c.make_ranks(device);
  generator g(of_rank.view(), device, weights,
              {.sequences = static_cast<int>(texts.size()), .tokens = 20, .prompt = 7}, *others);
  for (std::size_t b = 0; b < of.size(); ++b) g.choose(static_cast<int>(b), of[b]);
  return continued(g, texts);
}

double difference(const std::vector<double>& a, const std::vector<double>& b) {
  BOOST_REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

struct tried {
  layout l;
  int dp = 1;
};

template <class Model> void mixes(const Model& m, lora second, const std::vector<tried>& layouts,
                                  base_storage base = base_storage::plain) {
  const test::scratch_folder dir;
  const std::vector<std::string> folders{dir / "first", dir / "second"};
  write_adapter(m, widest, 11, folders[0]), write_adapter(m, second, 12, folders[1]);
  const auto one = made(m, {}, widest, base);
  std::vector<std::vector<double>> want;
  for (std::size_t b = 0; b < prompts.size(); ++b) {
    const std::vector<std::string> own =
        chosen[b] < 0 ? std::vector<std::string>()
                      : std::vector{folders[static_cast<std::size_t>(chosen[b])]};
    want.push_back(continued(one->view(), self::hosts(), own, {prompts[b]})[0]);
  }
  BOOST_TEST(difference(want[0], want[3]) > 1e-3);
  // A new adapter adds nothing: such a text is the model's.
  if (base == base_storage::plain) {
    const auto alone = made(m, {}, {.rank = 0});
    BOOST_TEST((continued(alone->view(), self::hosts(), {}, {prompts[1]})[0] == want[1]));
  }
  for (const auto& [l, dp] : layouts) {
    const auto program = made(m, l, widest, base);
    const mesh ranks = mesh_of(l, dp);
    std::vector<std::vector<std::vector<double>>> got(static_cast<std::size_t>(ranks_of(ranks)));
    thread_ranks(ranks).run([&](communicator& c) {
      got[static_cast<std::size_t>(c.rank())] =
          continued(program->view(), c, folders, prompts, chosen);
    });
    for (const auto& of_rank : got)
      for (std::size_t b = 0; b < prompts.size(); ++b)
        BOOST_TEST(difference(of_rank[b], want[b]) <= 1e-10,
                   "tp " << l.tp << " pp " << l.pp << " ep " << l.ep << ", text " << b
                         << " differs by " << difference(of_rank[b], want[b]));
    if (ranks_of(ranks) == 1) BOOST_TEST((got[0][1] == want[1]), "the model's own text");
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(texts_have_their_adapters) {
  lora some = narrow;
  some.targets = {"q_proj", "down_proj"};
  mixes(grouped, some,
        {{},
         {{.tp = 2}},
         {{.tp = 2, .cp = 2, .sequence_parallel = true}},
         {{.pp = 2, .zero = 1}, 2}});
  some.targets = {"attn.c_attn", "mlp.c_proj"};
  mixes(of_gpt, some, {{}, {{.tp = 2}}});
}

BOOST_AUTO_TEST_CASE(experts_have_the_adapters_of_their_tokens) {
  lora some = narrow;
  some.targets = {"o_proj", "experts"};
  mixes(mixture, some,
        {{},
         {{.ep = 2}, 2},
         {{.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2},
         {{.tp = 2, .pp = 2, .ep = 2, .sequence_parallel = true}, 1}});
}

BOOST_AUTO_TEST_CASE(prompts_name_their_adapters) {
  const std::vector<std::string> given{"a=x/y=z", "b=../w"};
  const std::vector<named_adapter> two = adapters_of(given);
  BOOST_REQUIRE(two.size() == 2u);
  BOOST_TEST((two[0].name == "a" && two[0].folder == "x/y=z" && two[1].name == "b"));
  require_names(two);
  for (const char* path :
       {"runs/lr=3", "=x", "adapter"}) { // no name has a slash, and none is empty
    const std::vector<std::string> one{path};
    BOOST_TEST((adapters_of(one)[0].folder == path && !are_named(adapters_of(one))));
  }
  BOOST_TEST(adapters_of({}).empty());
  using all = std::vector<std::string>;
  for (const all& wrong :
       {all{"a", "b"}, all{"a=x", "b"}, all{"a=x", "a=y"}, all{"-=x"}, all{"a\tb=x"}})
    CHECK_REFUSED(require_names(adapters_of(wrong)), exit_code::usage, "without a name of its own");
  start_request named;
  for (const all& wrong : {all{"a", "b"}, all{"a=x"}}) {
    named.adapters = adapters_of(wrong);
    CHECK_REFUSED(require_one_adapter(named), exit_code::usage, "only generate has several");
  }
  const auto without = made(grouped, {}, {.rank = 0});
  CHECK_REFUSED(program_of_adapters(without->view(), 2), exit_code::mismatch, "has no adapter");

  std::string_view text = "b\tone\ttwo";
  BOOST_TEST(mc::detail::take_adapter(two, text, "line 1", exit_code::data) == 1);
  BOOST_TEST(text == "one\ttwo");
  text = "-\tx";
  BOOST_TEST(mc::detail::take_adapter(two, text, "line 1", exit_code::data) == -1);
  for (const auto& [prompt, part] : {std::pair("one",
                                               "line 1: the prompt names no adapter; write "
                                               "one of -, a, b and a tab before it"),
                                     {"c\tone", "line 1: there is no adapter c"}}) {
    text = prompt;
    CHECK_REFUSED(mc::detail::take_adapter(two, text, "line 1", exit_code::data), exit_code::data,
                  part);
  }
}

// In bf16 the input that says which adapter a token has is fp32, and its rows are dispatched so.
BOOST_AUTO_TEST_CASE(adapters_in_bf16) {
  const test::scratch_folder dir;
  const std::vector<std::string> folders{dir / "first", dir / "second"};
  write_adapter(mixture, widest, 11, folders[0]), write_adapter(mixture, narrow, 12, folders[1]);
  const auto begin = [](const std::vector<double>& logits) { // before texts may part
    return std::vector(logits.begin(), logits.begin() + words);
  };
  const auto one = made(mixture, {}, widest, base_storage::plain, dtype::bf16);
  std::vector<std::vector<double>> want;
  for (const int adapter : {0, 1})
    want.push_back(
        begin(continued(one->view(), self::hosts(), {folders[static_cast<std::size_t>(adapter)]},
                        {prompts[adapter == 0 ? 0 : 2]})[0]));
  const double apart = difference(want[0], want[1]);
  for (const auto& [l, dp] : {tried{}, tried{{.tp = 2, .ep = 2, .sequence_parallel = true}, 1}}) {
    const auto program = made(mixture, l, widest, base_storage::plain, dtype::bf16);
    thread_ranks(mesh_of(l, dp)).run([&](communicator& c) {
      const auto got = continued(program->view(), c, folders, prompts, chosen);
      BOOST_TEST(difference(begin(got[0]), want[0]) <= apart / 20);
      BOOST_TEST(difference(begin(got[2]), want[1]) <= apart / 20);
    });
  }
}

BOOST_AUTO_TEST_CASE(bases_in_nf4_have_adapters) {
  mixes(grouped, narrow, {{}, {{.pp = 2}}}, base_storage::nf4);
  mixes(mixture, narrow, {{}, {{.ep = 2}, 2}}, base_storage::nf4);
}
