// A communicator for ranks whose memory the host does not see, over one that moves memory of the
// host. It copies what a rank sends to the host, has it exchanged there, and copies what a rank
// receives to the device.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/staging_memory.hpp>
#include <megacpp/exec/device.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace mc {

class staged_ranks final : public communicator {
public:
  /// `below`: the plane of ranks that moves memory of the host. `of`: the device whose memory is
  /// exchanged; it must outlive this object.
  staged_ranks(std::unique_ptr<communicator> below, device& of)
      : communicator(below->ranks(), below->rank(), plane::ranks, below->bits()),
        below_(std::move(below)),
        memory_(of.mirrored()) {}
  bool in_one_process() const override { return below_->in_one_process(); }
  void give_up() noexcept override { below_->give_up(); }
  const char* way() const override { return "through memory of the host"; }

private:
  /// An exchange that was started and not waited for.
  struct record {
    ticket below;
    arena in, out; ///< memory of the host
    std::byte* to; ///< memory of the device
    std::int64_t bytes;
  };

  std::unique_ptr<communicator> ranks_for(device& on) override { return below_->make_ranks(on); }

  ticket begin(const exchange& x, const group& g, lane* on) override {
    const std::int64_t size = size_of(x.type);
    const bool given = x.what != collective::broadcast || x.peer == g.rank();
    const std::int64_t in = given ? x.elements_in(g.size()) * size : 0;
    record r{{},
             memory_.take(in),
             memory_.take(x.elements_out(g.size()) * size),
             static_cast<std::byte*>(x.out),
             x.elements_out(g.size()) * size};
    if (in > 0) on->mirror(r.in.data(), static_cast<const std::byte*>(x.in), in);
    exchange of_host = x;
    of_host.in = r.in.data(), of_host.out = r.out.data();
    r.below = below_->start(*on, of_host); // runs behind the copy, since it waits for the lane
    started_.push_back(std::move(r));
    return started_.back().below;
  }
  void finish(lane& on, ticket t) override {
    const auto at =
        std::ranges::find_if(started_, [&](const record& r) { return r.below.number == t.number; });
    if (at == started_.end()) refuse_ticket();
    below_->wait(on, t);
    on.write(at->to, at->out.data(), at->bytes); // the lane has read the bytes when this returns
    memory_.give_back(std::move(at->in)), memory_.give_back(std::move(at->out));
    started_.erase(at);
  }
  std::size_t finish_any(std::span<const ticket> any) override { return below_->wait_any(any); }

  std::unique_ptr<communicator> below_;
  staging_memory memory_;
  std::vector<record> started_;
};

} // namespace mc
