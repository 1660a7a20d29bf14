// Checks of bodies that go element by element: the device has the bits of the CPU, except for
// activations, which are within bounds.
#include "rows.hpp"

#include <megacpp/kernel/embedding.hpp>
#include <megacpp/kernel/rows/dropout.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/embedding.hpp>
#include <megacpp/kernel/rows/nf4.hpp>
#include <megacpp/kernel/rows/redistribute.hpp>
#include <megacpp/kernel/rows/reduce.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/kernel/rows/select.hpp>
#include <megacpp/kernel/rows/swiglu.hpp>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

template <class T> void flat(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden, blocks = mc::blocks_of(n);
  const char* const type = name_of_type<T>;
  {
    arrays a;
    const auto x = a.read<T>(n), other = a.read<T>(n), y = a.written<T>("y", n);
    run(r, "add_block", type, m, a, blocks, [=](place at) {
      return rows::add_block<T>{n, at(x), at(other), at(y)};
    });
  }
  {
    arrays a;
    const auto x = a.read<T>(n), y = a.written<T>("y", n);
    run(r, "scale_block", type, m, a, blocks, [=](place at) {
      return rows::scale_block<T>{n, 0.3f, at(x), at(y)};
    });
  }
  {
    arrays a;
    const auto y = a.written<T>("y", n);
    run(r, "fill_block", type, m, a, blocks, [=](place at) {
      return rows::fill_block<T>{n, 0.3f, at(y)};
    });
  }
  {
    arrays a;
    const auto x = a.read<T>(n), y = a.written<T>("y", n);
    run(r, "copy_block", type, m, a, blocks, [=](place at) {
      return rows::copy_block<T>{n, at(x), at(y)};
    });
  }
  {
    arrays a;
    const auto x = a.read<T>(n), bias = a.read<T>(m.hidden), y = a.written<T>("y", n);
    run(r, "bias_add_row", type, m, a, m.tokens, [=](place at) {
      return rows::bias_add_row<T, int64_t>{m.hidden, at(x), at(bias), at(y)};
    });
  }
}

// What four ranks of one device add up, and the largest of it.
template <class T> void of_ranks(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  arrays a;
  const auto p = a.read<T>(n), q = a.read<T>(n), s = a.read<T>(n), t = a.read<T>(n),
             y = a.written<T>("y", n);
  run(r, "sum_of_ranks_block", name_of_type<T>, m, a, mc::blocks_of(n), [=](place at) {
    return rows::sum_of_ranks_block<T>{n, 4, {at(p), at(q), at(s), at(t)}, at(y)};
  });
  if constexpr (std::is_same_v<T, float>)
    run(r, "maximum_of_ranks_block", name_of_type<T>, m, a, mc::blocks_of(n), [=](place at) {
      return rows::maximum_of_ranks_block{n, 4, {at(p), at(q), at(s), at(t)}, at(y)};
    });
}

template <class T> void total(report& r, const sizes& m) {
  arrays a;
  const auto x = a.read<T>(1, 0.5, 1);
  const auto sum = a.changed<double>("total", 1, same_bits, 100, 200);
  run(r, "add_to_total", name_of_type<T>, m, a, 1, [=](place at) {
    return rows::add_to_total<T>{at(x), at(sum)};
  });
}

// Four ranks' pieces of H elements: packed by rank, and one rank's padded with zeros.
template <class T> void pieces(report& r, const sizes& m) {
  constexpr int64_t n = 4;
  const int64_t outer = (m.tokens + n - 1) / n, run_of = m.hidden, all = outer * n * run_of;
  const int64_t blocks = outer * n * mc::blocks_of(run_of);
  {
    arrays a;
    const auto x = a.read<T>(all), y = a.written<T>("packed", all);
    run(r, "piece_block", name_of_type<T>, m, a, blocks, [=](place at) {
      return rows::piece_block<T>{n,     run_of, {n * run_of, run_of}, {run_of, outer * run_of},
                                  at(x), at(y)};
    });
  }
  if (m.timed) return;
  arrays a;
  const auto x = a.read<T>(outer * run_of), y = a.written<T>("padded", all);
  run(r, "piece_block padded", name_of_type<T>, m, a, blocks, [=](place at) {
    return rows::piece_block<T>{n, run_of, {run_of, 0}, {n * run_of, run_of}, at(x), at(y), 1};
  });
}

