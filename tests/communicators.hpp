// The promises of every communicator (comm/communicator.hpp), as functions that all ranks of a
// backend call. Each returns a sentence about a fault on its rank, or nothing. The expected values
// are computed by plain loops from the numbers of ranks alone.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/device.hpp>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <type_traits>
#include <vector>

namespace mc_test {

/// Finds groups by brute force. Coordinates of ranks come by counting, tp and etp fastest; the
/// members of a group are the ranks that agree on all other axes of its mesh.
class plain_groups {
public:
  explicit plain_groups(const mc::mesh& m) {
    using enum mc::axis;
    for (int pipeline = 0; pipeline < m.of(pp); ++pipeline)
      for (int data = 0; data < m.of(dp); ++data)
        for (int context = 0; context < m.of(cp); ++context)
          for (int tensor = 0; tensor < m.of(tp); ++tensor)
            dense_.push_back({{{dp, data}, {cp, context}, {tp, tensor}, {pp, pipeline}}});
    for (int pipeline = 0; pipeline < m.of(pp); ++pipeline)
      for (int data = 0; data < m.of(edp); ++data)
        for (int expert = 0; expert < m.of(ep); ++expert)
          for (int tensor = 0; tensor < m.of(etp); ++tensor)
            expert_.push_back({{{edp, data}, {ep, expert}, {etp, tensor}, {pp, pipeline}}});
  }
  /// Returns the numbers of a group's ranks, in ascending order.
  std::vector<int> of(mc::axis_set over, int rank) const {
    const auto& at = over.meets(mc::expert_axes) ? expert_ : dense_;
    std::vector<int> members;
    for (std::size_t r = 0; r < at.size(); ++r) {
      bool same = true;
      for (std::size_t k = 0; k < 4; ++k)
        same = same && (over.has(at[r][k].first) ||
                        at[r][k].second == at[static_cast<std::size_t>(rank)][k].second);
      if (same) members.push_back(static_cast<int>(r));
    }
    return members;
  }

private:
  using row = std::array<std::pair<mc::axis, int>, 4>;
  std::vector<row> dense_, expert_;
};

/// A plane of a rank, hosts or ranks, with one interface for the functions below. Exchanges of
/// ranks are on a lane, in memory that the host sees once the lane is finished.
class plane_of_rank {
public:
  explicit plane_of_rank(mc::communicator& hosts) : c_(hosts) {}
  plane_of_rank(mc::communicator& ranks, mc::lane& on) : c_(ranks), on_(&on) {}

