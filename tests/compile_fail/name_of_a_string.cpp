// expect-error: MEGA-C005
//
// A name that a text of the function holds, and that is gone when the graph is read.
#include "one_layer.hpp"

#include <string>
#include <string_view>

using namespace mc;

struct plain : gpt {
  constexpr var block(context& c, int /*kind*/, var x) const {
#ifdef MEGACPP_EXPECT_ERROR
    const std::string scope("the_norm_of_the_block");
#else
    const std::string_view scope("the_norm_of_the_block");
#endif
    return x + layer_norm(c, scope.data(), x, bias, eps);
  }
};

struct run : small_run {
  static constexpr plain model{small()};
  static constexpr mc::layout layout{};
};
static_assert(program<run>::ok);
