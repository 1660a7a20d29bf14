// The training loop.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/comm/timed.hpp>
#include <megacpp/inputs/open_data.hpp>
#include <megacpp/inspect/timeline.hpp>
#include <megacpp/inspect/untrained_positions.hpp>
#include <megacpp/io/same_place.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/export.hpp>
#include <megacpp/states/losses.hpp>
#include <megacpp/states/run_tokenizer_files.hpp>
#include <megacpp/states/start.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/train/evaluation.hpp>
#include <megacpp/train/report_files.hpp>
#include <megacpp/train/reports.hpp>
#include <megacpp/train/sample_writer.hpp>
#include <megacpp/train/traced_steps.hpp>

#include <algorithm>
#include <array>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// Trains one program on its data, on one rank, as all others do at the same time: what they do
/// together (steps, evaluations, saves, the end) comes in one order, and what one of them alone
/// knows is agreed upon between steps. The first rank tells and saves. Memory is reserved and files
/// are checked in the constructor; the loop itself allocates nothing but for what a save or a
/// sample needs.
class trainer {
public:
  /// `start`: what prepare_start found, on the first rank; for_another_rank of it on another one.
  /// `samples` makes what writes texts on the way, on one rank. `of`: this rank's two planes.
  trainer(const program_view& p, training_request request, device& on, training_start start = {},
          const make_sample_writer& samples = {}, const planes& of = self::both())
      : p_(p),
        request_(std::move(request)),
        hosts_(of.hosts),
        ranks_(ranks_of(hosts_.ranks()) > 1 ? timed_.emplace(of.ranks, on) : of.ranks),
        all_(hosts_),
        device_(on),
        from_(std::move(start.from)),
        root_(std::move(start.root)),
        data_((all_.before_others(), require_loop(), open_data(start.data))),
        tokenizer_files_(loop_.save ? files_of_run_tokenizer(p, request_.data.tokenizer, *data_,
                                                             from_ ? from_->folder.path() : "")
                                    : std::vector<extra_file>()),
        reports_(p, request_.reports, loop_, on, losses_, hosts_),
        computing_(timed_ ? static_cast<std::size_t>(ranks_of(hosts_.ranks())) : 0) {
    // Before there is a folder that a signal could leave.
    const bool leads = all_.first() || all_.apart();
    if (leads && loop_.takes_signals) signals_.emplace();
    if (all_.first()) {
      prepare_saves();
      check_report_files(request_.reports, loop_.save, request_.data.named());
      find_traced_steps();
    }
    all_.after_first();
    if (all_.apart()) require_same_start();
    session_.emplace(p_, device_, purpose::training, ranks_);
    reports_.open_metrics();
    prepare_evaluation();
    rehearse_save(); // as the last save will be: with every file open that stays open
    prepare_session();
    if (from_) from_->folder.close_files();
    if (loop_.save && looks_at_data()) data_hash_ = data_->hash();
    if (samples && loop_.sample_interval > 0)
      samples_ = samples(p, request_, on, session_->weights(), *data_);
    prepare_trace();
    reports_.prepare(session_->planned());
  }

