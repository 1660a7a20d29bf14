// Shapes of products in JSON: `describe` lists the shapes of a program, and a table of tuned
// products has a shape beside each way.
#pragma once

#include <megacpp/exec/product_shape.hpp>
#include <megacpp/io/json_file.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// Calls f(name, field) for every field of a shape, in order. A field of product_shape that is not
/// named here does not compile, so that two different shapes never have the same JSON.
template <class Shape, class F> void each_shape_field(Shape& s, F f) {
  auto& [kind, M, N, K, x_stride, y_stride, a, b, out, scaled, bias, ends_in, accumulate,
         dynamic_rows, groups, group_rows, segment, sums, sum_block, panel] = s;
  f("kind", kind), f("M", M), f("N", N), f("K", K);
  f("x_stride", x_stride), f("y_stride", y_stride), f("a", a), f("b", b), f("out", out);
  f("scaled", scaled), f("bias", bias), f("ends_in", ends_in), f("accumulate", accumulate);
  f("dynamic_rows", dynamic_rows), f("groups", groups);
  f("group_rows", group_rows), f("part", segment), f("sums", sums), f("chunk", sum_block),
      f("panel", panel);
}

/// Return the values that a shape's field of an enumeration may have.
constexpr std::array<product_kind, 3> values_like(product_kind) {
  return {product_kind::forward, product_kind::input_gradient, product_kind::weight_gradient};
}
constexpr std::array<dtype, 3> values_like(dtype) { return {dtype::f64, dtype::f32, dtype::bf16}; }
constexpr std::array<numerics, 2> values_like(numerics) {
  return {numerics::fast, numerics::batch_invariant};
}
constexpr std::array<product_end, 4> values_like(product_end) {
  return {product_end::sum, product_end::gelu, product_end::gelu_kept, product_end::gelu_gradient};
}

} // namespace detail

/// Returns the path of an object's field, for people: with the fields that lead to it.
inline std::string place_of(const json_value& object, std::string_view field) {
  return object.path().empty() ? std::string(field) : fmt::format("{}.{}", object.path(), field);
}

/// Writes a shape as a JSON object: its kind, extents and types, and all fields that differ from
/// those of a default shape.
inline json_output json_of(const product_shape& s) {
  json_output of = json_output::object();
  const product_shape plain{};
  json_output usual = json_output::object();
  const auto add = [](json_output& to) {
    return [&to](const char* name, const auto& v) {
      if constexpr (std::is_enum_v<std::remove_cvref_t<decltype(v)>>) to[name] = name_of(v);
      else to[name] = v;
    };
  };
  detail::each_shape_field(s, add(of)), detail::each_shape_field(plain, add(usual));
  constexpr std::string_view always[] = {"kind", "M", "N", "K", "a", "b", "out"};
  for (const auto& [name, value] : usual.items())
    if (of[name] == value && std::ranges::find(always, name) == std::end(always)) of.erase(name);
  return of;
}

/// Reads a shape that json_of has written. Throws mc::error, with the field's name, for a field
/// that is missing, of another type, out of range, or not known, such as one of a later version.
inline product_shape product_shape_of(const json_value& of) {
  product_shape s;
  json_output known = json_output::object();
  const auto require = [&](bool right, const char* field, std::string_view must) {
    if (!right)
      throw of.fault(
          fmt::format("field \"{}\" {}; make the file again with this version of megacpp",
                      place_of(of, field), must));
  };
  detail::each_shape_field(s, [&]<class V>(const char* name, V& v) {
    known[name] = true;
    if constexpr (std::is_enum_v<V>) {
      const bool optional = std::is_same_v<V, numerics> || std::is_same_v<V, product_end>;
      if (optional && !of.has(name)) return;
      const auto word = of.field<std::string>(name);
      std::string words;
      bool found = false;
      for (const V one : detail::values_like(v)) {
        words += fmt::format("{}{}", words.empty() ? "" : ", ", name_of(one));
        if (word == name_of(one)) v = one, found = true;
      }
      require(found, name, fmt::format("is \"{}\", and must be one of {}", printable(word), words));
    } else if constexpr (std::is_same_v<V, bool>) {
      if (of.has(name)) v = of.field<bool>(name);
    } else {
      const std::string_view field = name;
      const bool extent = field == "M" || field == "N" || field == "K";
      constexpr std::int64_t most = std::int64_t{1} << 40;
      if (extent || of.has(name)) v = of.field<std::int64_t>(name, extent ? 1 : 0, most);
    }
  });
  for (const auto& [name, value] : of.raw().items())
    require(known.contains(name), name.c_str(), "is none that this version of megacpp knows");
  require(s.x_row() >= s.K, "x_stride", "is less than a row has elements");
  require(s.y_row() >= s.N, "y_stride", "is less than a row has elements");
  require(s.segment == 0 || s.M % s.segment == 0, "part", "does not divide the rows");
  return s;
}

} // namespace mc
