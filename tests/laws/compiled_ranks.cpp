// Compiled programs of several ranks: with threads as ranks, they compute the bits of the
// interpreter in the same layout.
#define BOOST_TEST_MODULE compiled_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/product/cpu_products.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <busy_cores.hpp>
#include <laws/compiled_bits.hpp>

using namespace mc;

namespace {

using laws::two_sequences;

struct gpt_stages {
  static constexpr gpt model{.layers = 2,
                             .hidden = 32,
                             .heads = 4,
                             .ffn = 64,
                             .vocabulary = 61,
                             .positions = 32,
                             .tied = true,
                             .dropout = 0.1};
  static constexpr mc::layout layout{.tp = 2, .pp = 2, .sequence_parallel = true, .zero = 1};
  static constexpr batching batch = two_sequences;
  using precision = bf16_mixed;
};
struct gpt_replicas : gpt_stages {
  static constexpr mc::layout layout{.zero = 1};
  using precision = fp32;
};
struct qwen_contexts {
  static constexpr qwen3 model = [] {
    qwen3 m;
    m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48;
    m.vocabulary = 61, m.positions = 32;
    return m;
  }();
  static constexpr mc::layout layout{.cp = 2};
  static constexpr batching batch = two_sequences;
  using precision = fp32;
};
struct shared_experts {
  static constexpr qwen3_moe model = [] {
    qwen3_moe m;
    m.layers = 2, m.hidden = 32, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 48;
    m.expert_ffn = 16, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
    m.aux_loss = 0.01, m.vocabulary = 61, m.positions = 32;
    return m;
  }();
  static constexpr mc::layout layout{.tp = 2, .pp = 2, .ep = 2, .etp = 2, .zero = 1};
  static constexpr batching batch{2, 32, false, 90}; // in rounds
  using precision = fp32;
};

template <class Run> void has_the_bits_of_the_interpreter(int dp) {
  const std::string other = laws::rank_with_other_bits<Run>(dp);
  BOOST_TEST(other == "", other);
}

/// The plan of a stage is the memory that a session reserves on each of its ranks, and the plan of
/// a run is that of the stage that needs most.
template <class Run> void reserves_what_is_planned(int dp) {
  const program_view p = compiled_program<Run>("planned");
  const mesh m = mesh_of(Run::layout, dp);
  const auto plans = []<int... Stage>(std::integer_sequence<int, Stage...>) {
    return std::vector<memory_items>{program<Run>::template stage_memory<Stage>...};
  }
  (std::make_integer_sequence<int, Run::layout.pp>{});
  std::vector<std::int64_t> reserved(static_cast<std::size_t>(ranks_of(m)));
  std::vector<memory_items> planned(reserved.size());
  thread_ranks(m).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    const auto others = c.make_ranks(device);
    const session run(p, device, purpose::training, *others);
    const auto r = static_cast<std::size_t>(c.rank());
    reserved[r] = run.weights().bytes() + run.activations().size() + run.mirrors().size();
    const int stage = c.coordinate()[static_cast<unsigned>(axis::pp)];
    planned[r] = program<Run>::among_replicas(plans[static_cast<std::size_t>(stage)], stage, dp);
  });
  std::int64_t most = 0;
  for (std::size_t r = 0; r < reserved.size(); ++r) {
    BOOST_TEST(reserved[r] == planned[r].total(), "rank " << r << " of dp " << dp);
    most = std::max(most, reserved[r]);
  }
  BOOST_TEST(memory<Run>(dp).total() == most);
}

} // namespace

BOOST_AUTO_TEST_CASE(a_rank_reserves_what_its_stage_plans) {
  for (const int dp : {1, 2, 3}) {
    reserves_what_is_planned<gpt_stages>(dp);
    reserves_what_is_planned<gpt_replicas>(dp);
    reserves_what_is_planned<qwen_contexts>(dp);
  }
  for (const int dp : {2, 4}) reserves_what_is_planned<shared_experts>(dp);
}
BOOST_AUTO_TEST_CASE(stages_sequence_shards_and_shared_states) {
  has_the_bits_of_the_interpreter<gpt_stages>(2);
}
BOOST_AUTO_TEST_CASE(replicas_with_shared_states) {
  has_the_bits_of_the_interpreter<gpt_replicas>(1);
  has_the_bits_of_the_interpreter<gpt_replicas>(3);
}
BOOST_AUTO_TEST_CASE(a_layout_has_the_same_bits_whatever_else_cores_do) {
  const auto same = [](const program_view& p) {
    const auto quiet = laws::bytes_of(p, 2);
    const test::busy_cores others;
    for (int i = 0; i < 3; ++i) BOOST_TEST((laws::bytes_of(p, 2) == quiet));
  };
  same(compiled_program<gpt_stages>("stages"));
  same(compiled_program<shared_experts>("experts"));
}
BOOST_AUTO_TEST_CASE(contexts) { has_the_bits_of_the_interpreter<qwen_contexts>(1); }
BOOST_AUTO_TEST_CASE(experts_over_tensor_and_expert_ranks_in_rounds) {
  has_the_bits_of_the_interpreter<shared_experts>(2);
}
