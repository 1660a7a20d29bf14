// Kernel of op/cached_attention.hpp.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/op/cached_attention.hpp>

namespace mc {

template <> struct kernel_of<&op::cached_attention> { // q, k, v, keys, values, slots -> o
  using in = op::cached_attention_in;
  using out = op::cached_attention_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return detail::attention_bytes<T>(c, in::q, in::keys);
  }
  template <class T, class Call> static void run(Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::keys);
    const std::int32_t* slots = c.in(in::slots);
    T *const keys = c.in_out(in::keys), *const values = c.in_out(in::values);
    const auto keep = [&](const T* x, T* cache) {
      for_rows(c.lane(), s.batch * s.queries,
               rows::keep_token<T>{s.queries, s.keys, s.kv_heads * s.head_dim, x, slots, cache});
    };
    keep(c.in(in::k), keys), keep(c.in(in::v), values);
    attention_visibility v = detail::visibility_of(c, s.head_dim);
    v.query_position = slots;
    const int threads =
        threads_for(s.batch * s.heads * s.queries * s.keys * s.head_dim, c.threads());
    detail::attend<T>(c, s, v, c.in(in::q), keys, values, c.out(out::o), nullptr, threads);
  }
};

} // namespace mc
