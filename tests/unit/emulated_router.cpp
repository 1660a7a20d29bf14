// The bodies of the router and of experts' rows on emulated teams, against plain loops in double.
#define BOOST_TEST_MODULE emulated_router
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/experts.hpp>
#include <megacpp/kernel/rows/router.hpp>
#include <megacpp/num/random.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

} // namespace

// Rows of logits, and what is to be found in each: as many experts as `k`, by score. Named outside,
// since lambdas capture it.
template <class T> struct routing {
  team_shape s;
  int k;
  std::vector<T> logits, bias;
  reference lse; // of each row

  explicit routing(team_shape of) : s(of), k(static_cast<int>(std::min<int64_t>(3, of.width))) {
    numbers from;
    logits = from.of<T>(s.rows * s.width, 3), bias = from.of<T>(s.width);
    // Equal scores: the lower index is first.
    logits[0] = logits[static_cast<std::size_t>(s.width - 1)] = mc::convert<T>(3.5f);
    for (int64_t r = 0; r < s.rows; ++r) {
      double sum = 0;
      for (int64_t e = 0; e < s.width; ++e) sum += std::exp(at(r, e));
      lse.push_back(std::log(sum));
    }
  }
  double p(int64_t r, int64_t e) const {
    return std::exp(at(r, e) - lse[static_cast<std::size_t>(r)]);
  }
  double at(int64_t r, int64_t e) const {
    return wide(logits[static_cast<std::size_t>(r * s.width + e)]);
  }
  std::vector<std::int32_t> chosen(bool biased) const {
    std::vector<std::int32_t> all;
    for (int64_t r = 0; r < s.rows; ++r) {
      std::vector<std::int32_t> order(static_cast<std::size_t>(s.width));
      std::iota(order.begin(), order.end(), 0);
      reference score;
      for (std::size_t e = 0; e < order.size(); ++e) {
        const auto at_e = static_cast<int64_t>(e);
        score.push_back(biased ? p(r, at_e) + wide(bias[e]) : at(r, at_e));
      }
      const auto of = [&](std::int32_t e) { return score[static_cast<std::size_t>(e)]; };
      std::stable_sort(order.begin(), order.end(),
                       [&](std::int32_t a, std::int32_t b) { return of(a) > of(b); });
      all.insert(all.end(), order.begin(), order.begin() + k);
    }
    return all;
  }
  // Weight of choice j of row r.
  double weight(const std::vector<std::int32_t>& e, int64_t r, int j, bool normalise) const {
    double all = lse[static_cast<std::size_t>(r)];
    if (normalise) {
      double sum = 0;
      for (int i = 0; i < k; ++i) sum += std::exp(at(r, e[static_cast<std::size_t>(r * k + i)]));
      all = std::log(sum);
    }
    return std::exp(at(r, e[static_cast<std::size_t>(r * k + j)]) - all);
  }
};

BOOST_AUTO_TEST_CASE_TEMPLATE(route_and_gradient, T, types) {
  for_teams<T>(rows::vectors_of_router, [](team_shape s) {
    const routing<T> of(s);
    for (bool normalise : {false, true}) {
      const bool biased = normalise;
      const auto experts = of.chosen(biased);
      reference weights;
      for (int64_t r = 0; r < s.rows; ++r)
        for (int j = 0; j < of.k; ++j) weights.push_back(of.weight(experts, r, j, normalise));
      auto w = unset<G<T>>(s.rows * of.k);
      std::vector<std::int32_t> chosen(w.size(), -7);
      on_team("route_row", s,
              rows::route_row<T>{s.width, of.k, normalise, of.logits.data(),
                                 biased ? of.bias.data() : nullptr, w.data(), chosen.data()},
              w, chosen);
      BOOST_TEST((chosen == experts));
      close<G<T>>("weights", w, weights, 1, 24, 1);

      numbers from;
      const auto dw = from.of<G<T>>(s.rows * of.k);
      auto repeated = experts; // an expert twice, as scores that are no numbers leave them
      for (int64_t r = 0; r < s.rows; ++r)
        repeated[static_cast<std::size_t>((r + 1) * of.k - 1)] =
            repeated[static_cast<std::size_t>(r * of.k)];
      for (const auto& taken : {experts, repeated}) {
        reference want;
        for (int64_t r = 0; r < s.rows; ++r) {
          const auto first = static_cast<std::size_t>(r * of.k);
          const auto weight = [&](int j) { return of.weight(taken, r, j, normalise); };
          double mean = 0;
          for (int j = 0; j < of.k; ++j)
            mean += wide(dw[first + static_cast<std::size_t>(j)]) * weight(j);
          for (int64_t e = 0; e < s.width; ++e) {
            double d = normalise ? 0 : -mean * of.p(r, e);
            for (int j = 0; j < of.k; ++j) {
              const std::size_t at = first + static_cast<std::size_t>(j);
              if (taken[at] == e) d += weight(j) * (wide(dw[at]) - (normalise ? mean : 0));
            }
            want.push_back(d);
          }
        }
        auto d = unset<T>(s.rows * s.width);
        on_team("route_grad_row", s,
                rows::route_grad_row<T>{s.width, of.k, normalise, dw.data(), of.logits.data(),
                                        taken.data(), d.data()},
                d);
        close<T>("gradients", d, want, 1, 48, 4);
      }
    }
  });
}

