// A training step or an evaluation reads samples: numbered sequences of tokens with their labels,
// positions and document numbers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>

namespace mc {

/// ignored_label is the label of a token that does not count in the loss.
inline constexpr std::int32_t ignored_label = -100;

/// sample_row is one sequence of a micro-batch that is to be filled, with S integers in each span.
struct sample_row {
  std::span<std::int32_t> tokens;
  std::span<std::int32_t> labels;    ///< Each label is the next token, or ignored_label.
  std::span<std::int32_t> positions; ///< Positions count from 0 in each document.
  std::span<std::int32_t> documents; ///< Attention stays within equal document numbers, 0, 1, ...
};

/// Fills the positions and the document numbers of a row that is one document.
inline void one_document(const sample_row& row) {
  std::int32_t position = 0;
  for (std::int32_t& p : row.positions) p = position++;
  std::ranges::fill(row.documents, 0);
}

/// sample_set has numbered samples of one sequence length. Sample i is a pure function of the set
/// and i. So a run trains on the same samples whatever its layout and micro-batch are, and after a
/// restart.
class sample_set {
public:
  virtual ~sample_set() = default;
  /// Returns the number of samples. A set for training may go on without end (INT64_MAX).
  virtual std::int64_t size() const = 0;
  /// Fills all four spans of a row with a sample. Several threads may call it at once. Throws
  /// mc::error(exit_code::data) that names the file and the place of an id that is no token of the
  /// vocabulary.
  virtual void fill(std::int64_t sample, const sample_row& row) const = 0;
  /// Returns the name of the set in messages of errors, such as its path.
  virtual const std::string& name() const = 0;
  /// Returns the number of epochs of each set, as "3", or as "2+1" where the last epoch is shuffled
  /// apart; "" where epochs do not matter. The order of the samples follows from the seed and from
  /// these numbers, which a longer run may change.
  virtual std::string order() const { return ""; }
};

} // namespace mc
