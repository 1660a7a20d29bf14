// Generation: a batch of sequences of different lengths, whose keys and values are kept in caches.
//
// The generator has two programs of the same graphs (run/generation.hpp), in two shapes that depend
// on the prompts: *prefill* takes up to T new tokens of every sequence, *decode* one. Both append
// to the caches and read them (op/cached_attention.hpp). A prompt is taken in pieces of T tokens,
// so that activations do not grow with its length. If a sequence has fewer new tokens than others
// of its batch, padding follows them, which is not kept and not attended to. Logits are computed at
// each sequence's last new token.
//
// The constructor reserves all memory and prepares all kernels. Nothing allocates memory
// afterwards.
#pragma once

#include <megacpp/comm/self.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/plan/verify_step.hpp>
#include <megacpp/run/executor.hpp>
#include <megacpp/run/generation.hpp>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// The largest sizes of the texts that a generator takes.
struct generation_room {
  int sequences = 1;       ///< B, the number of sequences
  std::int64_t tokens = 0; ///< C, tokens of each sequence, at most the model's positions
  std::int64_t prompt = 1; ///< tokens appended at once, at most: the longest prompt
};

class generator {
public:
  /// Tokens of all sequences in one pass of prefill.
  static constexpr std::int64_t prefill_tokens = 512;

  /// Uses the weights as they are now, until renew(). `p`, `on`, `weights` and `ranks` must outlive
  /// the generator. With several ranks `p` is the program of this rank (run/rank_program.hpp); all
  /// ranks are given the same tokens and find the same logits.
  generator(const program_view& p, device& on, const stores& weights, const generation_room& room,
            communicator& ranks = self::ranks())
      : p_(require_ranks(p, ranks)),
        weights_(weights),
        ranks_(ranks),
        lane_(on.main_lane()),
        room_(room) {
    if (room.sequences < 1 || room.tokens < 1 || room.tokens > p_.positions)
      throw error(exit_code::internal, "generation of " + std::to_string(room.sequences) +
                                           " sequences of " + std::to_string(room.tokens) +
                                           " tokens was asked of a model of " +
                                           std::to_string(p_.positions) + " positions");
    // There is a token for each rank of tp, which may cut a sequence.
    const std::int64_t least = p_.numbers.ranks.tp;
    room_.tokens = std::max(room.tokens, least);
    const std::int64_t fit = std::max<std::int64_t>(prefill_tokens / room.sequences, 1),
                       longest = (room.prompt + least - 1) / least * least,
                       most = std::min({fit, room.tokens, longest}) / least * least;
    build(decode_, least);
    if (most > least) build(prefill_, most);
    lay_out(on);
    for (const program* a : programs()) run_->prepare(evaluation_step(a->shape, 1));
    planned_.kernels = {run_->room().scratch, run_->room().workspace, on.table_bytes()};
    run_->begin();
    renew();
  }
  generator(const generator&) = delete;
  generator& operator=(const generator&) = delete;

  int sequences() const { return room_.sequences; }
  std::int64_t room() const { return room_.tokens; }
  /// Returns the number of tokens that a sequence has so far.
  std::int64_t length(int sequence) const { return lengths_[static_cast<unsigned>(sequence)]; }
  /// Returns the number of logits for a token, without the padding of the vocabulary.
  int vocabulary() const { return p_.vocabulary; }
  const memory_items& planned() const { return planned_; }
  arena& memory() { return run_->memory(); }
  /// The bytes of the caches within memory().
  std::span<std::byte> caches() const {
    return {run_->begin_of(arena_of::caches), static_cast<std::size_t>(planned_.caches)};
  }

