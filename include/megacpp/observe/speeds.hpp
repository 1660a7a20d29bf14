// Which of several ranks computes longest: the others wait for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace mc {

/// Adds up how long each rank computes, which is what a step takes less what the rank waits for
/// others. Allocates nothing after it is made.
class rank_speeds {
public:
  static constexpr int steps_looked_at = 10, times_in_a_row = 3;
  static constexpr double much = 1.15;

  /// `alike`: by rank, a number that ranks share which have the same to compute.
  explicit rank_speeds(std::vector<int> alike)
      : alike_(std::move(alike)),
        since_line_(alike_.size()),
        looked_at_(alike_.size()),
        slow_(alike_.size()) {
    others_.reserve(alike_.size());
  }

  struct slowest {
    int rank = -1;
    double seconds = 0; ///< that it computes in a step
    double others = 0;  ///< the median of all others
    double longer() const { return others > 0 ? seconds / others - 1 : 0; }
  };

  /// A step, in which ranks computed so long. Returns the slowest one.
  slowest step(std::span<const double> seconds) {
    ++steps_, ++looked_;
    for (std::size_t r = 0; r < seconds.size(); ++r)
      since_line_[r] += seconds[r], looked_at_[r] += seconds[r];
    return slowest_of(seconds, 1);
  }
  /// The slowest one since the last begin().
  slowest of_interval() { return slowest_of(since_line_, std::max(1, steps_)); }
  void begin() {
    std::fill(since_line_.begin(), since_line_.end(), 0.0);
    steps_ = 0;
  }
  /// A rank that has become slow: for so many steps, so many times in a row, it computed longer by
  /// so much than the median of the others that have the same to compute. -1 if there is none, or
  /// if it was told.
  slowest straggler() {
    slowest told;
    if (looked_ < steps_looked_at) return told;
    for (std::size_t r = 0; r < alike_.size(); ++r) {
      const double others = median_of_others(looked_at_, r, true);
      if (!(others > 0 && looked_at_[r] > much * others)) {
        slow_[r] = 0;
      } else if (slow_[r] < times_in_a_row - 1) {
        ++slow_[r];
      } else if (slow_[r] < times_in_a_row && told.rank < 0) { // of several the next one later
        slow_[r] = times_in_a_row;
        told = {static_cast<int>(r), looked_at_[r] / looked_, others / looked_};
      }
    }
    std::fill(looked_at_.begin(), looked_at_.end(), 0.0);
    looked_ = 0;
    return told;
  }

private:
  slowest slowest_of(std::span<const double> seconds, int steps) {
    const auto r = static_cast<std::size_t>(std::max_element(seconds.begin(), seconds.end()) -
                                            seconds.begin());
    return {static_cast<int>(r), seconds[r] / steps, median_of_others(seconds, r, false) / steps};
  }
  double median_of_others(std::span<const double> seconds, std::size_t rank, bool like_it) {
    others_.clear();
    for (std::size_t r = 0; r < seconds.size(); ++r)
      if (r != rank && (!like_it || alike_[r] == alike_[rank])) others_.push_back(seconds[r]);
    if (others_.empty()) return 0;
    std::sort(others_.begin(), others_.end());
    const std::size_t n = others_.size();
    return 0.5 * (others_[(n - 1) / 2] + others_[n / 2]);
  }

  std::vector<int> alike_;
  std::vector<double> since_line_, looked_at_; ///< seconds, by rank
  std::vector<int> slow_;                      ///< times in a row, by rank, until it was told
  std::vector<double> others_;
  int steps_ = 0, looked_ = 0;
};

} // namespace mc
