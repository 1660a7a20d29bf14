// This header has the element types of the safetensors format: their names, their sizes, and the
// types of this library that they correspond to.
#pragma once

#include <megacpp/num/dtype.hpp>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

namespace mc {

/// storage_type is the type of a tensor's elements in a file. The order is the format's own:
/// writers store tensors of later types first.
enum class storage_type : std::uint8_t {
  boolean,
  f4,
  f6_e2m3,
  f6_e3m2,
  u8,
  i8,
  f8_e5m2,
  f8_e4m3,
  f8_e8m0,
  f8_e4m3fnuz,
  f8_e5m2fnuz,
  i16,
  u16,
  f16,
  bf16,
  i32,
  u32,
  f32,
  c64,
  f64,
  i64,
  u64,
};

namespace detail {
struct storage_info {
  std::string_view name;
  std::uint32_t bits;
};
inline constexpr std::array<storage_info, 22> storage_infos{{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};
} // namespace detail

constexpr std::string_view name_of(storage_type t) {
  return detail::storage_infos[static_cast<std::size_t>(t)].name;
}
/// Returns the bits of one element. Elements of F4 and F6 types are packed without gaps.
constexpr std::uint32_t bits_of(storage_type t) {
  return detail::storage_infos[static_cast<std::size_t>(t)].bits;
}
constexpr std::optional<storage_type> storage_type_named(std::string_view name) {
  for (std::size_t i = 0; i < detail::storage_infos.size(); ++i)
    if (detail::storage_infos[i].name == name) return static_cast<storage_type>(i);
  return std::nullopt;
}
constexpr storage_type storage_of(dtype t) {
  switch (t) {
  case dtype::f64: return storage_type::f64;
  case dtype::f32: return storage_type::f32;
  case dtype::bf16: return storage_type::bf16;
  case dtype::i32: return storage_type::i32;
  case dtype::i64: return storage_type::i64;
  case dtype::u8: return storage_type::u8;
  }
  return storage_type::u8;
}

/// Converts an IEEE binary16 (F16) to float, exactly. A normal number keeps its fields, moved to
/// the places of float's; a subnormal number is m * 2^-24.
constexpr float half_to_float(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
  const std::uint32_t exponent = (bits >> 10) & 31u, mantissa = bits & 0x3ffu;
  if (exponent == 0) {
    const float m = static_cast<float>(mantissa) * 0x1p-24f;
    return sign ? -m : m;
  }
  // 112 = 127 - 15, the difference of the exponents' biases.
  const std::uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | (wide << 23) | (mantissa << 13));
}

/// Returns the type of weights that has this name; nothing for other names.
inline std::optional<storage_type> weight_type_named(std::string_view name) {
  if (name == "fp32") return storage_type::f32;
  if (name == "bf16") return storage_type::bf16;
  if (name == "fp64") return storage_type::f64;
  return std::nullopt;
}

/// Returns element i of a tensor as double. The bytes may have any alignment.
inline double stored_element(std::span<const std::byte> bytes, dtype type, std::int64_t i) {
  return with_float_type(type, [&]<class T>(T value) {
    std::memcpy(&value, bytes.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
    return convert<double>(value);
  });
}

} // namespace mc
