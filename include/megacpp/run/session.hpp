// A session: one program on one device, with its memory. Runs micro-batches forward and backward,
// the end of a step, and evaluation. All memory is reserved in the constructor;
// the first step prepares what kernels need; after that nothing allocates.
#pragma once

#include <megacpp/plan/verify_step.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/executor.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

namespace mc {

/// Token ids and what goes with them, each (B, S).
struct batch_view {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* labels = nullptr;    ///< negative: no loss
  std::int64_t first_sample = 0;           ///< number of the first sequence within the global batch
  const std::int32_t* positions = nullptr; ///< null: 0 ... S-1
  const std::int32_t* documents = nullptr; ///< of a program for packed documents, and of no other
};

/// A summed loss, the number of tokens in it, and what the blocks' own losses add to its gradient.
struct loss_sum {
  double sum = 0, count = 0, side = 0;
  loss_sum& operator+=(const loss_sum& o) {
    sum += o.sum, count += o.count, side += o.side;
    return *this;
  }
  double mean() const { return sum / count; }
};

enum class purpose : std::uint8_t { training, inference };

class session {
public:
  session(const program_view& program, cpu& device, purpose why)
      : p_(require_one_rank(program)),
        training_(why == purpose::training),
        stores_(program, training_),
        graphs_(graphs_of(parts_of(program))),
        stage_(stage_of(program, 0)),
        buffers_(buffers_of(graphs_, stage_, training_)),
        planned_(
            memory_of(buffers_, *program.stores, stage_.layers, program.numbers.type, training_)),
        run_(parts_of(program), require_sound(), device, stores_, "activations",
             training_ ? "a smaller micro-batch or sequence, recompute,"
                       : "a smaller micro-batch or sequence"),
        tokens_(local_tokens(*p_.blocks[0].g)) {
    if (training_) run_.prepare(training_step(stage_.training, 1));
    run_.prepare(evaluation_step(stage_.evaluation, 1));
    if (training_) give_stores();
    require_room("the first step");
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  const program_view& program() const { return p_; }
  mc::stores& weights() { return stores_; }
  const mc::stores& weights() const { return stores_; }
  const memory_items& planned() const { return planned_; }
  const arena& activations() const { return run_.memory(); }
  arena& activations() { return run_.memory(); }
  step_numbers& numbers() { return run_.numbers(); }
  void profile(node_clock* clock) { run_.profile(clock); }
  int micro_batch() const { return p_.numbers.batch.micro; }
  int sequence() const { return p_.numbers.batch.sequence; }

  /// Before the first micro-batch of a step or of an evaluation: the prologue, which computes what
  /// the micro-batches read of the weights as they are now.
  void begin_step() {
    for_each_first_task(training_ ? stage_.training : stage_.evaluation,
                        [this](const task& t) { run_.run(t); });
    if (training_) run_.run(run_task(stage_.evaluation.head, phase::prologue)); // its own head's
  }

  /// Forward and backward of one micro-batch; gradients of its summed loss add to the main grads.
  /// Throws mc::error, which changes nothing, for a batch that the model cannot have, and once the
  /// step's gradients are reduced.
  loss_sum train(const batch_view& b) {
    if (reduced_)
      throw error(exit_code::usage,
                  "a micro-batch came after the gradients of its step were reduced: call "
                  "finish_step() or clear_gradients() first");
    numbers().dropping = true;
    const loss_sum result = forward(b, stage_.training);
    for_each_backward_task(stage_.training, 0, [this](const task& t) { run_.run(t); });
    return result;
  }

  /// Forward of one micro-batch, as a model is evaluated: nothing is dropped out, unless `dropping`
  /// asks for the loss that training sees.
  loss_sum evaluate(const batch_view& b, bool dropping = false) {
    numbers().dropping = dropping;
    return forward(b, stage_.evaluation);
  }

  /// Once a step, after its last micro-batch: the gradients of tied uses join those of their
  /// parameters, and the epilogue brings the gradients of values that the prologue derived back to
  /// theirs. Afterwards the main grads are those of the summed loss, and a second call changes
  /// nothing. finish_step does it first.
  void reduce_gradients() {
    if (std::exchange(reduced_, true)) return;
    for_each_reducing_task(stage_.training, [this](const task& t) { run_.run(t); });
  }

  /// The end of a step over `tokens` tokens of the global batch: reductions, norm, clip, AdamW with
  /// the session's numbers. Returns the norm of the mean gradient before clipping and clears the
  /// gradients. A norm that is not finite updates nothing; whether the update left everything
  /// finite, finite() tells.
  double finish_step(double tokens) {
    reduce_gradients();
    tokens_of_step_ = tokens;
    double norm = 0;
    for_each_updating_task(stage_.training, [&](const task& t) {
      if (t.when == phase::epilogue && !std::isfinite(norm)) return;
      const frame f = run_.run(t);
      if (t.when == phase::forward) norm = output_of_update(1, t, f);
      else finite_ = output_of_update(0, t, f) == 0, ++numbers().step;
    });
    clear_gradients();
    return norm;
  }
  /// False once an update has left a weight or a moment infinite or not a number: the session is
  /// of no more use. stores::nonfinite tells where.
  bool finite() const { return finite_; }
  void clear_gradients() {
    reduced_ = false;
    for (int u = 0; u < stage_.uses.size(); ++u)
      if (const int i = buffers_.of(content::derived_gradients, u); buffers_[i].bytes > 0)
        std::memset(run_.address_of(i), 0, static_cast<std::size_t>(buffers_[i].bytes));
    std::byte* g = stores_.gradients();
    const std::int64_t bytes = stores_.gradient_bytes(), block = 1 << 20;
    parallel_for((bytes + block - 1) / block, [=](std::int64_t i) {
      std::memset(g + i * block, 0, static_cast<std::size_t>(std::min(block, bytes - i * block)));
    });
  }

private:
  /// The buffers, with which steps of any number of micro-batches are verified.
  const buffers& require_sound() const {
    const int micros = stage_.flights() + 1;
    fault_record wrong;
    if (training_)
      wrong =
          verify_step(training_step(stage_.training, micros), stage_.training, buffers_, micros);
    if (wrong.code == fault::none)
      wrong = verify_step(evaluation_step(stage_.evaluation, micros), stage_.evaluation, buffers_,
                          micros);
    if (wrong.code == fault::none) return buffers_;
    throw error(exit_code::internal, sentence_about(wrong));
  }
  /// What the step's end reads and writes of the stores.
  void give_stores() {
    const std::int64_t main = size_of(stores_.main_type()), type = size_of(stores_.type());
    input_addresses& in = run_.inputs_of(part_of_end(static_cast<int>(p_.blocks.size())));
    for_each_tie(*p_.stores, [&](const registry::entry& e, int k) {
      in.set(feed::declared_gradient, stores_.gradients() + e.offset * main, k);
      in.set(feed::tied_gradient, stores_.gradients() + e.gradient * main, k);
    });
    for (int k = 0; k < p_.stores->group_count; ++k) {
      const std::int64_t at = p_.stores->groups[k].offset;
      in.set(feed::gradient, stores_.gradients() + at * main, k);
      in.set(feed::master, stores_.masters() + at * main, k);
      in.set(feed::first_moment, stores_.first_moments() + at * main, k);
      in.set(feed::second_moment, stores_.second_moments() + at * main, k);
      in.set(feed::weight, stores_.weights() + at * type, k);
    }
    in.set(feed::token_count, &tokens_of_step_);
  }

  /// Integers of a batch are ones that the model has rows for, or labels that count for nothing.
  void require_rows(feed from, const std::int32_t* ids) const {
    const fed_integers is = integers_of(from, p_.numbers, p_.vocabulary);
    const std::string name = std::string("batch_view::") + is.name;
    if (ids == nullptr) throw error(exit_code::data, name + " is null: give " + is.name);
    const std::int32_t least = from == feed::labels ? INT32_MIN : 0;
    for (std::int64_t i = 0; i < tokens_; ++i)
      if (ids[i] < least || ids[i] >= is.below)
        throw error(exit_code::data, name + "[" + std::to_string(i) + "] is " +
                                         std::to_string(ids[i]) + ": give " + is.name +
                                         (least == 0 ? " of at least 0 and below " : " below ") +
                                         std::to_string(is.below));
  }
  /// Throws mc::error(exit_code::data) for integers that the model has no rows for, and
  /// mc::error(exit_code::mismatch) for a batch with documents where the program's attention
  /// does not tell them apart, or without where it does.
  void feed_inputs(const batch_view& b) {
    const bool packed = p_.numbers.batch.packed;
    if (packed != (b.documents != nullptr))
      throw error(exit_code::mismatch,
                  p_.name + (packed ? " keeps attention within documents, and a batch names none: "
                                      "fill batch_view::documents, or build it with packed = false"
                                    : " does not tell documents apart, and a batch names some: "
                                      "build it with packed = true, or leave them out"));
    require_rows(feed::tokens, b.tokens), require_rows(feed::labels, b.labels);
    if (b.positions != nullptr) require_rows(feed::positions, b.positions);
    const std::int64_t s = sequence(), per = tokens_ / micro_batch();
    std::copy_n(b.tokens, tokens_, run_.fed(feed::tokens));
    std::copy_n(b.labels, tokens_, run_.fed(feed::labels));
    if (packed) std::copy_n(b.documents, tokens_, run_.fed(feed::documents));
    std::int32_t *const positions = run_.fed(feed::positions), *const keys =
                                                                   run_.fed(feed::token_keys);
    for (std::int64_t i = 0; i < tokens_; ++i) {
      positions[i] = b.positions != nullptr ? b.positions[i] : static_cast<std::int32_t>(i % per);
      keys[i] = static_cast<std::int32_t>((b.first_sample + i / per) * s + i % per);
    }
  }
  /// The forward pass of a micro-batch, whose losses are read as soon as they are there.
  loss_sum forward(const batch_view& b, const step_shape& step) {
    loss_sum sum;
    for_each_forward_task(step, 0, [&](const task& t) {
      if (t.what == action::feed) return feed_inputs(b);
      const frame f = run_.run(t);
      const graph& g = *run_.part_of(t).g;
      const auto read = [&](value_id v) {
        return stores::get(run_.value_at(t, f, v), stores_.main_type(), 0);
      };
      if (g.side_loss >= 0) sum.side += read(g.side_loss);
      if (t.use != step.use(step.uses - 1)) return;
      sum.sum = read(g.outputs[0]), sum.count = read(g.outputs[1]);
    });
    return sum;
  }
  double output_of_update(int k, const task& t, const frame& f) const {
    const value_id v = p_.update.g->outputs[static_cast<unsigned>(k)];
    double x = 0;
    if (v >= 0) std::memcpy(&x, run_.value_at(t, f, v), sizeof x);
    return x;
  }

  const program_view& p_;
  bool training_;
  mc::stores stores_;
  std::vector<planned_graph> graphs_; ///< by number of the part (plan/memory.hpp)
  stage_shape stage_;
  buffers buffers_;
  memory_items planned_{};
  executor run_;
  std::int64_t tokens_ = 0;
  double tokens_of_step_ = 0;
  bool finite_ = true, reduced_ = false;
};

} // namespace mc
