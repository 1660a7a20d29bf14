// The training loop.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/open_data.hpp>
#include <megacpp/inspect/untrained_positions.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/utf8.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/start.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/train/batch_reader.hpp>
#include <megacpp/train/early_end.hpp>
#include <megacpp/train/ranks.hpp>
#include <megacpp/train/report_files.hpp>
#include <megacpp/train/reports.hpp>
#include <megacpp/train/sample_writer.hpp>
#include <megacpp/train/saver.hpp>
#include <megacpp/train/step_trace.hpp>
#include <megacpp/train/unlearned_factors.hpp>
#include <megacpp/train/validation.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace mc {

/// The program, the model and the data that a run begins with.
struct run_inputs {
  const program_view& program;          ///< of all ranks
  std::optional<found_model> from = {}; ///< none: a new model
  bool goes_on = false;                 ///< `from` is the state of a run, which this one continues
  std::shared_ptr<const run_data> data = {};

  std::int64_t first_step() const {
    return goes_on ? from->state->state().field<std::int64_t>("step") : 0;
  }
};

/// Trains a program on its data. Each rank of the run has a trainer, and all do the same at the
/// same time: their steps, evaluations and saves come in one order. What a single rank finds out,
/// such as a signal, is agreed on between steps. The first rank reports and saves. The constructor
/// reserves memory and checks files; after it the loop allocates nothing but what a save or a text
/// needs.
class trainer {
public:
  /// `start`: what the first rank starts from (find_start), or another rank (for_another_rank).
  /// `make_samples` makes the writer of texts between steps, on one rank. `of`: this rank's two
  /// communicators. The references must stay valid. Throws mc::error.
  trainer(const program_view& p, training_request request, device& on, training_start start = {},
          const make_sample_writer& make_samples = {}, const planes& of = self::both())
      : request_(std::move(request)),
        ranks_(of, on),
        inputs_{p},
        end_(ranks_.all(), request_.loop.exit_minutes) {
    agreement& all = ranks_.all();
    const bool leads_process = all.first() || all.separate_processes();
    loop_request& loop = request_.loop;

    // The first rank makes the checks of this section alone, so that a refusal is told once.
    all.enter_after_first();
    require_consistent();
    open(on, start);
    reports_.emplace(reported_run{p, on, request_.reports, loop, progress_.losses}, hosts());
    saver_.emplace(ranks_, p, request_, *reports_, inputs_.data, on, folder_of_start());
    validation_.emplace(request_.data, loop, *inputs_.data, p.numbers.batch.sequence);
    // Signals are taken before there is a folder, which a run that they end would leave behind.
    if (leads_process && loop.takes_signals) end_.take_signals();
    if (all.first()) check_outputs(std::move(start.root));
    all.let_others_enter();

    if (all.separate_processes()) require_same_start();
    session_.emplace(p, on, purpose::training, ranks_.steps());
    reports_->open_metrics();
    validation_->prepare(*session_, p, hosts(), all);
    // Files that stay open are open by now, as they will be in the last save.
    saver_->rehearse(*session_, inputs_.first_step(),
                     validation_->longest(std::max(inputs_.first_step() + 1, loop.steps)),
                     validation_->evaluates());
    load_weights_and_moments();
    saver_->watch_data();
    if (make_samples && loop.sample_interval > 0)
      samples_ = make_samples(p, request_, on, session_->weights(), *inputs_.data);
    trace_.prepare(request_.reports, p, ranks_, static_cast<int>(loop.micro_batches()), step(),
                   loop.steps);
    reports_->prepare(session_->planned());
    progress_.samples_left = loop.batches.samples_of(loop.steps - step(), progress_.at.samples);
    reader_.emplace(p, *inputs_.data->training, loop.batches, hosts());
  }

