// The states that a training run saves.
#pragma once

#include <megacpp/data/watched_data.hpp>
#include <megacpp/io/clock.hpp>
#include <megacpp/io/same_place.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/optim/recurrence.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/losses.hpp>
#include <megacpp/states/saved_tokenizer.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/train/ranks.hpp>
#include <megacpp/train/reports.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Saves the states of a run. The first rank has the folder and writes the files; other ranks send
/// it what they hold. All ranks call each function that throws on behalf of all.
class saver {
public:
  /// A run that saves reads the files of its tokenizer now: those of its request, or of the folder
  /// that it starts from, "" being none. The references must stay valid. Throws mc::error.
  saver(training_ranks& ranks, const program_view& p, const training_request& request,
        training_reports& reports, std::shared_ptr<const run_data> data, device& on,
        const std::string& starts_from)
      : ranks_(ranks),
        program_(p),
        request_(request),
        loop_(request.loop),
        reports_(reports),
        data_(std::move(data)),
        device_(on),
        watched_(ranks.all().first() || ranks.all().separate_processes() ? data_->written : nullptr,
                 data_->hash) {
    if (loop_.save)
      tokenizer_ = files_of_run_tokenizer(p, request.data.tokenizer, *data_, starts_from);
  }

  /// Returns what tells the data of the run from other data. The first call looks at the data.
  /// The rank that writes states calls it before the first one.
  const nlohmann::json& identity_of_data() {
    if (identity_.is_null()) identity_ = data_->identity();
    return identity_;
  }
  /// Returns the values that the request left open, as they have been decided.
  settled_values settled() const {
    const bool bf16 = program_.numbers.precision.weight == dtype::bf16;
    return {loop_, data_->type, bf16 ? device_.products().type() : product_type::automatic};
  }
  /// Returns the folder of states; nothing if none is saved, and on other ranks than the first.
  const std::optional<state_root>& root() const { return root_; }
  /// Sets the model beside which the adapter of the run is trained.
  void set_base(adapter_base base) { base_ = std::move(base); }
  bool is_due(std::int64_t step) const {
    return loop_.save && recurrence{loop_.save_interval}.is_due(step, loop_.steps);
  }
  /// Returns how many saves are left once this step was taken; 0 on other ranks than the first.
  std::int64_t times_left(std::int64_t step) const {
    return root_ ? recurrence{loop_.save_interval}.times_from(step, loop_.steps) : 0;
  }
  bool keeps_best() const { return loop_.save && loop_.keep_best; }
  /// Tells whether the run saves, and has not saved the state behind this step.
  bool lacks(std::int64_t step) const { return loop_.save && saved_step_ != step; }

  /// Forgets that the state behind the last step was saved, since more is known of it now.
  void outdate() { saved_step_ = -1; }

