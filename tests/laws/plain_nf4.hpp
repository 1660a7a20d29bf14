// Weights in NF4 in plain loops and double, from the definition (Dettmers et al. 2023): element i of
// a whole matrix belongs to block i / 64 of it, whose absmax is in nested block i / 64 / 256.
#pragma once

#include "plain_rows.hpp"

#include <megacpp/op/nf4.hpp>

#include <nf4_quantiles.hpp>

namespace mc::laws::plain {

inline void nf4_decode(node_task& t) { // codes, absmax, scales -> w
  const block w = t.out_block(0);
  const int first = t.value_in(0).dims[0].d == dim::expert ? 1 : 0;
  const int64_t of_matrix = w.count(first, w.rank);
  int64_t whole = 1;
  for (int d = first; d < w.rank; ++d) whole *= w.whole[static_cast<unsigned>(d)];
  const int64_t nested = ((whole + 63) / 64 + 255) / 256, matrices = w.size() / of_matrix;
  need(whole % 64 == 0 && of_matrix % 64 == 0, "nf4_decode: a block is not whole");
  need(length(t.in(0)) * 2 == w.size() && length(t.in(1)) * 64 == w.size() &&
           length(t.in(2)) == matrices * (257 + nested),
       "nf4_decode");
  for (int64_t i = 0; i < w.size(); ++i) {
    int64_t left = i % of_matrix, in_matrix = 0, stride = 1;
    for (int d = w.rank - 1; d >= first; --d) { // the place of the element in the whole matrix
      const auto k = static_cast<unsigned>(d);
      in_matrix += (w.first[k] + left % w.local[k]) * stride;
      left /= w.local[k], stride *= w.whole[k];
    }
    const double* const scales = t.in(2).data() + i / of_matrix * (257 + nested);
    const int64_t pair = whole_number(t.in(0)[at(i / 2)]);
    const double absmax =
        scales[1 + whole_number(t.in(1)[at(i / 64)])] * scales[257 + in_matrix / 64 / 256] +
        scales[0];
    t.out(0)[at(i)] = test::nf4_quantiles[i % 2 == 0 ? pair / 16 : pair % 16] * absmax;
  }
}

} // namespace mc::laws::plain
