// Conversations have many lengths, and sequences have one. This header packs several conversations
// into a sequence; attention stays within each conversation.
#pragma once

#include <megacpp/chat/conversation.hpp>
#include <megacpp/data/permutation.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/num/random.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// tokenized_conversations holds many conversations as token ids, in four bytes a token.
class tokenized_conversations {
public:
  void add(const chat_tokens& tokens) {
    for (std::size_t i = 0; i < tokens.ids.size(); ++i)
      tokens_.push_back(static_cast<std::uint32_t>(tokens.ids[i]) |
                        (tokens.mask[i] != 0 ? learned : 0u));
    ends_.push_back(tokens_.size());
    merged_.insert(merged_.end(), static_cast<std::size_t>(tokens.merged_turns), size() - 1);
  }

  std::int64_t size() const { return static_cast<std::int64_t>(ends_.size()); }
  std::int64_t tokens() const { return static_cast<std::int64_t>(tokens_.size()); }
  /// Returns chat_tokens::merged_turns, added up over the conversations of a range.
  std::int64_t merged_turns(token_range some) const {
    return std::ranges::lower_bound(merged_, some.end) -
           std::ranges::lower_bound(merged_, some.begin);
  }
  /// Returns the token ids of conversation i. An id that is learned has the bit `learned`, too.
  std::span<const std::uint32_t> operator[](std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    const std::size_t begin = at == 0 ? 0 : ends_[at - 1];
    return std::span(tokens_).subspan(begin, ends_[at] - begin);
  }

  /// Returns a checksum, XXH64, of all tokens, their bits `learned`, and the conversations' ends.
  std::uint64_t hash() const {
    xxh64 h;
    h.add(std::as_bytes(std::span(tokens_)));
    h.add(std::as_bytes(std::span(ends_)));
    return h.value();
  }

  static constexpr std::uint32_t learned = 0x80000000u;

private:
  std::vector<std::uint32_t> tokens_;
  std::vector<std::size_t> ends_;
  std::vector<std::int64_t> merged_; ///< The conversation of each merged turn, in rising order.
};

/// first_fit packs lengths into rows: each length goes to the first row that has room for it, and a
/// row is added where none has. A length takes O(log n): a binary tree over the rows has in each
/// node the most room of a row below the node.
class first_fit {
public:
  /// Prepares for at most n lengths, each from 1 to `room`, which is the length of an empty row.
  first_fit(std::int64_t n, std::int64_t room)
      : leaves_(std::bit_ceil(static_cast<std::size_t>(std::max<std::int64_t>(n, 1)))),
        most_(2 * leaves_, room) {}

  /// Returns the row that a length goes to, and takes that much room from the row.
  std::int64_t place(std::int64_t length) {
    std::size_t node = 1;
    while (node < leaves_) node = most_[2 * node] >= length ? 2 * node : 2 * node + 1;
    const auto row = static_cast<std::int64_t>(node - leaves_);
    rows_ = std::max(rows_, row + 1);
    most_[node] -= length;
    while (node /= 2) most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    return row;
  }
  std::int64_t rows() const { return rows_; }

private:
  std::size_t leaves_;
  std::vector<std::int64_t> most_; ///< The most room below node k, whose children are 2k, 2k + 1.
  std::int64_t rows_ = 0;
};

/// packing_counts says how many conversations were packed, cut and left out.
struct packing_counts {
  std::int64_t conversations = 0;    ///< All conversations that were given.
  std::int64_t packed = 0;           ///< Conversations that are trained on.
  std::int64_t nothing_to_learn = 0; ///< Conversations left out, as no label of them is learned.
  std::int64_t truncated = 0;    ///< Conversations longer than a sequence, which lose their ends.
  std::int64_t merged_turns = 0; ///< Turns that are not learned; see chat_tokens.
  std::int64_t tokens_cut = 0;   ///< Tokens of the ends that are cut off.
  std::int64_t rows = 0;         ///< Sequences of an epoch.
  std::int64_t tokens = 0;       ///< Tokens of an epoch, without padding.
  std::int64_t labels = 0;       ///< Labels of an epoch that count in the loss.

  bool operator==(const packing_counts&) const = default;
};

