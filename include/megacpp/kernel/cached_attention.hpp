// Kernel of op/cached_attention.hpp.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/op/cached_attention.hpp>

#include <cstring>

namespace mc {

template <> struct kernel_of<&op::cached_attention> { // q, k, v, keys, values, slots -> o
  template <class T, class Call> static std::int64_t scratch_bytes(const Call& c) {
    return attention_forward_bytes<T>(detail::shape_of_attention<0, 3>(c), c.device().threads());
  }
  template <class T, class Call> static void run(Call& c) {
    const auto s = detail::shape_of_attention<0, 3>(c);
    const std::int32_t* slots = c.template in<std::int32_t>(5);
    T *const keys = c.template in_out<T>(3), *const values = c.template in_out<T>(4);
    keep(s, slots, c.template in<T>(1), keys);
    keep(s, slots, c.template in<T>(2), values);
    attention_visibility v = detail::visibility_of(c, s.head_dim);
    v.query_position = slots;
    const int threads =
        threads_for(s.batch * s.heads * s.queries * s.keys * s.head_dim, c.device().threads());
    attention_forward<T>(s, v, detail::query_rows(c.template in<T>(0), s),
                         detail::key_rows(keys, s), detail::key_rows(values, s),
                         detail::query_rows(c.template out<T>(0), s), nullptr,
                         {c.scratch(), threads});
  }

private:
  /// x (B, S, K, D) into the slots of a cache (B, C, K, D).
  template <class T, class Shape>
  static void keep(const Shape& s, const std::int32_t* slots, const T* x, T* cache) {
    const std::int64_t width = s.kv_heads * s.head_dim, queries = s.queries, room = s.keys;
    parallel_for(s.batch * queries, [=](std::int64_t token) {
      const std::int64_t slot = slots[token];
      if (slot < 0 || slot >= room) return;
      std::memcpy(static_cast<void*>(cache + (token / queries * room + slot) * width),
                  x + token * width, static_cast<std::size_t>(width) * sizeof(T));
    });
  }
};

} // namespace mc
