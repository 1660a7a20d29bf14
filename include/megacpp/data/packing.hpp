// A packed sequence has several documents. This header turns their cumulative lengths into the
// document numbers and positions that attention reads.
#pragma once

#include <megacpp/io/error.hpp>

#include <cstdint>
#include <span>
#include <string>

namespace mc {

/// Fills document numbers and positions (S each) of one packed sequence from cumulative lengths
/// 0 = c_0 < c_1 < ... < c_n = S, as variable-length attention kernels take them: token t of
/// document i has c_i <= t < c_{i+1} and position t - c_i. Throws mc::error(data) when the lengths
/// do not rise from 0 to S.
inline void unpack_lengths(std::span<const std::int32_t> cumulative,
                           std::span<std::int32_t> documents, std::span<std::int32_t> positions) {
  const auto fail = [](std::size_t i, const std::string& why) {
    throw error(exit_code::data, "cumulative length " + std::to_string(i) +
                                     " of a packed sequence " + why +
                                     ": give lengths that rise from 0 to the sequence length");
  };
  const std::size_t n = documents.size();
  if (positions.size() != n || cumulative.empty() || cumulative[0] != 0) fail(0, "is not 0");
  if (static_cast<std::size_t>(cumulative.back()) != n)
    fail(cumulative.size() - 1, "is " + std::to_string(cumulative.back()) +
                                    ", not the sequence length " + std::to_string(n));
  for (std::size_t i = 0; i + 1 < cumulative.size(); ++i) {
    if (cumulative[i + 1] <= cumulative[i]) fail(i + 1, "does not rise");
    for (std::int32_t t = cumulative[i]; t < cumulative[i + 1]; ++t) {
      documents[static_cast<std::size_t>(t)] = static_cast<std::int32_t>(i);
      positions[static_cast<std::size_t>(t)] = t - cumulative[i];
    }
  }
}

} // namespace mc