/// Returns a sentence that tells people how many conversations were packed, cut and left out.
inline std::string sentence_of(const packing_counts& n, std::int64_t sequence) {
  std::string text = fmt::format(
      "{} of {} conversations are packed into {} sequences of {}: {} tokens, {:.1f} % of the room, "
      "of which {} are learned",
      n.packed, n.conversations, n.rows, sequence, n.tokens,
      100.0 * static_cast<double>(n.tokens) / static_cast<double>(n.rows * sequence), n.labels);
  if (n.truncated > 0)
    text += fmt::format("; {} are longer than a sequence and lose {} tokens at their ends",
                        n.truncated, n.tokens_cut);
  if (n.nothing_to_learn > 0)
    text += fmt::format("; {} have nothing to learn and are left out", n.nothing_to_learn);
  if (n.merged_turns > 0)
    text += fmt::format(
        "; {} turns begin with a line end that is one token with that of their "
        "header, and are not learned",
        n.merged_turns);
  return text;
}

/// packed_conversations is a range of conversations, packed into sequences of S tokens.
///
/// A conversation is a document: attention stays within it, and its positions begin at 0. The label
/// of a token is the next token, if that is learned; the last token has no label. A conversation
/// with more than S tokens is cut to its first S. A conversation without a learned label in these
/// is left out. Long conversations are packed before short ones, and equally long ones in their
/// order; each goes to the first sequence with room for it (first fit decreasing). The rest of a
/// sequence is padding: a document of its own, without labels.
///
/// An epoch has every sequence once. With a seed, each epoch has an order of its own, drawn from
/// the seed; without one, sequences come in the order of packing. Sample i is a pure function of
/// the conversations, S, the seed and i.
class packed_conversations final : public sample_set {
public:
  /// Packs the conversations of the range `range`. `epochs` 0 means epochs without end. Throws
  /// mc::error(exit_code::data) where no conversation is left to train on.
  packed_conversations(std::string name,
                       std::shared_ptr<const tokenized_conversations> conversations,
                       token_range range, std::int64_t sequence, std::optional<std::uint64_t> seed,
                       std::int64_t epochs = 0, std::int32_t padding = 0)
      : name_(std::move(name)),
        conversations_(std::move(conversations)),
        range_(range),
        sequence_(sequence),
        epochs_(epochs),
        padding_(padding) {
    if (seed) key_ = random_key(*seed, stream);
    pack(longest_first());
    if (counts_.rows == 0)
      throw error(exit_code::data,
                  fmt::format("{} has {} conversations, but none with a token to learn among its "
                              "first {}; give others, or a longer sequence",
                              name_, counts_.conversations, sequence_));
  }

  std::int64_t per_epoch() const { return counts_.rows; }
  const packing_counts& counts() const { return counts_; }
  /// Returns which conversations sequence r has, in their order there, as numbers within the range.
  std::span<const std::int32_t> row(std::int64_t r) const {
    const auto at = static_cast<std::size_t>(r);
    return std::span(members_).subspan(row_begins_[at], row_begins_[at + 1] - row_begins_[at]);
  }

  std::int64_t size() const override {
    constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
    return epochs_ == 0 || epochs_ > most / counts_.rows ? most : epochs_ * counts_.rows;
  }
  /// Writes a sample to `out`. A sample behind the last one has padding alone.
  void fill(std::int64_t sample, const sample_row& out) const override {
    std::size_t at = 0;
    std::int32_t document = 0;
    if (sample < size())
      for (const std::int32_t i : row(row_of(sample)))
        at = fill_document(conversation(i), document++, at, out);
    for (std::int32_t position = 0; at < out.tokens.size(); ++at, ++position) {
      out.tokens[at] = padding_;
      out.labels[at] = ignored_label;
      out.positions[at] = position;
      out.documents[at] = document;
    }
  }
  const std::string& name() const override { return name_; }

private:
  /// `stream` keeps this order apart from other random numbers of the same seed.
  static constexpr std::uint64_t stream = 0x636f6e76657273u;

  std::span<const std::uint32_t> conversation(std::int64_t i) const {
    return (*conversations_)[range_.begin + i];
  }
  std::int64_t length_of(std::int64_t i) const {
    return std::min<std::int64_t>(std::ssize(conversation(i)), sequence_);
  }

