// The observer that sends a trace of a run by OTLP over HTTP, in JSON, to a collector of
// OpenTelemetry or to Langfuse: https://opentelemetry.io/docs/specs/otlp/ and
// https://langfuse.com/integrations/native/opentelemetry.
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/observe/http.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/observe/span_destination.hpp>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

#if defined(MEGACPP_WITH_CURL)
/// Sends a trace of one process of a run: a span of the whole, which is sent at its end, and in it
/// those of its start, of the steps between two lines of progress, of evaluations, texts, saves and
/// an error. What a server does not take is kept and sent again, up to `room` spans.
class span_sender : public observer {
public:
  static constexpr std::size_t room = 512;

  /// `interval`: steps of a span. Throws mc::error(exit_code::memory).
  span_sender(span_destination to, std::int64_t interval)
      : to_(std::move(to)), interval_(interval), server_(to_.url, to_.certificates, to_.most) {
    for (const auto& [name, value] : to_.headers) server_.header(name, value);
  }

  std::string name() const override { return "the trace at " + server_.shown(); }
  void hurry() override { server_.give_up(); }

  void see(const observed_start& s) override {
    count();
    start_ = s;
    trace_ = drawn_id(16), root_ = drawn_id(8);
    json values = json::object();
    for (const auto& [name, value] : s.values)
      std::visit([&, &key = name](const auto& v) { values[key] = v; }, value);
    values_ = values.dump(-1, ' ', false, json::error_handler_t::replace);
    add({"start",
         s.time,
         s.time,
         {{"megacpp.first_step", s.first_step},
          {"megacpp.steps", s.steps},
          {"megacpp.ranks", std::int64_t{s.ranks}},
          {"megacpp.parameters", s.parameters}}});
    send(true);
  }
  void see(const observed_step& s) override {
    if (steps_ == 0) steps_since_ = s.time - s.seconds, first_of_span_ = s.step;
    ++steps_;
    count();
    seconds_ += s.seconds, data_seconds_ += s.data_seconds, tokens_ += s.tokens;
    if (!std::isnan(s.loss)) {
      loss_ += s.loss * static_cast<double>(s.learned_tokens);
      learned_ += s.learned_tokens;
    }
    last_ = s;
    if (s.step % interval_ == 0 || s.step == s.steps) end_steps();
  }
  void see(const observed_evaluation& e) override {
    end_steps();
    count();
    add({"evaluation",
         e.time,
         e.time,
         {{"megacpp.step", e.step},
          {"megacpp.data", e.of_test ? "test" : "validation"},
          {"megacpp.set", e.set},
          {"megacpp.loss", e.loss},
          {"megacpp.perplexity", std::exp(e.loss)},
          {"megacpp.tokens", e.tokens}}});
    send();
  }
  void see(const observed_text& t) override {
    count();
    add({"sample",
         t.time,
         t.time,
         {{"megacpp.step", t.step}, {"langfuse.observation.output", t.text}}});
    send();
  }
  void see(const observed_save& s) override {
    end_steps();
    count();
    add({"save",
         s.time - s.seconds,
         s.time,
         {{"megacpp.step", s.step}, {"megacpp.folder", s.folder}}});
    send();
  }
  void see(const observed_failure& f) override {
    count();
    add({"numbers that are not finite",
         f.time,
         f.time,
         {{"megacpp.step", f.step},
          {"megacpp.loss", f.loss},
          {"megacpp.grad_norm", f.grad_norm},
          {"megacpp.learning_rate", f.lr}},
         "a number of the step is not finite"});
    send();
  }
  void see(const observed_end& e) override {
    end_steps();
    count();
    span whole{start_.program,
               start_.time,
               e.time,
               {{"megacpp.step", e.step},
                {"megacpp.goes_on", e.goes_on},
                {"langfuse.trace.name", start_.program},
                {"langfuse.trace.input", values_},
                {"langfuse.observation.input", values_}},
               e.goes_on ? "" : e.error};
    whole.is_root = true;
    add(std::move(whole));
  }
  /// Sends what is left, once.
  void finish() override {
    end_steps();
    if (!kept_.empty()) {
      try {
        send(true);
      } catch (const observer_failure& e) {
        throw observer_failure(e.what(), e.lost() + drop(kept_.size()));
      }
    }
  }

private:
  using json = nlohmann::json;
  using value = std::variant<std::int64_t, double, bool, std::string>;

