// A plane of a rank for backends whose ranks meet on the host, as threads and MPI do. Such a
// backend copies and adds on the host, or on a lane beside the one that computes. It has an engine
// for each rank, which both planes share: the engine knows which exchanges the rank has started,
// and how far they are.
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
///   ticket begin(plane, const exchange&, const group&)   starts the exchange
///   std::size_t finish(std::span<const ticket>)          waits for one of these, returns its index
///   void give_up() noexcept                              as communicator::give_up
///   static constexpr bool in_one_process
///   static constexpr bool has_lanes   whether it can move memory that the host does not see.
///                                     Otherwise such memory goes through the host (staged_ranks).
/// and, where it has lanes,
///   ticket begin(..., exchange_lane&, std::shared_ptr<event>)   starts the exchange on a lane,
///                                                               behind the event
///   std::size_t finish(..., lane&)   has this lane go on behind the exchange; the host may return
///                                    before
template <class Engine> class host_plane final : public communicator {
public:
  /// `unseen`: a device whose memory the host does not see, or nullptr. Its exchanges are work of a
  /// lane beside its own. `unseen` and `of` must outlive this object.
  host_plane(Engine& of, const mesh& m, int rank, plane moves, device* unseen = nullptr)
      : communicator(m, rank, moves, reduced_bits::of_rank_order), of_(of) {
    if (unseen != nullptr) beside_.emplace(*unseen);
  }
  bool in_one_process() const override { return Engine::in_one_process; }
  /// Gives up all exchanges. Lanes of other ranks may still read this rank's memory of a device
  /// afterwards; memory_space::release waits for them.
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
    if (on != nullptr) on->finish(); // other ranks read and write the memory from now on
    return of_.begin(moves(), x, g);
  }
  void finish(lane& on, ticket t) override {
    if constexpr (Engine::has_lanes)
      if (beside_) return void(of_.finish({&t, 1}, on));
    of_.finish({&t, 1});
  }
  std::size_t finish_any(std::span<const ticket> any) override { return of_.finish(any); }

  Engine& of_;
  std::optional<exchange_lane> beside_; ///< lane for a device whose memory the host does not see
};

} // namespace mc
