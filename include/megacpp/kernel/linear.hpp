// Kernels of op/linear.hpp: products through the device's product engine, biases by rows.
#pragma once

#include <megacpp/exec/product_source.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/op/linear.hpp>

namespace mc {

namespace detail {

/// Makes the plan of one product of a node and keeps it in its slot.
template <class Call> void prepare_product(Call& c, product_shape s, int slot = 0) {
  s.sums = c.sums();
  c.slot().plan[static_cast<unsigned>(slot)] = &c.device().products().prepare(s);
}
template <class Call> const prepared_product& product_of(const Call& c, int slot = 0) {
  return *static_cast<const prepared_product*>(c.slot().plan[static_cast<unsigned>(slot)]);
}

/// Rows of a part of a product of `rows` rows of a value (product_shape::part): those of a
/// sequence, or none where they are computed together.
template <class Call> std::int64_t part_rows(const Call& c, const value& v, std::int64_t rows) {
  if (c.sums() == numerics::fast) return 0;
  return rows_at_once(c.sums(), c.ranks(), v, rows);
}

} // namespace detail

template <> struct kernel_of<&op::linear> {
  template <class T, class Call> static void prepare(Call& c) {
    const auto e = op::extents_of_product(c.ranks(), c.value_in(0), c.value_in(1),
                                          c.template attr<op::product_attributes>().summed);
    product_shape s = make_product_shape(product_kind::forward, dtype_of<T>, e.m, e.n, e.k);
    s.part = detail::part_rows(c, c.value_in(0), e.m);
    s.bias = c.has(2);
    detail::prepare_product(c, s);
  }
  template <class T, class Call> static void run(Call& c) {
    detail::product_of(c).execute(c.template in<T>(0), c.template in<T>(1), c.template in<T>(2),
                                  c.template out<T>(0));
  }
};

namespace detail {
/// dx = dy w, or with Add, for an operand d, dx = d + dy w.
template <bool Add> struct input_gradient { // dy, w, [d]
  template <class T, class Call> static void prepare(Call& c) {
    const value &dy = c.value_in(0), &w = c.value_in(1);
    const auto summed = c.template attr<op::product_attributes>().summed;
    std::int64_t n = 1, k = 1;
    for (int i = 0; i < w.rank - summed; ++i) n *= local_extent(c.ranks(), w, i);
    for (int i = w.rank - summed; i < w.rank; ++i) k *= local_extent(c.ranks(), w, i);
    const std::int64_t m = local_size(c.ranks(), dy).n / n;
    product_shape s = make_product_shape(product_kind::input_gradient, dtype_of<T>, m, n, k);
    s.part = part_rows(c, dy, m);
    s.accumulate = Add;
    detail::prepare_product(c, s);
  }
  template <class T, class Call> static void run(Call& c) {
    T* dx = c.template out<T>(0);
    if (Add && c.template in<T>(2) != dx) {
      const std::int64_t n = c.in_size(2);
      for_blocks(c.device(), n, rows::copy_block<T>{n, c.template in<T>(2), dx});
    }
    detail::product_of(c).execute(c.template in<T>(0), c.template in<T>(1), nullptr, dx);
  }
};
} // namespace detail
template <> struct kernel_of<&op::linear_input_grad> : detail::input_gradient<false> {};
template <> struct kernel_of<&op::linear_input_grad_add> : detail::input_gradient<true> {};

template <> struct kernel_of<&op::linear_weight_grad> { // dy, x
  template <class T, class Call> static void prepare(Call& c) {
    const value &dy = c.value_in(0), &x = c.value_in(1);
    const auto summed = c.template attr<op::product_attributes>().summed;
    std::int64_t k = 1;
    for (int i = x.rank - summed; i < x.rank; ++i) k *= local_extent(c.ranks(), x, i);
    const std::int64_t m = local_size(c.ranks(), x).n / k, n = local_size(c.ranks(), dy).n / m;
    product_shape s = make_product_shape(product_kind::weight_gradient, dtype_of<T>, m, n, k);
    s.part = detail::part_rows(c, x, m);
    detail::prepare_product(c, s);
  }
  template <class T, class Call> static void run(Call& c) {
    detail::product_of(c).execute(c.template in<T>(0), c.template in<T>(1), nullptr,
                                  c.template out<accumulator_t<T>>(0));
  }
};

template <> struct kernel_of<&op::add_bias> {
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template in_span<1, 0, 0>();
    rows::bias_add(c.device(), c.in_size(0) / width, width, c.template in<T>(0),
                   c.template in<T>(1), c.template out<T>(0));
  }
};

template <> struct kernel_of<&op::bias_grad> {
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.template out_span<0, 0, 0>();
    const std::int64_t rows = c.in_size(0) / width;
    rows::bias_gradient(c.device(), {rows, rows_at_once(c.sums(), c.ranks(), c.value_in(0), rows)},
                        width, c.template in<T>(0), c.template out<accumulator_t<T>>(0));
  }
};

} // namespace mc
