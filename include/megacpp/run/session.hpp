// A session: one program on one device, with its memory. Runs micro-batches forward and backward,
// the end of a step, and evaluation. All memory is reserved in the constructor;
// the first step prepares what kernels need; after that nothing allocates.
#pragma once

#include <megacpp/plan/memory.hpp>
#include <megacpp/product/cpu_products.hpp>
#include <megacpp/run/stores.hpp>

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
        device_(device),
        training_(why == purpose::training),
        stores_(program, training_) {
    planned_ = training_ ? training_memory(p_) : inference_memory(p_);
    lay_out();
    prepare();
    require_room("the first step");
  }
  session(const session&) = delete;
  session& operator=(const session&) = delete;

  const program_view& program() const { return p_; }
  mc::stores& weights() { return stores_; }
  const mc::stores& weights() const { return stores_; }
  const memory_items& planned() const { return planned_; }
  const arena& activations() const { return activations_; }
  arena& activations() { return activations_; }
  step_numbers& numbers() { return numbers_; }
  void profile(node_clock* clock) { clock_ = clock; }
  int micro_batch() const { return p_.numbers.batch.micro; }
  int sequence() const { return p_.numbers.batch.sequence; }

  /// Before the first micro-batch of a step or of an evaluation: the prologue, which computes what
  /// the micro-batches read of the weights as they are now.
  void begin_step() {
    for (int l = -1; l < p_.layers; ++l) {
      frame f = frame_of(l);
      run(part_of(l), phase::prologue, f);
    }
    derived_by_ = nullptr;
  }

  /// Forward and backward of one micro-batch; gradients of its summed loss add to the main grads.
  /// Throws mc::error, which changes nothing, for a batch that the model cannot have, and once the
  /// step's gradients are reduced.
  loss_sum train(const batch_view& b) {
    if (reduced_)
      throw error(exit_code::usage,
                  "a micro-batch came after the gradients of its step were reduced: call "
                  "finish_step() or clear_gradients() first");
    feed_inputs(b);
    numbers_.dropping = true;
    loss_sum result = forward(b, p_.loss);
    frame f = head_frame();
    run(p_.loss, backward_pass, f);
    for (int l = p_.layers - 1, k = 0; l >= -1; --l, ++k) {
      f = layer_frame(l);
      f.set(feed::d_output, cotangent(k % 2));
      f.set(feed::d_output, one_, 1); // of the side loss
      f.base[static_cast<unsigned>(space::d_stream_in)] = cotangent((k + 1) % 2);
      run(part_of(l), backward_pass, f);
    }
    return result;
  }

  /// Forward of one micro-batch, as a model is evaluated: nothing is dropped out, unless `dropping`
  /// asks for the loss that training sees.
  loss_sum evaluate(const batch_view& b, bool dropping = false) {
    feed_inputs(b);
    numbers_.dropping = dropping;
    return forward(b, p_.evaluation);
  }

  /// Once a step, after its last micro-batch: the gradients of tied uses join those of their
  /// parameters, and the epilogue brings the gradients of values that the prologue derived back to
  /// theirs. Afterwards the main grads are those of the summed loss, and a second call changes
  /// nothing. finish_step does it first.
  void reduce_gradients() {
    if (std::exchange(reduced_, true)) return;
    frame ties = frame_of(p_.layers + 1);
    for_each_tie(*p_.stores, [&](const registry::entry& e, int k) {
      const std::int64_t main = size_of(stores_.main_type());
      ties.set(feed::declared_gradient, stores_.gradients() + e.offset * main, k);
      ties.set(feed::tied_gradient, stores_.gradients() + e.gradient * main, k);
    });
    run(p_.update, phase::prologue, ties);
    derive(p_.loss);
    for (int l = -1; l <= p_.layers; ++l) {
      frame f = frame_of(l);
      run(part_of(l), phase::epilogue, f);
    }
  }

  /// The end of a step over `tokens` tokens of the global batch: reductions, norm, clip, AdamW with
  /// the session's numbers. Returns the norm of the mean gradient before clipping and clears the
  /// gradients. A norm that is not finite updates nothing; whether the update left everything
  /// finite, finite() tells.
  double finish_step(double tokens) {
    reduce_gradients();
    frame f = frame_of(p_.layers + 1);
    f.set(feed::token_count, &tokens);
    const std::int64_t main = size_of(stores_.main_type()), type = size_of(stores_.type());
    for (int k = 0; k < p_.stores->group_count; ++k) {
      const std::int64_t at = p_.stores->groups[static_cast<unsigned>(k)].offset;
      f.set(feed::gradient, stores_.gradients() + at * main, k);
      f.set(feed::master, stores_.masters() + at * main, k);
      f.set(feed::first_moment, stores_.first_moments() + at * main, k);
      f.set(feed::second_moment, stores_.second_moments() + at * main, k);
      f.set(feed::weight, stores_.weights() + at * type, k);
    }
    run(p_.update, phase::forward, f);
    const double norm = output_of_update(1, f);
    if (std::isfinite(norm)) {
      run(p_.update, phase::epilogue, f);
      finite_ = output_of_update(0, f) == 0;
      ++numbers_.step;
    }
    clear_gradients();
    return norm;
  }
  /// False once an update has left a weight or a moment infinite or not a number: the session is
  /// of no more use. stores::nonfinite tells where.
  bool finite() const { return finite_; }
  void clear_gradients() {
    reduced_ = false;
    for (int l = -1; l < std::ssize(ranges_) - 1; ++l)
      if (const std::int64_t bytes = bytes_of(l).derived_gradients; bytes > 0)
        std::memset(ranges_of(l).derived_gradients, 0, static_cast<std::size_t>(bytes));
    std::byte* g = stores_.gradients();
    const std::int64_t bytes = stores_.gradient_bytes(), block = 1 << 20;
    parallel_for((bytes + block - 1) / block, [=](std::int64_t i) {
      std::memset(g + i * block, 0, static_cast<std::size_t>(std::min(block, bytes - i * block)));
    });
  }

