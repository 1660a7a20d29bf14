// Observers: the queue before each of them, and the event files that TensorBoard reads.
#define BOOST_TEST_MODULE observers
#include <boost/test/unit_test.hpp>

#include <megacpp/io/secret.hpp>
#include <megacpp/observe/katib.hpp>
#include <megacpp/observe/observed.hpp>
#include <megacpp/observe/prometheus.hpp>
#include <megacpp/observe/spans.hpp>
#include <megacpp/observe/tensorboard.hpp>
#include <megacpp/observe/trainjob.hpp>

#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <thread>
#include <type_traits>
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
  std::atomic<bool> hurried = false;
};
class recorder : public observer {
public:
  recorder(seen& to, std::shared_future<void> until = {}, int fails_from = 1 << 30)
      : to_(to), until_(std::move(until)), fails_from_(fails_from) {}
  std::string name() const override { return "the recorder"; }
  void hurry() override { to_.hurried = true; }
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

/// Ends an observer, and returns what is told then.
std::string closed(observed& one, std::chrono::milliseconds most = std::chrono::minutes(1)) {
  std::string all;
  one.end(), one.has_ended(most);
  one.close([&](const std::string& told) { all += told; });
  return all;
}

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
    BOOST_TEST(closed(one) == "");
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
  one.end(observed_end{}); // for which there is room
  may_go.set_value();
  BOOST_TEST(closed(one) ==
             fmt::format("the recorder lacks 10 of the {} things that it was to be told",
                         observed::room + 11));
  BOOST_TEST(to.ends == 1);
  BOOST_TEST(to.steps.size() == observed::room - 1);
}

BOOST_AUTO_TEST_CASE(an_observer_that_hangs_is_left_alone) {
  static seen to;
  auto never = std::make_unique<std::promise<void>>();
  observed one(std::make_unique<recorder>(to, never->get_future().share()));
  one.tell(observed_start{});
  one.tell(step_of(1));
  BOOST_TEST(closed(one, std::chrono::milliseconds(50)) ==
             "the recorder lacks 2 of the 2 things that it was to be told, since it did not answer "
             "before the run was over");
  never->set_value(); // the thread may go on as long as the process does
}

// A run that a signal ends saves first, which may take minutes.
BOOST_AUTO_TEST_CASE(a_long_save_behind_a_signal_leaves_observers_their_time) {
  const stop_signals taken;
  detail::stop_signal = SIGTERM;
  detail::stop_time = detail::signal_time() - std::int64_t{400} * 1'000'000'000;
  seen to;
  std::string told;
  const auto note = [&](const std::string& line) { told += line; };
  observers all;
  std::promise<void> answer;
  all.add([&] { return std::make_unique<recorder>(to, answer.get_future().share()); }, note);
  all.tell(observed_start{});
  std::thread server([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    answer.set_value();
  });
  all.close(observed_end{}, false, note);
  server.join();
  BOOST_TEST(told == "");
  BOOST_TEST((to.ends == 1 && !to.hurried));
  detail::stop_signal = 0, detail::stop_time = 0;
}

BOOST_AUTO_TEST_CASE(whole_numbers_that_a_double_does_not_hold_are_texts) {
  const auto values = observed_values({{"a", 9007199254740992},
                                       {"b", 9007199254740993},
                                       {"c", -9007199254740993},
                                       {"d", std::numeric_limits<std::uint64_t>::max()},
                                       {"e", 0.1},
                                       {"f", -3}});
  using value = decltype(observed_start::values)::value_type::second_type;
  const std::vector<value> right{9007199254740992.0,
                                 "9007199254740993",
                                 "-9007199254740993",
                                 "18446744073709551615",
                                 0.1,
                                 -3.0};
  BOOST_REQUIRE(values.size() == right.size());
  for (std::size_t i = 0; i < right.size(); ++i)
    BOOST_TEST((values[i].second == right[i]), values[i].first);
}

