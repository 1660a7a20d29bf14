// The communicator of a run of one rank: its values stay where they are.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/device.hpp>

#include <cstring>

namespace mc {

/// A run's only rank. Every group is this rank alone. An exchange is a copy by the host or on
/// the lane, or nothing if it is in place; it is done when it is started.
class self final : public communicator {
public:
  explicit self(plane moves)
      : communicator(mesh::one_rank(), 0, moves, reduced_bits::of_rank_order) {}

  /// Returns one object for all runs of one rank in this process and all devices, since it has no
  /// state.
  static self& hosts() {
    static self one(plane::hosts);
    return one;
  }
  static self& ranks() {
    static self one(plane::ranks);
    return one;
  }
  static planes both() { return {hosts(), ranks()}; }

  std::unique_ptr<communicator> ranks_for(device& /*on*/) override {
    return std::make_unique<self>(plane::ranks);
  }

private:
  ticket begin(const exchange& x, const group& g, lane* on) override {
    const std::int64_t n = x.elements_in(g.size());
    if (n != x.elements_out(g.size()))
      refuse_exchange(x, "this rank would give itself " + std::to_string(n) +
                             " elements and take " + std::to_string(x.elements_out(g.size())) +
                             ": let both be the same");
    const std::int64_t bytes = n * size_of(x.type);
    if (bytes == 0 || x.in == x.out) return {0};
    if (on == nullptr) std::memcpy(x.out, x.in, static_cast<std::size_t>(bytes));
    else on->copy(static_cast<std::byte*>(x.out), static_cast<const std::byte*>(x.in), bytes);
    return {0};
  }
  void finish(lane& /*on*/, ticket /*t*/) override {}
  std::size_t finish_any(std::span<const ticket> /*any*/) override { return 0; }
};

} // namespace mc
