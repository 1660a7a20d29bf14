// The speeds of several ranks: the slowest one makes the others wait.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace mc {

/// Adds up the time that each rank computes: the time of a step without waiting for other ranks.
/// Only the constructor allocates memory.
class rank_speeds {
public:
  static constexpr int steps_looked_at = 10, times_in_a_row = 3;
  static constexpr double much = 1.15;

  /// `alike`: for each rank a number, which is the same for ranks that have the same work.
  explicit rank_speeds(std::vector<int> alike)
      : alike_(std::move(alike)),
        since_line_(alike_.size()),
        looked_at_(alike_.size()),
        slow_(alike_.size()) {
    others_.reserve(alike_.size());
  }

  struct slowest {
    int rank = -1;
    double seconds = 0; ///< seconds that the rank computes in a step
    double others = 0;  ///< median seconds of all other ranks
    double longer() const { return others > 0 ? seconds / others - 1 : 0; }
  };

  /// Adds a step in which the ranks computed for these times, and returns the slowest rank of it.
  slowest step(std::span<const double> seconds) {
    ++steps_, ++looked_;
    for (std::size_t r = 0; r < seconds.size(); ++r)
      since_line_[r] += seconds[r], looked_at_[r] += seconds[r];
    return slowest_of(seconds, 1);
  }
  /// Returns the slowest rank since the last begin().
  slowest of_interval() { return slowest_of(since_line_, std::max(1, steps_)); }
  void begin() {
    std::fill(since_line_.begin(), since_line_.end(), 0.0);
    steps_ = 0;
  }
  /// Returns a rank that has become slow: for `times_in_a_row` intervals of `steps_looked_at` steps
  /// it took more than `much` times the median of the other ranks with the same work. -1 if there
  /// is none, or if it was reported before.
  slowest straggler() {
    slowest told;
    if (looked_ < steps_looked_at) return told;
    for (std::size_t r = 0; r < alike_.size(); ++r) {
      const double others = median_of_others(looked_at_, r, true);
      if (!(others > 0 && looked_at_[r] > much * others)) {
        slow_[r] = 0;
      } else if (slow_[r] < times_in_a_row - 1) {
        ++slow_[r];
      } else if (slow_[r] < times_in_a_row && told.rank < 0) { // another slow rank is told later
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
  std::vector<double> since_line_, looked_at_; ///< seconds of computing, by rank
  std::vector<int> slow_;                      ///< intervals in a row, by rank, until it was told
  std::vector<double> others_;
  int steps_ = 0, looked_ = 0;
};

} // namespace mc
