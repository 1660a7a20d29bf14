// Parameter counts of the presets against published figures, at compile time; names and ties over
// the parts of a model.
#define BOOST_TEST_MODULE parameters
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/plan/count.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/preset/models.hpp>

#include <array>
#include <string>
#include <utility>
#include <vector>

using namespace mc;

namespace {

/// Rounded to tenths of a billion.
constexpr long tenths(std::int64_t n) { return static_cast<long>((n + 50'000'000) / 100'000'000); }

struct declared {
  const char *scope, *name;
  parameter_info info{};
  dtype type = dtype::f32;
  std::int64_t rows = 4;
};
using part = std::vector<declared>;

constexpr std::array layers{1, 2, 1, 1};

/// A registry over stem, two kinds of block and head with these parameters.
registry registry_of(const part& stem, const part& block, const part& other, const part& head,
                     numerics sums = numerics::batch_invariant, layout over = {}) {
  std::vector<graph> graphs;
  for (const part* p : {&stem, &block, &other, &head}) {
    builder b{mesh(over)};
    b.g.sums = sums;
    for (const declared& d : *p)
      b.parameter(d.scope, d.name, d.type, {{dim::rows, d.rows}}, {}, d.info, 7);
    BOOST_TEST((b.g.wrong.code == fault::none));
    graphs.push_back(b.g);
  }
  return make_registry(std::array<const graph*, 4>{&graphs[0], &graphs[1], &graphs[2], &graphs[3]},
                       layers);
}
fault_record fault_of(const part& stem, const part& block, const part& other, const part& head) {
  return registry_of(stem, block, other, head).wrong;
}
std::string said(const fault_record& f) {
  return std::string(code_of(f.code)) + " " + f.what.c_str();
}
parameter_info tied(parameter_info p = {}) {
  p.tied = true;
  return p;
}

} // namespace

