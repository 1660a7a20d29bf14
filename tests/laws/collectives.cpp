// The collectives of a step: the ones that ranks start are counted, and compared with those that
// `describe` lists and with the formulas of the papers. Each must name its line of the model.
#define BOOST_TEST_MODULE collectives
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/inspect/description.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/session.hpp>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr qwen3_moe small_moe = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 64, m.heads = 4, m.kv_heads = 4, m.head_dim = 16, m.expert_ffn = 32;
  m.experts = 8, m.experts_per_token = 2, m.vocabulary = 256, m.positions = 128, m.aux_loss = 0.1;
  return m;
}();

} // namespace

// Tokens go to experts and back over ep and etp together, in the forward pass and transposed in the
// backward pass: every choice goes to as many ranks as share an expert. Published volumes of expert
// parallelism (DeepSpeed-MoE, Megatron Core) are the same: top-k x tokens x hidden, without a
// rank's own.
BOOST_AUTO_TEST_CASE(tokens_that_go_to_experts_are_on_the_wire) {
  const interpreted_program<qwen3_moe> p(
      small_moe,
      {.ranks = {.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, .batch = {4, 128}},
      "experts");
  const std::int64_t choices = std::int64_t{4} * 128 / 2 * small_moe.experts_per_token;
  const std::int64_t row = small_moe.hidden * std::int64_t{4}, ranks = 4, etp = 2;
  std::map<std::string, std::int64_t> sent; // bytes of a layer, by op and phase
  for (const collective_row& e : collectives_of(p.view())) {
    if (e.call.over != axis_set{axis::ep, axis::etp}) continue;
    BOOST_TEST(e.ranks == ranks);
    BOOST_TEST(e.per_step == small_moe.layers);
    BOOST_TEST((e.call.what ==
                (e.by->op == &op::expert_rows ? collective::all_gather : collective::all_to_all)));
    sent[e.by->op->name + std::string(e.by->derived ? " derived" : "")] += e.call.sent;
  }
  const std::int64_t rows = choices * etp * row * (ranks - 1) / ranks,
                     weights = choices * etp * 4 * (ranks - 1) / ranks;
  BOOST_TEST(sent["dispatch"] == rows + weights);
  BOOST_TEST(sent["combine"] == rows);
  BOOST_TEST(sent["dispatch derived"] == rows);
  BOOST_TEST(sent["combine derived"] == rows + weights);
  BOOST_TEST(sent["expert_rows"] == (ranks - 1) * small_moe.experts * 4); // i32
  BOOST_TEST(sent.size() == 5u);
  std::int64_t all = 0;
  for (const auto& [over, bytes] : bytes_by_group(collectives_of(p.view())))
    if (over == axis_set{axis::ep, axis::etp}) all = bytes;
  BOOST_TEST(all == small_moe.layers * (4 * rows + 2 * weights + sent["expert_rows"]));
}

// A collective names the line of the model that called its layer. In the backward pass it is the
// line of the forward node that it transposes. The update and the totals are in no model.
BOOST_AUTO_TEST_CASE(every_collective_names_the_line_that_caused_it) {
  const interpreted_program<qwen3_moe> p(
      small_moe,
      {.ranks = {.tp = 2, .cp = 2, .ep = 2, .sequence_parallel = true}, .batch = {4, 128}},
      "lines");
  for (const collective_row& e : collectives_of(p.view())) {
    const source_line line = e.line;
    const std::string file = line.file_name();
    BOOST_TEST_CONTEXT(e.part << " " << phase_text(e.when) << " " << name_of(e.call.what) << " of "
                              << e.value << ", " << text_of(line).c_str()) {
      const bool own = e.part == "update" || e.part == "totals";
      BOOST_TEST((own || file == "qwen3_moe.hpp" || file == "decoder.hpp"));
      BOOST_TEST(own == (line.number == 0));
      BOOST_TEST(own == line_text(line).empty());
      bool caused = own;
      for (int i = 0; i < p.view().kinds() + 2 && !caused; ++i) {
        const graph& g = *p.view().part(i).g;
        for (int k = 0; k < g.node_count && name_of_part(p.view(), i) == e.part; ++k)
          caused = caused || (!g.at_node(k).derived && g.at_node(k).line.number == line.number &&
                              g.at_node(k).line.file_name() == file);
      }
      BOOST_TEST(caused);
    }
  }
}

namespace {

/// The calls and bytes of one kind that a rank hands to others in a step. Bytes that it receives
/// were counted by the sender.
struct tally {
  std::int64_t calls = 0, bytes = 0;
  bool of_stores = false; ///< some bytes are those of stores, in any number of calls
  bool operator==(const tally&) const = default;
};
using tallies = std::map<std::pair<collective, std::uint8_t>, tally>;

void count(tallies& all, const mesh& m, collective what, axis_set over, std::int64_t calls,
           std::int64_t bytes) {
  const axis_set several = of_several_ranks(m, over);
  if (several.empty() || calls * bytes == 0 || what == collective::receive) return;
  tally& t = all[{what, several.bits}];
  t.calls += calls, t.bytes += calls * bytes;
}
std::string text_of(const tallies& all) {
  std::string text;
  for (const auto& [key, t] : all)
    text += "\n  " + std::to_string(t.calls) + " " + name_of(key.first) + " over " +
            name_of(axis_set::of_bits(key.second)) + ", " + std::to_string(t.bytes) + " bytes";
  return text;
}
/// Returns whether a call is about a single number, such as a norm, a summed loss or a count.
bool is_one_number(std::int64_t bytes) { return bytes <= 8; }

/// A communicator of memory of a device that counts the exchanges that it passes on to another one.
class counting final : public communicator {
public:
  explicit counting(communicator& below)
      : communicator(below.ranks(), below.rank(), below.moves(), below.bits()), to_(below) {}
  std::unique_ptr<communicator> ranks_for(device& on) override { return to_.make_ranks(on); }
  tallies all, large; ///< all calls, and those of more than a number

private:
  ticket begin(const exchange& x, const group& g, lane* on) override {
    const std::int64_t bytes = x.elements_in(g.size()) * size_of(x.type);
    count(all, ranks(), x.what, x.over, 1, bytes);
    if (!is_one_number(bytes)) count(large, ranks(), x.what, x.over, 1, bytes);
    return to_.start(*on, x);
  }
  void finish(lane& on, ticket t) override { to_.wait(on, t); }
  std::size_t finish_any(std::span<const ticket> any) override { return to_.wait_any(any); }
  void give_up() noexcept override { to_.give_up(); }

  communicator& to_;
};

/// Counts the exchanges of more than a number on every rank in a step of `micros` micro-batches,
/// and compares them with those that `describe` lists for its stage.
template <class Model>
std::vector<tallies> counted(const Model& m, const setup& s, int dp, int micros) {
  const interpreted_program<Model> p(m, s, "counted");
  const mesh ranks = mesh_of(s.ranks, dp);
  std::vector<tallies> all(static_cast<std::size_t>(ranks_of(ranks))), large(all.size());
  thread_ranks(ranks).run([&](communicator& hosts) {
    cpu device(product_type::widened, 1);
    const auto threads = hosts.make_ranks(device);
    counting c(*threads);
    session run(p.view(), device, purpose::training, c);
    run.weights().initialise(1);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(s.batch.micro * s.batch.sequence),
                                        7);
    run.step(std::vector<batch_view>(static_cast<std::size_t>(micros), {ids.data(), ids.data()}));
    const auto r = static_cast<std::size_t>(c.rank());
    all[r] = c.all, large[r] = c.large;
  });
  for (std::size_t r = 0; r < all.size(); ++r) {
    const int stage = coordinates_of(ranks, static_cast<int>(r))[static_cast<unsigned>(axis::pp)];
    tallies listed;
    for (const step_call& call : calls_of(p.view(), ranks, stage, micros))
      count(listed, ranks, call.call.what, call.call.over, 1, call.call.bytes);
    BOOST_TEST((all[r] == listed), "rank " << r << " counts" << text_of(all[r]) << "\nand listed is"
                                           << text_of(listed));
  }
  return large;
}

/// A GPT with widths at which every tensor fills whole lines of a store.
constexpr gpt counted_gpt{
    .layers = 4, .hidden = 256, .heads = 4, .ffn = 1024, .vocabulary = 256, .positions = 16};

/// Returns the bytes that a rank of a stage hands to others in a step of a GPT with biases and a
/// tied head, as the papers say. There are b sequences of s tokens, of which a rank has s / c; the
/// stream is h wide, the inside of an MLP f.
tallies of_papers(const gpt& m, const setup& s, int replicas, int stage, int micros) {
  using enum collective;
  using enum axis;
  const layout& l = s.ranks;
  const mesh ranks = mesh_of(l, replicas);
  const std::int64_t t = l.tp, c = l.cp, h = m.hidden, f = m.ffn, V = m.vocabulary,
                     layers = m.layers / l.pp, element = size_of(s.precision.weight),
                     main = size_of(s.precision.wire), // bytes
      tokens = std::int64_t{s.batch.micro} * s.batch.sequence / c, bsh = tokens * h * element;
  const bool first = stage == 0, last = stage + 1 == l.pp, sp = l.sequence_parallel,
             full = s.recompute_policy == recompute::full;
  tallies all;
  const auto add = [&](collective what, axis_set over, std::int64_t calls, std::int64_t bytes) {
    count(all, ranks, what, over, calls, bytes);
  };
  // Gradients and weights go in a number of calls that no paper gives.
  const auto add_stores = [&](collective what, axis_set over, std::int64_t bytes) {
    if (of_several_ranks(ranks, over).empty() || bytes == 0) return;
    tally& t = all[{what, of_several_ranks(ranks, over).bits}];
    t.bytes += bytes, t.of_stores = true;
  };
  // Tensor parallelism (Shoeybi et al. 2019, section 3): a layer has two all-reduces of b s h in
  // the forward pass and two in the backward pass, the embedding one forward, the head one
  // backward. Full recomputation repeats the forward pass, except for what only its end has.
  if (!sp) add(all_reduce, tp, micros * (layers * (full ? 5 : 4) + first + last), bsh);
  // Sequence parallelism (Korthikanti et al. 2022, section 4.2) has an all-gather and a
  // reduce-scatter in place of each all-reduce, of the same volume. A gathered value of the forward
  // pass is not kept, but gathered once more in the backward pass (4.2.2).
  if (sp) {
    add(all_gather, tp, micros * (layers * 6 + first + 2 * last), bsh / t);
    add(reduce_scatter, tp, micros * (layers * (full ? 5 : 4) + first + last), bsh);
  }
  // The loss of a sharded vocabulary exchanges numbers of b s alone (Shoeybi et al., section 3).
  // Here they are two: each rank's log-sum-exp, a double, and the label's logit.
  if (last) {
    add(all_gather, tp, micros, tokens * size_of(dtype::f64));
    add(all_reduce, tp, micros, tokens * size_of(s.precision.statistic));
  }
  // Context parallelism (Dubey et al. 2024, section 3.3.2): keys and values are gathered, and their
  // gradients scattered, b s h / t each if all heads have their own. They are gathered once more in
  // the backward pass.
  add(all_gather, cp, micros * layers * 4, bsh / t);
  add(reduce_scatter, cp, micros * layers * 2, c * bsh / t);
  // A pipeline (Narayanan et al. 2021, section 4.1) sends b s h for each boundary, micro-batch and
  // direction; shards of it if the stream is sharded.
  add(send, pp, micros * (!first + !last), bsh / (sp ? t : 1));
  // Gradients are those of the weights that a rank has. Norms, and biases behind sums, which ranks
  // of tp see whole, are pending over tp, too, if each rank has other tokens (Korthikanti et al.,
  // 4.2.2).
  const std::int64_t shards = layers * (4 * h * h + 3 * h + 2 * h * f + f) / t,
                     table = (first || last) * V * h / t,
                     whole = layers * 6 * h + first * m.positions * h + last * 2 * h;
  const axis_set over{dp, cp};
  // Both uses of a tied table are added, over the stages that have them.
  const axis_set of_table = l.pp > 1 ? over.with(pp) : over;
  const axis_set of_whole = sp ? over.with(tp) : over;
  if (l.zero == 0) { // Psi elements are reduced once: 2 Psi (n - 1) / n on the wire
    add_stores(all_reduce, over, shards * main);
    add_stores(all_reduce, of_table, table * main);
    add_stores(all_reduce, of_whole, whole * main);
  } else { // Rajbhandari et al. 2020, section 7.1: Psi (n - 1) / n scattered, and as much gathered
    add_stores(reduce_scatter, over, (shards + table + whole) * main);
    add_stores(all_gather, over, (shards + table + whole) / (replicas * c) * element);
  }
  return all;
}

void sends_what_papers_say(const setup& s, int dp, int micros, const char* name) {
  const std::vector<tallies> all = counted(counted_gpt, s, dp, micros);
  const mesh ranks = mesh_of(s.ranks, dp);
  for (std::size_t r = 0; r < all.size(); ++r) {
    const int stage = coordinates_of(ranks, static_cast<int>(r))[static_cast<unsigned>(axis::pp)];
    const tallies want = of_papers(counted_gpt, s, dp, stage, micros);
    bool same = all[r].size() == want.size();
    for (const auto& [key, t] : want) {
      const auto at = all[r].find(key);
      if (!(same = same && at != all[r].end())) break;
      // Buckets of parameters are exchanged one at a time. A bucket that ranks share is exchanged a
      // layer at a time, each padded to shares of whole lines.
      const std::int64_t more = at->second.calls - t.calls,
                         most = s.ranks.zero > 0 ? 4 * (counted_gpt.layers / s.ranks.pp + 2) : 4,
                         padding = at->second.bytes - t.bytes,
                         line = entry_alignment * size_of(s.precision.wire) * dp * s.ranks.cp;
      same = t.of_stores ? more > 0 && more <= most : more == 0;
      same = same && padding >= 0 &&
             (t.of_stores && s.ranks.zero > 0 ? padding < more * line : padding == 0);
    }
    BOOST_TEST(same, name << ": rank " << r << " hands to others" << text_of(all[r])
                          << "\nand by the papers" << text_of(want));
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(a_step_sends_what_the_papers_say) {
  const batching b{2, 16};
  const layout tp2sp{.tp = 2, .sequence_parallel = true};
  sends_what_papers_say({.ranks = {.tp = 2}, .batch = b}, 1, 2, "tp 2");
  sends_what_papers_say({.ranks = {.tp = 4}, .batch = b, .precision = dtype::bf16}, 2, 1,
                        "tp 4 dp 2");
  sends_what_papers_say({.ranks = tp2sp, .batch = b}, 1, 2, "tp 2 sp");
  sends_what_papers_say({.ranks = tp2sp, .batch = b, .recompute_policy = recompute::full}, 2, 1,
                        "tp 2 sp dp 2, recomputed");
  sends_what_papers_say({.ranks = {.tp = 2}, .batch = b, .recompute_policy = recompute::full}, 1, 1,
                        "tp 2, recomputed");
  sends_what_papers_say({.ranks = {.tp = 4, .sequence_parallel = true}, .batch = b}, 1, 1,
                        "tp 4 sp");
  sends_what_papers_say({.batch = b, .precision = dtype::bf16}, 4, 1, "dp 4");
  sends_what_papers_say({.ranks = {.zero = 1}, .batch = b}, 2, 2, "dp 2, zero 1");
  sends_what_papers_say(
      {.ranks = {.tp = 2, .cp = 2, .zero = 1}, .batch = b, .precision = dtype::bf16}, 2, 1,
      "tp 2 cp 2 dp 2, zero 1");
  sends_what_papers_say({.ranks = {.cp = 2}, .batch = b}, 2, 1, "cp 2 dp 2");
  precision_policy narrow = dtype::bf16;
  narrow.wire = dtype::bf16; // half the bytes of every gradient
  sends_what_papers_say({.ranks = {.pp = 2}, .batch = b, .precision = narrow}, 2, 2,
                        "pp 2 dp 2, gradients sent in bf16");
  sends_what_papers_say({.ranks = {.cp = 2, .zero = 1}, .batch = b, .precision = narrow}, 2, 1,
                        "cp 2 dp 2, zero 1, gradients sent in bf16");
  sends_what_papers_say({.ranks = {.cp = 4}, .batch = b, .precision = dtype::bf16}, 1, 1, "cp 4");
  sends_what_papers_say({.ranks = {.pp = 2}, .batch = b}, 1, 3, "pp 2");
  sends_what_papers_say({.ranks = {.tp = 2, .pp = 4}, .batch = b}, 1, 4, "tp 2 pp 4");
  sends_what_papers_say({.ranks = {.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true},
                         .batch = b,
                         .precision = dtype::bf16},
                        2, 2, "tp 2 sp pp 2 cp 2 dp 2");
}

// Experts (Rajbhandari et al. 2022, section 5; Megatron Core): k copies of every token's h numbers
// go to experts and come back, and so do the gradients. That makes two all-to-alls forward and two
// backward, each of tokens x k x h, times etp if ranks share an expert. The weight of each copy and
// its gradient go beside them, and the number of rows of each expert before them.
BOOST_AUTO_TEST_CASE(experts_send_what_the_papers_say) {
  qwen3_moe m = small_moe;
  m.experts_per_token = m.experts; // so each expert is chosen equally often
  const auto compare = [&](const layout& l, int dp, int micros, dtype type) {
    const setup s{.ranks = l, .batch = {2, 16}, .precision = type};
    const mesh ranks = mesh_of(l, dp);
    const std::int64_t tokens = std::int64_t{2} * 16 / l.cp / (l.sequence_parallel ? l.tp : 1),
                       copies = tokens * m.experts_per_token * l.expert_tp(),
                       calls = std::int64_t{micros} * m.layers;
    tallies want;
    using enum collective;
    const axis_set over{axis::ep, axis::etp};
    count(want, ranks, all_to_all, over, 4 * calls, copies * m.hidden * size_of(type));
    count(want, ranks, all_to_all, over, 2 * calls, copies * 4);
    count(want, ranks, all_gather, over, calls, std::int64_t{m.experts} * 4);
    for (const tallies& all : counted(m, s, dp, micros))
      for (const auto& [key, t] : want) {
        const auto at = all.find(key);
        BOOST_TEST(
            (at != all.end() && at->second == t),
            "a rank hands to others" << text_of(all) << "\nand by the papers" << text_of(want));
      }
  };
  compare({.ep = 2}, 2, 2, dtype::f32);
  compare({.ep = 4}, 4, 1, dtype::bf16);
  compare({.cp = 2, .ep = 2}, 2, 1, dtype::f32);
  compare({.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, 2, 1, dtype::bf16);
}