  /// Throws mc::error: nonfinite, data, output, or interrupted once a signal has ended the run.
  void run() {
    confer();
    if (stopped()) interrupt();
    // Once nothing is left that could be refused.
    if (resumes() && all_.first())
      for (const std::string& line : from_->changes) print_on_the_way(line);
    to_come_ = loop_.batches.samples_of(loop_.steps - at_.step, at_.samples);
    begin_reading();
    if (at_.step < loop_.steps) reports_.begin_metrics(resumes() && at_.step > 0);
    if (!loop_.bench) introduce();
    stopwatch all;
    const std::int64_t first = at_.step, empty = at_.empty;
    try {
      take_steps();
      reports_.draw_curve();
      if (all_.first() && signals_ && signals_->requested())
        throw error(exit_code::interrupted,
                    fmt::format("{} came at the end of the run, while the loss curve was written: "
                                "it may be cut{}{}",
                                signals_->name(), what_is_saved(), reports_.made()));
      signals_.reset(); // nothing is left that a stop would have to save, or would leave half done
    } catch (const error& e) {
      if (e.code() == exit_code::ranks) throw; // another one says why
      const std::string kept = rescue(e.code());
      if (kept.empty()) throw;
      throw error(e.code(), e.what() + kept);
    } catch (const std::bad_alloc&) {
      saving_ = false; // a save that found none has given back what it had
      throw error(
          exit_code::memory,
          fmt::format("memory ran out after step {} of {}{}; use a machine with more, or end "
                      "what else runs on it",
                      at_.step, loop_.steps, rescue(exit_code::memory)));
    }
    try {
      reports_.finish(at_.step - first, at_.empty - empty, all.seconds());
    } catch (const error& e) {
      // Who closed what the run prints has not ended it: lines of progress are lost, and no more.
      throw error(e.code(),
                  fmt::format("{}; the run went on to its end{}", e.what(), what_is_saved()));
    }
  }

private:
  void require_loop() const {
    const std::int64_t at_once = std::int64_t{p_.numbers.batch.micro} * hosts_.ranks().of(axis::dp);
    if (const std::string why = contradiction(loop_, at_once); !why.empty())
      throw error(exit_code::usage, why);
  }
  std::shared_ptr<const run_data> open_data(const opened_once<run_data>& once) {
    std::shared_ptr<const run_data> data = once([&] {
      const int threads = detail::reading_threads(device_, hosts_);
      return from_ ? open_training_data(p_, request_.data, loop_, from_->folder.path(),
                                        characters_of(from_->folder, p_), threads)
                   : open_training_data(p_, request_.data, loop_, "", std::nullopt, threads);
    });
    if (data->steps) loop_ = loop_.of_steps(*data->steps);
    return data;
  }

  void require_same_start() {
    all_.require_same(from_ ? hash_of(from_->folder) : 0,
                      "another state or model at start_request::load",
                      "let all of them see the same folder");
    all_.require_same(data_->hash(), "other data", "give all of them the same");
  }

  /// Reads the micro-batches of this rank's replica, from where the run stands, ahead of the steps.
  void begin_reading() {
    if (at_.step >= loop_.steps) return;
    const std::int64_t micro = p_.numbers.batch.micro;
    reader_.emplace(*data_->training, micro, p_.numbers.batch.sequence,
                    [this, samples = at_.samples, m = std::int64_t{0}]() mutable {
                      const std::int64_t batch = loop_.batches.after(samples);
                      const std::int64_t first = samples + first_of(m);
                      if (++m == batch / loop_.at_once) samples += batch, m = 0;
                      return first;
                    });
  }
  /// Of micro-batch m of a step, the number of its first sample within the batch: replicas take
  /// turns.
  std::int64_t first_of(std::int64_t m) const {
    return (m * hosts_.ranks().of(axis::dp) +
            hosts_.coordinate()[static_cast<unsigned>(axis::dp)]) *
           p_.numbers.batch.micro;
  }

  bool evaluates_now() const {
    return at_.step < loop_.steps && at_.step % loop_.eval_interval == 0;
  }

  void take_steps() {
    // The run before may have ended between a step and its evaluation.
    if (at_.step > 0 && evaluates_now() &&
        !(losses_.validated && losses_.validated->step == at_.step))
      evaluate();
    while (at_.step < loop_.steps) {
      if (!step()) interrupt();
      confer();
      if (stopped()) interrupt();
      if (at_.step < loop_.steps && time_is_up_) return end_in_time();
      if (evaluates_now()) evaluate();
      if (at_.step < loop_.steps && samples_ && at_.step % loop_.sample_interval == 0)
        write_sample();
      if (at_.step < loop_.steps && saves_now()) save();
      if (stopped()) interrupt(); // of several ranks, those that know agree behind the next step
    }
    evaluate();
    evaluate_tests();
    write_sample();
    confer();
    if (stopped()) interrupt();
    if (unsaved()) save();
  }