  std::int64_t row_of(std::int64_t sample) const {
    const std::int64_t epoch = sample / counts_.rows, within = sample % counts_.rows;
    if (!key_) return within;
    return permutation(counts_.rows, random_key(*key_, static_cast<std::uint64_t>(epoch)))(within);
  }

  /// Returns the conversations that are to be packed, the longest first, and fills counts_.
  std::vector<std::int32_t> longest_first() {
    counts_.conversations = range_.size();
    counts_.merged_turns = conversations_->merged_turns(range_);
    if (counts_.conversations > std::numeric_limits<std::int32_t>::max())
      throw error(exit_code::data,
                  fmt::format("{} has {} conversations, more than 2^31 - 1; divide "
                              "it",
                              name_, counts_.conversations));
    std::vector<std::int32_t> order;
    for (std::int64_t i = 0; i < counts_.conversations; ++i) {
      const std::span<const std::uint32_t> all = conversation(i);
      const std::int64_t length = length_of(i);
      const auto kept = all.first(static_cast<std::size_t>(length));
      std::int64_t labels = 0;
      for (std::size_t t = 1; t < kept.size(); ++t)
        labels += (kept[t] & tokenized_conversations::learned) != 0;
      if (labels == 0) {
        ++counts_.nothing_to_learn;
        continue;
      }
      order.push_back(static_cast<std::int32_t>(i));
      ++counts_.packed;
      counts_.tokens += length;
      counts_.labels += labels;
      counts_.truncated += std::ssize(all) > length;
      counts_.tokens_cut += std::ssize(all) - length;
    }
    std::stable_sort(order.begin(), order.end(), [this](std::int32_t a, std::int32_t b) {
      return length_of(a) > length_of(b);
    });
    return order;
  }

  void pack(const std::vector<std::int32_t>& order) {
    first_fit rows(std::ssize(order), sequence_);
    std::vector<std::int32_t> row_of_next(order.size());
    for (std::size_t k = 0; k < order.size(); ++k)
      row_of_next[k] = static_cast<std::int32_t>(rows.place(length_of(order[k])));
    counts_.rows = rows.rows();
    row_begins_.assign(static_cast<std::size_t>(counts_.rows) + 1, 0);
    for (const std::int32_t r : row_of_next) ++row_begins_[static_cast<std::size_t>(r) + 1];
    std::partial_sum(row_begins_.begin(), row_begins_.end(), row_begins_.begin());
    std::vector<std::size_t> next(row_begins_.begin(), row_begins_.end() - 1);
    members_.resize(order.size());
    for (std::size_t k = 0; k < order.size(); ++k)
      members_[next[static_cast<std::size_t>(row_of_next[k])]++] = order[k];
  }

  std::size_t fill_document(std::span<const std::uint32_t> all, std::int32_t document,
                            std::size_t at, const sample_row& out) const {
    const auto tokens = all.first(std::min(all.size(), static_cast<std::size_t>(sequence_)));
    const auto id = [](std::uint32_t token) {
      return static_cast<std::int32_t>(token & ~tokenized_conversations::learned);
    };
    for (std::size_t t = 0; t < tokens.size(); ++t, ++at) {
      const bool counted =
          t + 1 < tokens.size() && (tokens[t + 1] & tokenized_conversations::learned) != 0;
      out.tokens[at] = id(tokens[t]);
      out.labels[at] = counted ? id(tokens[t + 1]) : ignored_label;
      out.positions[at] = static_cast<std::int32_t>(t);
      out.documents[at] = document;
    }
    return at;
  }

  std::string name_;
  std::shared_ptr<const tokenized_conversations> conversations_;
  token_range range_; ///< The range of conversations that is packed, by number.
  std::int64_t sequence_, epochs_;
  std::int32_t padding_;
  std::optional<std::uint64_t> key_;
  packing_counts counts_;
  std::vector<std::size_t> row_begins_; ///< The begin of each row in members_, and the end.
  std::vector<std::int32_t> members_;   ///< The conversations of all rows, row by row.
};

} // namespace mc