private:
  /// Where a layer's values lie that outlast a pass. -1 is the stem, p_.layers the head, the next
  /// one the step's end.
  struct ranges {
    std::byte *saved = nullptr, *derived = nullptr, *derived_gradients = nullptr;
  };
  const ranges& ranges_of(int layer) const { return ranges_[static_cast<unsigned>(layer + 1)]; }
  const part_view& part_of(int layer) const {
    if (layer > p_.layers) return p_.update;
    if (layer == p_.layers) return training_ ? p_.loss : p_.evaluation;
    return layer < 0 ? p_.stem
                     : p_.blocks[static_cast<unsigned>(p_.kind_of[static_cast<unsigned>(layer)])];
  }
  /// The heads of training and of evaluation take turns in the same memory.
  part_bytes bytes_of(int layer) const {
    const memory_plan& plan = *part_of(layer).plan;
    return layer == p_.layers ? part_bytes(plan, *p_.evaluation.plan) : part_bytes(plan);
  }

  /// Cuts the activations. Beside the weights and their stores they are all that was planned but
  /// what the caller of a batch has.
  void lay_out() {
    const graph& block = *p_.blocks[0].g;
    stream_bytes_ = stream_bytes(block);
    tokens_ = local_tokens(block);
    const memory_items& m = planned_;
    activations_ = arena(
        m.saved + m.streams + m.working + m.derived + m.feeds - given_feeds * feed_bytes(block),
        "activations",
        training_ ? "a smaller micro-batch or sequence, recompute,"
                  : "a smaller micro-batch or sequence");
    arena_cutter cut(activations_, "the activations of " + p_.name);
    ranges_.resize(static_cast<unsigned>(p_.layers + (training_ ? 3 : 2)));
    std::int64_t saved = 0, working = 0; // of inference, whose parts save for nobody
    for (int l = -1; l < std::ssize(ranges_) - 1; ++l) {
      const part_bytes bytes = bytes_of(l);
      if (training_) ranges_[static_cast<unsigned>(l + 1)].saved = cut.take(bytes.saved);
      saved = std::max(saved, bytes.saved), working = std::max(working, bytes.working);
    }
    std::byte* const all = training_ ? nullptr : cut.take(saved);
    const int kept = training_ ? p_.layers + 3 : 2; // with two cotangents
    streams_ = cut.take(kept * stream_bytes_);
    working_ = cut.take(working);
    for (int l = -1; l < std::ssize(ranges_) - 1; ++l) {
      ranges& r = ranges_[static_cast<unsigned>(l + 1)];
      if (!training_) r.saved = all;
      r.derived = cut.take(bytes_of(l).derived);
      if (training_) r.derived_gradients = cut.take(bytes_of(l).derived_gradients);
    }
    positions_ = reinterpret_cast<std::int32_t*>(cut.take(aligned_bytes(tokens_ * 4)));
    keys_ = reinterpret_cast<std::int32_t*>(cut.take(aligned_bytes(tokens_ * 4)));
    one_ = cut.take(aligned_bytes(size_of(stores_.main_type())));
    cut.finish();
    stores::set(one_, stores_.main_type(), 0, 1.0);
  }
  /// Of a layer among those of its kind.
  int index_of(int layer) const {
    return layer < 0 || layer >= p_.layers ? 0 : index_[static_cast<unsigned>(layer)];
  }

  void prepare() {
    std::vector<int> seen(p_.blocks.size());
    for (int l = 0; l < p_.layers; ++l)
      index_.push_back(seen[static_cast<unsigned>(p_.kind_of[static_cast<unsigned>(l)])]++);
    const auto one = [&](const part_view& part) {
      slots_.emplace_back(&part, std::vector<node_slot>(static_cast<unsigned>(part.g->node_count)));
      part.prepare(part, device_, slots_.back().second.data());
    };
    one(p_.stem), one(p_.evaluation);
    for (const part_view& b : p_.blocks) one(b);
    if (training_) one(p_.loss), one(p_.update);
  }
  node_slot* slots_of(const part_view& part) {
    for (auto& s : slots_)
      if (s.first == &part) return s.second.data();
    return nullptr;
  }
  void run(const part_view& part, phases when, frame& f) {
    part.run(part, when, device_, f, slots_of(part), clock_);
  }

  std::byte* stream(int layer) const { // what comes into a layer
    return streams_ + (training_ ? layer : layer % 2) * stream_bytes_;
  }
  std::byte* cotangent(int which) const {
    return streams_ + (p_.layers + 1 + which) * stream_bytes_;
  }

  frame frame_of(int layer) {
    frame f;
    f.base[static_cast<unsigned>(space::weights)] = stores_.weights();
    f.base[static_cast<unsigned>(space::gradients)] = stores_.gradients();
    f.base[static_cast<unsigned>(space::saved)] = ranges_of(layer).saved;
    f.base[static_cast<unsigned>(space::derived)] = ranges_of(layer).derived;
    f.base[static_cast<unsigned>(space::derived_gradients)] = ranges_of(layer).derived_gradients;
    f.base[static_cast<unsigned>(space::working)] = working_;
    f.index = index_of(layer), f.layer = layer, f.step = &numbers_;
    f.ranks = &ranks_, f.coordinate = stores_.coordinate();
    return f;
  }
  /// Sets the inputs that a part is fed each micro-batch.
  void feed_part(frame& f, part_kind part) {
    const std::pair<feed, const void*> has[] = {
        {feed::positions, positions_},
        {feed::token_keys, keys_},
        {feed::documents, batch_.documents},
        {feed::tokens, batch_.tokens},
        {feed::labels, batch_.labels},
        {feed::stream, f.layer < 0 ? nullptr : stream(f.layer)},
    };
    for (const auto& [from, at] : has)
      if (fed(part, from, p_.numbers)) f.set(from, at);
  }
  frame layer_frame(int layer) {
    frame f = frame_of(layer);
    feed_part(f, layer < 0 ? part_kind::stem : part_kind::block);
    f.base[static_cast<unsigned>(space::stream_out)] = stream(layer + 1);
    return f;
  }
  frame head_frame() {
    frame f = frame_of(p_.layers);
    feed_part(f, part_kind::loss);
    // The loss makes its cotangents in the forward pass: the stream's may be one of them.
    if (training_) f.base[static_cast<unsigned>(space::d_stream_in)] = cotangent(0);
    f.set(feed::d_output, one_);
    f.set(feed::d_output, one_, 1); // of the side loss
    return f;
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
    batch_ = b;
    const std::int64_t s = sequence(), per = tokens_ / micro_batch();
    for (std::int64_t i = 0; i < tokens_; ++i) {
      positions_[i] = b.positions != nullptr ? b.positions[i] : static_cast<std::int32_t>(i % per);
      keys_[i] = static_cast<std::int32_t>((b.first_sample + i / per) * s + i % per);
    }
  }
  /// The prologue of the head that runs now, unless it was the last one of this step.
  void derive(const part_view& head) {
    if (derived_by_ == &head) return;
    frame f = frame_of(p_.layers);
    run(head, phase::prologue, f);
    derived_by_ = &head;
  }
  loss_sum forward(const batch_view&, const part_view& head) {
    derive(head);
    double side = 0;
    for (int l = -1; l < p_.layers; ++l) {
      frame f = layer_frame(l);
      const part_view& part = part_of(l);
      run(part, phase::forward, f);
      if (part.g->side_loss >= 0) side += read(part, f, part.g->side_loss);
    }
    frame f = head_frame();
    run(head, phase::forward, f);
    if (head.g->side_loss >= 0) side += read(head, f, head.g->side_loss);
    return {read(head, f, head.g->outputs[0]), read(head, f, head.g->outputs[1]), side};
  }
  /// A scalar of the accumulator type.
  double read(const part_view& part, const frame& f, value_id v) const {
    return stores::get(
        resolve(part.plan->at[static_cast<unsigned>(v)], f, *p_.stores, part.index, 1),
        stores_.main_type(), 0);
  }
  double output_of_update(int k, const frame& f) const {
    const value_id v = p_.update.g->outputs[static_cast<unsigned>(k)];
    double x = 0;
    if (v >= 0)
      std::memcpy(&x, resolve(p_.update.plan->at[static_cast<unsigned>(v)], f, *p_.stores, 0, 8),
                  sizeof x);
    return x;
  }

  const program_view& p_;
  cpu& device_;
  bool training_;
  mc::stores stores_;
  memory_items planned_{};
  arena activations_;
  std::byte *streams_ = nullptr, *working_ = nullptr, *one_ = nullptr;
  std::int32_t *positions_ = nullptr, *keys_ = nullptr;
  std::int64_t stream_bytes_ = 0, tokens_ = 0;
  bool finite_ = true, reduced_ = false;
  std::vector<ranges> ranges_;            ///< by layer
  const part_view* derived_by_ = nullptr; ///< the head whose prologue ran last, in this step
  std::vector<int> index_;
  std::vector<std::pair<const part_view*, std::vector<node_slot>>> slots_;
  step_numbers numbers_{};
  self ranks_{};
  batch_view batch_{};
  node_clock* clock_ = nullptr;
};

} // namespace mc
