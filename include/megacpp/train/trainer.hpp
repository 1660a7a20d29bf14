// The training loop.
#pragma once

#include <megacpp/inspect/profile.hpp>
#include <megacpp/observe/memory.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/options/settings.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/history.hpp>
#include <megacpp/train/report_files.hpp>
#include <megacpp/train/sample_writer.hpp>
#include <megacpp/train/state.hpp>

#include <filesystem>
#include <limits>
#include <new>
#include <optional>

namespace mc {

/// What a training run starts from.
struct training_start {
  std::optional<state_root> root; ///< that of --save, where --load names it too and it is there
  std::optional<found_model> from;
};

/// Finds what a training run starts from. A state fills in the flags that were left out; what
/// changes is told. Nothing if there is no --load, or if it names the folder of --save, which has
/// no state yet: so one command line serves the first start and every later one. That folder is
/// locked and tidied before it is looked at: what is found in it is the newest as long as the run
/// lives. Throws mc::error.
inline training_start prepare_start(const program_view& p, options& o) {
  training_start start;
  if (!o.model.load.given()) return start;
  const bool same =
      o.training.save.given() && detail::is_same_place(o.model.load(), o.training.save());
  std::error_code ignored;
  if (same && std::filesystem::is_directory(o.model.load(), ignored))
    start.root.emplace(o.training.save());
  std::optional<found_model>& from = start.from;
  if (!same || std::filesystem::exists(o.model.load(), ignored))
    from = find_saved(o.model.load(), !o.model.finetune());
  if (!from && !same)
    throw error(exit_code::model,
                fmt::format("{} has neither a model nor a saved state; check the path of --load",
                            o.model.load()));
  if (!from) {
    print_line(fmt::format("{} has no saved state yet: a new run begins", o.model.load()));
    return start;
  }
  if (start.root) start.root->pass_over(from->damaged);
  for (const std::string& note : from->notes) print_line(note);
  if (!from->state || o.model.finetune()) return start;
  require_same_program(from->state->state(), p);
  from->changes = resume_flags(from->state->state(), o, p.name);
  return start;
}

/// Trains one program on one text. Memory is reserved and files are checked in the constructor; the
/// loop itself allocates nothing but for what a save or a sample needs.
class trainer {
public:
  /// `start`: what prepare_start found. `samples`: for --sample-interval.
  trainer(const program_view& p, const options& o, device& on, training_start start = {},
          const make_sample_writer& samples = {})
      : p_(p),
        o_(o),
        set_(settings_of(p, o)),
        max_shard_(shard_limit_of(o)),
        device_(on),
        from_(std::move(start.from)),
        root_(std::move(start.root)),
        text_(open_text()),
        windows_(*text_.source, text_.parts.train, p.numbers.batch.sequence, set_.numbers.seed),
        tokens_(static_cast<std::size_t>(p.numbers.batch.micro) *
                static_cast<std::size_t>(p.numbers.batch.sequence)),
        labels_(tokens_.size()),
        profile_(p),
        progress_(o.report.log_interval()) {
    // Before there is a folder that a signal could leave.
    if (o_.training.exit_signal_handler()) signals_.emplace();
    prepare_saves();
    check_report_files(o);
    session_.emplace(p_, device_, purpose::training);
    if (o.report.metrics_jsonl.given()) metrics_.emplace(o.report.metrics_jsonl());
    prepare_evaluation();
    rehearse_save(); // as the last save will be: with every file open that stays open
    prepare_session();
    if (from_) from_->folder.close_files();
    if (samples && o.training.sample_interval.given())
      samples_ = samples(p, o, on, session_->weights(), text_);
    constexpr std::int64_t timed_without_allocating = 1 << 20;
    if (set_.bench)
      times_.reserve(static_cast<std::size_t>(std::min(set_.steps, timed_without_allocating)));
    flops_ = static_cast<double>(work_of_step(p, set_.micro_batches).total().flops);
    ceiling_ = product_ceiling(on, p.numbers.type);
  }

