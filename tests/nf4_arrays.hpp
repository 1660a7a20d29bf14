// What NF4 makes of a matrix, as files have it. A caller of the passes streams; here a matrix goes
// through each pass in chunks of some blocks.
#pragma once

#include <megacpp/num/nf4_scales.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace test {

struct nf4_arrays {
  std::vector<std::uint8_t> codes, absmax_codes;
  std::vector<float> absmax, nested_absmax;
  float offset = 0;

  mc::nf4_scales scales() const { return {absmax_codes.data(), nested_absmax.data(), offset}; }
  template <class T> std::vector<T> range(std::size_t first, std::size_t count) const {
    std::vector<T> out(count);
    mc::nf4_dequantise(codes.data(), scales(), static_cast<std::int64_t>(first), std::span(out));
    return out;
  }
};

/// Without a given offset the mean of absmax is taken.
template <class T> nf4_arrays nf4_quantised(const std::vector<T>& weights,
                                            std::optional<float> offset = {},
                                            mc::dynamic_search search = mc::dynamic_search::on_grid,
                                            std::size_t blocks_at_once = 37) {
  const std::span<const T> all(weights);
  const auto n = static_cast<std::int64_t>(all.size());
  nf4_arrays a;
  a.codes.resize(static_cast<std::size_t>(mc::nf4_bytes(n)));
  a.absmax.resize(static_cast<std::size_t>(mc::nf4_blocks(n)));
  a.absmax_codes.resize(a.absmax.size());
  a.nested_absmax.resize(static_cast<std::size_t>(mc::nf4_nested_blocks(n)));
  const std::size_t step = 64 * blocks_at_once;
  for (std::size_t at = 0; at < all.size(); at += step)
    mc::nf4_absmax(all.subspan(at, std::min(step, all.size() - at)),
                   std::span(a.absmax).subspan(at / 64));
  a.offset = offset ? *offset : mc::nf4_offset(a.absmax);
  mc::nf4_quantise_absmax(a.absmax, a.offset, a.absmax_codes, a.nested_absmax, search);
  for (std::size_t at = 0; at < all.size(); at += step)
    mc::nf4_quantise(all.subspan(at, std::min(step, all.size() - at)),
                     std::span<const float>(a.absmax).subspan(at / 64),
                     std::span(a.codes).subspan(at / 2));
  return a;
}

} // namespace test
