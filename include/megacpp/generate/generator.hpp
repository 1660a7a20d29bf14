// Generation: sequences of different lengths in one batch, their keys and values kept in caches.
//
// Two programs of the same graphs (run/generation.hpp), in two shapes that the prompts decide:
// *prefill* takes up to T new tokens of every sequence, *decode* one. Both append to the caches and
// look at them (op/cached_attention.hpp); a prompt is taken in pieces of T tokens, so that
// activations do not grow with its length. Where a sequence has fewer new tokens than its batch,
// the rest is padding, which is not kept and not seen. Logits are computed at each sequence's last
// new token.
//
// All memory is reserved and all kernels are prepared in the constructor; after it nothing
// allocates.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/run/generation.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// What a generator has room for.
struct generation_room {
  int sequences = 1;       ///< B
  std::int64_t tokens = 0; ///< C: of each sequence, at most the model's positions
  std::int64_t prompt = 1; ///< tokens that come at once, at most: the longest prompt
};

class generator {
public:
  /// Tokens of all sequences in one pass of prefill.
  static constexpr std::int64_t prefill_tokens = 512;

  /// For the weights as they are now. `p`, `device` and `weights` must outlive the generator.
  generator(const program_view& p, cpu& device, const stores& weights, const generation_room& room)
      : p_(p), device_(device), weights_(weights), room_(room) {
    require_one_rank(p_);
    if (room.sequences < 1 || room.tokens < 1 || room.tokens > p_.positions)
      throw error(exit_code::internal, "generation of " + std::to_string(room.sequences) +
                                           " sequences of " + std::to_string(room.tokens) +
                                           " tokens was asked of a model of " +
                                           std::to_string(p_.positions) + " positions");
    const std::int64_t fit = std::max<std::int64_t>(prefill_tokens / room.sequences, 1);
    const std::int64_t most = std::min({fit, room.tokens, std::max<std::int64_t>(room.prompt, 1)});
    const std::int64_t least = p_.numbers.ranks.tp; // a token for each rank that may cut a sequence
    build(decode_, least);
    if (most > least) build(prefill_, most);
    lay_out();
    lengths_.resize(static_cast<std::size_t>(room.sequences));
    for (passes* a : {&prefill_, &decode_}) prepare(*a);
    for (int l = -1; l <= p_.layers; ++l) {
      frame f = frame_of(l);
      run(any(), l, phase::prologue, f);
    }
  }
  generator(const generator&) = delete;
  generator& operator=(const generator&) = delete;

  int sequences() const { return room_.sequences; }
  std::int64_t room() const { return room_.tokens; }
  /// Tokens of a sequence so far.
  std::int64_t length(int sequence) const { return lengths_[static_cast<unsigned>(sequence)]; }
  /// Logits of a token (padding of the vocabulary left out).
  int vocabulary() const { return p_.vocabulary; }
  const memory_items& planned() const { return planned_; }
  arena& memory() { return memory_; }
  /// The caches within memory().
  std::span<std::byte> caches() const {
    return {caches_, static_cast<std::size_t>(planned_.caches)};
  }

  /// Forgets the tokens of a sequence.
  void clear(int sequence) { lengths_[static_cast<unsigned>(sequence)] = 0; }

