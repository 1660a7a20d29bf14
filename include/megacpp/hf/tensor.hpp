// A tensor as Hugging Face's transformers name and lay it out, in terms of the parameters.
#pragma once

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Where the elements of one tensor lie in the program's parameters. The tensor is seen as a matrix
/// (rows, columns); each part is a range of its columns, which a parameter has as (columns, rows).
/// So a tensor of one row is stored as it is, one of many rows is transposed, and one of several
/// parts is a concatenation along its last dim.
struct hf_tensor {
  struct part {
    parameter_ref of;
    global_count first; ///< element of the parameter
    std::int64_t columns = 0;
  };
  std::string name;
  std::vector<std::int64_t> shape;
  std::int64_t rows = 1;
  std::vector<part> parts; ///< none: the program has no such parameter, and the tensor is zero

  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  std::int64_t columns() const { return elements() / rows; }
  /// Elements to move at a time, in whole rows where there are several: few enough that a
  /// transposition finds them in the cache.
  std::int64_t block() const {
    constexpr std::int64_t most = 1 << 16;
    return rows == 1 ? most : std::max<std::int64_t>(1, most / columns()) * columns();
  }

  /// f(i, at) once for every element i in [first, first + count) that a rank's stores hold, where
  /// `at` says. Tensors of several rows are visited in whole rows. Never called where there are no
  /// parts.
  template <class F>
  void each(const stores& s, store_side what, std::int64_t first, std::int64_t count, F f) const {
    const std::int64_t width = columns();
    const std::int64_t row = rows == 1 ? 0 : first / width;
    const std::int64_t last_row = rows == 1 ? 1 : (first + count) / width;
    const std::int64_t low = rows == 1 ? first : 0, high = rows == 1 ? first + count : width;
    std::int64_t start = 0;
    for (const part& p : parts) {
      const stores::held_part held = s.part_of(p.of, what);
      const std::int64_t begin = std::max(low, start), end = std::min(high, start + p.columns);
      // Elements of a column lie side by side; of one row, those of all columns do.
      const std::int64_t together = rows == 1 ? std::max<std::int64_t>(1, end - begin) : 1;
      for (std::int64_t c = begin; c < end; c += together) {
        const std::int64_t from = p.first.n + (c - start) * rows + row;
        held.each_run({from}, {from + together * (last_row - row)},
                      [&](global_count of, std::int64_t at, std::int64_t n) {
                        const std::int64_t i = of.n - from;
                        std::int64_t element = rows == 1 ? c + i : (row + i) * width + c;
                        for (std::int64_t k = 0; k < n; ++k, element += rows == 1 ? 1 : width)
                          f(element, at + k);
                      });
      }
      start += p.columns;
    }
  }

  /// Where what the stores hold of it begins and ends in them: elements [first, second).
  std::pair<std::int64_t, std::int64_t> range(const stores& s, store_side what) const {
    std::pair<std::int64_t, std::int64_t> r{0, 0};
    bool none = true;
    for (const part& p : parts)
      s.part_of(p.of, what)
          .each_run(p.first, {p.first.n + p.columns * rows},
                    [&](global_count, std::int64_t begin, std::int64_t n) {
                      r = {none ? begin : std::min(r.first, begin), std::max(r.second, begin + n)};
                      none = false;
                    });
    return r;
  }

  /// The whole tensor from one of the stores `of`, of type `t`, in double; zeros where they do not
  /// hold it.
  std::vector<double> values(const stores& of, std::byte* store, dtype t) const {
    std::vector<double> out(static_cast<std::size_t>(elements()));
    const auto [begin, end] = range(of, {});
    const host_view seen = of.seen(store, t, begin, end);
    each(of, {}, 0, elements(), [&, first = begin](std::int64_t i, std::int64_t at) {
      out[static_cast<std::size_t>(i)] = stores::get(seen.data(), t, at - first);
    });
    return out;
  }
};

/// The parameters of a program by name, each to be taken once by the mapping of its family.
class hf_parameters {
public:
  explicit hf_parameters(const program_view& p) : program_(p.name) {
    for_each_parameter(p, [&](const parameter_ref& r) {
      by_name_.emplace(r.name, r);
      order_.push_back(r.name);
    });
  }

  bool has(const std::string& name) const { return by_name_.count(name) != 0; }
  /// All names, in the order of the model.
  const std::vector<std::string>& names() const { return order_; }
  parameter_ref take(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw error(exit_code::internal, fmt::format("{} has no parameter {}", program_, name));
    parameter_ref r = at->second;
    by_name_.erase(at);
    return r;
  }
  /// Nothing may be left that a saved model would lack.
  void require_all_taken() const {
    if (!by_name_.empty())
      throw error(exit_code::internal,
                  fmt::format("the parameter {} of {} has no Hugging Face name",
                              by_name_.begin()->first, program_));
  }

private:
  std::string program_;
  std::map<std::string, parameter_ref> by_name_;
  std::vector<std::string> order_;
};

/// A tensor of a program in a file. `shape` is the file's; where one tensor of the file holds
/// several of the program's, a part of it.
struct hf_piece {
  std::string name;             ///< as in the family's list
  std::string_view stored_name; ///< as in the file
  storage_type type{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes; ///< of any alignment
};

/// A tensor of a file that is one of the program's.
inline hf_piece hf_whole(std::string name, const tensor_view& t) {
  return {std::move(name), t.name, t.type, {t.shape.begin(), t.shape.end()}, t.bytes};
}

/// A parameter stored as it is, as a vector or as (out, in): dims that make up one side, heads and
/// head dim, are merged, and padded rows are left out.
inline hf_tensor hf_as_stored(std::string name, const parameter_ref& r) {
  const value& v = *r.v;
  const std::int64_t first = v.dims[0].n, last = v.back().n, all = global_size(v).n;
  const std::int64_t valid = r.info->valid_rows > 0 ? r.info->valid_rows : first;
  hf_tensor t;
  t.name = std::move(name);
  if (v.rank == 1) t.shape = {valid};
  else if (v.rank == 2 && v.back().d == dim::head_dim) t.shape = {all}; // a bias
  else if (v.rank == 2) t.shape = {valid, last};
  else if (v.back().d == dim::hidden) t.shape = {all / last, last};
  else t.shape = {first, all / first};
  t.parts = {{r, {}, t.elements()}};
  return t;
}

} // namespace mc
