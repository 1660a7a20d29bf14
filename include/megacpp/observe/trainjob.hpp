// The observer that tells Kubeflow Trainer how far a TrainJob is: its status server, which the
// feature gate TrainJobStatus starts (https://github.com/kubeflow/trainer, KEP 2779).
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/observe/http.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/observe/text.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// The status server, as a TrainJob's containers have it in KUBEFLOW_TRAINER_SERVER_URL, _CA_CERT
/// and _TOKEN.
struct trainjob_server {
  std::string url, certificates, token_file;
};
inline std::optional<trainjob_server> trainjob_server_of(const environment& e) {
  if (!e.has("KUBEFLOW_TRAINER_SERVER_URL")) return std::nullopt;
  return trainjob_server{std::string(e.text("KUBEFLOW_TRAINER_SERVER_URL")),
                         certificates_of(e, "KUBEFLOW_TRAINER_SERVER_CA_CERT"),
                         std::string(e.text("KUBEFLOW_TRAINER_SERVER_TOKEN"))};
}

#if defined(MEGACPP_WITH_CURL)
/// Posts the newest state of a run, no more often than every `least` seconds, and a last time at
/// its end. The file of the token is read for each post, since Kubernetes renews it.
class trainjob_status : public observer {
public:
  static constexpr double least = 5; ///< as Kubeflow's own SDK keeps it

  /// Throws mc::error(exit_code::memory).
  explicit trainjob_status(trainjob_server to)
      : to_(std::move(to)), server_(to_.url, to_.certificates) {}

  std::string name() const override { return "the TrainJob's status at " + server_.shown(); }
  void hurry() override {
    hurries_ = true;
    server_.give_up();
  }

  void see(const observed_start& s) override {
    step_ = s.first_step, steps_ = s.steps;
    post(s.time);
  }
  void see(const observed_step& s) override {
    step_ = s.step, steps_ = s.steps, left_ = s.seconds_left;
    numbers_["loss"] = s.loss, numbers_["grad_norm"] = s.grad_norm;
    numbers_["learning_rate"] = s.lr, numbers_["step"] = static_cast<double>(s.step);
    numbers_["tokens_per_second"] = s.tokens_per_second(), numbers_["mfu"] = s.mfu;
    if (!more_waits() && monotonic_seconds() - posted_ >= least) post(s.time);
  }
  void see(const observed_evaluation& e) override {
    if (e.set.empty()) numbers_[e.of_test ? "test_loss" : "validation_loss"] = e.loss;
  }
  void see(const observed_end& e) override {
    step_ = e.step, left_ = e.goes_on ? left_ : 0;
    while (!hurries_ && monotonic_seconds() - posted_ < least)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ends_ = true;
    post(e.time);
  }

private:
  void post(double time) {
    using json = nlohmann::json;
    json metrics = json::array(); // names and values of 1 to 64 characters
    for (const auto& [name, v] : numbers_)
      if (std::isfinite(v))
        metrics.push_back({{"name", name}, {"value", fmt::format("{:.9g}", v)}});
    json status = {{"metrics", std::move(metrics)},
                   {"lastUpdatedTime", utc_text_with_milliseconds(time)}};
    if (steps_ > 0)
      status["progressPercentage"] = std::clamp<std::int64_t>(100 * step_ / steps_, 0, 100);
    if (std::isfinite(left_))
      status["estimatedRemainingSeconds"] = // an int32 there
          static_cast<std::int64_t>(std::ceil(std::clamp(left_, 0.0, 2147483647.0)));
    posted_ = monotonic_seconds();
    const http_server::answer answer =
        server_.post(json{{"trainerStatus", std::move(status)}}.dump(), authorization());
    // A later status says all that this one has said.
    if (!answer.fault.empty()) throw observer_failure(answer.fault, ends_ ? 1 : 0);
  }
  secret authorization() const {
    if (to_.token_file.empty()) return {};
    const std::optional<secret> found = secret_in_file(to_.token_file);
    if (!found || found->empty() || !found->fits_header())
      throw observer_failure(
          fmt::format(
              "the file that KUBEFLOW_TRAINER_SERVER_TOKEN names, for {}, cannot be read, or "
              "has no token in one line",
              server_.shown()),
          ends_ ? 1 : 0);
    return found->with([](std::string_view t) {
      std::string header = "Bearer " + std::string(t);
      secret all(header);
      ::explicit_bzero(header.data(), header.size());
      return all;
    });
  }

  trainjob_server to_;
  http_server server_;
  std::atomic<bool> hurries_ = false;
  bool ends_ = false;
  std::int64_t step_ = 0, steps_ = 0;
  double left_ = observed_step::unknown, posted_ = -least;
  std::map<std::string, double> numbers_;
};

#endif

/// Returns an observer that tells the status server; nullptr without libcurl. Throws
/// mc::error(exit_code::memory).
inline std::unique_ptr<observer> trainjob_status_at([[maybe_unused]] trainjob_server to) {
#if defined(MEGACPP_WITH_CURL)
  return std::make_unique<trainjob_status>(std::move(to));
#else
  return nullptr;
#endif
}

} // namespace mc
