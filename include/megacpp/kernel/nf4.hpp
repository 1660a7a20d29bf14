// The kernel of op/nf4.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/nf4.hpp>
#include <megacpp/op/nf4.hpp>

namespace mc {

template <> struct kernel_of<&op::nf4_decode> { // codes, absmax, scales
  using elements = element_list<float>;
  using in = op::nf4_decode_in;
  using out = op::nf4_decode_out;
  template <class, class Call> static void run(Call& c) {
    const value &absmax = c.value_of(in::absmax), &scales = c.value_of(in::scales);
    const mesh& m = c.ranks();
    const int first = absmax.dims[0].d == dim::expert ? 1 : 0;
    rows::nf4_blocks_of_shard blocks{1, 1, 1, 0, 1};
    // A matrix is cut along one dim at most.
    for (int i = first; i < absmax.rank; ++i) {
      const std::int64_t own = local_extent(m, absmax, i);
      blocks.of_matrix *= own;
      if (own == absmax.dims[i].n && i > first) {
        blocks.behind *= own;
      } else {
        blocks.own = own, blocks.all = absmax.dims[i].n, blocks.behind = 1;
        blocks.first = c.origin(absmax, i);
      }
    }
    with_float_type(c.value_of(out::w).type, [&]<class T>(T) {
      rows::nf4_decode(c.lane(), c.size(in::absmax), blocks, scales.back().n, c.in(in::codes),
                       c.in(in::absmax), c.in(in::scales), reinterpret_cast<T*>(c.out(out::w)));
    });
  }
};

} // namespace mc
