// The emulated team itself: it sums as a block of CUDA does, and names races and barriers that some
// threads miss.
#define BOOST_TEST_MODULE emulated_team
#include <boost/test/unit_test.hpp>

#include <emulated_team.hpp>
#include <megacpp/exec/cuda/launch.hpp>
#include <megacpp/vectors/vec.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

namespace {

using std::int64_t;
using test::emulated_block;
using test::emulated_team;
using test::turns;
using test::written;

using numbers = std::tuple<float, double>;

constexpr turns every_order[] = {
    {turns::first_first}, {turns::last_first}, {turns::random, 1}, {turns::random, 2}};

std::string apart(int threads, std::vector<float>& x,
                  const std::function<void(const emulated_team&)>& body) {
  return emulated_block(threads).run(body, {turns::apart}, {written(x)});
}

bool holds(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

} // namespace

// The order of cuda_team spelled out once more: lanes of a thread, threads of a warp, warps.
BOOST_AUTO_TEST_CASE(sums_are_those_of_a_block) {
  for (int threads : {16, 32, 64, 256, 1024}) {
    for (int64_t n : {1, 3, 31, 4 * threads, 9 * threads + 7}) {
      std::vector<float> x(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < x.size(); ++i) x[i] = 1.0f / static_cast<float>(i + 3);
      std::vector<std::vector<float>> lane(static_cast<std::size_t>(threads),
                                           std::vector<float>(4));
      for (int64_t i = 0; i < n; ++i) {
        const int64_t full = n / 4 * 4, owner = (i < full ? i / 4 : i - full) % threads;
        float& sum =
            lane[static_cast<std::size_t>(owner)][static_cast<std::size_t>(i < full ? i % 4 : 0)];
        sum = sum + x[static_cast<std::size_t>(i)];
      }
      float want = 0;
      const std::size_t of_warp = std::min<std::size_t>(lane.size(), 32);
      for (std::size_t warp = 0; warp < lane.size(); warp += of_warp) {
        std::vector<float> a;
        for (std::size_t t = warp; t < warp + of_warp; ++t)
          a.push_back((lane[t][0] + lane[t][2]) + (lane[t][1] + lane[t][3]));
        for (std::size_t half = of_warp / 2; half > 0; half /= 2)
          for (std::size_t i = 0; i < half; ++i) a[i] = a[i] + a[i + half];
        want = warp == 0 ? a[0] : want + a[0];
      }
      for (const turns& order : every_order) {
        std::set<float> sums, firsts, seconds, tops;
        const std::string fault = emulated_block(threads).run(
            [&](const emulated_team& team) {
              const auto at = [&](auto i) { return mc::load<float>(x.data(), i); };
              sums.insert(team.sum<float>(n, at));
              const auto two = team.sum_two<float>(n, [&](auto i) {
                return mc::two<decltype(at(i))>{at(i), at(i) + at(i)};
              });
              firsts.insert(two.first), seconds.insert(two.second);
              tops.insert(team.max<float>(n, at));
            },
            order);
        BOOST_TEST(fault == "");
        BOOST_TEST((sums == std::set<float>{want}));
        BOOST_TEST((firsts == std::set<float>{want}));
        BOOST_TEST((seconds == std::set<float>{2 * want}));
        BOOST_TEST((tops == std::set<float>{x[0]}));
      }
    }
  }
}

// Of numbers that often are the same, zeros of both signs and infinities among them, some marked.
BOOST_AUTO_TEST_CASE_TEMPLATE(the_first_of_the_greatest, A, numbers) {
  const A infinite = std::numeric_limits<A>::infinity();
  const A values[] = {-infinite, A(-2), A(-0.0), A(0), A(1e-30), A(3), infinite};
  const mc::core_team core;
  for (int threads : {16, 32, 128, 1024})
    for (int64_t n : {1, 5, 64, 5 * threads + 3})
      for (std::uint64_t seed = 0; seed < 24; ++seed) {
        std::vector<A> x(static_cast<std::size_t>(n));
        std::vector<mc::int_like<A>> mask(x.size());
        std::uint64_t state = seed;
        const auto draw = [&] {
          state = state * 6364136223846793005u + 1442695040888963407u;
          return state >> 40;
        };
        mc::two<A> want{-infinite, infinite};
        for (std::size_t i = 0; i < x.size(); ++i) {
          x[i] = values[draw() % (seed % 7 + 1)];
          mask[i] = draw() % (seed % 3 + 1) == 0 ? -1 : 0;
          if (mask[i] == 0 || (want.second < infinite && x[i] <= want.first)) continue;
          want = {x[i], static_cast<A>(i)};
        }
        const auto of = [&](auto i) {
          const auto value = mc::load<A>(x.data(), i);
          const auto marks = mc::load<mc::int_like<A>>(mask.data(), i);
          return mc::marked<std::remove_const_t<decltype(value)>,
                            std::remove_const_t<decltype(marks)>>{value, marks};
        };
        std::vector<mc::two<A>> got{core.first_greatest<A>(n, of)};
        BOOST_TEST(
            emulated_block(threads).run(
                [&](const emulated_team& team) { got.push_back(team.first_greatest<A>(n, of)); },
                {turns::random, seed}) == "");
        BOOST_TEST(got.size() == 1u + static_cast<std::size_t>(threads));
        for (const auto& [greatest, index] : got)
          if (greatest != want.first || index != want.second) {
            BOOST_ERROR(threads << " threads, " << n << ", seed " << seed << ": " << greatest
                                << " at " << index << ", not " << want.first << " at "
                                << want.second);
            break;
          }
      }
}

// A row that is kept is the row that was there, and longer visits are named.
BOOST_AUTO_TEST_CASE(rows_are_kept) {
  std::vector<float> x(96), y(96), z(96);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i);
  for (const bool holds : {true, false}) {
    emulated_block block(16);
    block.held = holds ? 96 * 4 : 0;
    const std::vector<float> before = x;
    BOOST_TEST(block.run(
                   [&](const emulated_team& team) {
                     const int64_t n = 96;
                     const auto row = team.keep<float>(n, x.data());
                     auto sum = team.keep_stored<float>(n, y.data());
                     const auto twice = team.keep_values<float>(
                         n, [&](auto i) { return load<float>(row, i) + load<float>(row, i); });
                     team.each<float>(n, [&](auto i) { store(sum, i, load<float>(row, i)); });
                     team.each<float>(
                         n, [&](auto i) { store(z.data(), i, load<float>(sum, i) + twice(i)); });
                   },
                   {turns::random, 5}) == "");
    BOOST_TEST((y == x));
    for (std::size_t i = 0; i < x.size(); ++i) BOOST_TEST(z[i] == 3 * x[i]);
  }
  emulated_block block(16);
  block.held = 95 * 4;
  BOOST_TEST(
      holds(block.run([&](const emulated_team& team) { team.keep<float>(96, x.data()); }, {}),
            "384 bytes are visited of rows that are kept, of 380"));
}

