// Matrices in NF4 with double quantisation, as numbers (op/nf4.hpp). A row is a block of 64
// elements.
//
//   w[i] = value[code[i]] absmax,   absmax = map[code] nested + offset
//
// The product with nested is rounded before the sum is, and the last product is rounded once, to
// the type of w, as bitsandbytes does.
#pragma once

#include <megacpp/exec/launch.hpp>
#include <megacpp/num/nf4_numbers.hpp>

#include <cstdint>

namespace mc::rows {

/// The blocks of a shard of matrices among those of whole matrices: the shard has `own` of the
/// `all` indices of one dim, from `first` on, and a dim behind it has `behind` blocks.
struct nf4_blocks_of_shard {
  std::int64_t of_matrix; ///< blocks that the shard has of each matrix
  std::int64_t own, all, first, behind;

  MEGACPP_HD std::int64_t matrix(std::int64_t block) const { return block / of_matrix; }
  /// Returns the number of a block in its whole matrix.
  MEGACPP_HD std::int64_t in_matrix(std::int64_t block) const {
    const std::int64_t b = block % of_matrix, row = b / behind;
    return ((row / own) * all + row % own + first) * behind + b % behind;
  }
};

template <class T> struct nf4_decode_row {
  nf4_blocks_of_shard blocks;
  std::int64_t scales_of_matrix;
  const std::uint8_t* codes;  // (blocks, 32)
  const std::uint8_t* absmax; // (blocks)
  const float* scales;        // (matrices, scales_of_matrix): offset, map, nested absmax
  T* w;                       // (blocks, 64)

  bool aligned() const { return rows_aligned<T>(nf4_block, w); }
  template <class Team> MEGACPP_HD void operator()(const Team& team, std::int64_t row) const {
    const float* const of_matrix = scales + blocks.matrix(row) * scales_of_matrix;
    const float* const nested = of_matrix + 1 + 256;
    const float product =
        of_matrix[1 + absmax[row]] * nested[blocks.in_matrix(row) / nf4_nested_block];
    const float scale = product + of_matrix[0];
    const std::uint8_t* const pairs = codes + row * (nf4_block / 2);
    static_assert(nf4_block % Team::template width<T> == 0 && Team::template width<T> % 2 == 0,
                  "a block is whole groups of elements, and each of them begins at a byte");
    team.template each<T>(nf4_block, [&](auto i) {
      using A = accumulator_t<T>;
      constexpr int count = decltype(i)::count;
      if constexpr (count > 1) {
        A x[count];
        for (int k = 0; k < count; ++k) {
          const unsigned pair = pairs[i.first / 2 + k / 2];
          x[k] = A(value_of(k % 2 == 0 ? pair >> 4 : pair & 15u) * scale);
        }
        store(w + row * nf4_block, i, load<A>(x, lanes<count>{0}));
      }
    });
  }

private:
  /// Returns the value of a code, from a copy in a GPU's memory, which has no address of the
  /// host's.
  MEGACPP_HD static float value_of(unsigned code) {
    static constexpr nf4_table values = nf4_numbers;
    return values.of[code];
  }
};

template <class T, class Device>
void nf4_decode(Device& on, std::int64_t rows, const nf4_blocks_of_shard& blocks,
                std::int64_t scales_of_matrix, const std::uint8_t* codes,
                const std::uint8_t* absmax, const float* scales, T* w) {
  for_rows(on, rows, nf4_decode_row<T>{blocks, scales_of_matrix, codes, absmax, scales, w});
}

} // namespace mc::rows
