// The kernel of op/dropout.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/op/dropout.hpp>

namespace mc {

template <> struct kernel_of<&op::dropout> { // x (..., N) or (..., A, D), token_keys, seed, step
  using in = op::dropout_in;
  using out = op::dropout_out;
  template <class, class Call> static constexpr std::int64_t scratch_bytes(const Call& /*c*/) {
    return sizeof(std::uint64_t);
  }
  template <class T, class Call> static void run(Call& c) {
    const value& x = c.value_of(in::x);
    const auto [p, salt] = c.attr(of_type<op::dropout_attributes>);
    auto* const key = reinterpret_cast<std::uint64_t*>(c.scratch());
    for_one(c.lane(), rows::dropout_key{static_cast<std::uint64_t>(c.layer() + 1) << 8 |
                                            static_cast<std::uint64_t>(salt),
                                        c.in(in::seed), c.in(in::step), key});
    const int heads = x.rank - 2; // number of the dim between the tokens' dims and the last
    const bool apart = heads == c.value_of(in::token_keys).rank;
    const std::int64_t width = x.back().n, of_token = c.rows(in::x) / c.size(in::token_keys),
                       whole = apart ? x.dims[static_cast<unsigned>(heads)].n * width : width,
                       first = apart ? c.origin(x, heads) * width : 0;
    rows::dropout(c.lane(), c.rows(in::x), c.span(in::x, dims<-1>), whole,
                  first + c.origin(x, x.rank - 1), key, c.constants().dropping ? p : 0.0,
                  c.in(in::token_keys), c.in(in::x), c.out(out::y), of_token, width);
  }
};

} // namespace mc
