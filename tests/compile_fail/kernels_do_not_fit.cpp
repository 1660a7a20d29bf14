// expect-error: MEGA-M001
// expect-text: training needs
//
// Training whose values fit into what the run says a device has, but not with what its kernels
// need beside them. Host compilers only: the kernels of the CPU are no CUDA.
// It stands alone: the compiler gives its error at the end of a source.
#include "one_layer.hpp"

#include <megacpp/exec/cpu.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/run/compiled.hpp>

using namespace mc;

struct values : small_run {
  static constexpr gpt model = small();
  static constexpr mc::layout layout{};
};
constexpr std::int64_t of_values = memory<values>().total();
static_assert(!fits<values>(of_values) && fits<values>(of_values + (std::int64_t{1} << 29)));

struct run : values {
#ifdef MEGACPP_EXPECT_ERROR
  static constexpr std::int64_t device_memory = of_values;
#else
  static constexpr std::int64_t device_memory = of_values + (std::int64_t{1} << 29);
#endif
};
const program_view program_of_run = compiled_program<run>("run");
