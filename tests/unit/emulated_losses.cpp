// The bodies of losses on emulated teams, against plain loops in double.
#define BOOST_TEST_MODULE emulated_losses
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/cross_entropy.hpp>

#include <cmath>
#include <type_traits>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

} // namespace

// Logits of which `valid` are words, and labels: in the middle, the last word, the first, none, one
// of another part. Named outside, since lambdas capture it.
template <class T> struct logits_of {
  int64_t valid, width, first;
  std::vector<G<T>> logits;
  std::vector<std::vector<std::int32_t>> labels;

  logits_of(team_shape s, int64_t begin)
      : valid(s.width), width(s.width + s.threads / 2 + 3), first(begin) {
    numbers from;
    logits = from.of<G<T>>(s.rows * width, 5);
    const auto word = [&](int64_t v) { return static_cast<std::int32_t>(first + v); };
    labels = {{word(valid / 2), word(0)}, {word(valid - 1), -1}};
    if (begin > 0) labels.push_back({word(valid), word(-1)});
  }
  double at(int64_t row, int64_t v) const {
    return wide(logits[static_cast<std::size_t>(row * width + v)]);
  }
  double lse(int64_t row) const {
    double sum = 0;
    for (int64_t v = 0; v < valid; ++v) sum += std::exp(at(row, v));
    return std::log(sum);
  }
};

BOOST_AUTO_TEST_CASE_TEMPLATE(log_sum_exp_and_target, T, types) {
  for_teams<G<T>>([](team_shape s) {
    const logits_of<T> of(s, 7);
    for (const auto& labels : of.labels) {
      auto lse = unset<double>(s.rows);
      auto target = unset<G<T>>(s.rows);
      on_team("logits_row", s,
              rows::logits_row<G<T>>{of.width, of.valid, of.first, of.logits.data(), labels.data(),
                                     lse.data(), target.data()},
              lse, target);
      reference sums, targets;
      for (int64_t r = 0; r < s.rows; ++r) {
        const int64_t at = labels[static_cast<std::size_t>(r)] - of.first;
        const bool here = at >= 0 && at < of.valid;
        sums.push_back(of.lse(r));
        targets.push_back(here ? of.at(r, at) : 0);
      }
      close<G<T>>("lse", lse, sums, 1, 16, 8);
      close<G<T>>("target", target, targets, 0, 0.01);
    }
  });
}

// The gradient, where it is the logits and where it is not.
BOOST_AUTO_TEST_CASE_TEMPLATE(gradient_of_logits, T, types) {
  for_teams<G<T>>([](team_shape s) {
    const logits_of<T> of(s, 7);
    numbers from;
    const auto dlse = from.of<double>(s.rows);
    const auto dtarget = from.of<G<T>>(s.rows);
    std::vector<double> lse;
    for (int64_t r = 0; r < s.rows; ++r) lse.push_back(of.lse(r));
    for (const auto& labels : of.labels) {
      reference want;
      for (int64_t r = 0; r < s.rows; ++r) {
        const auto row = static_cast<std::size_t>(r);
        for (int64_t v = 0; v < of.width; ++v) {
          const double p = v < of.valid ? std::exp(of.at(r, v) - lse[row]) : 0;
          want.push_back(dlse[row] * p +
                         (v < of.valid && v == labels[row] - of.first ? wide(dtarget[row]) : 0));
        }
      }
      const auto body = [&](const G<T>* logits, auto* d) {
        return rows::logits_grad_row<T>{of.width,    of.valid,       of.first,
                                        logits,      labels.data(),  lse.data(),
                                        dlse.data(), dtarget.data(), d};
      };
      auto d = unset<T>(s.rows * of.width);
      on_team("logits_grad_row", s, body(of.logits.data(), d.data()), d);
      close<T>("gradient", d, want, 1, 24, 2);
      if constexpr (std::is_same_v<T, G<T>>) {
        auto both = of.logits;
        on_team("logits_grad_row in place", s, body(both.data(), both.data()), both);
        close<T>("gradient in place", both, want, 1, 24, 2);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(loss_and_gradient, T, types) {
  for_teams<G<T>>([](team_shape s) {
    const logits_of<T> of(s, 0);
    const G<T> seed(0.75f);
    const double z = 0.01;
    for (const auto& labels : of.labels) {
      reference losses, want;
      for (int64_t r = 0; r < s.rows; ++r) {
        const int64_t label = labels[static_cast<std::size_t>(r)];
        const double lse = of.lse(r), factor = 1 + 2 * z * lse;
        losses.push_back(label < 0 ? 0 : lse - of.at(r, label) + z * lse * lse);
        for (int64_t v = 0; v < of.width; ++v) {
          const double p = v < of.valid ? std::exp(of.at(r, v) - lse) : 0;
          want.push_back(label < 0 ? 0 : wide(seed) * (factor * p - (v == label ? 1 : 0)));
        }
      }
      const auto body = [&](G<T>* logits, std::vector<double>& loss, auto* d) {
        return rows::loss_row<T>{of.width, of.valid, logits,      labels.data(),
                                 seed,     z,        loss.data(), d};
      };
      auto loss = unset<double>(s.rows);
      auto d = unset<T>(s.rows * of.width);
      auto logits = of.logits; // of which only exponentials are left
      on_team("loss_row", s, body(logits.data(), loss, d.data()), loss, d, logits);
      close<G<T>>("loss", loss, losses, 1, 48, 16);
      close<T>("gradient", d, want, 1, 24, 2);
      if constexpr (std::is_same_v<T, G<T>>) {
        auto both = of.logits;
        loss = unset<double>(s.rows);
        on_team("loss_row in place", s, body(both.data(), loss, both.data()), loss, both);
        close<G<T>>("loss in place", loss, losses, 1, 48, 16);
        close<T>("gradient in place", both, want, 1, 24, 2);
      }
    }
  });
}
