// The description of a model: its family, and a list of its members. States, `describe`, the
// Hugging Face codecs and the text of a model in C++ read this list. The name of a member is its
// name in the source.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace mc {

/// The name of a family, and the struct that defines it. A struct that derives from it without a
/// name of its own is another family, since it may compute something else.
template <class Model> struct family_name {
  using model = Model;
  const char* text = nullptr;
};

namespace detail {

template <class T> constexpr std::string_view signature_with() { return __PRETTY_FUNCTION__; }

/// Returns the name of a type as the compiler writes it, with namespaces and arguments. It stands
/// in the text of __PRETTY_FUNCTION__ where that of a known type stands.
template <class T> constexpr std::string_view type_name() {
  constexpr std::string_view known = signature_with<double>();
  constexpr std::size_t before = known.find("double"), around = known.size() - 6;
  return signature_with<T>().substr(before, signature_with<T>().size() - around);
}
/// Returns the name of a type without its namespaces.
template <class T> constexpr std::string_view short_type_name() {
  const std::string_view name = type_name<T>();
  const std::size_t colon = name.substr(0, name.find('<')).rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

template <auto Member> constexpr const char* signature_with_member() { return __PRETTY_FUNCTION__; }

/// Returns the name of a member. All compilers end their text in &scope::name and a bracket.
template <auto Member> constexpr std::string_view member_name() {
  std::string_view name = signature_with_member<Member>();
  name.remove_prefix(name.rfind("::") + 2);
  return name.substr(0, name.find_first_of("]);"));
}

template <class Pointer> struct pointer_to_member;
template <class Owner, class T> struct pointer_to_member<T Owner::*> {
  using owner = Owner;
  using type = T;
};

} // namespace detail

/// The members of a family, as pointers to them, in the order of their declaration. A struct that
/// derives from a family and has members of its own lists them behind the members of the family:
///     static constexpr auto members = mc::gpt::members + mc::member_list<&own::theta>{};
template <auto... Members> struct member_list {
  /// Calls f(name, value) for every member of m, in order.
  template <class Model, class F> static constexpr void each(const Model& m, F&& f) {
    (f(detail::member_name<Members>(), m.*Members), ...);
  }

  /// Returns whether every member is listed only once.
  static constexpr bool distinct() {
    constexpr auto same = []<class A, class B>(A a, B b) {
      if constexpr (std::is_same_v<A, B>) return a == b;
      else return false;
    };
    const auto times = [&](auto one) { return (... + static_cast<int>(same(one, Members))); };
    return (... && (times(Members) == 1));
  }

  /// Returns the size in bytes of a struct with these members alone. It is less than the size of
  /// the model if the list lacks a member that does not fit between two others.
  static constexpr std::size_t size() {
    std::size_t end = 0, greatest = 1, owner = 0;
    const auto add = [&](std::size_t bytes, std::size_t alignment, std::size_t owner_size) {
      if (owner_size != owner && end < owner) end = owner; // the base is complete
      end = (end + alignment - 1) / alignment * alignment + bytes;
      greatest = greatest < alignment ? alignment : greatest, owner = owner_size;
    };
    (add(sizeof(typename detail::pointer_to_member<decltype(Members)>::type),
         alignof(typename detail::pointer_to_member<decltype(Members)>::type),
         sizeof(typename detail::pointer_to_member<decltype(Members)>::owner)),
     ...);
    return (end + greatest - 1) / greatest * greatest;
  }
};
template <auto... Base, auto... Own>
constexpr member_list<Base..., Own...> operator+(member_list<Base...>, member_list<Own...>) {
  return {};
}

namespace detail {
template <class T> inline constexpr bool is_member_list = false;
template <auto... Members> inline constexpr bool is_member_list<const member_list<Members...>> =
    true;
} // namespace detail

template <class Model>
concept lists_its_members = requires {
  requires detail::is_member_list<decltype(Model::members)>;
};

/// Holds for a type of member that files need not store, since the kind of every layer, which they
/// store, says the same.
template <class T> inline constexpr bool told_by_kinds = false;

} // namespace mc
