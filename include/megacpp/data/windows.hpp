// Which tokens a training sample or an evaluation window holds.
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

/// Shuffled training windows. Sample i is a pure function of (tokens, range, S, seed, i), so
/// resuming and any division of samples among ranks and micro-batches see the same sequence.
///
/// An epoch is a shuffle of W windows of S + 1 tokens that begin at multiples of S after a phase
/// drawn for the epoch: with n tokens W = max(1, floor(n / S) - 1), the number that fits at every
/// phase, and phases are [0, min(S, n - W*S)). Window starts thus differ from epoch to epoch, and
/// an epoch leaves out fewer than 2 S tokens.
class training_windows final : public sample_set {
public:
  /// `source` must outlive this. Throws mc::error(exit_code::data) if the range holds no window.
  training_windows(const token_source& source, token_range range, std::int64_t sequence,
                   std::uint64_t seed)
      : source_(&source), range_(range), sequence_(sequence), key_(random_key(seed, stream)) {
    require_window(source, range, "training", sequence);
    windows_ = std::max<std::int64_t>(1, range.size() / sequence - 1);
    phases_ = std::min(sequence, range.size() - windows_ * sequence);
  }

  /// There is always a next epoch.
  std::int64_t size() const override { return std::numeric_limits<std::int64_t>::max(); }
  const std::string& name() const override { return source_->name(); }
  void fill(std::int64_t sample, const sample_row& row) const override {
    source_->copy(start(sample), row.tokens);
    source_->copy(start(sample) + 1, row.labels);
    one_document(row);
  }

  /// Samples of one epoch.
  std::int64_t per_epoch() const { return windows_; }
  std::int64_t sequence() const { return sequence_; }

  /// Position in the source of the first token of sample i >= 0.
  std::int64_t start(std::int64_t sample) const {
    const std::int64_t epoch = sample / windows_;
    const std::uint64_t key = random_key(key_, static_cast<std::uint64_t>(epoch));
    const auto phase = static_cast<std::int64_t>(
        below(static_cast<std::uint64_t>(phases_), philox(key, 0, phase_counter)[0]));
    return range_.begin + phase + permutation(windows_, key)(sample % windows_) * sequence_;
  }

private:
  static constexpr std::uint64_t stream =
      0x77696e646f7773u; // keeps data apart from masks and weights
  static constexpr std::uint64_t phase_counter =
      0x7068617365u; // beyond permutation's round numbers

  const token_source* source_;
  token_range range_;
  std::int64_t sequence_;
  std::uint64_t key_;
  std::int64_t windows_ = 0, phases_ = 0;
};

/// Evaluation windows: N tokens give N - 1 predictions, each made exactly once. Window w has the
/// inputs [w*S, w*S + S) of the range, and the label of an input is the token after it. The last
/// window may be short: its tail, and every window >= count(), is token 0 with ignored_label.
class evaluation_windows final : public sample_set {
public:
  /// `source` must outlive this. Throws mc::error(exit_code::data) if the range has fewer than 2
  /// tokens.
  evaluation_windows(const token_source& source, token_range range, std::int64_t sequence,
                     std::string_view part_name = "validation")
      : source_(&source), range_(range), sequence_(sequence) {
    require_prediction(source, range, part_name);
  }

  std::int64_t count() const { return (predictions() + sequence_ - 1) / sequence_; }
  std::int64_t predictions() const { return range_.size() - 1; }
  std::int64_t sequence() const { return sequence_; }
  /// Labels of window w that count.
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
