// A session: one program on one device, with its memory. It runs the tasks of training steps and of
// evaluations. The constructor reserves all memory, and kernels prepare what they need there.
// Nothing allocates memory afterwards, except for the events of the first step that is measured.
#pragma once

#include <megacpp/comm/self.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/run/executor.hpp>
#include <megacpp/run/feeds.hpp>
#include <megacpp/run/rank_program.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// A summed loss, the number of its tokens, and the sum of the blocks' own (auxiliary) losses.
struct loss_sum {
  double sum = 0, count = 0, side = 0;
  double mean() const { return sum / count; }
};

/// The results of a training step.
struct step_result {
  loss_sum loss;
  double own_loss = 0; ///< the summed loss of the tokens that this rank has computed
  double norm = 0;     ///< norm of the mean gradient, before clipping
  /// The step was an update: it has a token with a label, and norm and loss are finite.
  /// Otherwise weights, moments and the number of the next update are unchanged.
  bool applied = false;
  bool finite = true; ///< every weight and moment is finite, as far as updates have seen
};

/// A list of batches that are ready to be used.
class batch_list {
public:
  batch_list(const batch_view& one) : all_(&one, 1) {}
  batch_list(std::span<const batch_view> all) : all_(all) {}
  batch_list(const std::vector<batch_view>& all) : all_(all) {}
  int count() const { return static_cast<int>(all_.size()); }
  bool operator()(int micro, batch_view& b) const {
    b = all_[static_cast<unsigned>(micro)];
    return true;
  }

private:
  std::span<const batch_view> all_;
};

enum class purpose : std::uint8_t { training, inference };

