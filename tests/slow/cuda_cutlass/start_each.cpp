// Starts each kernel of grouped products without memory, and prints what CUDA answers: an error, where
// there is no GPU.
#include <megacpp/product/cuda/grouped.hpp>

#include <cstdio>

int main() {
  for (const mc::product_kind kind : {mc::product_kind::forward, mc::product_kind::input_gradient,
                                      mc::product_kind::weight_gradient}) {
    std::int64_t needed = 0;
    std::printf("%s: %d\n", mc::name_of(kind),
                mc::cutlass_grouped(nullptr, {.kind = kind, .segments = 1}, &needed));
  }
}
