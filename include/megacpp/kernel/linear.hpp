// Kernels of op/linear.hpp: matrix products, and biases by rows. GELU is the end of a product.
// Where no library computes that end, a body computes it behind the product, with the bits that
// GELU has as a node of its own.
#pragma once

#include <megacpp/exec/product_source.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/kernel/rows/columns.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/op/linear.hpp>

namespace mc {

namespace detail {

/// Returns the rows of a segment of a product with `rows` rows of a value (product_shape::segment):
/// the rows of a sequence, or 0 where all rows are computed together.
template <class Call>
constexpr std::int64_t segment_rows(const Call& c, const value& v, std::int64_t rows) {
  if (c.sums() == numerics::fast) return 0;
  return rows_at_once(c.sums(), c.ranks(), v, rows);
}

template <class T, class Call> constexpr product_shape forward_product(const Call& c) {
  using in = op::linear_in;
  const auto e = op::extents_of_product(c.ranks(), c.value_of(in::x), c.value_of(in::w),
                                        c.attr(of_type<op::product_attributes>).summed);
  product_shape s = make_product_shape(product_kind::forward, dtype_of<T>, e.m, e.n, e.k);
  s.segment = segment_rows(c, c.value_of(in::x), e.m);
  s.bias = c.has(in::bias);
  return s;
}

} // namespace detail

template <> struct kernel_of<&op::linear> {
  using in = op::linear_in;
  using out = op::linear_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::forward_product<T>(c);
  }
  template <class T, class Call> static void run(Call& c) {
    c.product(0).execute({.on = c.lane(),
                          .a = c.in(in::x),
                          .b = c.in(in::w),
                          .bias = c.in(in::bias),
                          .out = c.out(out::y)});
  }
};

namespace detail {
/// y = gelu(z), and z is kept or not.
template <bool Kept> struct linear_and_gelu { // x, w, bias
  using in = op::linear_in;
  using out = std::conditional_t<Kept, op::linear_gelu_kept_out, op::linear_out>;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    product_shape s = forward_product<T>(c);
    s.ends_in = Kept ? product_end::gelu_kept : product_end::gelu;
    return s;
  }
  template <class T, class Call> static void run(Call& c) {
    T *const y = c.out(out::y), *z = y; // z takes y's place where it is not kept
    if constexpr (Kept) z = c.out(out::z);
    const bool whole = c.product(0).shape().ends_in != product_end::sum;
    c.product(0).execute({.on = c.lane(),
                          .a = c.in(in::x),
                          .b = c.in(in::w),
                          .bias = c.in(in::bias),
                          .out = whole ? y : z,
                          .kept = whole && Kept ? z : nullptr});
    if (!whole) rows::activation<rows::gelu_tanh>(c.lane(), c.size(out::y), z, y);
  }
};
} // namespace detail
template <> struct kernel_of<&op::linear_gelu> : detail::linear_and_gelu<false> {};
template <> struct kernel_of<&op::linear_gelu_kept> : detail::linear_and_gelu<true> {};

namespace detail {
template <class T, class In, class Call> constexpr product_shape input_product(const Call& c) {
  const value &dy = c.value_of(In::dy), &w = c.value_of(In::w);
  const auto summed = c.attr(of_type<op::product_attributes>).summed;
  std::int64_t n = 1, k = 1;
  for (int i = 0; i < w.rank - summed; ++i) n *= local_extent(c.ranks(), w, i);
  for (int i = w.rank - summed; i < w.rank; ++i) k *= local_extent(c.ranks(), w, i);
  const std::int64_t m = local_size(c.ranks(), dy).n / n;
  product_shape s = make_product_shape(product_kind::input_gradient, dtype_of<T>, m, n, k);
  s.segment = segment_rows(c, dy, m);
  return s;
}
/// dx = dy w, or with Add, for an operand d, dx = d + dy w.
template <bool Add> struct input_gradient { // dy, w, [d]
  using in = op::linear_input_grad_in;
  using out = op::linear_input_grad_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    product_shape s = input_product<T, in>(c);
    s.accumulate = Add;
    return s;
  }
  template <class T, class Call> static void run(Call& c) {
    T* dx = c.out(out::dx);
    if (Add && c.in(in::d) != dx) {
      const std::int64_t n = c.size(in::d);
      for_blocks(c.lane(), n, rows::copy_block<T>{n, c.in(in::d), dx});
    }
    c.product(0).execute({.on = c.lane(), .a = c.in(in::dy), .b = c.in(in::w), .out = dx});
  }
};
} // namespace detail
template <> struct kernel_of<&op::linear_input_grad> : detail::input_gradient<false> {};
template <> struct kernel_of<&op::linear_input_grad_add> : detail::input_gradient<true> {};

