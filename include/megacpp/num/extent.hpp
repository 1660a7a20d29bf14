// Extents that are either constants of the type system or run-time numbers, so that one kernel
// serves the compiled executor (constants) and the interpreter (numbers).
#pragma once

#include <megacpp/config/config.hpp>

#include <cstdint>

namespace mc {

/// An extent known at compile time. Converts to std::int64_t; a kernel takes `class Extent` and
/// never asks which of the two it was given.
template <std::int64_t N> struct fixed {
  static constexpr std::int64_t value = N;
  MEGACPP_HD constexpr operator std::int64_t() const { return N; }
};

} // namespace mc