  /// Throws mc::error: nonfinite, data, output, or interrupted once a signal has ended the run.
  void run() {
    if (stopped()) interrupt();
    // Once nothing is left that could be refused.
    if (resumes())
      for (const std::string& line : from_->changes) print_line(line);
    // A run that goes on adds to the file of the one before; with nothing left to train, nothing.
    if (metrics_ && at_.step < set_.steps) {
      if (resumes() && at_.step > 0) metrics_->continue_after();
      else metrics_->begin();
    }
    if (!set_.bench) introduce();
    stopwatch all;
    const std::int64_t first = at_.step;
    try {
      take_steps();
      draw_curve();
      if (stopped())
        throw error(exit_code::interrupted,
                    fmt::format("{} came at the end of the run, while the loss curve was written: "
                                "it may be cut{}{}",
                                signals_->name(), what_is_saved(), made_reports()));
      signals_.reset(); // nothing is left that a stop would have to save, or would leave half done
    } catch (const error& e) {
      const std::string kept = rescue(e.code());
      if (kept.empty()) throw;
      throw error(e.code(), e.what() + kept);
    } catch (const std::bad_alloc&) {
      saving_ = false; // a save that found none has given back what it had
      throw error(
          exit_code::memory,
          fmt::format("memory ran out after step {} of {}{}; use a machine with more, or end "
                      "what else runs on it",
                      at_.step, set_.steps, rescue(exit_code::memory)));
    }
    progress_.finish();
    print_profile();
    if (set_.bench) print(bench_line());
    else
      print_line(
          fmt::format("{} steps in {}", at_.step - first, duration_text(all.seconds()).view()));
  }

private:
  text_data open_text() {
    return from_ ? open_training_text(p_, o_, true, characters_of(from_->folder, p_))
                 : open_training_text(p_, o_, false, std::nullopt);
  }

  bool evaluates_now() const {
    return at_.step < set_.steps && at_.step % o_.training.eval_interval() == 0;
  }

  void take_steps() {
    // The run before may have ended between a step and its evaluation.
    if (at_.step > 0 && evaluates_now() && !(validated_ && validated_->step == at_.step))
      evaluate();
    while (at_.step < set_.steps) {
      if (!step() || stopped()) interrupt();
      if (at_.step < set_.steps && out_of_time()) return end_in_time();
      if (evaluates_now()) evaluate();
      if (at_.step < set_.steps && samples_ && at_.step % o_.training.sample_interval() == 0)
        write_sample();
      if (at_.step < set_.steps && saves_now()) save();
      if (stopped()) interrupt();
    }
    evaluate();
    write_sample();
    if (stopped()) interrupt();
    if (root_ && saved_at_ != at_.step) save();
  }

  bool out_of_time() const {
    const auto& minutes = o_.training.exit_duration_in_mins;
    return minutes.given() && started_.seconds() >= 60 * minutes();
  }
  void end_in_time() {
    if (root_ && saved_at_ != at_.step) save();
    progress_.note(fmt::format("--exit-duration-in-mins {} ends the run after step {} of {}; {}",
                               o_.training.exit_duration_in_mins(), at_.step, set_.steps,
                               root_ ? fmt::format("--load {} goes on", root_->path())
                                     : "nothing was saved, for there is no --save"));
  }

