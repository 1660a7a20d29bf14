// The body that decodes NF4 on emulated teams, against the definition of nested absmax in plain
// loops and double.
#define BOOST_TEST_MODULE emulated_nf4
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/rows/nf4.hpp>

#include <cstdint>
#include <vector>

#include <nf4_quantiles.hpp>

#include "emulated_rows.hpp"

namespace {

namespace rows = mc::rows;
using namespace test;

/// The part of matrices (out, in) that a rank holds: of one dim, rows or columns of blocks.
struct cut {
  int64_t matrices, out, in;              // in blocks
  int64_t first_out, outs, first_in, ins; // of the shard
};

template <class T> void check(team_shape s, const cut& c) {
  numbers from;
  const auto byte = [&] { return static_cast<std::uint8_t>(128 + 127 * from.next()); };
  const int64_t of_matrix = c.outs * c.ins, blocks = c.matrices * of_matrix,
                nested = (c.out * c.in + 255) / 256;
  std::vector<std::uint8_t> codes, absmax;
  for (int64_t i = 0; i < blocks * 32; ++i) codes.push_back(byte());
  for (int64_t i = 0; i < blocks; ++i) absmax.push_back(byte());
  // The offset, the map and nested absmax of each matrix are another's numbers.
  const auto scales = from.of<float>(c.matrices * (257 + nested));
  reference want;
  for (int64_t m = 0; m < c.matrices; ++m)
    for (int64_t o = 0; o < c.outs; ++o)
      for (int64_t i = 0; i < c.ins; ++i) {
        const auto held = static_cast<std::size_t>((m * c.outs + o) * c.ins + i);
        const float* const of = scales.data() + m * (257 + nested);
        const int64_t whole = (c.first_out + o) * c.in + c.first_in + i;
        const double scale =
            static_cast<double>(of[1 + absmax[held]]) * static_cast<double>(of[257 + whole / 256]) +
            static_cast<double>(of[0]);
        for (std::size_t k = 0; k < 64; ++k) {
          const unsigned pair = codes[held * 32 + k / 2];
          want.push_back(scale * nf4_quantiles[k % 2 == 0 ? pair / 16 : pair % 16]);
        }
      }
  s.rows = blocks;
  auto w = unset<T>(blocks * 64);
  // The rows (dim 0) are cut, or the columns (dim 1).
  const bool by_rows = c.ins == c.in;
  const rows::nf4_blocks_of_shard which =
      by_rows ? rows::nf4_blocks_of_shard{of_matrix, c.outs, c.out, c.first_out, c.in}
              : rows::nf4_blocks_of_shard{of_matrix, c.ins, c.in, c.first_in, 1};
  on_team("nf4_decode_row", s,
          rows::nf4_decode_row<T>{which, 257 + nested, codes.data(), absmax.data(), scales.data(),
                                  w.data()},
          w);
  // Scales are floats of up to 6: their product, the sum, and the product with a value are rounded.
  close<float>("nf4_decode_row", w, want, sizeof(T) == 2 ? 0x1p16 : 1, 4, 6);
}

} // namespace

BOOST_AUTO_TEST_CASE_TEMPLATE(blocks_of_shards, T, types) {
  for (int threads : {16, 32, 128, 1024}) {
    const team_shape s{{0, 64}, threads};
    BOOST_TEST_CONTEXT(threads << " threads") {
      check<T>(s, {1, 1, 1, 0, 1, 0, 1}); // one block
      if (threads == 1024) continue;
      check<T>(s, {1, 300, 1, 250, 12, 0, 1}); // rows 250 to 261, of two nested blocks
      check<T>(s, {2, 100, 4, 62, 3, 0, 4});   // rows 62 to 64 of two matrices
      check<T>(s, {2, 3, 172, 0, 3, 80, 6});   // columns of blocks 80 to 85
    }
  }
}
