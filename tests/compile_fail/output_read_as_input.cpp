// expect-error: MEGA-B003
// expect-text: reads an output as an input
//
// A kernel that reads its result before it is there.
// Host compilers only: the kernels of the CPU are no CUDA.
// It stands alone: it specialises a template of the library.
#include "handed_on.hpp"

template <> struct mc::kernel_of<&handed_on> {
  using in = handed_on_in;
  using out = handed_on_out;
  template <class T, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::x);
#ifdef MEGACPP_EXPECT_ERROR
    const auto* x = c.in(out::y);
#else
    const auto* x = c.in(in::x);
#endif
    for_blocks(c.lane(), n, rows::copy_block<T>{n, reinterpret_cast<const T*>(x), c.out(out::y)});
  }
};

const program_view program_of_run = compiled_program<run>("run");
