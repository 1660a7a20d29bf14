#include "arrays.hpp"
#include "ceilings.hpp"
#include "cuda_device.hpp"

#include <megacpp/exec/cuda/device.hpp>
#include <megacpp/product/cuda/cublaslt_handles.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

namespace gpu {
namespace {

using std::int64_t;

// Y = X W^T by rows: X (M, K), W (N, K), Y (M, N). cuBLASLt counts by columns: D = A^T B with A = W
// (K, N), B = X (K, M), D = Y^T (N, M).
struct product {
  const char* name;
  int64_t m, n, k;
};
// The shapes are large and square; the first product of an MLP of a GPT-2 124M; and one of a
// Qwen3-8B.
constexpr product shapes[] = {{"8192", 8192, 8192, 8192},
                              {"gpt2-124m mlp", 16384, 3072, 768},
                              {"qwen3-8b mlp", 8192, 12288, 4096}};

// An element as the device stores it. e4m3 has four bits of exponent, biased by 7, and three of
// mantissa; these are its normal numbers from 2^-4 to 15 2^-4.
struct of_bf16 {
  using stored = mc::bf16;
  static constexpr cudaDataType_t type = CUDA_R_16BF;
  static stored from(std::uint64_t bits) {
    return stored(static_cast<float>(static_cast<double>(bits >> 11) * 0x1p-52 - 1));
  }
  static double value(stored x) { return mc::convert<double>(x); }
};
struct of_fp8 {
  using stored = std::uint8_t;
  static constexpr cudaDataType_t type = CUDA_R_8F_E4M3;
  static stored from(std::uint64_t bits) {
    const auto exponent = static_cast<unsigned>(3 + (bits >> 8 & 3));
    return static_cast<stored>((bits & 0x80) | exponent << 3 | (bits & 7));
  }
  static double value(stored x) {
    const double size = std::ldexp(1 + (x & 7) / 8.0, (x >> 3 & 15) - 7);
    return (x & 0x80) != 0 ? -size : size;
  }
};

template <class Of> std::vector<typename Of::stored> random(int64_t n, std::uint64_t seed) {
  std::vector<typename Of::stored> x(static_cast<std::size_t>(n));
  constexpr int64_t piece = 1 << 16;
  mc::parallel_for((n + piece - 1) / piece, [&](int64_t p) {
    for (int64_t i = p * piece; i < n && i < (p + 1) * piece; ++i)
      x[static_cast<std::size_t>(i)] = Of::from(mixed(seed, static_cast<std::uint64_t>(i)));
  });
  return x;
}

// One product, with the ways in which the library can compute it, the most promising first.
template <class Of> class plan {
public:
  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;

  plan(cublasLtHandle_t handle, const product& p, const float* one, bool fast)
      : handle_(handle),
        a_(mc::make_cublaslt_layout(Of::type, p.k, p.n, p.k)),
        b_(mc::make_cublaslt_layout(Of::type, p.k, p.m, p.k)),
        d_(mc::make_cublaslt_layout(CUDA_R_16BF, p.n, p.m, p.n)) {
    cublasLtMatmulDesc_t made = nullptr;
    mc::require_cublaslt(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F),
                         "cublasLtMatmulDescCreate");
    description_.reset(made);
    mc::set_cublaslt(description_, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T,
                     "CUBLASLT_MATMUL_DESC_TRANSA");
    mc::set_cublaslt(description_, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N,
                     "CUBLASLT_MATMUL_DESC_TRANSB");
    if constexpr (Of::type == CUDA_R_8F_E4M3) {
      mc::set_cublaslt(description_, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, one, "the scale of A");
      mc::set_cublaslt(description_, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, one, "the scale of B");
      mc::set_cublaslt(description_, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                       static_cast<std::int8_t>(fast ? 1 : 0), "CUBLASLT_MATMUL_DESC_FAST_ACCUM");
    }
    cublasLtMatmulPreference_t wish = nullptr;
    mc::require_cublaslt(cublasLtMatmulPreferenceCreate(&wish), "cublasLtMatmulPreferenceCreate");
    const mc::cublaslt_preference owner(wish);
    mc::require_cublaslt(
        cublasLtMatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &workspace_bytes, sizeof workspace_bytes),
        "cublasLtMatmulPreferenceSetAttribute");
    int found = 0;
    mc::require_cublaslt(cublasLtMatmulAlgoGetHeuristic(
                             handle_, description_.get(), a_.get(), b_.get(), d_.get(), d_.get(),
                             wish, static_cast<int>(ways_.size()), ways_.data(), &found),
                         "cublasLtMatmulAlgoGetHeuristic");
    if (found == 0)
      throw mc::error(mc::exit_code::internal, "cuBLASLt knows no way to compute this product");
    count_ = static_cast<std::size_t>(found);
  }

  std::size_t ways() const { return count_; }

