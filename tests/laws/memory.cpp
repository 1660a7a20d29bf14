// The memory plan holds: after the first step no memory is allocated, values lie where the plan
// says and nowhere else, every planned byte is used, and the plan is as small as the values that
// live at once.
#define BOOST_TEST_MODULE memory
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/comm/timed.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/inspect/memory_need.hpp>
#include <megacpp/inspect/timeline.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/devices.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>

#include <kernels.hpp>

extern "C" void* __libc_malloc(std::size_t);
extern "C" void* __libc_calloc(std::size_t, std::size_t);
extern "C" void* __libc_realloc(void*, std::size_t);
extern "C" void* __libc_memalign(std::size_t, std::size_t);

namespace {

std::atomic<long> allocations{0};

} // namespace

#if !defined(MEGACPP_SANITIZED)
// Counts every allocation of the process, libraries included.
extern "C" void* malloc(std::size_t n) {
  ++allocations;
  return __libc_malloc(n);
}
extern "C" void* calloc(std::size_t n, std::size_t m) {
  ++allocations;
  return __libc_calloc(n, m);
}
extern "C" void* realloc(void* p, std::size_t n) {
  ++allocations;
  return __libc_realloc(p, n);
}
extern "C" void* memalign(std::size_t a, std::size_t n) {
  ++allocations;
  return __libc_memalign(a, n);
}
extern "C" void* aligned_alloc(std::size_t a, std::size_t n) {
  ++allocations;
  return __libc_memalign(a, n);
}
extern "C" int posix_memalign(void** p, std::size_t a, std::size_t n) {
  ++allocations;
  *p = __libc_memalign(a, n);
  return *p == nullptr ? 12 : 0;
}
#endif

using namespace mc;

namespace {

struct tokens_of {
  std::vector<std::int32_t> tokens, labels;
  tokens_of(int n, int vocabulary) {
    for (int i = 0; i < n; ++i)
      tokens.push_back(i * 7 % vocabulary), labels.push_back((i * 7 + 7) % vocabulary);
  }
  batch_view view() const { return {tokens.data(), labels.data()}; }
};

template <class Model, class F> void with_session(const Model& m, setup s, F f) {
  interpreted_program<Model> program(m, s, "memory");
  cpu device(product_type::widened, 2);
  session run(program.view(), device, purpose::training);
  run.weights().initialise(1);
  run.numbers().learning_rate = 1e-3;
  tokens_of t(s.batch.micro * s.batch.sequence, m.vocabulary);
  f(run, t.view(), program.view(), device);
}

double step(session& run, const batch_view& b) { return run.step(b).loss.mean(); }
/// Takes a step with b twice, with a change of the session between the two.
template <class F> step_result step_changed(session& run, const batch_view& b, F change) {
  return *run.step(2, [&](int micro, batch_view& next) {
    if (micro == 1) change();
    next = b;
    return true;
  });
}

constexpr gpt small_gpt{
    .layers = 3, .hidden = 64, .heads = 4, .ffn = 256, .vocabulary = 256, .positions = 128};
constexpr qwen3 small_qwen{.layers = 3,
                           .hidden = 64,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 32,
                           .ffn = 192,
                           .vocabulary = 256,
                           .positions = 128};
constexpr qwen3_moe small_moe{.layers = 3,
                              .hidden = 64,
                              .heads = 4,
                              .kv_heads = 2,
                              .head_dim = 32,
                              .ffn = 192,
                              .expert_ffn = 48,
                              .experts = 8,
                              .experts_per_token = 2,
                              .vocabulary = 256,
                              .positions = 128,
                              .mlp_only = {1}};

/// Returns the number of matrix products of one training step, which bounds the allocations inside
/// oneDNN.
std::int64_t products_of(const program_view& p) {
  const auto count = [](const part_view& v) {
    std::int64_t n = 0;
    for (int i = 0; i < v.g->node_count; ++i) {
      const op_info* op = v.g->at_node(i).op;
      if (op == &op::linear || op == &op::linear_input_grad || op == &op::linear_input_grad_add ||
          op == &op::linear_weight_grad || op == &op::linear_gelu || op == &op::linear_gelu_kept ||
          op == &op::linear_input_grad_gelu)
        ++n;
      if (op == &op::grouped_linear || op == &op::grouped_input_grad ||
          op == &op::grouped_weight_grad)
        n += v.g->at(v.g->at_node(i).in[2]).dims[1].n; // one an expert
      if (op == &op::vocabulary_loss) n += 3;
    }
    return n;
  };
  std::int64_t n = count(p.part(0)) + count(p.head());
  for (const int kind : p.kind_of) n += count(p.block(kind));
  return n;
}

template <class Model> void no_allocation(const Model& m, dtype t) {
  with_session(m, {.batch = {4, 128}, .precision = t},
               [&](session& run, const batch_view& b, const program_view& p, cpu&) {
                 run.numbers().learning_rate = 0; // the same experts in every step
                 for (int i = 0; i < 2; ++i) step(run, b);
                 const long before = allocations;
                 step(run, b);
                 const long one = allocations - before;
                 for (int i = 0; i < 5; ++i) step(run, b);
                 BOOST_TEST(allocations - before == 6 * one); // constant a step
                 // A product is cut into cells. Each is one call of oneDNN with at most 8 small
                 // allocations of its own, or of Eigen (fp64) with at most two panels.
                 BOOST_TEST(one <= products_of(p) * 8 * 64);
                 run.numbers().learning_rate = 0.1; // others, with other numbers of tokens
                 for (int i = 0; i < 3; ++i) {
                   const long start = allocations;
                   step(run, b);
                   BOOST_TEST(allocations - start <= products_of(p) * 8 * 64);
                 }
                 BOOST_TEST_MESSAGE("allocations a step: " << one << " in " << products_of(p)
                                                           << " products");
               });
}

} // namespace

