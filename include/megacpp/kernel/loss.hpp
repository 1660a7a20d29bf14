// Kernels of op/loss.hpp. They hold logits of a chunk of rows at a time, never more.
#pragma once

#include <megacpp/kernel/linear.hpp>
#include <megacpp/kernel/rows/cross_entropy.hpp>
#include <megacpp/op/loss.hpp>

#include <algorithm>

namespace mc {

namespace detail {

/// The chunks of rows of a vocabulary projection on one rank.
struct chunking {
  std::int64_t rows = 0, at_once = 0, width = 0, hidden = 0, valid = 0, first = 0;
  constexpr std::int64_t chunk() const { return std::min(at_once, op::max_logit_rows); }
  /// Calls f(first row, rows) for every chunk; no chunk is in two sums.
  template <class F> void each(F f) const {
    for (std::int64_t start = 0; start < rows; start += at_once)
      for (std::int64_t at = 0; at < at_once; at += chunk())
        f(start + at, std::min(chunk(), at_once - at));
  }
};

template <class In, class Call> constexpr chunking chunks_of(const Call& c) {
  const value &vx = c.value_of(In::x), &vw = c.value_of(In::w);
  chunking k;
  k.hidden = vx.back().n;
  k.rows = local_size(c.ranks(), vx).n / k.hidden;
  k.at_once = rows_at_once(c.sums(), c.ranks(), vx, k.rows);
  k.width = local_extent(c.ranks(), vw, 0);
  return k;
}
/// Returns the chunks with the columns that are tokens of the vocabulary, which depend on the rank.
template <class In, class Call> chunking placed(const Call& c, std::int64_t words) {
  chunking k = chunks_of<In>(c);
  k.first = c.origin(c.value_of(In::w), 0);
  k.valid = std::clamp<std::int64_t>(words - k.first, 0, k.width);
  return k;
}
template <class T> constexpr product_shape chunk_product(product_kind kind, const chunking& k) {
  product_shape s = make_product_shape(kind, dtype_of<T>, k.chunk(), k.width, k.hidden);
  if (kind == product_kind::forward) s.out = accumulator_of(dtype_of<T>);
  s.dynamic_rows = k.at_once % k.chunk() != 0;
  return s;
}

/// Returns the products of logits, of dx and, where the table is trained, of dw.
template <class T> constexpr product_list backward_products(const chunking& k, bool weights) {
  product_list all = chunk_product<T>(product_kind::forward, k);
  all.add(chunk_product<T>(product_kind::input_gradient, k));
  if (weights) all.add(chunk_product<T>(product_kind::weight_gradient, k));
  return all;
}

/// Computes the logits of one chunk at a time, their cotangents, and from those dx and dw (null: it
/// is left out). `row_of(first row, dlogits)` is the row body that makes cotangents of logits. In
/// bf16 the cotangents are stored behind the logits.
template <class T, class Call, class RowOf>
void run_backward(Call& c, const chunking& k, const T* x, const T* w, accumulator_t<T>* logits,
                  T* dx, accumulator_t<T>* dw, RowOf row_of) {
  const prepared_product& project = c.product(0);
  T* dlogits;
  if constexpr (std::is_same_v<T, accumulator_t<T>>) dlogits = logits;
  else dlogits = reinterpret_cast<T*>(logits + k.chunk() * k.width);
  k.each([&](std::int64_t at, std::int64_t n) {
    const std::int64_t rows = project.shape().dynamic_rows ? n : -1;
    project.execute({.on = c.lane(), .a = x + at * k.hidden, .b = w, .out = logits, .rows = rows});
    for_rows(c.lane(), n, row_of(at, dlogits));
    c.product(1).execute(
        {.on = c.lane(), .a = dlogits, .b = w, .out = dx + at * k.hidden, .rows = rows});
    if (dw != nullptr)
      c.product(2).execute(
          {.on = c.lane(), .a = dlogits, .b = x + at * k.hidden, .out = dw, .rows = rows});
  });
}

} // namespace detail

template <>
struct kernel_of<&op::vocabulary_partial> { // x, w, labels -> local_lse, target, scratch
  using in = op::vocabulary_partial_in;
  using out = op::vocabulary_partial_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::chunk_product<T>(product_kind::forward, detail::chunks_of<in>(c));
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const auto k = detail::placed<in>(c, c.attr(of_type<op::vocabulary_attributes>).vocabulary);
    const prepared_product& project = c.product(0);
    G* logits = reinterpret_cast<G*>(c.declared_scratch());
    k.each([&](std::int64_t at, std::int64_t n) {
      project.execute({.on = c.lane(),
                       .a = c.in(in::x) + at * k.hidden,
                       .b = c.in(in::w),
                       .out = logits,
                       .rows = project.shape().dynamic_rows ? n : -1});
      for_rows(c.lane(), n,
               rows::logits_row<G>{k.width, k.valid, k.first, logits, c.in(in::labels) + at,
                                   c.out(out::lse) + at, c.out(out::target) + at});
    });
  }
};

