// The bodies of losses on emulated teams, against plain loops in double.
#define BOOST_TEST_MODULE emulated_losses
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/cross_entropy.hpp>

#include <cmath>
#include <limits>
#include <tuple>
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

using accumulators = std::tuple<float, double>;

// Four rows of log-sum-exps of parts of a vocabulary: near each other; one far above the others;
// one without a word, whose exponential is zero; and, of a row that has no label, none that is a
// number.
template <class F> struct parts_of_rows {
  static constexpr int64_t rows = 4;
  std::vector<std::int32_t> labels{3, 0, 7, -1};
  std::vector<F> target;
  std::vector<double> part;
  reference lse;
  int64_t parts;

  explicit parts_of_rows(int64_t of) : parts(of) {
    numbers from;
    target = from.of<F>(rows, 5);
    part = from.of<double>(rows * parts, 5);
    part[at(1, parts - 1)] = 900;
    if (parts > 1) part[at(2, 1)] = -std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < parts; ++i) part[at(3, i)] = std::nan("");
    for (int64_t r = 0; r < rows; ++r) {
      long double sum = 0;
      for (int64_t i = 0; i < parts; ++i) sum += std::exp(static_cast<long double>(part[at(r, i)]));
      lse.push_back(static_cast<double>(std::log(sum)));
    }
  }
  std::size_t at(int64_t row, int64_t i) const { return static_cast<std::size_t>(row * parts + i); }
};

// The vocabulary in one part, in three, and in many.
template <class F, class Check> void for_parts(Check check) {
  for_teams<F>([&](team_shape s) {
    s.rows = parts_of_rows<F>::rows;
    for (int64_t parts : {int64_t{1}, int64_t{3}, s.width})
      for (double z : {0.0, 0.01}) check(s, parts_of_rows<F>(parts), z);
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(cross_entropy_of_parts, F, accumulators) {
  for_parts<F>([](team_shape s, const parts_of_rows<F>& of, double z) {
    auto loss = unset<double>(s.rows);
    on_team("cross_entropy_row", s,
            rows::cross_entropy_row<F>{of.parts, of.part.data(), of.target.data(), of.labels.data(),
                                       z, loss.data()},
            loss);
    reference want;
    for (std::size_t r = 0; r < loss.size(); ++r)
      want.push_back(of.labels[r] < 0 ? 0
                                      : of.lse[r] - wide(of.target[r]) + z * of.lse[r] * of.lse[r]);
    close<double>("loss", loss, want, 1, 64 + static_cast<double>(of.parts), 900);
  });
}

// The gradients of a row's parts are a share each of that of its log-sum-exp.
BOOST_AUTO_TEST_CASE_TEMPLATE(gradient_of_parts, F, accumulators) {
  for_parts<F>([](team_shape s, const parts_of_rows<F>& of, double z) {
    const F seed(0.75f);
    auto dlse = unset<double>(s.rows * of.parts);
    auto dtarget = unset<F>(s.rows);
    on_team("cross_entropy_grad_row", s,
            rows::cross_entropy_grad_row<F>{of.parts, &seed, of.part.data(), of.labels.data(), z,
                                            dlse.data(), dtarget.data()},
            dlse, dtarget);
    reference want, targets;
    for (int64_t r = 0; r < s.rows; ++r) {
      const auto row = static_cast<std::size_t>(r);
      const bool seen = of.labels[row] >= 0;
      targets.push_back(seen ? -0.75 : 0);
      for (int64_t i = 0; i < of.parts; ++i)
        want.push_back(seen ? 0.75 * (1 + 2 * z * of.lse[row]) *
                                  std::exp(of.part[of.at(r, i)] - of.lse[row])
                            : 0);
    }
    // An exponent of up to 900 that is half a unit off is 900 units in the exponential.
    close<double>("dlse", dlse, want, 1, 1024 + static_cast<double>(of.parts), 0.01);
    close<F>("dtarget", dtarget, targets, 0, 0.01);
  });
}

// Added up in double and in order, and rounded once. A row without a label is not counted.
BOOST_AUTO_TEST_CASE_TEMPLATE(sum_of_losses, F, accumulators) {
  for_teams<F>([](team_shape s) {
    numbers from;
    auto losses = from.of<double>(s.width + 2);
    losses.front() = 1e16, losses[losses.size() / 2] = -1e16; // what stands between them is rounded
    std::vector<std::int32_t> labels;
    double sum = 0, seen = 0;
    for (std::size_t t = 0; t < losses.size(); ++t) {
      labels.push_back(t % 3 == 1 ? -1 : t % 3 == 0 ? 0 : 50000);
      sum += losses[t], seen += t % 3 == 1 ? 0 : 1;
    }
    const auto check = [&](int64_t n, double loss, double count) {
      std::vector<F> sums = unset<F>(2);
      on_team("sum_of_losses", one_row(s),
              rows::sum_of_losses<F>{n, losses.data(), labels.data(), sums.data(), &sums[1]}, sums);
      BOOST_TEST(sums[0] == static_cast<F>(loss));
      BOOST_TEST(sums[1] == static_cast<F>(count));
    };
    check(static_cast<int64_t>(losses.size()), sum, seen);
    check(1, 1e16, 1);
    check(0, 0, 0);
  });
}

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

// A rank of tensor parallelism may hold padding alone: its part of the sum is of no number.
BOOST_AUTO_TEST_CASE(a_rank_without_words) {
  for (const int threads : {32, 128, 1024}) {
    const team_shape s{{2, 64}, threads};
    const std::vector<float> logits(128, 1.0f);
    const std::vector<std::int32_t> labels{3, -1};
    auto lse = unset<double>(2);
    auto target = unset<float>(2);
    on_team(
        "logits_row", s,
        rows::logits_row<float>{64, 0, 70, logits.data(), labels.data(), lse.data(), target.data()},
        lse, target);
    for (const double x : lse) BOOST_TEST(x == -std::numeric_limits<double>::infinity());
    for (const float x : target) BOOST_TEST(x == 0);
    const mc::cores core;
    mc::for_rows(core, 2,
                 rows::logits_row<float>{64, 0, 70, logits.data(), labels.data(), lse.data(),
                                         target.data()});
    for (const double x : lse) BOOST_TEST(x == -std::numeric_limits<double>::infinity());
  }
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

BOOST_AUTO_TEST_CASE(barriers_of_losses) {
  const logits_of<float> of({{2, 64}, 32}, 0);
  const std::vector<std::int32_t>& labels = of.labels.front();
  const std::vector<double> lse{of.lse(0), of.lse(1)}, dlse{0.75, -0.5};
  const std::vector<float> dtarget{-0.75f, 0.5f};
  const float seed = 0.75f;
  every_barrier_is_needed([&] {
    auto both = of.logits;
    on_team("logits_grad_row in place", {{2, 64}, 32},
            rows::logits_grad_row<float>{of.width, of.valid, of.first, both.data(), labels.data(),
                                         lse.data(), dlse.data(), dtarget.data(), both.data()},
            both);
    if (wrong_on_teams != nullptr && !wrong_on_teams->empty()) return;
    both = of.logits;
    auto loss = unset<double>(2);
    on_team("loss_row in place", {{2, 64}, 32},
            rows::loss_row<float>{of.width, of.valid, both.data(), labels.data(), &seed, 0.01,
                                  loss.data(), both.data()},
            loss, both);
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
                                 &seed,    z,        loss.data(), d};
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
