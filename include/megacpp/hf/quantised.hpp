// Tensors of a folder that are stored in fewer bits, with arrays beside them by which they are
// decoded:
//
//   quant_method "fp8"             X.weight F8_E4M3 (out, in), X.weight_scale_inv (blocks of 128
//                                  rows, blocks of 128 columns)
//   quant_method "bitsandbytes"    X.weight U8 (n / 2, 1), X.weight.absmax, .quant_map and
//                                  .quant_state.bitsandbytes__nf4; with double quantisation
//                                  .nested_absmax and .nested_quant_map, too
//
// (num/fp8.hpp, num/nf4.hpp and num/nf4_scales.hpp.)
#pragma once

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/hf/config.hpp>
#include <megacpp/num/fp8.hpp>
#include <megacpp/num/nf4_scales.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The arrays beside a tensor that is stored in fewer bits.
struct hf_quantised {
  hf_storage as = hf_storage::plain;
  std::vector<std::int64_t> shape; ///< (out, in) of the weight
  std::vector<float> scales;       ///< fp8: of the blocks; nf4: nested absmax, or absmax
  std::vector<float> map; ///< nf4: the values of the codes of absmax; none: `scales` is absmax
  std::vector<std::uint8_t> codes; ///< nf4: the codes of absmax
  float offset = 0;
  bool transposed = false; ///< nf4: the tensor is (in, out), and the codes are those of (out, in)

  bool nested() const { return !map.empty(); }
  /// Sets out to elements first, first + 1, ... of the tensor.
  void decode(std::span<const std::byte> bytes, std::int64_t first, std::span<double> out) const {
    std::vector<float> x(out.size());
    const auto* const stored = reinterpret_cast<const std::uint8_t*>(bytes.data());
    if (as == hf_storage::nf4) {
      const auto scale = [&](std::int64_t b) {
        if (!nested()) return scales[static_cast<std::size_t>(b)];
        return nf4_scales{codes.data(), scales.data(), offset, map.data()}(b);
      };
      if (!transposed) nf4_dequantise(stored, scale, first, std::span(x));
      const std::int64_t rows = shape[0], in = shape[1];
      for (std::int64_t i = 0; transposed && i < std::ssize(x); ++i)
        nf4_dequantise(stored, scale, (first + i) % rows * in + (first + i) / rows,
                       std::span(x).subspan(static_cast<std::size_t>(i), 1));
    } else {
      const std::int64_t in = shape[1];
      for (std::int64_t i = 0; i < std::ssize(x);) {
        const std::int64_t row = (first + i) / in, column = (first + i) % in,
                           n = std::min(in - column, std::ssize(x) - i);
        fp8_dequantise(
            reinterpret_cast<const e4m3*>(stored) + row * in,
            scales.data() + row / fp8_block * fp8_blocks(in), column,
            std::span(x).subspan(static_cast<std::size_t>(i), static_cast<std::size_t>(n)));
        i += n;
      }
    }
    std::ranges::copy(x, out.begin());
  }
};

namespace detail {

/// The ends of the names of arrays beside a tensor.
inline constexpr std::string_view hf_array_ends[] = {
    "_scale_inv",        ".absmax",    ".nested_absmax",
    ".nested_quant_map", ".quant_map", ".quant_state.bitsandbytes__nf4"};
/// Returns the name of the tensor that an array lies beside; "" for a tensor by itself.
inline std::string_view tensor_of_array(std::string_view name) {
  for (const std::string_view end : hf_array_ends)
    if (name.ends_with(".weight" + std::string(end)))
      return name.substr(0, name.size() - end.size());
  return "";
}

} // namespace detail
} // namespace mc
