// A communicator: one rank's way to the others. run/ knows it by this class, a call at a time, and
// kernels by c.comm(). A backend has two functions, begin and finish.
//
//   c.run(exchange::all_gather(axis::tp, dtype::bf16, part, whole, n));     over tp, at once
//   const ticket t = c.start(exchange::all_reduce({axis::dp, axis::cp}, dtype::f32, x, x, n));
//   ...                                                                     meanwhile
//   c.wait(t);                                          or wait_any, for one of several
//
// What backends promise, and tests/communicators.hpp asks of each:
//   - all ranks of a group start the same exchanges over it in the same order, and of two ranks one
//     sends in the order in which the other receives; several may be in flight, over several
//     groups, and are waited for once each, in any order;
//   - start waits for no other rank; until wait returns, `in` is not written and `out` not touched,
//     and after it `out` is whole and `in` free;
//   - sums are taken in the order of the ranks, from the first on: of bf16 in fp32, rounded once at
//     the end, of fp32 in fp32, of fp64 in fp64, of integers modulo 2^32 or 2^64; a maximum is of
//     fp32: the largest, of equals the first rank's, or the first that is not a number. So they
//     have the same bits on every rank, in every run and from every backend (reduce_in_rank_order);
//   - of an all-reduce, ranks may have nothing: their count is 0, and the result is the
//     others';
//   - `in` and `out` are apart, or one in place of the other: those of an all-reduce the same, `in`
//     of an all-gather the rank's part of `out`, `out` of a reduce-scatter its part of `in`, of
//     which the other parts are of no use then.
// Both lie in the memory that the communicator was made for, as a device's kernels see it.
#pragma once

#include <megacpp/comm/group.hpp>
#include <megacpp/graph/wire.hpp>
#include <megacpp/io/error.hpp>

#include <cstddef>
#include <span>
#include <string>

namespace mc {

/// "tp", or "ep x etp"; "one rank" of no axis.
inline std::string name_of(axis_set over) {
  std::string name;
  for (int a = 0; a < axes; ++a)
    if (over.has(static_cast<axis>(a)))
      name += (name.empty() ? "" : " x ") + std::string(name_of(static_cast<axis>(a)));
  return name.empty() ? "one rank" : name;
}

/// What one rank asks of the ranks of a group. `n` is the group's size, `count` of elements:
///
///                      in                    out
///   all_reduce         count                 count: the sum, or the maximum
///   all_gather         count                 n count: each rank's, in their order
///   reduce_scatter     n count               count: the same of everyone's rank-th part
///   all_to_all         n count               n count: part i goes to rank i, and comes from it
///   ... by counts      the sum of `gives`    the sum of `takes`: parts of these sizes, in order
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
  std::span<const std::int64_t> gives{}, takes{}; ///< elements for and from each rank, until start
  int peer = -1;      ///< the root, or the other rank: its number in the group
  int channel = 0;    ///< between two ranks: one is received in the order in which it is sent
  source_line line{}; ///< of the model, that caused it
  collective before = collective::none; ///< it tells of such a one, whose name it has
  reduction by = reduction::sum;        ///< of an all-reduce or a reduce-scatter

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
  /// Elements that a rank of n hands in.
  std::int64_t elements_in(int n) const {
    switch (what) {
    case collective::reduce_scatter: return n * count;
    case collective::all_to_all: return by_counts() ? total(gives) : n * count;
    case collective::receive:
    case collective::barrier: return 0;
    default: return count;
    }
  }
  /// Elements that it gets.
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

/// An exchange that was started, to be waited for once.
struct [[nodiscard]] ticket {
  std::int64_t number = -1;
};

class communicator {
public:
  /// One of the ranks of a mesh. Throws mc::error(exit_code::mismatch) if the expert mesh does not
  /// fold over the ranks of the dense one.
  communicator(const mesh& m, int rank) : mesh_(m), rank_(rank) {
    if (!is_whole(m))
      throw error(exit_code::mismatch,
                  "edp x ep x etp does not count the ranks of dp x cp x tp: give a number of ranks "
                  "that both divide");
    at_ = coordinates_of(m, rank);
  }
  communicator(const communicator&) = delete;
  communicator& operator=(const communicator&) = delete;
  virtual ~communicator() = default;

