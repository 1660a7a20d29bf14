// Ranks as threads of a test, whose exchanges are plain loops: when the last rank of a group has
// come, it copies all inputs and writes all outputs.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/device.hpp>
#include <megacpp/exec/rank_order.hpp>

#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace mc_test {

class simulated_ranks {
public:
  explicit simulated_ranks(const mc::mesh& m) : mesh_(m) {}

  const mc::mesh& ranks() const { return mesh_; }
  /// Calls f(communicator) on every rank, each in a thread. An exception of one rank ends the
  /// others, and is thrown here.
  template <class F> void run(F f) {
    std::vector<std::thread> threads;
    for (int r = 0; r < mc::ranks_of(mesh_); ++r)
      threads.emplace_back([this, r, f] {
        try {
          one_rank hosts(*this, r, mc::plane::hosts);
          f(static_cast<mc::communicator&>(hosts));
        } catch (const ended&) { // another rank throws the reason
          give_up();
        } catch (...) {
          give_up();
          const std::lock_guard<std::mutex> hold(lock_);
          if (wrong_ == nullptr) wrong_ = std::current_exception();
        }
      });
    for (std::thread& t : threads) t.join();
    if (std::exchange(given_up_, false)) meetings_.clear();
    if (wrong_ != nullptr) std::rethrow_exception(std::exchange(wrong_, nullptr));
    if (!meetings_.empty()) throw std::logic_error("an exchange was started and not waited for");
  }

private:
  struct ended : std::runtime_error {
    using std::runtime_error::runtime_error;
  };
  using bytes = std::vector<std::byte>;
  /// A meeting: the exchanges that the ranks of one group have asked for, each in its place.
  struct meeting {
    struct guest {
      mc::exchange x;
      std::vector<std::int64_t> gives, takes;
      bytes in;
    };
    std::vector<guest> guests;
    int came = 0, left = 0;
    const char* wrong = nullptr;
  };
  /// The key of a meeting: the plane; the group by its axes and its first rank, or two ranks; the
  /// number of meetings before it.
  using key = std::tuple<mc::plane, int, int, int, int>;

  class one_rank final : public mc::communicator {
  public:
    one_rank(simulated_ranks& of, int rank, mc::plane moves)
        : communicator(of.mesh_, rank, moves, mc::reduced_bits::of_rank_order), of_(of) {}
    void give_up() noexcept override { of_.give_up(); }
    std::unique_ptr<communicator> ranks_for(mc::device& /*on*/) override {
      return std::make_unique<one_rank>(of_, rank(), mc::plane::ranks);
    }

  private:
    mc::ticket begin(const mc::exchange& x, const mc::group& g, mc::lane* on) override {
      if (on != nullptr) on->finish();
      const bool pair = x.what == mc::collective::send || x.what == mc::collective::receive;
      key k{moves(), x.over.bits, g[0], -1, 0};
      if (pair) {
        const bool gives = x.what == mc::collective::send;
        k = {moves(), -1 - x.channel, gives ? rank() : g[x.peer], gives ? g[x.peer] : rank(), 0};
      }
      std::get<4>(k) = met_[k]++;
      started_.push_back(k);
      of_.join(k, x, pair ? 2 : g.size(),
               pair ? (x.what == mc::collective::send ? 0 : 1) : g.rank());
      return {static_cast<std::int64_t>(started_.size()) - 1};
    }
    void finish(mc::lane& /*on*/, mc::ticket t) override { finish_any({&t, 1}); }
    std::size_t finish_any(std::span<const mc::ticket> any) override {
      std::vector<key> keys;
      for (const mc::ticket t : any) {
        const auto i = static_cast<std::size_t>(t.number);
        if (t.number < 0 || i >= started_.size() || std::get<4>(started_[i]) < 0)
          throw std::logic_error("a ticket is waited for twice");
        keys.push_back(started_[i]);
      }
      const std::size_t left = of_.leave_one(keys);
      std::get<4>(started_[static_cast<std::size_t>(any[left].number)]) = -1;
      return left;
    }

    simulated_ranks& of_;
    std::map<key, int> met_;
    std::vector<key> started_;
  };

