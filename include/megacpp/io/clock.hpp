// The time for measurements and deadlines. It is monotonic, so that setting the wall clock changes
// nothing.
#pragma once

#include <chrono>
#include <cstdint>

namespace mc {

/// The clock of all measurements and deadlines.
using steady = std::chrono::steady_clock;

/// Returns the nanoseconds since a fixed moment of this machine.
inline std::int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady::now().time_since_epoch())
      .count();
}
/// Returns the seconds since that moment.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(steady::now().time_since_epoch()).count();
}

/// Returns the seconds since 1970 in UTC, to a millisecond, by which other programs know the time.
inline double wall_seconds() {
  using namespace std::chrono;
  return static_cast<double>(
             duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) /
         1e3;
}

/// Counts the seconds since its construction.
class stopwatch {
public:
  double seconds() const { return monotonic_seconds() - begin_; }

private:
  double begin_ = monotonic_seconds();
};

} // namespace mc
