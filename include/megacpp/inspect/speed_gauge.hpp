// The speed of a run, as a fraction of what its device can do.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/observe/ceiling.hpp>
#include <megacpp/run/view.hpp>

#include <cstdint>

namespace mc {

/// Compares the speed of steps with the peak that the user states, and with the speed of matrix
/// products, which is measured between steps. A whole step has `micro_batches` on each replica.
class speed_gauge {
public:
  /// Measures the speed of products for the first time. Program and device must outlive the gauge.
  speed_gauge(const program_view& p, device& on, std::int64_t micro_batches, double peak_tflops)
      : products_(on, p.numbers.precision.weight),
        flops_(static_cast<double>(work_of_step(p, micro_batches).total().flops)),
        needed_flops_(needed_of(p, micro_batches)),
        peak_(1e12 * peak_tflops) {
    measure();
  }

  /// Measures the speed of matrix products now.
  void measure() {
    ceiling_.measured(products_.measure());
    measured_at_ = monotonic_seconds();
  }
  /// Measures the speed of products again if 30 seconds have passed since the last time, so that
  /// this takes less than a hundredth of the time of a run.
  void measure_at(double now) {
    constexpr double seconds_between = 30;
    if (now - measured_at_ > seconds_between) measure();
  }
  const speed_ceiling& ceiling() const { return ceiling_; }

  /// Returns the fraction of the speed of products that a step of `seconds` reaches, where the step
  /// is `fraction` of a whole step; 0 if it is not known.
  double fraction_of_ceiling(double seconds, double fraction = 1) const {
    return ceiling_.fraction_of(fraction * flops_ / seconds);
  }
  /// Returns the fraction of the stated peak that a rank needs to compute the model in whole steps
  /// of `seconds`; 0 if no peak is stated.
  double mfu(double seconds) const { return peak_ > 0 ? needed_speed(seconds) / peak_ : 0; }
  /// Returns the operations a second of one rank that the model needs in whole steps of `seconds`.
  double needed_speed(double seconds) const { return needed_flops_ / seconds; }

private:
  /// Returns the operations that the model needs of one rank in a whole step: the mean over the
  /// stages, some of which compute more than others.
  static double needed_of(const program_view& p, std::int64_t micro_batches) {
    const int stages = p.numbers.ranks.pp;
    double sum = 0;
    for (int stage = 0; stage < stages; ++stage)
      sum += static_cast<double>(model_flops(p, micro_batches, stage));
    return sum / stages;
  }

  product_speed products_;
  speed_ceiling ceiling_;
  double measured_at_ = 0; ///< monotonic_seconds() of the last measurement
  double flops_;           ///< operations of a rank of the first stage in a whole step
  double needed_flops_;    ///< operations that the model needs of one rank in a whole step
  double peak_;            ///< stated operations a second; 0 if none is stated
};

} // namespace mc
