// The reasons for which a run ends before its last step, and the wish that it saves its state now.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/signals.hpp>

#include <array>
#include <optional>
#include <string>
#include <utility>

namespace mc {

/// Collects what ends a run: a signal, the time that it was given, and the error of a report or of
/// data on one rank. One rank knows of it first, while others go on with their step. All of them
/// agree on it between steps, so that all end behind the same one.
class early_end {
public:
  /// The run may take so many minutes from now on. `all` must outlive this.
  early_end(agreement& all, std::optional<double> minutes) : all_(all), minutes_(minutes) {}

  /// Notes signals from now on, instead of being ended by them.
  void take_signals() { signals_.emplace(); }
  void release_signals() { signals_.reset(); }
  /// Returns the signals that this rank takes; nullptr if it takes none.
  const stop_signals* signals() const { return signals_ ? &*signals_ : nullptr; }
  /// Returns the signals that end an evaluation in its midst. Several ranks agree behind it: then,
  /// nullptr.
  const stop_signals* signals_if_alone() const { return all_.alone() ? signals() : nullptr; }
  /// Returns the name of the signal that a rank has taken. All ranks call it.
  std::string agree_on_signal() {
    return all_.any(signals_ ? std::string(signals_->name()) : std::string());
  }

  /// Asks all ranks what each of them knows; all call it. Returns whether one of them has a pending
  /// error.
  [[nodiscard]] bool confer() {
    const bool late = all_.first() && minutes_ && started_.seconds() >= 60 * *minutes_;
    // Ranks that are threads get their signals together: the first one speaks for them.
    const int asked = signals_ && (all_.first() || all_.separate_processes())
                          ? signals_->saves_asked()
                          : saves_seen_;
    const bool asks = asked != std::exchange(saves_seen_, asked);
    const auto [stop, time, pending, save] =
        all_.any(std::array{is_signalled(), late, pending_.has_value(), asks});
    stop_ = stop, time_is_up_ = time, saves_ = save;
    return pending;
  }
  /// Tells whether a signal ends the run, as all ranks know it. One rank alone knows it at once.
  bool stops() const { return all_.alone() ? is_signalled() : stop_; }
  /// Tells whether a signal has asked for a state to be saved, as all ranks know it.
  bool asks_for_state() const { return saves_; }
  /// Returns the wall clock's seconds (wall_seconds) at which the time of the run is up; nothing
  /// for a run without such a time.
  std::optional<double> wall_deadline() const {
    if (!minutes_) return std::nullopt;
    return wall_seconds() + 60 * *minutes_ - started_.seconds();
  }
  /// Tells whether the time of the run is up, as all ranks know it.
  bool time_is_up() const { return time_is_up_; }

  /// Makes a report on this rank. If there are other ranks, which do not wait for it, an error of
  /// the report is pending until they are asked.
  template <class Report> void tell(const Report& report) {
    if (all_.alone()) return report();
    try {
      report();
    } catch (const error& e) {
      if (e.code() == exit_code::ranks) throw; // another rank says why
      if (!pending_) pending_ = e;
    }
  }
  /// Returns the error of this rank that the others have not been asked about yet.
  std::optional<error>& pending_error() { return pending_; }
  /// Asks all ranks whether one of them has a pending error; all call it.
  [[nodiscard]] bool any_pending() { return all_.any(pending_.has_value()); }
  /// Throws the pending error, on the rank that has it. The other ranks wait for that.
  [[noreturn]] void throw_pending() {
    if (!pending_) all_.wait_for_another();
    throw *pending_;
  }

private:
  bool is_signalled() const { return signals_ && signals_->requested(); }

  agreement& all_;
  std::optional<double> minutes_;
  stopwatch started_;
  std::optional<stop_signals> signals_;
  std::optional<error> pending_;
  int saves_seen_ = 0; ///< signals that have asked for a state, up to now
  bool stop_ = false, time_is_up_ = false, saves_ = false; ///< as all ranks know it
};

} // namespace mc
