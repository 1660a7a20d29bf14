// Time for measuring and for deadlines: monotonic, so a corrected wall clock changes nothing.
#pragma once

#include <chrono>

namespace mc {

/// Seconds since an arbitrary fixed moment.
inline double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds since construction.
class stopwatch {
public:
  double seconds() const { return monotonic_seconds() - begin_; }

private:
  double begin_ = monotonic_seconds();
};

} // namespace mc
