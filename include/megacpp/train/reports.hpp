// The reports of a training run: lines of progress, metrics, the curve, the profile, and the times
// of steps that were measured.
#pragma once

#include <megacpp/inspect/profile.hpp>
#include <megacpp/inspect/timeline.hpp>
#include <megacpp/observe/ceiling.hpp>
#include <megacpp/observe/curve.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/observe/speeds.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/losses.hpp>
#include <megacpp/train/evaluate.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// All reports of a run. Memory is reserved before the first step, so that telling of a step
/// allocates nothing.
class training_reports {
public:
  /// The arguments must outlive this. `losses`: those of the whole run, which the curve shows.
  /// `rank`: all but the first tell nothing.
  training_reports(const program_view& p, const report_request& asked, const loop_request& loop,
                   device& on, const run_losses& losses, const communicator& rank)
      : tells_(rank.rank() == 0),
        ranks_(rank.ranks()),
        speeds_(stages_of(ranks_)),
        p_(p),
        asked_(asked),
        loop_(loop),
        device_(on),
        losses_(losses),
        profile_(p),
        progress_(asked.log_interval) {}

  /// Opens the file of metrics, which goes again if the run does not begin. Throws mc::error.
  void open_metrics() {
    if (tells_ && asked_.metrics) metrics_.emplace(*asked_.metrics);
  }
  /// A run that goes on adds to the file of the one before. Throws mc::error.
  void begin_metrics(bool goes_on) {
    if (!metrics_) return;
    if (goes_on) metrics_->continue_after();
    else metrics_->begin();
  }
  /// Reserves what steps need, and measures what their speed is told against. The session has
  /// reserved `planned`.
  void prepare(const memory_items& planned) {
    if (!tells_) return;
    planned_bytes_ =
        planned.total() - planned.mirrors + product_speed::bytes_of(p_.numbers.precision.weight);
    constexpr std::int64_t timed_without_allocating = 1 << 20;
    if (loop_.bench)
      times_.reserve(static_cast<std::size_t>(std::min(loop_.steps, timed_without_allocating)));
    flops_ = static_cast<double>(work_of_step(p_, loop_.micro_batches()).total().flops);
    needed_flops_ = needed_flops();
    speed_.emplace(device_, p_.numbers.precision.weight);
    measure_ceiling();
  }

  /// Introduces a run of so many ranks, which exchange what devices hold on a `way`
  /// (communicator::way).
  void introduce(std::int64_t planned_bytes, int ranks, std::string_view way) {
    const std::int64_t micro_batches = loop_.micro_batches();
    const std::string on = device_.name();
    note(fmt::format(
        "{}: {} parameters, {}, {}micro-batch {} x {} tokens, {}{} micro-batch{} a step, {} "
        "thread{}, {}{}{}{}, {:.1f} GF/s, {} planned",
        p_.name, count_text(static_cast<double>(p_.parameters)).view(),
        name_of(p_.numbers.precision.weight),
        ranks == 1    ? std::string()
        : way.empty() ? fmt::format("{} ranks, each ", ranks)
                      : fmt::format("{} ranks that exchange {}, each ", ranks, way),
        p_.numbers.batch.micro, p_.numbers.batch.sequence,
        loop_.batches.grows() ? fmt::format("{} to ", loop_.batches.start / loop_.at_once) : "",
        micro_batches, micro_batches == 1 ? "" : "es", device_.threads(),
        device_.threads() == 1 ? "" : "s", on, on.empty() ? "" : ", ",
        device_.products().describe(p_.numbers.precision.weight),
        device_.attention() == nullptr ? "" : ", attention " + device_.attention()->describe(),
        ceiling_.behind() * 1e-9, bytes_text(static_cast<std::uint64_t>(planned_bytes)).view()));
  }
  /// Tells a sentence, which may name members of requests.
  void note(std::string_view line) {
    if (tells_) progress_.note(asked_.spelled(std::string(line)));
  }

  /// Tells over which tokens losses are means, where `what` is not learned; "" is nothing.
  void tell_unlearned(std::string_view what) {
    if (what.empty()) return;
    masked_ = true;
    note(fmt::format("losses are means over the tokens that are learned, which are all but {}",
                     what));
  }

  /// What times the nodes of the next step. The first step prepares much that others find.
  step_clock* clock() { return tells_ && asked_.profile && steps_ > 0 ? &profile_ : nullptr; }