  /// Asks all ranks for what one of them may know: whether a stop was asked for, and whether the
  /// time is up.
  void confer() {
    const bool late =
        all_.first() && loop_.exit_minutes && started_.seconds() >= 60 * *loop_.exit_minutes;
    const auto [stop, time, untold] =
        all_.any(std::array{signals_ && signals_->requested(), late, untold_.has_value()});
    stop_ = stop, time_is_up_ = time;
    if (untold) end_untold();
  }
  /// Tells of a step on the first rank: what goes wrong with a report, the others are told when
  /// they next confer.
  template <class F> void tell(F f) {
    if (all_.alone()) return f();
    try {
      f();
    } catch (const error& e) {
      if (e.code() == exit_code::ranks) throw; // another one says why
      if (!untold_) untold_ = e;
    }
  }
  void end_if_untold() {
    if (all_.any(untold_.has_value())) end_untold();
  }
  [[noreturn]] void end_untold() {
    if (unsaved() && sound_ && session_->whole()) save();
    if (!untold_) all_.wait_for_another();
    throw *untold_; // rescue says what is saved
  }
  void end_in_time() {
    if (unsaved()) save();
    write_trace();
    reports_.note(fmt::format("loop_request::exit_minutes {} ends the run after step {} of {}; {}",
                              *loop_.exit_minutes, at_.step, loop_.steps,
                              root_ ? fmt::format("start_request::load {} goes on", root_->path())
                                    : "nothing was saved, for there is no loop_request::save"));
  }

  /// Data that is none, a report that cannot be written, or a lack of memory ends a run between two
  /// updates: what it has learned is saved before it says so, unless it is no use, or other ranks
  /// have parts of it. Returns what to add: what is left of the run.
  std::string rescue(exit_code why) {
    if (why == exit_code::nonfinite || why == exit_code::interrupted) return "";
    std::string tried;
    if (all_.alone() && root_ && taken_ > 0 && saved_at_ != at_.step && sound_ &&
        session_->whole() && !saving_) {
      try {
        save();
        return fmt::format("; the state of step {} was saved to {}{}", at_.step,
                           root_->folder_of(at_.step), reports_.made());
      } catch (const error& e) {
        tried = fmt::format("; that of step {} could not be saved: {}", at_.step, e.what());
      } catch (const std::bad_alloc&) {
        tried = fmt::format("; that of step {} could not be saved for lack of memory", at_.step);
      }
    }
    return tried + what_is_saved() + reports_.made();
  }
  std::string what_is_saved() const {
    if (!all_.first()) return "";
    if (!root_) return taken_ > 0 ? "; nothing was saved, for there is no loop_request::save" : "";
    if (!root_->in_place())
      return fmt::format("; {} is not the folder any more that this run saved to", root_->path());
    try {
      if (const auto newest = root_->newest())
        return fmt::format("; {} holds the state of step {}", root_->path(), *newest);
    } catch (const error&) {
      return ""; // the root cannot be read: nothing is known
    }
    return "; nothing was saved";
  }

  /// Whether what is damaged was told when the state was found that the run goes on from.
  bool told_of(const std::string& fault) const {
    return from_ && std::any_of(from_->notes.begin(), from_->notes.end(),
                                [&](const std::string& note) { return note.ends_with(fault); });
  }
  bool resumes() const { return from_ && from_->state && !request_.start.finetune; }

  /// What would fail at the end fails now, and what was saved before stays in its order: a root
  /// takes no step below those that it has.
  void prepare_saves() {
    if (!loop_.save) return;
    const bool same = root_ && resumes() && detail::is_same_file(from_->root, root_->path());
    if (!root_) root_.emplace(*loop_.save);
    const std::int64_t begin = first_step();
    if (const auto newest = root_->newest(); newest && (!same || *newest > begin))
      throw error(
          exit_code::output,
          fmt::format(
              "{} holds the state of step {}, and this run begins after step {}; "
              "go on from it with start_request::load {}, or choose another folder to save to",
              root_->path(), *newest, begin, root_->path()));
    identity_ = data_->identity();
    if (same && root_->has(begin)) saved_at_ = begin;
    require_one_measure();
  }

  /// Nothing that a save would refuse at the end may start.
  void rehearse_save() {
    if (!root_) return;
    const std::int64_t begin = first_step();
    const std::int64_t end = std::max(begin + 1, loop_.steps);
    const run_position last{end, 0, end};
    const auto times = [&](std::int64_t every) {
      return every > 0 ? (last.step - 1) / every - begin / every + 1 : 1;
    };
    const bool measures = !validation_.empty(), bests = measures && loop_.keep_best;
    const std::int64_t evaluations = measures ? last.step / loop_.eval_interval + 1 : 0;
    losses_ = run_losses::longest(last.step, evaluations,
                                  p_.numbers.batch.sequence * validation_.samples(), measure_);
    root_->rehearse(
        last.step, times(loop_.save_interval), loop_.keep_latest,
        [&](folder_writer& out) { fill_state(out, last); }, bests ? times(loop_.eval_interval) : 0);
    losses_ = {};
  }

