// Row bodies on elements of bf16.
#include "bodies.hpp"

namespace gpu {
using namespace mc::rows;

#define MEGACPP_ELEMENT mc::bf16
#define MEGACPP_BODY(...) \
  template void launch<__VA_ARGS__>(std::int64_t rows, const __VA_ARGS__& body);
#include "bodies.inc"
#undef MEGACPP_BODY
#undef MEGACPP_ELEMENT

} // namespace gpu
