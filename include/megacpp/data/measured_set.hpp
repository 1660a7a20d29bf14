// Sets of samples on which a loss is measured.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/data/sample_set.hpp>
#include <megacpp/io/checksum.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace mc {

/// Samples on which a loss is measured. Where there are several such sets, the name tells them
/// apart.
struct measured_set {
  std::string name;
  std::shared_ptr<const sample_set> samples;
  /// The number of samples of one evaluation, where each evaluation goes on behind the one before,
  /// as in Megatron-LM. With 0, each takes all samples, or some that are spread evenly.
  std::int64_t samples_per_evaluation = 0;

  /// Returns how many samples one evaluation takes. Sets without samples_per_evaluation give at
  /// most `limit`.
  std::int64_t count(std::int64_t limit) const {
    return samples_per_evaluation > 0 ? samples_per_evaluation : std::min(limit, samples->size());
  }
  /// Returns the number of sample i of the n = count(limit) that evaluation number `number` takes.
  /// It follows from neither micro-batch nor layout, so that these change a loss by rounding alone.
  std::int64_t sample(std::int64_t i, std::int64_t n, std::int64_t number) const {
    const std::int64_t all = samples->size();
    if (samples_per_evaluation > 0) return (number * samples_per_evaluation + i) % all;
    return all / n * i + all % n * i / n; // i all / n, which may not fit
  }
};

/// Returns a hash of what the first evaluation of a set takes, at most `limit` samples of S tokens:
/// of their number, and of the tokens and labels of up to 1024 of them. Throws mc::error.
inline std::uint64_t hash_of(const measured_set& set, std::int64_t limit, std::int64_t sequence) {
  const std::int64_t n = set.count(limit), looked_at = std::min<std::int64_t>(n, 1024);
  micro_batch one(1, sequence);
  xxh64 hash;
  hash.add(std::as_bytes(std::span(&n, 1)));
  for (std::int64_t i = 0; i < looked_at; ++i) {
    one.fill(*set.samples, set.sample(n / looked_at * i, n, 0));
    hash.add(std::as_bytes(one.tokens())), hash.add(std::as_bytes(one.labels()));
  }
  return hash.value();
}

} // namespace mc