template <> struct kernel_of<&op::vocabulary_partial_grad> { // dlse, dtarget, x, w, labels,
                                                             // local_lse -> dx, [dw], scratch
  using in = op::vocabulary_partial_grad_in;
  using out = op::vocabulary_partial_grad_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::backward_products<T>(detail::chunks_of<in>(c),
                                        c.attr(of_type<op::vocabulary_attributes>).weights);
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const auto [words, weights] = c.attr(of_type<op::vocabulary_attributes>);
    const auto k = detail::placed<in>(c, words);
    G* logits = reinterpret_cast<G*>(c.declared_scratch());
    const auto row_of = [&](std::int64_t at, T* dlogits) {
      return rows::logits_grad_row<T>{k.width,
                                      k.valid,
                                      k.first,
                                      logits,
                                      c.in(in::labels) + at,
                                      c.in(in::lse) + at,
                                      c.in(in::dlse) + at,
                                      c.in(in::dtarget) + at,
                                      dlogits};
    };
    detail::run_backward<T>(c, k, c.in(in::x), c.in(in::w), logits, c.out(out::dx),
                            weights ? c.out(out::dw) : nullptr, row_of);
  }
};

template <> struct kernel_of<&op::cross_entropy> { // local_lse, target, labels -> loss, count
  using elements = accumulators;
  using in = op::cross_entropy_in;
  using out = op::cross_entropy_out;
  /// Returns the bytes of a loss for each row.
  template <class G, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return c.size(in::target) * std::int64_t{sizeof(double)};
  }
  template <class G, class Call> static void run(Call& c) {
    const std::int64_t n = c.size(in::target);
    const auto* labels = c.in(in::labels);
    auto* const losses = reinterpret_cast<double*>(c.scratch());
    for_rows(c.lane(), n,
             rows::cross_entropy_row<G>{c.span(in::lse, dims<-1>), c.in(in::lse), c.in(in::target),
                                        labels, c.attr(of_type<op::cross_entropy_attributes>).z,
                                        losses});
    for_one(c.lane(),
            rows::sum_of_losses<G>{n, losses, labels, c.out(out::loss), c.out(out::count)});
  }
};

template <>
struct kernel_of<&op::cross_entropy_grad> { // dloss, local_lse, target, labels -> dlse, dtarget
  using elements = accumulators;
  using in = op::cross_entropy_grad_in;
  using out = op::cross_entropy_grad_out;
  template <class G, class Call> static void run(Call& c) {
    for_rows(c.lane(), c.size(in::target),
             rows::cross_entropy_grad_row<G>{c.span(in::lse, dims<-1>), c.in(in::dloss),
                                             c.in(in::lse), c.in(in::labels),
                                             c.attr(of_type<op::cross_entropy_attributes>).z,
                                             c.out(out::dlse), c.out(out::dtarget)});
  }
};

template <>
struct kernel_of<&op::vocabulary_loss> { // x, w, labels, dloss -> loss, count, dx, [dw], scratch
  using in = op::vocabulary_loss_in;
  using out = op::vocabulary_loss_out;
  template <class T, class Call> static constexpr product_list products(const Call& c) {
    return detail::backward_products<T>(detail::chunks_of<in>(c),
                                        c.attr(of_type<op::vocabulary_loss_attributes>).weights);
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const auto a = c.attr(of_type<op::vocabulary_loss_attributes>);
    const auto k = detail::placed<in>(c, a.vocabulary);
    const std::int32_t* labels = c.in(in::labels);
    double* losses = reinterpret_cast<double*>(c.declared_scratch());
    G* logits = reinterpret_cast<G*>(c.declared_scratch() + op::losses_bytes(k.rows));
    const auto row_of = [&](std::int64_t at, T* dlogits) {
      return rows::loss_row<T>{k.width,         k.valid, logits,      labels + at,
                               c.in(in::dloss), a.z,     losses + at, dlogits};
    };
    detail::run_backward<T>(c, k, c.in(in::x), c.in(in::w), logits, c.out(out::dx),
                            a.weights ? c.out(out::dw) : nullptr, row_of);
    for_one(c.lane(),
            rows::sum_of_losses<G>{k.rows, losses, labels, c.out(out::loss), c.out(out::count)});
  }
};

} // namespace mc
