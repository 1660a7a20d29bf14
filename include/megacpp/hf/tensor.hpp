// hf_tensor describes a tensor, as transformers names it and lays it out, by the program's
// parameters.
#pragma once

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/hf/quantised.hpp>
#include <megacpp/run/stores.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// hf_tensor says where the elements of a file's tensor lie in the program's parameters. Each
/// source is an array of three dims of a parameter's elements: element (a, b, c) has in the
/// parameter the number first + a pitches[0] + b pitches[1] + c, and in the tensor the number
/// at + a strides[0] + b strides[1] + c strides[2]. So a tensor may be a parameter as it is, a part
/// of one, a parameter transposed, or parameters side by side.
struct hf_tensor {
  struct source {
    parameter_ref of;
    global_count first;
    std::array<std::int64_t, 3> extents{1, 1, 1};
    std::array<std::int64_t, 2> pitches{0, 0};
    std::array<std::int64_t, 3> strides{0, 0, 1};
    std::int64_t at = 0;

    std::int64_t elements() const { return extents[0] * extents[1] * extents[2]; }
    /// Returns the number behind that of the source's last element in the parameter.
    std::int64_t end() const {
      return first.n + (extents[0] - 1) * pitches[0] + (extents[1] - 1) * pitches[1] + extents[2];
    }
    /// Calls f(from, n, element) for every run of the source's elements within the tensor's
    /// elements [begin, begin + count): n elements from number `from` of the parameter on, of which
    /// the first is `element` of the tensor, and each further one lies strides[2] behind.
    template <class F> void runs(std::int64_t begin, std::int64_t count, F f) const {
      const std::int64_t n1 = extents[1], n2 = extents[2], stride = strides[2];
      for (std::int64_t a = 0; a < extents[0]; ++a) {
        const std::int64_t least = at + a * strides[0],
                           most = least + (n1 - 1) * strides[1] + (n2 - 1) * stride;
        if (least >= begin + count || most < begin) continue;
        for (std::int64_t b = 0; b < n1; ++b) {
          const std::int64_t row = least + b * strides[1];
          const auto before = [&](std::int64_t element) { // elements of the row before it
            return std::clamp<std::int64_t>((element - row + stride - 1) / stride, 0, n2);
          };
          const std::int64_t low = row >= begin ? 0 : before(begin), high = before(begin + count);
          if (low < high)
            f(first.n + a * pitches[0] + b * pitches[1] + low, high - low, row + low * stride);
        }
      }
    }
  };
  std::string name;
  std::vector<std::int64_t> shape;
  std::vector<source> sources; ///< parameters of the tensor; without any, the tensor is 0

  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
  /// Returns how many elements are moved at a time: few enough to stay in a cache while they are
  /// transposed, and whole rows of a tensor that is transposed.
  std::int64_t stretch() const {
    constexpr std::int64_t most = 1 << 16;
    std::int64_t row = 1;
    for (const source& p : sources) row = std::max(row, p.strides[2]);
    return std::max<std::int64_t>(1, most / row) * row;
  }
  /// Returns whether a tensor (in, out) holds the rows of matrices (out, in) as its columns, as
  /// Conv1D of GPT-2 has them.
  bool is_transposed() const { return !sources.empty() && sources.front().strides[2] != 1; }
  /// Returns the dims (out, in) of a tensor that is one matrix.
  std::vector<std::int64_t> matrix_shape() const {
    return is_transposed() ? std::vector(shape.rbegin(), shape.rend()) : shape;
  }
  /// Adds `count` elements of a parameter, which follow those of earlier sources as they are.
  void append(const parameter_ref& r, global_count from, std::int64_t count) {
    const std::int64_t at = sources.empty() ? 0 : sources.back().at + sources.back().elements();
    sources.push_back({r, from, {1, 1, count}, {0, 0}, {0, 0, 1}, at});
  }

  /// Calls f(i, at) once for every element i in [first, first + count) that this rank's stores
  /// hold; `at` is the element's index in the store. A tensor without sources has no calls.
  template <class F>
  void each(const stores& s, store_side what, std::int64_t first, std::int64_t count, F f) const {
    for (const source& p : sources) {
      const stores::held_elements held = s.held(p.of, what);
      p.runs(first, count, [&](std::int64_t from, std::int64_t n, std::int64_t begin) {
        held.each_contiguous({from}, {from + n},
                             [&](global_count of, std::int64_t at, std::int64_t held_here) {
                               std::int64_t element = begin + (of.n - from) * p.strides[2];
                               for (std::int64_t k = 0; k < held_here; ++k, element += p.strides[2])
                                 f(element, at + k);
                             });
      });
    }
  }

