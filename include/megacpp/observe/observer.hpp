// Observers of a training run: what they are told, and the interface that each of them has. They
// are told by its first rank (train/reports.hpp), on a thread of their own (observe/observed.hpp).
#pragma once

#include <megacpp/io/error.hpp>

#include <atomic>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc {

/// A step that was taken. NaN stands for a number that is not known.
struct observed_step {
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  std::int64_t step = 0, steps = 0;    ///< its number, counted from 1, of so many of the run
  double time = 0;                     ///< seconds since 1970, UTC
  double loss = unknown;               ///< mean of its learned tokens, in nats
  double grad_norm = unknown;          ///< of the gradient, before clipping
  double lr = 0;                       ///< learning rate
  std::int64_t tokens = 0;             ///< tokens that the step computes
  std::int64_t learned_tokens = 0;     ///< tokens with a label
  std::int64_t sequences = 0;          ///< sequences of the step
  std::int64_t consumed_tokens = 0;    ///< tokens of the run so far
  std::int64_t consumed_sequences = 0; ///< sequences of the run so far
  double seconds = 0;                  ///< seconds that the step took
  double data_seconds = 0;             ///< seconds of these in which it waited for data
  double mfu = unknown;                ///< model FLOPs as a fraction of the stated peak
  double of_ceiling = unknown;         ///< rate of operations over that of a large product
  double flops_per_second = unknown;   ///< the model's operations a second on each rank
  std::int64_t memory = 0;             ///< resident bytes of the process
  int slowest_rank = -1;               ///< rank that computed longest; -1: there is one rank
  double slowest_seconds = unknown;    ///< seconds that this rank computed
  double others_seconds = unknown;     ///< median of the other ranks' seconds
  double seconds_left = unknown;       ///< seconds to the end of the run

  double tokens_per_second() const { return static_cast<double>(tokens) / seconds; }
};

/// A loss on data that are not learned.
struct observed_evaluation {
  std::int64_t step = 0, steps = 0; ///< behind this step
  double time = 0;                  ///< seconds since 1970, UTC, at its end
  bool of_test = false;             ///< the data are for the test, not for validation
  std::string set{};                ///< name of the data set; "": all of them
  double loss = 0;                  ///< mean of the learned tokens, in nats
  std::int64_t tokens = 0;          ///< learned tokens
  std::int64_t consumed_sequences = 0;
};

/// A text that the model wrote on the way.
struct observed_text {
  std::int64_t step = 0;
  double time = 0; ///< seconds since 1970, UTC
  std::string text{};
};

/// A state that was saved.
struct observed_save {
  std::int64_t step = 0;
  double time = 0;      ///< seconds since 1970, UTC, at its end
  double seconds = 0;   ///< seconds that no step was taken for it
  std::string folder{}; ///< the folder of the run's states
};

/// A step with numbers that are not finite, which ends the run.
struct observed_failure {
  std::int64_t step = 0;
  double time = 0; ///< seconds since 1970, UTC
  double loss = 0, grad_norm = 0, lr = 0;
};

/// The beginning of a run, or of a process that goes on with one.
struct observed_start {
  std::string program;         ///< name of the program
  std::int64_t first_step = 0; ///< steps that were taken before
  std::int64_t steps = 0;      ///< steps of the whole run
  int ranks = 1;
  std::int64_t parameters = 0;
  double time = 0; ///< seconds since 1970, UTC
  /// The values by which the run was asked for, in the order in which a state keeps them.
  std::vector<std::pair<std::string, std::variant<bool, double, std::string>>> values;
};

/// Returns the flags of a state as the values of a start: lists, null, and whole numbers that a
/// double does not hold become texts.
inline auto observed_values(const nlohmann::json& flags) {
  const auto holds_exactly = [](const nlohmann::json& v) {
    constexpr std::int64_t most = std::int64_t{1} << std::numeric_limits<double>::digits;
    return v.is_number_unsigned() ? v.get<std::uint64_t>() <= std::uint64_t{most}
                                  : v.is_number_integer() && v.get<std::int64_t>() >= -most &&
                                        v.get<std::int64_t>() <= most;
  };
  decltype(observed_start::values) values;
  for (const auto& [name, v] : flags.items())
    if (v.is_boolean()) values.emplace_back(name, v.get<bool>());
    else if (v.is_number_float() || holds_exactly(v)) values.emplace_back(name, v.get<double>());
    else values.emplace_back(name, v.is_string() ? v.get<std::string>() : v.dump());
  return values;
}

/// The end of a process.
struct observed_end {
  std::int64_t step = 0;
  double time = 0;      ///< seconds since 1970, UTC
  bool goes_on = false; ///< steps are left, for another process: a signal or its time has ended it
  std::string error{};  ///< the error that ended the run; "": none has
};

using observation = std::variant<observed_start, observed_step, observed_evaluation, observed_text,
                                 observed_save, observed_failure, observed_end>;

/// A failure of an observer. `lost`: the observations that it will not make good, 0 if it keeps
/// them and tries again.
class observer_failure : public error {
public:
  observer_failure(const std::string& what, std::uint64_t lost)
      : error(exit_code::output, what), lost_(lost) {}
  std::uint64_t lost() const { return lost_; }

private:
  std::uint64_t lost_;
};

/// An observer of a training run. Its functions are called one behind the other, in the order of
/// what happened. Each may throw mc::error, with which the observation is lost, or
/// observer_failure.
class observer {
public:
  observer() = default;
  observer(const observer&) = delete;
  observer& operator=(const observer&) = delete;
  virtual ~observer() = default;

  /// Returns what a message calls the observer, such as "the event file of --tensorboard-dir".
  virtual std::string name() const = 0;
  /// Asks a function that waits in another thread to give up.
  virtual void hurry() {}
  /// Does what is left to do behind the last observation. It may throw as see().
  virtual void finish() {}
  /// Returns how many observations it has seen and keeps for later.
  std::uint64_t unsent() const { return unsent_.load(); }
  virtual void see(const observed_start&) {}
  virtual void see(const observed_step&) {}
  virtual void see(const observed_evaluation&) {}
  virtual void see(const observed_text&) {}
  virtual void see(const observed_save&) {}
  virtual void see(const observed_failure&) {}
  virtual void see(const observed_end&) {}

protected:
  /// Tells whether another observation waits already, so that something slow had better wait for
  /// it.
  bool more_waits() const { return more_waits_; }
  std::atomic<std::uint64_t> unsent_ = 0;

private:
  friend class observed;
  bool more_waits_ = false;
};

} // namespace mc
