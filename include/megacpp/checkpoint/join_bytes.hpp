// Ranks that write one file together first join their bytes of it.
#pragma once

#include <megacpp/comm/self.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc {

/// Joins the bytes of a file that several ranks have. Before, each rank has its own bytes and zeros
/// elsewhere; afterwards every rank has all bytes. They are added as integers, so that no bit
/// changes.
inline void join_bytes(communicator& hosts, std::vector<std::byte>& bytes) {
  if (ranks_of(hosts.ranks()) == 1 || bytes.empty()) return;
  constexpr std::size_t word = sizeof(std::int32_t);
  const std::size_t size = bytes.size();
  bytes.resize((size + word - 1) / word * word);
  hosts.run(exchange::all_reduce(everyone, dtype::i32, bytes.data(), bytes.data(),
                                 static_cast<std::int64_t>(bytes.size() / word)));
  bytes.resize(size);
}

} // namespace mc
