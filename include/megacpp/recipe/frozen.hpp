// The parameters of a run that training reads and does not change.
#pragma once

#include <concepts>

namespace mc {

/// The parameters that a run freezes: static constexpr mc::frozen frozen{"blocks", "embedding"}. A
/// name is "embedding", for all that the stem declares and tied uses of it; "blocks" or "head", for
/// all that these declare; or the name of a parameter in `describe --graphs`, or the beginning of
/// such names up to a point.
struct frozen {
  static constexpr int most = 8;
  const char* names[most]{};
  int count = 0;

  constexpr frozen() = default;
  template <class... Names>
  requires(sizeof...(Names) > 0 && (... && std::convertible_to<Names, const char*>)) //
      constexpr explicit(false) frozen(Names... all)
      : names{all...}, count(sizeof...(Names)) {
    static_assert(sizeof...(Names) <= most,
                  "MEGA-C009 a run's frozen has at most 8 names: give the common beginning of "
                  "several, as self_attn");
  }
};

} // namespace mc
