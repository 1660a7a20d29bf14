// A communicator: one rank's way to the other ranks. A rank has two objects of this class, one for
// each plane, that is, for each kind of memory. `hosts` moves memory of the host: values that ranks
// agree on, check, or write into files. It exists before a device is opened. `ranks` moves memory
// of a device, on a lane of that device; run/ uses it through this class, and kernels through
// c.comm(). No message goes from one plane to the other. A backend begins exchanges, finishes them
// (on a lane, or any of several), and makes its ranks (ranks_for). A backend whose ranks are
// processes says so (in_one_process), and gives up the exchanges of a run that has failed.
//
//   hosts.run(exchange::all_gather(everyone, dtype::i64, &mine, all, 1));      at once
//   const ticket t = hosts.start(exchange::barrier(everyone));
//   ...                                                                        meanwhile
//   hosts.wait(t);                                         or wait_any, for one of several
//
//   const auto ranks = hosts.make_ranks(device);
//   ranks->run(lane, exchange::all_reduce({axis::dp, axis::cp}, dtype::f32, x, x, n));
//   const ticket u = ranks->start(lane, exchange::send(axis::pp, dtype::bf16, y, n, next));
//   ...                                                                        meanwhile
//   ranks->wait(lane, u);
//
// An exchange on a lane begins when the lane reaches its start. Work that is put on the lane after
// `wait` runs behind the exchange: `wait` holds back the lane, and need not hold back the host.
//
// Backends promise for each plane, and tests/communicators.hpp tests it:
//   - All ranks of a group start the same exchanges over it in the same order, and a rank receives
//     from another rank in the order in which that rank sends. Several exchanges may be in flight,
//     over several groups and both planes. Each is waited for once, in any order.
//   - `start` waits for no other rank. `in` is not written and `out` not touched until `wait` has
//     returned (hosts), or until the lane has reached the wait (ranks). Then `out` is complete and
//     `in` is free.
//   - If ranks ask for different exchanges, the wait for that exchange throws, where the backend's
//     wait is one of the host.
//   - Ranks may have nothing to add to an all-reduce: their count is 0, and the result is that of
//     the other ranks.
//   - `in` and `out` are apart, or in place: for an all-reduce they are the same, for an all-gather
//     `in` is the rank's shard of `out`, and for a reduce-scatter `out` is the rank's shard of
//     `in`, whose other shards have no defined values afterwards.
// A backend's `bits` say which bits a reduction leaves (enum class reduced_bits).
#pragma once