// [presets]
// Small ones: bytes, and the 65 characters of tinyshakespeare.
static_assert(parameter_count(preset::byte_gpt) == 1'844'928);
static_assert(parameter_count(preset::char_gpt) == 804'096);
// GPT-2 (Radford et al. 2019; the counts of the released checkpoints).
static_assert(parameter_count(preset::gpt2_124m) == 124'439'808);
static_assert(parameter_count(preset::gpt2_350m) == 354'823'168);
static_assert(parameter_count(preset::gpt2_774m) == 774'030'080);
static_assert(parameter_count(preset::gpt2_1558m) == 1'557'611'200);
// GPT-3 (Brown et al. 2020, table 2.1): 175.0 billion; the table rounds 174.6.
static_assert(tenths(parameter_count(preset::gpt3_175b)) == 1746);
// Narayanan et al. SC21, table 1.
static_assert(tenths(parameter_count(preset::megatron_1_7b)) == 17);
static_assert(tenths(parameter_count(preset::megatron_3_6b)) == 36);
static_assert(tenths(parameter_count(preset::megatron_7_5b)) == 75);
static_assert(tenths(parameter_count(preset::megatron_18_4b)) == 184);
static_assert(tenths(parameter_count(preset::megatron_39_1b)) == 391);
static_assert(tenths(parameter_count(preset::megatron_76_1b)) == 761);
static_assert(tenths(parameter_count(preset::megatron_145_6b)) == 1456);
static_assert(tenths(parameter_count(preset::megatron_310_1b)) == 3101);
static_assert(tenths(parameter_count(preset::megatron_529_6b)) == 5296);
static_assert(tenths(parameter_count(preset::megatron_1008b)) == 10080);
// Llama 3, 3.1 and 3.2, Qwen2.5 (the counts of the released checkpoints).
static_assert(parameter_count(preset::llama3_8b) == 8'030'261'248);
static_assert(parameter_count(preset::llama3_1_8b) == 8'030'261'248);
static_assert(parameter_count(preset::llama3_2_1b) == 1'235'814'400);
static_assert(parameter_count(preset::llama3_2_3b) == 3'212'749'824);
static_assert(parameter_count(preset::qwen2_5_0_5b) == 494'032'768);
static_assert(parameter_count(preset::qwen2_5_1_5b) == 1'543'714'304);
static_assert(parameter_count(preset::qwen2_5_7b) == 7'615'616'512);
// Qwen3 (model cards and technical report, table 1): 0.6, 1.7, 4.0, 8.2, 14.8, 32.8 billion.
static_assert(tenths(parameter_count(preset::qwen3_0_6b)) == 6);
static_assert(tenths(parameter_count(preset::qwen3_1_7b)) == 17);
static_assert(tenths(parameter_count(preset::qwen3_4b)) == 40);
static_assert(tenths(parameter_count(preset::qwen3_8b)) == 82);
static_assert(tenths(parameter_count(preset::qwen3_14b)) == 148);
static_assert(tenths(parameter_count(preset::qwen3_32b)) == 328);
// Qwen3-MoE: 30.5 and 235 billion; the first count is that of the released checkpoint.
static_assert(parameter_count(preset::qwen3_moe_165m) == 164'767'232);
static_assert(parameter_count(preset::qwen3_30b_a3b) == 30'532'122'624);
static_assert(tenths(parameter_count(preset::qwen3_235b_a22b)) == 2351);
// [/presets]

// The closed form of SC21, equation 2: P = 12 L H^2 (1 + 13 / (12 H) + (V + S) / (12 L H)); ours
// has the final norm's 2 H besides.
BOOST_AUTO_TEST_CASE(closed_form) {
  for (const gpt& m : {preset::megatron_1_7b, preset::megatron_39_1b, preset::megatron_1008b}) {
    const std::int64_t L = m.layers, H = m.hidden, V = m.vocabulary, S = m.positions;
    BOOST_TEST(parameter_count(m) == 12 * L * H * H + 13 * L * H + (V + S) * H + 2 * H);
  }
}

// tp, cp and sequence parallelism share parameters out; nothing is lost and nothing is counted
// twice.
BOOST_AUTO_TEST_CASE(layouts_leave_the_count) {
  for (const layout& l : {layout{.tp = 8}, layout{.tp = 4, .cp = 2, .sequence_parallel = true}}) {
    setup s;
    s.ranks = l;
    const graph stem = forward_graph(preset::qwen3_8b, s, part_kind::stem, 0),
                block = forward_graph(preset::qwen3_8b, s, part_kind::block, 0),
                head = forward_graph(preset::qwen3_8b, s, part_kind::loss, 0);
    BOOST_TEST(count_parameters(std::array<const graph*, 3>{&stem, &block, &head},
                                std::array{1, 36, 1}) == parameter_count(preset::qwen3_8b));
  }
}

// Files tell parameters apart by "scope.name", in a block by "layers.<number>.scope.name".
BOOST_AUTO_TEST_CASE(no_two_parameters_have_one_name_in_a_file) {
  const part table{{"wte", "weight"}}, norm{{"norm", "weight"}};
  BOOST_TEST(said(fault_of(table, norm, norm, {{"norm", "weight"}})) == " ");
  BOOST_TEST(said(fault_of(table, norm, norm, table)) ==
             "MEGA-S005 parameter(wte.weight) of the head and parameter(wte.weight) of the stem");
  BOOST_TEST(fault_of(table, norm, norm, table).line.number == 7);
  // wherever the first dot is thought to be
  BOOST_TEST(said(fault_of({{"a.b", "c"}}, norm, {}, {{"a", "b.c"}})) ==
             "MEGA-S005 parameter(a.b.c) of the head and parameter(a.b.c) of the stem");
  builder b{mesh(layout{})};
  b.parameter("a.b", "c", dtype::f32, {{dim::rows, 4}}, {}, {});
  b.parameter("a", "b.c", dtype::f32, {{dim::rows, 4}}, {}, {});
  BOOST_TEST((b.g.wrong.code == fault::S005));
  // as a layer's number makes them
  BOOST_TEST(said(fault_of(table, {}, norm, {{"layers.1", "norm.weight"}})) ==
             "MEGA-S005 parameter(layers.1.norm.weight) of the head and parameter(norm.weight) of "
             "a block");
  BOOST_TEST(said(fault_of({{"layers", "12.norm.weight"}}, norm, {}, table)).substr(0, 9) ==
             "MEGA-S005");
  for (const part& other : {part{{"layers.1", "norm.bias"}}, part{{"layers", "norm.weight"}},
                            part{{"layers.x", "norm.weight"}}, part{{"layers.1x", "norm.weight"}},
                            part{{"layer.1", "norm.weight"}}, part{{"layers.1", "normweight"}}})
    BOOST_TEST(said(fault_of(table, norm, {}, other)) == " ", other[0].scope);
  // a block of its own kind has layers of its own
  BOOST_TEST(said(fault_of(table, table, table, norm)) == " ");
}

BOOST_AUTO_TEST_CASE(a_name_that_files_do_not_take_is_refused) {
  for (const auto& [scope, name] : {std::pair{"", "weight"},
                                    {"norm", ""},
                                    {"", ""},
                                    {"a b", "c"},
                                    {"a", "b\"c"},
                                    {"a\\", "b"},
                                    {"a\n", "b"},
                                    {"\x7f", "b"},
                                    {"gr\xc3\xb6\xc3\x9f"
                                     "e",
                                     "b"},
                                    {"\xff", "b"}})
    for (const part& at : {part{{scope, name}}, part{{scope, name, tied()}}}) {
      BOOST_TEST((fault_of(at, {}, {}, {}).code == fault::S006), scope << "." << name);
      BOOST_TEST((fault_of({}, {}, at, {}).code == fault::S006), scope << "." << name);
      BOOST_TEST((fault_of({}, {}, {}, at).code == fault::S006), scope << "." << name);
    }
}

// What a tied use says of its parameter beside its name would be lost: its gradient, its update.
BOOST_AUTO_TEST_CASE(a_tied_use_says_what_the_declaration_says) {
  const parameter_info normal = normal_weights(0.02);
  const auto with = [&](auto change) {
    parameter_info p = normal;
    change(p);
    return p;
  };
  const auto one = [](parameter_info p, dtype t = dtype::f32, std::int64_t rows = 4) {
    return part{{"wte", "weight", p, t, rows}};
  };
  for (const part& at : {one(tied(normal)), part{}})
    BOOST_TEST(said(fault_of(one(normal), at, at, one(tied(normal)))) == " ");
  BOOST_TEST(said(fault_of(one(tied(normal)), {}, {}, one(normal))) == " ");
  const parameter_info others[] = {with([](parameter_info& p) { p.frozen = true; }),
                                   with([](parameter_info& p) { p.decay = false; }),
                                   with([](parameter_info& p) { p.how = init::zeros; }),
                                   with([](parameter_info& p) { p.std = 1; }),
                                   with([](parameter_info& p) { p.valid_rows = 3; }),
                                   with([](parameter_info& p) { p.update = update_rule::balance; }),
                                   with([](parameter_info& p) { p.rate = 1e-3; })};
  for (const parameter_info& other : others) {
    BOOST_TEST(said(fault_of(one(normal), {}, {}, one(tied(other)))) ==
               "MEGA-C004 tied(wte.weight)");
    BOOST_TEST(said(fault_of(one(other), one(tied(normal)), {}, {})) ==
               "MEGA-C004 tied(wte.weight)");
  }
  BOOST_TEST(said(fault_of(one(normal), {}, {}, one(tied(normal), dtype::bf16))) ==
             "MEGA-C004 tied(wte.weight)");
  BOOST_TEST(said(fault_of(one(normal), {}, {}, one(tied(normal), dtype::f32, 8))) ==
             "MEGA-S003 tied(wte.weight)");
  // one name a layer is no parameter that another part could mean
  BOOST_TEST(said(fault_of({}, one(normal), {}, one(tied(normal)))) ==
             "MEGA-C008 tied(wte.weight)");
  BOOST_TEST(said(fault_of(one(tied(normal)), one(normal), {}, one(normal))) == " ");
}

// The numbers of the sentences are those of the arrays.
static_assert(max_entries == 160 && max_buckets == 24 && max_feed_inputs == 8);
BOOST_AUTO_TEST_CASE(what_there_is_too_much_of_is_named) {
  const parameter_info normal = normal_weights(0.02);
  const auto uses = [&](int n) {
    part stem, head;
    std::vector<std::string> names;
    for (int i = 0; i < n; ++i) names.push_back("t" + std::to_string(i));
    for (const std::string& name : names) {
      stem.push_back({name.c_str(), "weight", normal});
      head.push_back({name.c_str(), "weight", tied(normal)});
    }
    return said(fault_of(stem, {}, {}, head));
  };
  BOOST_TEST(uses(max_feed_inputs) == " ");
  BOOST_TEST(uses(max_feed_inputs + 1) == "MEGA-S004 tied(t8.weight): more than 8 tied uses");
  part rates;
  for (int i = 0; i <= max_buckets; ++i) {
    static const char* const names[] = {"0",  "1",  "2",  "3",  "4",  "5",  "6",  "7",  "8",
                                        "9",  "10", "11", "12", "13", "14", "15", "16", "17",
                                        "18", "19", "20", "21", "22", "23", "24"};
    parameter_info p = ones();
    p.update = update_rule::balance, p.rate = i;
    rates.push_back({"r", names[i], p});
  }
  BOOST_TEST(
      said(fault_of(rates, {}, {}, {})) ==
      "MEGA-S004 parameter(r.24): more than 24 ways of storing and updating parameters, under "
      "ZeRO those of each part");
  part many;
  std::vector<std::string> names;
  for (int i = 0; i < 41; ++i) names.push_back(std::to_string(i));
  for (const std::string& name : names) many.push_back({"r", name.c_str(), normal});
  part other = many;
  for (declared& d : other) d.scope = "other";
  BOOST_TEST(said(fault_of(many, many, many, other)) ==
             "MEGA-S004 parameter(other.37): more than 160 parameters in all parts");
}

BOOST_AUTO_TEST_CASE(every_parameter_has_a_place_and_a_gradient_of_its_own) {
  const parameter_info decayed = normal_weights(0.02), gain = ones();
  parameter_info frozen = decayed, balanced = gain;
  frozen.frozen = true;
  balanced.update = update_rule::balance, balanced.rate = 1e-3;
  const auto f32 = dtype::f32;
  const std::vector<part> parts{
      {{"wte", "weight", decayed, f32, 65}, {"wpe", "weight", frozen, f32, 1}, {"a", "gain", gain}},
      {{"up", "weight", decayed, f32, 64},
       {"up", "gain", gain, f32, 3},
       {"router", "bias", balanced},
       {"wte", "weight", tied(decayed), f32, 65}},
      {{"up", "weight", frozen, f32, 130},
       {"wte", "weight", tied(decayed), f32, 65},
       {"lm", "weight", tied(decayed), f32, 7}},
      {{"lm", "weight", decayed, f32, 7}, {"wte", "weight", tied(decayed), f32, 65}}};
  const registry r = registry_of(parts[0], parts[1], parts[2], parts[3]);
  BOOST_REQUIRE(said(r.wrong) == " ");
  std::vector<int> weights(static_cast<std::size_t>(r.total)),
      gradients(static_cast<std::size_t>(r.gradients));
  for (int i = 0; i < r.entry_count; ++i) {
    const registry::entry& e = r.entries[static_cast<unsigned>(i)];
    const auto part_index = static_cast<unsigned>(e.part);
    const declared& d = parts[part_index][static_cast<unsigned>(e.parameter)];
    if (!e.tied) {
      const registry::bucket& g = r.buckets[static_cast<unsigned>(e.bucket)];
      BOOST_TEST(g.frozen == d.info.frozen, d.scope);
      BOOST_TEST((g.frozen ||
                  (g.decay == d.info.decay && g.update == d.info.update && g.rate == d.info.rate)),
                 d.scope);
    }
    BOOST_TEST(e.count.n == d.rows);
    for (int l = 0; l < (e.tied ? 1 : layers[part_index]); ++l)
      for (std::int64_t k = 0; k < d.rows; ++k) {
        if (!e.tied)
          BOOST_TEST(++weights.at(static_cast<std::size_t>(e.offset + l * e.stride + k)) == 1);
        if (!d.info.frozen)
          BOOST_TEST(++gradients.at(static_cast<std::size_t>(e.gradient + l * e.stride + k)) == 1);
      }
  }
  for (int p = 0; p < 4; ++p) {
    const int declared = static_cast<int>(parts[static_cast<unsigned>(p)].size());
    for (int i = 0; i < declared; ++i)
      BOOST_TEST((r.find(p, i).part == p && r.find(p, i).parameter == i));
    for (const int none : {-1, declared}) BOOST_CHECK_THROW(r.find(p, none), std::out_of_range);
  }
  for (const int none : {-1, 4}) BOOST_CHECK_THROW(r.find(none, 0), std::out_of_range);
}

// Uses add to one gradient where no sum has to be taken apart.
BOOST_AUTO_TEST_CASE(tied_uses_collect_apart_where_they_must) {
  const part stem{{"wte", "weight", normal_weights(0.02)}, {"wpe", "weight", ones()}},
      head{{"wte", "weight", tied(normal_weights(0.02))}};
  const auto own = [&](numerics sums, layout over) { // gradients that tied uses have for themselves
    const registry r = registry_of(stem, {}, {}, head, sums, over);
    BOOST_REQUIRE(said(r.wrong) == " ");
    int ties = 0;
    for_each_tie(r, [&](const registry::entry& e, int) {
      ++ties;
      BOOST_TEST((e.tied && e.gradient >= r.total));
    });
    const registry::entry &use = r.find(3, 0), &declared = r.find(0, 0);
    BOOST_TEST(use.offset == declared.offset);
    BOOST_TEST((ties == 0) == (use.gradient == declared.gradient));
    BOOST_TEST(r.gradients == r.total + ties * aligned_elements(use.count.n));
    return ties;
  };
  BOOST_TEST(own(numerics::fast, {}) == 0);
  BOOST_TEST(own(numerics::batch_invariant, {}) == 1);
  BOOST_TEST(own(numerics::batch_invariant, {.pp = 2}) == 0); // each on its own stage
}

// The step's end adds the gradients of tied uses where the declaration's own collects, before the
// epilogue brings anything back to it.
BOOST_AUTO_TEST_CASE(no_part_computes_on_a_tied_parameter) {
  using use = var (*)(var w, var other);
  const auto said_of = [](use stem, use head, bool frozen = false) {
    std::array<graph, 2> graphs;
    for (const bool again : {false, true}) {
      builder b{mesh(layout{.tp = 2})};
      parameter_info info = normal_weights(0.02);
      info.tied = again, info.frozen = frozen;
      const extent rows{dim::rows, 4};
      const var w = b.parameter("wte", "weight", dtype::f32, {rows}, {}, info, 7);
      (again ? head : stem)(w, b.parameter(again ? "h" : "s", "w", dtype::f32, {rows}, {}, {}, 7));
      hoist(b.g);
      BOOST_TEST((b.g.wrong.code == fault::none));
      graphs[again] = b.g;
    }
    return said(fault_of_computed_ties(std::array<const graph*, 2>{&graphs[0], &graphs[1]}));
  };
  const use plain = [](var w, var) { return to(w, axis::tp, R); },
            turned = [](var w, var) { return gelu(w); },
            second = [](var w, var other) { return swiglu(other, w); },
            both = [](var w, var) { return gelu(w) + w; },
            behind = [](var w, var) { return gelu(to(w, axis::tp, R)); },
            apart = [](var w, var other) { return gelu(other), w; };
  for (const use allowed : {plain, apart}) BOOST_TEST(said_of(allowed, plain) == " ");
  for (const auto& [wrong, op] : {std::pair{turned, "gelu"}, std::pair{second, "swiglu"},
                                  std::pair{both, "gelu"}, std::pair{behind, "gelu"}}) {
    const std::string what = std::string("MEGA-C007 ") + op + "(wte.weight)";
    BOOST_TEST(said_of(wrong, plain) == what);
    BOOST_TEST(said_of(plain, wrong) == what);
    BOOST_TEST(said_of(wrong, wrong, true) == " ");
  }
}

BOOST_AUTO_TEST_CASE(a_parameter_has_the_element_type_of_the_run) {
  struct other_type : gpt {
    dtype type = dtype::f32;
    constexpr var final_norm(context& c, var x) const {
      c.b->parameter("gain", "weight", type, {hidden_extent()}, {}, ones()); // no op reads it
      return gpt::final_norm(c, x);
    }
  };
  other_type m;
  m.layers = 1, m.hidden = 16, m.heads = 4, m.ffn = 32, m.vocabulary = 64, m.positions = 32;
  setup s;
  s.batch = {1, 16};
  BOOST_TEST(said(forward_graph(m, s, part_kind::loss, 0).wrong) == " ");
  m.type = dtype::f64;
  BOOST_TEST(said(forward_graph(m, s, part_kind::loss, 0).wrong) ==
             "MEGA-S006 parameter(gain.weight)");
}
