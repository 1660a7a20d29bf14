// Matrix products of a CUDA device, by cuBLASLt. Any C++ compiler that finds CUDA's headers
// compiles this header.
//
// product/cuda/cublaslt_product.hpp says how a product is computed. A product of groups, such as
// experts, is computed by one kernel, of cuBLASLt or of another library, where there is one that
// passes its check (product/cuda/grouped_choice.hpp). Otherwise each group is a product, and the
// products run side by side on some streams.
#pragma once

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/product/cuda/cublaslt_grouped.hpp>
#include <megacpp/product/cuda/cublaslt_handles.hpp>
#include <megacpp/product/cuda/cublaslt_product.hpp>
#include <megacpp/product/cuda/device_check.hpp>
#include <megacpp/product/cuda/grouped_choice.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// The matrix products that cuBLASLt computes on a CUDA device, which is the current device.
class cublaslt_products final : public product_source {
public:
  /// Opens the library. `rows`: how the rows of forward products are computed. `tell` is called for
  /// the first way that fails its check. `tf32`: fp32 operands are rounded. `tuned`: the products
  /// of a product table for this machine. `grouped`: another library for products of groups, which
  /// works on this device and is tried after cuBLASLt's own kernels for them.
  explicit cublaslt_products(cuda& on, product_rows rows = product_rows::together,
                             void (*tell)(std::string_view) = nullptr, bool tf32 = false,
                             std::vector<tuned_product> tuned = {},
                             const grouped_library& grouped = {})
      : on_(on),
        rows_(rows),
        tf32_(tf32),
        tell_(tell),
        tuned_(std::move(tuned)),
        checks_(on),
        at_once_(checks_, tell) {
    cublasLtHandle_t made = nullptr;
    if (const cublasStatus_t s = cublasLtCreate(&made); s != CUBLAS_STATUS_SUCCESS)
      throw error(exit_code::machine,
                  std::string("cuBLASLt cannot be opened (") + cublasLtGetStatusString(s) +
                      "): free memory of the device, or give a machine with another driver");
    handle_.reset(made);
    at_once_.add(cublaslt_grouped_library(on, made, rows));
    at_once_.add(grouped);
  }
  const prepared_product& prepare(const product_shape& asked) override {
    product_shape s = asked;
    const bool known = std::ranges::find(without_end_, s) != without_end_.end();
    const bool asked_for = cublaslt_product::computes_end(s);
    if (!known && !asked_for) without_end_.push_back(s);
    if (known || !asked_for) s.ends_in = product_end::sum;
    for (const auto& p : products_)
      if (p->shape() == s) return *p;
    if (s.groups > 0)
      if (auto all = at_once_.make(s)) return *products_.emplace_back(std::move(all));
    auto made = make(s);
    const std::string why = made->prepare();
    if (why.empty()) {
      of_table_ += made->of_table() ? 1 : 0;
      return *products_.emplace_back(std::move(made));
    }
    if (s.ends_in == product_end::sum) made->refuse(why + other_version, exit_code::machine);
    if (tell_ != nullptr && !std::exchange(told_of_end_, true))
      tell_(made->text() + " " + why +
            ": a kernel computes GELU behind it; further ones are not told");
    without_end_.push_back(s);
    return prepare(s);
  }
  /// Makes a product without preparing it, for code that measures the ways to compute it.
  std::unique_ptr<cublaslt_product> make(const product_shape& s) {
    on_.make_current();
    return std::make_unique<cublaslt_product>(
        handle_.get(), s, rows_, tf32_,
        [this](const cublaslt_product& p, std::int64_t rows, const product_way& way) {
          return fault_of(p, rows, way);
        },
        tuned_);
  }
  void lend(std::byte* memory, std::int64_t bytes) override { checks_.lend(memory, bytes); }
  std::int64_t take_back() override { return checks_.take_back(); }
  const product_checks& checks() const override { return checks_.found; }
  std::vector<product_shape> shapes() const override {
    std::vector<product_shape> all;
    for (const auto& p : products_) all.push_back(p->shape());
    return all;
  }
  std::int64_t workspace_bytes() const override {
    return products_.empty() ? 0 : cuda::product_workspace;
  }
  product_type type() override { return product_type::bf16; }
  std::string describe(dtype storage) override {
    std::string text = "cuBLASLt " + dotted_version(cublasLtGetVersion());
    if (storage == dtype::f32) text += tf32_ ? ", by TF32" : ", without TF32";
    if (!tuned_.empty())
      text += ", " + std::to_string(of_table_) + " of " + std::to_string(products_.size()) +
              " products by the product table";
    if (const std::size_t n = checks_.found.refused.size(); n > 0)
      text += ", but for " + std::to_string(n) + " of " + std::to_string(checks_.found.checked) +
              " ways, which fail their check";
    if (const std::size_t n = without_end_.size(); n > 0)
      text += ", with a kernel for GELU behind " + std::to_string(n) +
              (n == 1 ? " product" : " products");
    const auto groups =
        std::ranges::count_if(products_, [](const auto& p) { return p->shape().groups > 0; });
    if (groups > 0) text += ", " + at_once_.text(groups);
    return text;
  }

private:
  std::string fault_of(const cublaslt_product& p, std::int64_t rows, const product_way& way) {
    ++checks_.found.checked;
    std::string fault = way.known ? fault_of(p, rows) : "refuses to compute";
    if (!fault.empty()) {
      const std::string& text = checks_.found.refused.emplace_back(
          "cuBLASLt " + fault + " in " + way.text() + " of " + p.text() + ", checked with " +
          std::to_string(rows) + " rows");
      if (tell_ != nullptr && !std::exchange(told_of_ways_, true))
        tell_(text +
              ": the next way that it proposes is tried, and further ones that fail their "
              "check are not told");
    }
    return fault;
  }
  std::string fault_of(const cublaslt_product& p, std::int64_t rows) {
    return checks_.fault_of(product_check(p.checked(rows)), [&](product_call c) {
      const bool keeps = p.shape().ends_in == product_end::gelu_kept;
      if (p.shape().dynamic_rows) c.rows = rows;
      if (!keeps) c.slopes_at = std::exchange(c.kept, nullptr);
      p.execute(c, 1);
    });
  }

  cuda& on_;
  product_rows rows_;
  bool tf32_;
  void (*tell_)(std::string_view);
  std::vector<tuned_product> tuned_;
  cublaslt_handle handle_;
  device_check checks_;
  grouped_choice at_once_; ///< computes products of groups by one kernel
  std::vector<std::unique_ptr<prepared_product>> products_;
  int of_table_ = 0;                       ///< number of products in the product table's way
  bool told_of_ways_ = false;              ///< told: a way of cuBLASLt failed its check
  bool told_of_end_ = false;               ///< told: no way computes the end of a product
  std::vector<product_shape> without_end_; ///< products behind which a kernel computes the end
};

} // namespace mc
