// The scales of NF4's blocks, quantised in their turn ("double quantisation"): of every absmax the
// mean of all, the offset, is taken away; 256 of the differences that follow each other are a
// nested block, with the largest magnitude among them as nested absmax in float; and a difference
// divided by that is a code of the dynamic map.
#pragma once

#include <megacpp/num/dynamic_map.hpp>
#include <megacpp/num/nf4.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

namespace mc {

constexpr std::int64_t nf4_nested_blocks(std::int64_t elements) {
  return (nf4_blocks(elements) + nf4_nested_block - 1) / nf4_nested_block;
}

/// Returns the mean of all absmax of a matrix, summed in double. That of bitsandbytes is summed in
/// float, in an order that depends on the processor, and may be some units in the last place off.
constexpr float nf4_offset(std::span<const float> absmax) {
  double sum = 0;
  for (const float x : absmax) sum += x;
  return static_cast<float>(sum / static_cast<double>(absmax.size()));
}

/// dynamic_search says how the code of a difference is found: as bitsandbytes 0.50 does on CPUs
/// (on_grid), or as the nearest value of the map, which the kernels for GPUs take, but for the last
/// bit of the reciprocal that they multiply by. The values of the two are up to 1.6e-5 nested
/// absmax apart.
enum class dynamic_search : std::uint8_t { on_grid, nearest };

/// Sets the codes of all absmax, and each nested absmax: the work between the passes over a matrix.
constexpr void nf4_quantise_absmax(std::span<const float> absmax, float offset,
                                   std::span<std::uint8_t> codes, std::span<float> nested_absmax,
                                   dynamic_search search = dynamic_search::on_grid) {
  constexpr auto whole = static_cast<std::size_t>(nf4_nested_block);
  for (std::size_t at = 0; at < absmax.size(); at += whole) {
    const std::size_t end = std::min(at + whole, absmax.size());
    float most = 0;
    for (std::size_t i = at; i < end; ++i) {
      const float difference = absmax[i] - offset;
      most = std::max(most, difference < 0 ? -difference : difference);
    }
    nested_absmax[at / whole] = most;
    const float reciprocal = most > 0 ? 1.0f / most : 0.0f;
    for (std::size_t i = at; i < end; ++i) {
      const float x = (absmax[i] - offset) * reciprocal;
      if (most > 0)
        codes[i] =
            search == dynamic_search::on_grid ? dynamic_code_on_grid(x) : nearest_dynamic_code(x);
      else codes[i] = 0; // The offset is the absmax then.
    }
  }
}

/// The stored absmax of a matrix, as arrays of its file; the file's map counts, too.
struct nf4_scales {
  const std::uint8_t* codes = nullptr;
  const float* nested_absmax = nullptr;
  float offset = 0;
  const float* map = dynamic_map.data();

  /// Returns the absmax of a block. The product is rounded before the sum is.
  constexpr float operator()(std::int64_t block) const {
    const float scaled = map[codes[block]] * nested_absmax[block / nf4_nested_block];
    return scaled + offset;
  }
};

} // namespace mc
