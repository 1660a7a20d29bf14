// The kernel of op/cached_attention.hpp, by tiles: those of the host, and on other devices those of
// kernel/rows/cached_attention.hpp.
#pragma once

#include <megacpp/kernel/attention.hpp>
#include <megacpp/kernel/rows/cached_attention.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/op/cached_attention.hpp>

namespace mc {

namespace detail {

/// The number of teams that keep a device busy: two for each multiprocessor of an H100. With fewer
/// teams, several teams share the keys of the same queries. No GPU has measured the number.
inline constexpr std::int64_t busy_teams = 264;

/// Returns the number of tiles of keys that have partial sums of their own; 0: one team takes all
/// keys of its queries. Partial sums take at most half the bytes of the caches; those of a prompt
/// would take many times the bytes of its cache.
template <class T, class... E> constexpr std::int64_t tiles_apart(const attention_shape<E...>& s) {
  using tile = rows::cached_attention_tile<T>;
  const std::int64_t teams = s.batch * s.kv_heads * tile::teams(s.queries, s.heads / s.kv_heads),
                     tiles = tile::tiles(s.keys),
                     caches =
                         2 * s.batch * s.keys * s.kv_heads * s.head_dim * std::int64_t{sizeof(T)},
                     sums = rows::cached_sums<accumulator_t<T>>::bytes(
                         s.batch * s.queries * s.heads, tiles, s.head_dim);
  return teams < busy_teams && tiles > 1 && sums <= caches / 2 ? tiles : 0;
}
/// Starts the attention of queries to a cache that has their keys already, on a device other than
/// the host. `room` is the memory for partial sums.
template <class T, class Lane, class... E>
void attend_cache(Lane& on, const attention_shape<E...>& s, const rows::cached_sight& see,
                  const T* q, const T* keys, const T* values, T* o, std::byte* room) {
  using tile = rows::cached_attention_tile<T>;
  using G = accumulator_t<T>;
  const std::int64_t queries = s.batch * s.queries * s.heads, apart = tiles_apart<T>(s);
  rows::cached_sums<G> sums{};
  if (apart > 0) sums = rows::cached_sums<G>::at(room, queries, apart, s.head_dim);
  const head_rows<T> of_o = query_rows(o, s);
  for_rows(on,
           s.batch * s.kv_heads * tile::teams(s.queries, s.heads / s.kv_heads) *
               std::max<std::int64_t>(apart, 1),
           tile{row_extents(s), see, tile::is_whole(s.head_dim, q, keys, values), query_rows(q, s),
                key_rows(keys, s), key_rows(values, s), of_o, sums});
  if (apart > 0)
    for_rows(
        on, queries,
        rows::cached_attention_total<T>{row_extents(s), see, {sums.o, sums.top, sums.sum}, of_o});
}

} // namespace detail

template <> struct kernel_of<&op::cached_attention> { // q, k, v, keys, values, slots -> o
  using in = op::cached_attention_in;
  using out = op::cached_attention_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    const auto s = detail::shape_of_attention(c, in::q, in::keys);
    if constexpr (on_host<Call>) return attention_forward_bytes<T>(s, c.threads());
    return rows::cached_sums<accumulator_t<T>>::bytes(s.batch * s.queries * s.heads,
                                                      detail::tiles_apart<T>(s), s.head_dim);
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
    if constexpr (on_host<Call>) {
      v.query_position = slots;
      const int threads =
          threads_for(s.batch * s.heads * s.queries * s.keys * s.head_dim, c.threads());
      using namespace detail;
      attention_forward<T>(s, v, query_rows(c.in(in::q), s), key_rows(keys, s), key_rows(values, s),
                           query_rows(c.out(out::o), s), nullptr, {c.scratch(), threads, c.lane()});
    } else {
      detail::attend_cache<T>(c.lane(), s, rows::cached_sight{v.scale, v.window, slots},
                              c.in(in::q), keys, values, c.out(out::o), c.scratch());
    }
  }
};

} // namespace mc
