// Checksums of an indexed data set, beside it: PREFIX.xxh64 has a line for each file, as xxhsum
// -H64 writes and checks them.
#pragma once

#include <megacpp/data/indexed_dataset.hpp>
#include <megacpp/io/checksum.hpp>

#include <algorithm>
#include <span>
#include <string>

#include <fmt/format.h>

namespace mc {

/// The lines of PREFIX.xxh64 for the files as they are. Throws mc::error(exit_code::data).
inline std::string checksum_lines(const indexed_dataset& data) {
  const std::string name = data.name().substr(data.name().rfind('/') + 1);
  const auto sum = [&](std::span<const std::byte> bytes) {
    xxh64 hash;
    while (!bytes.empty()) {
      data.check_unchanged();
      const auto piece = bytes.first(std::min<std::size_t>(bytes.size(), 16 << 20));
      hash.add(piece);
      bytes = bytes.subspan(piece.size());
    }
    return hash.value();
  };
  return fmt::format("{:016x}  {}.bin\n{:016x}  {}.idx\n", sum(data.bin_bytes()), name,
                     sum(data.idx_bytes()), name);
}

} // namespace mc