BOOST_AUTO_TEST_CASE(a_failure_is_told_once) {
  seen to;
  observed one(std::make_unique<recorder>(to, std::shared_future<void>(), 3));
  for (int i = 1; i <= 5; ++i) one.tell(step_of(i));
  std::string news;
  while (news.empty()) news = one.news(), std::this_thread::yield();
  BOOST_TEST(news == "cannot record; the run goes on");
  BOOST_TEST(closed(one) == "the recorder lacks 3 of the 5 things that it was to be told");
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

// Whatever would show a secret does not compile.
template <class T>
concept goes_into_text = requires(const T& x, std::ostringstream& out) {
  out << x;
}
|| std::is_convertible_v<T, std::string> || std::is_convertible_v<T, std::string_view> ||
    std::is_constructible_v<std::string, T> || fmt::is_formattable<T>::value ||
    std::is_constructible_v<nlohmann::json, T>;
static_assert(goes_into_text<std::string> && !goes_into_text<secret>);
static_assert(!std::is_copy_constructible_v<secret> && !std::is_copy_assignable_v<secret>);

BOOST_AUTO_TEST_CASE(secrets_are_what_a_file_holds) {
  const auto text = [](const secret& s) { return s.with([](auto t) { return std::string(t); }); };
  BOOST_TEST(text(secret("  sk-lf-1 2\r\n")) == "sk-lf-1 2");
  BOOST_TEST((secret("\n").empty() && secret("").empty() && !secret("a").empty()));
  BOOST_TEST((secret("a b").fits_header() && !secret("a\nb").fits_header()));
}

BOOST_AUTO_TEST_CASE(urls_are_shown_without_keys) {
  BOOST_TEST(shown_url("https://name:key@host:1/a/b?key=c#d") == "https://host:1/a/b");
  BOOST_TEST(shown_url("http://name:k/e?y#@host/a") == "http://host/a");
  BOOST_TEST(shown_url("http://host/a@b") == "http://b"); // rather too little
  BOOST_TEST(shown_url("name:key@host") == "host");
  BOOST_TEST(shown_url("https://a@b@host\n/x") == "https://host?/x");
  for (const char* open : {"http://host", "http://name:key@localhost@host/a", "http://10.0.0.1:80",
                           "http://localhost.org/", "http://[::12]/"})
    BOOST_TEST(is_unencrypted(open), open);
  for (const char* kept :
       {"https://host", "http://localhost:4318", "http://127.0.0.2", "http://a@[::1]:1/"})
    BOOST_TEST(!is_unencrypted(kept), kept);
}

// The figures of RFC 4648, 10.
BOOST_AUTO_TEST_CASE(texts_as_base64) {
  for (const auto& [text, coded] : std::map<std::string, std::string>{{"", ""},
                                                                      {"f", "Zg=="},
                                                                      {"fo", "Zm8="},
                                                                      {"foo", "Zm9v"},
                                                                      {"foob", "Zm9vYg=="},
                                                                      {"foobar", "Zm9vYmFy"},
                                                                      {"\xff\xfe", "//4="}})
    BOOST_TEST(detail::base64(text) == coded);
}

// By https://opentelemetry.io/docs/specs/otel/protocol/exporter/ and Langfuse's pages.
BOOST_AUTO_TEST_CASE(servers_that_an_environment_names) {
  using variable = environment::variable;
  const auto otlp = [](const std::vector<variable>& e) { return otlp_destination(environment(e)); };
  const auto langfuse = [](const std::vector<variable>& e) {
    return langfuse_destination(environment(e));
  };
  const auto headers = [](const span_destination& to) {
    std::map<std::string, std::string> all;
    for (const auto& [name, value] : to.headers)
      value.with([&, &key = name](auto text) { all[key] = text; });
    return all;
  };
  const variable base{"OTEL_EXPORTER_OTLP_ENDPOINT", "http://host:4318/"};
  BOOST_TEST(
      (!otlp({}) && !langfuse({}) && !trainjob_server_of(environment(std::vector<variable>{}))));
  BOOST_TEST(otlp({base})->url == "http://host:4318/v1/traces");
  BOOST_TEST(otlp({{base.first, "http://host/a/?key=b"}})->url == "http://host/a/v1/traces?key=b");
  BOOST_TEST(otlp({base})->service == "megacpp");
  BOOST_TEST(otlp({base, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://other/x"}})->url ==
             "http://other/x");
  for (const variable& off :
       {variable{"OTEL_SDK_DISABLED", "true"}, {"OTEL_TRACES_EXPORTER", "none"}})
    BOOST_TEST(!otlp({base, off}));
  const std::vector<variable> much{
      base,
      {"OTEL_EXPORTER_OTLP_HEADERS", " authorization = Bearer%20a%2Cb ,x=1,,"},
      {"OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca"},
      {"SSL_CERT_FILE", "/others"},
      {"OTEL_EXPORTER_OTLP_TIMEOUT", "250"},
      {"OTEL_RESOURCE_ATTRIBUTES", "service.name=no,team=a%20b"},
      {"OTEL_SERVICE_NAME", "mine"}};
  const span_destination all = *otlp(much);
  BOOST_TEST((headers(all) ==
              std::map<std::string, std::string>{{"authorization", "Bearer a,b"}, {"x", "1"}}));
  BOOST_TEST((all.certificates == "/ca" && all.service == "mine" && all.most.count() == 250));
  BOOST_TEST((all.resource == std::vector<std::pair<std::string, std::string>>{{"team", "a b"}}));
  BOOST_TEST(all.fault == "");
  for (const char* wrong : {"key", "a=1,b", "a b=1", "a: b=1", "=1", "a=x%0Ay"}) {
    const span_destination to = *otlp({base, {"OTEL_EXPORTER_OTLP_HEADERS", wrong}});
    BOOST_TEST(to.fault.starts_with("OTEL_EXPORTER_OTLP_HEADERS is no list name=value"), wrong);
    BOOST_TEST((to.headers.empty() && to.fault.find("key") == std::string::npos));
  }
  BOOST_TEST(otlp({base, {"OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"}})
                 ->fault.starts_with("OTEL_EXPORTER_OTLP_PROTOCOL is grpc, and"));

  const variable name{"LANGFUSE_PUBLIC_KEY", "pk"}, key{"LANGFUSE_SECRET_KEY", "sk\n"};
  BOOST_TEST(langfuse({name, key})->url == "https://cloud.langfuse.com/api/public/otel/v1/traces");
  BOOST_TEST(langfuse({name, key, {"LANGFUSE_HOST", "https://own/"}})->url ==
             "https://own/api/public/otel/v1/traces");
  BOOST_TEST(headers(*langfuse({name, key})).at("Authorization") == "Basic cGs6c2s="); // pk:sk
  BOOST_TEST(langfuse({name})->fault.starts_with("LANGFUSE_PUBLIC_KEY is set and LANGFUSE_SECRET"));
  BOOST_TEST(langfuse({key})->fault.starts_with("LANGFUSE_SECRET_KEY is set and LANGFUSE_PUBLIC"));
}

// The filter of Katib's collectors (pkg/metricscollector/v1beta1/file-metricscollector), and the
// time that they look for at the beginning of a line.
BOOST_AUTO_TEST_CASE(lines_that_katib_finds_numbers_in) {
  const test::scratch_folder dir;
  const std::string file = dir / "made/metrics.log";
  std::filesystem::create_directory(dir / "made");
  test::write_text(file, "loss=1\nloss=2"); // a full disk has cut the last one
  katib_lines lines(file);
  lines.see(observed_start{});
  observed_step s = step_of(3);
  s.time = 1763622000.123, s.loss = 0.25, s.grad_norm = 1e-7, s.tokens = 60000;
  lines.see(s);
  lines.see(observed_evaluation{.step = 3, .time = 1763622001, .set = "a b/c.d", .loss = 2.5});
  std::string text = test::read_text(file);
  BOOST_REQUIRE(text.starts_with("loss=1\n"));
  text.erase(0, 7);
  BOOST_TEST(text.starts_with("2025-11-20T07:00:00.123Z step=3 "));
  const std::regex filter(R"(([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?))");
  std::map<std::string, double> found;
  for (std::sregex_iterator i(text.begin(), text.end(), filter), end; i != end; ++i)
    found[(*i)[1]] = std::stod((*i)[2]);
  BOOST_TEST((found == std::map<std::string, double>{{"step", 3},
                                                     {"loss", 0.25},
                                                     {"grad_norm", 1e-7},
                                                     {"learning_rate", 1e-3},
                                                     {"tokens_per_second", 120000},
                                                     {"validation_loss_a_b_c_d", 2.5}}));
}

BOOST_AUTO_TEST_CASE(secrets_in_files) {
  const test::scratch_folder dir;
  test::write_text(dir / "token", "a token\n");
  BOOST_TEST(secret_in_file(dir / "token")->with([](auto t) { return std::string(t); }) ==
             "a token");
  test::write_text(dir / "long", std::string(70000, 'x'));
  for (const std::string& none :
       {dir / "long", dir / "none", std::string("/dev/zero"), dir.path().string()})
    BOOST_TEST(!secret_in_file(none), none);
}

BOOST_AUTO_TEST_CASE(addresses_of_pages) {
  for (const char* wrong : {"", "::1", "[::1]", "127.0.0.1:80,127.0.0.1", "+127.0.0.1", "host"})
    BOOST_CHECK_EXCEPTION(prometheus_page_at(wrong, 9464), error, [](const error& e) {
      return e.code() == exit_code::usage &&
             std::string(e.what()).starts_with("report_request::address is ");
    });
}
