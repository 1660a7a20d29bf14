// Row bodies on emulated teams: they leave the same bits in every order of threads.
#pragma once

#include <emulated_team.hpp>

#include "rows.hpp"

#include <map>
#include <set>
#include <string>

namespace test {

/// Rows of a width for a team of `threads` threads.
struct team_shape : shape {
  int threads;
};

/// Calls f for teams of 16 to 1,024 threads and several widths: below a group of T; below the team,
/// so that rows are aligned; and widths at which some threads have a group more than others and
/// some have an element of the rest. For bodies whose threads keep `keeps` groups, there are rows
/// that the team can keep, and rows of one group more.
template <class T, class F> void for_teams(int keeps, F f) {
  for (int threads : {16, 32, 128, 1024}) {
    constexpr int64_t group = emulated_team::width<T>;
    std::vector<int64_t> widths{group - 1, threads - int64_t{3}, threads * group,
                                threads * group + 3 * group - 1};
    if (keeps > 0 && threads < 1024)
      for (int64_t groups : {threads + 3, threads * keeps, threads * keeps + 1})
        widths.push_back(groups * group);
    for (int64_t width : widths) {
      const team_shape s{{threads == 1024 ? 1 : 2, width}, threads};
      BOOST_TEST_CONTEXT(threads << " threads, " << s.rows << " rows of " << width) f(s);
    }
  }
}

template <class T, class F> void for_teams(F f) { for_teams<T>(0, f); }

/// Returns the shape of the single row that for_one starts.
inline team_shape one_row(team_shape s) {
  s.rows = 1;
  return s;
}

/// The place where on_team stores a fault; null: a fault is an error of the test.
inline std::string* wrong_on_teams = nullptr;
inline void tell_of_teams(const std::string& fault) {
  if (wrong_on_teams == nullptr) BOOST_ERROR(fault);
  else *wrong_on_teams = fault;
}

/// Runs body(team, row) for every row, in several orders of threads, which must leave the same bits
/// in `out`, all arrays that the body writes. In the first order rows are not kept. The body begins
/// each time with the present contents of `out`.
template <class Team = emulated_team, class Body, class... Out>
void on_team(const char* what, team_shape s, const Body& body, std::vector<Out>&... out) {
  static std::map<int, emulated_block> blocks;
  static std::uint64_t seed = 0;
  emulated_block& block = blocks.try_emplace(s.threads, s.threads).first->second;
  block.aligned = says_aligned(body);
  const int64_t kept = bytes_to_keep(body, s.threads);
  const std::vector<written> arrays{written(out)...};
  const auto bytes = [&] {
    std::vector<std::vector<std::byte>> r;
    for (const written& w : arrays) r.emplace_back(w.data, w.data + w.size());
    return r;
  };
  const auto start = bytes();
  auto first = start;
  std::vector<turns> orders{{turns::first_first}, {turns::last_first}, {turns::random, ++seed}};
  if (s.threads < 1024) orders.push_back({turns::random, ++seed});
  if (s.threads < 256 || s.width < 256) orders.push_back({turns::apart});
  for (const turns& order : orders) {
    block.held = order.of == turns::first_first ? 0 : kept;
    for (std::size_t k = 0; k < arrays.size(); ++k)
      std::copy(start[k].begin(), start[k].end(), arrays[k].data);
    for (int64_t row = 0; row < s.rows; ++row) {
      const std::string fault =
          block.run([&](const emulated_team& team) { body(Team(team), row); }, order, arrays);
      if (!fault.empty()) {
        return tell_of_teams(std::string(what) + ", " + order.name() + ", row " +
                             std::to_string(row) + ": " + fault);
      }
    }
    const auto now = bytes();
    if (order.of == turns::first_first) first = now;
    for (std::size_t k = 0; k < arrays.size(); ++k) {
      if (now[k] == first[k]) continue;
      std::size_t at = 0;
      while (now[k][at] == first[k][at]) ++at;
      return tell_of_teams(std::string(what) + ", " + order.name() + ": element " +
                           std::to_string(at / arrays[k].bytes) + " of array " + std::to_string(k) +
                           " is another than first thread first");
    }
  }
}

/// Checks how many bytes a body loads from memory in whole groups for a row that the team keeps: as
/// many as `kept` rows of s.width elements of T have, and `again` more if it does not keep them.
template <class T, class Body>
void loads_rows(const char* what, team_shape s, const Body& body, int64_t kept, int64_t again) {
  emulated_block block(s.threads);
  block.aligned = says_aligned(body);
  for (const bool keeps : {true, false}) {
    block.held = keeps ? bytes_to_keep(body, s.threads) : 0;
    bytes_loaded = 0;
    BOOST_TEST(block.run([&](const emulated_team& team) { body(team, 0); }, {}) == "");
    BOOST_TEST(bytes_loaded == (kept + (keeps ? 0 : again)) * s.width * int64_t{sizeof(T)}, what);
  }
}

/// Requires that the results of f on teams are wrong without any one of its barriers.
template <class F> void every_barrier_is_needed(F f) {
  const auto wrong = [&](int without) {
    std::string fault;
    emulated_block::passed_by = without, wrong_on_teams = &fault;
    f();
    emulated_block::passed_by = 0, wrong_on_teams = nullptr;
    return !fault.empty();
  };
  emulated_block::barriers.clear();
  BOOST_TEST(!wrong(0));
  const std::set<int> barriers = emulated_block::barriers;
  BOOST_TEST(!barriers.empty());
  for (const int line : barriers) BOOST_TEST(wrong(line), "without the barrier of line " << line);
}

/// Returns values that a body has to overwrite.
template <class T> std::vector<T> unset(int64_t n) {
  return std::vector<T>(static_cast<std::size_t>(n), mc::convert<T>(std::nanf("")));
}

/// Returns f of each element of x.
template <class T, class F> reference of_each(const std::vector<T>& x, F f) {
  reference r;
  for (std::size_t i = 0; i < x.size(); ++i) r.push_back(f(i));
  return r;
}

} // namespace test
