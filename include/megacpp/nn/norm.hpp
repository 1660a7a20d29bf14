// Norm layers. Their gains and biases are whole on every rank. Beside a sharded tensor they are
// replicated, so that their gradients are summed over tp (under sequence parallelism in Megatron,
// users forget this reduction silently).
#pragma once

#include <megacpp/nn/context.hpp>
#include <megacpp/op/norm.hpp>

namespace mc {

/// Applies RMSNorm over the last dim of x, which is on the residual stream.
constexpr var rms_norm(context& c, const char* scope, var x, double eps,
                       source_line line = here()) {
  const var gain = weight(c, scope, "weight", {x.type().back()}, {}, ones(), line);
  return rms_norm(x, to(gain, axis::tp, beside(x.at(axis::tp)), line), eps, line);
}

/// Applies LayerNorm over the last dim of x, with or without bias.
constexpr var layer_norm(context& c, const char* scope, var x, bool bias, double eps,
                         source_line line = here()) {
  const var gain = weight(c, scope, "weight", {x.type().back()}, {}, ones(), line);
  const var offset = bias ? weight(c, scope, "bias", {x.type().back()}, {}, zeros(), line) : var{};
  return layer_norm(x, to(gain, axis::tp, beside(x.at(axis::tp)), line),
                    bias ? to(offset, axis::tp, beside(x.at(axis::tp)), line) : offset, eps, line);
}

} // namespace mc
