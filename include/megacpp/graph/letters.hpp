// The states of a placement by one letter, as tables print them: to(x, axis::tp, R). A model
// includes this header by choice, since its names meet macros of other headers: <complex.h> defines
// I.
#pragma once

#include <megacpp/graph/placement.hpp>

namespace mc {

inline constexpr place I = invariant, R = replicate, P = partial;
constexpr place S(dim d) { return shard(d); }

} // namespace mc
