// Generation with caches of keys and values. The logits of every token are, bit for bit, those of a
// forward pass over its whole text without a cache. They do not depend on the other texts of the
// batch, on the pieces in which a prompt is read, or on the number of threads. No code reads bytes
// that were never written, and a token allocates no memory.
#define BOOST_TEST_MODULE generation
#include <boost/test/unit_test.hpp>

#include <megacpp/cli/commands.hpp>
#include <megacpp/generate/generator.hpp>
#include <megacpp/graph/letters.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>

#include <atomic>
#include <cstdlib>
#include <map>

#include <kernels.hpp>

#if !defined(MEGACPP_SANITIZED)
namespace {
std::atomic<long> allocations{0};
}
extern "C" void* __libc_malloc(std::size_t);
extern "C" void* malloc(std::size_t n) {
  ++allocations;
  return __libc_malloc(n);
}
extern "C" void* __libc_memalign(std::size_t, std::size_t);
extern "C" void* aligned_alloc(std::size_t a, std::size_t n) {
  ++allocations;
  return __libc_memalign(a, n);
}
#endif

using namespace mc;

namespace {

std::int32_t largest_position = 0;
std::vector<int> layers_seen;

/// x, positions -> x. The kernel notes the largest position, and its layer.
constexpr void watched_rule(inference& c) {
  c.floats({0});
  c.declare(c.in(0));
  place_output(c, 0, algebra::product, {0});
}
constexpr void watched_adjoint(backward& d, const node& n) {
  if (const value_id dy = d.of(n.out[0]); dy >= 0) d.give(n.in[0], dy, n.line);
}
struct watched_in : input_names<watched_in> {
  static constexpr name<0> x{};
  static constexpr name<1, element::i32> positions{};
};
struct watched_out : output_names<watched_out> {
  static constexpr name<0> y{};
};
constexpr op_info watched{.name = "watched",
                          .rule = &watched_rule,
                          .adjoint = &watched_adjoint,
                          .operands = named<watched_in, watched_out>};

} // namespace

template <> struct mc::kernel_of<&watched> {
  template <class T, class Call> static void run(Call& c) {
    std::copy_n(c.in(watched_in::x), c.size(watched_in::x), c.out(watched_out::y));
    const std::int32_t* p = c.in(watched_in::positions);
    largest_position =
        std::max(largest_position, *std::max_element(p, p + c.size(watched_in::positions)));
    layers_seen.push_back(c.layer());
  }
};

