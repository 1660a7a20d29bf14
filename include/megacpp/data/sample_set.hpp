// What a training step or an evaluation reads: numbered sequences of tokens with what goes with
// them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace mc {

/// A label that is not counted in the loss.
inline constexpr std::int32_t ignored_label = -100;

/// One sequence of a micro-batch, to be filled: S integers each.
struct sample_row {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> labels;    ///< of the next token; ignored_label: no loss
  std::span<std::int32_t> positions; ///< 0 ... S-1, or from 0 again at each document
  std::span<std::int32_t> documents; ///< attention stays within equal numbers; 0, or rising from 0
};

/// Positions and documents of a row that is one document.
inline void one_document(const sample_row& row) {
  std::int32_t position = 0;
  for (std::int32_t& p : row.positions) p = position++;
  std::ranges::fill(row.documents, 0);
}

/// Numbered samples of one sequence length. Sample i is a pure function of the set and i, so that
/// no layout, micro-batch or resumption changes what is trained on.
class sample_set {
public:
  virtual ~sample_set() = default;
  /// Samples that there are; those of training may go on without end (INT64_MAX).
  virtual std::int64_t size() const = 0;
  /// Fills all four of a row. Safe from several threads. Throws mc::error(exit_code::data) naming
  /// file and place for what is no token of the vocabulary.
  virtual void fill(std::int64_t sample, const sample_row& row) const = 0;
  /// What messages call it.
  virtual const std::string& name() const = 0;
  /// The order of the samples follows from the seed and from this, which a longer run may change:
  /// the epochs of each set, as "3", or as "2+1" where the last is shuffled apart. "" is nothing.
  virtual std::string order() const { return ""; }
};

} // namespace mc