// From very small to very large numbers.
template <class From, class To> void cast(report& r, const char* types, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  arrays a;
  const auto x = a.read<From>(n, -1e30, 1e30);
  const auto y = a.written<To>("y", n);
  run(r, "cast_block", types, m, a, mc::blocks_of(n), [=](place at) {
    return rows::cast_block<From, To>{n, at(x), at(y)};
  });
}

template <class F, class T> void activation(report& r, const std::string& name, const sizes& m) {
  const int64_t n = m.tokens * m.ffn, blocks = mc::blocks_of(n);
  {
    arrays a;
    const auto x = a.read<T>(n, -most_activated, most_activated),
               y = a.written<T>("y", n, approximated(ulps_of_activation));
    run(r, ("activation_block " + name).c_str(), name_of_type<T>, m, a, blocks, [=](place at) {
      return rows::activation_block<F, T>{n, at(x), at(y)};
    });
  }
  {
    arrays a;
    const auto dy = a.read<T>(n), x = a.read<T>(n, -most_activated, most_activated),
               dx = a.written<T>("dx", n, approximated(ulps_of_slope + 1, 1));
    run(r, ("activation_dx_block " + name).c_str(), name_of_type<T>, m, a, blocks, [=](place at) {
      return rows::activation_dx_block<F, T>{n, at(dy), at(x), at(dx)};
    });
  }
}

// Gate and up are the halves of one matrix.
template <class T> void swiglu(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.ffn;
  {
    arrays a;
    const auto both = a.read<T>(2 * n, -most_activated, most_activated),
               y = a.written<T>("y", n, approximated(ulps_of_activation + 1));
    run(r, "swiglu_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::swiglu_row<T, int64_t>{m.ffn, 2 * m.ffn, at(both), at(both) + m.ffn, at(y)};
    });
  }
  {
    arrays a;
    const auto dy = a.read<T>(n), both = a.read<T>(2 * n, -most_activated, most_activated);
    const auto d =
        a.written<T>("dgate_dup", 2 * n, approximated(ulps_of_activation + 2, most_activated));
    run(r, "swiglu_backward_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::swiglu_backward_row<T, int64_t>{
          m.ffn, 2 * m.ffn, at(dy), at(both), at(both) + m.ffn, at(d), at(d) + m.ffn};
    });
  }
}

// In place, with positions that repeat.
template <class T> void rope(report& r, const sizes& m) {
  const int64_t width = 2 * m.heads * m.half, positions = m.tokens < 1024 ? m.tokens : 1024;
  arrays a;
  const auto x = a.changed<T>("y", m.tokens * width);
  const auto table = a.numbered(m.tokens, [=](int64_t t) { return (t * 7 + 3) % positions; });
  const auto cos = a.read<float>(positions * m.half), sin = a.read<float>(positions * m.half);
  run(r, "rope_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
    return rows::rope_row<T, int64_t>{m.half,    m.heads, width,   width, at(x),
                                      at(table), at(cos), at(sin), -1.0f, at(x)};
  });
}

template <class T> void dropout(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  arrays a;
  const auto keys = a.numbered(m.tokens, [](int64_t t) { return 5 * t + 1; });
  const auto x = a.read<T>(n), y = a.written<T>("y", n);
  const auto key = a.given(std::uint64_t{0x123456789abcdefu});
  run(r, "dropout_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
    // The second half of the columns of an unsharded tensor; those of a row do not begin a group.
    return rows::dropout_row<T, int64_t>{
        m.hidden, 2 * m.hidden + 1, m.hidden, at(key), static_cast<std::uint32_t>(0.1 * 0x1p24),
        1 / 0.9f, at(keys),         at(x),    at(y)};
  });
}

void key_of_dropout(report& r, const sizes& m) {
  arrays a;
  const auto seed = a.given(int64_t{-1234567890123}), step = a.given(m.tokens + (int64_t{1} << 33));
  const auto key = a.written<std::uint64_t>("key", 1);
  run(r, "dropout_key", "u64", m, a, 1, [=](place at) {
    return rows::dropout_key{0x9a5b3cu, at(seed), at(step), at(key)};
  });
}

