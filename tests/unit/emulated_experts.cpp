// The bodies that say where each choice of an expert lies, and those of the way between ranks, on
// emulated teams, against plain loops.
#define BOOST_TEST_MODULE emulated_experts
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/experts.hpp>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

std::size_t index(int64_t i) { return static_cast<std::size_t>(i); }

// Teams whose threads see each other's writes late, too.
team_shape team_of(int threads, int64_t all) { return {{all, 1}, threads}; }

// The same numbers, of which the first is a NaN with a pattern of its own.
template <class T> std::vector<T> with_a_nan(std::vector<T> x) {
  std::memset(static_cast<void*>(x.data()), 0xfb, sizeof(T));
  return x;
}
template <class T> bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && same_bytes(a.data(), b.data(), a.size() * sizeof(T));
}

// Four ranks, of which two have the first three experts and two the others. Two by two they share
// the sequences of a micro-batch: the first has the first half of each. Of each half, 1,324
// choices, a part is full and one is not; the last expert is never chosen.
struct four_ranks {
  static constexpr int64_t experts = 6, ep = 2, mine = 3, ranks = 4, sequences = 2;
  static constexpr int64_t own = 1324, whole = 2 * own, capacity = 900;
  static constexpr rows::choice_ranges parts{sequences, own};

  std::vector<std::vector<std::int32_t>> batch; // (2; sequences, whole): the choices
  std::vector<std::vector<std::uint8_t>> taken; // of each micro-batch; empty: all are

  four_ranks() {
    numbers from;
    for (int b = 0; b < 2; ++b) {
      auto& of = batch.emplace_back();
      for (int64_t i = 0; i < sequences * whole; ++i) {
        const double x = from.next(); // small experts more often
        of.push_back(static_cast<std::int32_t>(x * x * (experts - 1)));
      }
    }
  }
  static int64_t before(int64_t rank) { return rank % 2 * own; }
  static int64_t in_batch(int64_t rank, int64_t choice) {
    return choice / own * whole + before(rank) + choice % own;
  }
  std::int32_t chosen(int64_t rank, int64_t choice) const {
    return batch[index(rank / 2)][index(in_batch(rank, choice))];
  }
  bool takes(int64_t rank, int64_t choice) const {
    return taken.empty() || taken[index(rank / 2)][index(in_batch(rank, choice))] != 0;
  }
  rows::taken_choices taken_by(int64_t rank) const {
    if (taken.empty()) return {nullptr, own, whole, 0};
    return {reinterpret_cast<const bool*>(taken[index(rank / 2)].data()), own, whole, before(rank)};
  }
  std::vector<std::int32_t> choices_of(int64_t rank) const {
    std::vector<std::int32_t> all;
    for (int64_t i = 0; i < sequences * own; ++i) all.push_back(chosen(rank, i));
    return all;
  }

  /// The row of each choice of each rank by a stable sort, and how many rows a rank of ep has.
  struct place {
    std::int32_t expert;
    int64_t rank, choice;
  };
  std::vector<std::vector<std::int32_t>> sorted(std::vector<std::int32_t>& most) const {
    std::vector<place> all;
    for (int64_t rank = 0; rank < ranks; ++rank)
      for (int64_t i = 0; i < sequences * own; ++i)
        if (takes(rank, i)) all.push_back({chosen(rank, i), rank, i});
    std::stable_sort(all.begin(), all.end(),
                     [](const place& a, const place& b) { return a.expert < b.expert; });
    std::vector<std::vector<std::int32_t>> row(ranks,
                                               std::vector<std::int32_t>(sequences * own, -1));
    most.assign(ep, 0);
    for (const place& p : all) row[index(p.rank)][index(p.choice)] = most[index(p.expert / mine)]++;
    return row;
  }
};

} // namespace