  /// Returns the range [first, second) of a store's elements that has all elements of the tensor
  /// that this rank's stores hold.
  std::pair<std::int64_t, std::int64_t> range(const stores& s, store_side what) const {
    std::pair<std::int64_t, std::int64_t> r{0, 0};
    bool none = true;
    for (const source& p : sources)
      s.held(p.of, what)
          .each_contiguous(
              p.first, {p.end()}, [&](global_count, std::int64_t begin, std::int64_t n) {
                r = {none ? begin : std::min(r.first, begin), std::max(r.second, begin + n)};
                none = false;
              });
    return r;
  }

  /// Returns the whole tensor in double, from a store of type `t`. Elements that this rank does not
  /// hold are zeros.
  std::vector<double> values(const stores& of, std::byte* store, dtype t) const {
    std::vector<double> out(static_cast<std::size_t>(elements()));
    const auto [begin, end] = range(of, {});
    const host_accessor seen = of.seen(store, t, begin, end);
    each(of, {}, 0, elements(), [&, first = begin](std::int64_t i, std::int64_t at) {
      out[static_cast<std::size_t>(i)] = stores::get(seen.data(), t, at - first);
    });
    return out;
  }
};

/// hf_parameters has the parameters of a program's model by name, without the factors of an
/// adapter. A family takes each of them once to name and lay out its tensors.
class hf_parameters {
public:
  explicit hf_parameters(const program_view& p) : program_(p.name) {
    for_each_parameter(p, [&](const parameter_ref& r) {
      if (r.info->added) return;
      by_name_.emplace(r.name, r);
      order_.push_back(r.name);
    });
  }

  bool has(const std::string& name) const { return by_name_.count(name) != 0; }
  /// Returns the names of all parameters, in the order of the model.
  const std::vector<std::string>& names() const { return order_; }
  parameter_ref take(const std::string& name) {
    const auto at = by_name_.find(name);
    if (at == by_name_.end())
      throw error(exit_code::internal, fmt::format("{} has no parameter {}", program_, name));
    parameter_ref r = at->second;
    by_name_.erase(at);
    return r;
  }
  /// Throws where a parameter was not taken, since a saved model would lack it.
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

/// hf_slice is a tensor of the family's list as a file stores it: a whole tensor of the file, or a
/// range of one that holds several.
struct hf_slice {
  std::string name;             ///< The name in the family's list.
  std::string_view stored_name; ///< The name in the file.
  storage_type type{};
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes; ///< The bytes, of any alignment.
  /// The arrays that decode a tensor which is stored in fewer bits; null: it is plain.
  std::shared_ptr<const hf_quantised> quantised{};
};

/// Returns a whole tensor of a file as the tensor `name` of the family's list.
inline hf_slice hf_whole(std::string name, const file_tensor& t) {
  return {std::move(name), t.name, t.type, {t.shape.begin(), t.shape.end()}, t.bytes, nullptr};
}

/// Returns a tensor that stores a parameter as it is, as a vector or as (out, in). Heads and head
/// dim are merged into one dim, and padded rows are left out.
inline hf_tensor hf_as_stored(std::string name, const parameter_ref& r) {
  const value& v = *r.v;
  const std::int64_t first = v.dims[0].n, last = v.back().n, all = global_size(v).n;
  const std::int64_t valid = r.info->valid_rows > 0 ? r.info->valid_rows : first;
  hf_tensor t;
  t.name = std::move(name);
  if (v.rank == 1) t.shape = {valid};
  else if (v.rank == 2 && v.back().d == dim::head_dim)
    t.shape = {all}; // A bias of heads has one dim.
  else if (v.rank == 2) t.shape = {valid, last};
  else if (v.back().d == dim::hidden) t.shape = {all / last, last};
  else t.shape = {first, all / first};
  t.append(r, {}, t.elements());
  return t;
}

} // namespace mc
