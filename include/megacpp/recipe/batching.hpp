// The batching that a user writes: the sequences and tokens of a micro-batch.
#pragma once

#include <megacpp/recipe/source_line.hpp>

namespace mc {

/// The number of sequences of a micro-batch on one replica, and the number of tokens of a sequence.
struct batching {
  int micro = 1;
  int sequence = 1024;
  bool packed = false;   ///< documents are packed, and attention stays within a document
  int expert_rows = 0;   ///< rows that a rank's experts take at once; 0: 1.25 times the average
  int micro_batches = 0; ///< micro-batches of a step on each replica at most; 0: any number
  written_at at = here();

  constexpr source_line line() const { return at.outside(__FILE__); }
};

} // namespace mc