  /// Takes the folder to save to, on the first rank: `root`, if the run starts from that folder.
  /// `from`: the state that the run goes on from; nullptr if it begins anew. States that are there
  /// stay in their order, so the run must begin behind them. Throws mc::error.
  void claim(std::optional<state_root> root, const found_model* from, std::int64_t first_step) {
    if (!loop_.save) return;
    const bool same = root && from != nullptr && detail::is_same_file(from->root, root->path());
    if (root) root_.emplace(std::move(*root));
    else root_.emplace(*loop_.save);
    if (const auto newest = root_->newest(); newest && (!same || *newest > first_step))
      throw error(
          exit_code::output,
          fmt::format("{} holds the state of step {}, and this run begins after step {}; go on "
                      "from it with start_request::load {}, or choose another folder to save to",
                      root_->path(), *newest, first_step, root_->path()));
    identity_of_data();
    if (same && root_->has(first_step)) saved_step_ = first_step;
  }
  /// Compares the validation text of this run with that of the best state, on the first rank:
  /// losses of different texts say nothing about which state is better. Throws mc::error.
  void require_measure_of_best(const std::string& measure) const {
    const std::optional<validation_result>& best = root_->best();
    if (!best || best->measure == measure) return;
    throw error(
        exit_code::mismatch,
        fmt::format("{} has the lowest validation loss so far, {}, so that the two cannot be "
                    "compared; {}move that folder away",
                    root_->folder_of_best(),
                    best->measure.empty()
                        ? "and does not tell on which text it was measured"
                        : "which was measured on other text than this run would measure",
                    best->measure.empty() ? ""
                                          : "give loop_request::eval_iters, loop_request::batches "
                                            "and the validation data as they were, or "));
  }
  /// Tells what is to be known of the folder at the start of a run that begins `from` something.
  void introduce(const std::optional<found_model>& from) const {
    if (!root_)
      return reports_.note(
          "nothing will be saved: loop_request::save FOLDER keeps what is learned");
    if (const std::string note = root_->note(); !note.empty()) reports_.note(note);
    reports_.note(fmt::format(
        "a state is {} and takes at least {:.1f} s to write, as a rehearsal had it; between a "
        "signal and SIGKILL this run needs a step's time and some times that",
        bytes_text(one_save_.room.bytes).view(), std::max(0.1, one_save_.seconds)));
    const std::string& fault = root_->fault_of_best();
    const auto is_of = [&](const std::string& note) { return note.ends_with(fault); };
    const bool was_told = from && std::ranges::any_of(from->notes, is_of);
    if (!fault.empty() && !was_told) reports_.note("the best state cannot be used: " + fault);
  }
  /// Does all that a save does but for writing most of the bytes, so that what would be refused at
  /// the end is refused now. `longest`: losses as long as those of the last state may be.
  /// `evaluates`: the run has validation losses, and with them a best state. Throws mc::error.
  void rehearse(const session& s, std::int64_t first_step, const run_losses& longest,
                bool evaluates) {
    if (!root_) return;
    const std::int64_t end = std::max(first_step + 1, loop_.steps);
    const auto times = [&](std::int64_t interval) {
      return recurrence{interval}.times_from(first_step + 1, end);
    };
    one_save_ = root_->rehearse(
        end, times(loop_.save_interval), loop_.keep_latest,
        [&](folder_writer& out) {
          fill(out, s, {end, 0, end}, longest);
        },
        evaluates && loop_.keep_best ? times(loop_.eval_interval) : 0);
  }
  /// Lets all ranks know whether the first one has found the state behind `step` in its folder.
  void agree_on_saved(std::int64_t step) {
    if (ranks_.all().value_of_first(saved_step_ == step)) saved_step_ = step;
  }
  /// Begins to watch the data: what is learned from changed data is not saved.
  void watch_data() {
    if (loop_.save) watched_.begin();
  }

  /// Saves the state, and removes old ones beyond those that the run keeps, or with `beside_all`
  /// none. Throws mc::error.
  void save(const session& s, run_progress& progress, bool beside_all = false) {
    require_unchanged_data(progress);
    const std::int64_t step = progress.at.step;
    const stopwatch clock;
    std::vector<std::string> notes;
    write(s, progress, [&](const auto& fill) {
      notes = root_->save(step, beside_all ? 0 : loop_.keep_latest, fill);
    });
    saved_step_ = step;
    if (!ranks_.all().first()) return;
    reports_.saved(step, root_->folder_of(step), clock.seconds());
    for (const std::string& note : notes) reports_.note(note);
  }
  /// Saves the state that was evaluated last, unless the best one has a loss that is as low. Throws
  /// mc::error.
  void save_if_best(const session& s, run_progress& progress) {
    require_unchanged_data(progress);
    const validation_result& now = *progress.losses.validated;
    const bool is_better = !root_ || !root_->best() || now.loss < root_->best()->loss;
    if (ranks_.all().value_of_first(!is_better)) return;
    write(s, progress, [&](const auto& fill) { root_->save_best(now, fill); });
    if (ranks_.all().first())
      reports_.note(fmt::format("step {}/{} | lowest validation loss so far, saved to {}",
                                progress.at.step, loop_.steps, root_->folder_of_best()));
  }

