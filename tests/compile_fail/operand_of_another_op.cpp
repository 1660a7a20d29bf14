// expect-error: MEGA-B003
// expect-text: the name of another op
//
// A kernel that takes its operand for the gate of another op, which stands in the same place.
// Host compilers only: the kernels of the CPU are no CUDA.
// It stands alone: it specialises a template of the library.
#include "handed_on.hpp"

template <> struct mc::kernel_of<&handed_on> {
  using in = handed_on_in;
  using out = handed_on_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::x);
#ifdef MEGACPP_EXPECT_ERROR
    const auto* x = c.in(op::swiglu_in::gate);
#else
    const auto* x = c.in(in::x);
#endif
    for_blocks(c.lane(), n, rows::copy_block<T>{n, reinterpret_cast<const T*>(x), c.out(out::y)});
  }
};

const program_view program_of_run = compiled_program<run>("run");
