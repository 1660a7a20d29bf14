// Learning rates against Megatron-LM's formulas at chosen steps, and their laws; batches that grow.
#define BOOST_TEST_MODULE schedule
#include <megacpp/optim/batch_schedule.hpp>
#include <megacpp/optim/schedule.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace {

using mc::decay_style;
using mc::schedule;
using mc::wsd_style;

schedule of(decay_style style) {
  schedule s;
  s.lr = 1e-3, s.min_lr = 1e-4, s.style = style;
  s.warmup = 100, s.decay = 2000, s.wsd_decay = 500;
  return s;
}
constexpr auto styles = {decay_style::constant, decay_style::linear, decay_style::cosine,
                         decay_style::wsd};

void check_near(double found, double expected) { BOOST_TEST(std::abs(found - expected) <= 1e-15); }

} // namespace

BOOST_AUTO_TEST_CASE(warm_up_is_a_straight_line_from_zero) {
  for (const decay_style style : styles) {
    const schedule s = of(style);
    for (const int k : {0, 1, 37, 99, 100})
      check_near(mc::learning_rate(s, k), 1e-3 * static_cast<double>(k) / 100);
  }
}

BOOST_AUTO_TEST_CASE(without_warm_up_the_first_step_has_the_full_rate) {
  for (const decay_style style : styles) {
    schedule s = of(style);
    s.warmup = 0;
    check_near(mc::learning_rate(s, 0), 1e-3);
  }
}

// A share of the decay need not be a whole number of steps (--lr-warmup-fraction).
BOOST_AUTO_TEST_CASE(warm_up_may_end_between_two_steps) {
  schedule s = of(decay_style::linear);
  s.warmup = 2.5, s.decay = 10;
  check_near(mc::learning_rate(s, 2), 1e-3 * 2 / 2.5);
  check_near(mc::learning_rate(s, 3), 1e-4 + (1 - 0.5 / 7.5) * 9e-4);
  check_near(mc::learning_rate(s, 10), 1e-4);
}

BOOST_AUTO_TEST_CASE(values_of_each_style) {
  // Half of the decay is at step 1050.
  check_near(mc::learning_rate(of(decay_style::constant), 1050), 1e-3);
  check_near(mc::learning_rate(of(decay_style::linear), 1050), 5.5e-4);
  check_near(mc::learning_rate(of(decay_style::linear), 575), 7.75e-4);
  check_near(mc::learning_rate(of(decay_style::cosine), 1050), 5.5e-4);
  check_near(mc::learning_rate(of(decay_style::cosine), 575),
             1e-4 + 9e-4 * (0.5 + std::sqrt(0.125)));
}

BOOST_AUTO_TEST_CASE(wsd_is_stable_then_decays) {
  schedule s = of(decay_style::wsd);
  for (const int k : {101, 800, 1500}) check_near(mc::learning_rate(s, k), 1e-3);
  const auto half = [&](wsd_style how) {
    s.wsd = how;
    return (mc::learning_rate(s, 1750) - s.min_lr) / (s.lr - s.min_lr);
  };
  BOOST_TEST(std::abs(half(wsd_style::linear) - 0.5) < 1e-12);
  BOOST_TEST(std::abs(half(wsd_style::cosine) - 0.5) < 1e-12);
  BOOST_TEST(std::abs(half(wsd_style::exponential) - (std::sqrt(2.0) - 1)) < 1e-12);
  BOOST_TEST(std::abs(half(wsd_style::minus_sqrt) - (1 - std::sqrt(0.5))) < 1e-12);
}

BOOST_AUTO_TEST_CASE(every_decay_ends_at_the_least_rate_and_stays) {
  for (const decay_style style : {decay_style::linear, decay_style::cosine, decay_style::wsd})
    for (const wsd_style how :
         {wsd_style::linear, wsd_style::cosine, wsd_style::exponential, wsd_style::minus_sqrt}) {
      schedule s = of(style);
      s.wsd = how;
      for (const int k : {2000, 2001, 1000000}) check_near(mc::learning_rate(s, k), 1e-4);
    }
}

BOOST_AUTO_TEST_CASE(after_the_warm_up_rates_never_rise) {
  for (const decay_style style : styles) {
    const schedule s = of(style);
    for (int k = 100; k < 2100; ++k)
      BOOST_TEST(mc::learning_rate(s, k + 1) <= mc::learning_rate(s, k) + 1e-15);
  }
}

BOOST_AUTO_TEST_CASE(contradictions_are_named) {
  for (const decay_style style : styles) BOOST_TEST(mc::contradiction(of(style)).empty());
  schedule s = of(decay_style::cosine);
  s.min_lr = 1e-2;
  BOOST_TEST(mc::contradiction(s) == "schedule::min_lr is above schedule::lr");
  s = of(decay_style::linear);
  s.warmup = 2000;
  BOOST_TEST(mc::contradiction(s).starts_with("schedule::warmup"));
  s = of(decay_style::wsd);
  s.wsd_decay = 0;
  BOOST_TEST(!mc::contradiction(s).empty());
  s.wsd_decay = 1901;
  BOOST_TEST(!mc::contradiction(s).empty());
  s.wsd_decay = 1900;
  BOOST_TEST(mc::contradiction(s).empty());
}

// Each of the N sizes below the last lasts for SAMPLES / N samples, or a step where that is fewer.
BOOST_AUTO_TEST_CASE(a_batch_grows_in_equal_parts_of_the_samples) {
  using mc::batch_schedule;
  static_assert(batch_schedule{.last = 8}.after(0) == 8);
  for (const std::int64_t start : {1, 2, 16})
    for (const std::int64_t increment : {1, 3, 16})
      for (const std::int64_t parts : {0, 1, 2, 5, 95})
        for (const std::int64_t part : {1, 7, 100}) {
          const batch_schedule s{start + parts * increment, start, increment,
                                 std::max<std::int64_t>(1, parts * part)};
          BOOST_TEST(mc::contradiction(s).empty());
          std::int64_t consumed = 0, steps = 0;
          for (; consumed <= 3 * s.samples; ++steps) {
            std::int64_t size = start; // plus an increment for every whole part
            for (std::int64_t i = 1; i <= parts && i * part <= consumed; ++i) size += increment;
            BOOST_TEST(s.after(consumed) == size);
            BOOST_TEST(s.samples_of(steps, 0) == consumed);
            consumed += size;
          }
          BOOST_TEST(s.samples_of(5, consumed) == 5 * s.last);
        }
}

BOOST_AUTO_TEST_CASE(batches_that_do_not_come_to_the_last_are_refused) {
  BOOST_TEST(mc::contradiction({.last = 8, .start = 9}).find("is above batch_schedule::last") !=
             std::string_view::npos);
  BOOST_TEST(mc::contradiction({.last = 8, .start = 2, .increment = 4}).find("multiple") !=
             std::string_view::npos);
}
