// The interpreter, with all kernels that nothing shapes and what computes products in one unit for
// all tests (kernels.cpp).
#pragma once

#include "../cmake/kernels.hpp"
#include "../cmake/products.hpp"

#include <megacpp/run/interpreter.hpp>

MEGACPP_KERNELS template mc::kernel_table<mc::cpu> mc::kernel_table<mc::cpu>::all();
