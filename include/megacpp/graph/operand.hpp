// Names of the operands and outputs of ops.
//
//   struct scale_in : input_names<scale_in> {
//     static constexpr name<0> x{};
//     static constexpr name<1, element::sum> factor{};
//   };
//
// A name says the place of an operand in its node, and what its elements are. It is an integer
// where a rule or an adjoint wants one; a kernel gets the operand's pointer by it, typed. Several
// ops may share a list. An op has its lists as op_info::operands, so that the name of another op's
// operand is refused.
#pragma once

#include <megacpp/num/dtype.hpp>

#include <cstdint>

namespace mc {

/// The type of an operand's elements, as it follows from the node that the operand belongs to.
enum class element : std::uint8_t {
  of_node, ///< those that the node is typed by (op_info::typed_by)
  sum,     ///< what sums of them are kept in: accumulator_t
  u8,      ///< bytes whose meaning the op knows
  i32,
  i64,
  f64,
  moment,    ///< the type of this role (recipe/precision.hpp)
  converted, ///< of a type that the node's attributes or rule decide
  bytes      ///< scratch
};

template <class List, int K, element E, bool Output> struct operand_name {
  using list = List;
  static constexpr int at = K;
  static constexpr element is = E;
  static constexpr bool output = Output;
  // NOLINTNEXTLINE(google-explicit-constructor): it is that number
  constexpr operator int() const { return K; }
};
template <class List> struct input_names {
  template <int K, element E = element::of_node> using name = operand_name<List, K, E, false>;
};
template <class List> struct output_names {
  template <int K, element E = element::of_node> using name = operand_name<List, K, E, true>;
};

/// Operands or outputs of one op as a mask, bit k for number k (op_info::changes and constants).
template <class List, bool Output, int... K, element... E>
constexpr unsigned mask_of(operand_name<List, K, E, Output>... /*names*/) {
  return ((1u << K) | ...);
}

/// The type of elements E of an operand of a node of type T.
template <element E, class T> struct type_of_element { using type = T; };
template <class T> struct type_of_element<element::sum, T> { using type = accumulator_t<T>; };
template <class T> struct type_of_element<element::u8, T> { using type = std::uint8_t; };
template <class T> struct type_of_element<element::i32, T> { using type = std::int32_t; };
template <class T> struct type_of_element<element::i64, T> { using type = std::int64_t; };
template <class T> struct type_of_element<element::f64, T> { using type = double; };
template <class T> struct type_of_element<element::moment, T> { using type = std::byte; };
template <class T> struct type_of_element<element::converted, T> { using type = std::byte; };
template <class T> struct type_of_element<element::bytes, T> { using type = std::byte; };
template <class Name, class T> using element_t = typename type_of_element<Name::is, T>::type;

/// The lists of an op, told apart by their addresses.
struct operand_lists {
  const char* in = nullptr;
  const char* out = nullptr;
};
namespace detail {
template <class List> inline constexpr char tag_of_list = 0;
} // namespace detail
/// The two lists of an op, as op_info::operands has them. An op without results has no Out.
template <class In, class Out = void>
inline constexpr operand_lists named{&detail::tag_of_list<In>, &detail::tag_of_list<Out>};

/// Dims [From, To) of an operand: negative ones count from the end, To = 0 is the end.
template <int From, int To> struct dim_range {};
template <int From, int To = 0> inline constexpr dim_range<From, To> dims{};
/// A type as an argument.
template <class A> struct type_tag { using type = A; };
template <class A> inline constexpr type_tag<A> of_type{};

} // namespace mc
