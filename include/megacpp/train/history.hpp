// Losses of a run in bounded memory, for its curve.
#pragma once

#include <megacpp/observe/curve.hpp>

namespace mc {

/// The mean loss of every `stride` steps. When the points are full, neighbours are merged and the
/// stride doubles: a run of any length keeps thousands of points, and adding one allocates nothing.
class loss_history {
public:
  loss_history() { points_.reserve(capacity); }

  void add(std::int64_t step, double loss) {
    sum_ += loss;
    if (++count_ < stride_) return;
    points_.push_back({static_cast<double>(step), sum_ / static_cast<double>(count_)});
    sum_ = 0;
    count_ = 0;
    if (points_.size() < capacity) return;
    for (std::size_t i = 0; i < capacity / 2; ++i)
      points_[i] = {points_[2 * i + 1].x, 0.5 * (points_[2 * i].y + points_[2 * i + 1].y)};
    points_.resize(capacity / 2);
    stride_ *= 2;
  }
  const std::vector<curve_point>& points() const { return points_; }

private:
  static constexpr std::size_t capacity = 8192;

  std::vector<curve_point> points_;
  std::int64_t stride_ = 1, count_ = 0;
  double sum_ = 0;
};

} // namespace mc
