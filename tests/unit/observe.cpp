// What a run shows and records: the progress line, metrics, the loss curve, memory, numbers for
// people.
#define BOOST_TEST_MODULE observe
#include <boost/test/unit_test.hpp>

#include <megacpp/io/clock.hpp>
#include <megacpp/observe/ceiling.hpp>
#include <megacpp/observe/curve.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/observe/speeds.hpp>
#include <megacpp/observe/text.hpp>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include <scratch.hpp>

#include "child.hpp"

namespace {
long allocations = 0;
}
// Not inlined: g++ would pair the library's own new with the free seen here, and warn.
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* p = std::malloc(n ? n : 1)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

using mc::exit_code;

const mc::step_report report{.step = 100,
                             .steps = 2000,
                             .loss = 2.34512,
                             .lr = 1e-3,
                             .grad_norm = 0.8124,
                             .tokens = 128,
                             .learned = 128,
                             .tokens_per_second = 12345,
                             .step_seconds = 0.010369,
                             .mfu = 0.3817,
                             .ceiling_fraction = 0.451,
                             .memory = 327155712,
                             .seconds_left = 80};

BOOST_AUTO_TEST_CASE(numbers_read_as_people_write_them) {
  BOOST_TEST(mc::duration_text(0.04).view() == "0.0 s");
  BOOST_TEST(mc::duration_text(9.94).view() == "9.9 s");
  BOOST_TEST(mc::duration_text(9.96).view() == "10 s");
  BOOST_TEST(mc::duration_text(59.6).view() == "1m 00s");
  BOOST_TEST(mc::duration_text(185).view() == "3m 05s");
  BOOST_TEST(mc::duration_text(3599.7).view() == "1h 00m");
  BOOST_TEST(mc::duration_text(2 * 3600 + 7 * 60).view() == "2h 07m");
  BOOST_TEST(mc::duration_text(86400 * 3 + 4 * 3600).view() == "3d 04h");
  for (const double unknown : {-1.0, std::nan(""), HUGE_VAL})
    BOOST_TEST(mc::duration_text(unknown).view() == "?");
  BOOST_TEST(mc::bytes_text(0).view() == "0 B");
  BOOST_TEST(mc::bytes_text(1023).view() == "1023 B");
  BOOST_TEST(mc::bytes_text(1024).view() == "1.00 KiB");
  BOOST_TEST(mc::bytes_text(1024 * 1024 - 1).view() == "1.00 MiB");
  BOOST_TEST(mc::bytes_text(44ull << 20).view() == "44.0 MiB");
  BOOST_TEST(mc::bytes_text(139ull << 30).view() == "139 GiB");
  BOOST_TEST(mc::bytes_text(~0ull).view() == "16.0 EiB");
  BOOST_TEST(mc::count_text(0).view() == "0");
  BOOST_TEST(mc::count_text(950).view() == "950");
  BOOST_TEST(mc::count_text(12345).view() == "12.3k");
  BOOST_TEST(mc::count_text(999'600).view() == "1.00M");
  BOOST_TEST(mc::count_text(124'439'808).view() == "124M");
  BOOST_TEST(mc::count_text(1.0081e12).view() == "1.01T");
  BOOST_TEST(mc::count_text(-2500).view() == "-2.50k");
  BOOST_TEST(mc::count_text(0.5).view() == "0.50");
}

BOOST_AUTO_TEST_CASE(the_progress_line_is_stable_and_searchable) {
  const std::string line(mc::progress_line(report).view());
  BOOST_TEST(line ==
             "step 100/2000 | loss: 2.3451 | lr: 1.000e-03 | grad norm: 0.812 | 12.3k tokens/s | "
             "10.4 ms/step "
             "| MFU 38.2% | 45% of product ceiling | 312 MiB | ETA 1m 20s");
  const auto at = line.find("loss: ");
  BOOST_REQUIRE(at != std::string::npos);
  BOOST_TEST(std::stod(line.substr(at + 6)) == 2.3451);
  mc::step_report bare = report;
  for (const auto& [seconds, text] :
       {std::pair{2.0, "2000 ms/step"}, std::pair{0.00123, "1.23 ms/step"}}) {
    bare.step_seconds = seconds;
    BOOST_TEST(mc::progress_line(bare).view().find(text) != std::string_view::npos);
  }
  bare.step_seconds = bare.mfu = 0;
  bare.ceiling_fraction = 0;
  bare.memory = 0;
  bare.seconds_left = std::nan("");
  BOOST_TEST(mc::progress_line(bare).view() ==
             "step 100/2000 | loss: 2.3451 | lr: 1.000e-03 | grad norm: 0.812 | 12.3k tokens/s");
  bare.learned = 0; // no loss that could be searched for
  BOOST_TEST(mc::progress_line(bare).view() ==
             "step 100/2000 | no token to learn | lr: 1.000e-03 | 12.3k tokens/s, 0 learned");
  bare.learned = 32; // a quarter, of which the loss is told
  BOOST_TEST(mc::progress_line(bare).view() ==
             "step 100/2000 | loss: 2.3451 (mean of 32 of 128 tokens) | lr: 1.000e-03 | grad norm: "
             "0.812 | 12.3k tokens/s, 3.09k learned");
  bare.learned = 128;
  bare.slowest_rank = 12, bare.slower_by = 0.314;
  BOOST_TEST(mc::progress_line(bare).view().ends_with("tokens/s | rank 12 slowest by 31%"));
  bare.loss = HUGE_VAL;
  bare.grad_norm = 1e300; // longer than the line: cut, not overrun
  BOOST_TEST(mc::progress_line(bare).view().size() <= 320u);
}

BOOST_AUTO_TEST_CASE(a_ceiling_is_told_where_two_measurements_agree) {
  mc::speed_ceiling c;
  BOOST_TEST((!c.known() && c.fraction_of(50) == 0));
  c.measured(100); // of an idle machine; nothing is known of the steps that follow
  BOOST_TEST((!c.known() && c.fraction_of(50) == 0));
  c.measured(91);
  BOOST_TEST((c.known() && c.fraction_of(50) == 0.5 && c.fraction_of(100) == 1));
  BOOST_TEST(c.fraction_of(101) == 0); // more than all is no share
  c.measured(60);                      // beside other work
  BOOST_TEST((!c.known() && c.fraction_of(50) == 0));
  c.measured(61);
  BOOST_TEST((c.known() && c.fraction_of(61) == 1));
  c.measured(100); // which has gone
  BOOST_TEST(c.fraction_of(90) == 0);
}

BOOST_AUTO_TEST_CASE(the_rank_that_computes_longest_is_named) {
  // Two stages of four ranks each; the second stage has twice as much to compute.
  mc::rank_speeds speeds({0, 0, 0, 0, 1, 1, 1, 1});
  std::vector<double> usual{1, 1.1, 0.9, 1, 2, 2.2, 1.8, 2};
  mc::rank_speeds::slowest slow = speeds.step(usual);
  BOOST_TEST((slow.rank == 5 && slow.seconds == 2.2));
  BOOST_TEST(slow.others == 1.1); // the median of 0.9, 1, 1, 1.1, 1.8, 2, 2
  std::vector<double> once = usual;
  once[2] = 5; // waits for a disk in one step
  BOOST_TEST(speeds.step(once).rank == 2);
  slow = speeds.of_interval();
  BOOST_TEST((slow.rank == 2 && slow.seconds == 2.95), slow.rank << ": " << slow.seconds);
  speeds.begin();
  speeds.step(usual);
  BOOST_TEST(speeds.of_interval().rank == 5);
  // Ten steps three times make a straggler, of ranks that have as much to do; and once.
  const auto told = [&](const std::vector<double>& seconds, int steps) {
    std::vector<std::pair<int, int>> all;
    for (int i = 1; i <= steps; ++i) {
      speeds.step(seconds);
      if (const auto s = speeds.straggler(); s.rank >= 0) all.emplace_back(i, s.rank);
    }
    return all;
  };
  using list = std::vector<std::pair<int, int>>;
  BOOST_TEST((told(usual, 100 - 3) == list{})); // 10% is no more than chance
  std::vector<double> busy = usual;
  busy[1] = 1.2;
  BOOST_TEST((told(busy, 20) == list{})); // not for long
  BOOST_TEST((told(usual, 10) == list{}));
  BOOST_TEST((told(busy, 80) == list{{30, 1}}));
  BOOST_TEST((told(usual, 10) == list{}));
  busy[1] = 1, busy[5] = 3;
  BOOST_TEST((told(busy, 30) == list{{30, 5}}));
  const long counted = allocations;
  for (int i = 0; i < 50; ++i) speeds.step(busy), static_cast<void>(speeds.straggler());
  BOOST_TEST(allocations == counted);
  // Of ranks of which none has as much to do as another, none is called slow.
  mc::rank_speeds stages({0, 1});
  for (int i = 0; i < 60; ++i) {
    BOOST_TEST(stages.step(std::vector<double>{1, 3}).longer() == 2);
    BOOST_TEST(stages.straggler().rank == -1);
  }
}

/// Steps of 0.2 s, or of so many.
std::string shown(bool terminal, std::int64_t interval, std::int64_t steps, bool note,
                  double seconds = 0.2) {
  int ends[2];
  BOOST_REQUIRE(::pipe(ends) == 0);
  {
    mc::progress line(interval, ends[1], terminal);
    mc::step_report r = report;
    r.steps = steps;
    const long before = allocations;
    for (r.step = 1; r.step <= steps; ++r.step) {
      line.show(r, 1000 + seconds * static_cast<double>(r.step));
      if (note && r.step == 1) line.note("validation loss: 1.234");
    }
    BOOST_TEST(allocations == before);
  }
  ::close(ends[1]);
  std::string text(1 << 16, '\0');
  const auto n = ::read(ends[0], text.data(), text.size());
  ::close(ends[0]);
  text.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  return text;
}

BOOST_AUTO_TEST_CASE(a_log_gets_plain_lines_and_a_terminal_one_live_line) {
  const std::string log = shown(false, 10, 25, false);
  BOOST_TEST(std::count(log.begin(), log.end(), '\n') == 4); // steps 1, 10, 20, 25
  BOOST_TEST(log.starts_with("step 1/25 | "));
  BOOST_TEST(log.find('\r') == std::string::npos);
  BOOST_TEST(log.find('\x1b') == std::string::npos);
  BOOST_TEST(log.rfind("step 25/25 | loss: 2.3451") != std::string::npos);
  const std::string live = shown(true, 10, 25, true);
  BOOST_TEST(live.find("step 1/25") != std::string::npos);
  BOOST_TEST(live.find("step 25/25") != std::string::npos);
  BOOST_TEST(live.find("\r\x1b[Kvalidation loss: 1.234\n\rstep 1/25") != std::string::npos);
  BOOST_TEST(std::count(live.begin(), live.end(), '\n') == 2); // the note's and the last
  BOOST_TEST(live.back() == '\n');
  // A rewritten line must fit in one row of 80 columns.
  for (std::size_t at = 0; (at = live.find('\r', at)) != std::string::npos; ++at)
    BOOST_TEST(live.find_first_of("\x1b\r\n", at + 1) - at - 1 <= 79u);
}

// Slow steps are shown by time, whatever the interval: the first at once, then every ten seconds.
BOOST_AUTO_TEST_CASE(a_log_is_never_silent_for_long) {
  const auto steps = [](const std::string& log) {
    std::vector<int> list;
    for (std::size_t at = 0; at < log.size(); at = log.find('\n', at) + 1)
      list.push_back(std::stoi(log.substr(at + std::size("step ") - 1)));
    return list;
  };
  BOOST_TEST((steps(shown(false, 100, 20, false, 4)) == std::vector{1, 4, 7, 10, 13, 16, 19, 20}));
  BOOST_TEST((steps(shown(false, 100, 4, false, 60)) == std::vector{1, 2, 3, 4}));
  BOOST_TEST((steps(shown(false, 5, 12, false, 4)) == std::vector{1, 4, 5, 8, 10, 12}));
}

// Speed and time left are of one measure: what is left takes as long as it is said to.
BOOST_AUTO_TEST_CASE(the_time_left_agrees_with_the_speed) {
  mc::pace pace;
  pace.step(100); // with what is done once
  BOOST_TEST(std::isnan(pace.seconds_of(10, 0, 0)));
  pace.step(2);
  BOOST_TEST(pace.seconds_a_step() == 2);
  BOOST_TEST(pace.seconds_of(99, 3, 3) == 198); // no evaluation was seen yet
  pace.paused(mc::pace::evaluation, 30);
  pace.paused(mc::pace::evaluation, 50);
  pace.paused(mc::pace::save, 5);
  BOOST_TEST(pace.seconds_of(10, 2, 1) == 10 * 2 + 2 * 40 + 5);
  BOOST_TEST(pace.seconds_of(0, 0, 0) == 0);
  // A machine that becomes slower: both follow within some tens of steps.
  for (int i = 0; i < 60; ++i) pace.step(4);
  BOOST_TEST(pace.seconds_a_step() == 4, boost::test_tools::tolerance(0.01));
  BOOST_TEST(pace.seconds_of(7, 0, 0) == 7 * pace.seconds_a_step());
}

BOOST_AUTO_TEST_CASE(metrics_are_json_lines_on_disk_at_once) {
  const test::scratch_folder dir;
  mc::metrics_file file(dir / "metrics.jsonl");
  file.write({{"step", 1}, {"loss", 2.5f}, {"lr", 1e-3}, {"text", "a\"b\\c\n"}});
  auto line = nlohmann::json::parse(test::read_text(dir / "metrics.jsonl"));
  BOOST_TEST(line["step"] == 1);
  BOOST_TEST(line["loss"] == 2.5);
  BOOST_TEST(line["lr"] == 1e-3);
  BOOST_TEST(line["text"] == "a\"b\\c\n");
  const float third = 1.0f / 3;
  file.write(
      {{"a", third}, {"b", 1.0 / 3}, {"c", std::numeric_limits<std::int64_t>::min()}, {"d", 1e22}});
  file.write({{"x", std::nan("")}, {"y", HUGE_VAL}, {"z", -HUGE_VALF}});
  const std::string text = test::read_text(dir / "metrics.jsonl");
  const auto second = text.find('\n') + 1, third_line = text.find('\n', second) + 1;
  line = nlohmann::json::parse(text.substr(second, third_line - second));
  BOOST_TEST(static_cast<float>(line["a"].get<double>()) == third);
  BOOST_TEST(line["b"].get<double>() == 1.0 / 3);
  BOOST_TEST(line["c"].get<std::int64_t>() == std::numeric_limits<std::int64_t>::min());
  BOOST_TEST(line["d"].get<double>() == 1e22);
  BOOST_TEST(text.substr(third_line) == "{\"x\":\"nan\",\"y\":\"inf\",\"z\":\"-inf\"}\n");
  const long before = allocations;
  for (int i = 0; i < 100; ++i)
    file.write({{"step", i}, {"loss", 0.1 * i}, {"tokens_per_second", 1e5 / (i + 1)}});
  BOOST_TEST(allocations == before);
  const std::string written = test::read_text(dir / "metrics.jsonl");
  { const mc::metrics_file opened(dir / "metrics.jsonl"); }
  BOOST_TEST(test::read_text(dir / "metrics.jsonl") == written);
  // A line that a full disk has cut off does not spoil the next one.
  for (const std::string& cut : {std::string(), "{\"step\":" + std::string(9000, '1')}) {
    test::write_text(dir / "metrics.jsonl", written + cut);
    mc::metrics_file more(dir / "metrics.jsonl");
    more.continue_after();
    more.write({{"step", -1}});
    BOOST_TEST(test::read_text(dir / "metrics.jsonl") == written + "{\"step\":-1}\n");
  }
  mc::metrics_file anew(dir / "metrics.jsonl");
  anew.begin();
  anew.write({{"step", 0}});
  BOOST_TEST(test::read_text(dir / "metrics.jsonl") == "{\"step\":0}\n");
  test::write_text(dir / "metrics.jsonl", "{\"st");
  anew.continue_after();
  BOOST_TEST(test::read_text(dir / "metrics.jsonl") == "");
  { const mc::metrics_file unused(dir / "unused"); }
  BOOST_TEST(!std::filesystem::exists(dir / "unused"));
}

BOOST_AUTO_TEST_CASE(metrics_that_cannot_be_written_are_an_error) {
  const test::scratch_folder dir;
  CHECK_REFUSED(mc::metrics_file(dir / "none/metrics.jsonl"), exit_code::output,
                "cannot create the metrics file");
  CHECK_REFUSED(mc::metrics_file(dir.path().string()), exit_code::output, "Is a directory");
  // Of a line for which there is only half the room, none stays.
  const int status = test::in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    mc::metrics_file small(dir / "small");
    small.begin();
    small.write({{"step", 1}});
    const struct rlimit limit { 20, 20 };
    ::setrlimit(RLIMIT_FSIZE, &limit);
    const auto refused = test::refusal_of([&] { small.write({{"step", 1234567890}}); });
    return refused && refused->says("File too large") ? 0 : 1;
  });
  BOOST_TEST(status == 0);
  BOOST_TEST(test::read_text(dir / "small") == "{\"step\":1}\n");
  mc::metrics_file full("/dev/full");
  CHECK_REFUSED(full.write({{"step", 1}}), exit_code::output, "No space left on device");
}

