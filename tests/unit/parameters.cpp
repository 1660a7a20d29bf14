// Parameter counts of the presets against published figures, at compile time.
#define BOOST_TEST_MODULE parameters
#include <boost/test/unit_test.hpp>

#include <megacpp/plan/count.hpp>
#include <megacpp/preset/models.hpp>

using namespace mc;

namespace {

/// Rounded to tenths of a billion.
constexpr long tenths(std::int64_t n) { return static_cast<long>((n + 50'000'000) / 100'000'000); }

} // namespace

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
