// Kernel of op/dropout.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/op/dropout.hpp>

namespace mc {

template <> struct kernel_of<&op::dropout> { // x (..., N) or (..., A, D), token_keys, seed, step
  template <class, class Call> static std::int64_t scratch_bytes(const Call& /*c*/) {
    return sizeof(std::uint64_t);
  }
  template <class T, class Call> static void run(Call& c) {
    const value& x = c.value_in(0);
    const auto [p, salt] = c.template attr<op::dropout_attributes>();
    auto* const key = reinterpret_cast<std::uint64_t*>(c.scratch());
    for_one(c.device(),
            rows::dropout_key{
                static_cast<std::uint64_t>(c.layer() + 1) << 8 | static_cast<std::uint64_t>(salt),
                c.template in<std::int64_t>(2), c.template in<std::int64_t>(3), key});
    const int heads = x.rank - 2; // a dim between the tokens' and the last, if there is one
    const bool apart = heads == c.value_in(1).rank;
    const std::int64_t width = x.back().n, of_token = c.in_rows(0) / c.in_size(1),
                       whole = apart ? x.dims[static_cast<unsigned>(heads)].n * width : width,
                       first = apart ? c.origin(x, heads) * width : 0;
    rows::dropout(c.device(), c.in_rows(0), c.template in_span<0, -1, 0>(), whole,
                  first + c.origin(x, x.rank - 1), key, c.constants().dropping ? p : 0.0,
                  c.template in<std::int32_t>(1), c.template in<T>(0), c.template out<T>(0),
                  of_token, width);
  }
};

} // namespace mc