BOOST_AUTO_TEST_CASE(ticks_are_round_numbers_within_the_axis) {
  BOOST_TEST(mc::axis_ticks(0, 2000, 8) == (std::vector<double>{0, 500, 1000, 1500, 2000}),
             boost::test_tools::per_element());
  BOOST_TEST(mc::axis_ticks(3, 3, 8) == (std::vector<double>{3}), boost::test_tools::per_element());
  for (const double low : {-7.3, 0.0, 1e-9, 1.23, 4e11})
    for (const double length : {1e-6, 0.37, 1.0, 999.0, 1e9})
      for (const int wanted : {2, 5, 8}) {
        const double high = low + length;
        if (length < 1e-9 * std::fabs(low)) continue; // below the resolution of the values
        const auto ticks = mc::axis_ticks(low, high, wanted);
        BOOST_REQUIRE(!ticks.empty());
        BOOST_TEST(ticks.size() <= static_cast<std::size_t>(wanted) + 1);
        for (const double t : ticks) {
          BOOST_TEST(t >= low - 1e-6 * length);
          BOOST_TEST(t <= high + 1e-6 * length);
        }
      }
}

// Losses that differ in their last bits, steps beyond 2^53.
BOOST_AUTO_TEST_CASE(ranges_of_few_doubles_have_an_end) {
  for (const double low : {-1.0, 2.5, 1e-300, 5e-324, 1e16, 9.2e18, 1e300})
    for (const int numbers : {1, 2, 5, 6, 7, 9, 100})
      for (const int wanted : {1, 6, 8}) {
        double high = low;
        for (int i = 0; i < numbers; ++i) high = std::nextafter(high, HUGE_VAL);
        const auto ticks = mc::axis_ticks(low, high, wanted);
        BOOST_REQUIRE(!ticks.empty());
        BOOST_TEST(ticks.size() <= static_cast<std::size_t>(wanted) + 2);
      }
  using points = std::vector<mc::curve_point>;
  const double next = std::nextafter(2.5, 3.0);
  for (const points& p : {points{{1, 2.5}, {2, next}}, points{{0x1p60, 1e17}},
                          points{{0x1p60, 1e17}, {0x1p60, 1e17}}}) {
    const std::string svg = mc::loss_curve(p, {});
    BOOST_TEST(svg.size() < 4'000u);
    BOOST_TEST(svg.find("nan") + 1 + svg.find("inf") + 1 == 0u);
  }
}

/// Requires that every element is closed in order: what an XML parser asks before all else.
void check_nesting(const std::string& svg) {
  std::vector<std::string> open;
  for (std::size_t at = svg.find('<'); at != std::string::npos; at = svg.find('<', at + 1)) {
    const std::size_t end = svg.find('>', at);
    BOOST_REQUIRE(end != std::string::npos);
    BOOST_REQUIRE(svg.find('<', at + 1) > end);
    const bool closes = svg[at + 1] == '/', empty = svg[end - 1] == '/';
    const std::size_t first = at + (closes ? 2 : 1);
    const std::string name = svg.substr(first, svg.find_first_of(" />", first) - first);
    BOOST_REQUIRE(!name.empty());
    BOOST_REQUIRE(std::count(&svg[at], &svg[end], '"') % 2 == 0);
    if (closes) {
      BOOST_REQUIRE(!open.empty());
      BOOST_REQUIRE(open.back() == name);
      open.pop_back();
    } else if (!empty) {
      open.push_back(name);
    }
  }
  BOOST_TEST(open.empty());
}

std::size_t occurrences(const std::string& text, const std::string& part) {
  std::size_t n = 0;
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos; ++at) ++n;
  return n;
}

