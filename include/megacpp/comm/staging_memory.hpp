// Memory of the host for exchanges, which is used again and again. It is reserved in the first
// steps, and kept.
#pragma once

#include <megacpp/exec/device.hpp>

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

namespace mc {

class staging_memory {
public:
  /// Takes its memory from `of`, which must outlive this object.
  explicit staging_memory(memory_space& of) : of_(of) {}

  /// Returns the smallest free piece of memory of at least so many bytes; an empty one for 0 bytes.
  arena take(std::int64_t bytes) {
    if (bytes == 0) return {};
    auto best = free_.end();
    for (auto b = free_.begin(); b != free_.end(); ++b)
      if (b->size() >= bytes && (best == free_.end() || b->size() < best->size())) best = b;
    if (best == free_.end())
      return {of_, static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(bytes))),
              "what ranks send each other", "fewer ranks on this machine"};
    arena taken = std::move(*best);
    free_.erase(best);
    return taken;
  }
  void give_back(arena block) {
    if (block.size() > 0) free_.push_back(std::move(block));
  }

private:
  memory_space& of_;
  std::vector<arena> free_;
};

} // namespace mc