  void prepare_session() {
    session_->numbers() = loop_.numbers;
    if (from_) load_weights(from_->folder, p_, session_->weights());
    else session_->weights().initialise(loop_.numbers.seed);
    if (!resumes()) return;
    const json_value& state = from_->state->state();
    if (all_.first()) {
      if (identity_.is_null()) identity_ = data_->identity();
      const auto saved = state.field<json_value>("data");
      require_same_data(identity_, saved);
      if (std::string line = order_changes(identity_, saved); !line.empty())
        from_->changes.push_back(std::move(line));
    }
    at_ = load_moments(from_->folder, state, p_, session_->weights());
    if (all_.as_first(saved_at_ == at_.step)) saved_at_ = at_.step;
    losses_.load(state, at_);
    session_->numbers().step = at_.updates();
    if (loop_.bench && loop_.steps - at_.step <= loop_.warmup) {
      all_.wait_for_end();
      throw error(
          exit_code::usage,
          fmt::format(
              "loop_request::bench has no step to measure: {} of loop_request::steps {} are left "
              "and loop_request::warmup is {}; give a larger loop_request::steps",
              std::max<std::int64_t>(0, loop_.steps - at_.step), loop_.steps, loop_.warmup));
    }
  }

  /// Whether losses are measured beside those of steps, where there are data for it.
  bool measures() const {
    return loop_.validates_some() ? *loop_.eval_iters > 0
                                  : !loop_.bench && request_.data.kind != data_kind::random;
  }
  bool keeps_best() const { return loop_.save && loop_.keep_best; }

  void prepare_evaluation() {
    const bool wanted = measures() && (loop_.validates_some() || !data_->validation.empty());
    if (wanted && data_->validation.empty() && !data_->text.source)
      throw error(
          exit_code::data,
          fmt::format(
              "loop_request::eval_iters {} asks for evaluations, and nothing of {} is left to "
              "validate; give another data_request::split, or split_paths::valid",
              *loop_.eval_iters, data_->name));
    if (wanted && data_->validation.empty())
      require_prediction(*data_->text.source, data_->text.parts.valid, "validation");
    if (!wanted && loop_.insists_on_best) {
      all_.wait_for_end();
      throw error(
          exit_code::usage,
          fmt::format(
              "loop_request::keep_best changes nothing: {}; or leave loop_request::keep_best out",
              detail::nothing_to_validate(request_.data)));
    }
    for (const measured_set& set : data_->test)
      if (measures()) tests_.add(evaluation(*session_, p_, set, hosts_), set.samples->size());
    for (const measured_set& set : data_->validation)
      if (wanted) validation_.add(evaluation(*session_, p_, set, hosts_), validated_of(set));
  }
  /// Samples of a validation set that one evaluation takes at the most.
  std::int64_t validated_of(const measured_set& set) const {
    const std::int64_t all = set.samples->size(), batch = loop_.batches.last;
    const std::int64_t iters = loop_.eval_iters.value_or(0);
    return loop_.validates_some() && iters <= all / batch ? iters * batch : all;
  }
  /// Losses are compared with that of the best state, so they must be of the same text.
  void require_one_measure() {
    if (!keeps_best() || !measures() || data_->validation.empty()) return;
    xxh64 of_all;
    for (const measured_set& set : data_->validation) {
      const std::uint64_t one = hash_of(set, validated_of(set), p_.numbers.batch.sequence);
      of_all.add(std::as_bytes(std::span(&one, 1)));
    }
    measure_ = fmt::format("{:016x}", of_all.value());
    if (!root_->best() || root_->best()->measure == measure_) return;
    throw error(
        exit_code::mismatch,
        fmt::format(
            "{} has the lowest validation loss so far, {}, so that the two cannot be "
            "compared; {}move that folder away",
            root_->folder_of_best(),
            root_->best()->measure.empty()
                ? "and does not tell on which text it was measured"
                : "which was measured on other text than this run would measure",
            root_->best()->measure.empty()
                ? ""
                : "give loop_request::eval_iters, loop_request::batches and the validation data "
                  "as they were, or "));
  }