namespace {

using ids = std::vector<std::int32_t>;

constexpr int vocabulary = 61;

constexpr gpt learned_positions(double dropout = 0) {
  return {.layers = 3,
          .hidden = 48,
          .heads = 3,
          .ffn = 80,
          .vocabulary = vocabulary,
          .positions = 90,
          .dropout = dropout};
}
constexpr qwen3 grouped(int kv_heads, int window) {
  return {.layers = 3,
          .hidden = 40,
          .heads = 6,
          .kv_heads = kv_heads,
          .head_dim = 18,
          .ffn = 56,
          .vocabulary = vocabulary,
          .positions = 90,
          .tied = false,
          .rope_scaling = window > 0 ? rope_stretch{rope_type::llama3, 8, 20, 0.5, 2}
                                     : rope_stretch{rope_type::yarn, 4, 20},
          .window = window};
}
/// A mixture in which layers 1 and 3 have experts and the others an MLP, with expert biases and a
/// capacity in training.
constexpr qwen3_moe experts() {
  qwen3_moe m;
  m.layers = 4, m.hidden = 40, m.heads = 4, m.kv_heads = 2, m.head_dim = 10, m.ffn = 56;
  m.expert_ffn = 24, m.experts = 6, m.experts_per_token = 2, m.sparse_step = 2;
  m.vocabulary = vocabulary, m.positions = 90, m.bias_rate = 1e-3, m.capacity = 1;
  return m;
}
/// A model in which every second layer sees a window only.
struct alternating : qwen3 {
  static constexpr int kinds = 2;
  constexpr int kind_of(int layer) const { return layer % 2; }
  constexpr var block(context& c, int kind, var x) const {
    qwen3 m = *this;
    m.window = kind == 1 ? 5 : 0;
    return m.block(c, 0, x);
  }
};

/// A model that has attention with parameters "TO_Q.weight", ... beside the residual stream.
struct attention_scopes {
  const char *norm, *q, *k, *v, *o;
};
constexpr var attended(context& c, const attention_scopes& names, var x, const gpt& m,
                       attention_options options = {}) {
  const attention_sizes s{
      {dim::heads, m.heads}, {dim::kv_heads, m.heads}, {dim::head_dim, m.head_dim()}};
  const var a = to(layer_norm(c, names.norm, x, true, m.eps), axis::tp, R);
  const var q = column_parallel(c, names.q, a, {s.heads, s.head_dim}, false, m.std);
  const var k = kv_projection(c, names.k, a, s, false, m.std);
  const var v = kv_projection(c, names.v, a, s, false, m.std);
  return x + row_parallel(c, names.o, context_parallel_attention(c, q, k, v, options), 2,
                          m.hidden_extent(), false, m.std);
}
/// A model whose stem and head have caches, too.
struct attention_at_both_ends : gpt {
  constexpr var stem(context& c, var tokens) const {
    return attended(c, {"in.n", "in.q", "in.k", "in.v", "in.o"}, gpt::stem(c, tokens), *this);
  }
  constexpr var final_norm(context& c, var x) const {
    return gpt::final_norm(c, attended(c, {"out.n", "out.q", "out.k", "out.v", "out.o"}, x, *this));
  }
};
/// A model whose head's table is computed from parameters.
struct factored_head : gpt {
  constexpr var head_table(context& c) const {
    const extent narrow{dim::ffn, 5}, rows = vocabulary_rows(c, vocabulary);
    const var a = weight(c, "a", "weight", {rows, narrow}, {}, normal_weights(std)),
              b = weight(c, "b", "weight", {hidden_extent(), narrow}, {}, normal_weights(std));
    return linear(a, b);
  }
};
/// A model with a dropout that does not ask whether it is trained.
struct dropped_always : gpt {
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, mc::dropout(x, to(c.token_keys, axis::tp, c.stream), 0.3, c.salt++));
  }
};

/// A program whose weights are far from their small initial values.
template <class Model> struct trained {
  interpreted_program<Model> program;
  stores weights;
  trained(const Model& m, dtype t)
      : program(m, {.batch = {2, 16}, .precision = t}, "generation"),
        weights(program.view(), false) {
    weights.initialise(5);
    for (std::int64_t i = 0; i < weights.total(); ++i)
      weights.set_weight(i, weights.weight(i) + 0.1 * std::sin(0.37 * static_cast<double>(i)));
  }
  const program_view& view() const { return program.view(); }
};

cpu row_by_row(int threads) { return cpu(product_type::widened, threads, product_rows::apart); }

ids prompt(int length, int salt) {
  ids t;
  for (int i = 0; i < length; ++i) t.push_back((i * i * 7 + i * salt + 3 * salt) % vocabulary);
  return t;
}
const std::vector<ids> prompts{prompt(13, 1), prompt(1, 2), prompt(29, 3), prompt(8, 4)};