BOOST_AUTO_TEST_CASE_TEMPLATE(router_statistics, T, types) {
  for_teams<T>(rows::vectors_of_router, [](team_shape s) {
    if (s.threads == 1024) s.rows = 2;
    const routing<T> of(s);
    const auto experts = of.chosen(false);
    auto lse = unset<G<T>>(s.rows);
    on_team("router_lse_row", s, rows::router_lse_row<T>{s.width, of.logits.data(), lse.data()},
            lse);
    close<G<T>>("lse", lse, of.lse, 1, 24);
    // One group of two tokens, in one block. Given the same logsumexps, a core's bits.
    auto parts = unset<G<T>>(2 * s.width + 1);
    reference want(parts.size()), gradient;
    for (int64_t r = 0; r < s.rows; ++r) {
      for (int64_t e = 0; e < s.width; ++e) want[static_cast<std::size_t>(e)] += of.p(r, e);
      want.back() += std::pow(of.lse[static_cast<std::size_t>(r)], 2);
    }
    for (std::int32_t e : experts) want[static_cast<std::size_t>(s.width + e)] += 1;
    team_shape once = s;
    once.rows = 1;
    rows::router_statistics_block<T> block{
        s.width, s.rows, 1, of.k, of.logits.data(), experts.data(), parts.data(), lse.data()};
    on_team("router_statistics_block", once, block, parts);
    close<G<T>>("statistics", parts, want, 1, 48, 8);
    auto of_core = unset<G<T>>(2 * s.width + 1);
    block.partials = of_core.data();
    mc::for_one(host, block);
    BOOST_TEST(same_bytes(of_core.data(), parts.data(), parts.size() * sizeof(G<T>)));
    // A core computes them by itself, too.
    for (std::size_t r = 0; r < lse.size(); ++r)
      mc::for_one(host,
                  rows::router_lse_row<T>{
                      s.width, of.logits.data() + static_cast<int64_t>(r) * s.width, &lse[r]});
    mc::for_one(host, block);
    parts = of_core, block.lse = nullptr;
    mc::for_one(host, block);
    BOOST_TEST(same_bytes(of_core.data(), parts.data(), parts.size() * sizeof(G<T>)));

    numbers from;
    const auto dp = from.of<G<T>>(s.width);
    const G<T> dz(0.3f);
    for (int64_t r = 0; r < s.rows; ++r) {
      double inner = 0;
      const auto p = [&](int64_t e) { return of.p(r, e); };
      const double lse = of.lse[static_cast<std::size_t>(r)];
      for (int64_t e = 0; e < s.width; ++e) inner += p(e) * wide(dp[static_cast<std::size_t>(e)]);
      for (int64_t e = 0; e < s.width; ++e)
        gradient.push_back(p(e) *
                           (wide(dp[static_cast<std::size_t>(e)]) + 2 * wide(dz) * lse - inner));
    }
    auto d = unset<T>(s.rows * s.width);
    on_team("router_statistics_grad_row", s,
            rows::router_statistics_grad_row<T>{s.width, s.rows, dp.data(), &dz, of.logits.data(),
                                                d.data()},
            d);
    close<T>("gradients of statistics", d, gradient, 1, 48, 8);
  });
}