  /// Takes the steps that are left. Throws mc::error: nonfinite, data, output, memory, or
  /// interrupted once a signal has ended the run.
  void run() {
    agree_on_end();
    if (is_left()) reader_->begin(progress_.at.samples);
    introduce();
    const stopwatch clock;
    const run_position begun = progress_.at;
    double seconds = 0;
    try {
      take_steps();
      reports_->draw_curve();
      seconds = clock.seconds();
      end_taking_signals();
    } catch (const error& e) {
      if (e.code() == exit_code::ranks) { // another rank says why
        reports_->end_observers({.step = step(), .error = e.what()}, true);
        throw;
      }
      const bool keeps_nothing =
          e.code() == exit_code::nonfinite || e.code() == exit_code::interrupted;
      const std::string kept = keeps_nothing ? "" : rescue(false, e.what());
      if (kept.empty()) throw;
      throw error(e.code(), e.what() + kept);
    } catch (const std::bad_alloc&) {
      throw error(exit_code::memory,
                  fmt::format("memory ran out after step {} of {}{}; use a "
                              "machine with more, or end other programs on it",
                              step(), request_.loop.steps, rescue(true, "memory ran out")));
    }
    try {
      reports_->finish(step() - begun.step, progress_.at.empty - begun.empty, seconds);
    } catch (const error& e) {
      // A reader that closed the output has lost lines, and has not ended the run.
      throw error(e.code(), fmt::format("{}; the run went on to its end{}", e.what(),
                                        saver_->what_is_saved(progress_)));
    }
  }

private:
  communicator& hosts() { return ranks_.hosts(); }
  std::int64_t step() const { return progress_.at.step; }
  /// Tells whether there are steps to take.
  bool is_left() const { return step() < request_.loop.steps && !no_better_; }
  std::string folder_of_start() const { return inputs_.from ? inputs_.from->folder.path() : ""; }

  void require_consistent() {
    const std::int64_t sequences =
        std::int64_t{inputs_.program.numbers.batch.micro} * hosts().ranks().of(axis::dp);
    if (const std::string why = contradiction(request_.loop, sequences); !why.empty())
      throw error(exit_code::usage, why);
  }
  /// Opens the data, which the ranks of a process share. Epochs of them say how many steps the run
  /// has.
  void open(device& on, training_start& start) {
    inputs_.from = std::move(start.from);
    inputs_.goes_on = inputs_.from && inputs_.from->state && !start.weights_alone;
    if (inputs_.program.numbers.adapter.rank > 0 && !inputs_.from && !request_.loop.bench)
      throw error(exit_code::usage,
                  "an adapter would be trained beside random weights: give the model that it "
                  "adapts by start_request::load, or by start_request::pretrained");
    inputs_.data = start.data([&] {
      return open_training_data(inputs_.program, request_.data, request_.loop,
                                inputs_.from ? &inputs_.from->folder : nullptr,
                                detail::reading_threads(on, hosts()));
    });
    if (inputs_.data->steps) request_.loop = request_.loop.of_steps(*inputs_.data->steps);
  }
  /// Checks what the first rank writes, so that what would fail at the end fails now.
  void check_outputs(std::optional<state_root> root) {
    saver_->claim(std::move(root), inputs_.goes_on ? &*inputs_.from : nullptr,
                  inputs_.first_step());
    if (const std::string& measure = validation_->find_measure();
        saver_->keeps_best() && !measure.empty())
      saver_->require_measure_of_best(measure);
    check_report_files(request_.reports, request_.loop.save, request_.data.named());
    if (request_.reports.trace)
      static_cast<void>(
          traced_steps_of(request_.reports, inputs_.first_step(), request_.loop.steps));
  }
  /// Compares what the processes of a run have opened, each for itself.
  void require_same_start() {
    agreement& all = ranks_.all();
    all.require_same(inputs_.from ? hash_of(*inputs_.from) : 0,
                     "another state or model at start_request::load",
                     "let all of them see the same folder");
    all.require_same(inputs_.data->hash(), "other data", "give all of them the same");
  }
  /// Fills the session with new weights, with those of a model, or with the weights and moments of
  /// the state that the run goes on from.
  void load_weights_and_moments() {
    const loop_request& loop = request_.loop;
    std::optional<found_model>& from = inputs_.from;
    session_->numbers() = loop.numbers;
    if (!from) return session_->weights().initialise(loop.numbers.seed);
    saver_->set_base(load_start(*from, request_.start, inputs_.program, session_->weights(),
                                loop.numbers.seed, hosts()));
    if (inputs_.goes_on) {
      const json_value& state = from->state->state();
      if (ranks_.all().first()) {
        const nlohmann::json& now = saver_->identity_of_data();
        const auto then = state.field<json_value>("data");
        require_same_data(now, then);
        if (std::string line = order_changes(now, then); !line.empty())
          from->changes.push_back(std::move(line));
      }
      progress_.at = load_moments(from->folder, state, inputs_.program, session_->weights());
      saver_->agree_on_saved(step());
      progress_.losses.load(state);
      go_on_counting();
      session_->numbers().step = progress_.at.updates();
      if (loop.bench && loop.steps - step() <= loop.warmup) {
        ranks_.all().wait_for_end();
        throw error(
            exit_code::usage,
            fmt::format(
                "loop_request::bench has no step to measure: {} of loop_request::steps {} are left "
                "and loop_request::warmup is {}; give a larger loop_request::steps",
                std::max<std::int64_t>(0, loop.steps - step()), loop.steps, loop.warmup));
      }
    }
    if (from->base) from->base->close_files();
    for (auto& adapter : from->adapters) adapter.folder.close_files();
    from->folder.close_files();
  }