  /// What comes after a step: other steps, counted by their share of a whole batch, and the rest.
  struct work_left {
    double steps = 0;
    std::int64_t evaluations = 0, saves = 0, samples = 0;
  };
  /// A step of a share of a whole batch and so many tokens that took so many seconds. `computing`:
  /// of these, those that each rank did not wait for others; empty if there is one rank.
  void step(step_report& r, double share, double tokens, double seconds, const work_left& left,
            std::span<const double> computing = {}) {
    if (!tells_) return;
    if (r.learned == 0 && ++empty_ == 1 && !loop_.bench)
      note(
          fmt::format("step {}/{} has no token to learn: it is counted and changes nothing, and "
                      "so it is with any other like it",
                      r.step, loop_.steps));
    if (++steps_ > 1) profiled_seconds_ += seconds;
    pace_.step(seconds / share);
    if (loop_.bench) {
      if (steps_ > loop_.warmup) times_.push_back(seconds);
      last_ = r;
    }
    r.tokens = tokens;
    r.tokens_per_second = tokens / (share * pace_.seconds_a_step());
    const double now = monotonic_seconds();
    // Steps lie between two measurements, which together take less than a hundredth of the time.
    // The first step is not typical.
    if (!loop_.bench && (steps_ == 2 || (steps_ > 2 && now - measured_at_ > seconds_between)))
      measure_ceiling();
    r.ceiling_share = ceiling_.share_of(flops_ / pace_.seconds_a_step());
    r.step_seconds = share * pace_.seconds_a_step();
    r.mfu = mfu_of(pace_.seconds_a_step());
    if (r.mfu > 1 && !low_peak_told_ && !loop_.bench) {
      low_peak_told_ = true;
      note(fmt::format(
          "report_request::peak_tflops {} is too low: the model alone needs {:.1f}% of it, and no "
          "processor does more than its peak",
          asked_.peak_tflops, 100 * r.mfu));
    }
    if (now - memory_read_at_ > 0.5) {
      memory_ = process_memory().resident;
      memory_read_at_ = now;
    }
    r.memory = memory_;
    r.seconds_left = pace_.seconds_of(left.steps, left.evaluations, left.saves, left.samples);
    const auto write = [&](std::initializer_list<metric> of_ranks) {
      const double of_ceiling = ceiling_.share_of(share * flops_ / seconds);
      const auto of_learned = [&](const char* name, double x) {
        return r.learned > 0 ? metric(name, x) : metric(name, nullptr);
      };
      metrics_->write({{"step", r.step},
                       of_learned("loss", r.loss),
                       {"lr", r.lr},
                       of_learned("grad_norm", r.grad_norm),
                       {"tokens", static_cast<std::int64_t>(tokens)},
                       {"learned_tokens", static_cast<std::int64_t>(r.learned)},
                       {"step_ms", seconds * 1e3},
                       {"data_ms", r.data_seconds * 1e3},
                       of_ceiling > 0 ? metric("product_ceiling_share", of_ceiling)
                                      : metric("product_ceiling_share", nullptr),
                       {"memory", static_cast<std::int64_t>(memory_)},
                       {"tokens_per_s", tokens / seconds},
                       {"consumed_tokens", r.consumed_tokens},
                       r.mfu > 0 ? metric("mfu", mfu_of(seconds / share)) : metric("mfu", nullptr),
                       time_of_line()},
                      of_ranks);
    };
    if (computing.empty()) {
      if (metrics_) write({});
    } else {
      const rank_speeds::slowest of_step = speeds_.step(computing), of_line = speeds_.of_interval();
      if (metrics_)
        write({{"slowest_rank", of_step.rank},
               {"slowest_compute_ms", of_step.seconds * 1e3},
               {"compute_ms", of_step.others * 1e3}});
      r.slowest_rank = of_line.rank, r.slower_by = of_line.longer();
    }
    if (!loop_.bench && progress_.show(r)) speeds_.begin();
    if (!computing.empty()) tell_straggler();
  }

