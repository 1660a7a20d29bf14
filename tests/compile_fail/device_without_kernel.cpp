// expect-error: MEGA-B001
// expect-text: embedding_grad(
//
// A second device, which starts bodies and has memory of its own: ops whose kernels are host code
// have none on it. Host compilers only: the kernels of the CPU are no CUDA.
#include "../second_device.hpp"
#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;
using mc_test::second_device;

struct run : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{};
#ifdef MEGACPP_EXPECT_ERROR
  using device = second_device;
#else
  using device = mc::cpu;
#endif
};
const program_view program_of_run = compiled_program<run>("run");
