// The kernels that no run shapes.
#define MEGACPP_KERNELS // here they are
#include "kernels.hpp"
