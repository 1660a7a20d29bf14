// The training loop.
#pragma once

#include <megacpp/observe/memory.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/progress.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/history.hpp>
#include <megacpp/train/profile.hpp>
#include <megacpp/train/settings.hpp>

#include <csignal>
#include <optional>

namespace mc {

/// Trains one program on one text. Memory is reserved and files are checked in the constructor; the
/// loop itself allocates nothing but for what a save needs.
class trainer {
public:
  trainer(const program_view& p, const options& o, cpu& device)
      : p_(p),
        o_(o),
        set_(settings_of(p, o)),
        max_shard_(shard_limit_of(o)),
        device_(device),
        text_(open_text()),
        windows_(*text_.source, text_.parts.train, p.numbers.batch.sequence, set_.numbers.seed),
        tokens_(static_cast<std::size_t>(p.numbers.batch.micro) *
                static_cast<std::size_t>(p.numbers.batch.sequence)),
        labels_(tokens_.size()),
        profile_(p),
        progress_(o.report.log_interval()) {
    if (o.training.save.given()) { // what would fail at the end fails now
      static_cast<void>(hf_family_of(p));
      folder_writer::check_target(o.training.save());
    }
    if (o.report.loss_curve.given()) check_text_file(o.report.loss_curve());
    prepare_session();
    prepare_evaluation();
    if (set_.bench) times_.reserve(static_cast<std::size_t>(set_.steps));
    if (o.report.metrics_jsonl.given()) metrics_.emplace(o.report.metrics_jsonl());
    flops_ = static_cast<double>(work_of_step(p, set_.micro_batches).total().flops);
    ceiling_ = product_ceiling(device, p.numbers.type);
  }

  /// Throws mc::error: nonfinite, data, output, or interrupted once a signal has ended the run.
  void run() {
    if (!set_.bench) introduce();
    if (o_.training.exit_signal_handler()) signals_.emplace();
    stopwatch all;
    while (done_ < set_.steps) {
      step();
      if (stopped()) interrupt();
      if (done_ < set_.steps && done_ % o_.training.eval_interval() == 0) evaluate();
      if (done_ < set_.steps && saves_now()) save();
      if (stopped()) interrupt();
    }
    evaluate();
    if (stopped()) interrupt();
    if (o_.training.save.given()) save();
    draw_curve();
    progress_.finish();
    if (o_.report.profile()) print(profile_.table(profiled_seconds_, ceiling_));
    if (set_.bench) print(bench_line());
    else print(fmt::format("{} steps in {}\n", done_, duration_text(all.seconds()).view()));
  }

private:
  text_data open_text() {
    if (!o_.model.load.given()) return open_training_text(p_, o_, false, std::nullopt);
    return open_training_text(p_, o_, true, characters_of(model_folder(o_.model.load())));
  }

  void prepare_session() {
    session_.emplace(p_, device_, purpose::training);
    session_->numbers() = set_.numbers;
    if (o_.model.load.given()) load_model_folder(o_.model.load(), p_, session_->weights());
    else session_->weights().initialise(set_.numbers.seed);
  }

  void prepare_evaluation() {
    const whole_flag& iters = o_.training.eval_iters;
    const bool wanted = iters.given()
                            ? iters() > 0
                            : !text_.parts.valid.empty() && !set_.bench && !o_.data.mock_data();
    if (!wanted) return;
    evaluation_.emplace(*session_, *text_.source, text_.parts.valid);
    validation_.reserve(static_cast<std::size_t>(
        std::min<std::int64_t>(set_.steps / o_.training.eval_interval() + 1, 1 << 16)));
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
  }

  bool stopped() const { return signals_ && signals_->requested(); }
  bool saves_now() const {
    return o_.training.save.given() && o_.training.save_interval() > 0 &&
           done_ % o_.training.save_interval() == 0;
  }

  /// One optimizer step. Sample i of the run is the same window however it is cut into
  /// micro-batches.
  void step() {
    const stopwatch clock;
    const std::int64_t micro = p_.numbers.batch.micro;
    // The first step prepares much that others find.
    session_->profile(o_.report.profile() && done_ > 0 ? &profile_ : nullptr);
    session_->numbers().learning_rate = learning_rate(set_.rates, done_);
    session_->begin_step();
    loss_sum total;
    for (std::int64_t m = 0; m < set_.micro_batches; ++m) {
      windows_.fill((done_ * set_.micro_batches + m) * micro, tokens_, labels_);
      total += session_->train({tokens_.data(), labels_.data(), m * micro});
    }
    step_report r;
    r.step = done_ + 1, r.steps = set_.steps;
    r.loss = total.mean();
    r.lr = session_->numbers().learning_rate;
    if (!std::isfinite(r.loss)) fail("loss", r.loss, r);
    r.grad_norm = session_->finish_step(total.count);
    if (!std::isfinite(r.grad_norm)) fail("gradient norm", r.grad_norm, r);
    ++done_;
    report(r, total.count, clock.seconds());
  }

