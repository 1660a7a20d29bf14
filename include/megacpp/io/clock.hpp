// Time for measuring and for deadlines: monotonic, so a corrected wall clock changes nothing.
#pragma once

#include <chrono>
#include <cstdint>

namespace mc {

/// The clock by which everything is measured and waited for.
using steady = std::chrono::steady_clock;

/// Nanoseconds since a fixed moment of this machine.
inline std::int64_t monotonic_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(steady::now().time_since_epoch())
      .count();
}
/// Seconds since that moment.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(steady::now().time_since_epoch()).count();
}

/// Seconds since 1970 in UTC, to a millisecond: what other programs know a moment by.
inline double wall_seconds() {
  using namespace std::chrono;
  return static_cast<double>(
             duration_cast<milliseconds>(system_clock::now().time_since_epoch()).count()) /
         1e3;
}

/// Seconds since construction.
class stopwatch {
public:
  double seconds() const { return monotonic_seconds() - begin_; }

private:
  double begin_ = monotonic_seconds();
};

} // namespace mc
