// Checks of norms and of sums over rows.
#include "rows.hpp"

#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>

#include <algorithm>
#include <string>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

// Elements are in [-1, 1), so that a row's mean square is about 1/3 or, with eps, above 0.01.
constexpr float eps = 0.01f;

// y of a norm of s: x rstd, rounded, times gain.
template <class T, bool Add> void rms(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  using body =
      std::conditional_t<Add, rows::add_rms_norm_row<T, int64_t>, rows::rms_norm_row<T, int64_t>>;
  const double steps = steps_of_sum<body, T>(m.hidden) + 8;
  arrays a;
  const auto x = a.read<T>(n), gain = a.read<T>(m.hidden);
  const auto y = a.written<T>("y", n, {.roundings = 2, .steps = steps});
  const auto rstd = a.written<float>("rstd", m.tokens, {.steps = steps});
  if constexpr (Add) {
    const auto branch = a.read<T>(n), s = a.written<T>("s", n);
    run(r, "add_rms_norm_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.hidden, eps, at(x), at(branch), at(gain), at(s), at(y), at(rstd)};
    });
  } else {
    run(r, "rms_norm_row", name_of_type<T>, m, a, m.tokens,
        [=](place at) { return body{m.hidden, eps, at(x), at(gain), at(y), at(rstd)}; });
  }
}

template <class T, bool Add> void layer(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  using body = std::conditional_t<Add, rows::add_layer_norm_row<T, int64_t>,
                                  rows::layer_norm_row<T, int64_t>>;
  const double steps = steps_of_sum<body, T>(m.hidden) + 8;
  arrays a;
  const auto x = a.read<T>(n), gain = a.read<T>(m.hidden), bias = a.read<T>(m.hidden);
  // The mean's error is that of a sum of elements up to 2; rstd is at most 10.
  const auto y = a.written<T>("y", n, {.roundings = 1, .steps = steps, .magnitude = 20});
  const auto mean = a.written<float>("mean", m.tokens, {.steps = steps, .magnitude = 2});
  const auto rstd = a.written<float>("rstd", m.tokens, {.steps = steps, .magnitude = 1});
  if constexpr (Add) {
    const auto branch = a.read<T>(n), s = a.written<T>("s", n);
    run(r, "add_layer_norm_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.hidden, eps,   at(x), at(branch), at(gain),
                  at(bias), at(s), at(y), at(mean),   at(rstd)};
    });
  } else {
    run(r, "layer_norm_row", name_of_type<T>, m, a, m.tokens, [=](place at) {
      return body{m.hidden, eps, at(x), at(gain), at(bias), at(y), at(mean), at(rstd)};
    });
  }
}

// |dy gain| <= 1, |xhat| <= (1 + 1) 2: the means are of terms up to 4, dx is up to 2 (1 + 1 + 16).
// With Add it is rounded before ds is added.
template <class Body, class T, bool Add, bool Centred>
void dx(report& r, const char* name, const sizes& m) {
  const int64_t n = m.tokens * m.hidden;
  const double steps = steps_of_sum<Body, T>(m.hidden) + 16;
  arrays a;
  const auto dy = a.read<T>(n), x = a.read<T>(n), gain = a.read<T>(m.hidden);
  const auto rstd = a.read<float>(m.tokens, 0.5, 2);
  const array<float> mean = Centred ? a.read<float>(m.tokens) : array<float>{};
  const array<T> ds = Add ? a.read<T>(n) : array<T>{};
  const auto out = a.written<T>(
      "dx", n, {.roundings = 1, .steps = steps, .magnitude = 36, .inner = Add ? 36.0 : 0.0});
  run(r, name, name_of_type<T>, m, a, m.tokens, [=](place at) {
    if constexpr (Centred) {
      return Body{m.hidden, at(dy), at(x), at(gain), at(mean), at(rstd), at(ds), at(out)};
    } else {
      return Body{m.hidden, at(dy), at(x), at(gain), at(rstd), at(ds), at(out)};
    }
  });
}

