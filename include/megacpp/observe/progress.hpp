// The line that shows the progress of training.
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/observe/reader.hpp>
#include <megacpp/observe/text.hpp>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>

#include <sys/ioctl.h>
#include <unistd.h>

namespace mc {

/// The report of one optimizer step, as it is shown and recorded.
struct step_report {
  std::int64_t step = 0;  // steps done, counted from 1
  std::int64_t steps = 0; // steps of the whole run
  double loss = 0;        // mean loss of the step's tokens, in nats
  double lr = 0;
  double grad_norm = 0;             // norm of the gradient before clipping
  double tokens = 0;                // tokens that the step computes
  double learned = 0;               // tokens with a label; without one there is no loss and norm
  double data_seconds = 0;          // seconds that the step waited for micro-batches
  double tokens_per_second = 0;     // computed tokens a second
  double step_seconds = 0;          // mean seconds of such a step; 0 if unknown
  double mfu = 0;                   // model FLOPs as a fraction of the peak; 0 if no peak was given
  double ceiling_fraction = 0;      // fraction of the product ceiling; 0 if unknown
  std::int64_t consumed_tokens = 0; // tokens of the run so far
  std::uint64_t memory = 0;         // resident memory in bytes; 0 if unknown
  int slowest_rank = -1;            // rank that computed longest since the last line; -1: one rank
  double slower_by = 0;             // fraction by which it exceeds the others' median
  double seconds_left = std::numeric_limits<double>::quiet_NaN();
};

using progress_text = bounded_text<320>;

/// Returns `step 100/2000 | loss: 2.3451 | lr: 1.000e-03 | grad norm: 0.812 | 12.3k tokens/s | 10.4
/// ms/step | MFU 38.2% | 45% of product ceiling | 312 MiB | rank 3 slowest by 12% | ETA 1m 20s`.
/// Log collectors search it for `loss: NUMBER`, so names, order and the form of numbers stay as
/// they are. Unknown values are left out. If some tokens have no label, it has ` loss: 2.3451 (mean
/// of 32 of 128 tokens) ` and ` 12.3k tokens/s, 3.09k learned`.
inline progress_text progress_line(const step_report& r) {
  progress_text line;
  line.append("step {}/{}", r.step, r.steps);
  if (r.learned > 0) {
    line.append(" | loss: {:.4f}", r.loss);
    if (r.learned < r.tokens)
      line.append(" (mean of {:.0f} of {:.0f} tokens)", r.learned, r.tokens);
    line.append(" | lr: {:.3e} | grad norm: {:.3f}", r.lr, r.grad_norm);
  } else {
    line.append(" | no token to learn | lr: {:.3e}", r.lr);
  }
  line.append(" | {} tokens/s", count_text(std::nearbyint(r.tokens_per_second)).view());
  if (r.learned < r.tokens)
    line.append(", {} learned",
                count_text(std::nearbyint(r.tokens_per_second * r.learned / r.tokens)).view());
  if (const double ms = 1e3 * r.step_seconds; ms > 0)
    line.append(" | {:.{}f} ms/step", ms, ms < 9.995 ? 2 : ms < 99.95 ? 1 : 0);
  if (r.mfu > 0) line.append(" | MFU {:.1f}%", 100 * r.mfu);
  if (r.ceiling_fraction > 0)
    line.append(" | {:.0f}% of product ceiling", 100 * r.ceiling_fraction);
  if (r.memory > 0) line.append(" | {}", bytes_text(r.memory).view());
  if (r.slowest_rank >= 0)
    line.append(" | rank {} slowest by {:.0f}%", r.slowest_rank, 100 * r.slower_by);
  if (r.data_seconds >= 1e-3) line.append(" | data {:.0f} ms", 1e3 * r.data_seconds);
  if (r.seconds_left >= 0) line.append(" | ETA {}", duration_text(r.seconds_left).view());
  return line;
}

/// The durations of a run's work, from which its speed and the time left follow. The duration of a
/// step is a running mean over about ten steps without the first, which is not typical. For
/// evaluations, saves and samples it is the mean of those so far, and 0 before the first.
class pace {
public:
  enum pause : std::uint8_t { evaluation, save, sample };

  void step(double seconds) { step_ = ++steps_ <= 2 ? seconds : 0.9 * step_ + 0.1 * seconds; }
  void paused(pause what, double seconds) { pauses_[what].sum += seconds, ++pauses_[what].count; }

  double seconds_a_step() const { return step_; }
  /// Returns the seconds that these numbers of steps, evaluations, saves and samples take; NaN
  /// until two steps are done.
  double seconds_of(double steps, std::int64_t evaluations, std::int64_t saves,
                    std::int64_t samples = 0) const {
    if (steps_ < 2) return std::numeric_limits<double>::quiet_NaN();
    return steps * step_ + pauses_[evaluation].of(evaluations) + pauses_[save].of(saves) +
           pauses_[sample].of(samples);
  }

private:
  struct mean {
    double sum = 0;
    std::int64_t count = 0;
    double of(std::int64_t n) const {
      return count > 0 ? sum / static_cast<double>(count) * static_cast<double>(n) : 0;
    }
  };
  std::int64_t steps_ = 0;
  double step_ = 0;
  std::array<mean, 3> pauses_{};
};

/// Shows reports. On a terminal it rewrites one line in place, at most ten times a second.
/// Elsewhere it writes plain lines: for the first and the last step, every `interval` steps, and
/// after `longest_silence` without a line. It allocates no memory. Failed writes are ignored, since
/// the run does not need its terminal. Nor does a stopped terminal keep a run from ending: once a
/// stop was requested, text that nobody reads is dropped.
class progress {
public:
  static constexpr double longest_silence = 10; ///< seconds without a line at most

  /// `file`: a descriptor, 1 for the standard output. A terminal that mpirun gives to ranks does
  /// not count as one.
  explicit progress(std::int64_t interval, int file = STDOUT_FILENO)
      : progress(interval, file, ::isatty(file) == 1 && announced_rank().second == 1) {}
  progress(std::int64_t interval, int file, bool terminal)
      : interval_(interval > 0 ? interval : 1), file_(file), terminal_(terminal) {}
  progress(const progress&) = delete;
  progress& operator=(const progress&) = delete;
  ~progress() { finish(); }

  /// Shows a report if a line is due, and returns whether it did.
  bool show(const step_report& r, double now = monotonic_seconds()) {
    const bool first = std::isnan(shown_at_), last = r.step == r.steps;
    const double silence = now - shown_at_;
    const bool due =
        terminal_ ? silence >= 0.1 : r.step % interval_ == 0 || silence >= longest_silence;
    if (!first && !last && !due) return false;
    shown_at_ = now;
    if (!terminal_) {
      write_all(progress_line(r).append("\n"));
      return true;
    }
    progress_text line = progress_line(r);
    line.shorten(width() - 1); // a longer line would wrap, and \r would not reach its beginning
    last_ = line;
    redraw();
    return true;
  }

  /// Writes a line that stays, such as an evaluation, a save or a warning.
  void note(std::string_view text) {
    if (live_) write_all("\r\x1b[K");
    write_line_to_reader(file_, {text});
    if (live_) redraw();
  }

  /// Ends the live line, so that later text begins on a new one.
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
  void write_all(std::string_view text) const { write_to_reader(file_, text); }

  std::int64_t interval_;
  int file_;
  bool terminal_;
  bool live_ = false;
  double shown_at_ = std::numeric_limits<double>::quiet_NaN();
  progress_text last_;
};

} // namespace mc
