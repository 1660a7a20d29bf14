// Kernel of op/cached_attention.hpp.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/op/cached_attention.hpp>

namespace mc {

template <> struct kernel_of<&op::cached_attention> { // q, k, v, keys, values, slots -> o
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return attention_forward_bytes<T>(detail::shape_of_attention<0, 3>(c), c.device().threads());
  }
  template <class T, class Call>
  requires on_host<Call>
  static void run(Call& c) {
    const auto s = detail::shape_of_attention<0, 3>(c);
    const std::int32_t* slots = c.template in<std::int32_t>(5);
    T *const keys = c.template in_out<T>(3), *const values = c.template in_out<T>(4);
    const auto keep = [&](const T* x, T* cache) {
      for_rows(c.device(), s.batch * s.queries,
               rows::keep_token<T>{s.queries, s.keys, s.kv_heads * s.head_dim, x, slots, cache});
    };
    keep(c.template in<T>(1), keys), keep(c.template in<T>(2), values);
    attention_visibility v = detail::visibility_of(c, s.head_dim);
    v.query_position = slots;
    const int threads =
        threads_for(s.batch * s.heads * s.queries * s.keys * s.head_dim, c.device().threads());
    attention_forward<T>(s, v, detail::query_rows(c.template in<T>(0), s),
                         detail::key_rows(keys, s), detail::key_rows(values, s),
                         detail::query_rows(c.template out<T>(0), s), nullptr,
                         {c.scratch(), threads, c.device()});
  }
};

} // namespace mc
