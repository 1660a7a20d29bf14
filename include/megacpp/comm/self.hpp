// The communicator of one rank in host memory: what would be sent to others stays where it is.
#pragma once

#include <megacpp/comm/communicator.hpp>

#include <cstring>

namespace mc {

/// The one rank of a run. Every group is this rank alone; an exchange is a copy, or nothing where
/// it is in place, and done when it is started.
class self final : public communicator {
public:
  self() : communicator(mesh::one_rank(), 0) {}

  /// For all runs of one rank in this process, since it has no state.
  static self& of_process() {
    static self one;
    return one;
  }

private:
  ticket begin(const exchange& x, const group& g) override {
    const std::int64_t n = x.elements_in(g.size());
    if (n != x.elements_out(g.size()))
      refuse(x, "this rank would give itself " + std::to_string(n) + " elements and take " +
                    std::to_string(x.elements_out(g.size())) + ": let both be the same");
    if (n > 0 && x.in != x.out)
      std::memcpy(x.out, x.in, static_cast<std::size_t>(n * size_of(x.type)));
    return {0};
  }
  std::size_t finish(std::span<const ticket> /*any*/) override { return 0; }
};

} // namespace mc
