// Kernels of op/norm.hpp.
#pragma once

#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/layer_norm.hpp>
#include <megacpp/kernel/rows/rms_norm.hpp>
#include <megacpp/op/norm.hpp>

namespace mc {

namespace detail {

/// rows_of_gain returns the rows over which the gradient of a gain is a sum, and
/// bytes_of_gain_partials the bytes of its partial sums.
template <class Call, class In> constexpr rows::summed_rows rows_of_gain(const Call& c, In dy) {
  return {c.rows(dy), rows_at_once(c.sums(), c.ranks(), c.value_of(dy), c.rows(dy))};
}
template <class T, class Call, class In>
constexpr std::int64_t bytes_of_gain_partials(const Call& c, In dy) {
  return rows::bytes_of_partials<lane_of<Call>, accumulator_t<T>>(rows_of_gain(c, dy),
                                                                  c.span(dy, dims<-1>));
}

} // namespace detail

template <> struct kernel_of<&op::rms_norm> {
  using in = op::rms_norm_in;
  using out = op::rms_norm_out;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::rms_norm(c.lane(), c.rows(in::x), c.span(in::x, dims<-1>), c.in(in::x), c.in(in::gain),
                   static_cast<G>(c.attr(of_type<op::norm_attributes>).eps), c.out(out::y),
                   c.out(out::rstd));
  }
};
template <> struct kernel_of<&op::rms_norm_grad> { // dy, x, gain, rstd
  using in = op::rms_norm_grad_in;
  using out = op::rms_norm_grad_out;
  template <class T, class Call> static void run(Call& c) {
    rows::rms_norm_dx(c.lane(), c.rows(in::dy), c.span(in::dy, dims<-1>), c.in(in::dy), c.in(in::x),
                      c.in(in::gain), c.in(in::rstd), c.out(out::dx));
  }
};
template <> struct kernel_of<&op::rms_norm_gain_grad> { // dy, x, rstd
  using in = op::rms_norm_gain_grad_in;
  using out = op::rms_norm_gain_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return detail::bytes_of_gain_partials<T>(c, in::dy);
  }
  template <class T, class Call> static void run(Call& c) {
    rows::rms_norm_dgain(c.lane(), detail::rows_of_gain(c, in::dy), c.span(in::dy, dims<-1>),
                         c.in(in::dy), c.in(in::x), c.in(in::rstd), c.out(out::dgain), c.scratch());
  }
};

template <> struct kernel_of<&op::layer_norm> {
  using in = op::layer_norm_in;
  using out = op::layer_norm_out;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::layer_norm(c.lane(), c.rows(in::x), c.span(in::x, dims<-1>), c.in(in::x), c.in(in::gain),
                     c.in(in::bias), static_cast<G>(c.attr(of_type<op::norm_attributes>).eps),
                     c.out(out::y), c.out(out::mean), c.out(out::rstd));
  }
};
template <> struct kernel_of<&op::layer_norm_grad> { // dy, x, gain, mean, rstd
  using in = op::layer_norm_grad_in;
  using out = op::layer_norm_grad_out;
  template <class T, class Call> static void run(Call& c) {
    rows::layer_norm_dx(c.lane(), c.rows(in::dy), c.span(in::dy, dims<-1>), c.in(in::dy),
                        c.in(in::x), c.in(in::gain), c.in(in::mean), c.in(in::rstd),
                        c.out(out::dx));
  }
};
template <> struct kernel_of<&op::layer_norm_gain_grad> { // dy, x, mean, rstd
  using in = op::layer_norm_gain_grad_in;
  using out = op::layer_norm_gain_grad_out;
  template <class T, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return detail::bytes_of_gain_partials<T>(c, in::dy);
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::layer_norm_dgain_dbias(c.lane(), detail::rows_of_gain(c, in::dy),
                                 c.span(in::dy, dims<-1>), c.in(in::dy), c.in(in::x),
                                 c.in(in::mean), c.in(in::rstd), c.out(out::dgain),
                                 static_cast<G*>(nullptr), c.scratch());
  }
};

template <> struct kernel_of<&op::add_rms_norm> { // x, a, gain -> s, y, rstd
  using in = op::add_rms_norm_in;
  using out = op::add_rms_norm_out;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::add_rms_norm(c.lane(), c.rows(in::x), c.span(in::x, dims<-1>), c.in(in::x), c.in(in::a),
                       c.in(in::gain), static_cast<G>(c.attr(of_type<op::norm_attributes>).eps),
                       c.out(out::s), c.out(out::y), c.out(out::rstd));
  }
};
template <> struct kernel_of<&op::add_layer_norm> { // x, a, gain, bias -> s, y, mean, rstd
  using in = op::add_layer_norm_in;
  using out = op::add_layer_norm_out;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    rows::add_layer_norm(c.lane(), c.rows(in::x), c.span(in::x, dims<-1>), c.in(in::x), c.in(in::a),
                         c.in(in::gain), c.in(in::bias),
                         static_cast<G>(c.attr(of_type<op::norm_attributes>).eps), c.out(out::s),
                         c.out(out::y), c.out(out::mean), c.out(out::rstd));
  }
};
template <> struct kernel_of<&op::rms_norm_grad_add> { // dy, x, gain, rstd, d
  using in = op::rms_norm_grad_in;
  using out = op::rms_norm_grad_out;
  template <class T, class Call> static void run(Call& c) {
    rows::add_rms_norm_dx(c.lane(), c.rows(in::dy), c.span(in::dy, dims<-1>), c.in(in::dy),
                          c.in(in::x), c.in(in::gain), c.in(in::rstd), c.in(in::d), c.out(out::dx));
  }
};
template <> struct kernel_of<&op::layer_norm_grad_add> { // dy, x, gain, mean, rstd, d
  using in = op::layer_norm_grad_in;
  using out = op::layer_norm_grad_out;
  template <class T, class Call> static void run(Call& c) {
    rows::add_layer_norm_dx(c.lane(), c.rows(in::dy), c.span(in::dy, dims<-1>), c.in(in::dy),
                            c.in(in::x), c.in(in::gain), c.in(in::mean), c.in(in::rstd),
                            c.in(in::d), c.out(out::dx));
  }
};

} // namespace mc
