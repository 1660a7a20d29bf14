// The ceiling that the speed of steps is told against: a speed of the machine, which other work may
// disturb.
#pragma once

#include <algorithm>

namespace mc {

/// The product ceiling, measured before some steps and behind them. Other work that came or went
/// between the two makes them differ; then nothing is known of the steps.
class speed_ceiling {
public:
  static constexpr double tolerance = 0.1; ///< of the larger one

  /// Floating-point operations a second.
  void measured(double speed) {
    before_ = behind_;
    behind_ = speed;
  }
  double before() const { return before_; }
  double behind() const { return behind_; }
  /// Whether two measurements agree.
  bool known() const {
    const auto [low, high] = std::minmax(before_, behind_);
    return low > 0 && high - low <= tolerance * high;
  }
  /// The share of it that so many operations a second are; 0 where it is not known, or where it
  /// would be more than all.
  double share_of(double speed) const {
    if (!known()) return 0;
    const double share = speed / std::max(before_, behind_);
    return share <= 1 ? share : 0;
  }

private:
  double before_ = 0, behind_ = 0; ///< 0: not measured
};

} // namespace mc