  /// The step behind which the run begins.
  std::int64_t first_step() const {
    return resumes() ? from_->state->state().field<std::int64_t>("step") : 0;
  }
  void find_traced_steps() {
    if (request_.reports.trace)
      traced_ = traced_steps_of(request_.reports, first_step(), loop_.steps);
  }
  void prepare_trace() {
    find_traced_steps();
    if (traced_.last > at_.step)
      timeline_.emplace(p_, timed_ ? &*timed_ : nullptr, static_cast<int>(loop_.micro_batches()),
                        static_cast<int>(traced_.last - traced_.after));
  }
  /// Once the last of the steps is taken, or the run ends on all ranks: those that there are.
  void write_trace() {
    if (!timeline_) return;
    if (timeline_->steps() > 0) {
      const std::vector<std::string> all = all_.gather(timeline_->packed(hosts_));
      const bool cut = all_.any(timed_ && timed_->left_out() > 0);
      const int steps = timeline_->steps();
      timeline_.reset();
      if (!all_.first()) return;
      reports_.trace(trace_text(p_, hosts_.ranks(), all), steps);
      if (cut)
        reports_.note("the trace lacks exchanges of further rounds of experts: they had no memory");
    }
    timeline_.reset();
  }

  void introduce() {
    if (!all_.first()) return;
    reports_.introduce(session_->planned().total(), ranks_of(hosts_.ranks()), ranks_.way());
    reports_.note(fmt::format("{}: {}", data_->name, data_->summary));
    reports_.tell_unlearned(data_->unlearned);
    if (data_->validation.empty() && !loop_.eval_iters && request_.data.kind != data_kind::random)
      reports_.note("nothing is evaluated: " + detail::nothing_to_validate(request_.data));
    if (!root_)
      reports_.note("nothing will be saved: loop_request::save FOLDER keeps what is learned");
    else if (const std::string note = root_->note(); !note.empty()) reports_.note(note);
    if (root_ && !root_->fault_of_best().empty() && !told_of(root_->fault_of_best()))
      reports_.note("the best state cannot be used: " + root_->fault_of_best());
    if (!from_)
      for (const std::string& line : untrained_positions(p_, p_.numbers.batch.sequence))
        reports_.note(line);
    if (!resumes()) return;
    reports_.note(fmt::format("going on after step {} of {}, at sample {} of the data", at_.step,
                              from_->folder.path(), at_.samples));
    for (const std::string& line : request_.kept->derived_changes(from_->state->state(), settled()))
      reports_.note(line);
    if (at_.step >= loop_.steps) {
      const std::string steps = fmt::format(", which are {} steps", loop_.steps);
      reports_.note(fmt::format(
          "nothing is left to train of {}: give more",
          loop_.epochs ? fmt::format("loop_request::epochs {}{}", *loop_.epochs, steps)
          : loop_.samples_asked
              ? fmt::format("loop_request::samples_asked {}{}", *loop_.samples_asked, steps)
              : fmt::format("loop_request::steps {}", loop_.steps)));
    }
  }

  /// Returns what the request left open and has come to.
  settled_values settled() {
    const bool bf16 = p_.numbers.precision.weight == dtype::bf16;
    return {loop_, data_->type, bf16 ? device_.products().type() : product_type::automatic};
  }

  bool stopped() const { return all_.alone() ? signals_ && signals_->requested() : stop_; }
  /// What ends an evaluation before its end: several ranks agree behind it.
  const stop_signals* asks_to_stop() const {
    return all_.alone() && signals_ ? &*signals_ : nullptr;
  }
  /// One rank of a process looks at the data that all of its ranks share.
  bool looks_at_data() const { return data_->written && (all_.first() || all_.apart()); }
  /// The name of a file of the data that was written to since the run began, and of which that is
  /// not known to have changed no token; "" is none.
  std::string changed_data() {
    if (!looks_at_data()) return "";
    std::string file = data_->written();
    if (file.empty() || data_->hash() != data_hash_) return file;
    if (!std::exchange(told_of_touch_, true))
      reports_.note(
          fmt::format("{} was written to or touched during the run; the tokens that were "
                      "compared, which are all of a small file, are as they were",
                      file));
    return "";
  }
  /// A state that was learned from overwritten data is not saved. Throws mc::error on all ranks.
  void require_unchanged_data() {
    const std::string file = all_.any(changed_data());
    if (file.empty()) return;
    sound_ = false;
    all_.wait_for_end();
    throw error(exit_code::data,
                fmt::format("{} was written to during the run and holds other tokens than at its "
                            "start, so what was learned since the state before is not saved; give "
                            "a run data that nobody writes to",
                            file));
  }