  /// Forgets all tokens, and takes the weights as they are now.
  void renew() {
    for (const program* a : programs())
      for_each_first_task(a->shape, [this](const task& t) { run_->run(t); });
    run_->start_waiting();
    std::fill(lengths_.begin(), lengths_.end(), 0);
  }
  /// Gives a sequence one of the adapters that the program holds (setup::held_adapters), by its
  /// number; -1: none, and the model alone continues it. A sequence has none at first.
  void choose(int sequence, int adapter) { chosen_[static_cast<unsigned>(sequence)] = adapter; }
  /// Forgets the tokens of a sequence.
  void clear(int sequence) { lengths_[static_cast<unsigned>(sequence)] = 0; }

  /// Appends tokens to each sequence; an empty span appends none. Throws
  /// mc::error(exit_code::usage) for a token outside the vocabulary, or for more tokens than there
  /// is room for.
  void append(std::span<const std::span<const std::int32_t>> more) {
    check(more);
    std::int64_t longest = 0;
    for (const auto& m : more) longest = std::max<std::int64_t>(longest, std::ssize(m));
    for (std::int64_t at = 0, n; at < longest; at += n) {
      const program& a =
          longest - at <= decode_.tokens || prefill_.tokens == 0 ? decode_ : prefill_;
      n = std::min(a.tokens, longest - at);
      for (int b = 0; b < room_.sequences; ++b) {
        const auto& m = more[static_cast<unsigned>(b)];
        const std::int64_t here = std::clamp<std::int64_t>(std::ssize(m) - at, 0, n);
        const std::int64_t from = lengths_[static_cast<unsigned>(b)];
        feed_row(a, b, here > 0 ? m.data() + at : nullptr, here, from);
        lengths_[static_cast<unsigned>(b)] += here;
        ends_[static_cast<unsigned>(b)] = here > 0 && at + here == std::ssize(m);
      }
      forward(a);
    }
  }

  /// Returns a logit for the token after the last one of a sequence.
  double logit(int sequence, std::int32_t token) const {
    return stores::get(logits_.data(), p_.numbers.precision.activation, sequence * width_ + token);
  }

private:
  /// A program, prefill or decode: the stem, layers and head for a number of new tokens
  /// of each sequence.
  struct program {
    std::int64_t tokens = 0; ///< new tokens of each sequence; 0: no program
    int parts = 0;           ///< index of the program's stem in parts_
    step_shape shape;
  };
  std::vector<const program*> programs() const {
    if (prefill_.tokens == 0) return {&decode_};
    return {&decode_, &prefill_};
  }

  int part_of(int layer) const {
    if (layer < 0) return 0;
    if (layer == p_.layers) return p_.kinds() + 1;
    return 1 + p_.kind_of[static_cast<unsigned>(layer)];
  }
  const planned_part& part(int number) const { return *parts_[static_cast<unsigned>(number)]; }

  void build(program& a, std::int64_t tokens) {
    a.tokens = tokens, a.parts = static_cast<int>(parts_.size());
    const setup s =
        for_generation(p_.numbers, room_.sequences, static_cast<int>(tokens), room_.tokens);
    for (int i = 0; i <= part_of(p_.layers); ++i) {
      const auto g = std::make_unique<graph>(generation_graph(p_, s, i));
      refuse(g->wrong);
      parts_.push_back(p_.generation.part(after_passes(*g, {}), i));
      planned_part& part = *parts_.back();
      for (address& at : part.plan.at)
        if (at.in == space::weights)
          at.offset +=
              trained_parameter(p_, i, part.g, static_cast<int>(at.offset % max_parameters)) -
              at.offset % max_parameters;
      if (a.parts > 0) // prefill must find the caches of decode
        refuse(compare_caches(part.g, this->part(i).g));
      graphs_.emplace_back(part.g, part.plan);
    }
    const int stage = std::max(p_.stage, 0), first = uses_.size();
    a.shape.first = first, a.shape.of = p_.numbers.ranks, a.shape.stage = stage;
    a.shape.order = [](const pipeline& p, int, int i, int) {
      return chunk_pass{false, i / p.chunks,
                        i % p.chunks}; // one pass of new tokens follows the other
    };
    for_each_use(
        p_.layers, p_.kinds(), p_.numbers.ranks, stage,
        [&](int l) { return p_.kind_of[static_cast<unsigned>(l)]; },
        [&](part_use u) {
          u.part += a.parts;
          if (u.chunk > 0 && a.shape.begins[u.chunk] == 0)
            a.shape.begins[u.chunk] = uses_.size() - first;
          uses_.push(u);
        });
    a.shape.uses = uses_.size() - first;
  }

