// A unit of GNU C++ that included <complex.h>, which defines the macro I, before megacpp: the
// compile-time half and the program of a run have no name of one letter that meets it.
#include <complex.h>

#include <megacpp/megacpp.hpp>

#if !defined(I)
#error "<complex.h> defines no I: this unit is to be compiled as GNU C++"
#endif

struct mlp : mc::gpt {
  constexpr mc::var block(mc::context& c, int /*kind*/, mc::var x) const {
    const mc::var m = to(layer_norm(c, "ln", x, bias, eps), mc::axis::tp, mc::replicate);
    const mc::var u = gelu(column_parallel(c, "up", m, {{mc::dim::ffn, ffn}}, bias, std));
    return x + row_parallel(c, "down", u, 1, hidden_extent(), bias, std);
  }
};
struct after_complex {
  static constexpr mlp model{
      {.layers = 1, .hidden = 8, .heads = 2, .ffn = 8, .vocabulary = 16, .positions = 8}};
  static constexpr mc::layout layout{.tp = 2, .sequence_parallel = true};
  static constexpr mc::batching batch{.micro = 1, .sequence = 8};
  using precision = mc::fp32;
};
static_assert(mc::program<after_complex>::ok);
static_assert(mc::invariant == mc::place{} && mc::cotangent(mc::replicate) == mc::partial);

int main() {}
