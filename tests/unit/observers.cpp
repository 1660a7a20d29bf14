// Observers: the queue before each of them, and the event files that TensorBoard reads.
#define BOOST_TEST_MODULE observers
#include <boost/test/unit_test.hpp>

#include <megacpp/observe/observed.hpp>
#include <megacpp/observe/tensorboard.hpp>

#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <scratch.hpp>

using namespace mc;

namespace {

observed_step step_of(std::int64_t n) {
  observed_step s;
  s.step = n, s.steps = 1 << 20, s.loss = 1.0 / static_cast<double>(n), s.seconds = 0.5;
  s.consumed_sequences = 8 * n, s.sequences = 8, s.lr = 1e-3, s.time = 1e9;
  return s;
}

/// What an observer has seen, which the test looks at when its thread has ended.
struct seen {
  std::vector<std::int64_t> steps;
  int starts = 0, ends = 0;
};
class recorder : public observer {
public:
  recorder(seen& to, std::shared_future<void> until = {}, int fails_from = 1 << 30)
      : to_(to), until_(std::move(until)), fails_from_(fails_from) {}
  std::string name() const override { return "the recorder"; }
  void see(const observed_start&) override {
    if (until_.valid()) until_.wait();
    ++to_.starts;
  }
  void see(const observed_step& s) override {
    if (s.step >= fails_from_) throw error(exit_code::output, "cannot record");
    to_.steps.push_back(s.step);
  }
  void see(const observed_end&) override { ++to_.ends; }

private:
  seen& to_;
  std::shared_future<void> until_;
  int fails_from_;
};

/// The records of an event file, whose check sums must be right.
std::vector<std::string> records_in(const std::string& file) {
  const std::string bytes = test::read_text(file);
  const auto number = [&](std::size_t at, std::size_t n) {
    std::uint64_t v = 0;
    std::memcpy(&v, bytes.data() + at, n);
    return v;
  };
  const auto masked = [](std::string_view of) {
    const std::uint32_t c = crc32c(of);
    return (c >> 15 | c << 17) + 0xa282ead8;
  };
  std::vector<std::string> all;
  for (std::size_t at = 0; at < bytes.size();) {
    BOOST_REQUIRE(at + 12 <= bytes.size());
    const std::size_t n = number(at, 8);
    BOOST_REQUIRE(at + 16 + n <= bytes.size());
    all.push_back(bytes.substr(at + 12, n));
    BOOST_TEST(number(at + 8, 4) == masked(std::string_view(bytes).substr(at, 8)));
    BOOST_TEST(number(at + 12 + n, 4) == masked(all.back()));
    at += 16 + n;
  }
  return all;
}

std::string file_in(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& f : std::filesystem::directory_iterator(folder)) files.push_back(f.path());
  BOOST_REQUIRE(files.size() == 1u);
  return files.front();
}

} // namespace

BOOST_AUTO_TEST_CASE(everything_is_seen_in_its_order) {
  seen to;
  {
    observed one(std::make_unique<recorder>(to));
    one.tell(observed_start{});
    for (int i = 1; i <= 500; ++i) one.tell(step_of(i));
    one.tell(observed_end{});
    BOOST_TEST(one.close() == "");
    BOOST_TEST(one.close() == "");
  }
  BOOST_TEST((to.starts == 1 && to.ends == 1));
  BOOST_REQUIRE(to.steps.size() == 500u);
  for (std::size_t i = 0; i < 500; ++i) BOOST_TEST(to.steps[i] == static_cast<std::int64_t>(i) + 1);
}

BOOST_AUTO_TEST_CASE(a_slow_observer_makes_nobody_wait) {
  seen to;
  std::promise<void> may_go;
  observed one(std::make_unique<recorder>(to, may_go.get_future().share()));
  one.tell(observed_start{}); // it waits here
  const int many = static_cast<int>(observed::room) + 9;
  for (int i = 1; i <= many; ++i) one.tell(step_of(i));
  BOOST_TEST(one.news() ==
             "the recorder is slower than the steps, so that not all of them are "
             "told; the run goes on");
  BOOST_TEST(one.news() == "");
  may_go.set_value();
  BOOST_TEST(one.close() == "the recorder lacks 10 of the 1034 things that it was to be told");
  BOOST_TEST(to.steps.size() == observed::room - 1);
}

