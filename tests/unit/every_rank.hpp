// Every rank of a mesh, counts of the ranks that hold each element of a tensor, and models whose
// parameters ranks hold as one rank does.
#pragma once

#include <boost/test/unit_test.hpp>

#include <megacpp/model/gpt.hpp>
#include <megacpp/model/qwen3.hpp>
#include <megacpp/model/qwen3_moe.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <laws/simulated_ranks.hpp>

namespace test {

using namespace mc;
using laws::balanced_position;
using laws::world;

/// Calls f(coordinates, world, rank) for every rank of a mesh, with some replicas.
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

/// Returns the index in the logical value of every element that a rank holds, in order, by plain
/// loops. Outer axes of a dim cut first; a dim that an axis of unknown size cuts is a rank's own.
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

/// Counts how often each element of a value is held, by the ranks that agree on all axes which do
/// not cut it.
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

inline constexpr gpt tied{
    .layers = 2, .hidden = 16, .heads = 4, .ffn = 32, .vocabulary = 37, .positions = 16};
inline constexpr qwen3 grouped = [] {
  qwen3 m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 24;
  m.vocabulary = 37, m.positions = 16;
  return m;
}();
inline constexpr qwen3_moe experts = [] {
  qwen3_moe m;
  m.layers = 2, m.hidden = 16, m.heads = 4, m.kv_heads = 2, m.head_dim = 8, m.ffn = 24;
  m.expert_ffn = 12, m.experts = 4, m.experts_per_token = 2, m.mlp_only = {0};
  m.vocabulary = 37, m.positions = 16, m.tied = true;
  return m;
}();
/// A mixture that Hugging Face's format cannot hold.
inline constexpr qwen3_moe biased = [] {
  qwen3_moe m = experts;
  m.bias_rate = 0.001, m.shared_ffn = 16;
  return m;
}();

/// Checks that the ranks of a layout hold every element of the parameters of `many`, and as one
/// rank holds them. stores_of(rank) makes a rank's stores, in which alike(stores, here, there,
/// pads) compares element `here` with element `there` of the one rank's, or with a row that pads.
template <class Stores, class Alike>
void hold_what_one_does(const program_view& one, const program_view& many, const layout& l,
                        Stores stores_of, Alike alike) {
  std::map<std::string, parameter_ref> by_name;
  for_each_parameter(one, [&](const parameter_ref& r) { by_name[r.name] = r; });
  std::map<std::string, coverage> seen;
  std::set<std::string> differ;
  for_each_rank(mesh(l), [&](const coordinates& rank, const world& w, int number) {
    const stores mine = stores_of(rank);
    for_each_parameter(many, [&](const parameter_ref& r) {
      const parameter_ref& theirs = by_name.at(r.name);
      const auto logical = plain_indices(w, *r.ranks, *r.v, number);
      BOOST_REQUIRE_EQUAL(r.count.n, static_cast<std::int64_t>(logical.size()));
      for (std::int64_t i = 0; i < r.count.n; ++i) {
        const std::int64_t at = logical[static_cast<std::size_t>(i)];
        const bool pads = at >= unpadded_size(*r.v, *r.info).n;
        if (!alike(mine, r.offset + i, theirs.offset + at, pads)) differ.insert(r.name);
        seen[r.name].add(*r.v, rank, at);
      }
    });
  });
  BOOST_TEST(seen.size() == by_name.size());
  for (const auto& [name, of] : seen) BOOST_TEST(of.once(), name);
  for (const std::string& name : differ)
    BOOST_ERROR(name << " with tp " << l.tp << ", cp " << l.cp << ", ep " << l.ep << ", etp "
                     << l.expert_tp());
}

} // namespace test
