// A plane of a rank whose backend copies and adds up on the host, as threads and MPI do. The
// backend has an engine for each rank, which both planes share: what the rank has started on them,
// and how far it is.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/staged_ranks.hpp>
#include <megacpp/exec/device.hpp>

#include <memory>
#include <span>

namespace mc {

/// Engine has
///   ticket begin(plane, const exchange&, const group&, lane*)   the exchange is started
///   std::size_t finish(std::span<const ticket>)          one of these is over: its place
///   void give_up() noexcept                              as communicator::give_up
///   static constexpr bool in_one_process
///   static constexpr bool has_lanes   whether `begin` can move memory that the host does not see,
///                                     on the lane that it is given. Otherwise such memory goes by
///                                     way of the host (staged_ranks)
template <class Engine> class host_plane final : public communicator {
public:
  /// `of` must outlive this. `by_lanes`: the host does not see the memory, and lanes move it.
  host_plane(Engine& of, const mesh& m, int rank, plane moves, bool by_lanes = false)
      : communicator(m, rank, moves, reduced_bits::of_rank_order), of_(of), by_lanes_(by_lanes) {}
  bool in_one_process() const override { return Engine::in_one_process; }
  void give_up() noexcept override { of_.give_up(); }
  const char* way() const override { return by_lanes_ ? "within the device" : ""; }

private:
  std::unique_ptr<communicator> ranks_for(device& on) override {
    const bool unseen = !on.host_sees();
    auto ranks = std::make_unique<host_plane>(of_, this->ranks(), rank(), plane::ranks,
                                              unseen && Engine::has_lanes);
    if (unseen && !Engine::has_lanes) return std::make_unique<staged_ranks>(std::move(ranks), on);
    return ranks;
  }
  ticket begin(const exchange& x, const group& g, lane* on) override {
    if (on != nullptr) on->finish(); // from now on others read and write the memory
    return of_.begin(moves(), x, g, by_lanes_ ? on : nullptr);
  }
  void finish(lane& /*on*/, ticket t) override { of_.finish({&t, 1}); }
  std::size_t finish_any(std::span<const ticket> any) override { return of_.finish(any); }

  Engine& of_;
  bool by_lanes_;
};

} // namespace mc
