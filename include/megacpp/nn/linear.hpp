// Linear layers under tensor parallelism (Shoeybi et al. 2019).
//
//   column parallel: y = x w^T + b with the outputs sharded: x replicated, w and b sharded
//   row parallel:    y = sum over ranks of x w^T, + b: x and w sharded along the inputs
#pragma once

#include <megacpp/nn/context.hpp>
#include <megacpp/op/elementwise.hpp>
#include <megacpp/op/linear.hpp>

namespace mc {

/// Returns y (..., out...) for x (..., in), which is replicated over tp. `out` has one or two dims,
/// and the first is sharded over tp.
constexpr var column_parallel(context& c, const char* scope, var x,
                              std::initializer_list<extent> out, bool bias, double std,
                              source_line line = here()) {
  if (!c.b->in_range(out.size() == 1 || out.size() == 2, line, "column_parallel", x.id,
                     "the number of its dims", static_cast<double>(out.size()), "1 or 2"))
    return x;
  const extent in = x.type().back(), cut = *out.begin();
  std::array<extent, 2> o{cut, out.size() > 1 ? out.begin()[1] : extent{}};
  const placement sharded = on(axis::tp, shard(cut.d));
  if (out.size() > 1) {
    const var w = weight(c, scope, "weight", {o[0], o[1], in}, sharded, normal_weights(std), line);
    if (!bias) return linear(x, w, line);
    return linear(x, w, weight(c, scope, "bias", {o[0], o[1]}, sharded, zeros(), line), line);
  }
  const var w = weight(c, scope, "weight", {o[0], in}, sharded, normal_weights(std), line);
  return bias ? linear(x, w, weight(c, scope, "bias", {o[0]}, sharded, zeros(), line), line)
              : linear(x, w, line);
}

/// Returns y (..., out) on the residual stream for x (..., in...), whose first summed dim is
/// sharded over tp. `summed` is the number of trailing dims of x that are summed, 1 or 2.
constexpr var row_parallel(context& c, const char* scope, var x, int summed, extent out, bool bias,
                           double std, source_line line = here()) {
  const value& v = x.type();
  if (!c.b->in_range((summed == 1 || summed == 2) && summed <= v.rank, line, "row_parallel", x.id,
                     "the number of summed dims", summed, "1 or 2 of what it is given"))
    return x;
  const extent first = v.dims[v.rank - summed];
  const placement sharded = on(axis::tp, shard(first.d));
  const var w =
      summed > 1
          ? weight(c, scope, "weight", {out, first, v.back()}, sharded, normal_weights(std), line)
          : weight(c, scope, "weight", {out, first}, sharded, normal_weights(std), line);
  const var y = to(linear(x, w, line), axis::tp, c.stream, line);
  if (!bias) return y;
  const var b = weight(c, scope, "bias", {out}, {}, zeros(), line);
  return add_bias(y, to(b, axis::tp, beside(c.stream), line), line);
}

} // namespace mc