// A micro-batch of two sequences, whose second two thirds come first. Some experts have enough in
// the first run, some in the second, some never.
BOOST_AUTO_TEST_CASE(choices_up_to_a_capacity) {
  for (int threads : {32, 1024}) {
    const four_ranks of;
    const auto& chosen = of.batch[0];
    const auto all = static_cast<int64_t>(chosen.size()), third = all / 3;
    std::vector<std::int32_t> most(of.experts);
    std::vector<std::uint8_t> want(chosen.size(), 0);
    std::vector<int> kinds(3);
    const auto run = [&](int64_t first, int64_t end) {
      for (int64_t i = first; i < end; ++i)
        want[index(i)] = most[index(chosen[index(i)])]++ < of.capacity;
    };
    std::vector<std::int32_t> count(of.experts, -7);
    std::vector<std::uint8_t> taken(chosen.size(), 0);
    const auto take = [&](int64_t first, int64_t n, bool begins) {
      on_team("take_choices", team_of(threads, of.experts),
              rows::take_choices{first, n, of.capacity, begins, chosen.data(), count.data(),
                                 reinterpret_cast<bool*>(taken.data())},
              count, taken);
    };
    run(third, all), take(third, all - third, true);
    BOOST_TEST((count == most));
    BOOST_TEST((taken == want));
    for (std::int32_t n : most) kinds[0] += n > of.capacity;
    run(0, third), take(0, third, false);
    BOOST_TEST((count == most));
    BOOST_TEST((taken == want));
    for (std::int32_t n : most) kinds[1] += n > of.capacity, kinds[2] += n <= of.capacity;
    BOOST_TEST((kinds[0] > 0 && kinds[1] > kinds[0] && kinds[2] > 1));
  }
}

// Once all choices are taken, once up to a capacity.
BOOST_AUTO_TEST_CASE(rows_are_those_of_a_stable_sort) {
  for (int threads : {32, 1024})
    for (bool drops : {false, true}) {
      four_ranks of;
      constexpr int64_t experts = of.experts, apart = of.sequences, ranks = of.ranks;
      if (drops) {
        for (const auto& chosen : of.batch) {
          std::vector<std::int32_t> count(experts);
          auto& taken = of.taken.emplace_back();
          for (std::int32_t e : chosen) taken.push_back(count[index(e)]++ < of.capacity);
        }
      }
      const auto& parts = of.parts;
      BOOST_REQUIRE_EQUAL(parts.count(), 4);
      std::vector<std::vector<std::int32_t>> chosen, of_parts;
      std::vector<std::int32_t> all, want_all, want_counts(index(experts * ranks * apart));
      for (int64_t rank = 0; rank < ranks; ++rank) {
        chosen.push_back(of.choices_of(rank));
        auto& count = of_parts.emplace_back(index(parts.count() * experts), -7);
        on_team("count_choices", team_of(threads, parts.count()),
                rows::count_choices{parts, experts, of.taken_by(rank), chosen.back().data(),
                                    count.data()},
                count);
        std::vector<std::int32_t> want(count.size()), own(index(experts * apart), -7);
        for (int64_t i = 0; i < apart * of.own; ++i) {
          const int64_t part = i / of.own * 2 + i % of.own / parts.in_range;
          if (of.takes(rank, i)) ++want[index(part * experts + of.chosen(rank, i))];
        }
        BOOST_TEST((count == want));
        on_team("add_counts", team_of(threads, experts),
                rows::add_counts{parts, experts, count.data(), own.data()}, count, own);
        std::vector<std::int32_t> sums(own.size()), before(index(experts));
        for (int64_t e = 0; e < experts; ++e)
          for (int64_t p = 0; p < parts.count(); ++p) {
            auto& n = want[index(p * experts + e)];
            sums[index(e * apart + p / 2)] += n;
            before[index(e)] += std::exchange(n, before[index(e)]);
          }
        BOOST_TEST((count == want));
        BOOST_TEST((own == sums));
        all.insert(all.end(), own.begin(), own.end());
        for (int64_t e = 0; e < experts; ++e)
          for (int64_t k = 0; k < apart; ++k)
            want_counts[index((e * ranks + rank) * apart + k)] = sums[index(e * apart + k)];
      }
      std::vector<std::int32_t> most;
      const auto want = of.sorted(most);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        std::vector<std::int32_t> counts(want_counts.size(), -7), begin(index(experts), -7);
        on_team("place_experts", team_of(threads, of.ep),
                rows::place_experts{of.mine, ranks, rank, apart, experts, all.data(), counts.data(),
                                    begin.data()},
                counts, begin);
        BOOST_TEST((counts == want_counts));
        auto& count = of_parts[index(rank)];
        std::vector<std::int32_t> row(index(apart * of.own), -7);
        on_team("number_choices", team_of(threads, parts.count()),
                rows::number_choices{parts, experts, of.taken_by(rank), chosen[index(rank)].data(),
                                     begin.data(), count.data(), row.data()},
                count, row);
        BOOST_TEST((row == want[index(rank)]));
        BOOST_TEST((std::find(row.begin(), row.end(), -1) != row.end()) == drops);
      }
      // The first rank of ep has most.
      for (int64_t n : {int64_t{1}, int64_t{1000}, most[0] - int64_t{1}, int64_t{most[0]}}) {
        std::vector<std::int32_t> rounds{-7};
        on_team("count_rounds", team_of(threads, 1),
                rows::count_rounds{n, of.ep, of.mine * ranks * apart, want_counts.data(),
                                   rounds.data()},
                rounds);
        BOOST_TEST(rounds[0] == (most[0] + n - 1) / n);
      }
    }
}

