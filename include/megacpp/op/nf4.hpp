// nf4_decode: weights that are stored in NF4 with double quantisation (num/nf4.hpp; QLoRA:
// Dettmers, Pagnoni, Holtzman, Zettlemoyer 2023), as numbers.
//
//   w = value[code] absmax,   absmax = map[code of absmax] nested absmax + offset
//
// A matrix of n elements, flat in the order [out, in], is stored in three arrays:
//   codes (..., n / 2) u8       two elements in a byte, the first one in its high bits
//   absmax (..., n / 64) u8     a code for each block of 64 elements
//   scales (257 + m) f32        the offset, the 256 values of the map, and a nested absmax for each
//                               256 blocks
// The matrices of experts have scales (E, 257 + m), since each is quantised by itself. Shards of a
// matrix have the codes of their own elements, which are whole blocks, and all scales. The op has
// no adjoint: what is stored so is frozen. Saved: nothing, since it runs again in the backward
// pass.
#pragma once

#include <megacpp/graph/adjoint.hpp>
#include <megacpp/num/nf4_scales.hpp>

namespace mc {

inline constexpr std::int64_t nf4_map_size = 256, nf4_scales_before = 1 + nf4_map_size;

namespace detail {

/// Returns the number of elements of one matrix of a box.
constexpr std::int64_t matrix_size(const value& box) {
  std::int64_t n = 1;
  for (int i = box.rank > 0 && box.dims[0].d == dim::expert ? 1 : 0; i < box.rank; ++i)
    n *= box.dims[i].n;
  return n;
}
constexpr void nf4_codes_of(value& box) {
  extent& last = box.dims[box.rank - 1];
  last.n = last.n % 2 == 0 ? last.n / 2 : 0;
}
constexpr void nf4_absmax_of(value& box) { divide_into_blocks(box, nf4_block); }
constexpr void nf4_scales_of(value& box) {
  const extent all{dim::scales, nf4_scales_before + nf4_nested_blocks(matrix_size(box))};
  const bool of_experts = box.dims[0].d == dim::expert;
  if (of_experts) box.rank = 2, box.dims[1] = all;
  else box.rank = 1, box.dims[0] = all;
}

/// Encodes a whole matrix. `absmax` has room for a number of each block.
inline void nf4_encode(std::span<const float> x, std::span<float> absmax, std::byte* const* to) {
  const auto n = static_cast<std::int64_t>(x.size());
  nf4_absmax(x, absmax);
  const auto codes = std::span(reinterpret_cast<std::uint8_t*>(to[0]), x.size() / 2),
             of_absmax = std::span(reinterpret_cast<std::uint8_t*>(to[1]), absmax.size());
  const auto scales = std::span(reinterpret_cast<float*>(to[2]),
                                static_cast<std::size_t>(nf4_scales_before + nf4_nested_blocks(n)));
  nf4_quantise(x, std::span<const float>(absmax), codes);
  scales[0] = nf4_offset(absmax);
  for (std::size_t i = 0; i < dynamic_map.size(); ++i) scales[1 + i] = dynamic_map[i];
  nf4_quantise_absmax(absmax, scales[0], of_absmax, scales.subspan(nf4_scales_before));
}

} // namespace detail

/// A matrix in NF4 with double quantisation, in 4.13 bits an element.
inline constexpr parameter_encoding nf4_encoding{
    .name = "nf4",
    .block = nf4_block,
    .count = 3,
    .arrays = {{"codes", dtype::u8, &detail::nf4_codes_of},
               {"absmax", dtype::u8, &detail::nf4_absmax_of},
               {"scales", dtype::f32, &detail::nf4_scales_of, true}},
    .encode_matrix = &detail::nf4_encode};

namespace op {

struct nf4_decode_in : input_names<nf4_decode_in> {
  static constexpr name<0, element::u8> codes{};
  static constexpr name<1, element::u8> absmax{};
  static constexpr name<2> scales{};
};
struct nf4_decode_out : output_names<nf4_decode_out> {
  static constexpr name<0, element::converted> w{};
};
struct nf4_decode_attributes {
  dtype to; ///< type of w
};
[[gnu::cold]] constexpr void nf4_decode_rule(inference& c) {
  using in = nf4_decode_in;
  c.typed({in::codes, in::absmax}, dtype::u8), c.typed({in::scales}, dtype::f32);
  const value &codes = c.in(in::codes), &absmax = c.in(in::absmax), &scales = c.in(in::scales);
  c.require(codes.rank > 0 && scales.rank > 0, fault::S003, in::codes, in::scales);
  if (c.wrong != fault::none) return static_cast<void>(c.declare(codes));
  value& w = c.declare(codes);
  w.type = c.n.attr.as<nf4_decode_attributes>().to;
  w.dims[w.rank - 1].n *= 2;
  value blocks = w, all = w;
  c.require(divide_into_blocks(blocks, nf4_block) >= 0, fault::S002, in::codes, in::absmax);
  detail::nf4_scales_of(all);
  c.require(w.differentiable(), fault::S007, in::scales);
  c.require(absmax.rank == blocks.rank, fault::S003, in::codes, in::absmax);
  c.require(scales.rank == all.rank, fault::S003, in::codes, in::scales);
  for (int i = 0; i < absmax.rank && i < blocks.rank; ++i)
    c.agree(blocks.dims[i], absmax.dims[i], in::codes, in::absmax);
  for (int i = 0; i < scales.rank && i < all.rank; ++i)
    c.agree(all.dims[i], scales.dims[i], in::codes, in::scales);
  // Codes are whole blocks on every rank, and all ranks that share a matrix have its scales.
  w.at = codes.at;
  for (c.looking = 0; c.looking < axes; ++c.looking) {
    const auto a = static_cast<axis>(c.looking);
    const bool of_experts = codes.at[a].is_shard(dim::expert);
    if (absmax.at[a] != codes.at[a]) c.fail(fault::P002, in::codes, in::absmax);
    if (codes.at[a].s != state::shard && codes.at[a].s != state::invariant)
      c.fail(fault::P002, in::codes);
    if (scales.at[a] != (of_experts ? codes.at[a] : invariant))
      c.fail(fault::P002, in::codes, in::scales);
  }
  c.looking = -1;
}
inline constexpr op_info nf4_decode{.name = "nf4_decode",
                                    .rule = &nf4_decode_rule,
                                    .typed_by = nf4_decode_in::scales,
                                    .decodes = true,
                                    .attributes = attributes_of<nf4_decode_attributes>,
                                    .operands = named<nf4_decode_in, nf4_decode_out>};

} // namespace op
} // namespace mc