#include <megacpp/comm/group.hpp>
#include <megacpp/graph/wire.hpp>
#include <megacpp/io/error.hpp>

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace mc {

class device;
class lane;

/// Returns a set of axes as text: "tp", or "ep x etp"; "one rank" for no axis.
inline std::string name_of(axis_set over) {
  std::string name;
  for (int a = 0; a < axes; ++a)
    if (over.has(static_cast<axis>(a)))
      name += (name.empty() ? "" : " x ") + std::string(name_of(static_cast<axis>(a)));
  return name.empty() ? "one rank" : name;
}

/// An exchange that one rank asks of its group. `n` is the number of ranks in the group, `count` a
/// number of elements:
///
///                      in                    out
///   all_reduce         count                 count: the sum, or the maximum
///   all_gather         count                 n count: each rank's elements, in the order of ranks
///   reduce_scatter     n count               count: sum or maximum of all ranks' rank-th shards
///   all_to_all         n count               n count: shard i goes to rank i, and comes from it
///   ... by counts      the sum of `gives`    the sum of `takes`: shards of these sizes, in order
///   broadcast          count, of the root    count
///   send, receive      count                 count
///   barrier            nothing               nothing
struct exchange {
  collective what = collective::barrier;
  axis_set over{};
  dtype type = dtype::u8;
  const void* in = nullptr;
  void* out = nullptr;
  std::int64_t count = 0;
  std::span<const std::int64_t> gives{}, takes{}; ///< elements for and from each rank; read by
                                                  ///< start alone
  int peer = -1;      ///< the root, or the other rank of a pair: its number in the group
  int channel = 0;    ///< between two ranks: the messages of a channel keep their order
  source_line line{}; ///< line of the model that caused the exchange
  collective before = collective::none; ///< kind of the exchange that this one describes
  reduction by = reduction::sum;        ///< sum or maximum, where it reduces

  static exchange all_reduce(axis_set over, dtype t, const void* in, void* out, std::int64_t count,
                             source_line line = {}, reduction by = reduction::sum) {
    return {collective::all_reduce, over, t, in, out, count, {}, {}, -1, 0, line,
            collective::none,       by};
  }
  static exchange all_gather(axis_set over, dtype t, const void* in, void* out, std::int64_t count,
                             source_line line = {}) {
    return {collective::all_gather, over, t, in, out, count, {}, {}, -1, 0, line};
  }
  static exchange reduce_scatter(axis_set over, dtype t, const void* in, void* out,
                                 std::int64_t count, source_line line = {},
                                 reduction by = reduction::sum) {
    return {collective::reduce_scatter, over, t, in, out, count, {}, {}, -1, 0, line,
            collective::none,           by};
  }
  static exchange all_to_all(axis_set over, dtype t, const void* in, void* out, std::int64_t count,
                             source_line line = {}) {
    return {collective::all_to_all, over, t, in, out, count, {}, {}, -1, 0, line};
  }
  static exchange all_to_all(axis_set over, dtype t, const void* in, void* out,
                             std::span<const std::int64_t> gives,
                             std::span<const std::int64_t> takes, source_line line = {}) {
    return {collective::all_to_all, over, t, in, out, 0, gives, takes, -1, 0, line};
  }
  static exchange broadcast(axis_set over, dtype t, const void* in, void* out, std::int64_t count,
                            int root, source_line line = {}) {
    return {collective::broadcast, over, t, in, out, count, {}, {}, root, 0, line};
  }
  static exchange send(axis_set over, dtype t, const void* in, std::int64_t count, int to,
                       source_line line = {}, int channel = 0) {
    return {collective::send, over, t, in, nullptr, count, {}, {}, to, channel, line};
  }
  static exchange receive(axis_set over, dtype t, void* out, std::int64_t count, int from,
                          source_line line = {}, int channel = 0) {
    return {collective::receive, over, t, nullptr, out, count, {}, {}, from, channel, line};
  }
  static exchange barrier(axis_set over, source_line line = {}) {
    return {collective::barrier, over, dtype::u8, nullptr, nullptr, 0, {}, {}, -1, 0, line};
  }

  bool by_counts() const { return !gives.empty() || !takes.empty(); }
  bool reduces() const {
    return what == collective::all_reduce || what == collective::reduce_scatter;
  }
  /// Returns the number of elements that one of n ranks hands in.
  std::int64_t elements_in(int n) const {
    switch (what) {
    case collective::reduce_scatter: return n * count;
    case collective::all_to_all: return by_counts() ? total(gives) : n * count;
    case collective::receive:
    case collective::barrier: return 0;
    default: return count;
    }
  }
  /// Returns the number of elements that one of n ranks gets.
  std::int64_t elements_out(int n) const {
    switch (what) {
    case collective::all_gather: return n * count;
    case collective::all_to_all: return by_counts() ? total(takes) : n * count;
    case collective::send:
    case collective::barrier: return 0;
    default: return count;
    }
  }

private:
  static std::int64_t total(std::span<const std::int64_t> counts) {
    std::int64_t n = 0;
    for (std::int64_t c : counts) n += c;
    return n;
  }
};

inline const char* name_of(const exchange& x) {
  return name_of(x.before == collective::none ? x.what : x.before);
}

/// Throws a sentence that names the exchange and says why it cannot be done.
[[noreturn, gnu::cold]] inline void refuse_exchange(const exchange& x, const std::string& why,
                                                    exit_code code = exit_code::internal) {
  std::string where;
  if (x.line.number > 0) where = std::string(" at ") + text_of(x.line).c_str();
  throw error(code, std::string(name_of(x)) + " over " + name_of(x.over) + where + ": " + why);
}
/// Throws the sentence about an exchange that was started and never waited for.
[[noreturn, gnu::cold]] inline void refuse_left(const exchange& x) {
  refuse_exchange(x, "it was started and not waited for: wait for every ticket");
}
/// Throws the sentence about a ticket whose exchange is not in flight.
[[noreturn, gnu::cold]] inline void refuse_ticket() {
  throw error(exit_code::internal, "a ticket was waited for twice: wait for each exchange once");
}

/// A ticket stands for an exchange that was started, and is given to `wait` once.
struct [[nodiscard]] ticket {
  std::int64_t number = -1;
};

/// A plane is the kind of memory that a communicator moves: of the host, or of a device.
enum class plane : std::uint8_t { hosts, ranks };

/// The backend promises this about the bits that a reduction leaves. All ranks get the same bits.
enum class reduced_bits : std::uint8_t {
  /// Values are added in the order of the ranks, from the first rank on: bf16 in fp32, rounded once
  /// at the end, fp32 in fp32, fp64 in fp64, integers modulo 2^32 or 2^64. A maximum is of fp32:
  /// the largest value; among equal ones the first rank's, or the first that is not a number. So
  /// the bits are the same in every run and in every backend that promises the same
  /// (reduce_in_rank_order): threads, MPI, and a single rank.
  of_rank_order,
  /// The library adds values in an order of its own, as NCCL does: another number of ranks or
  /// another machine may leave other bits. Sums of integers are as above.
  of_library
};

class communicator {
public:
  /// Makes the communicator of one rank of a mesh. Throws mc::error(exit_code::mismatch) if the
  /// expert mesh does not fold over the ranks of the dense mesh.
  communicator(const mesh& m, int rank, plane moves, reduced_bits bits)
      : mesh_(m), rank_(rank), plane_(moves), bits_(bits) {
    if (!is_whole(m))
      throw error(exit_code::mismatch,
                  "edp x ep x etp does not count the ranks of dp x cp x tp: give a number of ranks "
                  "that both divide");
    at_ = coordinates_of(m, rank);
  }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;

  /// The mesh, with all sizes known, those of dp and edp too.
  const mesh& ranks() const { return mesh_; }
  /// This rank's number in the run, and its coordinate on every axis.
  int rank() const { return rank_; }
  const coordinates& coordinate() const { return at_; }
  group over(axis_set axes_of_it) const { return group(mesh_, axes_of_it, rank_); }
  plane moves() const { return plane_; }
  reduced_bits bits() const { return bits_; }
  /// Returns whether all ranks are threads of this process, which share its files, flags and
  /// signals.
  virtual bool in_one_process() const { return true; }

  /// A phrase for people that says how ranks exchange memory that the host does not see; "" for
  /// memory that the host sees.
  virtual const char* way() const { return ""; }

  /// Makes this rank's communicator for memory of `on`, while all other ranks make theirs. `on` and
  /// this object must outlive it. Ranks that are threads, and whose memory the host does not see,
  /// must share one device, each through a device object of its own.
  std::unique_ptr<communicator> make_ranks(device& on) {
    require_plane(plane::hosts);
    return ranks_for(on);
  }

  /// Starts an exchange. Throws mc::error(exit_code::internal) for an exchange that no group can
  /// do, for a lane that is missing, and for a lane that is given to hosts. The error about another
  /// rank that does not come is thrown here or by `wait`, as the backend has it.
  ticket start(const exchange& x) { return start_on(nullptr, x); }
  void wait(ticket t) { wait_any({&t, 1}); }
  /// Waits until one of several exchanges is over, and returns its index in `any`.
  std::size_t wait_any(std::span<const ticket> any) {
    require_plane(plane::hosts);
    return finish_any(any);
  }
  void run(const exchange& x) { wait(start(x)); }
  /// The following functions do the same on a lane of the device.
  ticket start(lane& on, const exchange& x) { return start_on(&on, x); }
  void wait(lane& on, ticket t) {
    require_plane(plane::ranks);
    finish(on, t);
  }
  void run(lane& on, const exchange& x) { wait(on, start(on, x)); }

  /// Gives up all exchanges that were started and cannot be waited for, because the run has failed.
  /// Afterwards no other rank touches this rank's memory, and the exchanges of other ranks throw.
  virtual void give_up() noexcept {}

private:
  virtual std::unique_ptr<communicator> ranks_for(device& on) = 0;
  /// Begins an exchange on a lane. Exchanges of ranks always have a lane, those of hosts never.
  virtual ticket begin(const exchange&, const group&, lane* on) = 0;
  /// Lets the lane go on behind the exchange.
  virtual void finish(lane& on, ticket t) = 0;
  /// Waits until one of these exchanges is over, and returns its index.
  virtual std::size_t finish_any(std::span<const ticket> any) = 0;

  void require_plane(plane asked) const {
    if (asked != plane_)
      throw error(exit_code::internal,
                  asked == plane::ranks
                      ? "a lane was given to hosts, which move memory of the host: ask ranks"
                      : "no lane was given to ranks, which move memory of a device: give one, or "
                        "ask hosts");
  }
  ticket start_on(lane* on, const exchange& x) {
    require_plane(on != nullptr ? plane::ranks : plane::hosts);
    if (!on_one_mesh(x.over)) refuse_exchange(x, "its axes are of two meshes: name those of one");
    const group g = over(x.over);
    require_sound(x, g);
    return begin(x, g, on);
  }

  static void require_sound(const exchange& x, const group& g) {
    if (!waits(x.what))
      refuse_exchange(x, "it is no matter of several ranks: do it without a communicator");
    if (x.count < 0)
      refuse_exchange(x, "it has " + std::to_string(x.count) + " elements: give at least 0");
    if (x.reduces() && x.type == dtype::u8)
      refuse_exchange(x, "bytes have no sum: give the elements' type");
    if (x.reduces() && x.by == reduction::maximum && x.type != dtype::f32)
      refuse_exchange(x,
                      std::string("a maximum is of f32, not of ") + name_of(x.type) + ": give f32");
    if (x.by_counts()) {
      if (std::ssize(x.gives) != g.size() || std::ssize(x.takes) != g.size())
        refuse_exchange(x, "it has counts for " + std::to_string(x.gives.size()) +
                               " ranks and of " + std::to_string(x.takes.size()) +
                               ": give one for each of " + std::to_string(g.size()));
      for (int i = 0; i < g.size(); ++i)
        if (x.gives[static_cast<unsigned>(i)] < 0 || x.takes[static_cast<unsigned>(i)] < 0)
          refuse_exchange(x, "a count is negative: give at least 0");
    }
    const bool pair = x.what == collective::send || x.what == collective::receive;
    if (pair || x.what == collective::broadcast) {
      if (x.peer < 0 || x.peer >= g.size())
        refuse_exchange(x, "there is no rank " + std::to_string(x.peer) + " in the group: it has " +
                               std::to_string(g.size()));
      if (pair && x.peer == g.rank())
        refuse_exchange(x, "a rank has what it would send itself: leave it out");
    }
    const bool gives = x.what != collective::broadcast || x.peer == g.rank();
    if ((gives && x.in == nullptr && x.elements_in(g.size()) > 0) ||
        (x.out == nullptr && x.elements_out(g.size()) > 0))
      refuse_exchange(x, "an address is null: give what is sent and where it goes");
  }

  mesh mesh_;
  int rank_;
  plane plane_;
  reduced_bits bits_;
  coordinates at_{};
};

/// The two planes of one rank.
struct planes {
  communicator &hosts, &ranks;
};

} // namespace mc
