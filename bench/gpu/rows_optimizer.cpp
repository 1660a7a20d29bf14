// The optimizer and the gradient norm, on flat ranges.
#include "rows.hpp"

#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>

namespace gpu {
namespace {

namespace rows = mc::rows;
using mc::bf16;
using std::int64_t;

template <class T> void adamw(report& r, const sizes& m, bool broken) {
  const int64_t n = m.tokens * m.hidden, blocks = mc::blocks_of(n);
  auto factors = rows::adamw_step<float>(3, 1e-3, 0.9, 0.95, 1e-8, 0.1, 0.5);
  // An update beyond the range leaves infinity, which every block has to tell.
  if (broken) factors.step = 3e38f, factors.root = 0;
  arrays a;
  const auto grad = a.read<float>(n);
  const auto master = a.changed<float>("master", n), first = a.changed<float>("m", n);
  const auto second = a.changed<float>("v", n, same_bits, 0, 1);
  const auto weight = a.written<T>("weight", n);
  const auto flags = a.written<std::uint8_t>("broken", blocks);
  run(r, broken ? "adamw_block infinite" : "adamw_block", name_of_type<T>, m, a, blocks,
      [=](place at) {
        return rows::adamw_block<T>{n,         factors,    at(grad),   at(master),
                                    at(first), at(second), at(weight), at(flags)};
      });
}

template <class T> void sum_squares(report& r, const sizes& m) {
  using body = rows::sum_squares_block<T>;
  const int64_t n = m.tokens * m.hidden, parts = rows::sum_squares_parts(n);
  const int64_t most = n < rows::sum_squares_elements ? n : rows::sum_squares_elements;
  arrays a;
  const auto x = a.read<T>(n);
  const auto sums = a.written<double>(
      "parts", parts, {.steps = steps_of_sum<T>(most, threads_of<body>), .unit = 0x1p-53});
  run(r, "sum_squares_block", name_of_type<T>, m, a, parts, [=](place at) {
    return body{n, at(x), at(sums)};
  });
}

} // namespace

void optimizer(report& r, std::span<const sizes> all) {
  for (const sizes& m : all) {
    adamw<float>(r, m, false), adamw<bf16>(r, m, false);
    if (!m.timed) adamw<bf16>(r, m, true);
    sum_squares<float>(r, m), sum_squares<bf16>(r, m);
  }
}

} // namespace gpu