  void lay_out(device& on) {
    list<step_shape> steps;
    for (const program* a : programs()) steps.push(a->shape);
    buffers_.emplace(graphs_, uses_, steps);
    for (const program* a : programs()) {
      refuse(verify_schedule(a->shape.order, a->shape.of, 2, 1));
      refuse(verify_step(evaluation_step(a->shape, 2), a->shape, *buffers_, 2));
    }
    std::vector<part_view> views;
    for (const auto& part : parts_) views.push_back(part->view());
    run_.emplace(std::move(views), *buffers_, on, ranks_, weights_,
                 "the keys and values of these texts", "fewer or shorter texts at a time", false);
    run_->numbers().dropping = false;

    const graph& head = part(part_of(p_.layers)).g;
    const value& out = head.at(head.outputs[0]);
    width_ = local_extent(head.ranks, out, 1);
    logits_.resize(static_cast<std::size_t>(local_bytes(head.ranks, out)));
    if (p_.numbers.ranks.pp > 1)
      shared_ = arena(on, std::ssize(logits_), "logits of the last stage", "fewer texts at a time");
    for_each_cache(head, [this](value_id) { head_keeps_ = true; });
    lengths_.resize(static_cast<std::size_t>(room_.sequences));
    chosen_.assign(lengths_.size(), -1);
    ends_.resize(lengths_.size());
    row_.resize(static_cast<std::size_t>(std::max(decode_.tokens, prefill_.tokens)));
    adapters_.resize(row_.size() * static_cast<std::size_t>(p_.numbers.held_adapters *
                                                            size_of(type_of_adapters())));
    planned_ = memory_of_buffers(*buffers_);
    planned_.weights = weights_.bytes();
    planned_.feeds += static_cast<std::int64_t>(logits_.size());
  }

  void check(std::span<const std::span<const std::int32_t>> more) const {
    if (std::ssize(more) != room_.sequences)
      throw error(exit_code::internal, "tokens for " + std::to_string(more.size()) +
                                           " sequences were given to a generator of " +
                                           std::to_string(room_.sequences));
    for (int b = 0; b < room_.sequences; ++b) {
      const auto& m = more[static_cast<unsigned>(b)];
      if (length(b) + std::ssize(m) > room_.tokens)
        throw error(exit_code::usage, "sequence " + std::to_string(b) + " would have " +
                                          std::to_string(length(b) + std::ssize(m)) +
                                          " tokens, and there is room for " +
                                          std::to_string(room_.tokens) + ": give it less");
      for (const std::int32_t t : m)
        if (t < 0 || t >= p_.vocabulary)
          throw error(exit_code::usage, "token " + std::to_string(t) + " of sequence " +
                                            std::to_string(b) + " is outside the vocabulary of " +
                                            std::to_string(p_.vocabulary) + ": leave it out");
    }
  }