  /// Saves what a run of one rank has learned before an error ends it, if the state is of use.
  /// `was_out_of_memory`: the error; a save that met it has given back its memory and is tried
  /// again. Returns words for the sentence of the error: what is saved.
  std::string rescue(const session& s, run_progress& progress, bool was_out_of_memory) {
    if (was_out_of_memory) writes_ = false;
    const std::int64_t step = progress.at.step;
    std::string tried;
    if (ranks_.all().alone() && root_ && progress.steps_taken > 0 && saved_step_ != step &&
        progress.worth_saving && s.whole() && !writes_) {
      try {
        save(s, progress);
        return fmt::format("; the state of step {} was saved to {}", step, root_->folder_of(step));
      } catch (const error& e) {
        tried = fmt::format("; the state of step {} could not be saved: {}", step, e.what());
      } catch (const std::bad_alloc&) {
        tried = fmt::format("; the state of step {} could not be saved: memory ran out", step);
      }
    }
    return tried + what_is_saved(progress);
  }
  /// Returns words for the sentence of an error: the newest state that there is.
  std::string what_is_saved(const run_progress& progress) const {
    if (!ranks_.all().first()) return "";
    if (!root_)
      return progress.steps_taken > 0 ? "; nothing was saved, for there is no loop_request::save"
                                      : "";
    if (!root_->in_place())
      return fmt::format("; {} is not the folder any more that this run saved to", root_->path());
    try {
      if (const auto newest = root_->newest())
        return fmt::format("; {} holds the state of step {}", root_->path(), *newest);
    } catch (const error&) {
      return ""; // the folder cannot be read, so nothing is known
    }
    return "; nothing was saved";
  }

private:
  /// Writes the files of a state: weights and moments, the files of the tokenizer, the position and
  /// losses of the run, its request, and what its data are. All ranks call it, each with what it
  /// holds. Throws mc::error, as write_state.
  void fill(folder_writer& out, const session& s, const run_position& at,
            const run_losses& losses) const {
    nlohmann::json state{{"data", identity_}};
    losses.save(state, at);
    state["steps"] = loop_.steps;
    request_.kept->keep(state, settled());
    write_state(out, program_, s.weights(), at, std::move(state), tokenizer_,
                loop_.max_shard.value_or(hf_shard_limit), ranks_.hosts(), base_);
  }
  /// Writes the files of a state. The first rank calls to(fill), and has the folder in which `fill`
  /// writes them; the other ranks send what they hold.
  template <class To> void write(const session& s, const run_progress& progress, const To& to) {
    const auto write_files = [&](folder_writer& out) {
      fill(out, s, progress.at, progress.losses);
    };
    folder_writer nothing = folder_writer::of_another_rank();
    if (!ranks_.all().first()) return write_files(nothing);
    writes_ = true;
    to(write_files);
    writes_ = false;
  }
  /// Throws mc::error on all ranks if data that were learned from have changed.
  void require_unchanged_data(run_progress& progress) {
    const std::string file = ranks_.all().any(
        watched_.changed_file([&](const std::string& line) { reports_.note(line); }));
    if (file.empty()) return;
    progress.worth_saving = false;
    ranks_.all().wait_for_end();
    throw error(exit_code::data,
                fmt::format("{} was written to during the run and holds other tokens than at its "
                            "start, so what was learned since the state before is not saved; give "
                            "a run data that nobody writes to",
                            file));
  }

  training_ranks& ranks_;
  const program_view& program_;
  const training_request& request_;
  const loop_request& loop_;
  training_reports& reports_;
  std::shared_ptr<const run_data> data_;
  device& device_;
  watched_data watched_;
  std::vector<extra_file> tokenizer_;
  nlohmann::json identity_; ///< identity of the data; null on ranks that write no file
  std::optional<state_root> root_;
  adapter_base base_;            ///< of the run's adapter
  detail::save_cost one_save_;   ///< as it was rehearsed
  std::int64_t saved_step_ = -1; ///< the step whose state was saved last, as this rank knows it
  bool writes_ = false;          ///< a state is being written, or the write has failed
};

} // namespace mc
