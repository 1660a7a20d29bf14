// Row bodies on elements of f32, and those that have no elements of a type.
#include "bodies.hpp"

namespace gpu {

#define MEGACPP_BODY(...) \
  template void launch<__VA_ARGS__>(std::int64_t rows, const __VA_ARGS__& body);
#define MEGACPP_SMALL_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_SHAPED_BODY(...) MEGACPP_BODY(__VA_ARGS__)
#define MEGACPP_ELEMENT float
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_ELEMENT
#define MEGACPP_SUM float
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_SUM
#include <megacpp/kernel/rows/bodies.inc>
#undef MEGACPP_SHAPED_BODY
#undef MEGACPP_SMALL_BODY
#undef MEGACPP_BODY

} // namespace gpu
