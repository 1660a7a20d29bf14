// What ranks write into one file, each what it answers for.
#pragma once

#include <megacpp/comm/self.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace mc {

/// Puts a block of a file together, of which every rank has what is its own and zeros elsewhere:
/// afterwards all have all of it. The same bits, for they are added as integers.
inline void join_block(communicator& hosts, std::vector<std::byte>& block) {
  if (ranks_of(hosts.ranks()) == 1 || block.empty()) return;
  constexpr std::size_t word = sizeof(std::int32_t);
  const std::size_t size = block.size();
  block.resize((size + word - 1) / word * word);
  hosts.run(exchange::all_reduce(everyone, dtype::i32, block.data(), block.data(),
                                 static_cast<std::int64_t>(block.size() / word)));
  block.resize(size);
}

} // namespace mc
