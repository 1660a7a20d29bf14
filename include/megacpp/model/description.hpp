// What a model tells of itself at run time: its family, and the numbers it is built by, under its
// members' names.
#pragma once

#include <type_traits>

namespace mc {

/// A number of a model; flags are 0 or 1, extents are exact.
struct model_number {
  const char* name = "";
  double value = 0;
  bool is_flag = false;

  constexpr model_number() = default;
  template <class Number> constexpr model_number(const char* member, Number x)
      : name(member), value(static_cast<double>(x)), is_flag(std::is_same_v<Number, bool>) {}
};

/// The name of a family, and the struct that is it: one that derives from it and gives no name of
/// its own is another family, for it may compute something else.
template <class Model> struct family_name {
  using model = Model;
  const char* text = nullptr;
};

} // namespace mc