  void run(std::size_t way, const std::byte* w, const std::byte* x, std::byte* y,
           std::byte* workspace) const {
    const float alpha = 1, beta = 0;
    mc::require_cublaslt(cublasLtMatmul(handle_, description_.get(), &alpha, w, a_.get(), x,
                                        b_.get(), &beta, y, d_.get(), y, d_.get(), &ways_[way].algo,
                                        workspace, workspace_bytes, nullptr),
                         "cublasLtMatmul");
  }

private:
  cublasLtHandle_t handle_;
  mc::cublaslt_description description_;
  mc::cublaslt_layout a_, b_, d_;
  std::array<cublasLtMatmulHeuristicResult_t, 8> ways_{};
  std::size_t count_ = 0;
};

// Compares some elements of Y with sums in double: one rounding to bf16, and fp32 sums of K terms
// in any order, which tensor cores truncate rather than round. For fp8, Hopper's tensor cores keep
// about 14 bits (DeepSeek-AI, "DeepSeek-V3 technical report", 2024, 3.3.2), and truncate hundreds
// of times.
template <class Of> void compare(const product& p, const std::vector<typename Of::stored>& w,
                                 const std::vector<typename Of::stored>& x,
                                 const std::vector<mc::bf16>& y) {
  const double unit = Of::type == CUDA_R_8F_E4M3 ? 0x1p-10 : 0x1p-17;
  for (std::uint64_t sample = 0; sample < 256; ++sample) {
    const auto row = static_cast<std::size_t>(mixed(21, sample) % static_cast<std::uint64_t>(p.m));
    const auto column =
        static_cast<std::size_t>(mixed(22, sample) % static_cast<std::uint64_t>(p.n));
    const auto k = static_cast<std::size_t>(p.k);
    double sum = 0, terms = 0;
    for (std::size_t i = 0; i < k; ++i) {
      const double term = Of::value(x[row * k + i]) * Of::value(w[column * k + i]);
      sum += term, terms += std::fabs(term);
    }
    const double got = mc::convert<double>(y[row * static_cast<std::size_t>(p.n) + column]);
    if (!(std::fabs(got - sum) <= 0x1p-8 * std::fabs(sum) + unit * terms)) {
      char text[160];
      std::snprintf(text, sizeof text, "element (%zu, %zu) is %.6g and should be %.6g", row, column,
                    got, sum);
      throw mc::error(mc::exit_code::internal, text);
    }
  }
}

template <class Of>
void measure(report& r, cublasLtHandle_t handle, const char* type, const product& p, bool fast) {
  r.check("product " + std::string(type) + " " + p.name, [&]() -> figures {
    const auto w = random<Of>(p.n * p.k, 1), x = random<Of>(p.m * p.k, 2);
    const auto bytes = [](const auto& v) { return static_cast<int64_t>(v.size() * sizeof(v[0])); };
    const int64_t of_w = bytes(w), of_x = bytes(x), of_y = p.m * p.n * 2;
    const int64_t all = of_w + of_x + of_y; // each a multiple of 256
    const int copies = copies_beyond_cache(all);
    const char* const remedy = "a device with more memory";
    const mc::arena data(memory(), copies * all, "operands of products", remedy);
    const mc::arena space(memory(), static_cast<int64_t>(plan<Of>::workspace_bytes) + 256,
                          "cuBLASLt", remedy);
    const float one = 1;
    std::byte* const scale = space.data() + plan<Of>::workspace_bytes;
    memory().write(scale, &one, sizeof one);
    for (int c = 0; c < copies; ++c) {
      memory().write(data.data() + c * all, w.data(), of_w);
      memory().write(data.data() + c * all + of_w, x.data(), of_x);
    }
    const plan<Of> made(handle, p, reinterpret_cast<const float*>(scale), fast);
    const auto run = [&](std::size_t way, int copy) {
      std::byte* const at = data.data() + copy * all;
      made.run(way, at, at + of_w, at + of_w + of_x, space.data());
    };
    std::size_t best = 0;
    double ms = 0;
    for (std::size_t way = 0; way < made.ways(); ++way) {
      const double of_way = milliseconds([&](int c) { run(way, c); }, copies);
      if (way == 0 || of_way < ms) ms = of_way, best = way;
    }
    memory().fill(data.data() + of_w + of_x, 0xff, of_y);
    run(best, 0);
    finish();
    std::vector<mc::bf16> y(static_cast<std::size_t>(p.m * p.n));
    memory().read(y.data(), data.data() + of_w + of_x, of_y);
    compare<Of>(p, w, x, y);
    const double flops =
        2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
    return {{"m", static_cast<double>(p.m)}, {"n", static_cast<double>(p.n)},
            {"k", static_cast<double>(p.k)}, {"ms", ms},
            {"TFLOP/s", flops / ms / 1e9},   {"way", static_cast<double>(best)}};
  });
}

} // namespace

std::string product_library() {
  const std::size_t v = cublasLtGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

void products(report& r) {
  cublasLtHandle_t handle = nullptr;
  r.check("cublasLtCreate", [&]() -> figures {
    mc::require_cublaslt(cublasLtCreate(&handle), "cublasLtCreate");
    return {};
  });
  if (handle == nullptr) return;
  const mc::cublaslt_handle owner(handle);
  for (const product& p : shapes) {
    measure<of_bf16>(r, handle, "bf16", p, false);
    measure<of_fp8>(r, handle, "fp8", p, false);
    measure<of_fp8>(r, handle, "fp8 fast accumulation", p, true);
  }
}

} // namespace gpu
