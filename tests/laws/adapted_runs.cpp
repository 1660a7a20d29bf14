// Runs of adapted models: ranks train factors as one rank does; what is computed again, and what is
// saved under one layout and loaded under another, has the same bits; and the work and the
// collectives of a step are those of the frozen model and, by closed forms, of the factors.
#define BOOST_TEST_MODULE adapted_runs
#include <boost/test/unit_test.hpp>

#include <megacpp/hf/adapter.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/states/start.hpp>

#include <filesystem>
#include <iostream>

#include <scratch.hpp>

#include "outcome.hpp"

using namespace mc;
using test::close_to;
using test::outcome;
using test::outcome_of;

namespace {

constexpr gpt of_gpt{
    .layers = 2, .hidden = 32, .heads = 4, .ffn = 64, .vocabulary = 64, .positions = 32};
constexpr qwen3 of_qwen3 = [] {
  qwen3 m;
  m.layers = 2, m.hidden = 32, m.heads = 16, m.kv_heads = 2, m.head_dim = 8, m.ffn = 128;
  m.vocabulary = 64, m.positions = 32;
  return m;
}();
constexpr qwen3_moe of_moe = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 32, m.heads = 16, m.kv_heads = 2, m.head_dim = 8, m.expert_ffn = 128;
  m.experts = 4, m.experts_per_token = 2, m.vocabulary = 64, m.positions = 32;
  return m;
}();
constexpr lora every_layer{.rank = 4, .alpha = 6};
constexpr lora of_nf4{.rank = 4, .alpha = 6, .rslora = true, .base = base_storage::nf4};

setup setup_of(const layout& l, dtype t, const lora& adapter) {
  return {.ranks = l, .batch = {2, 32}, .precision = t, .adapter = adapter};
}

struct tried {
  layout l;
  int dp = 1;
};
const std::vector<tried> dense{{{.tp = 2}},
                               {{.tp = 2, .sequence_parallel = true, .zero = 1}, 2},
                               {{.pp = 2}},
                               {{.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true}},
                               {{.cp = 2, .zero = 1}, 2}};
const std::vector<tried> of_experts{{{.tp = 2, .ep = 2, .sequence_parallel = true}},
                                    {{.cp = 2, .ep = 2, .zero = 1}, 2},
                                    {{.tp = 2, .ep = 1, .etp = 2}},
                                    {{.tp = 2, .pp = 2, .ep = 2, .etp = 2}, 2}};

template <class Model> void equals_one_rank(const Model& m, const lora& adapter,
                                            const std::vector<tried>& layouts, const char* name) {
  const outcome want = outcome_of(m, setup_of({}, dtype::f64, adapter), 1, 2);
  for (const auto& [l, dp] : layouts)
    close_to(outcome_of(m, setup_of(l, dtype::f64, adapter), dp, 2), want, 1e-9,
             std::string(name) + ", " + detail::layout_text(l));
}

template <class Model> void recomputes_the_same_bits(const Model& m, const lora& adapter) {
  setup s = setup_of({}, dtype::f32, adapter);
  const outcome kept = outcome_of(m, s, 1, 2);
  for (const recompute again : {recompute::selective, recompute::full}) {
    s.recompute_policy = again;
    const outcome got = outcome_of(m, s, 1, 2);
    BOOST_TEST((got.numbers == kept.numbers), name_of(again));
    BOOST_TEST((got.weights == kept.weights), name_of(again));
  }
}

