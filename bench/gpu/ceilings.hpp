// What the device can do at most: raw rates, beside which those of kernels stand.
#pragma once

#include "report.hpp"

#include <megacpp/exec/product_shape.hpp>

#include <string>
#include <vector>

namespace gpu {

/// Bytes read and written by a second of copying: by cudaMemcpy, and by a kernel. The greater is the
/// fact "copy_TB/s".
void copies(report& r);

/// Products of cuBLASLt on random numbers: bf16, and fp8 e4m3 to bf16, both with fp32 sums. Some of
/// their elements are compared with sums in double.
void products(report& r);
std::string product_library();

/// The forms of products that programs have, of layers of models, in bf16 and fp32: each passes the
/// check of exact integers before it is measured.
void forms_of_products(report& r);
std::vector<mc::product_shape> shapes_of_layers();

/// Products of experts by one kernel, of cuBLASLt and of CUTLASS, against products one by one, which
/// run side by side: some of their numbers, and how long each takes. A library that has none is left
/// out.
void products_of_experts(report& r);
bool has_products_at_once();

/// Causal attention of cuDNN, forward and backward: the whole of small ones against loops in double;
/// then how fast those of models are. `attention_library` is empty where the program was built
/// without cuDNN.
void attention(report& r);
std::string attention_library();

} // namespace gpu