  /// Whether there is a state to save that was not.
  bool unsaved() const { return loop_.save && saved_at_ != at_.step; }
  bool saves_now() const {
    return loop_.save && loop_.save_interval > 0 && at_.step % loop_.save_interval == 0;
  }

  /// One optimizer step. Sample i of the run is the same window however steps are cut into
  /// micro-batches, of which replicas take one after the other. False if a stop was asked for
  /// before its last micro-batch, of one rank alone: such a step has changed nothing, and is taken
  /// anew by the run that goes on.
  bool step() {
    const bool traced = timeline_ && traced_.has(at_.step);
    session_->profile(traced ? &*timeline_ : reports_.clock()); // makes events at the first time
    const stopwatch clock;
    waited_for_data_ = 0;
    const std::int64_t waited = timed_ ? timed_->waited() : 0;
    if (traced) timeline_->begin(at_.step + 1, reports_.clock());
    session_->numbers().learning_rate =
        learning_rate(loop_.rates, loop_.rates_by_samples ? at_.samples : at_.step);
    const std::int64_t batch = loop_.batches.after(at_.samples);
    const std::optional<step_result> done =
        session_->step(static_cast<int>(batch / loop_.at_once), [&](int m, batch_view& b) {
          if (all_.alone() && stopped()) return false;
          const std::int64_t first = first_of(m);
          const stopwatch waiting;
          micro_batch& batch = reader_->next();
          waited_for_data_ += waiting.seconds();
          b = view_of(batch, p_.numbers.batch.packed, first);
          return true;
        });
    if (traced) timeline_->end(done.has_value());
    if (!done) return false;
    if (timed_)
      all_.of_each(clock.seconds() - static_cast<double>(timed_->waited() - waited) * 1e-9,
                   computing_);
    step_report r;
    r.step = at_.step + 1, r.steps = loop_.steps;
    r.loss = done->loss.mean();
    r.lr = session_->numbers().learning_rate;
    r.grad_norm = done->norm;
    r.data_seconds = waited_for_data_;
    r.learned = done->loss.count;
    if (r.learned > 0) {
      if (!std::isfinite(r.loss)) fail("loss", r.loss, r, whose_loss(done->own_loss));
      if (!std::isfinite(r.grad_norm)) fail("gradient norm", r.grad_norm, r);
      if (!done->finite) fail_update(r);
      losses_.last = r.loss;
    } else {
      losses_.last.reset();
      ++at_.empty;
    }
    ++at_.step;
    at_.samples += batch;
    ++taken_;
    if (r.learned > 0) losses_.history.add(at_.step, r.loss);
    r.consumed_tokens = at_.samples * p_.numbers.batch.sequence;
    to_come_ -= batch;
    const auto steps = [&](std::int64_t samples) {
      return static_cast<double>(samples) / static_cast<double>(loop_.batches.last);
    };
    tell([&] {
      const auto tokens = static_cast<double>(batch * p_.numbers.batch.sequence);
      reports_.step(r, steps(batch), tokens, clock.seconds(), left(steps(to_come_)), computing_);
    });
    if (traced && at_.step == traced_.last) tell([&] { write_trace(); });
    return true;
  }

  /// What falls on the step that was taken is still to come.
  training_reports::work_left left(double steps) const {
    const auto times = [&](std::int64_t every) {
      return every > 0 ? (loop_.steps - 1) / every - (at_.step - 1) / every + 1 : 1;
    };
    training_reports::work_left left{.steps = steps};
    if (!validation_.empty()) left.evaluations = times(loop_.eval_interval);
    if (root_) left.saves = times(loop_.save_interval);
    if (samples_) left.samples = times(loop_.sample_interval);
    return left;
  }

