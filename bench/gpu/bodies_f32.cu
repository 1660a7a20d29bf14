// Row bodies on elements of f32.
#include "bodies.hpp"

namespace gpu {
using namespace mc::rows;

#define MEGACPP_ELEMENT float
#define MEGACPP_BODY(...) \
  template void launch<__VA_ARGS__>(std::int64_t rows, const __VA_ARGS__& body);
#include "bodies.inc"
MEGACPP_BODY(logits_row<float>) // logits are accumulators, whatever the type
#undef MEGACPP_BODY
#undef MEGACPP_ELEMENT

} // namespace gpu
