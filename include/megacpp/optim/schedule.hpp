// The learning rate of every step, with the meaning of Megatron-LM's flags. The functions are pure.
//
// k is the number of steps done, W lr-warmup-iters (or lr-warmup-fraction D), D lr-decay-iters,
// A lr-wsd-decay-iters:
//
//   k <= W, W > 0     lr k / W
//   constant          lr
//   k > D             min_lr
//   otherwise         min_lr + c (lr - min_lr),   r = (k - W) / (D - W)
//     linear          c = 1 - r
//     cosine          c = (cos(pi r) + 1) / 2
//     WSD             c = 1 while k <= D - A, then with s = (k - (D - A)) / A
//                     linear 1 - s, cosine (cos(pi s) + 1) / 2, exponential 2 (1/2)^s - 1,
//                     minus_sqrt 1 - sqrt(s)
//
// (Megatron-LM, megatron/core/optimizer_param_scheduler.py; warmup-stable-decay: Hu et al. 2024.)
// A run that is counted in samples has all of these in samples (--train-samples,
// --lr-warmup-samples, --lr-decay-samples). With W > 0 the first step, k = 0, has the learning rate
// 0, as in Megatron-LM.
#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

namespace mc {

enum class decay_style : std::uint8_t { constant, linear, cosine, wsd };
enum class wsd_style : std::uint8_t { linear, cosine, exponential, minus_sqrt };

struct schedule {
  double lr = 1e-3, min_lr = 0;
  decay_style style = decay_style::linear;
  /// Steps, or samples, of the warm-up; a fraction of the decay may be no whole number.
  double warmup = 0;
  std::int64_t decay = 1;     ///< steps, or samples, until the decay ends, warm-up included
  std::int64_t wsd_decay = 0; ///< the last of these, in which WSD decays
  wsd_style wsd = wsd_style::exponential;
};

namespace detail {

inline double half_cosine(double r) { return 0.5 * (std::cos(std::numbers::pi * r) + 1); }

inline double wsd_factor(wsd_style how, double s) {
  switch (how) {
  case wsd_style::linear: return 1 - s;
  case wsd_style::cosine: return half_cosine(s);
  case wsd_style::exponential: return 2 * std::pow(0.5, s) - 1;
  case wsd_style::minus_sqrt: return 1 - std::sqrt(s);
  }
  return 0;
}

inline double decay_factor(const schedule& s, std::int64_t k) {
  const auto ratio = [](std::int64_t n, std::int64_t d) {
    return static_cast<double>(n) / static_cast<double>(d);
  };
  const auto decayed = [&] {
    return (static_cast<double>(k) - s.warmup) / (static_cast<double>(s.decay) - s.warmup);
  };
  switch (s.style) {
  case decay_style::constant: return 1;
  case decay_style::linear: return 1 - decayed();
  case decay_style::cosine: return half_cosine(decayed());
  case decay_style::wsd: break;
  }
  const std::int64_t begin = s.decay - s.wsd_decay;
  return k <= begin ? 1 : wsd_factor(s.wsd, ratio(k - begin, s.wsd_decay));
}

} // namespace detail

/// Returns a sentence if the numbers contradict each other; else "".
inline std::string_view contradiction(const schedule& s) {
  if (s.min_lr > s.lr) return "schedule::min_lr is above schedule::lr";
  if (s.style == decay_style::constant) return {};
  if (s.decay < 1) return "schedule::decay must be at least 1";
  if (s.warmup >= static_cast<double>(s.decay))
    return "schedule::warmup must be less than schedule::decay (by default loop_request::steps)";
  if (s.style == decay_style::wsd && s.wsd_decay < 1)
    return "schedule::style WSD needs schedule::wsd_decay";
  if (s.style == decay_style::wsd &&
      static_cast<double>(s.wsd_decay) > static_cast<double>(s.decay) - s.warmup)
    return "schedule::wsd_decay does not fit between schedule::warmup and schedule::decay";
  return {};
}

/// Returns the learning rate of the step after `done` steps. `s` must not contradict itself.
inline double learning_rate(const schedule& s, std::int64_t done) {
  if (s.warmup > 0 && static_cast<double>(done) <= s.warmup)
    return s.lr * static_cast<double>(done) / s.warmup;
  if (s.style == decay_style::constant) return s.lr;
  if (done > s.decay) return s.min_lr;
  return s.min_lr + detail::decay_factor(s, done) * (s.lr - s.min_lr);
}

} // namespace mc