// A block of threads adds up a column in the order of a core: of two groups, each of one whole block
// and of another that is no multiple of the tokens whose loads are on their way together.
BOOST_AUTO_TEST_CASE_TEMPLATE(statistics_have_the_bits_of_a_core, T, types) {
  using block = rows::router_statistics_block<T>;
  const int64_t tokens = block::tokens_of_block + 13;
  for (const int threads : {16, 32, 128})
    for (const int64_t experts : {int64_t{5}, threads + int64_t{3}}) {
      const routing<T> of({{2 * tokens, experts}, threads});
      const auto chosen = of.chosen(false);
      numbers from;
      const auto lse = from.of<G<T>>(2 * tokens);
      auto parts = unset<G<T>>(4 * (2 * experts + 1)), want = parts;
      block body{experts,       tokens,       2,         of.k, of.logits.data(),
                 chosen.data(), parts.data(), lse.data()};
      on_team("router_statistics_block", {{4, experts}, threads}, body, parts);
      body.partials = want.data();
      mc::for_rows(host, 4, body);
      BOOST_TEST(same_bytes(parts.data(), want.data(), parts.size() * sizeof(G<T>)));
    }
}

// Every logit is loaded once, whatever the number of choices; gradients of probabilities twice.
BOOST_AUTO_TEST_CASE_TEMPLATE(logits_are_loaded_once, T, types) {
  for (const int threads : {16, 32, 128})
    for (const int64_t groups : {threads / 2, 4 * threads}) {
      const routing<T> of({{1, groups * emulated_team::width<T>}, threads});
      const int64_t n = of.s.width;
      std::vector<std::int32_t> chosen = of.chosen(false);
      const auto w = zeros<G<T>>(of.k);
      auto weights = w, lse = unset<G<T>>(1);
      auto d = unset<T>(n);
      const auto dp = zeros<G<T>>(n);
      const G<T> dz(0.3f);
      const T* const l = of.logits.data();
      loads_rows<T>("route_row", of.s,
                    rows::route_row<T>{n, of.k, true, l, nullptr, weights.data(), chosen.data()}, 1,
                    1 + of.k);
      loads_rows<T>(
          "route_row biased", of.s,
          rows::route_row<T>{n, of.k, true, l, of.bias.data(), weights.data(), chosen.data()}, 2,
          1 + 2 * (of.k - 1) + 1);
      loads_rows<T>("route_grad_row", of.s,
                    rows::route_grad_row<T>{n, of.k, true, w.data(), l, chosen.data(), d.data()}, 1,
                    2);
      loads_rows<T>("router_lse_row", of.s, rows::router_lse_row<T>{n, l, lse.data()}, 1, 1);
      constexpr int64_t wide = sizeof(G<T>) / sizeof(T);
      loads_rows<T>("router_statistics_grad_row", of.s,
                    rows::router_statistics_grad_row<T>{n, 1, dp.data(), &dz, l, d.data()},
                    1 + 2 * wide, 3);
    }
}

// Zeros of both signs are equal, and so are experts that no softmax reaches; what is no number is
// never found.
BOOST_AUTO_TEST_CASE_TEMPLATE(choices_among_equals, T, types) {
  const float infinite = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  for (const int threads : {16, 32, 128}) {
    constexpr int64_t width = 4 * emulated_team::width<T>;
    const team_shape s{{3, width}, threads};
    const int k = static_cast<int>(width);
    std::vector<T> logits(3 * width, mc::convert<T>(-infinite));
    const auto set = [&](int64_t i, float x) {
      logits[static_cast<std::size_t>(i)] = mc::convert<T>(x);
    };
    set(1, -0.0f), set(2, 0.0f), set(width - 1, 0.0f);
    for (int64_t e = 0; e < width; ++e) set(width + e, e % 2 == 0 ? -1.0f : 2.0f);
    for (int64_t e = 0; e < width; ++e) set(2 * width + e, e == 3 ? 1.0f : nan);
    std::vector<std::int32_t> want{1, 2, static_cast<std::int32_t>(width - 1), 0};
    for (std::int32_t e = 3; e < width - 1; ++e) want.push_back(e);
    for (std::int32_t e = 1; e < width; e += 2) want.push_back(e);
    for (std::int32_t e = 0; e < width; e += 2) want.push_back(e);
    for (std::int32_t e = 0; e < width; ++e) want.push_back(e == 0 ? 3 : e);
    auto w = unset<G<T>>(3 * k);
    std::vector<std::int32_t> chosen(3 * width, -7);
    const rows::route_row<T> body{width, k, false, logits.data(), nullptr, w.data(), chosen.data()};
    on_team("route_row", s, body, w, chosen);
    BOOST_TEST((chosen == want));
    std::fill(chosen.begin(), chosen.end(), -7);
    mc::for_rows(host, s.rows, body);
    BOOST_TEST((chosen == want));
  }
}

