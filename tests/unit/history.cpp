// Losses of a run, for its curve: bounded, and the same however the run was cut into parts.
#define BOOST_TEST_MODULE history
#include <megacpp/observe/history.hpp>

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "scratch.hpp"

using mc::loss_history;

namespace {

double loss_of(std::int64_t step) {
  return 2 + 3 / std::sqrt(static_cast<double>(step)) + 0.1 * std::sin(static_cast<double>(step));
}
loss_history through_a_state(const loss_history& h) {
  const std::string text = h.json().dump();
  return loss_history::read(
      mc::json_value(mc::parse_json(text, "state"), "state", mc::exit_code::model));
}
std::vector<double> numbers_of(const loss_history& h) {
  std::vector<double> all;
  for (const mc::curve_point& p : h.points()) all.push_back(p.x), all.push_back(p.y);
  return all;
}

} // namespace

BOOST_AUTO_TEST_CASE(a_long_run_keeps_bounded_means_of_all_its_losses) {
  for (const std::int64_t steps : {1, 2047, 2048, 5000, 100'000}) {
    loss_history h;
    double sum = 0;
    const auto before = h.points().data();
    for (std::int64_t step = 1; step <= steps; ++step) h.add(step, loss_of(step));
    BOOST_TEST((h.points().data() == before)); // nothing is allocated for a step
    BOOST_REQUIRE(!h.points().empty());
    BOOST_TEST(h.points().size() < loss_history::capacity);
    BOOST_TEST((steps < 2048 || h.points().size() >= loss_history::capacity / 2));
    // Equal pieces from the first step on, the mean of each.
    const double piece = h.points().front().x;
    double end = 0;
    for (std::int64_t step = 1; const mc::curve_point& p : h.points()) {
      BOOST_TEST(p.x == end + piece);
      for (sum = 0; step <= static_cast<std::int64_t>(p.x); ++step) sum += loss_of(step);
      BOOST_TEST(std::abs(p.y - sum / piece) < 6e-7 * (1 + std::log2(piece))); // a rounding a merge
      end = p.x;
    }
    BOOST_TEST(static_cast<double>(steps) - end < piece);
  }
}

BOOST_AUTO_TEST_CASE(a_run_in_parts_has_the_history_of_the_whole) {
  const std::set<std::int64_t> cuts{1, 2, 2047, 2048, 2049, 4095, 7000, 9001};
  loss_history whole, parts;
  for (std::int64_t step = 1; step <= 10'000; ++step) {
    whole.add(step, loss_of(step));
    parts.add(step, loss_of(step));
    if (cuts.count(step) != 0) parts = through_a_state(parts);
  }
  BOOST_TEST(numbers_of(parts) == numbers_of(whole), boost::test_tools::per_element());
}

// What a save is rehearsed with.
BOOST_AUTO_TEST_CASE(no_history_is_a_longer_text_than_the_longest) {
  for (const std::int64_t steps : {1, 20, 3000, 40'000}) {
    const std::size_t most = loss_history::longest(steps, steps).json().dump(2).size();
    loss_history h;
    for (std::int64_t step = 1; step <= steps; ++step) {
      h.add(step, 99'999 * std::abs(std::sin(static_cast<double>(step))));
      if (step % 509 == 0 || step == steps) BOOST_TEST(h.json().dump(2).size() <= most);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_is_no_history_is_refused) {
  loss_history h;
  for (std::int64_t step = 1; step <= 3; ++step) h.add(step, loss_of(step));
  const auto read = [&](const char* field, const nlohmann::json& value) {
    nlohmann::json j = h.json();
    j[field] = value;
    loss_history::read(mc::json_value(j, "state", mc::exit_code::model));
  };
  using mc::exit_code;
  CHECK_REFUSED(read("stride", 0), exit_code::model, "stride");
  CHECK_REFUSED(read("count", 1), exit_code::model, "count");
  CHECK_REFUSED(read("sum", "x"), exit_code::model, "sum");
  CHECK_REFUSED(read("losses", {1.0, 2.0}), exit_code::model, "3 steps and 2 losses");
  CHECK_REFUSED(read("steps", {1, "x", 3}), exit_code::model, "steps");
}