/// Takes steps on every rank from what `before` puts into its stores, and writes a state.
template <class Model, class Before>
std::vector<double> steps(const Model& m, const lora& adapter, const tried& t, int first, int count,
                          const std::string& folder, Before before) {
  const setup s = setup_of(t.l, dtype::f32, adapter);
  const interpreted_program<Model> p(m, s, "adapted");
  std::vector<std::vector<double>> told(static_cast<std::size_t>(ranks_of(mesh_of(t.l, t.dp))));
  thread_ranks(mesh_of(t.l, t.dp), std::chrono::seconds(60)).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(p.view(), device, purpose::training, *others);
    run.numbers().learning_rate = 1e-2, run.numbers().weight_decay = 0.1;
    run.weights().initialise(1);
    before(run.weights(), p.view());
    run.numbers().step = first;
    std::vector<batch_view> mine;
    const int each = 2 / t.dp, replica = c.coordinate()[static_cast<unsigned>(axis::dp)];
    std::vector<test::batches> data;
    for (int k = 0; k < each; ++k) data.emplace_back(s, replica * each + k);
    for (int k = 0; k < each; ++k)
      mine.push_back(data[static_cast<std::size_t>(k)].view(replica * each + k));
    for (int i = 0; i < count; ++i) {
      const step_result r = run.step(mine);
      for (const double x : {r.loss.mean(), r.norm})
        told[static_cast<std::size_t>(c.rank())].push_back(x);
    }
    folder_writer out =
        c.rank() == 0 ? folder_writer(folder, state_kind) : folder_writer::of_another_rank();
    write_state(out, p.view(), run.weights(), {first + count, 4 * (first + count)},
                nlohmann::json::object(), {}, hf_shard_limit, c);
    out.commit();
  });
  return told[0];
}
const auto initial = [](stores&, const program_view&) {};
/// Returns a function that takes the factors and moments of a state.
auto of_state(const std::string& folder) {
  return [folder](stores& s, const program_view& p) {
    const model_folder in(folder);
    const state_file file(in);
    load_adapter(in, p, s);
    load_moments(in, file.state(), p, s);
  };
}
std::map<std::string, std::string> tensors_in(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".safetensors")
      files[entry.path().filename().string()] = test::read_text(entry.path().string());
  return files;
}