// What a team of CUDA is to keep, its threads can hold, and what they cannot, no team is to keep.
BOOST_AUTO_TEST_CASE(teams_hold_what_they_keep) {
  for (int keeps = 0; keeps <= 8; ++keeps)
    for (int64_t bytes = 16; bytes <= 1 << 20; bytes += bytes < 40000 ? 16 : 4096) {
      const auto [lanes, held] = mc::team_of_row(bytes, keeps);
      BOOST_REQUIRE(held <= keeps);
      BOOST_REQUIRE((held > 0) == (keeps > 0 && bytes <= 16 * 128 * keeps));
      if (held > 0) BOOST_REQUIRE(bytes <= std::int64_t{16} * lanes * held);
      if (lanes == 16) BOOST_REQUIRE(held == 1);
    }
  BOOST_TEST(mc::team_of_row(256, 8).lanes == 16);
  BOOST_TEST(mc::team_of_row(272, 8).lanes == 32);
  BOOST_TEST(mc::team_of_row(4096, 8).lanes == 32);
  BOOST_TEST(mc::team_of_row(4112, 8).lanes == 128);
  BOOST_TEST(mc::team_of_row(4096).lanes == 32);
  BOOST_TEST(mc::team_of_row(4112).lanes == 128);
  BOOST_TEST(mc::team_of_row(65552).lanes == 1024);
}