  const mc::mesh& ranks() const { return c_.ranks(); }
  int rank() const { return c_.rank(); }
  mc::group over(mc::axis_set axes) const { return c_.over(axes); }
  mc::ticket start(const mc::exchange& x) {
    return on_ != nullptr ? c_.start(*on_, x) : c_.start(x);
  }
  void wait(mc::ticket t) {
    if (on_ == nullptr) return c_.wait(t);
    c_.wait(*on_, t);
    on_->finish();
  }
  void run(const mc::exchange& x) { wait(start(x)); }

private:
  mc::communicator& c_;
  mc::lane* on_ = nullptr;
};

/// Returns every set of axes that forms groups.
inline std::vector<mc::axis_set> all_groups() {
  std::vector<mc::axis_set> all;
  for (unsigned bits = 0; bits < 1u << mc::axes; ++bits) {
    mc::axis_set over;
    over.bits = static_cast<std::uint8_t>(bits);
    if (on_one_mesh(over)) all.push_back(over);
  }
  return all;
}

/// Returns 64 bits that depend on all arguments (splitmix64).
inline std::uint64_t bits_of(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = a * 0x9E3779B97F4A7C15u + b * 0xBF58476D1CE4E5B9u + 0x632BE59BD9B4E019u;
  for (int round = 0; round < 2; ++round) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return x;
}
/// Returns element i of the values that a rank gives. Their magnitudes differ so much that another
/// order of a sum, or a narrower sum, gives other bits; sums of integers wrap around.
template <class T> T given(int rank, std::int64_t i) {
  const std::uint64_t x =
      bits_of(static_cast<std::uint64_t>(rank) + 1, static_cast<std::uint64_t>(i));
  if constexpr (std::is_integral_v<T>) return static_cast<T>(x);
  else {
    const double y =
        std::ldexp(static_cast<double>(x >> 12) * 0x1p-51 - 1, static_cast<int>(x % 20) - 10);
    return mc::convert<T>(y);
  }
}
/// Returns elements [first, first + n) of the values that a rank gives. Most of them are computed
/// once.
template <class T> std::vector<T> given(int rank, std::int64_t first, std::int64_t n) {
  constexpr int ranks = 64;
  constexpr std::int64_t kept = 1 << 14;
  static std::array<std::once_flag, ranks> made;
  static std::array<std::vector<T>, ranks> rows;
  std::vector<T> x;
  if (rank >= ranks || first + n > kept) {
    for (std::int64_t i = 0; i < n; ++i) x.push_back(given<T>(rank, first + i));
    return x;
  }
  const auto k = static_cast<std::size_t>(rank);
  std::call_once(made[k], [&] {
    for (std::int64_t i = 0; i < kept; ++i) rows[k].push_back(given<T>(rank, i));
  });
  x.assign(rows[k].begin() + first, rows[k].begin() + first + n);
  return x;
}
/// Returns the sums of elements [first, first + n) over ranks, in the order that the contract
/// demands.
template <class T>
std::vector<T> summed(const std::vector<int>& members, std::int64_t first, std::int64_t n) {
  constexpr bool whole = std::is_integral_v<T>;
  using sum =
      std::conditional_t<whole, std::uint64_t, std::conditional_t<sizeof(T) == 8, double, float>>;
  std::vector<sum> s(static_cast<std::size_t>(n));
  for (std::size_t k = 0; k < members.size(); ++k) {
    const std::vector<T> x = given<T>(members[k], first, n);
    for (std::size_t i = 0; i < x.size(); ++i) {
      sum one;
      if constexpr (whole) one = static_cast<sum>(x[i]);
      else one = mc::convert<sum>(x[i]);
      s[i] = k == 0 ? one : s[i] + one;
    }
  }
  std::vector<T> all;
  for (const sum x : s)
    if constexpr (whole) all.push_back(static_cast<T>(x));
    else all.push_back(mc::convert<T>(x));
  return all;
}

/// Memory that receives values, with margins that must not be written.
template <class T> class landing {
public:
  explicit landing(std::size_t n) : n_(n), bytes_((n + 2 * margin) * sizeof(T), 0xa5) {}
  T* data() { return reinterpret_cast<T*>(bytes_.data()) + margin; }
  /// Returns how the memory differs from the expected values; "" if it does not.
  std::string difference(const std::vector<T>& want) {
    if (want.size() != n_) return "the test expects another size";
    for (std::size_t i = 0; i < margin * sizeof(T); ++i)
      if (bytes_[i] != 0xa5 || bytes_[bytes_.size() - 1 - i] != 0xa5)
        return "something beside it is written";
    if (std::memcmp(data(), want.data(), n_ * sizeof(T)) == 0) return "";
    for (std::size_t i = 0; i < n_; ++i)
      if (std::memcmp(data() + i, want.data() + i, sizeof(T)) != 0)
        return "element " + std::to_string(i) + " of " + std::to_string(n_) + " is another";
    return "it has changed while it was looked at";
  }

private:
  static constexpr std::size_t margin = 8;
  std::size_t n_;
  std::vector<unsigned char> bytes_;
};

/// Returns the number of elements that rank a gives rank b, which differs from pair to pair.
constexpr std::int64_t ragged(int a, int b) { return (a * 5 + b * 3) % 4 * (b == 2 ? 40 : 1); }

/// Runs every exchange of elements of T over one group, with `n` elements a rank, and sums if T has
/// a sum. Returns the faults.
template <class T> std::string exchanges_of(plane_of_rank& c, const plain_groups& plain,
                                            mc::axis_set over, std::int64_t n) {
  const mc::dtype t = sizeof(T) == 1 ? mc::dtype::u8 : mc::dtype_of<T>;
  const std::vector<int> members = plain.of(over, c.rank());
  const mc::group g = c.over(over);
  const int size = static_cast<int>(members.size());
  if (g.size() != size) return "the group has " + std::to_string(g.size()) + " ranks";
  for (int i = 0; i < size; ++i)
    if (g[i] != members[static_cast<std::size_t>(i)]) return "a rank of the group is another";
  if (g[g.rank()] != c.rank()) return "the rank has another number in its group";
  const int me = g.rank();

  std::string wrong;
  const auto say = [&](const char* what, const std::string& why) {
    if (!why.empty()) wrong += std::string(what) + ": " + why + "; ";
  };
  const auto checked = [&](const char* what, const mc::exchange& x, landing<T>& out,
                           const std::vector<T>& want) {
    c.run(x);
    say(what, out.difference(want));
  };
  const auto count = static_cast<std::size_t>(n), all = count * static_cast<std::size_t>(size);
  const std::vector<T> mine = given<T>(c.rank(), 0, n), wide = given<T>(c.rank(), 0, n * size);
  const std::vector<T> mine_before = mine, wide_before = wide;
  {
    landing<T> out(all);
    std::vector<T> want;
    for (int r : members)
      for (T x : given<T>(r, 0, n)) want.push_back(x);
    checked("all-gather", mc::exchange::all_gather(over, t, mine.data(), out.data(), n), out, want);
    landing<T> in_place(all);
    std::copy(mine.begin(), mine.end(), in_place.data() + me * n);
    checked("all-gather in place",
            mc::exchange::all_gather(over, t, in_place.data() + me * n, in_place.data(), n),
            in_place, want);
  }
  {
    landing<T> out(all);
    std::vector<T> want;
    for (int r : members)
      for (T x : given<T>(r, me * n, n)) want.push_back(x);
    checked("all-to-all", mc::exchange::all_to_all(over, t, wide.data(), out.data(), n), out, want);
  }
  {
    std::vector<std::int64_t> gives, takes;
    std::vector<T> want;
    for (int i = 0; i < size; ++i) {
      std::int64_t before = 0; // elements that rank i gives to the ranks before this one
      for (int k = 0; k < me; ++k) before += n > 0 ? ragged(i, k) : 0;
      gives.push_back(n > 0 ? ragged(me, i) : 0), takes.push_back(n > 0 ? ragged(i, me) : 0);
      for (T x : given<T>(members[static_cast<std::size_t>(i)], before, takes.back()))
        want.push_back(x);
    }
    std::int64_t total = 0;
    for (std::int64_t k : gives) total += k;
    const std::vector<T> in = given<T>(c.rank(), 0, total);
    landing<T> out(want.size());
    checked("all-to-all by counts",
            mc::exchange::all_to_all(over, t, in.data(), out.data(), gives, takes), out, want);
  }
  for (int root : {0, size - 1}) {
    landing<T> out(count);
    checked(
        "broadcast",
        mc::exchange::broadcast(over, t, me == root ? mine.data() : nullptr, out.data(), n, root),
        out, given<T>(members[static_cast<std::size_t>(root)], 0, n));
  }
  if constexpr (sizeof(T) > 1) {
    std::vector<T> sum = summed<T>(members, 0, n);
    const std::vector<T> part = summed<T>(members, me * n, n);
    landing<T> out(count), in_place(count), scattered(count);
    checked("all-reduce", mc::exchange::all_reduce(over, t, mine.data(), out.data(), n), out, sum);
    std::copy(mine.begin(), mine.end(), in_place.data());
    checked("all-reduce in place",
            mc::exchange::all_reduce(over, t, in_place.data(), in_place.data(), n), in_place, sum);
    std::vector<int> holders; // ranks with elements: all but every third
    for (int i = 0; i < size; ++i)
      if (i % 3 != 1) holders.push_back(members[static_cast<std::size_t>(i)]);
    const std::int64_t here = me % 3 == 1 ? 0 : n;
    sum = summed<T>(holders, 0, here);
    landing<T> held(static_cast<std::size_t>(here));
    checked("all-reduce of some", mc::exchange::all_reduce(over, t, mine.data(), held.data(), here),
            held, sum);
    checked("reduce-scatter",
            mc::exchange::reduce_scatter(over, t, wide.data(), scattered.data(), n), scattered,
            part);
    std::vector<T> whole = wide;
    c.run(mc::exchange::reduce_scatter(over, t, whole.data(), whole.data() + me * n, n));
    if (n > 0 && std::memcmp(whole.data() + me * n, part.data(), count * sizeof(T)) != 0)
      wrong += "reduce-scatter in place: the rank's part is another; ";
  }
  if (size > 1) { // around the ring, two at once; receives start first
    const int next = (me + 1) % size, last = (me + size - 1) % size;
    const int from = members[static_cast<std::size_t>(last)];
    landing<T> first(count), second(count);
    const mc::ticket in[] = {c.start(mc::exchange::receive(over, t, first.data(), n, last)),
                             c.start(mc::exchange::receive(over, t, second.data(), n, last))};
    const std::vector<T> then = given<T>(c.rank(), 1000, n);
    const mc::ticket out[] = {c.start(mc::exchange::send(over, t, mine.data(), n, next)),
                              c.start(mc::exchange::send(over, t, then.data(), n, next))};
    for (mc::ticket k : {out[1], in[1], in[0], out[0]}) c.wait(k);
    say("receive", first.difference(given<T>(from, 0, n)));
    say("second receive", second.difference(given<T>(from, 1000, n)));
  }
  if (std::memcmp(mine.data(), mine_before.data(), count * sizeof(T)) != 0 ||
      std::memcmp(wide.data(), wide_before.data(), all * sizeof(T)) != 0)
    wrong += "what is sent is changed; ";
  return wrong;
}

/// Returns element i of the values whose maximum is taken. Some are not numbers, or zeros of either
/// sign.
inline float of_maxima(int rank, std::int64_t i) {
  const std::uint64_t x =
      bits_of(static_cast<std::uint64_t>(rank) + 77, static_cast<std::uint64_t>(i));
  if (i % 7 == 3) return (x & 1) != 0 ? -0.0f : 0.0f;
  if (i % 5 == 4 && x % 4 == 0)
    return std::bit_cast<float>(0x7fc00000u | static_cast<std::uint32_t>(rank));
  return -std::abs(given<float>(rank, i)) - 1; // negative
}
inline float largest(const std::vector<int>& members, std::int64_t i) {
  float most = of_maxima(members[0], i);
  for (int r : members)
    if (std::isnan(most)) break;
    else if (const float x = of_maxima(r, i); x > most || std::isnan(x)) most = x;
  return most;
}
/// Runs the exchanges that reduce by maximum, and returns the faults.
inline std::string maxima_of(plane_of_rank& c, const plain_groups& plain, mc::axis_set over,
                             std::int64_t n) {
  const std::vector<int> members = plain.of(over, c.rank());
  const int size = static_cast<int>(members.size()), me = c.over(over).rank();
  std::string wrong;
  const auto checked = [&](const char* what, const mc::exchange& x, landing<float>& out,
                           const std::vector<float>& want) {
    c.run(x);
    if (const std::string why = out.difference(want); !why.empty())
      wrong += std::string(what) + " by maximum: " + why + "; ";
  };
  std::vector<float> mine, all, part, some;
  for (std::int64_t i = 0; i < n * size; ++i) mine.push_back(of_maxima(c.rank(), i));
  std::vector<int> holders; // ranks with elements: all but every third
  for (int i = 0; i < size; ++i)
    if (i % 3 != 1) holders.push_back(members[static_cast<std::size_t>(i)]);
  const std::int64_t here = me % 3 == 1 ? 0 : n;
  for (std::int64_t i = 0; i < n; ++i) {
    all.push_back(largest(members, i)), part.push_back(largest(members, me * n + i));
    if (i < here) some.push_back(largest(holders, i));
  }
  const auto t = mc::dtype::f32;
  const auto by = mc::reduction::maximum;
  const auto count = static_cast<std::size_t>(n);
  landing<float> out(count), in_place(count), held(static_cast<std::size_t>(here)),
      scattered(count);
  checked("all-reduce", mc::exchange::all_reduce(over, t, mine.data(), out.data(), n, {}, by), out,
          all);
  std::copy_n(mine.begin(), n, in_place.data());
  checked("all-reduce in place",
          mc::exchange::all_reduce(over, t, in_place.data(), in_place.data(), n, {}, by), in_place,
          all);
  checked("all-reduce of some",
          mc::exchange::all_reduce(over, t, mine.data(), held.data(), here, {}, by), held, some);
  checked("reduce-scatter",
          mc::exchange::reduce_scatter(over, t, mine.data(), scattered.data(), n, {}, by),
          scattered, part);
  return wrong;
}

/// Calls f(axes, n) for every group and several sizes. A group with the ranks of an earlier one
/// gets one size only.
template <class F> void every_group_and_size(const mc::mesh& ranks, F f) {
  std::set<unsigned> seen;
  for (const mc::axis_set over : all_groups()) {
    unsigned axes = over.meets(mc::expert_axes) ? 1u << mc::axes : 0;
    for (int a = 0; a < mc::axes; ++a)
      if (over.has(static_cast<mc::axis>(a)) && ranks.of(static_cast<mc::axis>(a)) > 1)
        axes |= 1u << a;
    const bool other = seen.insert(axes).second;
    for (const std::int64_t n : {0, 1, 13, 700})
      if (other || n == 13) f(over, n);
  }
}
/// Runs every exchange for all types, groups and sizes, and returns the faults.
inline std::string every_exchange(plane_of_rank& c) {
  const plain_groups plain(c.ranks());
  std::string wrong;
  const auto of = [&](auto zero, const char* name) {
    every_group_and_size(c.ranks(), [&](mc::axis_set over, std::int64_t n) {
      if (const std::string w = exchanges_of<decltype(zero)>(c, plain, over, n); !w.empty())
        wrong += std::string(name) + " over " + name_of(over) + ": " + w;
    });
  };
  every_group_and_size(c.ranks(), [&](mc::axis_set over, std::int64_t n) {
    if (const std::string w = maxima_of(c, plain, over, n); !w.empty())
      wrong += "f32 over " + name_of(over) + ": " + w;
  });
  of(double{}, "f64"), of(float{}, "f32"), of(mc::bf16{}, "bf16");
  of(std::int32_t{}, "i32"), of(std::int64_t{}, "i64"), of(std::uint8_t{}, "u8");
  return wrong;
}

/// Tests exchanges in flight at once, over several groups and several over one group.
inline std::string exchanges_in_flight(plane_of_rank& c) {
  using enum mc::axis;
  const plain_groups plain(c.ranks());
  constexpr std::int64_t n = 300;
  const mc::axis_set groups[] = {{tp}, {dp, cp}, {ep, etp}, {tp}, {edp}, {dp, cp, tp, pp}};
  std::vector<landing<float>> out;
  std::vector<std::vector<float>> in;
  for (int k = 0; k < 6; ++k) out.emplace_back(n), in.push_back(given<float>(c.rank(), k * n, n));
  std::vector<mc::ticket> tickets;
  for (std::size_t k = 0; k < 6; ++k)
    tickets.push_back(c.start(
        mc::exchange::all_reduce(groups[k], mc::dtype::f32, in[k].data(), out[k].data(), n)));
  std::string wrong;
  for (std::size_t k : {5u, 0u, 3u, 1u, 4u, 2u}) {
    c.wait(tickets[k]);
    const std::vector<float> want =
        summed<float>(plain.of(groups[k], c.rank()), static_cast<std::int64_t>(k) * n, n);
    const std::string w = out[k].difference(want);
    if (!w.empty()) wrong += "all-reduce over " + name_of(groups[k]) + " in flight: " + w + "; ";
  }
  return wrong;
}
/// Many sums over one group at once, of different lengths, so that parts of a later one may come
/// before those of an earlier one.
inline std::string many_in_flight_over_one_group(plane_of_rank& c) {
  const plain_groups plain(c.ranks());
  constexpr std::size_t many = 7;
  std::vector<landing<float>> out;
  std::vector<std::vector<float>> in;
  std::vector<mc::ticket> tickets;
  const auto count = [](std::size_t k) { return k % 2 == 0 ? 2000 : std::int64_t{5}; };
  const auto first = [](std::size_t k) { return static_cast<std::int64_t>(k) * 2000; };
  for (std::size_t k = 0; k < many; ++k)
    out.emplace_back(count(k)), in.push_back(given<float>(c.rank(), first(k), count(k)));
  for (std::size_t k = 0; k < many; ++k)
    tickets.push_back(c.start(mc::exchange::all_reduce(mc::everyone, mc::dtype::f32, in[k].data(),
                                                       out[k].data(), count(k))));
  std::string wrong;
  for (std::size_t i = 0; i < many; ++i) {
    const std::size_t k = (i * 5 + static_cast<std::size_t>(c.rank())) % many; // each has an order
    c.wait(tickets[k]);
    const std::string w =
        out[k].difference(summed<float>(plain.of(mc::everyone, c.rank()), first(k), count(k)));
    if (!w.empty()) wrong += "all-reduce " + std::to_string(k) + " of many: " + w + "; ";
  }
  return wrong;
}

/// Tests ranks that wait in different orders: a rank that waits advances all exchanges that it has
/// started.
inline std::string waited_for_in_any_order(plane_of_rank& c) {
  using enum mc::axis;
  constexpr std::int64_t n = 1000;
  constexpr std::size_t exchanges = 8;
  const mc::axis_set everyone{dp, cp, tp, pp};
  const std::vector<int> members = plain_groups(c.ranks()).of(everyone, c.rank());
  std::vector<landing<float>> out;
  std::vector<std::vector<float>> in;
  std::vector<mc::ticket> tickets;
  for (std::size_t k = 0; k < exchanges; ++k) {
    out.emplace_back(n);
    in.push_back(given<float>(c.rank(), static_cast<std::int64_t>(k) * n, n));
  }
  std::string wrong;
  for (int round = 0; round < 10; ++round) {
    tickets.clear();
    for (std::size_t k = 0; k < exchanges; ++k)
      tickets.push_back(c.start(
          mc::exchange::all_reduce(everyone, mc::dtype::f32, in[k].data(), out[k].data(), n)));
    for (std::size_t k = 0; k < exchanges; ++k) {
      const std::size_t next =
          (k * (c.rank() % 2 == 0 ? 3 : 5) + static_cast<std::size_t>(c.rank())) % exchanges;
      c.wait(tickets[next]);
      if (round > 0) continue;
      const std::vector<float> want =
          summed<float>(members, static_cast<std::int64_t>(next) * n, n);
      wrong += out[next].difference(want);
    }
  }
  return wrong;
}

/// Tests that `in` and `out` belong to the rank again when wait returns: it overwrites them at
/// once.
inline std::string written_over(plane_of_rank& c) {
  using enum mc::axis;
  constexpr std::size_t n = 40'000;
  const int ranks = ranks_of(c.ranks());
  std::vector<float> in(n), out(n);
  std::int64_t wrong = 0;
  for (int round = 0; round < 25; ++round) {
    std::fill(in.begin(), in.end(), static_cast<float>(round + c.rank()));
    c.run(mc::exchange::all_reduce({dp, cp, tp, pp}, mc::dtype::f32, in.data(), out.data(), n));
    const int sum = ranks * round + ranks * (ranks - 1) / 2;
    wrong += std::count(out.begin(), out.end(), static_cast<float>(sum)) != n;
    std::fill(in.begin(), in.end(), -1.0f), std::fill(out.begin(), out.end(), -1.0f);
  }
  return wrong == 0 ? "" : std::to_string(wrong) + " sums are wrong";
}

/// Tests exchanges of both planes in flight at once. Some ranks wait for the one of hosts first,
/// some for the one of ranks: a rank that waits advances both. They start them in one order, or in
/// different orders.
inline std::string both_planes(plane_of_rank& hosts, plane_of_rank& ranks, bool in_one_order) {
  using enum mc::axis;
  const mc::axis_set everyone{dp, cp, tp, pp};
  const std::vector<int> members = plain_groups(ranks.ranks()).of(everyone, ranks.rank());
  constexpr std::int64_t n = 3000;
  std::string wrong;
  for (int round = 0; round < 10; ++round) {
    std::vector<float> in[2], want[2];
    std::vector<landing<float>> out(2, landing<float>(n));
    for (int k = 0; k < 2; ++k) { // equal sizes and groups, so that a mix-up shows
      in[k] = given<float>(ranks.rank(), k * n, n);
      want[k] = summed<float>(members, k * n, n);
    }
    const auto sum = [&](std::size_t k) {
      return mc::exchange::all_reduce(everyone, mc::dtype::f32, in[k].data(), out[k].data(), n);
    };
    mc::ticket of_hosts, of_ranks;
    const bool hosts_first = in_one_order || ranks.rank() % 2 == 0;
    if (hosts_first) of_hosts = hosts.start(sum(0));
    of_ranks = ranks.start(sum(1));
    if (!hosts_first) of_hosts = hosts.start(sum(0));
    if ((ranks.rank() + round) % 2 == 0) hosts.wait(of_hosts), ranks.wait(of_ranks);
    else ranks.wait(of_ranks), hosts.wait(of_hosts);
    for (std::size_t k = 0; k < 2; ++k) wrong += out[k].difference(want[k]);
  }
  return wrong;
}

/// Tests that messages of one channel between two ranks may overtake those of another.
inline std::string channels(plane_of_rank& c) {
  const mc::axis_set over{mc::axis::dp, mc::axis::cp, mc::axis::tp, mc::axis::pp};
  const mc::group g = c.over(over);
  if (g.size() == 1) return "";
  constexpr std::int64_t n = 300;
  const int next = (g.rank() + 1) % g.size(), last = (g.rank() + g.size() - 1) % g.size();
  std::vector<std::vector<float>> out;
  std::vector<landing<float>> in(3, landing<float>(n));
  std::vector<mc::ticket> tickets;
  for (int k = 0; k < 3; ++k) {
    out.push_back(given<float>(c.rank(), k * n, n));
    tickets.push_back(
        c.start(mc::exchange::send(over, mc::dtype::f32, out.back().data(), n, next, {}, k)));
  }
  std::string wrong;
  for (int k : {2, 0, 1}) {
    landing<float>& to = in[static_cast<std::size_t>(k)];
    c.run(mc::exchange::receive(over, mc::dtype::f32, to.data(), n, last, {}, k));
    wrong += to.difference(given<float>(g[last], k * n, n));
  }
  for (mc::ticket t : tickets) c.wait(t);
  return wrong;
}

/// Tests that no rank leaves a barrier before all ranks of its group have come. `came`: one count
/// for each rank, at 0.
inline std::string barriers(plane_of_rank& c, std::atomic<int>* came) {
  const plain_groups plain(c.ranks());
  std::string wrong;
  int round = 0;
  for (mc::axis_set over : all_groups()) {
    came[c.rank()].store(++round);
    c.run(mc::exchange::barrier(over));
    for (int r : plain.of(over, c.rank()))
      if (came[r].load() < round) wrong += "a barrier over " + name_of(over) + " lets go early; ";
  }
  return wrong;
}

/// Tests that exchanges which no group can do are refused by a sentence that names them.
inline std::string refusals_of(plane_of_rank& c) {
  using enum mc::axis;
  std::string wrong;
  float x[4]{}, y[4]{};
  const std::vector<std::int64_t> none, negative(static_cast<std::size_t>(c.over(tp).size()), -1),
      many(static_cast<std::size_t>(c.over(tp).size()) + 1, 0);
  const auto refused = [&](const mc::exchange& e, const char* sentence) {
    std::string says = "nothing";
    try {
      c.run(e);
    } catch (const mc::error& error) {
      says = error.what();
    }
    if (says.find(sentence) == std::string::npos)
      wrong += std::string("\"") + sentence + "\" is refused by: " + says + "; ";
  };
  const auto t = mc::dtype::f32;
  using e = mc::exchange;
  refused(e::all_reduce({tp, ep}, t, x, y, 4),
          "all-reduce over tp x ep: its axes are of two meshes");
  refused(e::all_gather(tp, t, x, y, -1), "all-gather over tp: it has -1 elements");
  refused(e::all_reduce(tp, mc::dtype::u8, x, y, 1), "bytes have no sum");
  refused(e::all_reduce(tp, mc::dtype::f64, x, y, 1, {}, mc::reduction::maximum),
          "a maximum is of f32, not of f64");
  refused(e::all_to_all(tp, t, x, y, many, many), "it has counts for");
  refused(e::all_to_all(tp, t, x, y, negative, negative), "a count is negative");
  refused(e::broadcast(tp, t, x, y, 1, c.over(tp).size(), {12, "models/mine.hpp"}),
          "broadcast over tp at mine.hpp:12: there is no rank");
  refused(e::send(tp, t, x, 1, -1), "there is no rank -1 in the group");
  refused(e::send(tp, t, x, 1, c.over(tp).rank()), "a rank has what it would send itself");
  refused(e::all_reduce(tp, t, nullptr, y, 1), "an address is null");
  refused(e{mc::collective::slice, tp, t, x, y, 1}, "slice over tp: it is no matter of several");
  return wrong;
}

} // namespace mc_test
