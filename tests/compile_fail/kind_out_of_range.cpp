// expect-error: MEGA-C001
// expect-text: kind_of(2) is 2, not in 0 ... 1
//
// Three kinds of block are meant and two are declared: layer 2 would silently be another kind's.
#include "one_layer.hpp"

struct alternating : mc::gpt {
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr int kinds = 2;
#else
  static constexpr int kinds = 3;
#endif
  constexpr int kind_of(int layer) const { return layer % 3; }
};

constexpr alternating six() {
  alternating m{small()};
  m.layers = 6;
  return m;
}

struct run : small_run {
  static constexpr alternating model = six();
  static constexpr mc::layout layout{};
};
static_assert(mc::program<run>::ok);