BOOST_AUTO_TEST_CASE(an_observer_that_hangs_is_left_alone) {
  auto to = std::make_unique<seen>();
  auto never = std::make_unique<std::promise<void>>();
  observed one(std::make_unique<recorder>(*to, never->get_future().share()));
  one.tell(observed_start{});
  one.tell(step_of(1));
  BOOST_TEST(one.close(std::chrono::milliseconds(50)) ==
             "the recorder lacks 2 of the 2 things that it was to be told");
  to.release(), never->set_value(); // the thread may go on as long as the process does
}

BOOST_AUTO_TEST_CASE(a_failure_is_told_once) {
  seen to;
  observed one(std::make_unique<recorder>(to, std::shared_future<void>(), 3));
  for (int i = 1; i <= 5; ++i) one.tell(step_of(i));
  std::string news;
  while (news.empty()) news = one.news(), std::this_thread::yield();
  BOOST_TEST(news == "cannot record; the run goes on");
  BOOST_TEST(one.close() == "the recorder lacks 3 of the 5 things that it was to be told");
  BOOST_TEST(to.steps.size() == 2u);
}

// The check sums are those of RFC 3720, B.4. The records were read by TensorBoard's own classes.
BOOST_AUTO_TEST_CASE(records_of_event_files) {
  std::string rising;
  for (char c = 0; c < 32; ++c) rising += c;
  BOOST_TEST(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  BOOST_TEST(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  BOOST_TEST(crc32c(rising) == 0x46dd794eu);
  std::string text, hex;
  tensorboard_event::of_version(1).append_to(text);
  tensorboard_event loss(2, 7);
  loss.number("loss", 0.5);
  loss.append_to(text);
  for (const char c : text) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  BOOST_TEST(
      hex ==
      "1800000000000000a37f4b2209000000000000f03f1a0d627261696e2e4576656e743a3286bf577a"
      "1a00000000000000129bd82d09000000000000004010072a0d0a0b0a046c6f7373150000003fc33fc24a");
}

BOOST_AUTO_TEST_CASE(files_hold_whole_records) {
  const test::scratch_folder dir;
  const std::string folder = dir / "made/logs";
  {
    tensorboard board(folder, 2);
    board.see(observed_start{.program = "tiny", .time = 1e9, .values = {{"lr", 1e-3}}});
    for (int i = 1; i <= 5; ++i) board.see(step_of(i));
    board.see(observed_evaluation{.step = 5, .loss = 2, .consumed_sequences = 40});
    observed_end end;
    end.step = 5;
    board.see(end);
  }
  // Version and values; steps 2 and 4 and an evaluation by step and by sequences; the end.
  const std::vector<std::string> all = records_in(file_in(folder));
  BOOST_TEST(all.size() == 2u + 2 * 2 + 2 + 1);
  for (const char* const tag : {"lm loss", "lm loss vs samples", "grad-norm"})
    BOOST_TEST((all[2].find(tag) != std::string::npos || all[3].find(tag) != std::string::npos) ==
                   (std::string_view(tag) != "grad-norm"),
               tag); // a number that is not known is left out
}

BOOST_AUTO_TEST_CASE(a_folder_that_cannot_be_made) {
  const test::scratch_folder dir;
  test::write_text(dir / "file", "text");
  tensorboard board(dir / "file", 1);
  BOOST_CHECK_EXCEPTION(board.see(observed_start{}), error, [&](const error& e) {
    return std::string(e.what()).starts_with("cannot make " + dir / "file");
  });
  std::filesystem::remove(dir / "file");
  board.see(step_of(1)); // it is there by now
  BOOST_TEST(records_in(file_in(dir / "file")).size() == 4u);
}
