// Samples of a running text are windows: ranges of S tokens, with the tokens behind them as labels.
#pragma once

#include <megacpp/data/permutation.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/data/split.hpp>
#include <megacpp/data/token_source.hpp>
#include <megacpp/num/random.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

namespace mc {

/// training_windows shuffles windows of a running text. Sample i is a pure function of (tokens,
/// range, S, seed, i). So a run reads the same samples after a restart, and however they are
/// divided among ranks and micro-batches.
///
/// An epoch is a shuffle of W windows of S + 1 tokens. Window starts are multiples of S, plus an
/// offset that is drawn for the epoch, so that they differ from epoch to epoch. Of n tokens, W =
/// max(1, floor(n / S) - 1) windows fit at every offset in [0, min(S, n - W*S)). An epoch leaves
/// out fewer than 2 S tokens.
class training_windows final : public sample_set {
public:
  /// Prepares windows of `source`, which must outlive them. Throws mc::error(exit_code::data) if
  /// the range holds no window.
  training_windows(const token_source& source, token_range range, std::int64_t sequence,
                   std::uint64_t seed)
      : source_(&source), range_(range), sequence_(sequence), key_(random_key(seed, stream)) {
    require_window(source, range, "training", sequence);
    windows_ = std::max<std::int64_t>(1, range.size() / sequence - 1);
    offsets_ = std::min(sequence, range.size() - windows_ * sequence);
  }

  /// Returns INT64_MAX as the number of samples, since training windows have epochs without end.
  std::int64_t size() const override { return std::numeric_limits<std::int64_t>::max(); }
  const std::string& name() const override { return source_->name(); }
  void fill(std::int64_t sample, const sample_row& row) const override {
    source_->copy(start(sample), row.tokens);
    source_->copy(start(sample) + 1, row.labels);
    one_document(row);
  }

  /// Returns the number of samples of one epoch.
  std::int64_t per_epoch() const { return windows_; }
  std::int64_t sequence() const { return sequence_; }

  /// Returns the position in the source of the first token of a sample; samples count from 0.
  std::int64_t start(std::int64_t sample) const {
    const std::int64_t epoch = sample / windows_;
    const std::uint64_t key = random_key(key_, static_cast<std::uint64_t>(epoch));
    const auto offset = static_cast<std::int64_t>(
        below(static_cast<std::uint64_t>(offsets_), philox(key, 0, offset_counter)[0]));
    return range_.begin + offset + permutation(windows_, key)(sample % windows_) * sequence_;
  }

private:
  /// `stream` keeps these numbers apart from other random numbers of the same seed.
  static constexpr std::uint64_t stream = 0x77696e646f7773u;
  /// offset_counter is no round number of permutation, whose key is the same.
  static constexpr std::uint64_t offset_counter = 0x7068617365u;

  const token_source* source_;
  token_range range_;
  std::int64_t sequence_;
  std::uint64_t key_;
  std::int64_t windows_ = 0, offsets_ = 0;
};

/// evaluation_windows cuts a running text into windows for evaluation. N tokens give N - 1
/// predictions, each made exactly once. Window w has the inputs [w*S, w*S + S) of the range, and
/// the label of an input is the token after it. The last window may have fewer inputs. The rest of
/// it, and every window from count() on, has token 0 and ignored_label.
class evaluation_windows final : public sample_set {
public:
  /// Prepares windows of `source`, which must outlive them. Throws mc::error(exit_code::data) if
  /// the range has fewer than 2 tokens.
  evaluation_windows(const token_source& source, token_range range, std::int64_t sequence,
                     std::string_view part_name = "validation")
      : source_(&source), range_(range), sequence_(sequence) {
    require_prediction(source, range, part_name);
  }

  std::int64_t count() const { return (predictions() + sequence_ - 1) / sequence_; }
  std::int64_t predictions() const { return range_.size() - 1; }
  std::int64_t sequence() const { return sequence_; }
  /// Returns the number of labels of window w that count in the loss.
  std::int64_t predictions(std::int64_t w) const {
    return std::clamp<std::int64_t>(predictions() - w * sequence_, 0, sequence_);
  }

  std::int64_t size() const override { return count(); }
  const std::string& name() const override { return source_->name(); }
  void fill(std::int64_t w, const sample_row& row) const override {
    const auto n = static_cast<std::size_t>(predictions(w));
    if (n > 0) {
      source_->copy(range_.begin + w * sequence_, row.tokens.first(n));
      source_->copy(range_.begin + w * sequence_ + 1, row.labels.first(n));
    }
    std::ranges::fill(row.tokens.subspan(n), 0);
    std::ranges::fill(row.labels.subspan(n), ignored_label);
    one_document(row);
  }

private:
  const token_source* source_;
  token_range range_;
  std::int64_t sequence_;
};

} // namespace mc
