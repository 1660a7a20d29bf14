// The request of reports of a training run.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

namespace mc {

/// The reports of a training run. A message names a member as report_request::member, and `spelled`
/// puts the name that its reader knows in that place.
struct report_request {
  std::int64_t log_interval = 100;         ///< steps between lines of progress, at least 1
  std::optional<std::string> metrics;      ///< file for one JSON object a step
  std::optional<std::string> curve;        ///< SVG file for the losses of training and validation
  bool profile = false;                    ///< the time of each node is measured
  std::optional<std::string> trace;        ///< file for what each rank did when in a few steps
  std::optional<std::int64_t> trace_after; ///< step behind which the trace begins
  std::optional<std::int64_t> trace_last;  ///< the last step of the trace
  double peak_tflops = 0; ///< highest speed of a rank, in 10^12 operations a second; 0: unknown
  std::function<std::string(std::string)> spelled = [](std::string sentence) { return sentence; };
};

} // namespace mc
