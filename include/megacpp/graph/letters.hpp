// The states of a placement by one letter, as their tables have them: to(x, axis::tp, R). They are
// opted into by including this header, for such names meet macros of others: <complex.h> defines I.
#pragma once

#include <megacpp/graph/placement.hpp>

namespace mc {

inline constexpr place I = invariant, R = replicate, P = partial;
constexpr place S(dim d) { return shard(d); }

} // namespace mc
