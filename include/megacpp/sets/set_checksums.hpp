// PREFIX.xxh64 holds the checksums of an indexed dataset beside it, with a line for each file, as
// xxhsum -H64 writes and checks them.
#pragma once

#include <megacpp/io/checksum.hpp>
#include <megacpp/sets/indexed_dataset.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mc {

/// Returns the lines of PREFIX.xxh64 for the present bytes of the files. Throws
/// mc::error(exit_code::data).
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

/// Returns whether these lines have the checksums of a dataset's files. The files may have had
/// other names when the lines were written.
inline bool is_of(const indexed_dataset& data, std::string_view lines) {
  const auto sums_of = [](std::string_view text) {
    std::string sums;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
      const std::string_view line = text.substr(0, end);
      const std::size_t name = std::min(line.find(' '), line.size());
      sums += line.substr(0, name);
      sums += line.substr(std::max(std::min(line.rfind('.'), line.size()), name));
      text.remove_prefix(end);
    }
    return sums;
  };
  return sums_of(lines) == sums_of(checksum_lines(data));
}

} // namespace mc