template <> struct kernel_of<&op::linear_input_grad_gelu> { // dy, w, z
  using in = op::linear_input_grad_gelu_in;
  using out = op::linear_input_grad_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    product_shape s = detail::input_product<T, in>(c);
    s.ends_in = product_end::gelu_gradient;
    return s;
  }
  template <class T, class Call> static void run(Call& c) {
    const T* const z = c.in(in::z);
    T* const dx = c.out(out::dx);
    c.product(0).execute(
        {.on = c.lane(), .a = c.in(in::dy), .b = c.in(in::w), .out = dx, .slopes_at = z});
    if (c.product(0).shape().ends_in == product_end::sum)
      rows::activation_dx<rows::gelu_tanh>(c.lane(), c.size(in::z), dx, z, dx);
  }
};

template <> struct kernel_of<&op::linear_weight_grad> { // dy, x
  using in = op::linear_weight_grad_in;
  using out = op::linear_weight_grad_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    const value &dy = c.value_of(in::dy), &x = c.value_of(in::x);
    const auto summed = c.attr(of_type<op::product_attributes>).summed;
    std::int64_t k = 1;
    for (int i = x.rank - summed; i < x.rank; ++i) k *= local_extent(c.ranks(), x, i);
    const std::int64_t m = local_size(c.ranks(), x).n / k, n = local_size(c.ranks(), dy).n / m;
    product_shape s = make_product_shape(product_kind::weight_gradient, dtype_of<T>, m, n, k);
    s.segment = detail::segment_rows(c, x, m);
    return s;
  }
  template <class T, class Call> static void run(Call& c) {
    c.product(0).execute(
        {.on = c.lane(), .a = c.in(in::dy), .b = c.in(in::x), .out = c.out(out::dw)});
  }
};

template <> struct kernel_of<&op::add_bias> {
  using in = op::add_bias_in;
  using out = op::add_bias_out;
  template <class T, class Call> static void run(Call& c) {
    const auto width = c.span(in::bias, dims<0>);
    rows::bias_add(c.lane(), c.size(in::x) / width, width, c.in(in::x), c.in(in::bias),
                   c.out(out::y));
  }
};

// [bias_grad]
template <> struct kernel_of<&op::bias_grad> {
  using in = op::bias_grad_in;
  using out = op::bias_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return rows::bytes_of_partials<lane_of<Call>, accumulator_t<T>>(summed(c),
                                                                    c.span(out::dbias, dims<0>));
  }
  template <class T, class Call> static void run(Call& c) {
    rows::bias_gradient(c.lane(), summed(c), c.span(out::dbias, dims<0>), c.in(in::dy),
                        c.out(out::dbias), c.scratch());
  }

private:
  template <class Call> static constexpr rows::summed_rows summed(const Call& c) {
    const std::int64_t n = c.size(in::dy) / c.span(out::dbias, dims<0>);
    return {n, rows_at_once(c.sums(), c.ranks(), c.value_of(in::dy), n)};
  }
};
// [/bias_grad]

} // namespace mc