  /// `again`: the run before has told of this evaluation.
  void evaluation(std::int64_t step, const loss_sum& total, bool again) {
    const double loss = total.mean(), tokens = total.count;
    if (tokens == 0)
      return note(
          fmt::format("step {}/{} | no validation loss: none of the samples of this "
                      "evaluation has a token to learn",
                      step, loop_.steps));
    if (tells_)
      progress_.note(bounded_text<192>().append(
          "step {}/{} | validation loss: {:.4f} | perplexity: {:.3f} | {:.0f} {}", step,
          loop_.steps, loss, perplexity(loss), tokens, tokens_text()));
    if (metrics_ && (steps_ > 0 || (!again && step < loop_.steps)))
      metrics_->write({{"step", step},
                       {"validation_loss", loss},
                       {"perplexity", perplexity(loss)},
                       {"validation_tokens", static_cast<std::int64_t>(tokens)},
                       time_of_line()});
  }
  /// Of one of several sets.
  void evaluation_of(const std::string& name, std::int64_t step, const loss_sum& total) {
    if (total.count == 0)
      return note(
          fmt::format("step {}/{} | no validation loss of {}: none of its samples in this "
                      "evaluation has a token to learn",
                      step, loop_.steps, name));
    note(fmt::format("step {}/{} | validation loss of {}: {:.4f} | {:.0f} {}", step, loop_.steps,
                     name, total.mean(), total.count, tokens_text()));
    if (metrics_)
      metrics_->write({{"step", step},
                       {"set", std::string_view(name)},
                       {"validation_loss", total.mean()},
                       {"validation_tokens", static_cast<std::int64_t>(total.count)},
                       time_of_line()});
  }
  void test_of(const std::string& name, std::int64_t step, const loss_sum& total) {
    note(fmt::format("step {}/{} | test loss of {}: {:.4f} | {:.0f} {}", step, loop_.steps, name,
                     total.mean(), total.count, tokens_text()));
    if (metrics_)
      metrics_->write({{"step", step},
                       {"set", std::string_view(name)},
                       {"test_loss", total.mean()},
                       {"test_tokens", static_cast<std::int64_t>(total.count)},
                       time_of_line()});
  }
  void test(std::int64_t step, const loss_sum& total) {
    note(fmt::format("step {}/{} | test loss: {:.4f} | {:.0f} {}", step, loop_.steps, total.mean(),
                     total.count, tokens_text()));
    if (metrics_)
      metrics_->write({{"step", step},
                       {"test_loss", total.mean()},
                       {"test_tokens", static_cast<std::int64_t>(total.count)},
                       time_of_line()});
  }
  void sample(std::int64_t step, const std::string& text) {
    if (tells_)
      progress_.note(
          fmt::format("step {}/{} | sample: {}", step, loop_.steps, nlohmann::json(text).dump()));
    if (metrics_ && steps_ > 0) metrics_->write({{"step", step}, {"sample", text}, time_of_line()});
  }
  void paused(pace::pause what, double seconds) { pace_.paused(what, seconds); }

  /// Draws the curve of the whole run, also of its steps before this process. A second call does
  /// nothing.
  void draw_curve() {
    const bool told = std::exchange(curve_told_, true);
    if (!tells_ || told || !asked_.curve) return;
    const auto &training = losses_.history.points(), &validation = losses_.validation.points();
    if (training.empty() && validation.empty()) return;
    curve_options c;
    c.title = p_.name;
    write_text_file(*asked_.curve, loss_curve(training, validation, c));
  }

  /// The trace of so many steps.
  void trace(const std::string& text, int steps) {
    write_text_file(*asked_.trace, text);
    note(fmt::format("the trace of {} step{} is in {}", steps, steps == 1 ? "" : "s",
                     *asked_.trace));
  }

  /// The end of a run whose curve is drawn: `steps` of this process, in so many seconds. `empty`:
  /// of these, those without a token to learn.
  void finish(std::int64_t steps, std::int64_t empty, double seconds) {
    if (!tells_) return;
    progress_.finish();
    print_profile();
    if (loop_.bench) print(bench_line());
    else
      print_line(fmt::format(
          "{} step{} in {}{}", steps, steps == 1 ? "" : "s", duration_text(seconds).view(),
          empty == 0 ? "" : fmt::format(", {} of which had no token to learn", empty)));
  }

  /// Makes a report of a run that ends for a reason of its own, which stays the reason. Returns
  /// what to add to that.
  template <class Report> static std::string despite(const Report& report) {
    try {
      report();
      return "";
    } catch (const error& e) {
      return fmt::format("; besides, {}", e.what());
    } catch (const std::bad_alloc&) {
      return "; besides, there was no memory for a report";
    }
  }
  /// Makes the reports of a run that ends for a reason of its own, which stays the reason. Returns
  /// what to add to that.
  std::string made() {
    if (!tells_) return "";
    std::string lost = despite([&] { draw_curve(); });
    progress_.finish();
    return lost += despite([&] { print_profile(); });
  }
  /// Makes the same reports where the reason is a step that is no use.
  std::string made_of_failed(const step_report& r) {
    std::string lost;
    if (metrics_ && r.step > 0)
      lost += despite([&] {
        metrics_->write({{"step", r.step},
                         {"loss", r.loss},
                         {"lr", r.lr},
                         {"grad_norm", r.grad_norm},
                         time_of_line()});
      });
    return lost += made();
  }

private:
  static metric time_of_line() { return {"time", wall_seconds()}; }
  const char* tokens_text() const { return masked_ ? "tokens that are learned" : "tokens"; }

