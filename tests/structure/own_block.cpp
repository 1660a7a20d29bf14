// The block of one's own in docs/using-megacpp.md: its run is proven.
#include "../../examples/own-project/parallel_gpt.hpp"

static_assert(mc::program<my_parallel_gpt>::ok);
