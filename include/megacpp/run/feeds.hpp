// The feeds of a rank: the integers of a micro-batch that each graph of the rank reads. A replica
// of the model is given all integers (B, S) in their natural order; a rank takes those in the boxes
// of its graphs' inputs. Positions and keys of dropout belong to a token of the whole sequence, so
// that no layout changes what a token sees or which of its elements are dropped.
#pragma once

#include <megacpp/plan/boxes.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace mc {

/// The token ids of a micro-batch and the integers beside them, each (B, S).
struct batch_view {
  const std::int32_t* tokens = nullptr;
  const std::int32_t* labels = nullptr;    ///< labels; negative ones have no loss
  std::int64_t first_sample = 0;           ///< number of the first sequence within the global batch
  const std::int32_t* positions = nullptr; ///< positions; null: 0 ... S-1
  const std::int32_t* documents = nullptr; ///< document of each token, for a program of packed
                                           ///< documents alone
};

class rank_feeds {
public:
  /// `at`: the coordinate of the rank that is fed. The program must outlive this object.
  rank_feeds(const program_view& p, const coordinates& at) : p_(p) {
    for (const part_view& part : p.parts) // all parts place one feed alike
      for (int i = 0; i < part.g->value_count; ++i)
        if (const value& v = part.g->values[i]; v.is == role::input)
          if (const int k = batch_feed(v.from); k >= 0) held_[k] = boxes(part.g->ranks, v, at);
    logical_.resize(static_cast<std::size_t>(p.numbers.batch.micro) *
                    static_cast<std::size_t>(p.numbers.batch.sequence));
    local_.resize(logical_.size());
  }

  /// Calls write(feed, integers of the rank) for every feed of a micro-batch. Throws
  /// mc::error(exit_code::data) for an integer that the model has no row for, and
  /// mc::error(exit_code::mismatch) for a batch with documents if the program's attention does not
  /// tell them apart, or without if it does.
  template <class Write> void give(const batch_view& b, const Write& write) {
    const bool packed = p_.numbers.batch.packed;
    if (packed != (b.documents != nullptr))
      throw error(exit_code::mismatch,
                  p_.name + (packed ? " keeps attention within documents, and a batch names none: "
                                      "fill batch_view::documents, or build it with packed = false"
                                    : " does not tell documents apart, and a batch names some: "
                                      "build it with packed = true, or leave them out"));
    require_rows(feed::tokens, b.tokens), require_rows(feed::labels, b.labels);
    if (b.positions != nullptr) require_rows(feed::positions, b.positions);
    const std::int64_t s = p_.numbers.batch.sequence;
    const auto given = [&](const std::int32_t* ids, std::initializer_list<feed> as) {
      for (const feed f : as) {
        const boxes& held = held_[batch_feed(f)];
        const auto n = static_cast<std::size_t>(held.count().n);
        held.each_contiguous({}, held.count(),
                             [&](local_count to, global_count from, std::int64_t run) {
                               std::copy_n(ids + from.n, run, local_.begin() + to.n);
                             });
        write(f, std::span<const std::int32_t>(local_).first(n));
      }
    };
    const auto made = [&](auto of_token) {
      for (std::size_t i = 0; i < logical_.size(); ++i)
        logical_[i] = static_cast<std::int32_t>(of_token(static_cast<std::int64_t>(i)));
      return logical_.data();
    };
    given(b.tokens, {feed::tokens}), given(b.labels, {feed::labels});
    if (packed) given(b.documents, {feed::documents, feed::all_documents});
    if (b.positions != nullptr) given(b.positions, {feed::positions});
    const std::int32_t* const order = made([&](std::int64_t i) { return i % s; });
    given(order, {feed::order, feed::all_order});
    if (b.positions == nullptr) given(order, {feed::positions});
    given(made([&](std::int64_t i) { return b.first_sample * s + i; }), {feed::token_keys});
  }

private:
  /// Throws if a batch has an integer for which the model has no row. Negative labels are allowed.
  void require_rows(feed from, const std::int32_t* ids) const {
    const fed_integers is = integers_of(from, p_.numbers, p_.vocabulary);
    const std::string name = std::string("batch_view::") + is.name;
    if (ids == nullptr) throw error(exit_code::data, name + " is null: give " + is.name);
    const std::int32_t least = from == feed::labels ? INT32_MIN : 0;
    for (std::size_t i = 0; i < logical_.size(); ++i)
      if (ids[i] < least || ids[i] >= is.below)
        throw error(exit_code::data, name + "[" + std::to_string(i) + "] is " +
                                         std::to_string(ids[i]) + ": give " + is.name +
                                         (least == 0 ? " of at least 0 and below " : " below ") +
                                         std::to_string(is.below));
  }

  const program_view& p_;
  boxes held_[std::size(batch_feeds)];
  std::vector<std::int32_t> logical_, local_; ///< integers of the whole sequences, and those of
                                              ///< this rank
};

} // namespace mc
