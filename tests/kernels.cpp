// The interpreter's kernels and what computes products, which take longest to compile, once for all
// tests.
#define MEGACPP_KERNELS // here they are
#include "kernels.hpp"
