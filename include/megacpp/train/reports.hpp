// The reports of a training run: lines of progress, metrics, the curve, the profile, and the times
// of steps that are measured.
#pragma once

#include <megacpp/inspect/measured_step.hpp>
#include <megacpp/inspect/profile.hpp>
#include <megacpp/inspect/speed_gauge.hpp>
#include <megacpp/inspect/step_benchmark.hpp>
#include <megacpp/inspect/timeline.hpp>
#include <megacpp/inspect/trained.hpp>
#include <megacpp/observe/curve.hpp>
#include <megacpp/observe/json_lines.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/observe/speeds.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/losses.hpp>
#include <megacpp/train/evaluation.hpp>
#include <megacpp/train/observers.hpp>

#include <chrono>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The run that is reported on. `losses` are those of all its steps, also of earlier processes.
struct reported_run {
  const program_view& program;
  device& on;
  const report_request& asked;
  const loop_request& loop;
  const run_losses& losses;
};

/// Makes all reports of a run, on its first rank; on other ranks each function does nothing. Memory
/// is reserved before the first step, so that a report on a step allocates nothing.
class training_reports {
public:
  /// All that `run` refers to must outlive the reports.
  training_reports(const reported_run& run, const communicator& rank)
      : tells_(rank.rank() == 0),
        ranks_(rank.ranks()),
        run_(run),
        progress_(run.asked.log_interval),
        speeds_(stages_of(ranks_)),
        profile_(run.program) {}

  /// Opens the metrics file. A file that is created here is removed if the run does not begin.
  /// Throws mc::error.
  void open_metrics() {
    if (tells_ && run_.asked.metrics) metrics_ = std::make_unique<json_lines>(*run_.asked.metrics);
  }
  /// Empties the metrics file, or goes on behind the lines of the process before. Throws
  /// mc::error.
  void begin_metrics(bool goes_on) {
    if (metrics_ == nullptr) return;
    metrics_->begin(goes_on);
    observers_.add([&] { return std::move(metrics_); }, [this](const std::string& s) { note(s); });
  }
  /// Reserves what reports on steps need, and measures the speed of products for the first time.
  /// The session has reserved `planned`.
  void prepare(const memory_items& planned) {
    if (!tells_) return;
    const std::int64_t bytes = planned.total() - planned.mirrors +
                               product_speed::bytes_of(run_.program.numbers.precision.weight);
    if (run_.loop.bench) benchmark_.emplace(run_.program, run_.on, run_.loop, bytes);
    gauge_.emplace(run_.program, run_.on, run_.loop.micro_batches(), run_.asked.peak_tflops);
  }

  /// Tells what runs where. Ranks exchange what devices hold on a `way` (communicator::way).
  void introduce(std::int64_t planned_bytes, std::string_view way) {
    if (!tells_) return;
    const std::int64_t micro_batches = run_.loop.micro_batches();
    const program_view& p = run_.program;
    device& on = run_.on;
    const std::string name = on.name();
    const int ranks = ranks_of(ranks_);
    note(fmt::format(
        "{}: {} parameters, {}, {}micro-batch {} x {} tokens, {}{} micro-batch{} a step, {} "
        "thread{}, {}{}{}{}, {:.1f} GF/s, {} planned",
        p.name, count_text(static_cast<double>(p.parameters)).view(),
        name_of(p.numbers.precision.weight),
        ranks == 1    ? std::string()
        : way.empty() ? fmt::format("{} ranks, each ", ranks)
                      : fmt::format("{} ranks that exchange {}, each ", ranks, way),
        p.numbers.batch.micro, p.numbers.batch.sequence,
        run_.loop.batches.grows()
            ? fmt::format("{} to ", run_.loop.batches.start / run_.loop.sequences_of_all_replicas)
            : "",
        micro_batches, micro_batches == 1 ? "" : "es", on.threads(), on.threads() == 1 ? "" : "s",
        name, name.empty() ? "" : ", ", on.products().describe(p.numbers.precision.weight),
        on.attention() == nullptr ? "" : ", attention " + on.attention()->describe(),
        gauge_->ceiling().behind() * 1e-9,
        bytes_text(static_cast<std::uint64_t>(planned_bytes)).view()));
    for (const std::string& line : trained_lines(p)) note(line);
  }
  /// Starts the observers of the run. Throws mc::error(exit_code::memory).
  void start_observers(const nlohmann::json& flags, std::int64_t first_step,
                       std::int64_t sequences) {
    if (!tells_ || benchmark_) return;
    told_.sequences = sequences;
    start_observers_of(observers_, run_.asked, environment(),
                       [this](const std::string& line) { note(line); },
                       {.program = run_.program.name,
                        .first_step = first_step,
                        .steps = run_.loop.steps,
                        .ranks = ranks_of(ranks_),
                        .parameters = run_.program.parameters,
                        .time = wall_seconds(),
                        .values = observed_values(flags)});
  }
  /// Prints a sentence, which may name members of requests.
  void note(std::string_view line) {
    if (tells_) progress_.note(run_.asked.spelled(std::string(line)));
  }
  /// Tells over which tokens losses are means. `what` names the tokens that are not learned; "" is
  /// none.
  void tell_unlearned(std::string_view what) {
    if (what.empty()) return;
    told_.masked = true;
    note(fmt::format("losses are means over the tokens that are learned, which are all but {}",
                     what));
  }

