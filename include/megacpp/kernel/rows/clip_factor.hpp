// The factor of all gradients of a step: clipping of their norm, and the mean over tokens.
//
//   norm = sqrt(sum of squares) / count
//   factor = min(1, clip / (norm + 1e-6)) / count    clip 0: 1 / count
//
// A norm or a loss that is not finite makes the factor a NaN, and then the step updates nothing.
#pragma once

#include <megacpp/exec/launch.hpp>

#include <cmath>
#include <limits>

namespace mc::rows {

struct clip_factor {
  static constexpr int most_terms = 16;
  double clip;
  const double* count; // (): number of tokens
  const double* loss;  // (): sum of the losses
  const double* squares[most_terms];
  int terms;      // number of terms of the sum of squares
  double* factor; // ()
  double* norm;   // ()

  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t) const {
    if (!team.leader()) return;
    double sum = 0;
    for (int k = 0; k < terms; ++k) sum += *squares[k];
    const double n = std::sqrt(sum) / *count, limit = clip / (n + 1e-6);
    const bool finite = n - n == 0 && *loss - *loss == 0;
    *factor = !finite ? std::numeric_limits<double>::quiet_NaN()
                      : (clip > 0 && limit < 1 ? limit : 1.0) / *count;
    *norm = n;
  }
};

} // namespace mc::rows