  void evaluate() {
    if (validation_.empty()) return;
    const stopwatch clock;
    session_->profile(nullptr);
    const std::int64_t number = keeps_best() ? 0 : (at_.step - 1) / loop_.eval_interval;
    const std::optional<loss_sum> total = validation_.run(
        number, asks_to_stop(), untold_, [&](const std::string& name, const loss_sum& one) {
          tell([&] { reports_.evaluation_of(name, at_.step, one); });
        });
    if (!total) return;
    end_if_untold();
    const double loss = total->mean();
    const bool again = losses_.validated && losses_.validated->step == at_.step;
    if (total->count == 0) return tell([&] { reports_.evaluation(at_.step, *total, again); });
    if (!std::isfinite(loss)) {
      // The weights are finite: what was learned is kept, and so are all states before it.
      if (unsaved() && session_->whole()) save(0);
      fail("validation loss", loss, {});
    }
    if (!again) losses_.validation.add(at_.step, loss);
    tell([&] { reports_.evaluation(at_.step, *total, again); });
    losses_.validated = {at_.step, loss, static_cast<std::int64_t>(total->count), measure_};
    if (keeps_best()) keep_best();
    reports_.paused(pace::evaluation, clock.seconds());
  }

  /// Measures the test part once, behind the last step.
  void evaluate_tests() {
    if (tests_.empty() || stopped()) return;
    session_->profile(nullptr);
    const std::optional<loss_sum> total =
        tests_.run(0, asks_to_stop(), untold_, [&](const std::string& name, const loss_sum& one) {
          tell([&] { reports_.test_of(name, at_.step, one); });
        });
    end_if_untold();
    if (total) tell([&] { reports_.test(at_.step, *total); });
  }

  /// Saves the state that was evaluated if none of the root has a lower loss.
  void keep_best() {
    require_unchanged_data();
    if (all_.as_first(root_ && root_->best() && !(losses_.validated->loss < root_->best()->loss)))
      return;
    if (!all_.first()) return help_to_save();
    saving_ = true;
    root_->save_best({at_.step, losses_.validated->loss, measure_},
                     [&](folder_writer& out) { fill_state(out, at_); });
    saving_ = false;
    reports_.note(fmt::format("step {}/{} | lowest validation loss so far, saved to {}", at_.step,
                              loop_.steps, root_->folder_of_best()));
  }

  void write_sample() {
    if (!samples_ || stopped()) return;
    const stopwatch clock;
    const std::string text = as_utf8(samples_->write(signals_ ? &*signals_ : nullptr));
    if (stopped()) return;
    reports_.paused(pace::sample, clock.seconds());
    reports_.sample(at_.step, text);
  }

  /// Writes the files of a state that stands at `at`.
  void fill_state(folder_writer& out, const run_position& at) {
    std::vector<extra_file> extra = tokenizer_files_;
    if (data_->text.characters)
      extra.emplace_back(characters_name, characters_text(*data_->text.characters));
    nlohmann::json state{{"data", identity_}};
    losses_.save(state, at);
    request_.kept->keep(state, settled());
    write_state(out, p_, session_->weights(), at, std::move(state), extra,
                loop_.max_shard.value_or(hf_shard_limit), hosts_);
  }
  /// What the other ranks do while the first one writes.
  void help_to_save() {
    folder_writer nothing = folder_writer::of_another_rank();
    fill_state(nothing, at_);
  }

  void save() { save(loop_.keep_latest); }
  /// Removes states beyond the `keep` newest; 0: none.
  void save(std::int64_t keep) {
    require_unchanged_data();
    if (!all_.first()) {
      help_to_save();
      saved_at_ = at_.step;
      return;
    }
    const stopwatch clock;
    saving_ = true;
    const std::vector<std::string> notes =
        root_->save(at_.step, keep, [&](folder_writer& out) { fill_state(out, at_); });
    saving_ = false;
    reports_.paused(pace::save, clock.seconds());
    saved_at_ = at_.step;
    reports_.note(
        fmt::format("step {}/{} | saved to {}", at_.step, loop_.steps, root_->folder_of(at_.step)));
    for (const std::string& note : notes) reports_.note(note);
  }

