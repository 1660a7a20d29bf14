// The losses of a run in bounded memory. The curve of the run shows them, and its saved state keeps
// them for a run that resumes it.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/curve.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

/// A history of losses. Each point is the mean of `stride` losses, at the step of the last of them.
/// When `capacity` points are reached, neighbours are merged and the stride doubles. So a run of
/// any length has one or two thousand points at most, more than a curve has columns, and adding a
/// loss allocates no memory. Means are rounded to 1e-6 nats, so that they have few digits as text.
class loss_history {
public:
  static constexpr std::size_t capacity = 2048;

  loss_history() { points_.reserve(capacity); }

  void add(std::int64_t step, double loss) {
    sum_ += loss;
    if (++count_ < stride_) return;
    points_.push_back({static_cast<double>(step), kept(sum_ / static_cast<double>(count_))});
    sum_ = 0;
    count_ = 0;
    if (points_.size() < capacity) return;
    for (std::size_t i = 0; i < capacity / 2; ++i)
      points_[i] = {points_[2 * i + 1].x, kept(0.5 * (points_[2 * i].y + points_[2 * i + 1].y))};
    points_.resize(capacity / 2);
    stride_ *= 2;
  }
  const std::vector<curve_point>& points() const { return points_; }

  /// Returns the history as {"stride", "sum", "count", "steps", "losses"}; sum and count are those
  /// of the losses since the last point.
  nlohmann::json json() const {
    nlohmann::json steps = nlohmann::json::array(), losses = nlohmann::json::array();
    for (const curve_point& p : points_)
      steps.push_back(static_cast<std::int64_t>(p.x)), losses.push_back(p.y);
    return {{"stride", stride_},
            {"sum", sum_},
            {"count", count_},
            {"steps", std::move(steps)},
            {"losses", std::move(losses)}};
  }
  /// Returns the history that json() wrote. Throws mc::error of the file for any other value.
  static loss_history read(const json_value& v) {
    loss_history h;
    h.stride_ = v.field<std::int64_t>("stride", 1, std::int64_t{1} << 62);
    h.count_ = v.field<std::int64_t>("count", 0, h.stride_ - 1);
    h.sum_ = v.field<double>("sum");
    const auto steps = v.field<std::vector<std::int64_t>>("steps");
    const auto losses = v.field<std::vector<double>>("losses");
    if (steps.size() != losses.size() || steps.size() >= capacity)
      throw v.fault("has a history of " + std::to_string(steps.size()) + " steps and " +
                    std::to_string(losses.size()) + " losses; as many of both, and fewer than " +
                    std::to_string(capacity) + ", are needed");
    for (std::size_t i = 0; i < steps.size(); ++i)
      h.points_.push_back({static_cast<double>(steps[i]), losses[i]});
    return h;
  }
  /// Returns a history whose text is at least as long as that of any history of `count` losses up
  /// to step `step`, if no loss is above 1e5.
  static loss_history longest(std::int64_t step, std::int64_t count) {
    loss_history h;
    h.sum_ = -1.0 / 3, h.count_ = h.stride_ = step;
    for (std::int64_t i = 0; i < count && h.points_.size() + 1 < capacity; ++i)
      h.points_.push_back({static_cast<double>(step), 12345.678901});
    return h;
  }

private:
  static double kept(double loss) { return std::round(loss * 1e6) / 1e6; }

  std::vector<curve_point> points_;
  std::int64_t stride_ = 1, count_ = 0;
  double sum_ = 0;
};

} // namespace mc