  struct span {
    std::string name;
    double begin = 0, end = 0; ///< seconds since 1970, UTC
    std::vector<std::pair<std::string, value>> attributes{};
    std::string error{};
    bool is_root = false;
  };
  /// A span that waits to be sent, and the observations that it stands for.
  struct waiting_span {
    json text;
    std::uint64_t observations;
  };

  static std::string drawn_id(int bytes) {
    std::random_device draw;
    std::string id;
    for (int i = 0; i < bytes; i += 4)
      id += fmt::format("{:08x}", static_cast<std::uint32_t>(draw()));
    return id;
  }
  static std::string nanoseconds(double seconds) {
    return std::to_string(static_cast<std::int64_t>(seconds * 1e6) * 1000);
  }
  static json attribute(const std::string& name, const value& v) {
    json of = json::object();
    if (const auto* const i = std::get_if<std::int64_t>(&v)) of["intValue"] = std::to_string(*i);
    else if (const auto* const d = std::get_if<double>(&v)) {
      if (std::isfinite(*d)) of["doubleValue"] = *d;
      else of["stringValue"] = fmt::format("{}", *d);
    } else if (const auto* const b = std::get_if<bool>(&v)) of["boolValue"] = *b;
    else of["stringValue"] = std::get<std::string>(v);
    return {{"key", name}, {"value", std::move(of)}};
  }

  /// Counts an observation, which the next span stands for.
  void count() { ++waiting_, ++unsent_; }
  /// Drops the first spans that are kept, and returns how many observations they stand for.
  std::uint64_t drop(std::size_t spans) {
    std::uint64_t all = 0;
    for (; spans > 0; --spans, kept_.pop_front()) all += kept_.front().observations;
    unsent_ -= all;
    return all;
  }
  void add(span s) {
    json attributes = json::array();
    for (const auto& [name, v] : s.attributes) attributes.push_back(attribute(name, v));
    json status = json::object();
    if (!s.error.empty()) {
      status = {{"code", 2}, {"message", s.error}};
      attributes.push_back(attribute("langfuse.observation.level", std::string("ERROR")));
      attributes.push_back(attribute("langfuse.observation.status_message", s.error));
    }
    json one = {{"traceId", trace_},
                {"spanId", s.is_root ? root_ : drawn_id(8)},
                {"name", std::move(s.name)},
                {"kind", 1},
                {"startTimeUnixNano", nanoseconds(s.begin)},
                {"endTimeUnixNano", nanoseconds(std::max(s.begin, s.end))},
                {"attributes", std::move(attributes)},
                {"status", std::move(status)}};
    if (!s.is_root) one["parentSpanId"] = root_;
    if (kept_.size() == room) lost_ += drop(1);
    kept_.push_back({std::move(one), std::exchange(waiting_, 0)});
  }
  /// Makes a span of the steps since the last one.
  void end_steps() {
    if (steps_ == 0) return;
    span s{first_of_span_ == last_.step ? fmt::format("step {}", last_.step)
                                        : fmt::format("steps {} to {}", first_of_span_, last_.step),
           steps_since_, last_.time};
    const auto number = [&](const char* name, value v) {
      if (const auto* const d = std::get_if<double>(&v); d == nullptr || !std::isnan(*d))
        s.attributes.emplace_back(std::string("megacpp.") + name, std::move(v));
    };
    number("step", last_.step), number("steps", last_.steps);
    if (learned_ > 0) number("loss", loss_ / static_cast<double>(learned_));
    number("grad_norm", last_.grad_norm), number("learning_rate", last_.lr);
    number("tokens", tokens_), number("learned_tokens", learned_);
    number("consumed_tokens", last_.consumed_tokens);
    number("tokens_per_second", static_cast<double>(tokens_) / seconds_);
    number("data_seconds", data_seconds_), number("mfu", last_.mfu);
    number("memory_bytes", last_.memory), number("remaining_seconds", last_.seconds_left);
    if (last_.slowest_rank >= 0) number("slowest_rank", std::int64_t{last_.slowest_rank});
    steps_ = 0, tokens_ = learned_ = 0, seconds_ = data_seconds_ = loss_ = 0;
    add(std::move(s));
    send();
  }