  [[noreturn]] void interrupt() {
    const bool begun = taken_ > 0 || !unsaved();
    if (begun && unsaved()) save();
    const std::string name = all_.any(signals_ ? std::string(signals_->name()) : std::string());
    const std::string untold = training_reports::despite([&] { write_trace(); });
    all_.wait_for_end();
    const std::string kept =
        !root_   ? "nothing was saved, for there is no loop_request::save"
        : !begun ? "nothing was saved, for it had not begun"
                 : fmt::format("its state was saved to {}", root_->folder_of(at_.step));
    const std::string lost = untold + reports_.made();
    throw error(exit_code::interrupted, fmt::format("{} ended the run after step {} of {}; {}{}",
                                                    name, at_.step, loop_.steps, kept, lost));
  }

  /// Of a loss that is not finite, which rank it comes from, where others of its stage have finite
  /// ones.
  std::string whose_loss(double own) {
    if (all_.alone()) return "";
    std::vector<double> broken(computing_.size());
    all_.of_each(std::isfinite(own) ? 0 : 1, broken);
    const auto first = std::find(broken.begin(), broken.end(), 1.0);
    const auto of_stage = std::ssize(broken) / hosts_.ranks().of(axis::pp);
    const auto count = std::count(first, broken.end(), 1.0);
    if (count == 0 || count >= of_stage) return "";
    return fmt::format(", and not of all: look at rank {}", first - broken.begin());
  }
  [[noreturn]] void fail(const char* what, double number, const step_report& r,
                         const std::string& whose = "") {
    fail(fmt::format("the {} of step {} is {}{}", what, std::max(r.step, at_.step),
                     std::isnan(number) ? "nan" : "infinite", whose),
         r);
  }
  [[noreturn]] void fail_update(const step_report& r) {
    fail(fmt::format("step {}, with the learning rate {:.3g} and a gradient norm of {:.3g}, left "
                     "the model unusable: {}",
                     r.step, r.lr, r.grad_norm, all_.any(session_->weights().nonfinite())),
         r);
  }
  [[noreturn]] void fail(const std::string& what, const step_report& r) {
    sound_ = false;
    all_.wait_for_end();
    const std::string lost = reports_.made_of_failed(r);
    throw error(exit_code::nonfinite,
                fmt::format("{}{}; a lower schedule::lr, a longer schedule::warmup or a smaller "
                            "run_constants::clip may help{}",
                            what, what_is_saved(), lost));
  }

  stopwatch started_;
  const program_view& p_; ///< of all ranks
  training_request request_;
  loop_request& loop_ = request_.loop; ///< of as many steps as the data come to
  communicator& hosts_;
  std::optional<timed_communicator> timed_; ///< of several ranks
  communicator& ranks_;
  agreement all_;
  device& device_;
  std::optional<found_model> from_;
  std::optional<state_root> root_;
  run_position at_;
  std::int64_t taken_ = 0;   ///< steps of this process
  std::int64_t to_come_ = 0; ///< samples of the steps that are left
  std::shared_ptr<const run_data> data_;
  std::vector<extra_file> tokenizer_files_; ///< saved with the model
  nlohmann::json identity_; ///< what tells it from other data, where a state is read or written
  std::optional<read_ahead> reader_;
  double waited_for_data_ = 0; ///< seconds of the step
  std::optional<session> session_;
  evaluations validation_, tests_;
  std::unique_ptr<sample_writer> samples_;
  std::string measure_; ///< what tells the text of the best state's loss; "" if none is kept
  run_losses losses_;
  training_reports reports_;
  std::vector<double> computing_; ///< seconds of each rank in a step; of one rank, none
  traced_steps traced_;
  std::optional<timeline> timeline_; ///< until it is written
  std::optional<stop_signals> signals_;
  std::optional<error> untold_; ///< of a report or data of this rank, while others go on
  std::int64_t saved_at_ = -1;
  std::uint64_t data_hash_ = 0; ///< of the data at the start, where states are saved
  bool told_of_touch_ = false;
  bool sound_ = true; ///< nothing that the run told was infinite or not a number
  bool saving_ = false;
  bool stop_ = false, time_is_up_ = false; ///< as all ranks know it
};

} // namespace mc
