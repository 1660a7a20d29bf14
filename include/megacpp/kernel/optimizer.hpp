// Kernels of op/optimizer.hpp.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/kernel/kernel.hpp>
#include <megacpp/kernel/rows/adamw.hpp>
#include <megacpp/kernel/rows/clip_factor.hpp>
#include <megacpp/kernel/rows/elementwise.hpp>
#include <megacpp/kernel/rows/sum_squares.hpp>
#include <megacpp/op/optimizer.hpp>

namespace mc {

/// A rank's share of each layer of a range, as pieces: one piece, or one for each layer. In the
/// store of whole layers the pieces are a layer apart; in stores of shares they are side by side.
struct share_pieces {
  std::int64_t count = 1, elements = 0, apart = 0;
  std::int64_t before = 0; ///< elements of a layer that the ranks before this one have

  template <class Call, class Name> share_pieces(Call& c, Name share, axis_set over)
      : elements(c.size(share)) {
    const value& v = c.value_of(share);
    const std::int64_t ranks = over.empty() ? 1 : c.comm().over(over).size();
    // The layers of one rank follow each other in the store.
    if (ranks > 1 && v.rank > 1 && elements > 0) count = v.dims[0].n, elements /= count;
    apart = elements * ranks;
    if (ranks > 1) before = elements * c.comm().over(over).rank();
  }
  /// Calls f(where a piece begins in a store of shares, where in the store of whole layers).
  template <class F> void each(F f) const {
    for (std::int64_t i = 0; i < count; ++i) f(i * elements, i * apart);
  }
};
/// Returns the greatest possible number of pieces of a rank's share.
template <class Call, class Name> constexpr std::int64_t most_pieces(const Call& c, Name share) {
  const value& v = c.value_of(share);
  return v.rank < 2 ? 1 : v.dims[0].n;
}

template <> struct kernel_of<&op::add_gradient> { // g, h
  using elements = accumulators;
  using in = op::add_gradient_in;
  template <class G, class Call> static void run(Call& c) {
    G *g = c.in_out(in::g), *h = c.in_out(in::h);
    rows::add(c.lane(), c.size(in::g), g, h, g);
    rows::fill(c.lane(), c.size(in::g), G(0), h);
  }
};

/// Returns a gradient in the type in which ranks send it: the gradient itself, or a copy in
/// scratch.
template <class W, class G, class Call> W* on_the_wire(Call& c, G* g, std::int64_t n) {
  if constexpr (std::is_same_v<W, G>) return g;
  else {
    W* const copy = reinterpret_cast<W*>(c.scratch());
    rows::cast(c.lane(), n, g, copy);
    return copy;
  }
}
/// Returns the bytes of that copy of a gradient.
template <class G, class Call> constexpr std::int64_t wire_bytes(const Call& c, std::int64_t n) {
  const dtype wire = c.attr(of_type<op::exchange_attributes>).wire;
  return wire == dtype_of<G> ? 0 : n * size_of(wire);
}

template <> struct kernel_of<&op::reduce_gradient> { // g
  using elements = accumulators;
  using in = op::reduce_gradient_in;
  template <class G, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return wire_bytes<G>(c, c.size(in::g));
  }
  template <class G, class Call> static void run(Call& c) {
    const auto a = c.attr(of_type<op::exchange_attributes>);
    G* const g = c.in_out(in::g);
    const std::int64_t n = c.size(in::g);
    with_float_type(a.wire, [&]<class W>(W) {
      W* const sent = on_the_wire<W>(c, g, n);
      c.comm().run(c.lane(),
                   exchange::all_reduce(a.over, dtype_of<W>, sent, sent, n, c.described().line));
      if constexpr (!std::is_same_v<W, G>) rows::cast(c.lane(), n, sent, g);
    });
  }
};

template <> struct kernel_of<&op::scatter_gradient> { // g, the rank's share of it
  using elements = accumulators;
  using in = op::scatter_gradient_in;
  template <class G, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return wire_bytes<G>(c, c.size(in::g));
  }
  template <class G, class Call> static void run(Call& c) {
    const auto a = c.attr(of_type<op::exchange_attributes>);
    G *const g = c.in_out(in::g), *const share = c.in_out(in::share);
    const share_pieces pieces(c, in::share, a.over);
    const std::int64_t n = pieces.elements;
    with_float_type(a.wire, [&]<class W>(W) {
      pieces.each([&](std::int64_t, std::int64_t at) {
        W* const sent = on_the_wire<W>(c, g + at, pieces.apart);
        W* mine = nullptr;
        if constexpr (std::is_same_v<W, G>) mine = share + at;
        else mine = sent + c.comm().over(a.over).rank() * n; // the rank's place in the sent array
        c.comm().run(c.lane(), exchange::reduce_scatter(a.over, dtype_of<W>, sent, mine, n,
                                                        c.described().line));
        if constexpr (!std::is_same_v<W, G>) rows::cast(c.lane(), n, mine, share + at);
      });
    });
  }
};

template <> struct kernel_of<&op::gather_weight> { // the rank's share of w, w
  using in = op::gather_weight_in;
  template <class T, class Call> static void run(Call& c) {
    const axis_set over = c.attr(of_type<op::exchange_attributes>).over;
    const T* const share = c.in(in::share);
    T* const w = c.in_out(in::w);
    const share_pieces pieces(c, in::share, over);
    pieces.each([&](std::int64_t, std::int64_t at) {
      c.comm().run(c.lane(), exchange::all_gather(over, dtype_of<T>, share + at, w + at,
                                                  pieces.elements, c.described().line));
    });
  }
};