/// The d attribute of the line of a series.
std::string path_of(const std::string& svg, const std::string& series) {
  const std::string head = "<path class=\"" + series + " line\" d=\"";
  const auto at = svg.find(head);
  BOOST_REQUIRE(at != std::string::npos);
  return svg.substr(at + head.size(), svg.find('"', at + head.size()) - at - head.size());
}

BOOST_AUTO_TEST_CASE(the_curve_is_a_picture_of_its_points) {
  std::vector<mc::curve_point> train, valid;
  for (int i = 1; i <= 2000; ++i) train.push_back({1.0 * i, 5.5 / std::sqrt(i) + 1.3});
  for (int i = 100; i <= 2000; i += 100) valid.push_back({1.0 * i, 5.5 / std::sqrt(i) + 1.4});
  mc::curve_options options;
  options.title = "char <gpt> & \"co\"";
  const std::string svg = mc::loss_curve(train, valid, options);
  check_nesting(svg);
  BOOST_TEST(svg == mc::loss_curve(train, valid, options));
  BOOST_TEST(occurrences(svg, "<circle") == valid.size());
  BOOST_TEST(occurrences(svg, "<path class=\"train line\"") == 1u);
  BOOST_TEST(occurrences(svg, "char &lt;gpt&gt; &amp; &quot;co&quot;") == 3u);
  for (const char* part : {">step<", ">loss (nats per token)<", ">training<", ">validation<",
                           ">2000<", ">500<", "prefers-color-scheme:dark"})
    BOOST_TEST(occurrences(svg, part) == 1u, part);
  BOOST_TEST(svg.size() < 60'000u);
  BOOST_TEST(occurrences(svg, "nan") == 0u);

  // A line falls on the page as the loss falls: pixel y grows.
  const std::string line = path_of(svg, "train"); // M72.0 y...
  BOOST_TEST(line.substr(0, 6) == "M72.0 ");
  BOOST_TEST(std::stod(line.substr(6)) < 80);
  BOOST_TEST(std::stod(line.substr(line.rfind(' '))) > 350);
}

BOOST_AUTO_TEST_CASE(curves_of_few_many_or_broken_points_are_drawn) {
  using points = std::vector<mc::curve_point>;
  check_nesting(mc::loss_curve({}, {}));
  const std::string one = mc::loss_curve(points{{1, 2.5}}, {});
  check_nesting(one);
  BOOST_TEST(occurrences(one, "<circle") == 1u);
  const std::string gap =
      mc::loss_curve(points{{1, 2}, {2, 3}, {3, std::nan("")}, {4, 2}, {5, HUGE_VAL}, {6, 1}}, {});
  check_nesting(gap);
  BOOST_TEST(occurrences(gap, "nan") + occurrences(gap, "inf") == 0u);
  BOOST_TEST(occurrences(path_of(gap, "train"), "M") == 3u);
  points many;
  for (int i = 0; i < 300'000; ++i) many.push_back({1.0 * i, i == 123'456 ? 9.0 : 2.0});
  const std::string svg = mc::loss_curve(many, {});
  BOOST_TEST(svg.size() < 60'000u);
  BOOST_TEST(occurrences(svg, ">8<") == 1u); // the spike's axis
  const std::string line = path_of(svg, "train");
  double top = 1e9; // of all points: their y follows the blank
  for (auto at = line.find(' '); at != std::string::npos; at = line.find(' ', at + 1))
    top = std::min(top, std::stod(line.substr(at + 1)));
  BOOST_TEST(top < 70);
}

BOOST_AUTO_TEST_CASE(memory_and_time_are_measured) {
  const mc::memory_use before = mc::process_memory();
  BOOST_TEST(before.resident > 1u << 20);
  BOOST_TEST(before.peak >= before.resident);
  {
    std::vector<char> block(64u << 20, 1);
    const mc::memory_use with = mc::process_memory();
    BOOST_TEST(with.resident >= before.resident + (60u << 20));
    BOOST_TEST(block[12345] == 1);
  }
  BOOST_TEST(mc::process_memory().peak >= before.resident + (60u << 20));
  mc::stopwatch watch;
  ::usleep(20'000);
  BOOST_TEST(watch.seconds() >= 0.02);
}

} // namespace
