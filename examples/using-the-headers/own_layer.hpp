// A layer of one's own: an MLP with a narrow way round it (the adapter of Houlsby et al. 2019, in
// parallel), on the residual stream and under any layout.
//
//   y = down(squared_relu(up x)) + wide(narrow x)
#pragma once

#include "own_op.hpp"

#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/linear.hpp>

namespace own {

// [layer]
/// x (B, S, H), normed, on the residual stream; F the MLP's width, r the adapter's: y like x.
/// Parameters: scope names "up", "down", "narrow", "wide".
constexpr mc::var adapted_mlp(mc::context& c, mc::var x, int F, int r, double std,
                              mc::source_line line = mc::here()) {
  const mc::extent H = x.type().back();
  const mc::var m = to(x, mc::axis::tp, mc::R, line); // its gradient is summed over tp
  const mc::var up = column_parallel(c, "up", m, {{mc::dim::ffn, F}}, false, std, line);
  const mc::var y = row_parallel(c, "down", squared_relu(up, line), 1, H, false, std, line);
  const mc::var narrow = column_parallel(c, "narrow", m, {{mc::dim::ffn, r}}, false, std, line);
  return y + row_parallel(c, "wide", narrow, 1, H, false, std, line);
}
// [/layer]

} // namespace own
