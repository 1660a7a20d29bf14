// expect-error: MEGA-C009
// expect-text: frozen(mlp.up)
//
// A run freezes a projection by the name that another family has for it. Were the
// name not refused, that projection would be trained, and nobody told.
#include "one_layer.hpp"

using namespace mc;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr mc::frozen frozen{"embedding", "attn", "mlp.up"};
#else
  static constexpr mc::frozen frozen{"embedding", "attn", "mlp.fc"};
#endif
};
static_assert(program<run>::ok);
