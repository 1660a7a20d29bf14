// Element types: their names, sizes, C++ types and conversions.
#pragma once

#include <megacpp/config/config.hpp>

#include <cstddef>
#include <cstdint>

namespace mc {

enum class dtype : std::uint8_t { f64, f32, bf16, i32, i64, u8 };

constexpr std::int64_t size_of(dtype t) {
  switch (t) {
  case dtype::f64:
  case dtype::i64: return 8;
  case dtype::f32:
  case dtype::i32: return 4;
  case dtype::bf16: return 2;
  case dtype::u8: return 1;
  }
  return 0;
}

constexpr const char* name_of(dtype t) {
  switch (t) {
  case dtype::f64: return "f64";
  case dtype::f32: return "f32";
  case dtype::bf16: return "bf16";
  case dtype::i32: return "i32";
  case dtype::i64: return "i64";
  case dtype::u8: return "u8";
  }
  return "?";
}

/// A bfloat16: the upper half of an IEEE binary32. Conversion from float rounds to nearest, ties to
/// even; a NaN stays a quiet NaN.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  MEGACPP_HD constexpr explicit bf16(float x) : bits(round(x)) {}
  MEGACPP_HD constexpr explicit operator float() const {
    return __builtin_bit_cast(float, static_cast<std::uint32_t>(bits) << 16);
  }
  MEGACPP_HD static constexpr std::uint16_t round(float x) {
    const auto u = __builtin_bit_cast(std::uint32_t, x);
    if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
    return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
};

namespace detail {
template <dtype> struct type_of;
template <> struct type_of<dtype::f64> { using type = double; };
template <> struct type_of<dtype::f32> { using type = float; };
template <> struct type_of<dtype::bf16> { using type = bf16; };
template <> struct type_of<dtype::i32> { using type = std::int32_t; };
template <> struct type_of<dtype::i64> { using type = std::int64_t; };
template <> struct type_of<dtype::u8> { using type = std::uint8_t; };
template <class T> struct accumulator { using type = float; };
template <> struct accumulator<double> { using type = double; };
template <class T> inline constexpr dtype dtype_of = dtype::u8;
template <> inline constexpr dtype dtype_of<double> = dtype::f64;
template <> inline constexpr dtype dtype_of<float> = dtype::f32;
template <> inline constexpr dtype dtype_of<bf16> = dtype::bf16;
template <> inline constexpr dtype dtype_of<std::int32_t> = dtype::i32;
template <> inline constexpr dtype dtype_of<std::int64_t> = dtype::i64;
} // namespace detail

/// The C++ type that stores a dtype.
template <dtype T> using type_of = typename detail::type_of<T>::type;
/// The type in which sums, statistics, gradients and optimizer states of values of type T are kept:
/// double for double, float for float and bf16.
template <class T> using accumulator_t = typename detail::accumulator<T>::type;
template <class T> inline constexpr dtype dtype_of = detail::dtype_of<T>;

constexpr dtype accumulator_of(dtype t) { return t == dtype::f64 ? dtype::f64 : dtype::f32; }

/// Calls f(T{}) for the floating-point element type T that a dtype names.
template <class F> constexpr auto with_float_type(dtype t, F f) {
  switch (t) {
  case dtype::f64: return f(double{});
  case dtype::bf16: return f(bf16{});
  default: return f(float{});
  }
}

/// Converts between any two floating-point element types.
template <class To, class From> MEGACPP_HD constexpr To convert(From x) {
  if constexpr (sizeof(From) == 2) return static_cast<To>(static_cast<float>(x));
  else if constexpr (sizeof(To) == 2) return To(static_cast<float>(x));
  else return static_cast<To>(x);
}
template <> MEGACPP_HD constexpr bf16 convert<bf16, bf16>(bf16 x) { return x; }

} // namespace mc
