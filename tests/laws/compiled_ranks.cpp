// Compiled programs of several ranks: ranks that are threads have the bits of the interpreter's, of
// the same layout.
#define BOOST_TEST_MODULE compiled_ranks
#include <boost/test/unit_test.hpp>

#include <megacpp/comm/threads.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/run/session.hpp>

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <kernels.hpp>

using namespace mc;

namespace {

constexpr batching two_sequences{2, 32};

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

/// Weights, norms and losses of each rank after some steps, byte for byte.
std::vector<std::string> bytes_of(const program_view& p, int dp) {
  const mesh m = mesh_of(p.numbers.ranks, dp);
  std::vector<std::string> all(static_cast<std::size_t>(ranks_of(m)));
  thread_ranks(m).run([&](communicator& c) {
    cpu device(product_type::widened, 1);
    session run(p, device, purpose::training, c);
    run.weights().initialise(1);
    run.numbers().learning_rate = 1e-2, run.numbers().clip = 0.5, run.numbers().seed = 3;
    std::string& out = all[static_cast<std::size_t>(c.rank())];
    const auto tokens = static_cast<std::size_t>(two_sequences.micro * two_sequences.sequence);
    std::vector<std::int32_t> ids(tokens), labels(tokens);
    for (int step = 0; step < 3; ++step) {
      const auto next = [&](int micro, batch_view& b) {
        const int first = (step * 4 + c.coordinate()[static_cast<unsigned>(axis::dp)] * 2 + micro);
        for (std::size_t i = 0; i < tokens; ++i) {
          ids[i] = static_cast<std::int32_t>((i * 7 + static_cast<std::size_t>(first) * 13) % 61);
          labels[i] = i % 9 == 4 ? -1 : (ids[i] * 3 + 1) % 61;
        }
        b = {ids.data(), labels.data(), first * two_sequences.micro};
        return true;
      };
      const auto r = run.step(3, next);
      for (const double x : {r->loss.sum, r->loss.count, r->norm})
        out.append(reinterpret_cast<const char*>(&x), sizeof x);
    }
    const stores& s = run.weights();
    for_each_parameter(run.program(), [&](const parameter_ref& r) {
      out.append(reinterpret_cast<const char*>(s.weights() + r.offset * size_of(s.type())),
                 static_cast<std::size_t>(r.count.n * size_of(s.type())));
    });
  });
  return all;
}

template <class Run> void has_the_bits_of_the_interpreter(int dp) {
  const program_view compiled = compiled_program<Run>("compiled");
  const interpreted_program interpreted(Run::model, program<Run>::numbers, "interpreted");
  const std::vector<std::string> got = bytes_of(compiled, dp),
                                 want = bytes_of(interpreted.view(), dp);
  for (std::size_t r = 0; r < want.size(); ++r)
    BOOST_TEST((got[r].size() > 1000 && got[r] == want[r]), "rank " << r << " of " << want.size());
}

/// What the plan of a stage takes is what a session on any of its ranks reserves, and the plan of a
/// run is that of the stage that needs most.
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
    const session run(p, device, purpose::training, c);
    const auto r = static_cast<std::size_t>(c.rank());
    reserved[r] = run.weights().bytes() + run.activations().size();
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
BOOST_AUTO_TEST_CASE(contexts) { has_the_bits_of_the_interpreter<qwen_contexts>(1); }
BOOST_AUTO_TEST_CASE(experts_over_tensor_and_expert_ranks_in_rounds) {
  has_the_bits_of_the_interpreter<shared_experts>(2);
}