template <> struct kernel_of<&op::sum_of_squares> {
  using elements = accumulators;
  using in = op::sum_of_squares_in;
  using out = op::sum_of_squares_out;
  template <class G, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return (rows::sum_squares_partials(c.size(in::x)) + most_pieces(c, in::x)) *
           std::int64_t{sizeof(double)};
  }
  template <class G, class Call> static void run(Call& c) {
    const share_pieces pieces(c, in::x, c.attr(of_type<op::share_attributes>).over);
    const G* const x = c.in(in::x);
    auto* const partials = reinterpret_cast<double*>(c.scratch());
    const std::int64_t each = rows::sum_squares_partials(pieces.elements);
    std::int64_t made = 0;
    pieces.each([&](std::int64_t, std::int64_t at) {
      rows::squares(c.lane(), pieces.elements, x + at, partials + made);
      made += each;
    });
    for_one(c.lane(), rows::sum_in_order{made, partials, c.out(out::sum)});
  }
};

template <>
struct kernel_of<&op::clip_factor> { // token count, summed loss, sums of squares -> factor, norm
  using elements = element_list<double>;
  using in = op::clip_factor_in;
  using out = op::clip_factor_out;
  template <class T, class Call> static void run(Call& c) {
    static_assert(max_inputs - 2 <= rows::clip_factor::most_terms);
    rows::clip_factor f{};
    f.clip = c.constants().clip;
    f.count = c.in(in::count), f.loss = c.in(in::loss);
    c.each_from(in::squares, [&f](const double* x) { f.squares[f.terms++] = x; });
    f.factor = c.out(out::factor), f.norm = c.out(out::norm);
    for_one(c.lane(), f);
  }
};

// The operands are gradient, master, moments, weight, factor, rate, step, seed, origin.
template <> struct kernel_of<&op::adamw> {
  using in = op::adamw_in;
  using out = op::adamw_out;
  /// The scratch of AdamW has the factors of the step, then a byte for each block.
  static constexpr std::int64_t room_of_factors = 128;
  template <class, class Call> static constexpr std::int64_t scratch_bytes(const Call& c) {
    return room_of_factors + blocks_of(c.size(in::gradient)) + most_pieces(c, in::gradient);
  }
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    static_assert(sizeof(rows::adamw_factors<G>) <= room_of_factors);
    const auto& s = c.constants();
    const auto a = c.attr(of_type<op::adamw_attributes>);
    auto* const factors = reinterpret_cast<rows::adamw_factors<G>*>(c.scratch());
    for_one(c.lane(),
            rows::factors_of_step<G>{s.beta1, s.beta2, s.epsilon, a.decay ? s.weight_decay : 0.0,
                                     c.in(in::step), c.in(in::rate), c.in(in::factor), factors});
    auto* const broken = reinterpret_cast<std::uint8_t*>(c.scratch()) + room_of_factors;
    const share_pieces pieces(c, in::gradient, a.over);
    T* const weight = c.in_out(in::weight);
    G* const master = c.in_out(in::master);
    const bool in_place = static_cast<void*>(master) == static_cast<void*>(weight);
    const std::int64_t n = pieces.elements;
    std::int64_t blocks = 0;
    with_float_type(c.value_of(in::first).type, [&]<class M>(M) {
      constexpr bool rounds = std::is_same_v<M, bf16>;
      if constexpr (std::is_same_v<M, G> || rounds) {
        static_assert(sizeof(rows::rounded_moments::origin) == numbers_of_origin * 8 &&
                      rows::rounded_moments::dims == max_rank);
        using moments = std::conditional_t<rounds, rows::rounded_moments, rows::kept_moments>;
        M *const first = reinterpret_cast<M*>(c.in_out(in::first)), *const second =
                                                                        reinterpret_cast<M*>(
                                                                            c.in_out(in::second));
        pieces.each([&](std::int64_t alone, std::int64_t at) {
          moments how{};
          if constexpr (rounds)
            how = {pieces.before + at,
                   c.size(in::origin) * 8 / std::int64_t{sizeof(rows::rounded_moments::origin)},
                   reinterpret_cast<const rows::rounded_moments::origin*>(c.in(in::origin)),
                   c.in(in::seed), c.in(in::step)};
          for_blocks(c.lane(), n,
                     rows::adamw_block<T, moments>{
                         n, factors, c.in(in::gradient) + at, master + (in_place ? at : alone),
                         first + alone, second + alone, weight + at, broken + blocks, how});
          blocks += blocks_of(n);
        });
      }
    });
    for_one(c.lane(), rows::count_of_ones{blocks, broken, c.out(out::broken)});
  }
};

template <> struct kernel_of<&op::balance_step> { // load, master, weight, factor
  using in = op::balance_step_in;
  template <class T, class Call> static void run(Call& c) {
    using G = accumulator_t<T>;
    const std::int64_t n = c.size(in::load);
    for_blocks(c.lane(), n,
               rows::balance_block<T>{
                   n, static_cast<G>(c.attr(of_type<op::balance_attributes>).rate), c.in(in::load),
                   c.in(in::factor), c.in_out(in::master), c.in_out(in::weight)});
  }
};

} // namespace mc
