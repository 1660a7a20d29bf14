// The kernel of op/rope.hpp. A device has one table with the sines and cosines of all positions.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rope_table.hpp>
#include <megacpp/kernel/rows/rope.hpp>
#include <megacpp/op/rope.hpp>

#include <bit>
#include <utility>
#include <vector>

namespace mc {

namespace detail {
template <std::int64_t N> constexpr fixed<N / 2> half_of(fixed<N>) { return {}; }
constexpr std::int64_t half_of(std::int64_t n) { return n / 2; }
/// Returns the number of rows of the table of sines and cosines.
template <class Call> constexpr std::int64_t positions_of(const Call& c) {
  return c.value_of(op::rope_in::positions).below;
}
} // namespace detail

template <> struct kernel_of<&op::rope> { // x (..., D), positions
  using in = op::rope_in;
  using out = op::rope_out;
  template <class T, class Call> static constexpr table_room table(const Call& c) {
    const std::int64_t half = c.value_of(in::x).back().n / 2, count = detail::positions_of(c);
    const auto angles = c.attr(of_type<op::rope_attributes>);
    table_room room{2 * count * half * std::int64_t{sizeof(accumulator_t<T>)},
                    static_cast<std::uint64_t>(count)};
    for (const double x : {static_cast<double>(half), angles.base, angles.factor, angles.slow,
                           angles.fast, static_cast<double>(angles.along)})
      room.key = room.key * 0x9e3779b97f4a7c15u + std::bit_cast<std::uint64_t>(x);
    return room;
  }
  template <class T, class Call> static void prepare(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t half = c.value_of(in::x).back().n / 2, count = detail::positions_of(c);
    const auto angles = c.attr(of_type<op::rope_attributes>);
    std::vector<double> w;
    for (std::int64_t i = 0; i < half; ++i) w.push_back(op::inverse_frequency(angles, i, half));
    std::vector<double> key = w;
    key.push_back(static_cast<double>(count));
    c.prepared().plan[0] = c.device().table(
        of_type<G>, std::move(key), 2 * count * half,
        [&](G* t) { build_rope_table<G>(count, w, nullptr, t, t + count * half); });
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const auto half = detail::half_of(c.span(in::x, dims<-1>));
    const std::int64_t tokens = c.size(in::positions), stride = c.size(in::x) / tokens,
                       heads = stride / (2 * half), count = detail::positions_of(c);
    const G* table = static_cast<const G*>(c.prepared().plan[0]);
    rows::rope(c.lane(), tokens, heads, half, stride, stride, c.in(in::x), c.in(in::positions),
               table, table + count * half,
               static_cast<int>(c.attr(of_type<op::rope_attributes>).direction), c.out(out::y));
  }
};

} // namespace mc
