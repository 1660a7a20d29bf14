#include <megacpp/megacpp.hpp>

struct my_gpt {
  static constexpr mc::gpt model{.layers = 4,
                                 .hidden = 128,
                                 .heads = 4,
                                 .ffn = 512,
                                 .vocabulary = 256, // bytes
                                 .positions = 128};
  static constexpr mc::layout layout{}; // one process
  static constexpr mc::batching batch{.micro = 8, .sequence = 128};
  using precision = mc::fp32;
};
