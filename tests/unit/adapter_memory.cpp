// What an adapter's run keeps in memory: beside a base in NF4 a small part of what full training
// keeps, and 4.13 bits a weight of the linear layers.
#define BOOST_TEST_MODULE adapter_memory
#include <boost/test/unit_test.hpp>

#include <megacpp/preset/models.hpp>
#include <megacpp/run/program.hpp>

using namespace mc;

namespace {

struct full {
  static constexpr auto model = preset::qwen3_0_6b;
  static constexpr mc::layout layout{};
  static constexpr batching batch{.micro = 1, .sequence = 512};
  using precision = bf16_mixed;
};
struct qlora : full {
  static constexpr lora adapter{.rank = 16, .alpha = 32, .base = base_storage::nf4};
};

constexpr std::int64_t persistent(const memory_items& m) {
  return m.weights + m.gradients + m.masters + m.moments;
}
constexpr memory_items of_full = memory<full>(), of_qlora = memory<qlora>();
static_assert(1000 * persistent(of_qlora) <= 75 * persistent(of_full));
static_assert(10 * of_qlora.total() <= 2 * of_full.total());

} // namespace

BOOST_AUTO_TEST_CASE(bits_of_a_weight) {
  // q (H, 2 H), k and v (H, H) each, o (2 H, H), gate, up, down (H, 3 H) each
  constexpr std::int64_t hidden = 1024, linear = 28 * hidden * hidden * (2 + 1 + 1 + 2 + 9);
  const graph& g = program<qlora>::part<1>::g;
  std::int64_t bytes = 0, weights = 0;
  for (int k = 0; k < g.parameter_count; ++k) {
    const parameter_info& info = g.parameters[k];
    if (info.encoding == nullptr) continue;
    weights += 28 * global_size(g.at(info.v)).n;
    for (int a = 0; a < info.encoding->count; ++a)
      bytes += 28 * local_bytes(g.ranks, g.at(info.arrays[a]));
  }
  BOOST_TEST(weights == linear);
  const double bits = 8.0 * static_cast<double>(bytes) / static_cast<double>(weights);
  BOOST_TEST_MESSAGE(bits << " bits a weight, "
                          << static_cast<double>(persistent(of_qlora)) /
                                 static_cast<double>(persistent(of_full))
                          << " of the bytes that full training keeps");
  BOOST_TEST((bits > 4.125 && bits <= 4.2), bits);
}