  void report(step_report& r, double tokens, double seconds) {
    if (done_ > 1) profiled_seconds_ += seconds;
    // A running mean over about ten steps; the first step is not typical.
    pace_ = done_ <= 2 ? seconds : 0.9 * pace_ + 0.1 * seconds;
    history_.add(done_, r.loss);
    if (set_.bench) {
      if (done_ > set_.warmup) times_.push_back(seconds);
      last_ = r;
    }
    r.tokens_per_second = tokens / pace_;
    r.ceiling_share = ceiling_ > 0 ? flops_ / pace_ / ceiling_ : 0;
    const double now = monotonic_seconds();
    if (now - memory_read_at_ > 0.5) {
      memory_ = process_memory().resident;
      memory_read_at_ = now;
    }
    r.memory = memory_;
    r.seconds_left = time_left_.after(r.step, r.steps, now);
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
    session_->profile(nullptr);
    const loss_sum total = evaluation_->run(evaluated_, signals_ ? &*signals_ : nullptr);
    if (stopped()) return;
    const double loss = total.mean();
    if (!std::isfinite(loss)) fail("validation loss", loss, {});
    validation_.push_back({static_cast<double>(done_), loss});
    progress_.note(bounded_text<160>().append(
        "step {}/{} | validation loss: {:.4f} | perplexity: {:.3f} | {:.0f} tokens", done_,
        set_.steps, loss, perplexity(loss), total.count));
    if (metrics_)
      metrics_->write({{"step", done_},
                       {"validation_loss", loss},
                       {"perplexity", perplexity(loss)},
                       {"validation_tokens", static_cast<std::int64_t>(total.count)}});
  }

  void save() {
    std::vector<std::pair<std::string, std::string>> extra;
    if (text_.characters) extra.emplace_back(characters_name, characters_text(*text_.characters));
    save_model_folder(o_.training.save(), p_, session_->weights(), extra, max_shard_);
    saved_at_ = done_;
    progress_.note(fmt::format("step {}/{} | saved to {}", done_, set_.steps, o_.training.save()));
  }

  void draw_curve() {
    if (!o_.report.loss_curve.given()) return;
    curve_options c;
    c.title = p_.name;
    write_text_file(o_.report.loss_curve(), mc::loss_curve(history_.points(), validation_, c));
  }

  [[noreturn]] void interrupt() {
    const char* const name = signals_->number() == SIGINT ? "SIGINT" : "SIGTERM";
    std::string kept = "nothing was saved, for there is no --save";
    if (o_.training.save.given()) {
      if (saved_at_ != done_) save();
      kept = fmt::format("the model was saved to {}", o_.training.save());
    }
    draw_curve();
    progress_.finish();
    throw error(exit_code::interrupted, fmt::format("{} ended the run after step {} of {}; {}",
                                                    name, done_, set_.steps, kept));
  }

  [[noreturn]] void fail(const char* what, double number, const step_report& r) {
    if (metrics_ && r.step > 0)
      metrics_->write(
          {{"step", r.step}, {"loss", r.loss}, {"lr", r.lr}, {"grad_norm", r.grad_norm}});
    draw_curve();
    progress_.finish();
    std::string kept;
    if (saved_at_ >= 0)
      kept = fmt::format("; {} holds the model of step {}", o_.training.save(), saved_at_);
    else if (o_.training.save.given()) kept = fmt::format("; {} is as it was", o_.training.save());
    throw error(
        exit_code::nonfinite,
        fmt::format("the {} of step {} is {}{}; a lower --lr, a longer --lr-warmup-iters or a "
                    "smaller --clip-grad may help",
                    what, std::max(r.step, done_), std::isnan(number) ? "nan" : "infinite", kept));
  }

  std::string bench_line() {
    std::vector<double> sorted = times_;
    std::sort(sorted.begin(), sorted.end());
    const std::size_t n = sorted.size();
    const double median = 0.5 * (sorted[(n - 1) / 2] + sorted[n / 2]);
    const auto tokens =
        static_cast<double>(set_.micro_batches) * static_cast<double>(tokens_.size());
    std::string line;
    append_json_line(line, {{"program", "megacpp"},
                            {"preset", p_.name},
                            {"precision", name_of(p_.numbers.type)},
                            {"products", device_.products().describe(p_.numbers.type)},
                            {"batch", p_.numbers.batch.micro * set_.micro_batches},
                            {"sequence", p_.numbers.batch.sequence},
                            {"parameters", p_.parameters},
                            {"threads", device_.threads()},
                            {"steps", n},
                            {"warmup", set_.warmup},
                            {"median_ms", median * 1e3},
                            {"min_ms", sorted.front() * 1e3},
                            {"max_ms", sorted.back() * 1e3},
                            {"tokens_per_s", tokens / median},
                            {"product_gflops", ceiling_ * 1e-9},
                            {"product_ceiling_share", flops_ / median / ceiling_},
                            {"loss", last_.loss},
                            {"peak_rss_bytes", process_memory().peak}});
    return line;
  }

  const program_view& p_;
  const options& o_;
  training_settings set_;
  std::uint64_t max_shard_; ///< bytes
  cpu& device_;
  text_data text_;
  training_windows windows_;
  std::vector<std::int32_t> tokens_, labels_; // (B, S)
  std::optional<session> session_;
  std::optional<evaluation> evaluation_;
  std::int64_t evaluated_ = 0; ///< micro-batches of one evaluation
  mc::profile profile_;
  double profiled_seconds_ = 0;
  progress progress_;
  time_left time_left_;
  std::optional<metrics_file> metrics_;
  std::optional<stop_signals> signals_;
  loss_history history_;
  std::vector<curve_point> validation_;
  std::vector<double> times_;
  step_report last_;
  std::int64_t done_ = 0, saved_at_ = -1;
  double flops_ = 0, ceiling_ = 0, pace_ = 0;
  double memory_read_at_ = -1;
  std::uint64_t memory_ = 0;
};

} // namespace mc