BOOST_AUTO_TEST_CASE(nothing_is_allocated_after_the_first_step) {
  for (dtype t : {dtype::f32, dtype::bf16, dtype::f64}) {
    no_allocation(small_gpt, t);
    no_allocation(small_qwen, t);
    no_allocation(small_moe, t);
  }
}

namespace {

/// A rank of two replicas, of which the other has nothing to add.
class one_of_two final : public communicator {
public:
  one_of_two() : communicator(mesh_of({}, 2), 0, plane::ranks, reduced_bits::of_rank_order) {}
  std::unique_ptr<communicator> ranks_for(device&) override { return nullptr; }

private:
  ticket begin(const exchange& x, const group&, lane*) override {
    if (x.what != collective::all_reduce) refuse_exchange(x, "replicas add up what they have");
    if (x.in != x.out)
      std::memcpy(x.out, x.in, static_cast<std::size_t>(x.count * size_of(x.type)));
    return {0};
  }
  void finish(lane&, ticket) override {}
  std::size_t finish_any(std::span<const ticket> /*any*/) override { return 0; }
};

} // namespace

BOOST_AUTO_TEST_CASE(nothing_is_allocated_for_a_step_that_is_measured) {
  const setup s{.batch = {4, 128}, .precision = dtype::f32};
  interpreted_program<gpt> program(small_gpt, s, "measured");
  cpu device(product_type::widened, 1);
  one_of_two ranks;
  timed_communicator timed(ranks, device);
  session run(program.view(), device, purpose::training, timed);
  run.weights().initialise(1);
  const tokens_of t(s.batch.micro * s.batch.sequence, small_gpt.vocabulary);
  for (int i = 0; i < 2; ++i) step(run, t.view());
  const long before = allocations;
  step(run, t.view());
  const long one = allocations - before;
  timeline lines(program.view(), &timed, 1, 3);
  run.profile(&lines), run.profile(nullptr); // makes the events of the clock
  for (int i = 0; i < 3; ++i) {
    const long start = allocations;
    lines.begin(i), run.profile(&lines);
    step(run, t.view());
    lines.end(), run.profile(nullptr);
    BOOST_TEST(allocations - start == one);
  }
  BOOST_TEST(lines.steps() == 3);
  BOOST_TEST(timed.left_out() == 0);
  BOOST_TEST(timed.waited() > 0);
}

namespace {

/// Returns the bytes of 64-byte lines of a range that no longer hold the byte they were filled
/// with.
std::int64_t bytes_touched(const std::byte* p, std::int64_t bytes, int byte = 0xff) {
  std::int64_t n = 0;
  std::byte poison[64];
  std::memset(poison, byte, 64);
  for (std::int64_t i = 0; i + 64 <= bytes; i += 64) n += std::memcmp(p + i, poison, 64) != 0;
  return n * 64;
}

template <class Model> void poisoned(const Model& m, setup s) {
  double clean = 0;
  with_session(m, s, [&](session& run, const batch_view& b, const program_view&, cpu&) {
    step(run, b);
    clean = step(run, b);
  });
  with_session(m, s, [&](session& run, const batch_view& b, const program_view&, cpu&) {
    const memory_items& plan = run.planned();
    const std::int64_t activations = plan.saved + plan.streams + plan.working;
    std::byte* data = run.activations().data();
    std::memset(data, 0xff, static_cast<std::size_t>(activations));
    step(run, b);
    const auto fraction =
        static_cast<double>(bytes_touched(data, activations)) / static_cast<double>(activations);
    BOOST_TEST(fraction >= 0.99);
    std::memset(data, 0xff, static_cast<std::size_t>(activations));
    BOOST_TEST(step(run, b) == clean); // no code reads bytes that were never written
  });
}

} // namespace

// The reserved memory is the planned one, to the byte, and steps touch 99 % of it, all items
// together: stores, activations, feeds, mirrors, and memory of kernels. Memory is zero at first.
BOOST_AUTO_TEST_CASE(all_that_is_planned_is_reserved_and_touched) {
  const auto check = [](const auto& m, const setup& s) {
    with_session(m, s, [&](session& run, const batch_view& b, const program_view&, cpu& device) {
      const memory_items& plan = run.planned();
      lane& on = device.main_lane();
      const lane_room room = on.room();
      std::memset(on.scratch(), 0xff, static_cast<std::size_t>(room.scratch));
      std::memset(on.workspace(), 0xff, static_cast<std::size_t>(room.workspace));
      run.numbers().weight_decay = 0.1;
      const stores& w = run.weights();
      BOOST_TEST(run.activations().size() == plan.saved + plan.streams + plan.working + plan.feeds +
                                                 plan.derived + plan.caches);
      BOOST_TEST(run.mirrors().size() == plan.mirrors);
      BOOST_TEST(w.bytes() == plan.weights + plan.gradients + plan.masters + plan.moments);
      BOOST_TEST(
          (room.scratch == plan.kernels.scratch && room.workspace == plan.kernels.workspace));
      const auto used = [&] {
        return bytes_touched(run.activations().data(), run.activations().size(), 0) +
               bytes_touched(run.mirrors().data(), run.mirrors().size(), 0) +
               bytes_touched(w.weights(), plan.weights, 0) +
               bytes_touched(w.gradients(), plan.gradients, 0) +
               bytes_touched(w.masters(), plan.masters, 0) +
               bytes_touched(w.first_moments(), plan.moments / 2, 0) +
               bytes_touched(w.second_moments(), plan.moments / 2, 0) +
               bytes_touched(on.scratch(), room.scratch, 0xff) +
               bytes_touched(on.workspace(), room.workspace, 0xff) + device.table_bytes();
      };
      const double enough = 0.99 * static_cast<double>(plan.total());
      for (int i = 0; i < 2; ++i) step(run, b);
      // On a busy machine one thread may do the work of two in a step.
      for (int i = 0; i < 50 && static_cast<double>(used()) < enough; ++i) step(run, b);
      BOOST_TEST(static_cast<double>(used()) >= enough, used() << " touched of " << plan.total());
    });
  };
  qwen3_moe all = small_moe; // all rows of experts are there
  all.experts_per_token = all.experts;
  precision_policy rounding = dtype::bf16;
  rounding.moment = dtype::bf16;
  for (const precision_policy& p :
       {precision_policy(dtype::f32), precision_policy(dtype::bf16), rounding}) {
    check(small_gpt, {.batch = {8, 128}, .precision = p});
    check(small_qwen, {.batch = {8, 128}, .precision = p, .recompute_policy = recompute::full});
    check(all, {.batch = {8, 128}, .precision = p});
    check(small_gpt, {.batch = {8, 128}, .precision = p, .frozen = {"blocks"}});
  }
}

