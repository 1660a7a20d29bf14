// Attributes: the constants that a node has beside its operands. An op with attributes has a struct
// of at most six numbers, flags, enumerators, places and sets of axes, which op_info::attributes
// names:
//
//   struct rope_attributes { double base; std::int64_t direction; ... };
//   inline constexpr op_info rope{..., .attributes = attributes_of<rope_attributes>};
//
//   b.emit(op::rope, {x, positions}, line, rope_attributes{1e4, 1});
//   const auto a = n.attr.as<rope_attributes>();
//
// A node keeps its attributes as 64-bit integers. Passes compare and mix these without knowing
// their meaning.
#pragma once

#include <megacpp/graph/placement.hpp>

#include <bit>
#include <concepts>
#include <cstdint>
#include <stdexcept>
#include <type_traits>
#include <utility>

namespace mc {

inline constexpr int max_attributes = 6; ///< most attributes that a node has

/// The kind of an attribute: a real number, an integer (or a flag), or something that has a name:
/// an enumerator, a place or a set of axes.
enum class attribute_kind : std::uint8_t { real, integer, named };

namespace detail {

constexpr std::int64_t bits_of(double x) { return std::bit_cast<std::int64_t>(x); }
constexpr std::int64_t bits_of(axis_set s) { return s.bits; }
constexpr std::int64_t bits_of(place p) {
  return static_cast<int>(p.s) | static_cast<int>(p.d) << 8 | p.level << 16 |
         static_cast<int>(p.by) << 24;
}
template <class T>
requires std::integral<T> || std::is_enum_v<T>
constexpr std::int64_t bits_of(T x) { return static_cast<std::int64_t>(x); }

/// The stored bits of an attribute, which convert to the type of the member that they initialise.
/// The conversion makes few calls, since each is a step of a constant evaluation.
struct attribute_bits {
  std::int64_t bits = 0;

  template <class T> constexpr operator T() const {
    if constexpr (std::floating_point<T>) {
      return static_cast<T>(std::bit_cast<double>(bits));
    } else if constexpr (std::same_as<T, place>) {
      return {static_cast<state>(bits & 0xff), static_cast<dim>(bits >> 8 & 0xff),
              static_cast<std::int8_t>(bits >> 16 & 0xff),
              static_cast<reduction>(bits >> 24 & 0xff)};
    } else if constexpr (std::same_as<T, axis_set>) {
      return axis_set::of_bits(static_cast<int>(bits));
    } else {
      static_assert(std::integral<T> || std::is_enum_v<T>,
                    "attributes are numbers, flags, enumerators, places and sets of axes");
      return static_cast<T>(bits);
    }
  }
};

template <int> using any_bits = attribute_bits;
template <class A, int... K> consteval bool has_members(std::integer_sequence<int, K...>) {
  return requires { A{any_bits<K>{}...}; };
}
template <class A, int... K>
constexpr A from_bits(const std::int64_t* w, std::integer_sequence<int, K...>) {
  return A{attribute_bits{w[K]}...};
}
template <class A, int N = max_attributes + 1> consteval int count_members() {
  if constexpr (N == 0 || has_members<A>(std::make_integer_sequence<int, N>{})) return N;
  else return count_members<A, N - 1>();
}
template <class M> inline constexpr attribute_kind kind_of =
    std::floating_point<M> ? attribute_kind::real
    : std::integral<M>     ? attribute_kind::integer
                           : attribute_kind::named;
/// The members of a struct of attributes: the bits and the kind of each.
struct attribute_members {
  std::int64_t bits[max_attributes];
  attribute_kind kind[max_attributes];
};
template <class... M> constexpr attribute_members bits_of_members(const M&... m) {
  static_assert(sizeof...(M) <= max_attributes, "an op has at most six attributes");
  return {{bits_of(m)...}, {kind_of<M>...}};
}
template <int N> using members = std::integral_constant<int, N>;
template <class A> constexpr attribute_members take(const A& a, members<1>) {
  const auto& [p] = a;
  return bits_of_members(p);
}
template <class A> constexpr attribute_members take(const A& a, members<2>) {
  const auto& [p, q] = a;
  return bits_of_members(p, q);
}
template <class A> constexpr attribute_members take(const A& a, members<3>) {
  const auto& [p, q, r] = a;
  return bits_of_members(p, q, r);
}
template <class A> constexpr attribute_members take(const A& a, members<4>) {
  const auto& [p, q, r, s] = a;
  return bits_of_members(p, q, r, s);
}
template <class A> constexpr attribute_members take(const A& a, members<5>) {
  const auto& [p, q, r, s, t] = a;
  return bits_of_members(p, q, r, s, t);
}
template <class A> constexpr attribute_members take(const A& a, members<6>) {
  const auto& [p, q, r, s, t, u] = a;
  return bits_of_members(p, q, r, s, t, u);
}
template <class A> constexpr attribute_members take(const A& a) {
  static_assert(count_members<A>() >= 1 && count_members<A>() <= max_attributes,
                "an op has one to six attributes");
  return take(a, members<count_members<A>()>{});
}

} // namespace detail

/// A type of attributes as data: the number of its members, and the kind of each.
struct attribute_type {
  int count = 0;
  attribute_kind kind[max_attributes]{};
};

namespace detail {
template <class A> constexpr attribute_type make_attribute_type() {
  const attribute_members m = take(A{});
  attribute_type t{count_members<A>()};
  for (int k = 0; k < t.count; ++k) t.kind[k] = m.kind[k];
  return t;
}
template <class A> inline constexpr attribute_type type_of_attributes = make_attribute_type<A>();
} // namespace detail

/// The description of the attribute struct A, as op_info::attributes takes it.
template <class A> inline constexpr const attribute_type* attributes_of =
    &detail::type_of_attributes<A>;

/// The attributes of a node; by default it has none.
struct attributes {
  const attribute_type* type = nullptr;
  std::int64_t bits[max_attributes]{};

  constexpr attributes() = default;
  template <class A>
  requires std::is_aggregate_v<A>
  constexpr attributes(const A& a) : type(attributes_of<A>) {
    const auto members = detail::take(a);
    for (int k = 0; k < type->count; ++k) bits[k] = members.bits[k];
  }

  template <class A> constexpr bool are() const { return type == attributes_of<A>; }
  /// Returns the attributes as the struct A that they were made from. With another struct this is
  /// no constant expression, and at run time it throws std::logic_error.
  template <class A> constexpr A as() const {
    if (!are<A>()) throw std::logic_error("attributes are read as another type than they have");
    return detail::from_bits<A>(bits,
                                std::make_integer_sequence<int, detail::count_members<A>()>{});
  }
  constexpr int count() const { return type == nullptr ? 0 : type->count; }
  constexpr bool operator==(const attributes& o) const {
    bool same = type == o.type;
    for (int k = 0; same && k < count(); ++k) same = bits[k] == o.bits[k];
    return same;
  }
};

} // namespace mc
