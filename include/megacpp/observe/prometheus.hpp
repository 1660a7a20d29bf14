// The observer that Prometheus scrapes: the newest numbers of a run under /metrics of a port. It is
// there where prometheus-cpp is (MEGACPP_WITH_PROMETHEUS).
#pragma once

#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/observer.hpp>

#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <fmt/format.h>
#if defined(MEGACPP_WITH_PROMETHEUS)
#include <prometheus/counter.h>
#include <prometheus/exposer.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#endif

namespace mc {

#if defined(MEGACPP_WITH_PROMETHEUS)
/// Answers scrapes from its start to its end. Numbers that are not known have no sample.
class prometheus_endpoint : public observer {
public:
  /// `address`: of IPv4.
  prometheus_endpoint(const ::in_addr& address, int port) : address_(address), port_(port) {
    std::array<char, INET_ADDRSTRLEN> text{};
    at_ = fmt::format("{}:{}", ::inet_ntop(AF_INET, &address, text.data(), text.size()), port);
  }

  std::string name() const override { return "the endpoint http://" + at_ + "/metrics"; }

  void see(const observed_start& s) override {
    set("start_time_seconds", "When the process began, in seconds since 1970.", s.time);
    set("parameters", "Parameters of the model.", static_cast<double>(s.parameters));
    set("ranks", "Ranks of the run.", s.ranks);
    set("step", "Steps that were taken.", static_cast<double>(s.first_step));
    set("steps", "Steps of the whole run.", static_cast<double>(s.steps));
    gauge_family("info", "The program.").Add({{"program", s.program}}).Set(1);
    require_free();
    try {
      // A client that says nothing holds a thread for so long, and others are served meanwhile.
      exposer_.emplace(std::vector<std::string>{"listening_ports", at_, "num_threads", "4",
                                                "request_timeout_ms", "5000"});
    } catch (const std::exception&) { // its words do not say more
      throw error(exit_code::output, fmt::format("prometheus-cpp cannot begin to listen on {}: it "
                                                 "may lack a thread or memory",
                                                 at_));
    }
    exposer_->RegisterCollectable(numbers_);
  }
  void see(const observed_step& s) override {
    set("loss", "Mean loss of the last step's learned tokens, in nats.", s.loss);
    set("grad_norm", "Norm of the last step's gradient, before clipping.", s.grad_norm);
    set("learning_rate", "Learning rate of the last step.", s.lr);
    set("tokens_per_second", "Tokens that the last step computed in a second.",
        s.tokens_per_second());
    set("mfu_ratio", "Operations that the model needs over the stated peak.", s.mfu);
    set("flops_per_second", "Operations a second that the model needs of each rank.",
        s.flops_per_second);
    set("resident_memory_bytes", "Resident memory of the first rank's process.",
        static_cast<double>(s.memory));
    set("remaining_seconds", "Seconds to the end of the run.", s.seconds_left);
    if (s.slowest_rank >= 0) {
      set("slowest_rank", "Rank that computed longest in the last step.", s.slowest_rank);
      set("slowest_rank_seconds", "Seconds that this rank computed.", s.slowest_seconds);
      set("other_ranks_seconds", "Median seconds that the other ranks computed.", s.others_seconds);
    }
    add("tokens_total", "Tokens that this process has computed.", static_cast<double>(s.tokens));
    add("learned_tokens_total", "Tokens of these that have a label.",
        static_cast<double>(s.learned_tokens));
    add("data_seconds_total", "Seconds in which steps waited for data.", s.data_seconds);
    step_seconds_.Observe(s.seconds);
    set("step", "Steps that were taken.", static_cast<double>(s.step));
  }
  void see(const observed_evaluation& e) override {
    losses_.Add({{"data", e.of_test ? "test" : "validation"}, {"set", e.set}}).Set(e.loss);
  }
  void see(const observed_end&) override { exposer_.reset(); }

private:
  /// Throws mc::error with the reason for which the port cannot be had, as prometheus-cpp does not.
  void require_free() const {
    const descriptor s(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ::sockaddr_in at{};
    at.sin_family = AF_INET, at.sin_port = htons(static_cast<std::uint16_t>(port_));
    at.sin_addr = address_;
    const int on = 1; // as civetweb asks for it
    if (s && ::setsockopt(s.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(s.get(), reinterpret_cast<const ::sockaddr*>(&at), sizeof at) == 0 &&
        ::listen(s.get(), 1) == 0)
      return;
    throw error(exit_code::output, fmt::format("cannot listen on {} for Prometheus: {}; choose "
                                               "another port or address",
                                               at_, reason_of(errno)));
  }

  using family = prometheus::Family<prometheus::Gauge>;

  family& gauge_family(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name("megacpp_" + name).Help(help).Register(*numbers_);
  }
  void set(const char* name, const char* help, double v) {
    auto& [all, one] = gauges_[name];
    if (all == nullptr) all = &gauge_family(name, help);
    if (std::isnan(v)) {
      if (one != nullptr) all->Remove(std::exchange(one, nullptr));
      return;
    }
    if (one == nullptr) one = &all->Add({});
    one->Set(v);
  }
  void add(const char* name, const char* help, double v) {
    prometheus::Counter*& one = counters_[name];
    if (one == nullptr)
      one = &prometheus::BuildCounter()
                 .Name(std::string("megacpp_") + name)
                 .Help(help)
                 .Register(*numbers_)
                 .Add({});
    one->Increment(v);
  }

  ::in_addr address_;
  int port_;
  std::string at_;
  std::shared_ptr<prometheus::Registry> numbers_ = std::make_shared<prometheus::Registry>();
  std::map<std::string, std::pair<family*, prometheus::Gauge*>> gauges_;
  std::map<std::string, prometheus::Counter*> counters_;
  family& losses_ = prometheus::BuildGauge()
                        .Name("megacpp_evaluation_loss")
                        .Help("Mean loss on data that are not learned, in nats.")
                        .Register(*numbers_);
  /// Steps of a millisecond to over an hour, the bounds of which double.
  prometheus::Histogram& step_seconds_ =
      prometheus::BuildHistogram()
          .Name("megacpp_step_seconds")
          .Help("Seconds of steps.")
          .Register(*numbers_)
          .Add({}, prometheus::Histogram::BucketBoundaries{
                       0.001,  0.002,   0.004,   0.008,   0.016,    0.032,    0.064,   0.128,
                       0.256,  0.512,   1.024,   2.048,   4.096,    8.192,    16.384,  32.768,
                       65.536, 131.072, 262.144, 524.288, 1048.576, 2097.152, 4194.304});
  std::optional<prometheus::Exposer> exposer_;
};

#endif

/// Returns the address of IPv4 at which Prometheus can scrape. Throws mc::error(exit_code::usage)
/// for another address, and without prometheus-cpp.
inline ::in_addr prometheus_address(const std::string& address) {
  ::in_addr found{};
  if (::inet_pton(AF_INET, address == "localhost" ? "127.0.0.1" : address.c_str(), &found) != 1)
    throw error(exit_code::usage,
                fmt::format("report_request::address is \"{}\"; give an address of IPv4, such as "
                            "127.0.0.1 or 0.0.0.0",
                            printable(address)));
#if defined(MEGACPP_WITH_PROMETHEUS)
  return found;
#else
  throw error(exit_code::usage,
              "report_request::port needs prometheus-cpp, without which this program is built: "
              "install prometheus-cpp-dev, and build it again");
#endif
}

/// Returns an observer that Prometheus can scrape, at an address of IPv4 or localhost. Throws as
/// prometheus_address().
inline std::unique_ptr<observer> prometheus_page_at(const std::string& address,
                                                    [[maybe_unused]] int port) {
  [[maybe_unused]] const ::in_addr found = prometheus_address(address);
#if defined(MEGACPP_WITH_PROMETHEUS)
  return std::make_unique<prometheus_endpoint>(found, port);
#else
  return nullptr;
#endif
}

} // namespace mc