  /// Prints the first lines of the run, once nothing is left that could be refused.
  void introduce() {
    const loop_request& loop = request_.loop;
    const std::optional<found_model>& from = inputs_.from;
    const bool tells = ranks_.all().first();
    if (tells && inputs_.goes_on)
      for (const std::string& line : from->changes) print_on_the_way(line);
    if (is_left()) reports_->begin_metrics(inputs_.goes_on && step() > 0);
    if (!tells || loop.bench) return;
    reports_->start_observers(request_.kept->shown(saver_->settled()), step(),
                              progress_.at.samples);
    reports_->introduce(session_->planned().total(), ranks_.steps().way());
    const run_data& data = *inputs_.data;
    reports_->note(fmt::format("{}: {}", data.name, data.summary));
    reports_->tell_unlearned(data.unlearned);
    if (data.validation.empty() && !loop.eval_iters && request_.data.kind != data_kind::random)
      reports_->note("nothing is evaluated: " + detail::nothing_to_validate(request_.data));
    saver_->introduce(from);
    if (const auto deadline = end_.wall_deadline(); deadline && is_left())
      reports_->note(
          fmt::format("loop_request::exit_minutes {} ends the run behind the first step "
                      "after {}",
                      *loop.exit_minutes, utc_text(static_cast<std::int64_t>(*deadline))));
    if (!from)
      for (const std::string& line :
           untrained_positions(inputs_.program, inputs_.program.numbers.batch.sequence))
        reports_->note(line);
    if (!inputs_.goes_on) return;
    reports_->note(fmt::format("going on after step {} of {}, at sample {} of the data", step(),
                               from->folder.path(), progress_.at.samples));
    for (const std::string& line :
         request_.kept->derived_changes(from->state->state(), saver_->settled()))
      reports_->note(line);
    if (is_left()) return;
    if (no_better_) return reports_->note("nothing is left to train: " + why_no_better());
    const std::string asked =
        loop.epochs          ? fmt::format("loop_request::epochs {}", *loop.epochs)
        : loop.samples_asked ? fmt::format("loop_request::samples_asked {}", *loop.samples_asked)
                             : fmt::format("loop_request::steps {}", loop.steps);
    reports_->note(fmt::format(
        "nothing is left to train of {}{}: give more to go on", asked,
        loop.epochs || loop.samples_asked ? fmt::format(", which are {} steps", loop.steps) : ""));
  }

  void take_steps() {
    const std::int64_t last = request_.loop.steps;
    const recurrence texts{request_.loop.sample_interval};
    const bool was_over = !is_left();
    // The process before may have ended between a step and its evaluation.
    if (step() > 0 && validation_->is_due(step()) && !progress_.losses.has_validated(step()))
      evaluate();
    while (is_left()) {
      if (!take_step()) interrupt();
      if (progress_.steps_taken == steps_before_factors_learn)
        for (const std::string& line :
             unlearned_factors(inputs_.program, session_->weights(), hosts()))
          reports_->note(line);
      agree_on_end();
      if (step() < last && end_.time_is_up()) return end_in_time();
      if (validation_->is_due(step())) evaluate();
      if (no_better_) break;
      if (texts.is_due(step(), last)) write_sample();
      if (saver_->is_due(step()) || (end_.asks_for_state() && saver_->lacks(step())))
        saver_->save(*session_, progress_);
      if (end_.stops()) interrupt(); // several ranks agree behind the next step
    }
    if (step() >= last || was_over) evaluate();
    test();
    write_sample();
    agree_on_end();
    if (saver_->lacks(step())) saver_->save(*session_, progress_);
    if (no_better_) trace_.write(inputs_.program, ranks_, *reports_);
  }