BOOST_AUTO_TEST_CASE(the_planned_bytes_are_the_bytes_used) {
  for (recompute again : {recompute::none, recompute::selective, recompute::full})
    for (dtype t : {dtype::f32, dtype::bf16}) {
      BOOST_TEST_CONTEXT(name_of(again) << " " << name_of(t)) {
        poisoned(small_gpt, {.batch = {4, 128}, .precision = t, .recompute_policy = again});
        poisoned(small_qwen, {.batch = {4, 128}, .precision = t, .recompute_policy = again});
        poisoned(small_moe, {.batch = {4, 128}, .precision = t, .recompute_policy = again});
        poisoned(small_moe,
                 {.batch = {4, 128, false, 500}, .precision = t, .recompute_policy = again});
      }
    }
}

namespace {

/// On every rank, a step with as many micro-batches in flight as ever touches all memory that its
/// stage plans, and reads none that it has not written.
template <class Model>
void poisoned_on_ranks(const Model& m, const setup& s, int dp, const char* name) {
  const interpreted_program<Model> p(m, s, name);
  const mesh ranks = mesh_of(s.ranks, dp);
  const tokens_of t(s.batch.micro * s.batch.sequence, m.vocabulary);
  const int micros = s.batch.micro_batches > 0    ? s.batch.micro_batches
                     : s.ranks.virtual_stages > 1 ? 2 * s.ranks.pp
                                                  : s.ranks.pp + 1;
  const std::vector<batch_view> all(static_cast<std::size_t>(micros), t.view());
  std::vector<double> fractions(static_cast<std::size_t>(ranks_of(ranks)));
  std::vector<std::array<double, 2>> losses(fractions.size());
  thread_ranks(ranks).run([&](communicator& c) {
    const auto r = static_cast<std::size_t>(c.rank());
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    session run(p.view(), device, purpose::training, *others);
    run.weights().initialise(1); // the learning rate is 0
    losses[r][0] = run.step(all).loss.sum;
    run.numbers().step = 0; // dropout draws by the step
    const memory_items& plan = run.planned();
    const std::int64_t activations = plan.saved + plan.streams + plan.working;
    std::memset(run.activations().data(), 0xff, static_cast<std::size_t>(activations));
    losses[r][1] = run.step(all).loss.sum;
    fractions[r] = static_cast<double>(bytes_touched(run.activations().data(), activations)) /
                   static_cast<double>(activations);
  });
  for (std::size_t r = 0; r < fractions.size(); ++r) {
    BOOST_TEST(fractions[r] >= 0.99, name << ": rank " << r << " touches " << fractions[r]);
    BOOST_TEST((losses[r][0] == losses[r][1] && losses[r][0] == losses[0][0]),
               name << ": rank " << r << " computes another loss, " << losses[r][0] << " and "
                    << losses[r][1] << ", of the first " << losses[0][0]);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(the_planned_bytes_are_the_bytes_used_on_every_rank) {
  const batching b{2, 64};
  gpt deep = small_gpt;
  deep.layers = 4;
  deep.dropout = 0.1;
  const auto of_gpt = [&](layout l, int dp, const char* name, recompute again = recompute::none,
                          dtype t = dtype::f32) {
    batching of_step = b;
    if (l.schedule != nullptr) of_step.micro_batches = 5;
    poisoned_on_ranks(
        deep, {.ranks = l, .batch = of_step, .precision = t, .recompute_policy = again}, dp, name);
  };
  of_gpt({}, 2, "dp 2");
  of_gpt({.zero = 1}, 2, "zero 1 dp 2");
  of_gpt({.tp = 2}, 1, "tp 2");
  of_gpt({.tp = 4}, 1, "tp 4", recompute::selective, dtype::bf16);
  of_gpt({.cp = 2}, 1, "cp 2");
  of_gpt({.cp = 4}, 1, "cp 4", recompute::full);
  of_gpt({.pp = 2}, 1, "pp 2");
  of_gpt({.pp = 4, .zero = 1}, 2, "zero 1 pp 4 dp 2");
  of_gpt({.tp = 2, .pp = 2}, 1, "tp 2 pp 2", recompute::full);
  of_gpt({.pp = 2, .virtual_stages = 2}, 1, "pp 2 virtual 2");
  of_gpt({.tp = 2, .pp = 2, .virtual_stages = 2}, 1, "tp 2 pp 2 virtual 2", recompute::full);
  of_gpt({.pp = 2, .schedule = &gpipe}, 1, "pp 2 GPipe");
  of_gpt({.pp = 3, .cut = {.layers = {0, 3, 1}}}, 1, "pp 3 cut unevenly", recompute::selective);
  for (const recompute again : {recompute::none, recompute::selective, recompute::full}) {
    of_gpt({.tp = 2, .sequence_parallel = true}, 1, "tp 2 sp", again);
    of_gpt({.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true}, 1, "tp 2 sp pp 2 cp 2", again,
           dtype::bf16);
  }
  of_gpt({.tp = 4, .sequence_parallel = true, .zero = 1}, 2, "zero 1 tp 4 sp dp 2");
  const auto of_frozen = [&](layout l, const frozen& f, const char* name) {
    poisoned_on_ranks(deep, {.ranks = l, .batch = b, .precision = dtype::bf16, .frozen = f}, 2,
                      name);
  };
  of_frozen({}, {"blocks"}, "dp 2, frozen blocks");
  precision_policy rounding = dtype::bf16;
  rounding.moment = dtype::bf16;
  for (const layout& l :
       {layout{.pp = 2, .zero = 1}, layout{.tp = 2, .pp = 3, .cut = {.layers = {0, 3, 1}}}})
    poisoned_on_ranks(deep, {.ranks = l, .batch = b, .precision = rounding}, 2, "moments of bf16");
  of_frozen({.pp = 2, .zero = 1}, {"embedding", "attn"}, "zero 1 pp 2 dp 2, frozen tables");
  // Every token goes to every expert, so that all rows of the plan are used. A round of as many
  // rows as a rank has tokens takes those of one rank alone, which sends as much as it ever may.
  qwen3_moe all = small_moe;
  all.experts_per_token = all.experts;
  const auto of_experts = [&](layout l, int dp, const char* name) {
    batching of_step = b;
    for (const int rows : {0, b.micro * b.sequence / (l.sequence_parallel ? l.tp : 1)}) {
      of_step.expert_rows = rows;
      poisoned_on_ranks(all, {.ranks = l, .batch = of_step}, dp,
                        rows > 0 ? (std::string(name) + " in rounds").c_str() : name);
    }
  };
  of_experts({.ep = 2}, 2, "ep 2");
  of_experts({.ep = 4, .zero = 1}, 4, "zero 1 ep 4");
  of_experts({.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2, "tp 2 sp ep 2 etp 2");
}

// A layer of a GPT keeps these values for its backward pass under tensor and sequence parallelism.
// They are shards of b s tokens, in two bytes an element:
//   norms        their results, h each, and the stream between them, h; mean, root of each in f32
//   attention    q, k, v and the result, h each over heads; a log-sum-exp a head in f32
//   MLP          before and behind GELU, f each
//   dropout      an int32 a token for each of two, its key
// and the stream before the layer, h. Korthikanti et al. (2022, equation 4 without the scores of
// attention, which are not kept) count 34 s b h / t with f = 4 h, masks of dropout among it.
BOOST_AUTO_TEST_CASE(what_is_kept_under_sequence_parallelism_is_a_share_of_a_closed_form) {
  gpt m = preset::gpt2_124m;
  for (const double dropout : {0.1, 0.0})
    for (const int t : {2, 4})
      for (const batching& b : {batching{4, 1024}, batching{1, 256}}) {
        m.dropout = dropout;
        const interpreted_program<gpt> p(
            m,
            {.ranks = {.tp = t, .sequence_parallel = true}, .batch = b, .precision = dtype::bf16},
            "kept");
        const std::int64_t tokens = std::int64_t{b.micro} * b.sequence, h = m.hidden, f = m.ffn,
                           keys = dropout > 0 ? 2 * 4 : 0,
                           each = 2 * (3 * h + 4 * h + 2 * f) + 4 * m.heads + 2 * 2 * 4 + keys,
                           stream = 2 * h, limit = 34 * h;
        const memory_plan& plan = *p.view().block(0).plan;
        BOOST_TEST(plan.saved == tokens * each / t);
        BOOST_TEST(each + stream <= limit);
        // The activations are those of all layers, the stem and the head, with one stream more than
        // layers.
        const memory_items items = memory_of_stage(p.view());
        const std::int64_t others = p.view().part(0).plan->saved + p.view().head().plan->saved;
        BOOST_TEST(items.saved == m.layers * plan.saved + others);
        BOOST_TEST(items.streams >= (m.layers + 1) * tokens * stream / t);
        BOOST_TEST(items.streams <= (m.layers + 3) * tokens * stream / t); // and cotangents
      }
}

namespace {

template <class Model> void tight(const Model& m, const setup& s, const char* name) {
  for (int i = 0; i < 3; ++i) {
    const part_kind kinds[] = {part_kind::stem, part_kind::block, part_kind::loss};
    const graph g = in_regions(recomputed(fused(derived_graph(forward_graph(m, s, kinds[i], 0))),
                                          i == 1 ? s.recompute_policy : recompute::none));
    BOOST_TEST_REQUIRE((g.wrong.code == fault::none), name << ": " << g.wrong.what.c);
    const memory_plan p = place_memory(g);
    BOOST_TEST(static_cast<double>(p.working) <= 1.05 * static_cast<double>(p.largest_live),
               name << " part " << i << ": " << p.working << " for " << p.largest_live);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(the_plan_is_as_small_as_what_lives_at_once) {
  for (recompute again : {recompute::none, recompute::selective, recompute::full})
    for (const layout& l :
         {layout{}, layout{.tp = 4, .sequence_parallel = true}, layout{.tp = 2, .cp = 2}})
      for (dtype t : {dtype::f32, dtype::bf16}) {
        tight(preset::gpt2_124m, {l, {4, 1024}, t, again}, "gpt2_124m");
        tight(preset::megatron_145_6b, {l, {1, 2048}, t, again}, "megatron_145_6b");
        tight(preset::qwen3_0_6b, {l, {2, 4096}, t, again}, "qwen3_0_6b");
        tight(preset::qwen3_32b, {l, {1, 4096}, t, again}, "qwen3_32b");
        tight(preset::char_gpt, {l, {12, 64}, t, again}, "char_gpt");
        tight(preset::qwen3_30b_a3b, {l, {1, 4096}, t, again}, "qwen3_30b_a3b");
        layout spread = l;
        spread.ep = 8;
        tight(preset::qwen3_235b_a22b, {spread, {1, 4096}, t, again}, "qwen3_235b_a22b");
      }
}

namespace {

/// Moves each working value of a graph's plan in turn to the place of each other one that is read
/// later.
template <class Model> void every_overlap_is_refused(const Model& m, const setup& s) {
  int moved = 0;
  for (const part_kind part : {part_kind::block, part_kind::loss}) {
    const graph g = in_regions(fused(derived_graph(forward_graph(m, s, part, 0))));
    const memory_plan plan = place_memory(g);
    BOOST_TEST((verify_memory(g, plan).code == fault::none));
    const auto last_use = [&g](value_id v) {
      int last = -1;
      for (int i = 0; i < g.node_count; ++i)
        for (const value_id in : g.at_node(i).in)
          if (in == v) last = i;
      return last;
    };
    for (int a = 0; a < g.value_count; ++a)
      for (int b = 0; b < g.value_count; ++b) {
        const auto x = static_cast<value_id>(a), y = static_cast<value_id>(b);
        const address& at_x = plan.at[static_cast<unsigned>(a)];
        const address& at_y = plan.at[static_cast<unsigned>(b)];
        if (at_x.in != space::working || at_y.in != space::working) continue;
        if (at_x.offset == at_y.offset) continue; // two names, or taken over
        const int written = g.at(y).producer;
        if (g.at(x).producer > written || last_use(x) < written || a == b) continue;
        const node& n = g.at_node(written);
        const bool in_place = n.op->in_place >= 0 && y == n.out[0] &&
                              x == n.in[static_cast<unsigned>(n.op->in_place)];
        if (in_place && last_use(x) == written) continue;
        memory_plan wrong = plan;
        wrong.at[static_cast<unsigned>(b)].offset = at_x.offset;
        const fault_record found = verify_memory(g, wrong);
        BOOST_TEST((found.code == fault::M002), "value " << b << " over " << a);
        ++moved;
      }
  }
  BOOST_TEST(moved > 20);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_value_written_over_a_living_one_is_refused) {
  every_overlap_is_refused(small_gpt, {.batch = {4, 128}, .precision = dtype::bf16});
  every_overlap_is_refused(small_moe, {.batch = {4, 128}});
  every_overlap_is_refused(small_qwen,
                           {.ranks = {.tp = 2, .sequence_parallel = true}, .batch = {4, 128}});
}

BOOST_AUTO_TEST_CASE(stages_hold_the_whole_model_and_one_copy_of_a_tied_table) {
  const setup whole{.batch = {1, 1024}, .precision = dtype::bf16};
  setup cut = whole;
  cut.ranks.pp = 4;
  const interpreted_program<gpt> one(preset::gpt2_124m, whole, "one"),
      four(preset::gpt2_124m, cut, "four");
  const memory_items all = memory_of_stage(one.view());
  std::int64_t weights = 0, deepest = 0;
  for (int stage = 0; stage < 4; ++stage) {
    const memory_items m = memory_of_stage(four.view(), stage);
    weights += m.weights;
    if (stage == 0) deepest = m.saved;
    BOOST_TEST(m.saved <= deepest); // 1F1B: the first stage has most micro-batches in flight
  }
  BOOST_TEST(weights == all.weights + 2 * 50257 * 768);
}

namespace {

/// A run of three stages with a layer each, of which the second has experts.
struct staged_run {
  static constexpr qwen3_moe model = [] {
    qwen3_moe m = small_moe;
    m.mlp_only = {0, 2}, m.experts = 64;
    return m;
  }();
  static constexpr mc::layout layout{.pp = 3};
  static constexpr batching batch{1, 32};
  using precision = fp32;
};

} // namespace

BOOST_AUTO_TEST_CASE(the_plan_of_a_run_is_that_of_the_stage_that_needs_most) {
  const interpreted_program<qwen3_moe> staged(
      staged_run::model, {.ranks = staged_run::layout, .batch = staged_run::batch}, "staged");
  std::array<std::int64_t, 3> needed{};
  for (int stage = 0; stage < 3; ++stage)
    needed[static_cast<unsigned>(stage)] = memory_of_stage(staged.view(), stage).total();
  BOOST_TEST(needed[1] > needed[0]);
  BOOST_TEST(needed[1] > needed[2]);
  BOOST_TEST(memory<staged_run>().total() == needed[1]);
  cpu device(product_type::widened, 1);
  const std::string text = describe_text(staged.view(), device);
  BOOST_TEST(text.find("Memory of one rank for training (dp 1, stage 1 of 0 ... 2, which has "
                       "most)\n") != std::string::npos,
             text);
  // A mixture of experts in three stages has a longer description than most.
  BOOST_TEST(std::ranges::count(text, '\n') <= 75);
  const kernel_room kernels = room_of(staged.view().parts, device, true);
  BOOST_TEST((kernels.scratch > 0 && kernels.workspace > 0 && kernels.tables > 0));
  BOOST_TEST(text.find(std::to_string(needed[1] + kernels.total()) + " bytes") != std::string::npos,
             text);
}

// Constants of the program bound the memory that kernels need on 64 threads: scratch and tables are
// equal to them, and products stay below. They are counted without reserving memory.
BOOST_AUTO_TEST_CASE(what_kernels_need_is_bounded_by_constants_of_the_program) {
  constexpr kernel_room most = detail::most_room<program<staged_run>, cpu>;
  static_assert(!fits<staged_run>(memory<staged_run>().total()));
  static_assert(fits<staged_run>(memory<staged_run>().total() + most.total()));
  const program_view p = compiled_program<staged_run>("staged");
  cpu device(product_type::widened, most_threads);
  const kernel_room real = room_of(p.parts, device, true);
  BOOST_TEST(real.scratch == most.scratch);
  BOOST_TEST(real.tables == most.tables);
  BOOST_TEST(real.workspace <= most.workspace);
  const auto counting = make_device(typeid(cpu), {.threads = most_threads, .sizes_alone = true});
  const kernel_room counted = room_of(p.parts, *counting, true);
  BOOST_TEST(counted.scratch == real.scratch);
  BOOST_TEST(counted.tables == real.tables);
  BOOST_TEST((counted.workspace > 0 && counted.workspace <= real.workspace));
  cpu few(product_type::widened, 1);
  const kernel_room of_few = room_of(p.parts, few, true);
  BOOST_TEST(of_few.scratch <= real.scratch);
  BOOST_TEST(of_few.workspace <= real.workspace);
}

// The planned memory of an evaluation is what sessions for inference reserve, except for the
// workspace of products, of which a library takes more than is counted. Evaluation needs less
// scratch than training, and prepares fewer products.
BOOST_AUTO_TEST_CASE(what_evaluation_needs_is_known_before_it_starts) {
  const auto check = [](const program_view& p) {
    const mesh ranks = mesh_of(p.numbers.ranks, 1);
    constexpr int threads = 2;
    const auto counting = make_device(typeid(cpu), {.threads = threads, .sizes_alone = true});
    const memory_need need = need_of(p, planned_work::evaluation, ranks, *counting);
    const kernel_room evaluates = room_of(p.parts, *counting, false),
                      trains = room_of(p.parts, *counting, true);
    BOOST_TEST((evaluates.scratch > 0 && evaluates.scratch < trains.scratch));
    cpu prepares(product_type::widened, threads);
    (void)room_of(p.parts, prepares, false);
    const int plans = prepares.products().checks().checked;
    (void)room_of(p.parts, prepares, true);
    BOOST_TEST((plans > 0 && plans < prepares.products().checks().checked));
    const batching& b = p.numbers.batch;
    const std::int64_t apart = evaluates.workspace + std::int64_t{b.micro} * b.sequence * 16;
    std::vector<memory_items> held(static_cast<std::size_t>(ranks_of(ranks)));
    std::vector<int> prepared(held.size());
    thread_ranks(ranks).run([&](communicator& c) {
      cpu device(product_type::widened, threads);
      const auto others = c.make_ranks(device);
      session run(p, device, purpose::inference, *others);
      held[static_cast<std::size_t>(c.rank())] = run.planned();
      prepared[static_cast<std::size_t>(c.rank())] = device.products().checks().checked;
    });
    BOOST_TEST(*std::ranges::max_element(prepared) <= plans);
    std::int64_t all = 0, largest = 0;
    for (const memory_items& m : held) {
      BOOST_TEST(m.kernels.scratch == evaluates.scratch);
      const std::int64_t one = m.total() - m.kernels.workspace + apart;
      all += one, largest = std::max(largest, one);
    }
    BOOST_TEST(all == need.all);
    BOOST_TEST(largest == need.largest);
  };
  check(compiled_program<staged_run>("staged"));
  check(interpreted_program<qwen3_moe>(
            staged_run::model, {.ranks = staged_run::layout, .batch = staged_run::batch}, "staged")
            .view());
  check(interpreted_program<gpt>(small_gpt, {.batch = {4, 128}, .precision = dtype::bf16}, "one")
            .view());
}

BOOST_AUTO_TEST_CASE(stages_share_the_work_of_the_whole_model) {
  gpt m = small_gpt;
  m.layers = 4, m.tied = false;
  const interpreted_program<gpt> one(m, {.batch = {4, 128}}, "one"),
      two(m, {.ranks = {.pp = 2}, .batch = {4, 128}}, "two");
  const step_work whole = work_of_step(one.view(), 3), first = work_of_step(two.view(), 3, 0),
                  last = work_of_step(two.view(), 3, 1);
  BOOST_TEST(first.prologue.flops + last.prologue.flops == whole.prologue.flops);
  BOOST_TEST(first.forward.flops + last.forward.flops == whole.forward.flops);
  BOOST_TEST(first.backward.flops + last.backward.flops == whole.backward.flops);
  BOOST_TEST(first.forward.read + last.forward.read == whole.forward.read);
  BOOST_TEST(first.backward.written + last.backward.written == whole.backward.written);
  // The last stage has the head's products; a product has 2 H V operations a token.
  const std::int64_t head = std::int64_t{3} * 4 * 128 * 2 * 64 * 256;
  BOOST_TEST(last.forward.flops + last.backward.flops >=
             first.forward.flops + first.backward.flops + 3 * head);
  // Both stages clip by the norm of the whole gradient, with an op on one number for each bucket.
  const std::int64_t sum = first.update.flops + last.update.flops;
  BOOST_TEST(sum >= whole.update.flops);
  BOOST_TEST(sum <= whole.update.flops + 100);
}

// A model needs 2 products forward and 4 backward for each weight and token, and for each pair of
// attention's, however it is cut and whatever is computed again.
BOOST_AUTO_TEST_CASE(what_a_model_needs_depends_on_no_layout) {
  gpt m = small_gpt;
  m.layers = 4, m.tied = false;
  const std::int64_t tokens = 4 * 128, h = m.hidden,
                     weights = m.layers * (4 * h * h + 2 * h * m.ffn) + h * m.vocabulary,
                     pairs = std::int64_t{4} * m.layers * (128 * 129 / 2),
                     needed = 6 * tokens * weights + 6 * 2 * pairs * h;
  const auto of = [&](layout l, recompute again = recompute::none) {
    const interpreted_program<gpt> p(m, {.ranks = l, .batch = {4, 128}, .recompute_policy = again},
                                     "p");
    std::int64_t flops = 0; // operations of all ranks
    for (int stage = 0; stage < l.pp; ++stage)
      flops += l.tp * l.cp * model_flops(p.view(), 3, stage);
    return flops;
  };
  BOOST_TEST(of({}) == 3 * needed);
  BOOST_TEST(of({}, recompute::full) == 3 * needed);
  BOOST_TEST(of({.pp = 2}, recompute::selective) == 3 * needed);
  BOOST_TEST(of({.tp = 2}) == 3 * needed);
}

// A repeated node is known by equal operands: both ends of a shared expert read one value, one of
// which is cut for it.
BOOST_AUTO_TEST_CASE(what_experts_need_depends_on_no_recomputation) {
  qwen3_moe m{.layers = 2,
              .hidden = 64,
              .heads = 4,
              .kv_heads = 2,
              .head_dim = 16,
              .ffn = 96,
              .expert_ffn = 32,
              .experts = 4,
              .experts_per_token = 2,
              .vocabulary = 128,
              .positions = 64};
  m.shared_ffn = 32;
  for (const layout& l : {layout{}, layout{.tp = 2}, layout{.tp = 2, .sequence_parallel = true}}) {
    const auto of = [&](recompute again) {
      const interpreted_program<qwen3_moe> p(
          m, {.ranks = l, .batch = {2, 32}, .recompute_policy = again}, "p");
      return model_flops(p.view(), 1, 0);
    };
    BOOST_TEST(of(recompute::full) == of(recompute::none));
    BOOST_TEST(of(recompute::selective) == of(recompute::none));
  }
}

// A frozen weight has no product for its gradient. If nothing is trained in a layer or below it,
// the model needs no backward pass there, although the program has one, since its blocks are one
// graph.
BOOST_AUTO_TEST_CASE(what_a_model_needs_of_frozen_parts) {
  gpt m = small_gpt;
  m.layers = 4, m.tied = false;
  const std::int64_t tokens = 4 * 128, h = m.hidden, layers = m.layers, attention = 4 * h * h,
                     ffn = 2 * h * m.ffn, head = h * m.vocabulary,
                     pairs = std::int64_t{4} * layers * (128 * 129 / 2),
                     forward = 2 * tokens * (layers * (attention + ffn) + head) + 4 * pairs * h,
                     whole = 3 * forward;
  const auto expect = [&](const frozen& f, std::int64_t needed, const char* name) {
    for (const auto& [l, again] :
         {std::pair{layout{}, recompute::none}, std::pair{layout{}, recompute::full},
          std::pair{layout{.pp = 2}, recompute::selective},
          std::pair{layout{.tp = 2}, recompute::none}}) {
      const interpreted_program<gpt> p(
          m, {.ranks = l, .batch = {4, 128}, .recompute_policy = again, .frozen = f}, "p");
      std::int64_t flops = 0;
      for (int stage = 0; stage < l.pp; ++stage) flops += l.tp * model_flops(p.view(), 1, stage);
      BOOST_TEST(flops == needed, name << ": " << flops << ", " << needed);
    }
  };
  expect({}, whole, "nothing");
  expect({"blocks"}, whole - 2 * tokens * layers * (attention + ffn), "blocks");
  expect({"mlp"}, whole - 2 * tokens * layers * ffn, "mlp");
  // The first norm of the first layer is trained, so the gradient goes down to it.
  expect({"embedding"}, whole, "embedding");
  expect({"embedding", "ln_1"}, whole - 2 * tokens * 3 * h * h, "embedding and first norms");
  expect({"embedding", "blocks"}, forward + 4 * tokens * head, "all but the head");
  // The weights of attention have no gradients. In layer 0, below whose MLP nothing is trained, the
  // gradients of attention's products and pairs are not needed, either.
  expect(
      {"embedding", "attn", "ln_1"},
      whole - 2 * tokens * layers * attention - 4 * pairs * h / layers * 2 - 2 * tokens * attention,
      "what lies below the first MLP, and attention");
}

// Axes of one rank have no collectives. Over other axes all gradients of a bucket are reduced at
// once, every element of the store, and so are the three totals.
BOOST_AUTO_TEST_CASE(collectives_are_those_of_axes_with_ranks) {
  const interpreted_program<gpt> alone(small_gpt, {.batch = {4, 128}}, "alone"),
      two(small_gpt, {.ranks = {.cp = 2}, .batch = {4, 128}}, "two");
  BOOST_TEST(collectives_of(alone.view()).empty());
  std::int64_t reduced = 0, times = 0, of_totals = 0;
  for (const collective_row& e : collectives_of(two.view())) {
    const bool of_gradients = e.part == "update"; // over dp, which has one replica here, too
    BOOST_TEST((e.ranks == 2 &&
                e.call.over == (of_gradients ? axis_set{axis::dp, axis::cp} : axis_set(axis::cp))));
    if (e.part == "totals") of_totals += e.per_step;
    if (of_gradients) reduced += e.call.bytes * e.per_step, times += e.per_step;
    BOOST_TEST((e.call.what != collective::all_reduce ||
                e.call.sent == e.call.bytes)); // 2 (n - 1) / n of it
  }
  BOOST_TEST(reduced == memory_of_stage(two.view()).gradients);
  BOOST_TEST(times == two.view().stores->bucket_count);
  BOOST_TEST(of_totals == 3);
  // Two replicas share their experts, so the norm has a sum over both.
  const interpreted_program<qwen3_moe> shared(small_moe, {.ranks = {.ep = 2}, .batch = {4, 128}},
                                              "shared");
  int of_gradients = 0, of_norm = 0;
  for (const collective_row& e : collectives_of(shared.view())) {
    const bool of_experts = e.call.over == axis_set{axis::ep, axis::etp};
    of_gradients += e.call.over == axis_set(axis::dp) && e.part == "update";
    of_norm += e.call.over == axis_set(axis::ep) && e.part == "update";
    BOOST_TEST((e.ranks == 2 && (e.call.over == axis_set(axis::dp) || of_experts ||
                                 (e.call.over == axis_set(axis::ep) && e.part == "update"))),
               name_of(e.call.over));
  }
  BOOST_TEST(of_gradients > 0);
  BOOST_TEST(of_norm > 0);
}

// With batch_invariant numerics the gradients of the two uses collect apart on one stage, and are
// added; otherwise both add to one gradient. On two stages each has a copy of the table, which
// ranks add.
BOOST_AUTO_TEST_CASE(one_stage_adds_the_gradients_of_both_uses_of_a_tied_table) {
  constexpr std::int64_t table = 256 * 64;
  gpt m = small_gpt;
  m.layers = 4;
  const auto made = [&](numerics sums, int pp) {
    return std::make_unique<interpreted_program<gpt>>(
        m, setup{.ranks = {.pp = pp}, .batch = {4, 128}, .sums = sums}, "made");
  };
  const auto apart = made(numerics::batch_invariant, 1), together = made(numerics::fast, 1);
  const memory_items whole = memory_of_stage(apart->view()),
                     less = memory_of_stage(together->view());
  BOOST_TEST(whole.gradients - whole.weights == table * 4);
  BOOST_TEST(less.gradients == less.weights);
  const std::int64_t added = work_of_step(apart->view(), 3).update.flops;
  BOOST_TEST(work_of_step(together->view(), 3).update.flops == added - table);
  for (const numerics sums : {numerics::fast, numerics::batch_invariant}) {
    const auto two = made(sums, 2);
    for (int stage = 0; stage < 2; ++stage) {
      const memory_items part = memory_of_stage(two->view(), stage);
      BOOST_TEST(part.gradients == part.weights);
      BOOST_TEST(work_of_step(two->view(), 3, stage).update.flops == added - table);
    }
  }
}

// The model is larger than any machine can map, so that only a check before would find the ranks.
BOOST_AUTO_TEST_CASE(several_ranks_are_refused_before_memory_is_reserved) {
  const interpreted_program<gpt> spread(
      preset::megatron_1008b, {.ranks = {.tp = 8}, .batch = {1, 2048}, .precision = dtype::bf16},
      "big");
  cpu device(product_type::automatic, 1);
  for (const purpose why : {purpose::training, purpose::inference})
    BOOST_CHECK_EXCEPTION(session(spread.view(), device, why), error,
                          [](const error& e) { return e.code() == exit_code::mismatch; });
}

BOOST_AUTO_TEST_CASE(a_norm_that_is_not_finite_updates_nothing) {
  with_session(
      small_gpt, {.batch = {4, 128}, .precision = dtype::bf16},
      [&](session& run, const batch_view& b, const program_view&, cpu&) {
        step(run, b);
        const auto all = [&] { // weights have two bytes, the others four
          const mc::stores& x = run.weights();
          std::string bytes;
          for (const std::byte* at :
               {x.weights(), x.masters(), x.first_moments(), x.second_moments()})
            bytes.append(reinterpret_cast<const char*>(at),
                         static_cast<std::size_t>(x.total() * (at == x.weights() ? 2 : 4)));
          return bytes;
        };
        const std::string before = all();
        const step_result r = step_changed(
            run, b, [&] { stores::set(run.weights().gradients(), dtype::f32, 5, INFINITY); });
        BOOST_TEST(std::isfinite(r.loss.sum));
        BOOST_TEST((!std::isfinite(r.norm) && !r.applied && r.finite));
        BOOST_TEST((all() == before));
        BOOST_TEST(run.numbers().step == 1);
      });
}

// A damage by an update is known after it, whichever store it is in. No code reads the positions
// behind the sequence.
BOOST_AUTO_TEST_CASE(an_update_tells_what_it_left_infinite_or_not_a_number) {
  for (const dtype type : {dtype::f32, dtype::bf16, dtype::f64})
    for (const int store : {0, 1, 2})
      with_session(small_gpt, {.batch = {4, 64}, .precision = type},
                   [&](session& run, const batch_view& b, const program_view& p, cpu&) {
                     BOOST_TEST(run.step(b).finite);
                     BOOST_TEST((run.whole() && run.weights().nonfinite() == ""));
                     mc::stores& s = run.weights();
                     std::byte* const in[] = {s.masters(), s.first_moments(), s.second_moments()};
                     const std::int64_t at = 100 * p.hidden + 5;
                     for_each_parameter(p, [&](const parameter_ref& x) {
                       if (x.name.find("wpe") != std::string::npos)
                         stores::set(in[store],
                                     store == 0 ? s.precision().master : s.precision().moment,
                                     x.offset + at, NAN);
                     });
                     const step_result r = run.step(b);
                     BOOST_TEST((std::isfinite(r.norm) && r.applied && !r.finite));
                     BOOST_TEST(!run.whole());
                     const std::vector<std::int32_t> none(4 * 64, -100);
                     const step_result next = run.step(batch_view{b.tokens, none.data()});
                     BOOST_TEST((!next.applied && !next.finite && !run.whole()));
                     BOOST_TEST(s.nonfinite() == "wpe.weight[" + std::to_string(at) + "] is nan");
                   });
}

// The needed memory is known before it is reserved: the plan, the workspace of products without a
// library's own, which is little, and batches read ahead.
BOOST_AUTO_TEST_CASE(what_a_run_needs_is_known_before_it_starts) {
  const auto check = [](const auto& m, const setup& s) {
    with_session(m, s, [&](session& run, const batch_view&, const program_view& p, cpu& device) {
      const std::int64_t workspace = run.planned().kernels.workspace, holds = run.planned().total(),
                         batch = std::int64_t{s.batch.micro} * s.batch.sequence * 16;
      const auto counting = make_device(typeid(cpu), {.threads = 2, .sizes_alone = true});
      const memory_need need = need_of(p, planned_work::training, mesh::one_rank(), *counting);
      BOOST_TEST(workspace > 0);
      BOOST_TEST(workspace == device.products().workspace_bytes());
      BOOST_TEST(need.all == need.largest);
      const std::int64_t apart = holds + batch * std::int64_t{read_ahead::ahead + 1} - need.largest;
      BOOST_TEST((apart >= 0 && apart <= workspace / 4), apart << " of " << workspace);
    });
  };
  for (dtype t : {dtype::f32, dtype::bf16}) {
    check(small_gpt, {.batch = {4, 128}, .precision = t});
    check(small_moe, {.batch = {4, 128}, .precision = t, .recompute_policy = recompute::full});
  }
}

#if !defined(MEGACPP_SANITIZED)
BOOST_AUTO_TEST_CASE(the_process_holds_what_the_plan_says) {
  const auto before = process_memory().resident;
  with_session(preset::gpt2_124m, {.batch = {4, 256}, .precision = dtype::f32},
               [&](session& run, const batch_view& b, const program_view&, cpu&) {
                 step(run, b);
                 const double plan = static_cast<double>(run.planned().total());
                 const double held = static_cast<double>(process_memory().resident - before);
                 BOOST_TEST(held <= 1.15 * plan, held << " held, " << plan << " planned");
                 BOOST_TEST(held >= 0.85 * plan, held << " held, " << plan << " planned");
               });
}
#endif