// Whichever rank has most; one round of nothing.
BOOST_AUTO_TEST_CASE(rounds_of_the_fullest_rank) {
  const std::vector<std::int32_t> counts{3, 0, 4, 0, 9, 0, 2, 2, 1};
  const auto rounds_of = [&](int64_t held, int64_t first, int64_t ep) {
    std::vector<std::int32_t> rounds{-7};
    on_team("count_rounds", team_of(64, 1),
            rows::count_rounds{held, ep, 3, counts.data() + first, rounds.data()}, rounds);
    return rounds[0];
  };
  for (int64_t held = 1; held < 12; ++held) {
    BOOST_TEST(rounds_of(held, 0, 3) == (9 + held - 1) / held);
    BOOST_TEST(rounds_of(held, 0, 1) == (7 + held - 1) / held);
    BOOST_TEST(rounds_of(held, 6, 1) == (5 + held - 1) / held);
  }
  const std::vector<std::int32_t> none(6);
  std::vector<std::int32_t> rounds{-7};
  on_team("count_rounds", team_of(64, 1), rows::count_rounds{5, 2, 3, none.data(), rounds.data()},
          rounds);
  BOOST_TEST(rounds[0] == 1);
}

namespace {

// The rows of more choices than a block has; a seventh of them was dropped. The first and the last
// row of a round from row 700 have choices, and so have those beside it.
struct scattered {
  static constexpr int64_t all = mc::flat_block + 37, base = 700, held = 3000;
  std::vector<std::int32_t> row;
  scattered() {
    for (int64_t i = 0; i < all; ++i) {
      const auto at = static_cast<std::int32_t>(i * 1009 % all);
      row.push_back(i % 7 == 3 ? -1 : at);
    }
    for (int64_t at : {base - 1, base, base + held - 1, base + held}) {
      std::replace(row.begin(), row.end(), static_cast<std::int32_t>(at), -1);
      row[index(at)] = static_cast<std::int32_t>(at);
    }
  }
  bool in_round(int64_t i) const { return row[index(i)] >= base && row[index(i)] < base + held; }
};

} // namespace

// Before the round, in it, behind it; dropped. Where no choice lies, and of those that lie
// elsewhere, everything is as it was, and so is what lies before the round's rows and behind them.
// In the first round, too, which begins at row 0.
BOOST_AUTO_TEST_CASE_TEMPLATE(numbers_of_choices, T, types) {
  for (int threads : {32, 64, 1024}) {
    const scattered of;
    for (int64_t base : {of.base, int64_t{0}}) {
      numbers from;
      const int64_t held = of.held;
      const auto x = with_a_nan(from.of<T>(of.all)), rows_of = with_a_nan(from.of<T>(held + 2));
      auto to = from.of<T>(held + 2), y = from.of<T>(of.all), want_to = to, want_y = y;
      int before = 0, behind = 0, dropped = 0, inside = 0;
      for (int64_t i = 0; i < of.all; ++i) {
        const std::int32_t row = of.row[index(i)];
        const bool here = row >= base && row < base + held;
        if (here) {
          want_to[index(1 + row - base)] = x[index(i)];
          want_y[index(i)] = rows_of[index(1 + row - base)];
        }
        ++(row < 0 ? dropped : row < base ? before : here ? inside : behind);
      }
      BOOST_TEST(((before > 0) == (base > 0) && behind > 0 && dropped > 0 && inside > 0));
      on_team("dispatch_numbers", team_of(threads, 2),
              rows::dispatch_numbers<T>{of.all, base, held, x.data(), of.row.data(), to.data() + 1},
              to);
      BOOST_TEST(same(to, want_to));
      on_team(
          "combine_numbers", team_of(threads, 2),
          rows::combine_numbers<T>{of.all, base, held, rows_of.data() + 1, of.row.data(), y.data()},
          y);
      BOOST_TEST(same(y, want_y));
    }
  }
}

