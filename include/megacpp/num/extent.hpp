// Extents that are either constants of the type system or run-time numbers, so that one kernel
// serves the compiled executor (constants) and the interpreter (numbers).
#pragma once

#include <megacpp/config/config.hpp>

#include <cstdint>

namespace mc {

/// An extent that is known at compile time and converts to std::int64_t. A kernel takes any `class
/// Extent`, this type or a number, and never asks which it is.
template <std::int64_t N> struct fixed {
  static constexpr std::int64_t value = N;
  MEGACPP_HD constexpr operator std::int64_t() const { return N; }
};

} // namespace mc
