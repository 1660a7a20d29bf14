// The interpreter, with its kernels in one unit for all tests (kernels.cpp).
#pragma once

#include <megacpp/run/interpreter.hpp>

extern template mc::kernel_table mc::kernel_table::all<void>();
