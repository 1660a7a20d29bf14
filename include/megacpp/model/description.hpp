// What a model tells of itself: its family, and its members, listed once. Files, `describe`, the
// Hugging Face codecs and the text of a model in C++ are made of that list; a member's name is what
// it is called in the source.
#pragma once

#include <cstddef>
#include <string_view>
#include <type_traits>

namespace mc {

/// The name of a family, and the struct that is it: one that derives from it and gives no name of
/// its own is another family, for it may compute something else.
template <class Model> struct family_name {
  using model = Model;
  const char* text = nullptr;
};

namespace detail {

template <class T> constexpr std::string_view signature_with() { return __PRETTY_FUNCTION__; }

/// The name of a type as the compiler writes it, with namespaces and arguments: where that stands
/// in its sentence is where a known one does.
template <class T> constexpr std::string_view type_name() {
  constexpr std::string_view known = signature_with<double>();
  constexpr std::size_t before = known.find("double"), around = known.size() - 6;
  return signature_with<T>().substr(before, signature_with<T>().size() - around);
}
/// The same without the namespaces it stands in.
template <class T> constexpr std::string_view short_type_name() {
  const std::string_view name = type_name<T>();
  const std::size_t colon = name.substr(0, name.find('<')).rfind(':');
  return colon == std::string_view::npos ? name : name.substr(colon + 1);
}

template <auto Member> constexpr const char* signature_with_member() { return __PRETTY_FUNCTION__; }

/// The name of a member: all compilers end their sentence in &scope::name and a bracket.
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
/// derives from a family and has members of its own lists these behind the others:
///     static constexpr auto members = mc::gpt::members + mc::member_list<&own::theta>{};
template <auto... Members> struct member_list {
  /// f(name, value) for every member of m, in order.
  template <class Model, class F> static constexpr void each(const Model& m, F&& f) {
    (f(detail::member_name<Members>(), m.*Members), ...);
  }

  /// True if no member stands twice.
  static constexpr bool distinct() {
    constexpr auto same = []<class A, class B>(A a, B b) {
      if constexpr (std::is_same_v<A, B>) return a == b;
      else return false;
    };
    const auto times = [&](auto one) { return (... + static_cast<int>(same(one, Members))); };
    return (... && (times(Members) == 1));
  }

  /// The size of a struct of these members alone, in bytes; less than the struct's own where the
  /// list lacks a member that does not fit between two others.
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

/// True of a type of members that files need no numbers of, since the kind of every layer, which
/// they hold, says all that it says.
template <class T> inline constexpr bool told_by_kinds = false;

} // namespace mc
