// Checks of logits and losses.
#include "rows.hpp"

#include <megacpp/kernel/rows/cross_entropy.hpp>

#include <limits>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

// Labels in the middle, the first, the last, none, and one of another part of the vocabulary, which
// begins at `first`.
array<std::int32_t> labels_of(arrays& a, const sizes& m, int64_t first, bool others) {
  return a.numbered(m.rows, [=](int64_t row) {
    switch (row % 5) {
    case 0: return first + m.vocabulary / 2;
    case 1: return int64_t{-1};
    case 2: return first + m.vocabulary - 1;
    case 3: return others ? first + m.vocabulary : first;
    default:
      return first + static_cast<int64_t>(mixed(7, static_cast<std::uint64_t>(row)) %
                                          static_cast<std::uint64_t>(m.vocabulary));
    }
  });
}

// What is made of a sum of terms e^(l - max), which are added up in double: the orders of a core
// and of a block do not show in single precision, but terms without fused multiply-add may.
constexpr double steps_of_terms = 8;

void sum_of_logits(report& r, const sizes& m) {
  using body = rows::logits_row<float>;
  arrays a;
  const auto logits = a.read<float>(m.rows * m.padded, -8, 8);
  const auto labels = labels_of(a, m, 11, true);
  const auto lse = a.written<double>("lse", m.rows, {.steps = steps_of_terms, .magnitude = 1});
  const auto target = a.written<float>("target", m.rows);
  run(r, "logits_row", name_of_type<float>, m, a, m.rows, [=](place at) {
    return body{m.padded, m.vocabulary, 11, at(logits), at(labels), at(lse), at(target)};
  });
}

// In place where the gradient has the logits' type.
template <class T> void gradient_of_logits(report& r, const sizes& m) {
  constexpr bool in_place = std::is_same_v<T, float>;
  arrays a;
  const auto labels = labels_of(a, m, 11, true);
  const auto lse = a.read<double>(m.rows, 7, 9), dlse = a.read<double>(m.rows);
  const auto dtarget = a.read<float>(m.rows);
  array<float> logits;
  array<T> d;
  if constexpr (in_place) logits = d = a.changed<T>("dlogits", m.rows * m.padded, {}, -8, 8);
  else
    logits = a.read<float>(m.rows * m.padded, -8, 8),
    d = a.written<T>("dlogits", m.rows * m.padded);
  run(r, "logits_grad_row", name_of_type<T>, m, a, m.rows, [=](place at) {
    return rows::logits_grad_row<T>{m.padded, m.vocabulary, 11,          at(logits), at(labels),
                                    at(lse),  at(dlse),     at(dtarget), at(d)};
  });
}

template <class T> void loss(report& r, const sizes& m) {
  using body = rows::loss_row<T>;
  constexpr bool in_place = std::is_same_v<T, float>;
  // A gradient is up to 0.75 (1 + 2 0.01 21); at the label 0.75 is taken from it.
  const bound of_gradient{.roundings = 1, .steps = steps_of_terms, .magnitude = 1};
  arrays a;
  const auto labels = labels_of(a, m, 0, false);
  const auto value = a.written<double>("loss", m.rows, {.steps = steps_of_terms, .magnitude = 1});
  array<float> logits;
  array<T> d;
  if constexpr (in_place) {
    logits = d = a.changed<T>("dlogits", m.rows * m.padded, of_gradient, -8, 8);
  } else {
    // A core leaves terms of the sum in them, a block nothing.
    const bound any{.steps = 1, .magnitude = std::numeric_limits<double>::infinity()};
    logits = a.changed<float>("logits", m.rows * m.padded, any, -8, 8);
    a.moves(logits, m.rows * m.padded);
    d = a.written<T>("dlogits", m.rows * m.padded, of_gradient);
  }
  const auto seed = a.given(0.75f);
  run(r, "loss_row", name_of_type<T>, m, a, m.rows, [=](place at) {
    return body{m.padded, m.vocabulary, at(logits), at(labels), at(seed), 0.01, at(value), at(d)};
  });
}

// Of a vocabulary in eight parts. Exponentials and logarithms in double are the source's own, not a
// library's.
void parts_of_loss(report& r, const sizes& m) {
  constexpr int64_t parts = 8;
  const bound of_double{.steps = 8, .magnitude = 16, .unit = 0x1p-53};
  {
    arrays a;
    const auto labels = labels_of(a, m, 0, false);
    const auto lse = a.read<double>(m.rows * parts, -8, 8);
    const auto target = a.read<float>(m.rows, -8, 8);
    const auto value = a.written<double>("loss", m.rows, of_double);
    run(r, "cross_entropy_row", name_of_type<float>, m, a, m.rows, [=](place at) {
      return rows::cross_entropy_row<float>{parts,      at(lse), at(target),
                                            at(labels), 0.01,    at(value)};
    });
  }
  {
    arrays a;
    const auto labels = labels_of(a, m, 0, false);
    const auto lse = a.read<double>(m.rows * parts, -8, 8);
    const auto seed = a.given(0.75f);
    const auto dlse = a.written<double>("dlse", m.rows * parts, of_double);
    const auto dtarget = a.written<float>("dtarget", m.rows);
    run(r, "cross_entropy_grad_row", name_of_type<float>, m, a, m.rows, [=](place at) {
      return rows::cross_entropy_grad_row<float>{parts, at(seed), at(lse),    at(labels),
                                                 0.01,  at(dlse), at(dtarget)};
    });
  }
  arrays a;
  const auto labels = labels_of(a, m, 0, false);
  const auto losses = a.read<double>(m.rows, 0, 12);
  const auto sum = a.written<float>("loss", 1), count = a.written<float>("count", 1);
  run(r, "sum_of_losses", name_of_type<float>, m, a, 1, [=](place at) {
    return rows::sum_of_losses<float>{m.rows, at(losses), at(labels), at(sum), at(count)};
  });
}

} // namespace

void losses(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    if (m.vocabulary == 0) continue;
    sum_of_logits(r, m);
    gradient_of_logits<float>(r, m), gradient_of_logits<bf16>(r, m);
    loss<float>(r, m), loss<bf16>(r, m);
    if (!m.timed) parts_of_loss(r, m);
  }
}

} // namespace gpu