  /// Takes one optimizer step. Returns false if a signal came before its last micro-batch, on one
  /// rank alone: such a step has changed nothing, and the run that goes on takes it anew.
  bool take_step() {
    const loop_request& loop = request_.loop;
    timeline* const traced = trace_.of(step());
    session_->profile(traced != nullptr ? traced : reports_->clock());
    const stopwatch clock;
    const std::int64_t waited = ranks_.nanoseconds_waited();
    if (traced != nullptr) traced->begin(step() + 1, reports_->clock());
    session_->numbers().learning_rate =
        learning_rate(loop.rates, loop.rates_by_samples ? progress_.at.samples : step());
    const step_batch batch = reader_->next_batch(progress_.at.samples);
    const std::optional<step_result> done =
        session_->step(batch.micro_batches, [&](int m, batch_view& b) {
          if (ranks_.all().alone() && end_.stops()) return false;
          reader_->give(m, b);
          return true;
        });
    if (traced != nullptr) traced->end(done.has_value());
    if (!done) return false;
    measured_step s;
    s.computing = ranks_.tell_computing(
        clock.seconds() - static_cast<double>(ranks_.nanoseconds_waited() - waited) * 1e-9);
    s.report = accept(*done, batch);
    const auto steps_of = [&](std::int64_t samples) {
      return static_cast<double>(samples) / static_cast<double>(loop.batches.last);
    };
    s.fraction = steps_of(batch.size);
    s.sequences = batch.size, s.consumed_sequences = progress_.at.samples;
    s.tokens = static_cast<double>(batch.size * inputs_.program.numbers.batch.sequence);
    s.steps_left = steps_of(progress_.samples_left);
    s.evaluations_left = validation_->times_left(step());
    s.saves_left = saver_->times_left(step());
    if (samples_) s.samples_left = recurrence{loop.sample_interval}.times_from(step(), loop.steps);
    end_.tell([&] {
      s.seconds = clock.seconds();
      reports_->step(s);
    });
    if (trace_.is_complete_after(step()))
      end_.tell([&] { trace_.write(inputs_.program, ranks_, *reports_); });
    return true;
  }
  /// Counts a step that was taken, and returns the report of it. Throws mc::error where its numbers
  /// are not finite.
  step_report accept(const step_result& done, const step_batch& batch) {
    step_report r;
    r.step = step() + 1, r.steps = request_.loop.steps;
    r.loss = done.loss.mean();
    r.lr = session_->numbers().learning_rate;
    r.grad_norm = done.norm;
    r.data_seconds = reader_->seconds_waited();
    r.learned = done.loss.count;
    const bool learns = r.learned > 0;
    if (learns) require_finite(done, r);
    ++progress_.at.step, ++progress_.steps_taken;
    progress_.at.samples = batch.end();
    progress_.samples_left -= batch.size;
    progress_.at.empty += learns ? 0 : 1;
    progress_.losses.last.reset();
    if (learns) progress_.losses.last = r.loss, progress_.losses.history.add(r.step, r.loss);
    r.consumed_tokens = progress_.at.samples * inputs_.program.numbers.batch.sequence;
    return r;
  }
  /// Measures the loss on validation data, and saves the state if it is the best one.
  void evaluate() {
    if (!validation_->evaluates()) return;
    const stopwatch clock;
    session_->profile(nullptr);
    const std::optional<loss_sum> total = validation_->evaluate(step(), end_, *reports_);
    if (!total) return; // a signal came
    if (end_.any_pending()) end_with_pending_error();
    const double loss = total->mean();
    run_losses& losses = progress_.losses;
    const bool again = losses.has_validated(step());
    const auto report = [&] { reports_->evaluation(step(), *total, again); };
    if (total->count == 0) return end_.tell(report);
    if (!std::isfinite(loss)) {
      // The weights are finite: they are kept, and so are all states before them.
      if (saver_->lacks(step()) && session_->whole()) saver_->save(*session_, progress_, true);
      fail(fmt::format("the validation loss of step {} is {}", step(), text_of(loss)), {});
    }
    if (!again) losses.validation.add(step(), loss);
    end_.tell(report);
    losses.validated = {step(), loss, validation_->measure(),
                        static_cast<std::int64_t>(total->count)};
    if (!again) count_evaluation(loss);
    if (saver_->keeps_best()) saver_->save_if_best(*session_, progress_);
    reports_->paused(pace::evaluation, clock.seconds());
  }
  /// Counts evaluations without a lower loss, where so many end the run. All ranks go by the first.
  void count_evaluation(double loss) {
    const std::int64_t limit = request_.loop.stop_after_no_better;
    if (limit == 0) return;
    std::optional<lowest_loss>& lowest = progress_.losses.lowest;
    if (!lowest || loss < lowest->loss) lowest = {loss, step(), 0, limit, validation_->measure()};
    else ++lowest->since;
    no_better_ = ranks_.all().value_of_first(lowest->ends_run());
    if (no_better_) saver_->outdate(); // a state of before this evaluation does not say so
    if (no_better_ && step() < request_.loop.steps)
      reports_->note(fmt::format("step {}/{} | the run ends: {}", step(), request_.loop.steps,
                                 why_no_better()));
  }
  /// Takes up the count of a state whose run measured the same samples.
  void go_on_counting() {
    std::optional<lowest_loss>& lowest = progress_.losses.lowest;
    const std::int64_t limit = request_.loop.stop_after_no_better;
    if (limit == 0 || !lowest) return lowest.reset();
    if (!ranks_.all().value_of_first(lowest->measure == validation_->measure())) {
      inputs_.from->changes.emplace_back(
          "the lowest validation loss so far was measured on other samples than this run measures: "
          "evaluations without a lower one are counted anew");
      return lowest.reset();
    }
    no_better_ = lowest->ends_run() && lowest->since >= limit;
    lowest->limit = limit;
  }
  std::string why_no_better() const {
    const lowest_loss& lowest = *progress_.losses.lowest;
    return fmt::format(
        "{} evaluation{} in a row had no lower loss than {:.4f} of step {}, and "
        "loop_request::stop_after_no_better is {}",
        lowest.since, lowest.since == 1 ? "" : "s", lowest.loss, lowest.step, lowest.limit);
  }
  /// Measures the loss on test data, behind the last step.
  void test() {
    if (!validation_->tests() || end_.stops()) return;
    session_->profile(nullptr);
    const std::optional<loss_sum> total = validation_->test(step(), end_, *reports_);
    if (end_.any_pending()) end_with_pending_error();
    if (total) end_.tell([&] { reports_->test(step(), *total); });
  }