  /// Appends tokens to each sequence, none to those whose span is empty. Throws
  /// mc::error(exit_code::usage) for a token outside the vocabulary, or more than there is room
  /// for.
  void append(std::span<const std::span<const std::int32_t>> more) {
    check(more);
    std::int64_t longest = 0;
    for (const auto& m : more) longest = std::max<std::int64_t>(longest, std::ssize(m));
    for (std::int64_t at = 0, n; at < longest; at += n) {
      passes& a = longest - at <= decode_.tokens || prefill_.tokens == 0 ? decode_ : prefill_;
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

  /// The logit of a token after the last one of a sequence.
  double logit(int sequence, std::int32_t token) const {
    return stores::get(logits_, p_.numbers.type, sequence * width_ + token);
  }

private:
  /// A program in one shape: stem, block kinds, head.
  struct passes {
    std::int64_t tokens = 0; ///< of a sequence, new in one pass; 0: there is no such program
    std::vector<std::unique_ptr<interpreted_part>> parts;
    std::vector<std::vector<node_slot>> slots; ///< by part and node
  };

  int part_of(int layer) const {
    if (layer < 0) return 0;
    if (layer == p_.layers) return static_cast<int>(p_.blocks.size()) + 1;
    return 1 + p_.kind_of[static_cast<unsigned>(layer)];
  }
  const passes& any() const { return prefill_.tokens > 0 ? prefill_ : decode_; }
  const interpreted_part& part(const passes& a, int layer) const {
    return *a.parts[static_cast<unsigned>(part_of(layer))];
  }

  void build(passes& a, std::int64_t tokens) {
    a.tokens = tokens;
    const setup s =
        for_generation(p_.numbers, room_.sequences, static_cast<int>(tokens), room_.tokens);
    for (int i = 0; i <= part_of(p_.layers); ++i) {
      const auto g = std::make_unique<graph>(generation_graph(p_, s, i));
      interpreted_part::refuse(g->wrong);
      a.parts.push_back(std::make_unique<interpreted_part>(after_passes(*g, {}), *p_.stores, i,
                                                           *p_.generation.kernels));
      interpreted_part& part = *a.parts.back();
      for (address& at : part.plan.at)
        if (at.in == space::weights)
          at.offset = trained_parameter(p_, i, part.g, static_cast<int>(at.offset));
    }
  }
  void prepare(passes& a) {
    for (const auto& part : a.parts) {
      a.slots.emplace_back(static_cast<std::size_t>(part->g.node_count));
      const part_view v = part->view();
      v.prepare(v, device_, a.slots.back().data());
    }
  }

  static std::int64_t bytes_of_cache(const graph& g, value_id v) {
    return aligned_bytes(local_bytes(g.ranks, g.at(v)));
  }

  void lay_out() {
    const passes& a = any();
    const graph& block = a.parts[1]->g;
    const graph& head = a.parts.back()->g;
    const value& out = head.at(head.outputs[0]);
    width_ = local_extent(head.ranks, out, 1);
    stream_bytes_ = mc::stream_bytes(block);
    ints_ = aligned_bytes(local_tokens(block) * 4);
    const std::int64_t logits = aligned_bytes(local_bytes(head.ranks, out)),
                       rows = aligned_bytes(room_.sequences * 4);
    memory_items& m = planned_;
    for (const passes* one : {&prefill_, &decode_})
      for (const auto& part : one->parts) m.working = std::max(m.working, part->plan.working);
    for (int l = -1; l <= p_.layers; ++l) {
      derived_at_.push_back(m.derived);
      m.derived += part(a, l).plan.derived;
      caches_at_.push_back(m.caches);
      const graph& g = part(a, l).g;
      for_each_cache(g, [&](value_id v) { m.caches += bytes_of_cache(g, v); });
    }
    head_keeps_ = m.caches > caches_at_.back();
    for (std::size_t i = 0; i < decode_.parts.size() && prefill_.tokens > 0; ++i) {
      const fault_record other = compare_caches(prefill_.parts[i]->g, decode_.parts[i]->g);
      interpreted_part::refuse(other);
      if (decode_.parts[i]->plan.derived != prefill_.parts[i]->plan.derived)
        throw error(exit_code::internal, "prefill and decode of " + p_.name +
                                             " derive different values from the parameters");
    }
    m.streams = 2 * stream_bytes_;
    m.feeds = 4 * ints_ + rows + 2 * logits;
    m.weights = weights_.bytes();
    std::vector<int> seen(p_.blocks.size());
    for (const int kind : p_.kind_of) index_.push_back(seen[static_cast<unsigned>(kind)]++);

    memory_ = arena(m.total() - m.weights, "the keys and values of these texts",
                    "fewer or shorter texts at a time");
    arena_cutter cut(memory_, "the values of generation by " + p_.name);
    const auto take = [&cut](std::int64_t bytes) { return cut.take(bytes); };
    caches_ = take(m.caches), derived_ = take(m.derived), working_ = take(m.working);
    streams_ = take(m.streams), logits_ = take(logits), fresh_ = take(logits);
    ids_ = reinterpret_cast<std::int32_t*>(take(ints_));
    positions_ = reinterpret_cast<std::int32_t*>(take(ints_));
    kept_ = reinterpret_cast<std::int32_t*>(take(ints_));
    keys_ = reinterpret_cast<std::int32_t*>(take(ints_));
    last_ = reinterpret_cast<std::int32_t*>(take(rows));
    cut.finish();
    ends_.resize(static_cast<std::size_t>(room_.sequences));
  }

  frame frame_of(int layer) {
    frame f;
    const auto at = static_cast<unsigned>(layer + 1);
    f.base[static_cast<unsigned>(space::weights)] = weights_.weights();
    f.base[static_cast<unsigned>(space::derived)] = derived_ + derived_at_[at];
    f.base[static_cast<unsigned>(space::working)] = working_;
    f.base[static_cast<unsigned>(space::stream_out)] =
        layer == p_.layers ? fresh_ : streams_ + ((layer + 1) % 2) * stream_bytes_;
    f.index = layer < 0 || layer == p_.layers ? 0 : index_[static_cast<unsigned>(layer)];
    f.layer = layer, f.step = &numbers_;
    f.ranks = &ranks_, f.coordinate = weights_.coordinate();
    f.set(feed::stream, streams_ + ((layer + 2) % 2) * stream_bytes_);
    f.set(feed::tokens, ids_), f.set(feed::positions, positions_), f.set(feed::slots, kept_);
    f.set(feed::last, last_), f.set(feed::token_keys, keys_);
    std::byte* cache = caches_ + caches_at_[at];
    const graph& g = part(any(), layer).g;
    for_each_cache(g, [&](value_id v) {
      f.set(g.at(v).from, std::exchange(cache, cache + bytes_of_cache(g, v)), g.at(v).slot);
    });
    return f;
  }
  void run(const passes& a, int layer, phases when, frame& f) {
    const part_view v = part(a, layer).view();
    v.run(v, when, device_, f,
          const_cast<node_slot*>(a.slots[static_cast<unsigned>(part_of(layer))].data()), nullptr);
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

  /// Row b of a pass: n tokens whose first one has position `from`, then padding.
  void feed_row(const passes& a, int b, const std::int32_t* tokens, std::int64_t n,
                std::int64_t from) {
    const std::int64_t row = b * a.tokens;
    for (std::int64_t i = 0; i < a.tokens; ++i) {
      const auto at = static_cast<std::int32_t>(from + i);
      ids_[row + i] = i < n ? tokens[i] : 0;
      positions_[row + i] = std::min(at, static_cast<std::int32_t>(room_.tokens - 1));
      kept_[row + i] = i < n ? at : -1;
      keys_[row + i] = static_cast<std::int32_t>(b * room_.tokens) + positions_[row + i];
    }
    last_[b] = static_cast<std::int32_t>(std::max<std::int64_t>(n - 1, 0));
  }
  /// One pass; logits of the sequences whose new tokens end in it. The head runs for these alone,
  /// or for all tokens where it keeps some of them.
  void forward(const passes& a) {
    const bool head = head_keeps_ || std::find(ends_.begin(), ends_.end(), true) != ends_.end();
    for (int l = -1; l < p_.layers + (head ? 1 : 0); ++l) {
      frame f = frame_of(l);
      run(a, l, phase::forward, f);
    }
    const std::int64_t bytes = width_ * size_of(p_.numbers.type);
    for (int b = 0; b < room_.sequences; ++b)
      if (ends_[static_cast<unsigned>(b)])
        std::memcpy(logits_ + b * bytes, fresh_ + b * bytes, static_cast<std::size_t>(bytes));
  }

  const program_view& p_;
  cpu& device_;
  const stores& weights_;
  generation_room room_;
  passes prefill_, decode_;
  memory_items planned_{};
  arena memory_;
  std::byte *caches_ = nullptr, *derived_ = nullptr, *working_ = nullptr, *streams_ = nullptr,
            *logits_ = nullptr, *fresh_ = nullptr;
  std::int32_t *ids_ = nullptr, *positions_ = nullptr, *kept_ = nullptr, *keys_ = nullptr,
               *last_ = nullptr;
  std::int64_t stream_bytes_ = 0, ints_ = 0, width_ = 0;
  std::vector<std::int64_t> derived_at_, caches_at_, lengths_;
  std::vector<int> index_;
  std::vector<bool> ends_;
  bool head_keeps_ = false; ///< the head has caches
  step_numbers numbers_{.dropping = false};
  self ranks_{};
};

} // namespace mc
