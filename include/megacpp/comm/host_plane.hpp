// A plane of a rank whose backend meets on the host, as threads and MPI do, and copies and adds up
// there, or on a lane beside the one that computes. The backend has an engine for each rank, which
// both planes share: what the rank has started on them, and how far it is.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/exchange_lane.hpp>
#include <megacpp/comm/staged_ranks.hpp>
#include <megacpp/exec/device.hpp>

#include <memory>
#include <optional>
#include <span>

namespace mc {

/// Engine has
///   ticket begin(plane, const exchange&, const group&)   the exchange is started
///   std::size_t finish(std::span<const ticket>)          one of these is over: its place
///   void give_up() noexcept                              as communicator::give_up
///   static constexpr bool in_one_process
///   static constexpr bool has_lanes   whether it can move memory that the host does not see.
///                                     Otherwise such memory goes by way of the host (staged_ranks)
/// and, where it has lanes,
///   ticket begin(..., exchange_lane&, std::shared_ptr<event>)   the exchange is done on a lane,
///                                                               behind the event
///   std::size_t finish(..., lane&)   what this lane is given from here on is done behind it; the
///                                    host may return before
template <class Engine> class host_plane final : public communicator {
public:
  /// `unseen`: a device whose memory the host does not see; its exchanges are work of a lane beside
  /// its own. It must outlive this, as `of` must.
  host_plane(Engine& of, const mesh& m, int rank, plane moves, device* unseen = nullptr)
      : communicator(m, rank, moves, reduced_bits::of_rank_order), of_(of) {
    if (unseen != nullptr) beside_.emplace(*unseen);
  }
  bool in_one_process() const override { return Engine::in_one_process; }
  /// Lanes of other ranks may still read this rank's memory of a device afterwards; who frees that
  /// memory waits for them (memory_space::release).
  void give_up() noexcept override { of_.give_up(); }
  const char* way() const override { return beside_ ? "within the device" : ""; }

private:
  std::unique_ptr<communicator> ranks_for(device& on) override {
    const bool unseen = !on.host_sees();
    auto ranks = std::make_unique<host_plane>(of_, this->ranks(), rank(), plane::ranks,
                                              unseen && Engine::has_lanes ? &on : nullptr);
    if (unseen && !Engine::has_lanes) return std::make_unique<staged_ranks>(std::move(ranks), on);
    return ranks;
  }
  ticket begin(const exchange& x, const group& g, lane* on) override {
    if constexpr (Engine::has_lanes)
      if (beside_) return of_.begin(moves(), x, g, *beside_, beside_->mark(*on));
    if (on != nullptr) on->finish(); // from now on others read and write the memory
    return of_.begin(moves(), x, g);
  }
  void finish(lane& on, ticket t) override {
    if constexpr (Engine::has_lanes)
      if (beside_) return void(of_.finish({&t, 1}, on));
    of_.finish({&t, 1});
  }
  std::size_t finish_any(std::span<const ticket> any) override { return of_.finish(any); }

  Engine& of_;
  std::optional<exchange_lane> beside_; ///< of a device whose memory the host does not see
};

} // namespace mc
