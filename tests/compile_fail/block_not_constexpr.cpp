// expect-error: MEGA-C005
//
// A block that is not constexpr, so that no compiler can make its graph.
#include "one_layer.hpp"

using namespace mc;

struct plain : gpt {
#ifdef MEGACPP_EXPECT_ERROR
  var block(context& c, int /*kind*/, var x) const {
#else
  constexpr var block(context& c, int /*kind*/, var x) const {
#endif
      return x + layer_norm(c, "norm", x, bias, eps);
}
}
;

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
