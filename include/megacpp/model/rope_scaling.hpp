// The stretch of RoPE beyond the positions on which a model was trained first. The angles of a
// model are constants, made here from its numbers (op/rope.hpp has the equation).
//
//   linear   every frequency / factor (Chen et al. 2023)
//   llama3   pairs that turn fewer than `slow` times over the original positions have frequency /
//            factor, those with more than `fast` turns stay as they are, and between them a ramp
//            follows the frequency (Llama 3.1)
//   yarn     as llama3, with a ramp that follows the pair's number; q and k are multiplied by m,
//            by default 0.1 ln(factor) + 1 (Peng et al. 2023)
#pragma once

#include <megacpp/model/description.hpp>
#include <megacpp/num/elementary.hpp>
#include <megacpp/op/rope.hpp>

#include <cstdint>
#include <numbers>

namespace mc {

enum class rope_type : std::uint8_t { unscaled, linear, llama3, yarn };

struct rope_stretch {
  rope_type type = rope_type::unscaled; ///< kind of stretch: unscaled, linear, llama3, yarn
  double factor = 1;                    ///< factor by which there are more positions
  int original = 0;                     ///< positions before the stretch; 0: those of the model
  double slow = 1;       ///< a pair with fewer turns over the original positions is slowed down
  double fast = 32;      ///< a pair with more turns stays as it is
  double attention = 0;  ///< the factor m of yarn; 0: 0.1 ln(factor) + 1
  bool truncated = true; ///< the ramp of yarn begins and ends at whole pairs

  static constexpr member_list<&rope_stretch::type, &rope_stretch::factor, &rope_stretch::original,
                               &rope_stretch::slow, &rope_stretch::fast, &rope_stretch::attention,
                               &rope_stretch::truncated>
      members{};
  constexpr bool operator==(const rope_stretch&) const = default;

  /// Returns a sentence if the numbers contradict each other, or null. `theta` is the base of the
  /// angles.
  constexpr const char* contradiction(double theta) const {
    if (!(factor >= 1 && factor < 1e30)) return "rope_scaling.factor must be at least 1";
    if (!(original >= 0 && slow > 0 && fast < 1e30 && slow < fast))
      return "rope_scaling.original must not be negative, .slow above 0 and below .fast";
    if (!(attention >= 0 && attention < 1e30)) return "rope_scaling.attention must not be negative";
    if (type == rope_type::yarn && !(theta > 1)) return "rope_theta must be above 1 for yarn";
    return nullptr;
  }
};

/// Returns the factor m of yarn. The paper has c = 1; Hugging Face's configurations call c mscale.
constexpr double yarn_attention(double factor, double c = 1) {
  return factor > 1 ? 0.1 * c * natural_log(factor) + 1 : 1;
}

namespace detail {
/// Returns the number of the pair, as a fraction, that turns so many times over the original
/// positions.
constexpr double pair_of_turns(double turns, double theta, int head_dim, double original) {
  return head_dim * natural_log(original / (turns * 2 * std::numbers::pi)) /
         (2 * natural_log(theta));
}
} // namespace detail

/// Returns the angles of a model of `positions`.
constexpr op::rope_attributes rope_angles(double theta, const rope_stretch& s, int head_dim,
                                          int positions) {
  op::rope_attributes a{theta};
  if (s.type == rope_type::unscaled) return a;
  a.factor = s.factor;
  const double original = s.original > 0 ? s.original : positions;
  if (s.type == rope_type::llama3) {
    const double one_turn = 2 * std::numbers::pi / original;
    a.along = op::rope_ramp::frequency, a.slow = s.slow * one_turn, a.fast = s.fast * one_turn;
  }
  if (s.type == rope_type::yarn) {
    a.along = op::rope_ramp::pair;
    a.fast = detail::pair_of_turns(s.fast, theta, head_dim, original);
    a.slow = detail::pair_of_turns(s.slow, theta, head_dim, original);
    if (s.truncated) a.fast = floor_of(a.fast), a.slow = ceiling_of(a.slow);
    if (a.fast < 0) a.fast = 0;
    if (a.slow > head_dim - 1) a.slow = head_dim - 1;
    if (a.slow == a.fast) a.slow += 0.001;
  }
  return a;
}

/// Returns the scale of the scores q k^T; 0: D^-1/2. Yarn multiplies both q and k by m.
constexpr double score_scale(const rope_stretch& s, int head_dim) {
  if (s.type != rope_type::yarn) return 0;
  const double m = s.attention > 0 ? s.attention : yarn_attention(s.factor);
  return m * m / square_root(head_dim);
}

} // namespace mc