// Each row four times. And one row of each of four sequences.
template <class T> void repeated(report& r, const sizes& m) {
  constexpr int64_t times = 4;
  const int64_t few = (m.tokens + times - 1) / times, n = few * m.hidden;
  {
    arrays a;
    const auto x = a.read<T>(n), y = a.written<T>("y", times * n);
    run(r, "repeat_row", name_of_type<T>, m, a, times * few, [=](place at) {
      return rows::repeat_row<T>{times, m.hidden, at(x), at(y)};
    });
  }
  {
    arrays a;
    const auto dy = a.read<T>(times * n), dx = a.written<T>("dx", n);
    run(r, "repeat_grad_row", name_of_type<T>, m, a, few, [=](place at) {
      return rows::repeat_grad_row<T>{times, m.hidden, at(dy), at(dx)};
    });
  }
  if (m.timed) return;
  arrays a;
  const auto x = a.read<T>(times * n), y = a.written<T>("y", times * m.hidden);
  const auto index = a.numbered(times, [=](int64_t b) { return (2 * b + few - 1) % few; });
  run(r, "select_row", name_of_type<T>, m, a, times, [=](place at) {
    return rows::select_row<T>{few, m.hidden, at(x), at(index), at(y)};
  });
}

// Two sequences, whose tokens lie in their caches backwards from the last slot but one; every
// seventh has a slot that is not there. The last token has one.
template <class T> void kept(report& r, const sizes& m) {
  const int64_t queries = (m.tokens + 1) / 2, room = queries + 3, n = 2 * queries * m.hidden;
  arrays a;
  const auto x = a.read<T>(n);
  const auto slots = a.numbered(2 * queries, [=](int64_t token) {
    const int64_t i = token % queries;
    if (i % 7 != 0 || i + 1 == queries) return queries + 1 - i;
    return i % 2 == 0 ? int64_t{-1} : room;
  });
  const auto cache = a.changed<T>("cache", 2 * room * m.hidden);
  a.moves(cache, n); // written, not read
  run(r, "keep_token", name_of_type<T>, m, a, 2 * queries, [=](place at) {
    return rows::keep_token<T>{queries, room, m.hidden, at(x), at(slots), at(cache)};
  });
}

// A table of the ids from `first_id` on; some tokens have others. Ids repeat, so that gradients add
// up.
constexpr int64_t first_id = 5;
int64_t rows_of_table(const sizes& m) { return m.timed ? m.vocabulary : 2 + m.tokens / 2; }
int64_t id_of_token(int64_t t, int64_t count) {
  if (t == 0) return first_id; // one at least has a row
  return static_cast<int64_t>(mixed(9, static_cast<std::uint64_t>(t)) %
                              static_cast<std::uint64_t>(count + 2)) +
         first_id - 1;
}

void numbers_of_tokens(report& r, const sizes& m) {
  const int64_t count = rows_of_table(m);
  arrays a;
  const auto ids = a.numbered(m.tokens, [=](int64_t t) { return id_of_token(t, count); });
  const auto numbers = a.written<std::uint64_t>("numbers", m.tokens);
  const rows::summed_rows tokens(m.tokens, (m.tokens + 1) / 2); // two sequences
  run(r, "number_tokens", "u64", m, a, mc::blocks_of(m.tokens), [=](place at) {
    return rows::number_tokens{tokens, rows::token_order(tokens, count), first_id, at(ids),
                               at(numbers)};
  });
}