  /// Writes a text of the model as it is, unless a signal ends the run. Throws mc::error.
  void write_sample() {
    if (!samples_ || end_.stops()) return;
    const stopwatch clock;
    const std::string text = as_utf8(samples_->write(end_.signals()));
    if (end_.stops()) return;
    reports_->paused(pace::sample, clock.seconds());
    reports_->sample(step(), text);
  }

  /// Asks all ranks for a reason to end, and ends the run if there is a signal or an error.
  void agree_on_end() {
    if (end_.confer()) end_with_pending_error();
    if (end_.stops()) interrupt();
  }
  [[noreturn]] void end_with_pending_error() {
    if (saver_->lacks(step()) && progress_.worth_saving && session_->whole())
      saver_->save(*session_, progress_);
    end_.throw_pending(); // run() adds what is saved
  }
  void end_in_time() {
    if (saver_->lacks(step())) saver_->save(*session_, progress_);
    trace_.write(inputs_.program, ranks_, *reports_);
    const std::optional<state_root>& root = saver_->root();
    reports_->note(fmt::format("loop_request::exit_minutes {} ends the run after step {} of {}; {}",
                               *request_.loop.exit_minutes, step(), request_.loop.steps,
                               root ? fmt::format("start_request::load {} goes on", root->path())
                                    : "nothing was saved, for there is no loop_request::save"));
  }
  [[noreturn]] void interrupt() {
    const bool begun = progress_.steps_taken > 0 || !saver_->lacks(step());
    if (begun && saver_->lacks(step())) saver_->save(*session_, progress_);
    const std::string name = end_.agree_on_signal();
    const std::string lost =
        training_reports::despite([&] { trace_.write(inputs_.program, ranks_, *reports_); });
    ranks_.all().wait_for_end();
    const std::optional<state_root>& root = saver_->root();
    const std::string kept =
        !root    ? "nothing was saved, for there is no loop_request::save"
        : !begun ? "nothing was saved, for it had not begun"
                 : fmt::format("its state was saved to {}", root->folder_of(step()));
    throw error(exit_code::interrupted,
                fmt::format("{} ended the run after step {} of {}; {}{}{}", name, step(),
                            request_.loop.steps, kept, lost,
                            reports_->make_last({.step = step(), .goes_on = true, .error = name})));
  }
  /// Lets signals end the process again, since nothing is left that they could cut short.
  void end_taking_signals() {
    const stop_signals* const signals = end_.signals();
    if (ranks_.all().first() && signals != nullptr && signals->requested())
      throw error(exit_code::interrupted,
                  fmt::format("{} came at the end of the run, while the loss curve was written: "
                              "it may be cut{}{}",
                              signals->name(), saver_->what_is_saved(progress_),
                              reports_->make_last(
                                  {.step = step(), .error = std::string(signals->name())})));
    reports_->end_observers(
        {.step = step(), .goes_on = step() < request_.loop.steps && !no_better_});
    end_.release_signals();
  }
  /// Saves what can be saved before an error ends the run, and makes its last reports. Returns
  /// words to add to the sentence of the error.
  std::string rescue(bool was_out_of_memory, const char* why) {
    const std::string saved = saver_->rescue(*session_, progress_, was_out_of_memory);
    return saved + reports_->make_last({.step = step(), .error = why});
  }

