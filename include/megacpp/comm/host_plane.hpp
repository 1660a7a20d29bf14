// A plane of a rank whose backend copies and adds up on the host, as threads and MPI do. The
// backend has an engine for each rank, which both planes share: what the rank has started on them,
// and how far it is.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/device.hpp>

#include <memory>
#include <span>
#include <string>

namespace mc {

/// Engine has
///   ticket begin(plane, const exchange&, const group&)   the exchange is started
///   std::size_t finish(std::span<const ticket>)          one of these is over: its place
///   void give_up() noexcept                              as communicator::give_up
///   static constexpr const char* ranks_are               "threads", for messages
///   static constexpr bool in_one_process
template <class Engine> class host_plane final : public communicator {
public:
  /// `of` must outlive this.
  host_plane(Engine& of, const mesh& m, int rank, plane moves)
      : communicator(m, rank, moves, reduced_bits::of_rank_order), of_(of) {}
  bool in_one_process() const override { return Engine::in_one_process; }
  void give_up() noexcept override { of_.give_up(); }

private:
  std::unique_ptr<communicator> ranks_for(device& on) override {
    if (!on.host_sees())
      throw error(exit_code::usage,
                  std::string("ranks as ") + Engine::ranks_are +
                      " move memory that the host sees, and the host does not see "
                      "the memory of this device: use one rank, or a program for "
                      "the CPU");
    return std::make_unique<host_plane>(of_, ranks(), rank(), plane::ranks);
  }
  ticket begin(const exchange& x, const group& g, lane* on) override {
    if (on != nullptr) on->finish(); // from now on the host reads and writes the memory
    return of_.begin(moves(), x, g);
  }
  void finish(lane& /*on*/, ticket t) override { of_.finish({&t, 1}); }
  std::size_t finish_any(std::span<const ticket> any) override { return of_.finish(any); }

  Engine& of_;
};

} // namespace mc
