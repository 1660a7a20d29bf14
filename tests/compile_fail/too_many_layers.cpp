// expect-error: MEGA-C001
// expect-text: layers is 1000000, more than 512
//
// A slip in the number of layers: one sentence, where the compiler would count them until its limit.
#include "one_layer.hpp"

#include <megacpp/plan/count.hpp>

struct run : small_run {
  static constexpr mc::gpt model = [] {
    mc::gpt m = small();
#ifdef MEGACPP_EXPECT_ERROR
    m.layers = 1'000'000;
#else
    m.layers = mc::max_layers;
#endif
    return m;
  }();
  static constexpr mc::layout layout{};
  static constexpr std::int64_t device_memory = std::int64_t{1} << 40;
};
static_assert(mc::program<run>::ok);
static_assert(mc::program<run>::parameters == mc::parameter_count(run::model));
