// The request of reports of a training run.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace mc {

/// The beginning of a trace, by which it is told from other files.
inline constexpr std::string_view trace_begin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[";

/// A report that has a file. A file that is there must hold a report of its kind, which begins
/// alike; it is replaced, or added to.
struct report_file {
  const std::optional<std::string>& path;
  const char *name, *kind; ///< the member of the request, and what people call the report
  std::string_view begin;  ///< the first characters of such a file
  bool replaced;
};

/// The reports of a training run. A message names a member as report_request::member, and `spelled`
/// puts the name that its reader knows in that place.
struct report_request {
  std::int64_t log_interval = 100;         ///< steps between lines of progress, at least 1
  std::optional<std::string> metrics;      ///< file for a line of JSON a step, evaluation and text
  std::optional<std::string> curve;        ///< SVG file for the losses of training and validation
  std::optional<std::string> tensorboard;  ///< folder for TensorBoard's event files
  std::int64_t tensorboard_interval = 1;   ///< steps between those in event files, at least 1
  std::optional<std::int64_t> port;        ///< port for Prometheus; none: it cannot ask
  std::string address = "127.0.0.1";       ///< address of this machine that has the port
  std::optional<std::string> katib;        ///< file for lines of Katib; "-": the standard output
  bool profile = false;                    ///< the time of each node is measured
  std::optional<std::string> trace;        ///< file for what each rank did when in a few steps
  std::optional<std::int64_t> trace_after; ///< step behind which the trace begins
  std::optional<std::int64_t> trace_last;  ///< the last step of the trace
  double peak_tflops = 0; ///< highest speed of a rank, in 10^12 operations a second; 0: unknown
  std::function<std::string(std::string)> spelled = [](std::string sentence) { return sentence; };

  /// Returns the members that name files, by references to them.
  std::array<report_file, 4> files() const&& = delete;
  std::array<report_file, 4> files() const& {
    static const std::optional<std::string> none;
    return {{{curve, "report_request::curve", "curve", "<svg ", true},
             {metrics, "report_request::metrics", "metrics file", "{\"step\":", false},
             {katib == "-" ? none : katib, "report_request::katib", "Katib's file", "20", false},
             {trace, "report_request::trace", "trace", trace_begin, true}}};
  }
};

} // namespace mc