  /// Operations that the model needs of one rank in a step: a mean, for stages have more or less.
  double needed_flops() const {
    const int stages = p_.numbers.ranks.pp;
    double sum = 0;
    for (int stage = 0; stage < stages; ++stage)
      sum += static_cast<double>(model_flops(p_, loop_.micro_batches(), stage));
    return sum / stages;
  }
  /// The share of the stated peak; 0 if none is stated.
  double mfu_of(double seconds) const {
    const double peak = 1e12 * asked_.peak_tflops;
    return peak > 0 ? needed_flops_ / (seconds * peak) : 0;
  }

  /// The profile is of the steps of this process.
  void print_profile() {
    if (!asked_.profile) return;
    if (steps_ > 1) {
      measure_ceiling();
      return print(profile_.table(profiled_seconds_, ceiling_));
    }
    print_line(
        asked_.spelled("report_request::profile measured nothing: it leaves out the first step, "
                       "which prepares much "
                       "that others find, and there was no other"));
  }

  void tell_straggler() {
    const rank_speeds::slowest slow = speeds_.straggler();
    if (slow.rank >= 0 && !loop_.bench)
      note(
          fmt::format("{} has computed {:.0f}% longer in {} steps than the others that have as "
                      "much to do, and all wait for it: see what else its cores do",
                      detail::rank_text(ranks_, slow.rank), 100 * slow.longer(),
                      rank_speeds::steps_looked_at * rank_speeds::times_in_a_row));
  }
  /// Ranks of a stage have the same to compute.
  static std::vector<int> stages_of(const mesh& m) {
    std::vector<int> stages(static_cast<std::size_t>(ranks_of(m)));
    for (int r = 0; r < ranks_of(m); ++r)
      stages[static_cast<std::size_t>(r)] = coordinates_of(m, r)[static_cast<unsigned>(axis::pp)];
    return stages;
  }

  void measure_ceiling() {
    ceiling_.measured(speed_->measure());
    measured_at_ = monotonic_seconds();
  }

  std::string bench_line() {
    measure_ceiling();
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    const double median = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    const auto tokens = static_cast<double>(loop_.batches.last * p_.numbers.batch.sequence);
    const double of_ceiling = ceiling_.share_of(flops_ / median);
    return json_line(
        {{"program", "megacpp"},
         {"preset", p_.name},
         {"precision", name_of(p_.numbers.precision.weight)},
         {"products", device_.products().describe(p_.numbers.precision.weight)},
         {"attention",
          device_.attention() == nullptr ? "by tiles" : device_.attention()->describe()},
         {"batch", loop_.batches.last},
         {"sequence", p_.numbers.batch.sequence},
         {"parameters", p_.parameters},
         {"threads", device_.threads()},
         {"device", device_.name().empty() ? "cpu" : device_.name()},
         {"steps", n},
         {"warmup", loop_.warmup},
         {"median_ms", json_number(median * 1e3)},
         {"min_ms", json_number(sorted.front() * 1e3)},
         {"max_ms", json_number(sorted.back() * 1e3)},
         {"tokens_per_s", json_number(tokens / median)},
         {"mfu", mfu_of(median) > 0 ? json_number(mfu_of(median)) : json_output(nullptr)},
         {"product_gflops", json_number(ceiling_.behind() * 1e-9)},
         {"product_ceiling_share", of_ceiling > 0 ? json_number(of_ceiling) : json_output(nullptr)},
         {"loss", json_number(last_.loss)},
         {"peak_rss_bytes", process_memory().peak},
         {"planned_bytes", planned_bytes_},
         {"device_memory", device_memory()}});
  }
  /// What the device had given before this run reserved anything, and what the run has taken.
  json_output device_memory() const {
    const std::optional<memory_taken> m = device_.taken();
    if (!m) return nullptr;
    return {{"before_bytes", m->before}, {"taken_bytes", m->now - m->before}};
  }

  bool tells_;
  mesh ranks_;
  rank_speeds speeds_;
  const program_view& p_;
  const report_request& asked_;
  const loop_request& loop_;
  device& device_;
  const run_losses& losses_;
  mc::profile profile_;
  double profiled_seconds_ = 0;
  progress progress_;
  pace pace_;
  std::optional<metrics_file> metrics_;
  std::int64_t steps_ = 0; ///< told
  std::int64_t empty_ = 0; ///< of these, those without a token to learn
  bool curve_told_ = false, low_peak_told_ = false;
  std::vector<double> times_;
  step_report last_;
  static constexpr double seconds_between = 30; ///< of measurements of the ceiling
  std::int64_t planned_bytes_ = 0;              ///< of the device
  double flops_ = 0;        ///< that a rank of the first stage computes in a whole step
  double needed_flops_ = 0; ///< that the model needs of one rank
  bool masked_ = false;     ///< some tokens are not learned
  std::optional<product_speed> speed_;
  speed_ceiling ceiling_;
  double measured_at_ = 0;
  double memory_read_at_ = -1;
  std::uint64_t memory_ = 0;
};

} // namespace mc
