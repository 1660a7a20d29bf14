// Every rank of a mesh, and how often they hold the elements of a tensor.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <laws/simulated_ranks.hpp>

namespace test {

using namespace mc;
using laws::balanced_position;
using laws::world;

/// f(coordinates, world, rank) for every rank of a mesh, with some replicas.
template <class F> void for_each_rank(const mesh& m, F f) {
  world w;
  for (int a = 0; a < axes; ++a)
    w.size[static_cast<unsigned>(a)] =
        m.sized(static_cast<axis>(a)) ? m.of(static_cast<axis>(a)) : 2;
  for (int rank = 0; rank < w.ranks(); ++rank) {
    coordinates c{};
    for (int a = 0; a < axes; ++a)
      c[static_cast<unsigned>(a)] = w.coordinate(rank, static_cast<axis>(a));
    f(c, w, rank);
  }
}

/// For every element that a rank holds of a value, in order: its index in the logical value, by
/// plain loops. Outer axes of a dim cut first; what an axis of unknown size cuts is a rank's own.
inline std::vector<std::int64_t> plain_indices(const world& w, const mesh& m, const value& v,
                                               int rank) {
  std::vector<std::int64_t> out{0};
  for (int i = 0; i < v.rank; ++i) {
    const extent& e = v.dims[static_cast<unsigned>(i)];
    std::int64_t first = 0, n = e.n;
    for (int level = 0; level < axes; ++level)
      for (int a = 0; a < axes; ++a)
        if (const place p = v.at[axis(a)]; p.is_shard(e.d) && p.level == level && m.sized(axis(a)))
          n /= w.of(axis(a)), first += w.coordinate(rank, axis(a)) * n;
    std::vector<std::int64_t> next;
    for (std::int64_t outer : out)
      for (std::int64_t j = first; j < first + n; ++j)
        next.push_back(outer * e.n +
                       (e.o == order::balanced ? balanced_position(j, e.n, w.of(axis::cp)) : j));
    out = std::move(next);
  }
  return out;
}

/// How often the ranks that agree on all axes which do not cut a value hold each element of it.
class coverage {
public:
  void add(const value& v, const coordinates& rank, std::int64_t at) {
    coordinates replica = rank;
    for (unsigned a = 0; a < static_cast<unsigned>(axes); ++a)
      if (v.at.at[a].s == state::shard) replica[a] = 0;
    auto& times = of_[replica];
    times.resize(static_cast<std::size_t>(global_size(v).n));
    ++times.at(static_cast<std::size_t>(at));
  }
  bool once() const {
    return !of_.empty() && std::ranges::all_of(of_, [](const auto& replica) {
      return std::ranges::all_of(replica.second, [](int n) { return n == 1; });
    });
  }

private:
  std::map<coordinates, std::vector<int>> of_;
};

} // namespace test