  /// Returns the clock for the nodes of the next step, or nullptr. The first step is not measured,
  /// because it prepares what later steps find ready.
  step_clock* clock() {
    return tells_ && run_.asked.profile && told_.steps > 0 ? &profile_ : nullptr;
  }

  /// Reports on a step. Throws mc::error.
  void step(measured_step s) {
    if (!tells_) return;
    step_report& r = s.report;
    if (r.learned == 0 && ++told_.empty == 1 && !benchmark_)
      note(
          fmt::format("step {}/{} has no token to learn: it is counted and changes nothing, and "
                      "so it is with any other like it",
                      r.step, run_.loop.steps));
    if (++told_.steps > 1) told_.profiled_seconds += s.seconds;
    told_.sequences = s.consumed_sequences;
    pace_.step(s.seconds / s.fraction);
    if (benchmark_) benchmark_->add(told_.steps, s.seconds, r.loss);
    add_speed(s);
    r.seconds_left =
        pace_.seconds_of(s.steps_left, s.evaluations_left, s.saves_left, s.samples_left);
    rank_speeds::slowest of_step;
    if (!s.computing.empty()) {
      of_step = speeds_.step(s.computing);
      const rank_speeds::slowest of_line = speeds_.of_interval();
      r.slowest_rank = of_line.rank, r.slower_by = of_line.longer();
    }
    if (!observers_.empty()) observe(observed_of(s, of_step, *gauge_));
    if (!benchmark_ && progress_.show(r)) speeds_.begin();
    observers_.each_news([this](const std::string& what) { progress_.note(what); });
    if (!s.computing.empty()) tell_straggler();
  }

  /// Reports the loss on all validation data. `again`: the process before has reported it.
  void evaluation(std::int64_t step, const loss_sum& total, bool again) {
    const double loss = total.mean(), tokens = total.count;
    if (tokens == 0)
      return note(
          fmt::format("step {}/{} | no validation loss: none of the samples of this "
                      "evaluation has a token to learn",
                      step, run_.loop.steps));
    if (tells_)
      progress_.note(bounded_text<192>().append(
          "step {}/{} | validation loss: {:.4f} | perplexity: {:.3f} | {:.0f} {}", step,
          run_.loop.steps, loss, perplexity(loss), tokens, tokens_text()));
    if (told_.steps == 0 && (again || step == run_.loop.steps)) return;
    observe_loss(false, "", step, total);
  }
  /// Reports the loss on one of several validation sets.
  void evaluation_of(const std::string& name, std::int64_t step, const loss_sum& total) {
    if (total.count == 0)
      return note(
          fmt::format("step {}/{} | no validation loss of {}: none of its samples in this "
                      "evaluation has a token to learn",
                      step, run_.loop.steps, name));
    tell_loss(false, name, step, total);
  }
  /// Reports the loss on a test set, or on all of them together, which have no name.
  void test(std::int64_t step, const loss_sum& total, const std::string& name = "") {
    tell_loss(true, name, step, total);
  }
  void sample(std::int64_t step, const std::string& text) {
    if (tells_)
      progress_.note(fmt::format("step {}/{} | sample: {}", step, run_.loop.steps,
                                 nlohmann::json(text).dump()));
    if (tells_ && told_.steps > 0) observe(observed_text{.step = step, .text = text});
  }
  /// Reports a state that was saved in so many seconds.
  void saved(std::int64_t step, const std::string& folder, double seconds) {
    if (!tells_) return;
    paused(pace::save, seconds);
    observe(observed_save{.step = step, .seconds = seconds, .folder = folder});
    note(fmt::format("step {}/{} | saved to {}", step, run_.loop.steps, folder));
  }
  /// Adds seconds in which no step was taken, so that the time that is left can be told.
  void paused(pace::pause what, double seconds) { pace_.paused(what, seconds); }