BOOST_AUTO_TEST_CASE(every_element_has_one_thread) {
  for (int threads : {32, 256}) {
    for (int64_t n : {0, 1, 7, 255, 2051}) {
      const int64_t parts = 3;
      std::vector<int> once(static_cast<std::size_t>(n)), of(static_cast<std::size_t>(parts * n));
      emulated_block(threads).run(
          [&](const emulated_team& team) {
            team.each<float>(n, [&](auto i) {
              for (int k = 0; k < decltype(i)::count; ++k)
                ++once[static_cast<std::size_t>(i.first + k)];
            });
            team.each_of<float>(parts, n, [&](int64_t o, auto i) {
              for (int k = 0; k < decltype(i)::count; ++k)
                ++of[static_cast<std::size_t>(o * n + i.first + k)];
            });
          },
          {});
      BOOST_TEST((once == std::vector<int>(once.size(), 1)));
      BOOST_TEST((of == std::vector<int>(of.size(), 1)));
    }
  }
}

// One thread's number is read by all: right with a barrier in every order, and without one only in
// the order that happens to write first.
BOOST_AUTO_TEST_CASE(a_missing_barrier_shows) {
  for (bool with_barrier : {true, false}) {
    std::vector<std::vector<float>> seen;
    for (const turns& order : every_order) {
      std::vector<float> x(65, -1.0f);
      BOOST_TEST(emulated_block(64).run(
                     [&](const emulated_team& team) {
                       if (team.leader()) x[64] = 5;
                       if (with_barrier) team.sync();
                       team.each<double>(int64_t{64}, [&](auto i) {
                         for (int k = 0; k < decltype(i)::count; ++k)
                           x[static_cast<std::size_t>(i.first + k)] = x[64];
                       });
                     },
                     order) == "");
      seen.push_back(x);
    }
    BOOST_TEST((seen[0] == std::vector<float>(65, 5.0f)));
    for (std::size_t k = 1; k < seen.size(); ++k) BOOST_TEST((seen[k] == seen[0]) == with_barrier);
  }
}

BOOST_AUTO_TEST_CASE(threads_apart_see_what_stood_at_the_barrier) {
  std::vector<float> x(2, 1.0f);
  std::set<float> before, after;
  BOOST_TEST(apart(32, x, [&](const emulated_team& team) {
               if (team.leader()) x[0] = 7;
               else before.insert(x[0]);
               team.sync();
               after.insert(x[0]);
             }) == "");
  BOOST_TEST((before == std::set<float>{1}));
  BOOST_TEST((after == std::set<float>{7}));
  // The same number twice is a race, too.
  BOOST_TEST(apart(32, x, [&](const emulated_team&) { x[1] = 3; }) ==
             "threads 0 and 1 both write element 1 of array 0");
  BOOST_TEST(apart(32, x, [&](const emulated_team& team) {
               if (team.leader()) x[1] = 4;
               team.sync();
               x[0] = x[1] + x[0];
               throw std::runtime_error("enough");
             }) != "");
}

BOOST_AUTO_TEST_CASE(divergence_is_named) {
  const auto one = [](auto i) { return mc::vec<float, decltype(i)::count>(1.0f); };
  const auto fault = [](auto body) { return emulated_block(64).run(body, {turns::random, 3}); };
  BOOST_TEST(fault([](const emulated_team& team) { team.sync(), team.sync(); }) == "");

  std::string said = fault([&](const emulated_team& team) {
    if (!team.leader()) return;
    team.sum<float>(33, one);
  });
  BOOST_TEST(holds(said, "thread 1 has ended, thread 0 waits in sum of 33 at emulated_team.cpp:"));

  said = fault([&](const emulated_team& team) {
    if (team.leader()) team.sync();
    else team.max<float>(5, one);
  });
  BOOST_TEST(holds(said, "thread 1 waits in max of 5 at"));
  BOOST_TEST(holds(said, "thread 0 waits in sync at"));

  // At another line, or of another extent.
  said = fault([](const emulated_team& team) {
    if (team.leader()) team.sync();
    else team.sync();
  });
  BOOST_TEST(holds(said, "thread 1 waits in sync at"));
  said = fault([&](const emulated_team& team) { team.sum<float>(team.leader() ? 5 : 6, one); });
  BOOST_TEST(holds(said, "thread 1 waits in sum of 6 at"));

  // One barrier more than the others pass.
  said = fault([](const emulated_team& team) {
    for (int k = 0; k < (team.leader() ? 2 : 3); ++k) team.sync();
  });
  BOOST_TEST(holds(said, "thread 1 waits in sync"));
  BOOST_TEST(holds(said, "thread 0 has ended"));

  said = fault([](const emulated_team&) { throw std::runtime_error("of the body"); });
  BOOST_TEST(holds(said, "threw: of the body"));
}
