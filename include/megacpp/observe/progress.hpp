// The line that shows how training goes.
#pragma once

#include <megacpp/observe/clock.hpp>
#include <megacpp/observe/text.hpp>

#include <cerrno>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace mc {

/// One optimizer step, as shown and recorded.
struct step_report {
  std::int64_t step = 0;  // steps done, from 1
  std::int64_t steps = 0; // of the whole run
  double loss = 0;        // mean over the step's tokens, nats
  double lr = 0;
  double grad_norm = 0; // before clipping
  double tokens_per_second = 0;
  double ceiling_share = 0; // of the machine's measured product speed; 0 if not measured
  std::uint64_t memory = 0; // resident bytes; 0 if unknown
  double seconds_left = std::numeric_limits<double>::quiet_NaN();
};

using progress_text = bounded_text<256>;

/// `step 100/2000 | loss: 2.3451 | lr: 1.000e-03 | grad norm: 0.812 | 12.3k tokens/s | 45% of
/// product ceiling | 312 MiB | ETA 1m 20s`. Log collectors search it for `loss: NUMBER`, so names,
/// order and the form of numbers stay as they are; what is unknown is left out.
inline progress_text progress_line(const step_report& r) {
  progress_text line;
  line.append("step {}/{} | loss: {:.4f} | lr: {:.3e} | grad norm: {:.3f} | {} tokens/s", r.step,
              r.steps, r.loss, r.lr, r.grad_norm,
              count_text(std::nearbyint(r.tokens_per_second)).view());
  if (r.ceiling_share > 0) line.append(" | {:.0f}% of product ceiling", 100 * r.ceiling_share);
  if (r.memory > 0) line.append(" | {}", bytes_text(r.memory).view());
  if (r.seconds_left >= 0) line.append(" | ETA {}", duration_text(r.seconds_left).view());
  return line;
}

/// Seconds to the end of a run at the pace since its first step, which is left out because it
/// includes one-time work. NaN until two steps are done.
class time_left {
public:
  /// Call after each step with the number done so far and in all.
  double after(std::int64_t step, std::int64_t steps, double now = monotonic_seconds()) {
    if (first_step_ < 0) {
      first_step_ = step;
      first_time_ = now;
    }
    if (step <= first_step_) return std::numeric_limits<double>::quiet_NaN();
    const double pace = (now - first_time_) / static_cast<double>(step - first_step_);
    return pace * static_cast<double>(steps - step);
  }

private:
  std::int64_t first_step_ = -1;
  double first_time_ = 0;
};

/// Shows reports on a terminal as one line that is rewritten in place (at most ten times a second),
/// and elsewhere as one plain line every `interval` steps and at the last one. Allocates nothing. A
/// terminal that is gone is no reason to end a run: failed writes are ignored.
class progress {
public:
  /// `file`: a descriptor, 1 for the standard output.
  explicit progress(std::int64_t interval, int file = STDOUT_FILENO)
      : progress(interval, file, ::isatty(file) == 1) {}
  progress(std::int64_t interval, int file, bool terminal)
      : interval_(interval > 0 ? interval : 1), file_(file), terminal_(terminal) {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { finish(); }

  void show(const step_report& r) {
    const bool last = r.step == r.steps;
    if (!terminal_) {
      if (last || r.step % interval_ == 0) write_all(progress_line(r).append("\n"));
      return;
    }
    const double now = monotonic_seconds();
    if (!last && now - shown_at_ < 0.1) return;
    shown_at_ = now;
    progress_text line = progress_line(r);
    line.shorten(width() - 1); // a full line would wrap, and \r would no longer reach its begin
    last_ = line;
    redraw();
  }

  /// A line that stays: an evaluation, a save, a warning.
  void note(std::string_view text) {
    if (live_) write_all("\r\x1b[K");
    write_all(text);
    write_all("\n");
    if (live_) redraw();
  }

  /// Ends the live line, so that what follows begins on a new one.
  void finish() {
    if (live_) write_all("\n");
    live_ = false;
  }

private:
  void redraw() {
    write_all("\r");
    write_all(last_);
    write_all("\x1b[K");
    live_ = true;
  }
  std::size_t width() const {
    struct winsize size {};
    const bool known = ::ioctl(file_, TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col : 80;
  }
  void write_all(std::string_view text) const {
    while (!text.empty()) {
      const ::ssize_t n = ::write(file_, text.data(), text.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return;
      text.remove_prefix(static_cast<std::size_t>(n));
    }
  }

  std::int64_t interval_;
  int file_;
  bool terminal_;
  bool live_ = false;
  double shown_at_ = -1;
  progress_text last_;
};

} // namespace mc
