// The collectives that `describe` lists: what is on the wire by closed forms, and which line of the
// model each is for.
#define BOOST_TEST_MODULE collectives
#include <boost/test/unit_test.hpp>

#include <megacpp/inspect/description.hpp>
#include <megacpp/preset/models.hpp>

#include <map>
#include <string>

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
// backward one: every choice to as many ranks as share an expert. So it is in published volumes of
// expert parallelism (DeepSpeed-MoE, Megatron Core): top-k x tokens x hidden, all but a rank's own.
BOOST_AUTO_TEST_CASE(tokens_that_go_to_experts_are_on_the_wire) {
  const interpreted_program<qwen3_moe> p(
      small_moe,
      {.ranks = {.tp = 2, .ep = 2, .etp = 2, .sequence_parallel = true}, .batch = {4, 128}},
      "experts");
  const std::int64_t choices = std::int64_t{4} * 128 / 2 * small_moe.experts_per_token;
  const std::int64_t row = small_moe.hidden * std::int64_t{4}, ranks = 4, etp = 2;
  std::map<std::string, std::int64_t> sent; // a layer, by op and phase
  for (const collective_entry& e : collectives_of(p.view())) {
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

// What a collective is for stands in the model: the line that called the layer, and of one in the
// backward pass that of the forward node it transposes. The update and the totals are in no
// model.
BOOST_AUTO_TEST_CASE(every_collective_names_the_line_that_caused_it) {
  const interpreted_program<qwen3_moe> p(
      small_moe,
      {.ranks = {.tp = 2, .cp = 2, .ep = 2, .sequence_parallel = true}, .batch = {4, 128}},
      "lines");
  for (const collective_entry& e : collectives_of(p.view())) {
    const source_line line = e.line;
    const std::string file = line.file_name();
    BOOST_TEST_CONTEXT(e.part << " " << phase_text(e.when) << " " << name_of(e.call.what) << " of "
                              << e.value << ", " << text_of(line).c_str()) {
      const bool own = e.part == "update" || e.part == "totals";
      BOOST_TEST((own || file == "qwen3_moe.hpp" || file == "qwen3.hpp"));
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
