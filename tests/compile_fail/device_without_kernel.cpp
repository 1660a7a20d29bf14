// expect-error: MEGA-B001
// expect-text: embedding_grad(
//
// A second device, which starts bodies and has memory of its own: an op whose kernel is host code has
// none on it. Host compilers only: the kernels of the CPU are no CUDA.
// It stands alone: it specialises a template of the library.
#include "../second_device.hpp"
#include "one_layer.hpp"

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;
using mc_test::second_device;

template <> struct mc::kernel_on<&mc::op::embedding_grad, second_device> {
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c);
};

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
