// The maker of a program's CUDA device, which commands know only by its type.
#pragma once

#include <megacpp/exec/device_options.hpp>
#if defined(MEGACPP_WITH_NVTX)
#include <megacpp/exec/cuda/nvtx.hpp>
#endif
#include <megacpp/product/cuda/cublaslt.hpp>
#include <megacpp/product/cuda/grouped_kernels.hpp>
#include <megacpp/product/cuda/product_table_file.hpp>
#include <megacpp/threads/processors.hpp>
#if defined(MEGACPP_WITH_CUDNN)
#include <megacpp/kernel/cuda/cudnn_attention.hpp>
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// The source of products of a device that only counts sizes.
class counted_products final : public product_source {
public:
  const prepared_product& prepare(const product_shape& s) override {
    return *all_.emplace_back(std::make_unique<counted>(s));
  }
  void lend(std::byte* /*memory*/, std::int64_t /*bytes*/) override {}
  std::int64_t take_back() override { return 0; }
  const product_checks& checks() const override { return checks_; }
  /// Returns the bytes of a product's check. The check of groups is that of one group's product, or
  /// that of a kernel for all groups.
  std::int64_t check_bytes(const product_shape& s) const override {
    const product_check one(checked_cell(s, s.segment != 0 ? s.segment : s.M));
    std::int64_t most = device_check::bytes_of(one);
    if (grouped_product::computes(s))
      for (const auto& [with, rows] : grouped_choice::checks_of(s)) {
        const product_check all(checked_cell(with, std::ranges::max(rows)), rows);
        most = std::max(most, device_check::bytes_of(all));
      }
    return most;
  }
  std::vector<product_shape> shapes() const override {
    std::vector<product_shape> all;
    for (const auto& p : all_) all.push_back(p->shape());
    return all;
  }
  std::int64_t workspace_bytes() const override {
    return all_.empty() ? 0 : cuda::product_workspace;
  }
  product_type type() override { return product_type::bf16; }
  std::string describe(dtype /*storage*/) override {
    return "cuBLASLt " + dotted_version(CUBLAS_VERSION) + " or later";
  }

private:
  class counted final : public prepared_product {
  public:
    explicit counted(const product_shape& s) { shape_ = s; }
    void execute(const product_call& /*c*/) const override { refuse(); }
    void execute_segments(const product_call& /*c*/,
                          std::span<const std::int32_t> /*rows*/) const override {
      refuse();
    }

  private:
    [[noreturn]] static void refuse() {
      throw error(exit_code::internal,
                  "a matrix product was started on a device that counts sizes alone");
    }
  };
  product_checks checks_;
  std::vector<std::unique_ptr<counted>> all_;
};

/// Returns a compute capability as MEGACPP_CUDA_ARCHITECTURES lists it: 8.0 is 80, and 9.0 is 90a.
inline std::string architecture_of(std::string capability) {
  std::erase(capability, '.');
  return std::stoi(capability) >= 90 ? capability + 'a' : capability;
}
/// Throws mc::error(exit_code::machine) where the bodies of the program are compiled only for other
/// devices, or where cuBLASLt is older than the version that the program was built with.
inline void require_program_for(const cuda& on) {
  const tuned_machine here = machine_of(on);
  const auto status = static_cast<cudaError_t>(find_bodies_on_cuda());
  if (status == cudaErrorNoKernelImageForDevice || status == cudaErrorInvalidDeviceFunction) {
    std::string compiled;
    for (const int a : architectures_of_bodies())
      compiled += (compiled.empty() ? "" : ", ") + capability_text(a / 100, a / 10 % 10);
    throw error(
        exit_code::machine,
        "device " + std::to_string(on.ordinal()) + " (" + here.gpu + ") has compute capability " +
            here.capability + ", and the kernels of this program are compiled for " + compiled +
            ": build it with -DMEGACPP_CUDA_ARCHITECTURES=" + architecture_of(here.capability) +
            ", give another device, or build it with device=cpu");
  }
  require_cuda(status, "the search for the kernels of the program");
  if (here.cublaslt < CUBLAS_VERSION)
    throw error(exit_code::machine,
                "cuBLASLt " + dotted_version(here.cublaslt) + " is older than " +
                    dotted_version(CUBLAS_VERSION) +
                    ", with which this program was built: let it find that version or a later one "
                    "(LD_LIBRARY_PATH), or build it where it runs");
}

