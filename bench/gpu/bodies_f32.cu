// Row bodies on elements of f32, and those that have no elements of a type.
#include "bodies.hpp"

namespace gpu {
using namespace mc::rows;

#define MEGACPP_ELEMENT float
#define MEGACPP_BODY(...) \
  template void launch<__VA_ARGS__>(std::int64_t rows, const __VA_ARGS__& body);
#include "bodies.inc"
#include "bodies_once.inc"
#undef MEGACPP_BODY
#undef MEGACPP_ELEMENT

} // namespace gpu
