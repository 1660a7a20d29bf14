// The device's limits: raw rates, with which those of kernels are compared.
#pragma once

#include "report.hpp"

#include <megacpp/exec/product_shape.hpp>

#include <string>
#include <vector>

namespace gpu {

/// Measures the bytes that a second of copying reads and writes, by cudaMemcpy and by a kernel. The
/// greater rate is the fact "copy_TB/s".
void copies(report& r);

/// Measures products of cuBLASLt on random numbers: bf16, and fp8 e4m3 to bf16, both with fp32
/// sums. Some of their elements are compared with sums in double.
void products(report& r);
std::string product_library();

/// Measures the forms of products that programs have, for layers of models, in bf16 and fp32. Each
/// passes the check of exact integers before it is measured.
void forms_of_products(report& r);
std::vector<mc::product_shape> shapes_of_layers();

/// Compares products of experts by one kernel, of cuBLASLt and of CUTLASS, with products one by
/// one, which run side by side: some of their numbers, and their times. A library without such a
/// kernel is left out.
void products_of_experts(report& r);
bool has_products_at_once();

/// Checks causal attention of cuDNN, forward and backward: small ones as a whole against loops in
/// double; then the speed of those of models. `attention_library` is empty if the program was built
/// without cuDNN.
void attention(report& r);
std::string attention_library();

} // namespace gpu
