// The times of measured steps, as `train --bench-json` prints them.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/inspect/speed_gauge.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/request/loop_request.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace mc {

/// Collects the times of the steps after the warmup. There must be at least one such step.
class step_benchmark {
public:
  /// Reserves memory for the times, so that add() allocates none. `planned_bytes`: the memory that
  /// the run has reserved on the device. The other arguments must outlive this object.
  step_benchmark(const program_view& p, device& on, const loop_request& loop,
                 std::int64_t planned_bytes)
      : program_(p), device_(on), loop_(loop), planned_bytes_(planned_bytes) {
    constexpr std::int64_t timed_without_allocating = 1 << 20;
    times_.reserve(static_cast<std::size_t>(std::min(loop.steps, timed_without_allocating)));
  }

  /// Adds the time of step `number` of this process, counted from 1, unless it belongs to the
  /// warmup.
  void add(std::int64_t number, double seconds, double loss) {
    if (number > loop_.warmup) times_.push_back(seconds);
    loss_ = loss;
  }

  /// Returns the line of JSON that tells the run, the median of the times, and the speed.
  std::string line(const speed_gauge& gauge) const {
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    const double median = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    const auto tokens = static_cast<double>(loop_.batches.last * program_.numbers.batch.sequence);
    const auto known = [](double x) { return x > 0 ? json_number(x) : json_output(nullptr); };
    const dtype type = program_.numbers.precision.weight;
    auto* const attention = device_.attention();
    return json_line({{"program", "megacpp"},
                      {"preset", program_.name},
                      {"precision", name_of(type)},
                      {"products", device_.products().describe(type)},
                      {"attention", attention == nullptr ? "by tiles" : attention->describe()},
                      {"batch", loop_.batches.last},
                      {"sequence", program_.numbers.batch.sequence},
                      {"parameters", program_.parameters},
                      {"threads", device_.threads()},
                      {"device", device_.name().empty() ? "cpu" : device_.name()},
                      {"steps", n},
                      {"warmup", loop_.warmup},
                      {"median_ms", json_number(median * 1e3)},
                      {"min_ms", json_number(sorted.front() * 1e3)},
                      {"max_ms", json_number(sorted.back() * 1e3)},
                      {"tokens_per_s", json_number(tokens / median)},
                      {"mfu", known(gauge.mfu(median))},
                      {"product_gflops", json_number(gauge.ceiling().behind() * 1e-9)},
                      {"product_ceiling_share", known(gauge.fraction_of_ceiling(median))},
                      {"loss", json_number(loss_)},
                      {"peak_rss_bytes", process_memory().peak},
                      {"planned_bytes", planned_bytes_},
                      {"device_memory", device_memory()}});
  }

private:
  /// Returns the bytes that the device had given before this run reserved memory, and the bytes
  /// that the run has taken.
  json_output device_memory() const {
    const std::optional<memory_taken> m = device_.taken();
    if (!m) return nullptr;
    return {{"before_bytes", m->before}, {"taken_bytes", m->now - m->before}};
  }

  const program_view& program_;
  device& device_;
  const loop_request& loop_;
  std::int64_t planned_bytes_;
  std::vector<double> times_; ///< seconds of each step after the warmup
  double loss_ = 0;           ///< loss of the last step, in nats a token
};

} // namespace mc
