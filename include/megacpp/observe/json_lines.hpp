// The observer that writes a line of JSON for each step, evaluation and text.
#pragma once

#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/observer.hpp>

#include <cmath>
#include <initializer_list>
#include <string>
#include <utility>

namespace mc {

/// Writes what it sees to a metrics_file. Its functions throw mc::error(exit_code::output).
class json_lines : public observer {
public:
  explicit json_lines(std::string path) : file_(std::move(path)) {}

  std::string name() const override { return "the metrics file " + file_.path(); }
  /// Empties the file, or goes on behind the lines of the process before.
  void begin(bool goes_on) {
    if (goes_on) file_.continue_after();
    else file_.begin();
  }

  void see(const observed_step& x) override {
    const auto known = [](const char* name, double v) {
      return std::isnan(v) ? metric(name, nullptr) : metric(name, v);
    };
    const std::initializer_list<metric> of_step{{"step", x.step},
                                                known("loss", x.loss),
                                                {"lr", x.lr},
                                                known("grad_norm", x.grad_norm),
                                                {"tokens", x.tokens},
                                                {"learned_tokens", x.learned_tokens},
                                                {"step_ms", x.seconds * 1e3},
                                                {"data_ms", x.data_seconds * 1e3},
                                                known("product_ceiling_share", x.of_ceiling),
                                                {"memory", x.memory},
                                                {"tokens_per_s", x.tokens_per_second()},
                                                {"consumed_tokens", x.consumed_tokens},
                                                known("mfu", x.mfu),
                                                {"time", x.time}};
    if (x.slowest_rank < 0) return file_.write(of_step);
    file_.write(of_step, {{"slowest_rank", x.slowest_rank},
                          {"slowest_compute_ms", x.slowest_seconds * 1e3},
                          {"compute_ms", x.others_seconds * 1e3}});
  }
  void see(const observed_evaluation& x) override {
    const std::string kind = x.of_test ? "test" : "validation", loss = kind + "_loss",
                      tokens = kind + "_tokens";
    const metric value(loss, x.loss), count(tokens, x.tokens), time("time", x.time);
    if (!x.set.empty())
      file_.write({{"step", x.step}, {"set", std::string_view(x.set)}, value, count, time});
    else if (x.of_test) file_.write({{"step", x.step}, value, count, time});
    else file_.write({{"step", x.step}, value, {"perplexity", std::exp(x.loss)}, count, time});
  }
  void see(const observed_text& x) override {
    file_.write({{"step", x.step}, {"sample", std::string_view(x.text)}, {"time", x.time}});
  }
  void see(const observed_failure& x) override {
    file_.write({{"step", x.step},
                 {"loss", x.loss},
                 {"lr", x.lr},
                 {"grad_norm", x.grad_norm},
                 {"time", x.time}});
  }

private:
  metrics_file file_;
};

} // namespace mc