  /// Feeds row b of a pass: n tokens, of which the first has position `from`, and then padding.
  void feed_row(const program& a, int b, const std::int32_t* tokens, std::int64_t n,
                std::int64_t from) {
    const auto row = [&](feed f, auto of_token) {
      for (std::int64_t i = 0; i < a.tokens; ++i)
        row_[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(of_token(i));
      run_->write(f, std::span(row_).first(static_cast<std::size_t>(a.tokens)), b * a.tokens);
    };
    const auto position = [&](std::int64_t i) { return std::min(from + i, room_.tokens - 1); };
    row(feed::tokens, [&](std::int64_t i) { return i < n ? tokens[i] : 0; });
    row(feed::positions, position);
    row(feed::slots, [&](std::int64_t i) { return i < n ? from + i : -1; });
    row(feed::token_keys, [&](std::int64_t i) { return b * room_.tokens + position(i); });
    const auto last = static_cast<std::int32_t>(std::max<std::int64_t>(n - 1, 0));
    run_->write(feed::last, {&last, 1}, b);
    feed_adapter(a, b);
  }
  /// Feeds, for each token of row b, 1 at the adapter that its sequence has and 0 at the others.
  void feed_adapter(const program& a, int b) {
    const std::int64_t held = p_.numbers.held_adapters, n = a.tokens * held,
                       bytes = n * size_of(type_of_adapters());
    if (held == 0) return;
    for (std::int64_t i = 0; i < n; ++i)
      stores::set(adapters_.data(), type_of_adapters(), i,
                  i % held == chosen_[static_cast<unsigned>(b)] ? 1 : 0);
    run_->write_bytes(feed::adapters, std::span(adapters_).first(static_cast<std::size_t>(bytes)),
                      b * bytes);
  }
  dtype type_of_adapters() const { return accumulator_of(p_.numbers.precision.activation); }
  /// Runs one pass, and reads the logits of the sequences whose new tokens end in it. The head runs
  /// only if there are such sequences, or always if it has caches.
  void forward(const program& a) {
    const bool any = std::find(ends_.begin(), ends_.end(), true) != ends_.end();
    const group stages = ranks_.over(axis::pp);
    const bool last = a.shape.stage + 1 == a.shape.of.stages;
    step_shape shape = a.shape;
    if (last && !head_keeps_ && !any) --shape.uses;
    for (int chunk = 0; chunk < shape.of.chunks; ++chunk)
      for_each_forward_task(shape, 0, chunk, [this](const task& t) { run_->run(t); });
    for_each_final_wait(shape, [this](const task& t) { run_->run(t); });
    run_->start_waiting();
    if (!any) return;
    const std::int64_t bytes = width_ * size_of(p_.numbers.precision.activation);
    const int behind = uses_[a.shape.first + a.shape.uses - 1].position + 1;
    const std::byte* at = last ? run_->address_of(buffers_->of(content::stream, behind)) : nullptr;
    if (stages.size() > 1) { // sends the logits to all ranks
      ranks_.run(lane_,
                 exchange::broadcast(axis::pp, p_.numbers.precision.activation, at, shared_.data(),
                                     width_ * room_.sequences, stages.size() - 1));
      at = shared_.data();
    }
    for (int b = 0; b < room_.sequences; ++b)
      if (ends_[static_cast<unsigned>(b)])
        run_->read(logits_.data() + b * bytes, at + b * bytes, bytes);
  }

  const program_view& p_;
  const stores& weights_;
  communicator& ranks_;
  lane& lane_;
  generation_room room_;
  std::vector<std::unique_ptr<planned_part>> parts_; ///< parts of both programs
  std::vector<planned_graph> graphs_;                ///< graph of each part with its plan
  list<part_use> uses_;
  program decode_, prefill_;
  std::optional<buffers> buffers_;
  std::optional<executor> run_;
  memory_items planned_{};
  std::vector<std::byte> logits_; ///< logits after the last token of each sequence
  arena shared_;                  ///< logits that the last pipeline stage has sent
  std::int64_t width_ = 0;        ///< number of logits of a sequence
  std::vector<std::int64_t> lengths_;
  std::vector<bool> ends_;
  std::vector<std::int32_t> row_;   ///< integers of a sequence on their way to the device
  std::vector<int> chosen_;         ///< the adapter of each sequence
  std::vector<std::byte> adapters_; ///< the same for each token, on its way to the device
  bool head_keeps_ = false;         ///< the head has caches of its own
};

} // namespace mc