  /// Draws the curve of all steps of the run. A second call does nothing.
  void draw_curve() {
    const bool drawn = std::exchange(told_.curve, true);
    if (!tells_ || drawn || !run_.asked.curve) return;
    const auto &training = run_.losses.history.points(),
               &validation = run_.losses.validation.points();
    if (training.empty() && validation.empty()) return;
    curve_options c;
    c.title = run_.program.name;
    write_text_file(*run_.asked.curve, loss_curve(training, validation, c));
  }
  /// Writes the text of a trace of `steps` steps to its file.
  void trace(const std::string& text, int steps) {
    write_text_file(*run_.asked.trace, text);
    note(fmt::format("the trace of {} step{} is in {}", steps, steps == 1 ? "" : "s",
                     *run_.asked.trace));
  }

  /// Reports the end of a run whose curve is drawn. This process took so many steps in so many
  /// seconds; `empty` of the steps had no token to learn.
  void finish(std::int64_t steps, std::int64_t empty, double seconds) {
    if (!tells_) return;
    progress_.finish();
    print_profile();
    if (benchmark_) {
      gauge_->measure();
      return print(benchmark_->line(*gauge_));
    }
    print_line(fmt::format(
        "{} step{} in {}{}", steps, steps == 1 ? "" : "s", duration_text(seconds).view(),
        empty == 0 ? "" : fmt::format(", {} of which had no token to learn", empty)));
  }

  /// Ends the observers. `lost`: another rank has failed, and the run does not wait for them. A
  /// second call does nothing.
  void end_observers(observed_end ended, bool lost = false) {
    if (!tells_) return;
    static_cast<void>(despite([&] {
      ended.time = wall_seconds(), ended.error = run_.asked.spelled(ended.error);
      observers_.close(ended, lost, [this](const std::string& what) { progress_.note(what); });
    }));
  }
  /// Makes a report of a run that an error ends. A further error does not replace that one: it is
  /// returned as words to add to its sentence.
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
  /// Makes the last reports of a run that an error ends; returns as despite().
  std::string make_last(const observed_end& ended) {
    if (!tells_) return "";
    std::string lost = despite([&] { draw_curve(); });
    progress_.finish();
    end_observers(ended);
    return lost += despite([&] { print_profile(); });
  }
  /// Makes the last reports, where a step with numbers that are not finite is the error.
  std::string make_last_of_failed(const step_report& r, const std::string& error) {
    std::string lost;
    if (tells_ && r.step > 0)
      lost += despite([&] {
        observe(
            observed_failure{.step = r.step, .loss = r.loss, .grad_norm = r.grad_norm, .lr = r.lr});
      });
    return lost += make_last({.step = r.step, .error = error});
  }

private:
  /// A record of what was reported so far.
  struct reported {
    std::int64_t steps = 0;      ///< of this process
    std::int64_t empty = 0;      ///< steps without a token to learn
    std::int64_t sequences = 0;  ///< of the run so far
    double profiled_seconds = 0; ///< of the steps that the profile shows
    double memory_read_at = -1;
    std::uint64_t memory = 0; ///< resident bytes
    bool masked = false;      ///< some tokens are not learned
    bool curve = false, low_peak = false;
  };

