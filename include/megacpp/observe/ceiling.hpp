// The product ceiling, the fastest matrix product of this machine, with which the speed of steps is
// compared. Other work on the machine may disturb its measurement.
#pragma once

#include <algorithm>

namespace mc {

/// The product ceiling as it is measured before some steps and behind them. If other work began or
/// ended between the two measurements, they differ, and then nothing is known about the steps.
class speed_ceiling {
public:
  static constexpr double tolerance = 0.1; ///< the measurements agree within this fraction
                                           ///< of the larger one

  /// Adds a measurement, in floating-point operations a second.
  void measured(double speed) {
    before_ = behind_;
    behind_ = speed;
  }
  double before() const { return before_; }
  double behind() const { return behind_; }
  /// Returns whether the two measurements agree.
  bool known() const {
    const auto [low, high] = std::minmax(before_, behind_);
    return low > 0 && high - low <= tolerance * high;
  }
  /// Returns the fraction of the ceiling that `speed` reaches; 0 if the ceiling is not known, or if
  /// the fraction would be above 1.
  double fraction_of(double speed) const {
    if (!known()) return 0;
    const double fraction = speed / std::max(before_, behind_);
    return fraction <= 1 ? fraction : 0;
  }

private:
  double before_ = 0, behind_ = 0; ///< operations a second; 0: not measured yet
};

} // namespace mc