/// Returns the products of a table for a device. Calls `tell` where the table has none.
inline std::vector<tuned_product> tuned_for(const cuda& on, const product_table& table,
                                            const device_options& o) {
  const tuned_machine here = machine_of(on);
  if (const auto* const products = table.find(here)) return *products;
  if (o.tell == nullptr) return {};
  std::string of;
  for (const auto& m : table.machines) of += (of.empty() ? "" : ", ") + m.machine.text();
  o.tell("the product table " + o.product_table + " has nothing for " + here.text() +
         ", on which this runs" + (of.empty() ? "" : ", but for " + of) +
         ": it is not used; megacpp_gpu --tune measures products here");
  return {};
}

#if defined(MEGACPP_WITH_CUDNN)
/// The source of attention of a device that only counts sizes.
class counted_attention final : public attention_source {
public:
  explicit counted_attention(bool deterministic) : deterministic_(deterministic) {}
  const fused_attention* prepare(const fused_attention_shape& s) override {
    check_bytes_ = std::max(check_bytes_, attention_check(s).bytes());
    computes(cudnn_attention::text_of(dotted_version(CUDNN_VERSION) + " or later", deterministic_));
    return nullptr;
  }
  std::int64_t scratch(const fused_attention_shape& s) const override {
    return cuda::attention_scratch(s, deterministic_);
  }
  void lend(std::byte* /*memory*/, std::int64_t /*bytes*/) override {}
  std::int64_t take_back() override { return 0; }
  std::int64_t check_bytes() const override { return check_bytes_; }

private:
  bool deterministic_;
  std::int64_t check_bytes_ = 0;
};
inline std::unique_ptr<attention_source> make_attention(cuda& on, const device_options& o) {
  return std::make_unique<cudnn_attention>(on, o.deterministic_attention, o.tell);
}
inline std::unique_ptr<attention_source> count_attention(const device_options& o) {
  return std::make_unique<counted_attention>(o.deterministic_attention);
}
#else
/// The source of attention of a program that was built without cuDNN.
class no_attention final : public attention_source {
public:
  using attention_source::attention_source;
  const fused_attention* prepare(const fused_attention_shape& /*s*/) override {
    leave("this program was built without cuDNN: build it where cuDNN is found", true);
    return nullptr;
  }
  std::int64_t scratch(const fused_attention_shape& /*s*/) const override { return 0; }
  void lend(std::byte* /*memory*/, std::int64_t /*bytes*/) override {}
  std::int64_t take_back() override { return 0; }
};
inline std::unique_ptr<attention_source> make_attention(cuda& /*on*/, const device_options& o) {
  if (!o.deterministic_attention)
    throw error(exit_code::usage,
                "--no-deterministic-attention is for cuDNN's attention, and this program was built "
                "without cuDNN: leave it out");
  return std::make_unique<no_attention>(o.tell);
}
inline std::unique_ptr<attention_source> count_attention(const device_options& /*o*/) {
  return std::make_unique<no_attention>();
}
#endif

#if defined(MEGACPP_WITH_NVTX)
inline std::unique_ptr<range_tool> listening_tool() { return nvtx_ranges::listening(); }
#else
inline std::unique_ptr<range_tool> listening_tool() { return nullptr; }
#endif

} // namespace detail

/// Makes a device of a type (part_view::device_type). Throws mc::error: exit_code::machine where no
/// device can run the program, exit_code::internal for a type that these headers do not make,
/// exit_code::usage for a choice that no CUDA device has, for a number without a device, and for a
/// product table that cannot be read.
inline std::unique_ptr<device> make_cuda_device(const std::type_info& type,
                                                const device_options& o) {
  require_device(type, typeid(cuda));
  if (o.products == product_type::widened)
    throw error(exit_code::usage,
                "--product-type widened is for CPUs: a GPU multiplies bf16 as it is; leave it out");
  const int threads = o.threads > 0 ? o.threads : processors();
  const auto choose = [number = o.number, place = o.place] { return cuda::choice(number, place); };
  if (o.sizes_alone || o.described)
    return std::make_unique<cuda>(
        choose, threads,
        cuda_libraries{std::make_unique<detail::counted_products>(), detail::count_attention(o)});
  product_table table;
  if (!o.product_table.empty()) table = read_product_table(o.product_table);
  auto made = std::make_unique<cuda>(choose().ordinal, threads, [&](cuda& on) {
    detail::require_program_for(on);
    std::vector<tuned_product> tuned;
    if (!o.product_table.empty()) tuned = detail::tuned_for(on, table, o);
    return cuda_libraries{std::make_unique<cublaslt_products>(
                              on, o.rows, o.tell, o.tf32, std::move(tuned), grouped_kernels(on)),
                          detail::make_attention(on, o), detail::listening_tool()};
  });
  made->keep_work(o.graphs);
  return made;
}

} // namespace mc