  /// Data that is none, a report that cannot be written, or a lack of memory ends a run between two
  /// updates: what it has learned is saved before it says so, unless it is no use. Returns what to
  /// add: what is left of the run.
  std::string rescue(exit_code why) {
    if (why == exit_code::nonfinite || why == exit_code::interrupted) return "";
    std::string tried;
    if (root_ && taken_ > 0 && saved_at_ != at_.step && sound_ && session_->whole() && !saving_) {
      try {
        save();
        return fmt::format("; the state of step {} was saved to {}{}", at_.step,
                           root_->folder_of(at_.step), made_reports());
      } catch (const error& e) {
        tried = fmt::format("; that of step {} could not be saved: {}", at_.step, e.what());
      } catch (const std::bad_alloc&) {
        tried = fmt::format("; that of step {} could not be saved for lack of memory", at_.step);
      }
    }
    return tried + what_is_saved() + made_reports();
  }
  std::string what_is_saved() const {
    if (!root_) return taken_ > 0 ? "; nothing was saved, for there is no --save" : "";
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

  bool resumes() const { return from_ && from_->state && !o_.model.finetune(); }

  /// What would fail at the end fails now, and what was saved before stays in its order: a root
  /// takes no step below those that it has.
  void prepare_saves() {
    if (!o_.training.save.given()) return;
    const bool same = root_ && resumes() && detail::is_same_file(from_->root, root_->path());
    if (!root_) root_.emplace(o_.training.save());
    const std::int64_t begin = resumes() ? from_->state->state().field<std::int64_t>("step") : 0;
    if (const auto newest = root_->newest(); newest && (!same || *newest > begin))
      throw error(exit_code::output,
                  fmt::format("{} holds the state of step {}, and this run begins after step {}; "
                              "go on from it with --load {}, or choose another folder to save to",
                              root_->path(), *newest, begin, root_->path()));
    data_ = data_json();
    if (same && root_->has(begin)) saved_at_ = begin;
  }

  /// Nothing that a save would refuse at the end may start.
  void rehearse_save() {
    if (!root_) return;
    const std::int64_t begin = resumes() ? from_->state->state().field<std::int64_t>("step") : 0;
    const run_position last{std::max(begin + 1, set_.steps), 0};
    const auto times = [&](std::int64_t every) {
      return every > 0 ? (last.step - 1) / every - begin / every + 1 : 1;
    };
    const bool bests = evaluation_ && o_.training.keep_best();
    const std::int64_t evaluations = evaluation_ ? last.step / o_.training.eval_interval() + 1 : 0;
    history_ = loss_history::longest(last.step, last.step);
    validation_ = loss_history::longest(last.step, evaluations);
    loss_ = std::numeric_limits<double>::lowest(); // longest as a text
    validated_ = {last.step, *loss_, evaluated_tokens()};
    root_->rehearse(
        last.step, times(o_.training.save_interval()), o_.training.keep_latest_k(),
        [&](folder_writer& out) { fill_state(out, last); },
        bests ? times(o_.training.eval_interval()) : 0);
    validated_.reset(), loss_.reset(), history_ = {}, validation_ = {};
  }
  std::int64_t evaluated_tokens() const {
    return evaluated_ * static_cast<std::int64_t>(tokens_.size());
  }

  void prepare_session() {
    session_->numbers() = set_.numbers;
    if (from_) load_weights(from_->folder, p_, session_->weights());
    else session_->weights().initialise(set_.numbers.seed);
    if (!resumes()) return;
    if (data_.is_null()) data_ = data_json();
    const json_value& state = from_->state->state();
    require_same_data(state.field<json_value>("data"));
    at_ = load_moments(from_->folder, state, p_, session_->weights());
    if (state.has("loss")) loss_ = state.field<double>("loss");
    if (state.has("validation")) {
      const auto v = state.field<json_value>("validation");
      validated_ = {at_.step, v.field<double>("loss"), v.field<std::int64_t>("tokens")};
    }
    if (state.has("history")) {
      const auto h = state.field<json_value>("history");
      history_ = loss_history::read(h.field<json_value>("training"));
      validation_ = loss_history::read(h.field<json_value>("validation"));
    }
    session_->numbers().step = at_.step;
    if (set_.bench && set_.steps - at_.step <= set_.warmup)
      throw error(
          exit_code::usage,
          fmt::format("--bench-json has no step to measure: {} of --train-iters {} are left "
                      "and --warmup is {}; give a larger --train-iters",
                      std::max<std::int64_t>(0, set_.steps - at_.step), set_.steps, set_.warmup));
  }

  /// {"name", "tokens", "part": [begin, end), "xxh64": of the training part}.
  nlohmann::json data_json() const {
    const token_range part = text_.parts.train;
    return {{"name", text_.source->name()},
            {"tokens", text_.source->size()},
            {"part", {part.begin, part.end}},
            {"xxh64", fmt::format("{:016x}", fingerprint(*text_.source, part))}};
  }

  /// The number of a sample says nothing about other data.
  void require_same_data(const json_value& saved) const {
    nlohmann::json now = data_, then = saved.raw();
    now.erase("name"), then.erase("name");
    if (now == then) return;
    throw error(
        exit_code::mismatch,
        fmt::format("{} ({} tokens) is not the data of the run in {} ({} tokens of {}); give "
                    "the same data, or start a new run from its weights with --finetune",
                    text_.source->name(), text_.source->size(), saved.file(),
                    saved.field<std::int64_t>("tokens"),
                    printable(saved.field<std::string>("name"))));
  }

  void prepare_evaluation() {
    const whole_flag& iters = o_.training.eval_iters;
    const bool wanted = iters.given()
                            ? iters() > 0
                            : !text_.parts.valid.empty() && !set_.bench && !o_.data.mock_data();
    if (!wanted && o_.training.keep_best.asked() && o_.training.keep_best())
      throw error(exit_code::usage,
                  fmt::format("--keep-best changes nothing: --split {} leaves nothing to validate; "
                              "leave --keep-best out, or give a split such as 90,10",
                              o_.data.split()));
    if (!wanted) return;
    evaluation_.emplace(*session_, *text_.source, text_.parts.valid);
    const std::int64_t all = evaluation_->batches();
    evaluated_ = iters.given() && iters() < all / set_.micro_batches + 1
                     ? std::min(all, iters() * set_.micro_batches)
                     : all;
  }

  void introduce() {
    progress_.note(fmt::format(
        "{}: {} parameters, {}, micro-batch {} x {} tokens, {} micro-batch{} a step, {} thread{}, "
        "{}, "
        "{:.1f} GF/s, {} planned",
        p_.name, count_text(static_cast<double>(p_.parameters)).view(), name_of(p_.numbers.type),
        p_.numbers.batch.micro, p_.numbers.batch.sequence, set_.micro_batches,
        set_.micro_batches == 1 ? "" : "es", device_.threads(), device_.threads() == 1 ? "" : "s",
        device_.products().describe(p_.numbers.type), ceiling_ * 1e-9,
        bytes_text(static_cast<std::uint64_t>(session_->planned().total())).view()));
    progress_.note(fmt::format("{}: {} tokens to train on, {} to validate", text_.source->name(),
                               text_.parts.train.size(), text_.parts.valid.size()));
    if (text_.parts.valid.empty() && !o_.training.eval_iters.given() && !o_.data.mock_data())
      progress_.note(
          fmt::format("nothing is evaluated: --split {} leaves nothing to validate; 90,10 "
                      "would leave a tenth",
                      o_.data.split()));
    if (!root_) progress_.note("nothing will be saved: --save FOLDER keeps what is learned");
    else if (const std::string note = root_->note(); !note.empty()) progress_.note(note);
    if (!from_)
      for (const std::string& line : untrained_positions(p_, p_.numbers.batch.sequence))
        progress_.note(line);
    if (!resumes()) return;
    progress_.note(fmt::format("going on after step {} of {}, at sample {} of the data", at_.step,
                               from_->folder.path(), at_.samples));
    for (const std::string& line : derived_changes(
             from_->state->state(), effective_options(o_, set_, p_, product_type_now())))
      progress_.note(line);
    if (at_.step >= set_.steps)
      progress_.note(
          fmt::format("nothing is left to train of --train-iters {}: give more", set_.steps));
  }

  product_type product_type_now() {
    return p_.numbers.type == dtype::bf16 ? device_.products().type() : product_type::automatic;
  }

  bool stopped() const { return signals_ && signals_->requested(); }
  bool saves_now() const {
    return root_ && o_.training.save_interval() > 0 && at_.step % o_.training.save_interval() == 0;
  }

  /// One optimizer step. Sample i of the run is the same window however steps are cut into
  /// micro-batches. False if a stop was asked for before its last micro-batch: such a step has
  /// changed nothing, and is taken anew by the run that goes on.
  bool step() {
    const stopwatch clock;
    const std::int64_t micro = p_.numbers.batch.micro;
    // The first step prepares much that others find.
    session_->profile(o_.report.profile() && taken_ > 0 ? &profile_ : nullptr);
    session_->numbers().learning_rate = learning_rate(set_.rates, at_.step);
    const std::optional<step_result> done =
        session_->step(static_cast<int>(set_.micro_batches), [&](int m, batch_view& b) {
          if (stopped()) return false;
          windows_.fill(at_.samples + m * micro, tokens_, labels_);
          b = {tokens_.data(), labels_.data(), m * micro};
          return true;
        });
    if (!done) return false;
    step_report r;
    r.step = at_.step + 1, r.steps = set_.steps;
    r.loss = done->loss.mean();
    r.lr = session_->numbers().learning_rate;
    r.grad_norm = done->norm;
    if (!std::isfinite(r.loss)) fail("loss", r.loss, r);
    if (!std::isfinite(r.grad_norm)) fail("gradient norm", r.grad_norm, r);
    if (!done->finite) fail_update(r);
    loss_ = r.loss;
    ++at_.step;
    at_.samples += set_.micro_batches * micro;
    ++taken_;
    report(r, done->loss.count, clock.seconds());
    return true;
  }

  void report(step_report& r, double tokens, double seconds) {
    if (taken_ > 1) profiled_seconds_ += seconds;
    pace_.step(seconds);
    history_.add(at_.step, r.loss);
    if (set_.bench) {
      if (taken_ > set_.warmup) times_.push_back(seconds);
      last_ = r;
    }
    r.tokens_per_second = tokens / pace_.seconds_a_step();
    r.ceiling_share = ceiling_ > 0 ? flops_ / pace_.seconds_a_step() / ceiling_ : 0;
    const double now = monotonic_seconds();
    if (now - memory_read_at_ > 0.5) {
      memory_ = process_memory().resident;
      memory_read_at_ = now;
    }
    r.memory = memory_;
    // What falls on this step is still to come.
    const auto left = [&](std::int64_t every) {
      return every > 0 ? (r.steps - 1) / every - (r.step - 1) / every + 1 : 1;
    };
    r.seconds_left =
        pace_.seconds_of(r.steps - r.step, evaluation_ ? left(o_.training.eval_interval()) : 0,
                         root_ ? left(o_.training.save_interval()) : 0,
                         samples_ ? left(o_.training.sample_interval()) : 0);
    if (metrics_)
      metrics_->write({{"step", r.step},
                       {"loss", r.loss},
                       {"lr", r.lr},
                       {"grad_norm", r.grad_norm},
                       {"tokens", static_cast<std::int64_t>(tokens)},
                       {"step_ms", seconds * 1e3},
                       {"product_ceiling_share", flops_ / seconds / ceiling_},
                       {"memory", static_cast<std::int64_t>(memory_)}});
    if (!set_.bench) progress_.show(r);
  }

  void evaluate() {
    if (!evaluation_) return;
    const stopwatch clock;
    session_->profile(nullptr);
    const std::optional<loss_sum> total =
        evaluation_->run(evaluated_, signals_ ? &*signals_ : nullptr);
    if (!total || stopped()) return;
    const double loss = total->mean();
    if (!std::isfinite(loss)) fail("validation loss", loss, {});
    const bool first = !validated_ || validated_->step != at_.step;
    if (first) validation_.add(at_.step, loss);
    progress_.note(bounded_text<160>().append(
        "step {}/{} | validation loss: {:.4f} | perplexity: {:.3f} | {:.0f} tokens", at_.step,
        set_.steps, loss, perplexity(loss), total->count));
    if (metrics_ && (taken_ > 0 || (first && at_.step < set_.steps)))
      metrics_->write({{"step", at_.step},
                       {"validation_loss", loss},
                       {"perplexity", perplexity(loss)},
                       {"validation_tokens", static_cast<std::int64_t>(total->count)}});
    validated_ = {at_.step, loss, static_cast<std::int64_t>(total->count)};
    if (root_ && o_.training.keep_best()) keep_best();
    pace_.paused(pace::evaluation, clock.seconds());
  }

  /// Saves the state that was evaluated if none of the root has a lower loss.
  void keep_best() {
    if (root_->best() && !(validated_->loss < root_->best()->loss)) return;
    saving_ = true;
    root_->save_best({at_.step, validated_->loss},
                     [&](folder_writer& out) { fill_state(out, at_); });
    saving_ = false;
    progress_.note(fmt::format("step {}/{} | lowest validation loss so far, saved to {}", at_.step,
                               set_.steps, root_->folder_of_best()));
  }

  void write_sample() {
    if (!samples_ || stopped()) return;
    const stopwatch clock;
    const std::string text = as_utf8(samples_->write(signals_ ? &*signals_ : nullptr));
    if (stopped()) return;
    pace_.paused(pace::sample, clock.seconds());
    progress_.note(
        fmt::format("step {}/{} | sample: {}", at_.step, set_.steps, nlohmann::json(text).dump()));
    if (metrics_ && taken_ > 0) metrics_->write({{"step", at_.step}, {"sample", text}});
  }

  /// Writes the files of a state that stands at `at`.
  void fill_state(folder_writer& out, const run_position& at) {
    std::vector<extra_file> extra;
    if (text_.characters) extra.emplace_back(characters_name, characters_text(*text_.characters));
    nlohmann::json state{{"data", data_}};
    if (loss_) state["loss"] = *loss_;
    state["history"] = {{"training", history_.json()}, {"validation", validation_.json()}};
    if (validated_ && validated_->step == at.step)
      state["validation"] = {{"loss", validated_->loss}, {"tokens", validated_->tokens}};
    save_flags(state, effective_options(o_, set_, p_, product_type_now()));
    write_state(out, p_, session_->weights(), at, std::move(state), extra, max_shard_);
  }

  void save() {
    const stopwatch clock;
    saving_ = true;
    const std::vector<std::string> notes = root_->save(
        at_.step, o_.training.keep_latest_k(), [&](folder_writer& out) { fill_state(out, at_); });
    saving_ = false;
    pace_.paused(pace::save, clock.seconds());
    saved_at_ = at_.step;
    progress_.note(
        fmt::format("step {}/{} | saved to {}", at_.step, set_.steps, root_->folder_of(at_.step)));
    for (const std::string& note : notes) progress_.note(note);
  }

  /// Of the whole run, also of its steps before this process.
  void draw_curve() {
    const bool told = std::exchange(curve_told_, true);
    if (told || !o_.report.loss_curve.given()) return;
    if (history_.points().empty() && validation_.points().empty()) return;
    curve_options c;
    c.title = p_.name;
    write_text_file(o_.report.loss_curve(),
                    mc::loss_curve(history_.points(), validation_.points(), c));
  }

  /// Of the steps of this process.
  void print_profile() {
    if (!o_.report.profile()) return;
    if (taken_ > 1) return print(profile_.table(profiled_seconds_, ceiling_));
    print_line(
        "--profile measured nothing: it leaves out the first step, which prepares much that "
        "others find, and there was no other");
  }

  /// The reports of a run that ends for a reason of its own. Returns what to add to that.
  std::string made_reports() {
    std::string lost = despite([&] { draw_curve(); });
    progress_.finish();
    return lost += despite([&] { print_profile(); });
  }

  [[noreturn]] void interrupt() {
    std::string kept = "nothing was saved, for there is no --save";
    if (root_ && taken_ == 0 && saved_at_ != at_.step) {
      kept = "nothing was saved, for it had not begun";
    } else if (root_) {
      if (saved_at_ != at_.step) save();
      kept = fmt::format("its state was saved to {}", root_->folder_of(at_.step));
    }
    kept += made_reports();
    throw error(exit_code::interrupted, fmt::format("{} ended the run after step {} of {}; {}",
                                                    signals_->name(), at_.step, set_.steps, kept));
  }

  [[noreturn]] void fail(const char* what, double number, const step_report& r) {
    fail(fmt::format("the {} of step {} is {}", what, std::max(r.step, at_.step),
                     std::isnan(number) ? "nan" : "infinite"),
         r);
  }
  [[noreturn]] void fail_update(const step_report& r) {
    fail(fmt::format("step {}, with the learning rate {:.3g} and a gradient norm of {:.3g}, left "
                     "the model unusable: {}",
                     r.step, r.lr, r.grad_norm, session_->weights().nonfinite()),
         r);
  }
  [[noreturn]] void fail(const std::string& what, const step_report& r) {
    sound_ = false;
    std::string lost;
    if (metrics_ && r.step > 0)
      lost += despite([&] {
        metrics_->write(
            {{"step", r.step}, {"loss", r.loss}, {"lr", r.lr}, {"grad_norm", r.grad_norm}});
      });
    lost += made_reports();
    throw error(exit_code::nonfinite,
                fmt::format("{}{}; a lower --lr, a longer --lr-warmup-iters or a smaller "
                            "--clip-grad may help{}",
                            what, what_is_saved(), lost));
  }

  /// Makes a report of a run that ends for another reason, which stays the reason. Returns what to
  /// add to it.
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

  std::string bench_line() {
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    const double median = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    const auto tokens =
        static_cast<double>(set_.micro_batches) * static_cast<double>(tokens_.size());
    return json_line({{"program", "megacpp"},
                      {"preset", p_.name},
                      {"precision", name_of(p_.numbers.type)},
                      {"products", device_.products().describe(p_.numbers.type)},
                      {"batch", p_.numbers.batch.micro * set_.micro_batches},
                      {"sequence", p_.numbers.batch.sequence},
                      {"parameters", p_.parameters},
                      {"threads", device_.threads()},
                      {"steps", n},
                      {"warmup", set_.warmup},
                      {"median_ms", json_number(median * 1e3)},
                      {"min_ms", json_number(sorted.front() * 1e3)},
                      {"max_ms", json_number(sorted.back() * 1e3)},
                      {"tokens_per_s", json_number(tokens / median)},
                      {"product_gflops", json_number(ceiling_ * 1e-9)},
                      {"product_ceiling_share", json_number(flops_ / median / ceiling_)},
                      {"loss", json_number(last_.loss)},
                      {"peak_rss_bytes", process_memory().peak}});
  }

  stopwatch started_;
  const program_view& p_;
  const options& o_;
  training_settings set_;
  std::uint64_t max_shard_; ///< bytes
  device& device_;
  std::optional<found_model> from_;
  std::optional<state_root> root_;
  run_position at_;
  std::int64_t taken_ = 0; ///< steps of this process
  text_data text_;
  nlohmann::json data_; ///< what tells it from other data, where a state is read or written
  training_windows windows_;
  std::vector<std::int32_t> tokens_, labels_; // (B, S)
  std::optional<session> session_;
  std::optional<evaluation> evaluation_;
  std::unique_ptr<sample_writer> samples_;
  std::int64_t evaluated_ = 0; ///< micro-batches of one evaluation
  mc::profile profile_;
  double profiled_seconds_ = 0;
  progress progress_;
  pace pace_;
  std::optional<metrics_file> metrics_;
  std::optional<stop_signals> signals_;
  loss_history history_, validation_;
  bool curve_told_ = false;
  struct validation_result {
    std::int64_t step = 0;
    double loss = 0; ///< nats a token
    std::int64_t tokens = 0;
  };
  std::optional<double> loss_;                 ///< of the last step
  std::optional<validation_result> validated_; ///< the last one
  std::vector<double> times_;
  step_report last_;
  std::int64_t saved_at_ = -1;
  bool sound_ = true; ///< nothing that the run told was infinite or not a number
  bool saving_ = false;
  double flops_ = 0, ceiling_ = 0;
  double memory_read_at_ = -1;
  std::uint64_t memory_ = 0;
};

} // namespace mc
