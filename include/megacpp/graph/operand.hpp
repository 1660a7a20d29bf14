// Names of the operands and outputs of ops.
//
//   struct scale_in : input_names<scale_in> {
//     static constexpr name<0> x{};
//     static constexpr name<1, element::sum> factor{};
//   };
//
// A name says which number an operand has in its node, and the type of its elements. Rules and
// adjoints use it as an integer; a kernel uses it to get the operand's pointer, with its type.
// Several ops may share a list. op_info::operands names the lists of an op, so that a name from
// another op's list is refused.
#pragma once

#include <megacpp/num/dtype.hpp>

#include <cstdint>

namespace mc {

/// The type of an operand's elements, as it follows from the operand's node.
enum class element : std::uint8_t {
  of_node, ///< the type that selects the node's kernel (op_info::typed_by)
  sum,     ///< the type that sums of `of_node` have: accumulator_t
  u8,      ///< bytes whose meaning the op knows
  i32,
  i64,
  f64,
  moment,    ///< the type that moments have (recipe/precision.hpp)
  converted, ///< a type that the node's attributes or rule decide
  bytes      ///< scratch, which has no type
};

template <class List, int K, element E, bool Output> struct operand_name {
  using list = List;
  static constexpr int at = K;
  static constexpr element is = E;
  static constexpr bool output = Output;
  // NOLINTNEXTLINE(google-explicit-constructor): a name is used as its number.
  constexpr operator int() const { return K; }
};
template <class List> struct input_names {
  template <int K, element E = element::of_node> using name = operand_name<List, K, E, false>;
};
template <class List> struct output_names {
  template <int K, element E = element::of_node> using name = operand_name<List, K, E, true>;
};

/// Returns a mask with bit k for operand or output k of an op, as op_info has them.
template <class List, bool Output, int... K, element... E>
constexpr unsigned mask_of(operand_name<List, K, E, Output>... /*names*/) {
  return ((1u << K) | ...);
}

/// Maps an element kind to the C++ type of an operand whose node has type T.
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

/// The lists of operands and outputs of an op. The address of each identifies its list.
struct operand_lists {
  const char* in = nullptr;
  const char* out = nullptr;
};
namespace detail {
template <class List> inline constexpr char tag_of_list = 0;
} // namespace detail
/// The two lists of an op, as op_info::operands has them. An op without outputs has no Out.
template <class In, class Out = void>
inline constexpr operand_lists named{&detail::tag_of_list<In>, &detail::tag_of_list<Out>};

/// The dims From to To - 1 of an operand. Negative numbers count from the end, and To = 0 is the
/// end.
template <int From, int To> struct dim_range {};
template <int From, int To = 0> inline constexpr dim_range<From, To> dims{};
/// A type that is passed as an argument.
template <class A> struct type_tag { using type = A; };
template <class A> inline constexpr type_tag<A> of_type{};

} // namespace mc
