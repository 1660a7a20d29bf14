// The maker of a program's device, which commands know only by its type.
#pragma once

#include <megacpp/exec/device_options.hpp>
#include <megacpp/product/cpu_products.hpp>

#include <memory>
#include <string>
#include <typeinfo>

namespace mc {

/// Makes a device of a type (part_view::device_type). Throws mc::error: exit_code::internal for a
/// type that these headers do not make, exit_code::usage for a choice that only GPUs have.
inline std::unique_ptr<device> make_device(const std::type_info& type, const device_options& o) {
  require_device(type, typeid(cpu));
  if (o.number >= 0)
    throw error(exit_code::usage,
                "--device chooses among GPUs, and this program computes on CPUs: leave it out, or "
                "build the program with device=cuda");
  if (o.tf32)
    throw error(exit_code::usage,
                "--tf32 is for GPUs, and this program computes on CPUs, which multiply fp32 as it "
                "is: leave it out, or give --tf32 false to go on from a state that has it");
  if (!o.product_table.empty())
    throw error(exit_code::usage,
                "--product-table is for GPUs, and this program computes on CPUs: leave it out");
  if (!o.deterministic_attention)
    throw error(exit_code::usage,
                "--no-deterministic-attention is for GPUs, and attention on CPUs, on which this "
                "program computes, is deterministic: leave it out, or give "
                "--no-deterministic-attention false to go on from a state that has it");
  if (!o.graphs)
    throw error(exit_code::usage,
                "--no-cuda-graphs is for GPUs, and this program computes on CPUs: leave it out");
  const int threads = o.threads > 0 ? o.threads : processors();
  if (o.sizes_alone)
    return std::make_unique<cpu>(
        std::make_unique<product_engine>(product_engine::options{
            .type = product_type::widened, .threads = threads, .sizes_alone = true}),
        threads, true);
  return std::make_unique<cpu>(o.products, threads, o.rows, o.tell);
}

} // namespace mc
