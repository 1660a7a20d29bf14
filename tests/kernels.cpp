// The interpreter's kernels, which take longest to compile, once for all tests.
#include <megacpp/run/interpreter.hpp>

template mc::kernel_table mc::kernel_table::all<void>();
