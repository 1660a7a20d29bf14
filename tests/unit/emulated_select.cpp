// The bodies that choose, repeat and keep rows on emulated teams, against plain loops in double.
#define BOOST_TEST_MODULE emulated_select
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/select.hpp>

#include <algorithm>
#include <cstring>
#include <vector>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

// The same numbers, of which the first of each row is a NaN with a pattern of its own.
template <class T> std::vector<T> with_nans(std::vector<T> x, int64_t width) {
  for (std::size_t at = 0; at < x.size(); at += static_cast<std::size_t>(width))
    std::memset(static_cast<void*>(x.data() + at), 0xfb, sizeof(T));
  return x;
}

} // namespace

// The last row of the first sequence, the first of the second.
BOOST_AUTO_TEST_CASE_TEMPLATE(one_row_of_each_sequence, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t sequence = 3;
    const std::vector<std::int32_t> index{2, 0};
    const auto x = with_nans(from.of<T>(s.rows * sequence * s.width), s.width);
    std::vector<T> want;
    for (int64_t b = 0; b < s.rows; ++b) {
      const auto* row = x.data() + (b * sequence + index[static_cast<std::size_t>(b)]) * s.width;
      want.insert(want.end(), row, row + s.width);
    }
    auto y = unset<T>(s.rows * s.width);
    on_team("select_row", s,
            rows::select_row<T>{sequence, s.width, x.data(), index.data(), y.data()}, y);
    BOOST_TEST(same_bytes(y.data(), want.data(), y.size() * sizeof(T)));
  });
}

// Each row so many times, and the sum of its gradients: of one alone its number, of none zero.
BOOST_AUTO_TEST_CASE_TEMPLATE(repeated_rows, T, types) {
  for_teams<T>([](team_shape s) {
    for (int64_t times : {1, 3, 0}) {
      numbers from;
      const auto x = with_nans(from.of<T>(s.rows * s.width), s.width);
      const auto dy = from.of<T>(s.rows * times * s.width);
      std::vector<T> want;
      reference sums(x.size());
      for (int64_t i = 0; i < s.rows * times; ++i) {
        const auto* row = x.data() + i / times * s.width;
        want.insert(want.end(), row, row + s.width);
        for (int64_t j = 0; j < s.width; ++j)
          sums[static_cast<std::size_t>(i / times * s.width + j)] +=
              wide(dy[static_cast<std::size_t>(i * s.width + j)]);
      }
      team_shape all = s;
      all.rows = s.rows * times;
      auto y = unset<T>(all.rows * s.width);
      on_team("repeat_row", all, rows::repeat_row<T>{times, s.width, x.data(), y.data()}, y);
      BOOST_TEST(same_bytes(y.data(), want.data(), y.size() * sizeof(T)));
      auto dx = unset<T>(s.rows * s.width);
      on_team("repeat_grad_row", s, rows::repeat_grad_row<T>{times, s.width, dy.data(), dx.data()},
              dx);
      close<T>("repeat_grad", dx, sums, 1, times == 3 ? 4 : 0.01, 2);
    }
  });
}

// Two sequences of three tokens, one of each with a slot that is not there: behind the last, where
// the next sequence begins, and below the first.
BOOST_AUTO_TEST_CASE_TEMPLATE(kept_tokens, T, types) {
  for_teams<T>([](team_shape s) {
    numbers from;
    const int64_t queries = 3, room = 4, tokens = 6;
    const std::vector<std::int32_t> slots{1, 4, 3, -1, 2, 1};
    const auto x = with_nans(from.of<T>(tokens * s.width), s.width);
    auto cache = from.of<T>(2 * room * s.width);
    auto want = cache;
    const auto keep = [&](int64_t token, int64_t place) {
      std::copy_n(x.begin() + token * s.width, s.width, want.begin() + place * s.width);
    };
    keep(0, 1), keep(2, 3), keep(4, room + 2), keep(5, room + 1);
    team_shape all = s;
    all.rows = tokens;
    on_team("keep_token", all,
            rows::keep_token<T>{queries, room, s.width, x.data(), slots.data(), cache.data()},
            cache);
    BOOST_TEST(same_bytes(cache.data(), want.data(), want.size() * sizeof(T)));
  });
}