  static const char* text_of(double nonfinite) {
    return std::isnan(nonfinite) ? "nan" : "infinite";
  }
  /// Throws mc::error(exit_code::nonfinite) for a step whose numbers are not all finite.
  void require_finite(const step_result& done, const step_report& r) {
    if (!std::isfinite(r.loss))
      fail(fmt::format("the loss of step {} is {}{}", r.step, text_of(r.loss),
                       ranks_.whose(done.own_loss)),
           r);
    if (!std::isfinite(r.grad_norm))
      fail(fmt::format("the gradient norm of step {} is {}", r.step, text_of(r.grad_norm)), r);
    if (!done.finite)
      fail(
          fmt::format("step {}, with the learning rate {:.3g} and a gradient norm of {:.3g}, left "
                      "the model unusable: {}",
                      r.step, r.lr, r.grad_norm, ranks_.all().any(session_->weights().nonfinite())),
          r);
  }
  [[noreturn]] void fail(const std::string& what, const step_report& r) {
    progress_.worth_saving = false;
    ranks_.all().wait_for_end();
    const std::string lost = reports_->make_last_of_failed(r, what);
    throw error(exit_code::nonfinite,
                fmt::format("{}{}; a lower schedule::lr, a longer schedule::warmup or a smaller "
                            "run_constants::clip may help{}",
                            what, saver_->what_is_saved(progress_), lost));
  }

  training_request request_; ///< with as many steps as epochs of the data come to
  training_ranks ranks_;
  run_inputs inputs_;
  run_progress progress_;
  std::optional<training_reports> reports_;
  std::optional<saver> saver_;
  std::optional<batch_reader> reader_;
  std::optional<session> session_;
  std::optional<validation> validation_;
  std::unique_ptr<sample_writer> samples_;
  step_trace trace_;
  early_end end_;
  bool no_better_ = false; ///< evaluations without a lower loss end the run, as all ranks know it
};

} // namespace mc