// Slabs of one sector of memory, 32 bytes, of which every row has one: a row's columns are in as
// many blocks as there can be. Sums over rows are in the same order everywhere.
template <class T> void sums_over_rows(report& r, const sizes& m) {
  constexpr int64_t columns = 32 / sizeof(T);
  const int64_t n = m.tokens * m.hidden, slabs = (m.hidden + columns - 1) / columns;
  const mc::rows::summed_rows of(m.tokens, m.tokens % 2 == 0 ? m.tokens / 2 : m.tokens);
  {
    arrays a;
    const auto dy = a.read<T>(n);
    const auto grad = a.changed<float>("grad", m.hidden);
    run(r, "bias_gradient_slab", name_of_type<T>, m, a, slabs, [=](place at) {
      return rows::bias_gradient_slab<T>{m.hidden, of, columns, at(dy), at(grad)};
    });
  }
  {
    arrays a;
    const auto dy = a.read<T>(n), x = a.read<T>(n);
    const auto rstd = a.read<float>(m.tokens, 0.5, 2);
    const auto dgain = a.changed<float>("dgain", m.hidden);
    run(r, "rms_norm_gain_slab", name_of_type<T>, m, a, slabs, [=](place at) {
      return rows::rms_norm_gain_slab<T>{m.hidden, of, columns, at(dy), at(x), at(rstd), at(dgain)};
    });
  }
  {
    arrays a;
    const auto dy = a.read<T>(n), x = a.read<T>(n);
    const auto mean = a.read<float>(m.tokens), rstd = a.read<float>(m.tokens, 0.5, 2);
    const auto dgain = a.changed<float>("dgain", m.hidden);
    const auto dbias = a.changed<float>("dbias", m.hidden);
    run(r, "layer_norm_gain_slab", name_of_type<T>, m, a, slabs, [=](place at) {
      return rows::layer_norm_gain_slab<T>{m.hidden, of,       columns,   at(dy),   at(x),
                                           at(mean), at(rstd), at(dgain), at(dbias)};
    });
  }
}

// The same by parts, each by a launch of its own, and the sums of the parts.
template <class T> void sums_by_partials(report& r, const sizes& m) {
  const int64_t n = m.tokens * m.hidden, wide = std::min<int64_t>(m.hidden, 1024),
                slabs = (m.hidden + wide - 1) / wide, narrow = 16;
  const mc::rows::summed_rows of(m.tokens, m.tokens % 2 == 0 ? m.tokens / 2 : m.tokens);
  const int64_t all = of.partials() * m.hidden;
  const auto bytes = [](float* x) { return reinterpret_cast<std::byte*>(x); };
  const auto check = [&](const char* name, auto body_for) {
    arrays a;
    const auto dy = a.read<T>(n), x = a.read<T>(n);
    const auto mean = a.read<float>(m.tokens), rstd = a.read<float>(m.tokens, 0.5, 2);
    const auto sums = a.written<float>("sums", all);
    run(r, (std::string("part of ") + name).c_str(), name_of_type<T>, m, a, slabs * of.partials(),
        [=](place at) {
          auto body = body_for(at(dy), at(x), at(mean), at(rstd), static_cast<float*>(nullptr));
          body.columns = wide;
          return rows::partial_of_slab<decltype(body)>{body, slabs, bytes(at(sums))};
        });
    arrays b;
    const auto parts = b.read<float>(all);
    const auto grad = b.changed<float>("grad", m.hidden);
    run(r, (std::string("total of ") + name).c_str(), name_of_type<T>, m, b,
        (m.hidden + narrow - 1) / narrow, [=](place at) {
          auto body = body_for(static_cast<const T*>(nullptr), static_cast<const T*>(nullptr),
                               static_cast<const float*>(nullptr),
                               static_cast<const float*>(nullptr), at(grad));
          body.columns = narrow;
          return rows::total_of_slab<decltype(body)>{body, bytes(at(parts))};
        });
  };
  check("bias_gradient_slab", [=](const T* dy, const T*, const float*, const float*, float* grad) {
    return rows::bias_gradient_slab<T>{m.hidden, of, 0, dy, grad};
  });
  check("rms_norm_gain_slab",
        [=](const T* dy, const T* x, const float*, const float* rstd, float* grad) {
          return rows::rms_norm_gain_slab<T>{m.hidden, of, 0, dy, x, rstd, grad};
        });
  check("layer_norm_gain_slab",
        [=](const T* dy, const T* x, const float* mean, const float* rstd, float* grad) {
          return rows::layer_norm_gain_slab<T>{m.hidden, of, 0, dy, x, mean, rstd, grad, nullptr};
        });
}

template <class T> void of_type(report& r, const sizes& m) {
  rms<T, false>(r, m), rms<T, true>(r, m);
  dx<rows::rms_norm_dx_row<T, int64_t, false>, T, false, false>(r, "rms_norm_dx_row", m);
  dx<rows::rms_norm_dx_row<T, int64_t, true>, T, true, false>(r, "add rms_norm_dx_row", m);
  layer<T, false>(r, m), layer<T, true>(r, m);
  dx<rows::layer_norm_dx_row<T, int64_t, false>, T, false, true>(r, "layer_norm_dx_row", m);
  dx<rows::layer_norm_dx_row<T, int64_t, true>, T, true, true>(r, "add layer_norm_dx_row", m);
  sums_over_rows<T>(r, m), sums_by_partials<T>(r, m);
}

} // namespace

void norms(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) of_type<float>(r, m), of_type<bf16>(r, m);
}

} // namespace gpu