  /// Sends what is kept, unless a post has failed a short time ago, or more is to come and there is
  /// room for it. Throws observer_failure.
  void send(bool at_once = false) {
    const double now = monotonic_seconds();
    const bool may_wait = more_waits() && kept_.size() < room / 2;
    if (kept_.empty() || (!at_once && (now < next_ || may_wait))) return;
    json spans = json::array();
    for (const waiting_span& one : kept_) spans.push_back(one.text);
    json resource = json::array({attribute("service.name", to_.service)});
    for (const auto& [name, v] : to_.resource) resource.push_back(attribute(name, v));
    const json all = {{"resourceSpans",
                       {{{"resource", {{"attributes", resource}}},
                         {"scopeSpans", {{{"scope", {{"name", "megacpp"}}}, {"spans", spans}}}}}}}};
    http_server::answer answer =
        to_.fault.empty() ? server_.post(all.dump(-1, ' ', false, json::error_handler_t::replace))
                          : http_server::answer{to_.fault, false};
    std::uint64_t refused = answer.fault.empty() ? refused_in(answer.reply) : 0;
    if (answer.fault.empty()) {
      pause_ = 0, next_ = 0;
      refused = std::min(refused, drop(kept_.size()));
      if (refused == 0 && lost_ == 0) return;
      answer.fault =
          refused > 0
              ? fmt::format("{} refused {} spans", server_.shown(), refused_in(answer.reply))
              : fmt::format("{} did not take spans as fast as they came, so that it lacks some",
                            server_.shown());
      lost_ += refused;
    } else {
      // Twice as long after each failure in a row: 5 s to 80 s.
      pause_ = std::min(pause_ == 0 ? 5.0 : 2 * pause_, 80.0);
      next_ = monotonic_seconds() + pause_;
      if (!answer.may_help) lost_ += drop(kept_.size());
    }
    throw observer_failure(answer.fault, std::exchange(lost_, 0));
  }
  /// Returns how many spans a collector has not taken though it took the post
  /// (ExportTracePartialSuccess).
  static std::uint64_t refused_in(const std::string& reply) {
    const json all = json::parse(reply, nullptr, false);
    if (!all.is_object() || !all.contains("partialSuccess")) return 0;
    const json& part = all.at("partialSuccess");
    if (!part.is_object() || !part.contains("rejectedSpans")) return 0;
    const json& n = part.at("rejectedSpans");
    std::uint64_t count = 0;
    if (n.is_number_unsigned()) return n.get<std::uint64_t>();
    if (!n.is_string()) return 0; // an int64 is a text in protobuf's JSON
    const auto& digits = n.get_ref<const std::string&>();
    std::from_chars(digits.data(), digits.data() + digits.size(), count);
    return count;
  }

  span_destination to_;
  std::int64_t interval_;
  http_server server_;
  observed_start start_;
  std::string trace_, root_, values_;
  std::deque<waiting_span> kept_;
  std::uint64_t waiting_ = 0, ///< observations without a span
      lost_ = 0;
  double pause_ = 0, next_ = 0; ///< seconds; the time of the next post
  // The steps of the next span.
  observed_step last_;
  std::int64_t steps_ = 0, first_of_span_ = 0, tokens_ = 0, learned_ = 0;
  double steps_since_ = 0, seconds_ = 0, data_seconds_ = 0, loss_ = 0;
};
#endif

/// Returns an observer that sends a trace, with a span for `interval` steps; nullptr without
/// libcurl. Throws mc::error(exit_code::memory).
inline std::unique_ptr<observer> span_sender_to([[maybe_unused]] span_destination to,
                                                [[maybe_unused]] std::int64_t interval) {
#if defined(MEGACPP_WITH_CURL)
  return std::make_unique<span_sender>(std::move(to), interval);
#else
  return nullptr;
#endif
}

} // namespace mc
