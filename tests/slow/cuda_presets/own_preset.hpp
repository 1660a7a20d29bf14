#pragma once

#include "own_family.hpp"

namespace mc::preset {
inline constexpr own::decoder own_decoder{};
} // namespace mc::preset