  /// All sizes are known, those of dp and edp too.
  const mesh& ranks() const { return mesh_; }
  /// This rank's number, and its coordinate on every axis.
  int rank() const { return rank_; }
  const coordinates& coordinate() const { return at_; }
  group over(axis_set axes_of_it) const { return group(mesh_, axes_of_it, rank_); }
  /// Whether all ranks are threads of this process, which have its files, flags and signals.
  virtual bool in_one_process() const { return true; }

  /// Throws mc::error(exit_code::internal) for what no group can do. What a backend throws when
  /// another rank does not come, it throws here or in wait.
  ticket start(const exchange& x) {
    if (!on_one_mesh(x.over)) refuse(x, "its axes are of two meshes: name those of one");
    const group g = over(x.over);
    require_sound(x, g);
    return begin(x, g);
  }
  void wait(ticket t) { finish({&t, 1}); }
  /// Waits for one of several, whichever is over first, and returns its place among them.
  std::size_t wait_any(std::span<const ticket> any) { return finish(any); }
  /// For who ends with exchanges that it has started and cannot wait for, as the run has failed:
  /// afterwards no other rank touches its memory, and the others' exchanges throw.
  virtual void give_up() noexcept {}
  void run(const exchange& x) { wait(start(x)); }

protected:
  /// What was asked for, and why it cannot be.
  [[noreturn, gnu::cold]] static void refuse(const exchange& x, const std::string& why,
                                             exit_code code = exit_code::internal) {
    std::string where;
    if (x.line.number > 0) where = std::string(" at ") + text_of(x.line).c_str();
    throw error(code, std::string(name_of(x)) + " over " + name_of(x.over) + where + ": " + why);
  }
  /// An exchange that was started and never waited for.
  [[noreturn, gnu::cold]] static void refuse_left(const exchange& x) {
    refuse(x, "it was started and not waited for: wait for every ticket");
  }

private:
  virtual ticket begin(const exchange&, const group&) = 0;
  /// Until one of them is over: its place.
  virtual std::size_t finish(std::span<const ticket> any) = 0;

  static void require_sound(const exchange& x, const group& g) {
    if (!waits(x.what)) refuse(x, "it is no matter of several ranks: do it without a communicator");
    if (x.count < 0) refuse(x, "it has " + std::to_string(x.count) + " elements: give at least 0");
    if (x.reduces() && x.type == dtype::u8) refuse(x, "bytes have no sum: give the elements' type");
    if (x.reduces() && x.by == reduction::maximum && x.type != dtype::f32)
      refuse(x, std::string("a maximum is of f32, not of ") + name_of(x.type) + ": give f32");
    if (x.by_counts()) {
      if (std::ssize(x.gives) != g.size() || std::ssize(x.takes) != g.size())
        refuse(x, "it has counts for " + std::to_string(x.gives.size()) + " ranks and of " +
                      std::to_string(x.takes.size()) + ": give one for each of " +
                      std::to_string(g.size()));
      for (int i = 0; i < g.size(); ++i)
        if (x.gives[static_cast<unsigned>(i)] < 0 || x.takes[static_cast<unsigned>(i)] < 0)
          refuse(x, "a count is negative: give at least 0");
    }
    const bool pair = x.what == collective::send || x.what == collective::receive;
    if (pair || x.what == collective::broadcast) {
      if (x.peer < 0 || x.peer >= g.size())
        refuse(x, "there is no rank " + std::to_string(x.peer) + " in the group: it has " +
                      std::to_string(g.size()));
      if (pair && x.peer == g.rank())
        refuse(x, "a rank has what it would send itself: leave it out");
    }
    const bool gives = x.what != collective::broadcast || x.peer == g.rank();
    if ((gives && x.in == nullptr && x.elements_in(g.size()) > 0) ||
        (x.out == nullptr && x.elements_out(g.size()) > 0))
      refuse(x, "an address is null: give what is sent and where it goes");
  }

  mesh mesh_;
  int rank_;
  coordinates at_{};
};

} // namespace mc