  void give_up() noexcept {
    const std::lock_guard<std::mutex> hold(lock_);
    given_up_ = true;
    came_.notify_all();
  }
  void join(const key& k, const mc::exchange& x, int size, int place) {
    const std::lock_guard<std::mutex> hold(lock_);
    if (given_up_) return; // the memory of other ranks may be gone
    meeting& m = meetings_[k];
    m.guests.resize(static_cast<std::size_t>(size));
    meeting::guest& g = m.guests[static_cast<std::size_t>(place)];
    g.x = x, g.gives.assign(x.gives.begin(), x.gives.end());
    g.takes.assign(x.takes.begin(), x.takes.end());
    if (++m.came < size) return;
    move(m);
    came_.notify_all();
  }
  std::size_t leave_one(const std::vector<key>& of) {
    std::unique_lock<std::mutex> hold(lock_);
    std::size_t over = of.size();
    came_.wait(hold, [&] {
      if (given_up_) return true;
      for (over = 0; over < of.size(); ++over)
        if (const meeting& m = meetings_.at(of[over]); m.came == static_cast<int>(m.guests.size()))
          break;
      return over < of.size();
    });
    if (given_up_) throw ended("another rank has ended");
    meeting& m = meetings_.at(of[over]);
    if (m.wrong != nullptr) {
      given_up_ = true;
      came_.notify_all();
      throw std::logic_error(m.wrong);
    }
    if (++m.left == m.came) meetings_.erase(of[over]);
    return over;
  }

  static void move(meeting& m) {
    const int n = static_cast<int>(m.guests.size());
    const mc::exchange& first = m.guests[0].x;
    const auto size = static_cast<std::size_t>(mc::size_of(first.type));
    for (meeting::guest& g : m.guests) {
      g.x.gives = g.gives, g.x.takes = g.takes;
      const bool nothing = g.x.what == mc::collective::all_reduce && g.x.count * first.count == 0;
      if (first.what == mc::collective::send && g.x.count != first.count)
        return; // no element is moved
      if (g.x.type != first.type || (g.x.count != first.count && !nothing) ||
          (g.x.what != first.what && first.what != mc::collective::send))
        return void(m.wrong = "ranks ask for different exchanges");
      if (g.x.in == nullptr) continue;
      const auto* const from = static_cast<const std::byte*>(g.x.in);
      g.in.assign(from, from + static_cast<std::size_t>(g.x.elements_in(n)) * size);
    }
    for (int r = 0; r < n; ++r) {
      meeting::guest& g = m.guests[static_cast<std::size_t>(r)];
      auto* out = static_cast<std::byte*>(g.x.out);
      const auto take = [&](int from, std::int64_t begin, std::int64_t count) {
        const bytes& in = m.guests[static_cast<std::size_t>(from)].in;
        const auto length = static_cast<std::size_t>(count) * size;
        if (length > 0)
          std::memcpy(out, in.data() + static_cast<std::size_t>(begin) * size, length);
        out += length;
      };
      const std::int64_t count = g.x.count;
      switch (g.x.what) {
      case mc::collective::all_reduce: sum(m, g, 0); break;
      case mc::collective::reduce_scatter: sum(m, g, r * count); break;
      case mc::collective::all_gather:
        for (int q = 0; q < n; ++q) take(q, 0, count);
        break;
      case mc::collective::all_to_all:
        for (int q = 0; q < n; ++q) {
          const meeting::guest& from = m.guests[static_cast<std::size_t>(q)];
          std::int64_t begin = r * count;
          for (std::size_t i = 0; g.x.by_counts() && i < static_cast<std::size_t>(r); ++i)
            begin += from.gives[i];
          take(q, begin, g.x.by_counts() ? from.gives[static_cast<std::size_t>(r)] : count);
        }
        break;
      case mc::collective::broadcast: take(g.x.peer, 0, count); break;
      case mc::collective::receive: take(0, 0, count); break;
      default: break;
      }
    }
  }
  static void sum(const meeting& m, const meeting::guest& g, std::int64_t first) {
    std::vector<const void*> parts;
    for (const meeting::guest& o : m.guests)
      if (o.x.count > 0) parts.push_back(o.in.data() + first * mc::size_of(g.x.type));
    if (g.x.count > 0) mc::reduce_in_rank_order(g.x.by, g.x.type, parts, g.x.out, g.x.count);
  }

  mc::mesh mesh_;
  std::mutex lock_;
  std::condition_variable came_;
  std::map<key, meeting> meetings_;
  std::exception_ptr wrong_;
  bool given_up_ = false; ///< a rank has failed, and no element is moved any more
};

} // namespace mc_test