std::vector<double> logits_of(const generator& g, int sequence) {
  std::vector<double> x;
  for (std::int32_t t = 0; t < vocabulary; ++t) x.push_back(g.logit(sequence, t));
  return x;
}
std::int32_t likeliest(const std::vector<double>& x) {
  return static_cast<std::int32_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

struct written {
  std::vector<ids> texts;
  std::vector<std::vector<std::vector<double>>> logits; ///< by text and step
  bool operator==(const written&) const = default;
};

/// Continues prompts by the likeliest tokens, text b by steps[b] of them.
written greedy(generator& g, std::vector<ids> texts, const std::vector<int>& steps) {
  written w;
  w.logits.resize(texts.size());
  std::vector<std::span<const std::int32_t>> more(texts.begin(), texts.end());
  const std::vector<ids> given = texts;
  for (std::size_t b = 0; b < texts.size(); ++b) more[b] = given[b];
  for (bool going = true; going;) {
    g.append(more);
    going = false;
    for (std::size_t b = 0; b < texts.size(); ++b) {
      more[b] = {};
      if (std::ssize(w.logits[b]) >= steps[b]) continue;
      w.logits[b].push_back(logits_of(g, static_cast<int>(b)));
      texts[b].push_back(likeliest(w.logits[b].back()));
      more[b] = std::span(texts[b]).last(1);
      going = true;
    }
  }
  w.texts = texts;
  return w;
}
template <class Model> written greedy(const trained<Model>& m, const std::vector<ids>& texts,
                                      const std::vector<int>& steps, generation_room room,
                                      int threads = 1) {
  cpu device = row_by_row(threads);
  room.sequences = static_cast<int>(texts.size());
  generator g(m.view(), device, m.weights, room);
  return greedy(g, texts, steps);
}

/// Computes next-token logits of one text by the model's graphs without any cache.
template <class Model> class whole_forward {
public:
  whole_forward(const trained<Model>& m, cpu& device) : m_(m), device_(device) {}

  std::vector<double> logits(const ids& t) {
    const program_view& p = m_.view();
    const auto n = static_cast<int>(t.size());
    const setup s = for_generation(p.numbers, 1, n, 0);
    ids positions, last{n - 1};
    for (int i = 0; i < n; ++i) positions.push_back(i);
    std::vector<double> in(static_cast<std::size_t>(n * p.hidden + p.vocabulary)), out(in.size());
    std::vector<int> seen(static_cast<std::size_t>(p.kinds()));
    for (int l = -1; l <= p.layers; ++l) {
      const bool block = l >= 0 && l < p.layers;
      const int kind = block ? p.kind_of[static_cast<std::size_t>(l)] : l < 0 ? -1 : p.kinds();
      const part_kind part = block ? part_kind::block : l < 0 ? part_kind::stem : part_kind::logits;
      const interpreted_part<cpu> node(
          in_regions(fused(p.generation.forward(p.model.at, s, part, kind))), kind + 1, kernels_);
      std::vector<prepared_node> slots(static_cast<std::size_t>(node.g.node_count));
      node.view().prepare(node.view(), device_, slots.data(), true);
      std::vector<double> working(static_cast<std::size_t>(node.plan.working / 8 + 1)),
          saved(static_cast<std::size_t>(node.plan.saved / 8 + 1)),
          mirrors(static_cast<std::size_t>(node.plan.mirrored / 8 + 1));
      frame f;
      const auto base = [&f](space at, void* where) {
        f.base[static_cast<unsigned>(at)] = static_cast<std::byte*>(where);
      };
      base(space::weights, m_.weights.weights()), base(space::working, working.data());
      base(space::saved, saved.data()), base(space::mirror, mirrors.data());
      base(space::stream_out, out.data());
      f.stores = p.stores, f.layer = l,
      f.index = block ? seen[static_cast<std::size_t>(kind)]++ : 0;
      lane& on = device_.main_lane();
      on.reserve({node.view().scratch_bytes(node.view(), device_, true),
                  device_.products().workspace_bytes()});
      mirror_event mirrored(device_.make_event());
      f.constants = &constants_, f.ranks = &ranks_, f.on = &on, f.mirrored = &mirrored;
      input_addresses inputs(node.g);
      inputs.set(feed::tokens, t.data()), inputs.set(feed::positions, positions.data());
      inputs.set(feed::order, positions.data()), inputs.set(feed::all_order, positions.data());
      inputs.set(feed::last, last.data()), inputs.set(feed::stream, in.data());
      inputs.set(feed::token_keys, positions.data());
      const std::int64_t number = 0;
      inputs.set(feed::seed, &number), inputs.set(feed::step, &number);
      f.input = inputs.data();
      node.view().run(node.view(), phase::forward, device_, f, slots.data());
      std::swap(in, out);
    }
    std::vector<double> x;
    for (int i = 0; i < vocabulary; ++i)
      x.push_back(stores::get(reinterpret_cast<const std::byte*>(in.data()),
                              p.numbers.precision.weight, i));
    return x;
  }

private:
  const trained<Model>& m_;
  cpu& device_;
  kernel_table<cpu> kernels_ = kernel_table<cpu>::all();
  run_constants constants_{.dropping = false};
  self ranks_{plane::ranks};
};

const std::vector<int> steps{40, 50, 31, 17};
constexpr generation_room room{.sequences = 1, .tokens = 64, .prompt = 29};

/// Compares texts and logits with the cache and without it, in one type, each text alone and all in
/// one batch, with prompts in one piece and in several.
template <class Model> void check(const Model& m, dtype t) {
  BOOST_TEST_CONTEXT(Model::family.text << " " << name_of(t)) {
    const trained<Model> model(m, t);
    const written together = greedy(model, prompts, steps, room);
    cpu device = row_by_row(1);
    whole_forward<Model> whole(model, device);
    for (std::size_t b = 0; b < prompts.size(); ++b) {
      ids so_far = prompts[b];
      int different = 0;
      for (const std::vector<double>& x : together.logits[b]) {
        const std::vector<double> want = whole.logits(so_far);
        different += x != want;
        so_far.push_back(likeliest(want));
      }
      BOOST_TEST(different == 0, "text " << b << ": " << different << " logits differ");
      BOOST_TEST(so_far == together.texts[b], boost::test_tools::per_element());

      const written alone = greedy(model, {prompts[b]}, {steps[b]}, room);
      BOOST_TEST((alone.logits[0] == together.logits[b]));
    }
    generation_room other = room;
    other.tokens = 90, other.prompt = 3;
    BOOST_TEST((greedy(model, prompts, steps, other) == together));
    BOOST_TEST((greedy(model, prompts, steps, room, 2) == together));
    other.prompt = 1; // decode alone
    BOOST_TEST((greedy(model, prompts, steps, other) == together));
  }
}
template <class Model> void check(const Model& m) {
  for (const dtype t : {dtype::f32, dtype::bf16, dtype::f64}) check(m, t);
}

} // namespace