BOOST_AUTO_TEST_CASE(places_on_the_way) {
  for (int threads : {32, 64, 1024}) {
    const scattered of;
    // A shift may be below zero, and then a place below the row's number.
    const std::vector<int64_t> shift{-700, 41, 5000, -3};
    for (int64_t base : {of.base, int64_t{0}}) {
      std::vector<std::int32_t> chosen, want, place(index(of.all), -7);
      for (int64_t i = 0; i < of.all; ++i) {
        chosen.push_back(static_cast<std::int32_t>(i * i % 4 + i % 3 % 2 * 2));
        const int64_t row = of.row[index(i)];
        want.push_back(row >= base && row < base + of.held
                           ? static_cast<std::int32_t>(row + shift[index(chosen.back())])
                           : -1);
      }
      on_team("place_choices", team_of(threads, 2),
              rows::place_choices{of.all, base, base + of.held, chosen.data(), of.row.data(),
                                  shift.data(), place.data()},
              place);
      BOOST_TEST((place == want));
    }
  }
}

// Four pieces, of which one is empty, in another order on the way than in rows: between them and
// around them lies what nobody changes.
BOOST_AUTO_TEST_CASE_TEMPLATE(rows_of_the_way_and_back, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t w = s.width;
    const std::vector<rows::piece_of_rows> pieces{
        {6, 1, 2}, {4, 1 + 2 * w, 0}, {1, 3 + 3 * w, 1}, {3, 3 + 4 * w, 1}};
    const auto way = with_a_nan(from.of<T>(3 + 6 * w));
    auto held = from.of<T>(9 * w), back = from.of<T>(3 + 6 * w), want = held, want_back = back;
    for (const rows::piece_of_rows& p : pieces)
      for (int64_t i = 0; i < p.n * w; ++i) {
        want[index(p.row * w + i)] = way[index(p.at + i)];
        want_back[index(p.at + i)] = way[index(p.at + i)];
      }
    s.rows = static_cast<int64_t>(pieces.size());
    on_team("rows_from_way", s, rows::rows_from_way<T>{w, pieces.data(), way.data(), held.data()},
            held);
    BOOST_TEST(same(held, want));
    on_team("rows_to_way", s, rows::rows_to_way<T>{w, pieces.data(), held.data(), back.data()},
            back);
    BOOST_TEST(same(back, want_back));
  });
}

// From the first copy on, in the accumulator's type, rounded once; of one copy, itself.
BOOST_AUTO_TEST_CASE_TEMPLATE(sums_of_copies, T, types) {
  for (int threads : {32, 256, 1024})
    for (int64_t copies : {1, 2, 5}) {
      numbers from;
      const int64_t n = mc::flat_block + 21;
      auto x = from.of<T>(copies * n);
      for (int64_t i = 0; i < n && copies > 2; i += 2) { // what the first two leave is nothing
        x[index(i)] = mc::convert<T>(wide(x[index(i)]) * 0x1p20);
        x[index(n + i)] = mc::convert<T>(-wide(x[index(i)]));
      }
      auto want = x;
      bool in_order = copies < 3, once = copies < 3 || sizeof(T) != 2;
      for (int64_t i = 0; i < n; ++i) {
        const auto copy = [&](int64_t k) { return x[index(k * n + i)]; };
        auto sum = mc::convert<G<T>>(copy(0)), other = mc::convert<G<T>>(copy(copies - 1));
        T rounded = copy(0);
        for (int64_t k = 1; k < copies; ++k) {
          sum += mc::convert<G<T>>(copy(k)), other += mc::convert<G<T>>(copy(copies - 1 - k));
          rounded = mc::convert<T>(mc::convert<G<T>>(rounded) + mc::convert<G<T>>(copy(k)));
        }
        want[index(i)] = mc::convert<T>(sum);
        in_order = in_order || wide(want[index(i)]) != wide(mc::convert<T>(other));
        once = once || wide(rounded) != wide(want[index(i)]);
      }
      BOOST_TEST((in_order && once)); // otherwise this could not tell
      on_team("sum_of_copies", team_of(threads, 2), rows::sum_of_copies<T>{n, copies, x.data()}, x);
      BOOST_TEST(same(x, want));
    }
}