BOOST_AUTO_TEST_CASE(barriers_of_the_router) {
  every_barrier_is_needed([] {
    const routing<float> of({{2, 64}, 32});
    auto w = unset<float>(2 * of.k);
    std::vector<std::int32_t> chosen(w.size(), 0);
    on_team(
        "route_row", of.s,
        rows::route_row<float>{64, of.k, true, of.logits.data(), nullptr, w.data(), chosen.data()},
        w, chosen);
    const std::vector<float> dw(w.size(), 0.5f);
    const std::vector<std::int32_t> experts = of.chosen(false);
    auto d = unset<float>(2 * 64);
    if (wrong_on_teams != nullptr && !wrong_on_teams->empty()) return;
    on_team("route_grad_row", of.s,
            rows::route_grad_row<float>{64, of.k, false, dw.data(), of.logits.data(),
                                        experts.data(), d.data()},
            d);
  });
}

using accumulators = std::tuple<float, double>;

// Of two groups in three blocks each: each group's by themselves, and the squares of both.
BOOST_AUTO_TEST_CASE_TEMPLATE(sums_of_blocks, F, accumulators) {
  for_teams<F>([](team_shape s) {
    numbers from;
    const int64_t groups = 2, blocks = 3, experts = s.width, width = 2 * experts + 1;
    const auto parts = from.of<F>(groups * blocks * width);
    reference probabilities, choices;
    double squares = 0;
    for (int64_t g = 0; g < groups; ++g) {
      const auto sum = [&](int64_t column) {
        double of = 0;
        for (int64_t b = 0; b < blocks; ++b)
          of += wide(parts[static_cast<std::size_t>((g * blocks + b) * width + column)]);
        return of;
      };
      for (int64_t e = 0; e < experts; ++e) {
        probabilities.push_back(sum(e));
        choices.push_back(sum(experts + e));
      }
      squares += sum(2 * experts);
    }
    s.rows = groups;
    auto p = unset<F>(groups * experts), c = p, z = unset<F>(1);
    on_team("router_sums", s,
            rows::router_sums<F>{experts, blocks, parts.data(), p.data(), c.data()}, p, c);
    close<F>("probabilities", p, probabilities, 1, 0.01);
    close<F>("choices", c, choices, 1, 0.01);
    on_team("router_square_sum", one_row(s),
            rows::router_square_sum<F>{width, groups * blocks, blocks, parts.data(), z.data()}, z);
    close<F>("squares", z, {squares}, 1, 0.01);
  });
}

// Two groups of choices among four experts, of which the last is never chosen. Numbers that are
// quarters are added without error; others choice by choice and group by group, whichever are added
// at once.
BOOST_AUTO_TEST_CASE_TEMPLATE(load_of_experts, F, accumulators) {
  for_teams<F>([](team_shape s) {
    const int64_t experts = 4, each = 2 * s.width, all = 2 * each;
    std::vector<std::int32_t> chosen;
    reference want{0.25, -0.75, 3, 0};
    for (int64_t i = 0; i < all; ++i) {
      chosen.push_back(
          static_cast<std::int32_t>(mc::philox(1, static_cast<std::uint64_t>(i))[0] % 3));
      want[static_cast<std::size_t>(chosen.back())] += 1;
    }
    for (double& w : want) w -= 2 * static_cast<double>(each) / 4;
    s.rows = experts;
    const auto add = [&](std::vector<F>& load, int64_t first, int64_t choices) {
      on_team("expert_load", s,
              rows::expert_load<F>{experts, choices, each, chosen.data() + first, load.data()},
              load);
    };
    std::vector<F> load{F(0.25f), F(-0.75f), F(3), F(0)};
    add(load, 0, all);
    close<F>("loads", load, want, 0, 0.01);
    numbers from;
    auto once = from.of<F>(experts), twice = once, by_choice = once;
    add(once, 0, all), add(twice, 0, each), add(twice, each, each);
    BOOST_TEST((once == twice));
    for (int64_t i = 0; i < all; ++i) {
      by_choice[static_cast<std::size_t>(chosen[static_cast<std::size_t>(i)])] += F(1);
      if ((i + 1) % each == 0)
        for (F& x : by_choice) x -= static_cast<F>(each) / F(4);
    }
    BOOST_TEST((once == by_choice));
  });
}