template <class Model>
void resumes(const Model& m, const lora& adapter, const std::vector<tried>& layouts) {
  const test::scratch_folder dir;
  const std::string begun = dir / "begun";
  steps(m, adapter, {}, 0, 3, begun, initial);
  const auto saved = tensors_in(begun);
  BOOST_TEST(saved.size() == 2u);
  int number = 0;
  for (const tried& t : layouts) {
    const std::string at = dir / std::to_string(++number);
    // Loaded and saved under another layout, it has the same bytes.
    steps(m, adapter, t, 3, 0, at + "same", of_state(begun));
    BOOST_TEST((tensors_in(at + "same") == saved), detail::layout_text(t.l));
    // A run that stops and goes on under a layout has the bits of one that did not stop.
    std::vector<double> whole = steps(m, adapter, t, 0, 5, at + "whole", initial);
    std::vector<double> parts = steps(m, adapter, t, 0, 3, at + "part", initial);
    for (const double x : steps(m, adapter, t, 3, 2, at + "rest", of_state(at + "part")))
      parts.push_back(x);
    BOOST_TEST((parts == whole), detail::layout_text(t.l));
    BOOST_TEST((tensors_in(at + "rest") == tensors_in(at + "whole")), detail::layout_text(t.l));
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(ranks_train_factors_as_one_rank_does) {
  equals_one_rank(of_gpt, every_layer, dense, "gpt");
  equals_one_rank(of_qwen3, every_layer, dense, "qwen3");
  equals_one_rank(of_qwen3, of_nf4, dense, "qwen3 in NF4");
  equals_one_rank(of_moe, every_layer, of_experts, "experts");
  equals_one_rank(of_moe, of_nf4, of_experts, "experts in NF4");
}

BOOST_AUTO_TEST_CASE(what_is_computed_again_has_the_same_bits) {
  recomputes_the_same_bits(of_gpt, every_layer), recomputes_the_same_bits(of_qwen3, every_layer);
  recomputes_the_same_bits(of_qwen3, of_nf4), recomputes_the_same_bits(of_moe, every_layer);
  recomputes_the_same_bits(of_moe, of_nf4);
}

BOOST_AUTO_TEST_CASE(states_go_on_under_any_layout) {
  resumes(of_gpt, every_layer, {dense[1], dense[2]});
  resumes(of_qwen3, of_nf4, {dense[1], dense[3]});
  resumes(of_moe, every_layer, {of_experts[1], of_experts[3]});
}

namespace {

/// The same model without factors: its blocks are frozen, and its table is trained, so that the
/// stream's gradient goes through all blocks.
constexpr frozen all_but_the_table{"blocks", "head"};

template <class Model> struct both {
  interpreted_program<Model> adapted, without;
  explicit both(const Model& m, const layout& l, const lora& adapter)
      : adapted(m, setup_of(l, dtype::f32, adapter), "adapted"), without(m, frozen_setup(l), "w") {}
  static setup frozen_setup(const layout& l) {
    setup s = setup_of(l, dtype::f32, {});
    s.frozen = all_but_the_table;
    return s;
  }
};

/// Returns in + out of every factor pair of a block, with an A that layers share once for each.
std::int64_t widths_of_factors(const graph& g) {
  std::int64_t sum = 0;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    if (p.added) sum += global_size(g.at(p.v)).n / every_layer.rank;
  }
  return sum;
}

int count_of(const graph& g, std::initializer_list<const op_info*> ops) {
  int n = 0;
  for (int i = 0; i < g.node_count; ++i)
    n += static_cast<int>(std::ranges::count(ops, g.at_node(i).op));
  return n;
}

template <class Model> void check_structure(const Model& m, const lora& adapter, const char* name) {
  const interpreted_program<Model> p(m, setup_of({}, dtype::f32, adapter), "adapted");
  const graph& block = *p.view().block(0).g;
  int factors = 0;
  for (int i = 0; i < block.parameter_count; ++i) {
    const parameter_info& info = block.parameters[static_cast<unsigned>(i)];
    BOOST_TEST((info.gradient >= 0) == info.added, name << ": " << block.at(info.v).name);
    factors += info.added;
  }
  BOOST_TEST(count_of(block, {&op::linear_weight_grad, &op::grouped_weight_grad}) == factors, name);
  BOOST_TEST(count_of(block, {&op::rms_norm_gain_grad, &op::layer_norm_gain_grad, &op::bias_grad,
                              &op::embedding_grad}) == 0,
             name);
  // Nothing differentiates the stem, and the head has no weight's gradient.
  const graph &stem = *p.view().part(0).g, &head = *p.view().part(p.view().kinds() + 1).g;
  for (int i = 0; i < stem.node_count; ++i)
    BOOST_TEST(!backward_pass.holds(stem.at_node(i).when),
               name << ": " << stem.at_node(i).op->name);
  for (const graph* g : {&stem, &head})
    for (int i = 0; i < g->parameter_count; ++i)
      BOOST_TEST(g->parameters[static_cast<unsigned>(i)].gradient < 0, name);
}

} // namespace

BOOST_AUTO_TEST_CASE(frozen_weights_have_no_gradients) {
  check_structure(of_gpt, every_layer, "gpt"), check_structure(of_qwen3, every_layer, "qwen3");
  check_structure(of_qwen3, of_nf4, "qwen3 in NF4"), check_structure(of_moe, of_nf4, "experts");
}

namespace {
/// Returns the operations of these ops in a part for one micro-batch.
std::int64_t flops_of(const graph& g, std::initializer_list<const op_info*> ops) {
  std::int64_t n = 0;
  for (int i = 0; i < g.node_count; ++i)
    if (std::ranges::count(ops, g.at_node(i).op) > 0) n += node_work(g, g.at_node(i)).flops;
  return n;
}
} // namespace

// Of T tokens a layer takes 2 T in out operations forward, and as many for its input's gradient. Its
// factors take 2 T r (in + out) forward, as many for their inputs' gradients, and as many for their
// own. `below` is what a block's first layers take for the gradient of the stream: the first block
// leaves it out, since nothing below is trained.
BOOST_AUTO_TEST_CASE(work_of_factors) {
  const auto check = [](const auto& m, std::int64_t weights, std::int64_t widths,
                        std::int64_t below, std::int64_t heads) {
    const both b(m, {}, every_layer);
    const program_view &with = b.adapted.view(), &without = b.without.view();
    const std::int64_t T = 64, r = every_layer.rank, of_factors = 2 * T * r * widths;
    const graph& g = *with.block(0).g;
    BOOST_TEST(widths_of_factors(g) == widths);
    BOOST_TEST(flops_of(g, {&op::linear, &op::linear_gelu, &op::linear_gelu_kept}) ==
               2 * T * weights + of_factors);
    BOOST_TEST(flops_of(g, {&op::linear_input_grad, &op::linear_input_grad_add,
                            &op::linear_input_grad_gelu}) == 2 * T * weights + of_factors);
    BOOST_TEST(flops_of(g, {&op::linear_weight_grad}) == of_factors);
    const step_work all = work_of_step(with, 1), frozen = work_of_step(without, 1);
    // The loss computes the gradient of the table, which only the other model trains.
    const std::int64_t table = 2 * T * m.vocabulary * m.hidden;
    BOOST_TEST(all.forward.flops - frozen.forward.flops == m.layers * of_factors - table);
    BOOST_TEST(all.backward.flops - frozen.backward.flops ==
               m.layers * 2 * of_factors - 2 * T * below);
    // The backward pass of attention computes 2 D operations a score again, of half of S^2 scores.
    const std::int64_t again = m.layers * heads * T * 33;
    BOOST_TEST(model_flops(with, 1, 0) == all.forward.flops + all.backward.flops - again);
  };
  const std::int64_t h = 32, f = 64, q = 128, kv = 16, wide = 128, r = every_layer.rank;
  check(of_gpt, 4 * h * h + 2 * h * f, (h + 3 * h) + (h + h) + (h + f) + (f + h), 3 * h * h + r * h,
        h);
  check(of_qwen3, 2 * h * q + 2 * h * kv + 3 * h * wide,
        (h + q) + 2 * (h + kv) + (q + h) + 2 * (h + wide) + (wide + h),
        h * (q + 2 * kv) + 3 * r * h, q);
}

namespace {

template <class Model> void ends_at_the_lowest(const Model& m, const lora& adapter, int lowest) {
  const auto backward = [&](const lora& of) {
    const interpreted_program<Model> p(m, setup_of({}, dtype::f32, of), "adapted");
    return work_of_step(p.view(), 1).backward.flops;
  };
  const interpreted_program<Model> every(m, setup_of({}, dtype::f32, every_layer), "adapted");
  BOOST_TEST(backward(every_layer) - backward(adapter) ==
             lowest * work_of(*every.view().block(0).g, backward_pass).flops);
  for (const tried& t : std::vector<tried>{{{}}, {{.pp = 2}}, {{.pp = 2, .virtual_stages = 2}}}) {
    const interpreted_program<Model> p(m, setup_of(t.l, dtype::f32, adapter), "adapted");
    int sent = 0;
    for (int stage = 0; stage < t.l.pp; ++stage) {
      const stage_shape s = stage_of(p.view(), stage);
      for (const task& x : training_step(s.training, 4)) {
        sent += x.what == action::send && is_backward(x.when);
        if (x.what != action::run || !is_backward(x.when)) continue;
        const int layer = s.uses[x.use].layer;
        BOOST_TEST(layer >= lowest, detail::layout_text(t.l));
        BOOST_TEST((x.when == lowest_backward_pass) == (layer == lowest), layer);
      }
    }
    const int stages = t.l.pp * t.l.virtual_stages;
    BOOST_TEST(sent == 4 * (stages - 1 - lowest * stages / m.layers), detail::layout_text(t.l));
  }
}

} // namespace

// The backward pass ends at the lowest block that has factors: no task, no exchange and no operation
// is below it.
BOOST_AUTO_TEST_CASE(nothing_runs_below_the_lowest_factors) {
  gpt deep = of_gpt;
  deep.layers = 4;
  for (const int lowest : {1, 2, 3}) {
    lora above = every_layer;
    above.layers = lowest == 1 ? layer_set{1, 3} : lowest == 2 ? layer_set{2, 3} : layer_set{3};
    if (lowest > 1) ends_at_the_lowest(deep, above, lowest);
    equals_one_rank(deep, above, {{{.pp = 2}}, {{.pp = 4}, 2}, {{.pp = 2, .virtual_stages = 2}}},
                    "gpt with factors above");
  }
}

namespace {

/// The bytes that a rank sends in a step, by kind, axes and phase, for one part of a program.
std::map<std::string, std::int64_t> sent_in(const program_view& p, const mesh& ranks,
                                            const char* part) {
  std::map<std::string, std::int64_t> sent;
  for (const collective_row& e : collectives_of(p, ranks))
    if (e.part == part)
      sent[std::string(name_of(e.call.what)) + " over " + std::string(name_of(e.call.over)) +
           (e.when == phase::forward ? " forward" : " later")] += e.call.sent * e.per_step;
  return sent;
}

/// Beside those of the model alone, blocks exchange r numbers a token where ranks hold shards of
/// the sequence: A x is gathered, again for the gradient of B, and its gradient scattered, for each
/// A behind a gather. Factors have their gradients summed. The first block does not sum the
/// gradient of the stream that it reads, since nothing below is trained.
template <class Model> void check_collectives(const Model& m, const tried& t, int gathered) {
  const both b(m, t.l, every_layer);
  const mesh ranks = mesh_of(t.l, t.dp);
  const std::string name = detail::layout_text(t.l);
  auto with = sent_in(b.adapted.view(), ranks, "block");
  for (const auto& [what, sent] : sent_in(b.without.view(), ranks, "block")) with[what] -= sent;
  const std::int64_t numbers = 64 / t.l.cp * every_layer.rank * gathered * m.layers,
                     each_way = 4 * numbers * (t.l.tp - 1) / t.l.tp,
                     stream = 4 * 64 / t.l.cp * m.hidden * (t.l.tp - 1) / t.l.tp;
  for (const auto& [what, sent] : with) {
    const bool more = t.l.sequence_parallel && what.find(" over tp ") != std::string::npos &&
                      what.find("all-reduce") == std::string::npos &&
                      what.find("reduce-scatter over tp forward") == std::string::npos;
    const std::int64_t less = what == "reduce-scatter over tp later" ? stream
                              : what == "all-reduce over tp later"   ? 2 * stream
                                                                     : 0;
    BOOST_TEST(sent == (more ? each_way : 0) - less,
               name << ": " << what << " " << sent << ", of " << each_way << " - " << less);
  }
  const graph& g = *b.adapted.view().block(0).g;
  std::int64_t of_gradients = 0, found = 0;
  for (int i = 0; i < g.parameter_count; ++i) {
    const parameter_info& p = g.parameters[static_cast<unsigned>(i)];
    if (!p.added) continue;
    const value& v = g.at(p.v);
    const bool of_experts = v.dims[0].d == dim::expert;
    std::int64_t n = 1; // ranks whose gradients are summed: all that do not hold other shards
    for (const axis a : of_experts ? std::array{axis::edp, axis::ep, axis::etp}
                                   : std::array{axis::dp, axis::cp, axis::tp})
      if (v.at[a].s != state::shard) n *= ranks.of(a);
    of_gradients += m.layers * 4 * aligned_elements(local_size(g.ranks, v).n) * 2 * (n - 1) / n;
  }
  for (const collective_row& e : collectives_of(b.adapted.view(), ranks))
    if (e.part == "update" && e.cause == "reduce_gradient") found += e.call.sent * e.per_step;
    else if (e.part == "update") BOOST_TEST(e.call.bytes <= 16, name << ": " << e.cause);
  BOOST_TEST(found == of_gradients, name << ": " << found << " of " << of_gradients);
}

} // namespace

BOOST_AUTO_TEST_CASE(collectives_of_factors) {
  constexpr layout tp{.tp = 2}, sequences{.tp = 2, .sequence_parallel = true}, cp{.cp = 2},
      both_axes{.tp = 2, .cp = 2, .sequence_parallel = true};
  for (const tried& t : {tried{tp}, {sequences}, {sequences, 2}, {cp, 2}, {both_axes}}) {
    check_collectives(of_gpt, t, 2);   // A of c_attn and c_fc
    check_collectives(of_qwen3, t, 5); // of q, k, v, gate and up
  }
  for (const tried& t : of_experts) {
    if (t.l.pp > 1 || t.l.zero > 0) continue;
    check_collectives(of_moe, t, 3);
  }
  check_collectives(of_moe, {{.cp = 2, .ep = 2}, 2}, 3);
  check_collectives(of_moe, {{.tp = 2, .ep = 2, .etp = 2}, 2}, 3);
}
