// A run in one unit, without CMake's help: the program of README.
// [run]
#include <megacpp/main.hpp>

struct gpt2_124m_on_cpu {
  static constexpr auto model = mc::preset::gpt2_124m;
  static constexpr mc::layout layout{};
  static constexpr mc::batching batch{.micro = 4, .sequence = 256};
  using precision = mc::fp32;
  using device = mc::cpu;
};
int main(int argc, char** argv) { return mc::run<gpt2_124m_on_cpu>(argc, argv); }
// [/run]
