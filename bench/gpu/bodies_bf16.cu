// Row bodies on elements of bf16.
#include "bodies.hpp"

namespace gpu {

#define MEGACPP_BODY(...) \
  template void launch<__VA_ARGS__>(std::int64_t rows, const __VA_ARGS__& body);
#define MEGACPP_SMALL_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_SHAPED_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_ELEMENT mc::bf16
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_ELEMENT
#undef MEGACPP_SHAPED_BODY
#undef MEGACPP_SMALL_BODY
#undef MEGACPP_BODY

} // namespace gpu
