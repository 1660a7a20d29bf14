// What computes products that no library does: no run shapes it. commands.cpp, which makes the device,
// includes this header and leaves it to kernels.cpp, so that both take as long to compile.
#pragma once

#if !defined(MEGACPP_KERNELS)
#define MEGACPP_KERNELS extern
#endif

#include <megacpp/product/eigen.hpp>
#include <megacpp/product/pack.hpp>

namespace mc {

MEGACPP_KERNELS template class eigen_cell<float>;
MEGACPP_KERNELS template class eigen_cell<double>;

#define MEGACPP_PRODUCTS_OF(T, Out)                                                                \
  MEGACPP_KERNELS template void detail::dot_rows(const T*, std::int64_t, const T*, const T*, Out*, \
                                                 std::int64_t, std::int64_t, std::int64_t,         \
                                                 std::int64_t, accumulator_t<T>, int, int);
MEGACPP_PRODUCTS_OF(double, double)
MEGACPP_PRODUCTS_OF(float, float)
MEGACPP_PRODUCTS_OF(bf16, float)
MEGACPP_PRODUCTS_OF(bf16, bf16)
#undef MEGACPP_PRODUCTS_OF

} // namespace mc