// Three groups with different numbers of choices.
BOOST_AUTO_TEST_CASE_TEMPLATE(loss_of_router, F, accumulators) {
  for_teams<F>([](team_shape s) {
    numbers from;
    const int64_t groups = 3, experts = s.width;
    const double balance = 0.25, z = 0.125;
    auto probabilities = from.of<F>(groups * experts), choices = probabilities;
    for (F& p : probabilities) p = std::fabs(p);
    for (std::size_t i = 0; i < choices.size(); ++i) choices[i] = static_cast<F>(i % 7 + 1);
    const F squares(40.5f), dloss(-0.75f);
    double want = z * wide(squares);
    reference gradient;
    for (int64_t g = 0; g < groups; ++g) {
      const auto at = [&](int64_t e) { return static_cast<std::size_t>(g * experts + e); };
      double all = 0, both = 0;
      for (int64_t e = 0; e < experts; ++e) {
        all += wide(choices[at(e)]);
        both += wide(probabilities[at(e)]) * wide(choices[at(e)]);
      }
      const double share = static_cast<double>(experts) / all;
      want += balance * share * both;
      for (int64_t e = 0; e < experts; ++e)
        gradient.push_back(-0.75 * balance * share * wide(choices[at(e)]));
    }
    auto loss = unset<F>(1), dsquares = loss, dp = unset<F>(groups * experts);
    on_team("router_loss", one_row(s),
            rows::router_loss<F>{experts, groups, balance, z, probabilities.data(), choices.data(),
                                 &squares, loss.data()},
            loss);
    close<F>("loss", loss, {want}, 1, 16, 0);
    s.rows = groups;
    on_team("router_loss_grad", s,
            rows::router_loss_grad<F>{experts, balance, z, &dloss, choices.data(), dp.data(),
                                      dsquares.data()},
            dp, dsquares);
    close<F>("dprobabilities", dp, gradient, 1, 4, 0);
    close<F>("dsquares", dsquares, {-0.75 * z}, 0, 0.01);
    // The loss is linear in what it is made of.
    double product = wide(dsquares[0]) * wide(squares);
    for (std::size_t i = 0; i < dp.size(); ++i) product += wide(dp[i]) * wide(probabilities[i]);
    BOOST_TEST(std::fabs(product + 0.75 * want) <= (4 * unit<F> + 1e-13) * want);
  });
}

// Two choices a token: one of the first token lies before the round, one of the second is dropped.
BOOST_AUTO_TEST_CASE_TEMPLATE(rows_of_experts, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t base = 4, n = s.width, held = 3;
    const std::vector<std::int32_t> row{5, 2, 4, -1};
    const auto x = from.of<T>(s.rows * n), held_rows = from.of<T>(held * n);
    auto to = from.of<T>(held * n);
    reference sent = wide(to), combined;
    auto y = from.of<T>(s.rows * n);
    for (int64_t t = 0; t < s.rows; ++t) {
      const auto at = static_cast<std::size_t>((t == 0 ? 1 : 0) * n);
      for (std::size_t j = 0; j < static_cast<std::size_t>(n); ++j) {
        const auto k = static_cast<std::size_t>(t * n) + j;
        sent[at + j] = wide(x[k]);
        combined.push_back(wide(y[k]) + wide(held_rows[at + j]));
      }
    }
    on_team("dispatch_token", s,
            rows::dispatch_token<T, int64_t>{n, 2, base, held, x.data(), row.data(), to.data()},
            to);
    close<T>("dispatch", to, sent, 0, 0.01);
    on_team(
        "combine_token", s,
        rows::combine_token<T, int64_t>{n, 2, base, held, held_rows.data(), row.data(), y.data()},
        y);
    close<T>("combine", y, combined, 1, 1);

    const auto w = from.of<G<T>>(s.rows);
    reference scaled, dots(w.size());
    double most = 0;
    for (std::size_t k = 0; k < x.size(); ++k) {
      const std::size_t r = k / static_cast<std::size_t>(n);
      scaled.push_back(wide(x[k]) * wide(w[r]));
      dots[r] += wide(x[k]) * combined[k];
      most += std::fabs(wide(x[k]) * combined[k]);
    }
    auto out = x;
    on_team("scale_row in place", s,
            rows::scale_row<T, int64_t>{n, out.data(), w.data(), out.data()}, out);
    close<T>("scale", out, scaled, 1, 1);
    auto dw = unset<G<T>>(s.rows);
    on_team("scale_weight_grad_row", s,
            rows::scale_weight_grad_row<T, int64_t>{n, y.data(), x.data(), dw.data()}, dw);
    for (double& d : dots) d = 0;
    for (std::size_t k = 0; k < x.size(); ++k)
      dots[k / static_cast<std::size_t>(n)] += wide(x[k]) * wide(y[k]);
    close<G<T>>("scale_weight_grad", dw, dots, 1, 16, 1 + most / 8);
  });
}