  const char* tokens_text() const { return told_.masked ? "tokens that are learned" : "tokens"; }

  /// Adds to a step's report how fast steps are, and the memory that the process has.
  void add_speed(measured_step& s) {
    step_report& r = s.report;
    const double a_step = pace_.seconds_a_step(), now = monotonic_seconds();
    r.tokens = s.tokens;
    r.tokens_per_second = s.tokens / (s.fraction * a_step);
    // The first step is not typical. Later ones lie between two measurements.
    if (!benchmark_ && told_.steps == 2) gauge_->measure();
    if (!benchmark_ && told_.steps > 2) gauge_->measure_at(now);
    r.ceiling_fraction = gauge_->fraction_of_ceiling(a_step);
    r.step_seconds = s.fraction * a_step;
    r.mfu = gauge_->mfu(a_step);
    if (r.mfu > 1 && !benchmark_ && !std::exchange(told_.low_peak, true))
      note(fmt::format(
          "report_request::peak_tflops {} is too low: the model alone needs {:.1f}% of it, and no "
          "processor does more than its peak",
          run_.asked.peak_tflops, 100 * r.mfu));
    if (now - told_.memory_read_at > 0.5) {
      told_.memory = process_memory().resident;
      told_.memory_read_at = now;
    }
    r.memory = told_.memory;
  }

  /// Hands what happened to the observers.
  template <class Seen> void observe(Seen x) {
    x.time = wall_seconds();
    observers_.tell(std::move(x));
  }
  void observe_loss(bool of_test, const std::string& set, std::int64_t step,
                    const loss_sum& total) {
    if (tells_)
      observe(observed_evaluation{.step = step,
                                  .of_test = of_test,
                                  .set = set,
                                  .loss = total.mean(),
                                  .tokens = static_cast<std::int64_t>(total.count),
                                  .consumed_sequences = told_.sequences});
  }

  /// Reports a loss on validation data or test data, or on one set of them.
  void tell_loss(bool of_test, const std::string& set, std::int64_t step, const loss_sum& total) {
    const char* const kind = of_test ? "test" : "validation";
    observe_loss(of_test, set, step, total);
    const std::string of = set.empty() ? "" : " of " + set;
    note(fmt::format("step {}/{} | {} loss{}: {:.4f} | {:.0f} {}", step, run_.loop.steps, kind, of,
                     total.mean(), total.count, tokens_text()));
  }

  void print_profile() {
    if (!run_.asked.profile) return;
    if (told_.steps > 1) {
      gauge_->measure();
      return print(profile_.table(told_.profiled_seconds, gauge_->ceiling()));
    }
    print_line(run_.asked.spelled(
        "report_request::profile measured nothing: it leaves out the first step, which prepares "
        "much that others find, and there was no other"));
  }

  void tell_straggler() {
    const rank_speeds::slowest slow = speeds_.straggler();
    if (slow.rank >= 0 && !benchmark_)
      note(
          fmt::format("{} has computed {:.0f}% longer in {} steps than the others that have as "
                      "much to do, and all wait for it: see what else its cores do",
                      detail::rank_text(ranks_, slow.rank), 100 * slow.longer(),
                      rank_speeds::steps_looked_at * rank_speeds::times_in_a_row));
  }
  /// Returns each rank's pipeline stage: ranks of one stage have the same to compute.
  static std::vector<int> stages_of(const mesh& m) {
    std::vector<int> stages(static_cast<std::size_t>(ranks_of(m)));
    for (int r = 0; r < ranks_of(m); ++r)
      stages[static_cast<std::size_t>(r)] = coordinates_of(m, r)[static_cast<unsigned>(axis::pp)];
    return stages;
  }

  bool tells_; ///< this is the first rank
  mesh ranks_;
  reported_run run_;
  progress progress_;
  pace pace_;
  rank_speeds speeds_;
  mc::profile profile_;
  std::unique_ptr<json_lines> metrics_; ///< until it is among the observers
  observers observers_;
  std::optional<speed_gauge> gauge_;        ///< on the first rank
  std::optional<step_benchmark> benchmark_; ///< in place of lines of progress, where asked for
  reported told_;
};

} // namespace mc