// The law for each family.
BOOST_AUTO_TEST_CASE(gpt_with_learned_positions) { check(learned_positions()); }
BOOST_AUTO_TEST_CASE(gpt_without_its_dropout) { check(learned_positions(0.3), dtype::f32); }
BOOST_AUTO_TEST_CASE(qwen3_with_grouped_queries) { check(grouped(2, 0)); }
BOOST_AUTO_TEST_CASE(qwen3_with_one_kv_head_and_a_window) { check(grouped(1, 7)); }
BOOST_AUTO_TEST_CASE(qwen3_moe_with_experts_and_dense_layers) { check(experts()); }
BOOST_AUTO_TEST_CASE(attention_in_the_stem_and_in_the_head) {
  check(attention_at_both_ends{learned_positions()}, dtype::f32);
}
BOOST_AUTO_TEST_CASE(a_dropout_that_does_not_ask_for_training) {
  check(dropped_always{learned_positions()}, dtype::f32);
}
BOOST_AUTO_TEST_CASE(layers_of_two_kinds) { check(alternating{grouped(3, 0)}, dtype::f32); }

namespace {

/// The log-probabilities that generation gives the tokens of a text add up to the loss of the
/// training graphs, which have other attention, products and softmax.
template <class Model> void check_loss(const Model& m, dtype t, double tolerance) {
  BOOST_TEST_CONTEXT(Model::family.text << " " << name_of(t)) {
    const interpreted_program<Model> program(m, {.batch = {1, 48}, .precision = t}, "loss");
    cpu device(product_type::widened, 1);
    session run(program.view(), device, purpose::inference);
    run.weights().initialise(2);
    for (std::int64_t i = 0; i < run.weights().total(); ++i)
      run.weights().set_weight(
          i, run.weights().weight(i) + 0.1 * std::sin(0.37 * static_cast<double>(i)));
    const ids tokens = prompt(48, 5);
    ids labels(tokens.begin() + 1, tokens.end());
    labels.push_back(-100);
    const double loss = run.evaluate(batch_view{tokens.data(), labels.data()}).sum;

    generator g(program.view(), device, run.weights(), {1, 48, 1});
    double sum = 0;
    for (std::size_t at = 0; at + 1 < tokens.size(); ++at) {
      const std::span<const std::int32_t> next = std::span(tokens).subspan(at, 1);
      g.append(std::span(&next, 1));
      const std::vector<double> x = logits_of(g, 0);
      double normaliser = 0;
      for (const double l : x) normaliser += std::exp(l);
      sum += std::log(normaliser) - x[static_cast<std::size_t>(labels[at])];
    }
    BOOST_TEST(std::abs(sum - loss) <= tolerance * loss, sum << " and " << loss);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(log_probabilities_add_up_to_the_loss_of_training) {
  check_loss(learned_positions(), dtype::f64, 1e-12);
  check_loss(learned_positions(), dtype::f32, 1e-5);
  check_loss(grouped(2, 7), dtype::f64, 1e-12);
  check_loss(grouped(2, 7), dtype::f32, 1e-5);
  check_loss(factored_head{learned_positions()}, dtype::f64, 1e-12);
}

namespace {

/// With products whose rows are computed together, as in training, the logits agree within
/// rounding.
template <class Model> void check_rounding(const Model& m, dtype t, double tolerance) {
  const trained<Model> model(m, t);
  cpu fast(product_type::widened, 1), exact = row_by_row(1);
  generator g(model.view(), fast, model.weights, {.sequences = 4, .tokens = 80, .prompt = 29});
  const written w = greedy(g, prompts, steps);
  whole_forward<Model> whole(model, exact);
  double error = 0, largest = 0;
  for (std::size_t b = 0; b < prompts.size(); ++b) {
    ids so_far = prompts[b];
    for (std::size_t i = 0; i < w.logits[b].size(); ++i) {
      const std::vector<double> want = whole.logits(so_far);
      for (std::size_t k = 0; k < want.size(); ++k) {
        error = std::max(error, std::abs(want[k] - w.logits[b][i][k]));
        largest = std::max(largest, std::abs(want[k]));
      }
      so_far.push_back(w.texts[b][so_far.size()]);
    }
  }
  BOOST_TEST_MESSAGE(Model::family.text << " " << name_of(t) << ": " << error / largest);
  BOOST_TEST(error <= tolerance * largest);
}

} // namespace

BOOST_AUTO_TEST_CASE(any_products_give_the_logits_within_rounding) {
  check_rounding(learned_positions(), dtype::f32, 1e-5);
  check_rounding(learned_positions(), dtype::f64, 1e-12);
  check_rounding(grouped(2, 7), dtype::f32, 1e-5);
  check_rounding(grouped(2, 7), dtype::f64, 1e-12);
}

namespace {
struct compiled_run {
  static constexpr qwen3 model = grouped(2, 7);
  static constexpr mc::layout layout{};
  static constexpr batching batch{.micro = 2, .sequence = 16};
  using precision = bf16_mixed;
};
} // namespace

BOOST_AUTO_TEST_CASE(a_compiled_program_writes_what_an_interpreted_one_writes) {
  const trained<qwen3> model(compiled_run::model, dtype::bf16);
  const program_view compiled = compiled_program<compiled_run>("compiled");
  cpu device = row_by_row(1);
  generation_room r = room;
  r.sequences = 4;
  generator g(compiled, device, model.weights, r);
  BOOST_TEST((greedy(g, prompts, steps) == greedy(model, prompts, steps, room)));
}

BOOST_AUTO_TEST_CASE(what_nobody_wrote_is_not_read) {
  for (const dtype t : {dtype::f32, dtype::bf16}) {
    const trained<qwen3> model(grouped(2, 7), t);
    const written clean = greedy(model, prompts, steps, room);
    cpu device = row_by_row(1);
    generation_room r = room;
    r.sequences = 4;
    generator g(model.view(), device, model.weights, r);
    g.memory().poison(); // on one rank nothing is derived from the parameters
    BOOST_TEST((greedy(g, prompts, steps) == clean));
    // Every slot of a text is written, and none beyond its end.
    const std::span<const std::byte> caches = g.caches();
    const std::int64_t slot = 2 * 18 * size_of(t), count = 2 * grouped(2, 7).layers;
    const std::int64_t each = std::ssize(caches) / count;
    for (std::int64_t i = 0; i < count; ++i)
      for (std::int64_t b = 0; b < 4; ++b)
        for (std::int64_t k = 0; k < r.tokens; ++k) {
          const auto at = caches.begin() + i * each + (b * r.tokens + k) * slot;
          const auto poisoned = std::count(at, at + slot, std::byte{0xff});
          BOOST_TEST((k < g.length(static_cast<int>(b)) ? poisoned < slot / 2 : poisoned == slot));
        }
    // Other texts in the same room see nothing of the earlier ones.
    for (int b = 0; b < 4; ++b) g.clear(b);
    std::vector<ids> turned(prompts.rbegin(), prompts.rend());
    const written again = greedy(g, turned, {17, 31, 50, 40});
    for (std::size_t b = 0; b < 4; ++b) BOOST_TEST(again.texts[b] == clean.texts[3 - b]);
  }
}

// The head's table is derived from the parameters once, for the weights as they are.
BOOST_AUTO_TEST_CASE(a_renewed_generator_is_as_one_made_anew) {
  trained<factored_head> model(factored_head{learned_positions()}, dtype::f32);
  cpu device = row_by_row(1);
  generation_room r = room;
  r.sequences = 4;
  generator g(model.view(), device, model.weights, r);
  const written before = greedy(g, prompts, steps);
  for (std::int64_t i = 0; i < model.weights.total(); ++i)
    model.weights.set_weight(
        i, model.weights.weight(i) + 0.1 * std::cos(0.53 * static_cast<double>(i)));
  g.renew();
  const written after = greedy(g, prompts, steps);
  BOOST_TEST((after == greedy(model, prompts, steps, room)));
  BOOST_TEST((after != before));
}

BOOST_AUTO_TEST_CASE(a_sequence_goes_on_after_others_have_finished_and_begun_again) {
  const trained<gpt> model(learned_positions(), dtype::f32);
  cpu device = row_by_row(1);
  generator g(model.view(), device, model.weights, {.sequences = 2, .tokens = 64, .prompt = 13});
  const written alone = greedy(model, {prompts[0]}, {40}, room);
  std::vector<std::span<const std::int32_t>> more{prompts[0], prompts[3]};
  g.append(more);
  for (int i = 0; i < 40; ++i) {
    BOOST_TEST((logits_of(g, 0) == alone.logits[0][static_cast<std::size_t>(i)]));
    more[0] = std::span(alone.texts[0]).subspan(prompts[0].size() + static_cast<std::size_t>(i), 1);
    more[1] = {};
    if (i % 7 == 3) g.clear(1), more[1] = prompts[1 + static_cast<std::size_t>(i / 7 % 3)];
    g.append(more);
  }
}

BOOST_AUTO_TEST_CASE(what_cannot_be_appended_is_refused) {
  const trained<gpt> model(learned_positions(), dtype::f32);
  cpu device = row_by_row(1);
  generator g(model.view(), device, model.weights, {.sequences = 1, .tokens = 10, .prompt = 4});
  const auto refused = [&](const ids& t, const std::string& says) {
    const std::span<const std::int32_t> one = t;
    BOOST_CHECK_EXCEPTION(g.append(std::span(&one, 1)), error, [&](const error& e) {
      return e.code() == exit_code::usage && std::string(e.what()).find(says) != std::string::npos;
    });
  };
  refused({3, vocabulary}, "token 61 of sequence 0 is outside the vocabulary of 61");
  refused({-1}, "token -1");
  refused(ids(11, 1), "would have 11 tokens, and there is room for 10");
  BOOST_TEST(g.length(0) == 0);
  const ids whole(10, 1);
  const std::span<const std::int32_t> one = whole;
  g.append(std::span(&one, 1));
  BOOST_TEST(g.length(0) == 10);
  refused({1}, "would have 11 tokens");
  using mc::generator;
  BOOST_CHECK_THROW(generator(model.view(), device, model.weights, {1, 91, 1}), error);
}

namespace {

template <class F> struct with_block : gpt {
  F f;
  explicit with_block(F g) : gpt(learned_positions()), f(g) {}
  constexpr var block(context& c, int kind, var x) const { return f(c, *this, kind, x); }
};
/// Checks the sentence about a model that trains and does not generate.
template <class F> void refused(F f, const std::string& says) {
  const trained<with_block<F>> model(with_block<F>(f), dtype::f32);
  const fault_record wrong = fault_of_generation(model.view());
  BOOST_TEST((wrong.code == fault::C006));
  const std::string what = wrong.what.c_str();
  BOOST_TEST(what.find(says) != std::string::npos, what);
  BOOST_TEST(
      (what.starts_with("input") || wrong.line.file_name() == std::string("generation.cpp")));
  cpu device = row_by_row(1);
  const auto same = [&](const error& e) {
    return e.code() == exit_code::mismatch && e.what() == sentence_about(wrong);
  };
  using mc::generator;
  BOOST_CHECK_EXCEPTION(generator(model.view(), device, model.weights, room), error, same);
  // A training run prints the sentence, and refuses to write sample texts.
  options o;
  const auto in_short = [&](const error& e) {
    return e.code() == exit_code::mismatch && e.what() == why_no_generation(model.view());
  };
  mc::detail::check_runnable(model.view(), command::train, o);
  o.training.sample_interval.read("1", "--sample-interval");
  BOOST_CHECK_EXCEPTION(mc::detail::check_runnable(model.view(), command::train, o), error,
                        in_short);
  const std::string text = describe_text(model.view(), device);
  BOOST_TEST(text.find("  generates             no; generation cannot generate: MEGA-C006") !=
             std::string::npos);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_model_that_cannot_generate_is_told_why) {
  constexpr attention_scopes names{"n", "q", "k", "v", "o"};
  refused(
      [=](context& c, const gpt& m, int, var x) {
        attention_options both_ways;
        both_ways.causal = false;
        return attended(c, names, x, m, both_ways);
      },
      ": it sees later tokens, which nobody has yet");
  refused(
      [=](context& c, const gpt& m, int, var x) {
        const attention_sizes s{
            {dim::heads, m.heads}, {dim::kv_heads, m.heads}, {dim::head_dim, m.head_dim()}};
        const var a = to(x, axis::tp, R);
        const var q = column_parallel(c, "q", a, {s.heads, s.head_dim}, false, m.std);
        const var k = to(kv_projection(c, "k", a, s, false, m.std), axis::cp, R);
        const var o = mc::attention(q, k, k, {}, {.causal = false});
        return x + row_parallel(c, "o", o, 2, m.hidden_extent(), false, m.std);
      },
      ": it sees the new tokens alone, and context_parallel_attention earlier ones too");
  refused(
      [=](context& c, const gpt& m, int, var x) {
        const attention_sizes s{
            {dim::heads, m.heads}, {dim::heads, m.heads}, {dim::head_dim, m.head_dim()}};
        const var a =
            column_parallel(c, "q", to(x, axis::tp, R), {s.heads, s.head_dim}, false, m.std);
        var o = a;
        for (int i = 0; i < 9; ++i) o = context_parallel_attention(c, o, a, a, {});
        return x + row_parallel(c, "o", o, 2, m.hidden_extent(), false, m.std);
      },
      ": a part has caches for eight of them");
  refused(
      [](context& c, const gpt& m, int kind, var x) {
        const value& like = c.positions.type();
        if (c.generating)
          c.b->input(feed::labels, "next", dtype::i32, {like.dims[0], like.dims[1]}, like.at);
        return m.gpt::block(c, kind, x);
      },
      "input(next): there is none in generation");
  for (const bool longer : {false, true}) // with its fault in all graphs, or only in decode
    refused(
        [=](context& c, const gpt& m, int kind, var x) {
          const extent B = x.type().dims[0], Sq = x.type().dims[1];
          if (c.room > 0)
            c.b->input(
                feed::key_cache, "kept", c.precision.activation,
                {B, {dim::sequence, longer ? 100 - Sq.n : c.room + Sq.n}, {dim::elements, 3}}, {},
                0, c.caches++);
          return m.gpt::block(c, kind, x);
        },
        "input(kept): a cache is the same for any number of new tokens");
  refused(
      [](context& c, const gpt& m, int kind, var x) {
        const var y = m.gpt::block(c, kind, x);
        return !c.generating ? y : layer_norm(c, "late", y, false, m.eps);
      },
      "parameter(late.weight): training has none of this name and these dims");
  refused(
      [](context& c, const gpt& m, int kind, var x) {
        const extent n{dim::elements, !c.generating ? 40 : 80};
        const var w = weight(c, "e", "weight", {n, m.hidden_extent()}, {}, normal_weights(m.std));
        return m.gpt::block(c, kind, x + embedding(c.positions, to(w, axis::tp, R)));
      },
      "parameter(e.weight): training has none of this name and these dims");
}

namespace {
struct watching : gpt {
  constexpr var block(context& c, int kind, var x) const {
    return gpt::block(c, kind, {c.b, c.b->emit(watched, {x.id, c.positions.id}, 0)});
  }
};
} // namespace

// Padding has positions, too, which parts may take for numbers of a table's rows.
BOOST_AUTO_TEST_CASE(every_position_is_below_the_room) {
  const watching m{learned_positions()};
  kernel_table<cpu> kernels = kernel_table<cpu>::all();
  kernels.add<&watched, float, bf16, double>();
  const interpreted_program<watching> program(m, {.batch = {2, 16}}, "watched", kernels);
  stores weights(program.view(), false);
  weights.initialise(5);
  cpu device = row_by_row(1);
  generator g(program.view(), device, weights, {.sequences = 2, .tokens = 16, .prompt = 12});
  const ids text = prompt(16, 1);
  const auto append = [&](std::size_t one, std::size_t other) {
    g.append(std::array{std::span(text).first(one), std::span(text).first(other)});
  };
  append(12, 2), append(4, 12);
  BOOST_TEST(largest_position == 15);
  const std::vector<int> once{0, 1, 2};
  BOOST_TEST((layers_seen.size() > 3 && layers_seen.size() % 3 == 0));
  for (std::size_t i = 0; i < layers_seen.size(); i += 3)
    BOOST_TEST(std::equal(once.begin(), once.end(), layers_seen.begin() + static_cast<long>(i)));
}

namespace {
/// A model whose first two parameters exist in training only.
struct with_layers_of_training : gpt {
  constexpr var block(context& c, int kind, var x) const {
    if (!c.generating)
      x = linear(x, weight(c, "a", "weight", {{dim::ffn, hidden}, hidden_extent()}, {}, zeros())),
      x = linear(x, weight(c, "b", "weight", {hidden_extent(), {dim::ffn, hidden}}, {}, zeros()));
    return gpt::block(c, kind, x);
  }
};
} // namespace

// Parameters of generation are found by name, whatever others training has before them.
BOOST_AUTO_TEST_CASE(parameters_of_training_alone_move_no_others) {
  const trained<gpt> plain(learned_positions(), dtype::f32);
  const with_layers_of_training m{learned_positions()};
  const interpreted_program<with_layers_of_training> program(m, {.batch = {2, 16}}, "more");
  stores weights(program.view(), false);
  std::map<std::string, double> by_name; // elements of a parameter, in order
  for_each_parameter(plain.view(), [&](const parameter_ref& r) {
    for (std::int64_t i = 0; i < r.count.n; ++i)
      by_name[r.name + "/" + std::to_string(i)] = plain.weights.weight(r.offset + i);
  });
  for_each_parameter(program.view(), [&](const parameter_ref& r) {
    for (std::int64_t i = 0; i < r.count.n; ++i)
      if (const auto e = by_name.find(r.name + "/" + std::to_string(i)); e != by_name.end())
        weights.set_weight(r.offset + i, e->second);
  });
  cpu device = row_by_row(1);
  generator g(plain.view(), device, plain.weights, {.sequences = 1, .tokens = 16, .prompt = 12});
  generator h(program.view(), device, weights, {.sequences = 1, .tokens = 16, .prompt = 12});
  const ids text = prompt(9, 1);
  for (generator* one : {&g, &h}) one->append(std::array{std::span<const std::int32_t>(text)});
  BOOST_TEST(logits_of(g, 0) == logits_of(h, 0), boost::test_tools::per_element());
}

#if !defined(MEGACPP_SANITIZED)
namespace {
template <class Model> void no_allocation_for_a_token(const Model& m, dtype t) {
  const trained<Model> model(m, t);
  cpu device = row_by_row(2);
  generator g(model.view(), device, model.weights, {.sequences = 4, .tokens = 64, .prompt = 29});
  std::vector<std::span<const std::int32_t>> more(prompts.begin(), prompts.end());
  g.append(more);
  for (auto& one : more) one = std::span(prompts[0]).first(1);
  g.append(more);
  const auto of_tokens = [&](int tokens) {
    const long before = allocations;
    for (int i = 0; i < tokens; ++i) g.append(more);
    return allocations - before;
  };
  BOOST_TEST(of_tokens(20) == 0);
}
} // namespace

BOOST_AUTO_TEST_CASE(nothing_is_allocated_for_a_token) {
  for (const dtype t : {dtype::f32, dtype::bf16, dtype::f64}) {
    no_allocation_for_a_token(grouped(2, 0), t);
    no_allocation_for_a_token(learned_positions(), t);
    no_allocation_for_a_token(experts(), t);
  }
}
#endif
