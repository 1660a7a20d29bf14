// expect-error: MEGA-C005
// expect-text: family, made of its name, and contradiction(), a sentence or null
//
// What stands in for a family that is none has one head and one layer: it is laid out over one rank
// of one memory, not as the run is, so that the one sentence stays alone.
#include "one_layer.hpp"

struct decoder : mc::gpt {
#ifdef MEGACPP_EXPECT_ERROR
  constexpr bool contradiction() const { return false; }
#endif
};

struct run : small_run {
  static constexpr decoder model{small()};
  static constexpr mc::layout layout{.tp = 2, .pp = 2, .cp = 2, .sequence_parallel = true};
  static constexpr std::int64_t device_memory = 1 << 20;
};
static_assert(mc::program<run>::ok);

#ifdef MEGACPP_EXPECT_ERROR
// nor is a batch that stands in cut, or the run's memory asked of a layout that does
struct no_batch {
  static constexpr mc::gpt model{.positions = 4};
  static constexpr mc::layout layout = run::layout;
  using precision = mc::fp32;
};
static_assert(mc::detail::members_of<no_batch>::numbers().ranks == mc::layout{});
#endif