class session {
public:
  /// `ranks` is this rank's communicator for memory of the device. The ranks of one replica are
  /// given the same batches, and each replica its own. Throws mc::error(exit_code::mismatch) if the
  /// program is laid out over other ranks. The program must outlive the session.
  session(const program_view& program, device& on, purpose why, communicator& ranks = self::ranks())
      : of_rank_(require_ranks(program, ranks), ranks),
        p_(of_rank_.view()),
        training_(why == purpose::training),
        stores_(p_, training_, ranks.coordinate(), on, ranks.ranks()),
        graphs_(graphs_of(p_)),
        stage_(stage_of(p_, std::max(p_.stage, 0))),
        buffers_(buffers_of(graphs_, stage_, training_)),
        planned_(memory_of(buffers_, sizes_of(*p_.stores), p_.numbers.precision, training_)),
        run_(p_.parts, require_sound(), on, ranks, stores_, "activations",
             training_ ? "a smaller micro-batch or sequence, recompute,"
                       : "a smaller micro-batch or sequence",
             training_),
        feeds_(p_, stores_.coordinate()) {
    if (training_) run_.prepare(training_step(stage_.training, 1));
    run_.prepare(evaluation_step(stage_.evaluation, 1));
    planned_.kernels = {run_.room().scratch, run_.room().workspace, on.table_bytes()};
    run_.begin();
    if (training_) stores_.set_addresses(run_.inputs_of(part_of_update(p_.kinds())));
    require_room("the first step");
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  const program_view& program() const { return p_; }
  mc::stores& weights() { return stores_; }
  const mc::stores& weights() const { return stores_; }
  /// Returns the bytes that a session holds, item by item. Those of kernels belong to the device
  /// and may be used by others, too.
  const memory_items& planned() const { return planned_; }
  const arena& activations() const { return run_.memory(); }
  arena& activations() { return run_.memory(); }
  /// The memory of the host for copies of the device's values that the host reads.
  const arena& mirrors() const { return run_.mirrors(); }
  step_numbers& numbers() { return run_.numbers(); }
  /// Tells times of tasks and nodes to `clock` from now on; nullptr: tells none.
  void profile(step_clock* clock) { run_.profile(clock); }
  int micro_batch() const { return p_.numbers.batch.micro; }
  int sequence() const { return p_.numbers.batch.sequence; }

  /// Takes a training step of `micros` micro-batches: gradients, their norm, and AdamW with the
  /// session's numbers. next(micro, batch) fills in each batch, or returns false to give the step
  /// up; it must not start another step. A step that is given up returns nothing. Then, as after an
  /// exception, weights, moments and the number of the step are unchanged, and gradients are
  /// undefined. Throws mc::error for a batch that the model cannot have.
  template <class Next> std::optional<step_result> step(int micros, const Next& next) {
    if (!run_gradients(micros, next)) return std::nullopt;
    const bool was_whole = std::exchange(whole_, false);
    for_each_updating_task(stage_.training, [this](const task& t) { run_.run(t); });
    const step_sums sums = run_.totals();
    step_result r{.loss = summed(sums),
                  .own_loss = of(sums, step_total::loss),
                  .norm = of(sums, step_total::norm)};
    r.applied = std::isfinite(r.norm) && std::isfinite(r.loss.sum);
    r.finite = r.applied ? of(sums, step_total::broken) == 0 : was_whole;
    whole_ = r.finite;
    if (r.applied) ++numbers().step;
    return r;
  }
  step_result step(batch_list all) { return *step(all.count(), all); }

  /// Runs the first part of a step. Afterwards the main grads are those of the summed loss of
  /// `micros` micro-batches, reduced over ranks. Nothing is updated.
  template <class Next> std::optional<loss_sum> gradients(int micros, const Next& next) {
    if (!run_gradients(micros, next)) return std::nullopt;
    return summed(run_.totals());
  }
  loss_sum gradients(batch_list all) { return *gradients(all.count(), all); }

  /// Returns the summed loss of `micros` micro-batches in evaluation, without dropout. `dropping`
  /// asks for dropout as in training. `next` is as for a step.
  template <class Next>
  std::optional<loss_sum> evaluate(int micros, const Next& next, bool dropping = false) {
    if (!run_all(micros, dropping, next,
                 [&](const auto& f) { for_each_evaluation_task(stage_.evaluation, micros, f); }))
      return std::nullopt;
    return summed(run_.totals());
  }
  loss_sum evaluate(batch_list all, bool dropping = false) {
    return *evaluate(all.count(), all, dropping);
  }

  /// Returns false from the beginning of an update until it has left all weights and moments
  /// finite. While it is false, their values are undefined; stores::nonfinite names the first that
  /// is not finite.
  bool whole() const { return whole_; }

private:
  /// Returns the buffers, after verifying that steps of any number of micro-batches can use them.
  const buffers& require_sound() const {
    const int micros = stage_.micros_to_prove();
    fault_record wrong =
        verify_flights(stage_.training.order, stage_.training.of, p_.numbers.batch.micro_batches);
    if (training_ && wrong.code == fault::none)
      wrong =
          verify_step(training_step(stage_.training, micros), stage_.training, buffers_, micros);
    if (wrong.code == fault::none)
      wrong = verify_schedule(stage_.evaluation.order, stage_.evaluation.of, micros, 1);
    if (wrong.code == fault::none)
      wrong = verify_step(evaluation_step(stage_.evaluation, micros), stage_.evaluation, buffers_,
                          micros);
    if (wrong.code == fault::none) return buffers_;
    throw error(exit_code::internal, sentence_about(wrong));
  }
  void require_training() const {
    if (!training_)
      throw error(exit_code::usage, p_.name +
                                        " was asked to train by a session that was made for "
                                        "inference: make it for purpose::training");
  }
  /// Throws if the pipeline cannot run a step of `micros` micro-batches. The number that was last
  /// checked is not checked again.
  void require_micros(int micros) {
    if (micros == micros_ || micros < 1 || micros > max_micros) return;
    fault_record wrong = fault_of_micros(p_, micros);
    if (const layout& l = p_.numbers.ranks; wrong.code == fault::none && l.schedule != nullptr) {
      const int proven = mc::micros_to_prove(l, micros); // 1F1B is known to fit its buffers
      wrong =
          verify_step(training_step(stage_.training, proven), stage_.training, buffers_, proven);
    }
    if (wrong.code != fault::none)
      throw error(exit_code::usage,
                  p_.name + " was asked for a step that its pipeline cannot run, " +
                      sentence_about(wrong) + "; " + std::to_string(nearest_micros(p_, micros)) +
                      " micro-batches are the nearest number that it can");
    micros_ = micros;
  }
  template <class Next> bool run_gradients(int micros, const Next& next) {
    require_training();
    require_micros(micros);
    return run_all(micros, true, next,
                   [&](const auto& f) { for_each_gradient_task(stage_.training, micros, f); });
  }
  /// Runs the tasks that each(f) passes to f. Returns false if `next` had no batch.
  template <class Next, class Each>
  bool run_all(int micros, bool dropping, const Next& next, const Each& each) {
    if (micros < 1 || micros > max_micros)
      throw error(exit_code::usage,
                  "a step of " + std::to_string(micros) +
                      " micro-batches was asked for: give at least 1 and at most " +
                      std::to_string(max_micros));
    if (running_)
      throw error(exit_code::usage,
                  "a step was asked for while another one takes its batches: ask for it before");
    const struct guard {
      bool& on;
      explicit guard(bool& b) : on(b) { on = true; }
      ~guard() { on = false; }
    } guard(running_);
    numbers().dropping = dropping;
    run_.forget();
    run_.set_numbers();
    bool going = true;
    each([&](const task& t) {
      if (!going && t.what != action::wait) return;
      if (t.what != action::feed) return run_.run(t);
      run_.time(t, [&] {
        batch_view b;
        going = next(t.micro, b);
        if (going)
          feeds_.give(b, [&](feed f, std::span<const std::int32_t> ids) {
            run_.write(f, ids, 0, t.micro);
          });
      });
    });
    if (!going) run_.start_waiting(), run_.tell_times();
    return going;
  }
  static double of(const step_sums& sums, step_total t) { return sums[static_cast<unsigned>(t)]; }
  static loss_sum summed(const step_sums& sums) {
    return {of(sums, step_total::whole_loss), of(sums, step_total::whole_tokens),
            of(sums, step_total::whole_side_loss)};
  }

  rank_program of_rank_;
  const program_view& p_; ///< the program of this rank
  bool training_;
  mc::stores stores_;
  std::vector<planned_graph> graphs_; ///< graph of each part with its plan (plan/memory.hpp)
  stage_shape stage_;
  buffers buffers_;
  memory_items planned_{};
  executor run_;
  rank_feeds feeds_;
  bool whole_ = true, running_ = false;
  int micros_ = 0; ///< number of micro-batches that the schedule can run, as last checked
};

} // namespace mc
