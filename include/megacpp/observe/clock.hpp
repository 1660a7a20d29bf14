// Time for measuring and for deadlines: monotonic, so a corrected wall clock changes nothing.
#pragma once

#include <chrono>

namespace mc {

/// Seconds since an arbitrary fixed moment.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
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