template <class T> void embedding(report& r, const sizes& m) {
  const int64_t count = rows_of_table(m), n = m.tokens * m.hidden;
  const auto id = [=](int64_t t) { return id_of_token(t, count); };
  {
    arrays a;
    const auto table = a.read<T>(count * m.hidden), y = a.written<T>("y", n);
    const auto ids = a.numbered(m.tokens, id);
    a.moves(table, n);
    run(r, "embedding_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::embedding_row<T, int64_t>{m.hidden, first_id, count, at(table), at(ids), at(y)};
    });
  }
  {
    constexpr int64_t columns = 32 / sizeof(T);
    arrays a;
    const auto dy = a.read<T>(n);
    std::vector<std::int32_t> ids;
    for (int64_t t = 0; t < m.tokens; ++t) ids.push_back(static_cast<std::int32_t>(id(t)));
    const rows::token_order order(m.tokens, count);
    std::vector<std::uint64_t> ordered(ids.size());
    const mc::cores host;
    rows::number_of_tokens(host, m.tokens, order, first_id, ids.data(), ordered.data());
    host.sort(ordered.data(), m.tokens, order.token_bits, order.bin_bits(), nullptr);
    const auto numbers = a.numbered<std::uint64_t>(m.tokens, [ordered](int64_t k) {
      return static_cast<int64_t>(ordered[static_cast<std::size_t>(k)]);
    });
    const auto dtable = a.changed<float>("dtable", count * m.hidden);
    a.moves(dtable, 2 * n);
    run(r, "embedding_gradient_slab", name_of_type<T>, m, a, (m.hidden + columns - 1) / columns,
        [=](place at) {
          return rows::embedding_gradient_slab<T>{m.hidden, m.tokens,    order,     columns,
                                                  at(dy),   at(numbers), at(dtable)};
        });
    const int64_t windows = rows::token_partials::windows(m.tokens);
    const auto sums = a.changed<float>("sums", 2 * windows * m.hidden);
    run(r, "embedding_gradient_partial", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return rows::embedding_gradient_partial<T>{
          m.hidden, 0, {m.tokens, order, at(numbers)}, at(dy), at(dtable), at(sums)};
    });
    if (std::is_same_v<T, float> &&
        m.tokens > rows::rows_per_partial) // of fewer there is nothing to add
      run(r, "embedding_gradient_total", name_of_type<T>, m, a, windows, [=](place at) {
        return rows::embedding_gradient_total<float>{
            m.hidden, 0, {m.tokens, order, at(numbers)}, at(sums), at(dtable)};
      });
  }
}

// The second half of the columns of matrices, as one of two ranks holds them: two matrices where
// results are checked, and one where speed is measured. Scales are numbers near 1. A matrix whose
// speed is not measured has no more than 2^24 elements.
template <class T> void decoded(report& r, const sizes& m) {
  const int64_t columns = (m.ffn + 63) / 64, matrices = m.timed ? 1 : 2;
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 24) / (64 * columns));
  const int64_t rows_of_matrix = m.timed ? m.hidden : std::min(m.hidden, most);
  const int64_t of_matrix = rows_of_matrix * columns, blocks = matrices * of_matrix;
  const int64_t scales = 257 + (2 * of_matrix + 255) / 256;
  const auto byte = [](int64_t seed) {
    return [seed](int64_t i) {
      return static_cast<int64_t>(
          mixed(static_cast<std::uint64_t>(seed), static_cast<std::uint64_t>(i)) % 256);
    };
  };
  arrays a;
  const auto codes = a.numbered<std::uint8_t>(blocks * 32, byte(7)),
             absmax = a.numbered<std::uint8_t>(blocks, byte(8));
  const auto of_matrices = a.read<float>(matrices * scales, 0.5, 1.5);
  const auto w = a.written<T>("w", blocks * 64);
  run(r, "nf4_decode_row", name_of_type<T>, m, a, blocks, [=](place at) {
    return rows::nf4_decode_row<T>{{of_matrix, columns, 2 * columns, columns, 1},
                                   scales,
                                   at(codes),
                                   at(absmax),
                                   at(of_matrices),
                                   at(w)};
  });
}

template <class T> void of_type(report& r, const sizes& m) {
  flat<T>(r, m), of_ranks<T>(r, m), pieces<T>(r, m);
  activation<rows::gelu_exact, T>(r, "gelu_exact", m);
  activation<rows::gelu_tanh, T>(r, "gelu_tanh", m);
  activation<rows::silu, T>(r, "silu", m);
  swiglu<T>(r, m), dropout<T>(r, m), repeated<T>(r, m), kept<T>(r, m), decoded<T>(r, m);
  if (!m.timed) total<T>(r, m);
  if (m.heads > 0) rope<T>(r, m);
  if (m.vocabulary > 0) embedding<T>(r, m);
}

} // namespace

void elements(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    of_type<float>(r, m), of_type<bf16>(r, m);
    cast<float, bf16>(r, "f32 to bf16", m), cast<bf16, float>(r, "bf16 to f32", m);
    if (m.timed) continue;
    key_of_dropout(r, m), numbers_of_tokens(r, m);
    cast<float, float>(r, "f32 to f32", m), cast<bf16, bf16>(r, "bf16 to bf16", m);
  }
}

} // namespace gpu
