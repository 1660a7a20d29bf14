// The interpreter, and all kernels and products whose code does not depend on shapes. kernels.cpp
// compiles them once for all tests.
#pragma once

#include "../src/kernels.hpp"

#include <megacpp/product/eigen.hpp>
#include <megacpp/product/pack.hpp>
#include <megacpp/run/interpreter.hpp>

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

MEGACPP_KERNELS template kernel_table<cpu> kernel_table<cpu>::all();

} // namespace mc
