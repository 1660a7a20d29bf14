// expect-error: MEGA-C005
//
// A number that the list of members lacks, and a block that is not constexpr: the first of the two is
// told, and nothing is made of the second.
#include "one_layer.hpp"

using namespace mc;

struct plain : gpt {
  double scale = 1;
#ifdef MEGACPP_EXPECT_ERROR
  var block(context& c, int /*kind*/, var x) const {
#else
  static constexpr auto members = gpt::members + member_list<&plain::scale>{};
  constexpr var block(context& c, int /*kind*/, var x) const {
#endif
    return x + layer_norm(c, "norm", x, bias, eps);
  }
};

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
