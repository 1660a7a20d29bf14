// Measures which way of cuBLASLt computes a product the fastest on a GPU.
//
// Times are taken between events of the device. Operands are random, since equal numbers take less
// power and so less time. There are several copies of the operands in memory, so that no call finds
// in the device's cache what the call before has read.
#pragma once

#include <megacpp/product/cuda/cublaslt.hpp>
#include <megacpp/product/cuda/product_table.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <vector>

namespace mc {

/// The operands of a product with as many rows as its shape has, in memory of the device.
class product_operands {
public:
  product_operands(cuda& on, const product_shape& s) : on_(on), shape_(s) {
    const bool forward = s.kind == product_kind::forward,
               summed = s.kind == product_kind::weight_gradient;
    const std::int64_t x = (s.M - 1) * s.x_row() + s.K, y = (s.M - 1) * s.y_row() + s.N,
                       w = s.N * s.K;
    of_ = {{{forward ? x : y, s.a},
            {summed ? x : w, s.b},
            {summed    ? w
             : forward ? y
                       : x,
             s.out},
            {s.bias ? s.N : 0, s.b},
            {s.ends_in == product_end::gelu_kept       ? y
             : s.ends_in == product_end::gelu_gradient ? x
                                                       : 0,
             s.out}}};
    for (const operand& o : of_) bytes_ += o.bytes();
    cudaDeviceProp facts{};
    require_cuda(cudaGetDeviceProperties(&facts, on.ordinal()), "cudaGetDeviceProperties");
    const std::int64_t apart = std::int64_t{4} * facts.l2CacheSize;
    copies_ = std::clamp<std::int64_t>((apart + bytes_ - 1) / bytes_, 1, most_copies);
    memory_ = arena(on, copies_ * bytes_, "operands of a product", "a smaller product");
    std::byte* at = memory_.data();
    for (std::int64_t i = 0; i < copies_; ++i)
      for (const operand& o : of_) fill(at, o), at += o.bytes();
  }
  /// Returns the number of copies of the operands, which follow each other in memory.
  std::int64_t copies() const { return copies_; }
  std::int64_t bytes() const { return copies_ * bytes_; }
  /// Returns the call of the product on copy i of its operands; behind the last copy comes the
  /// first.
  product_call call(std::int64_t i) const {
    std::byte* at = memory_.data() + i % copies_ * bytes_;
    std::array<std::byte*, 5> begin{};
    for (std::size_t k = 0; k < of_.size(); ++k) begin[k] = at, at += of_[k].bytes();
    return {.on = on_.main_lane(),
            .a = begin[0],
            .b = begin[1],
            .bias = shape_.bias ? begin[3] : nullptr,
            .out = begin[2],
            .rows = shape_.dynamic_rows ? shape_.M : -1,
            .kept = shape_.ends_in == product_end::gelu_kept ? begin[4] : nullptr,
            .slopes_at = shape_.ends_in == product_end::gelu_gradient ? begin[4] : nullptr};
  }

private:
  /// The most copies: their calls fit into a graph. For products so small that the cache holds as
  /// many copies, a call takes about as long as the start of a kernel, wherever its operands are.
  static constexpr std::int64_t most_copies = 4096;
  struct operand {
    std::int64_t elements = 0;
    dtype type = dtype::f32;
    std::int64_t bytes() const { return (elements * size_of(type) + 255) / 256 * 256; }
  };
  /// Fills an operand with numbers in [-1, 1) that look random; the numbers repeat after 2^18 of
  /// them.
  void fill(std::byte* to, const operand& o) {
    with_float_type(o.type, [&](auto type) {
      using T = decltype(type);
      std::vector<T> x(static_cast<std::size_t>(std::min<std::int64_t>(o.elements, 1 << 18)));
      std::uint64_t state = 0x9e3779b97f4a7c15u;
      for (T& one : x) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        one = convert<T>(static_cast<accumulator_t<T>>(
            static_cast<double>(static_cast<std::int64_t>(state) >> 11) * 0x1p-52));
      }
      const std::int64_t piece = std::ssize(x);
      for (std::int64_t at = 0; at < o.elements; at += piece)
        on_.write(to + at * std::int64_t{sizeof(T)}, x.data(),
                  std::min(piece, o.elements - at) * std::int64_t{sizeof(T)});
    });
  }

  cuda& on_;
  product_shape shape_;
  std::array<operand, 5> of_{}; ///< a, b, out, the bias, and the Z of GELU
  std::int64_t bytes_ = 0, copies_ = 0;
  arena memory_;
};

/// Returns the seconds of a call of a product with these operands: the median of 5 to 50 passes
/// over all copies, about 25 ms of them, after two passes that do not count. A pass is a graph of
/// CUDA, as most work of programs is: the host starts short products one by one more slowly than a
/// device computes them. Throws mc::error if the product cannot be started.
inline double seconds_of(cuda& on, const prepared_product& p, const product_operands& with) {
  constexpr double enough = 0.025;
  auto& l = static_cast<cuda_lane&>(on.main_lane());
  l.reserve({.workspace = cuda::product_workspace});
  std::unique_ptr<lane::kept_work> kept;
  const auto pass = [&] {
    for (std::int64_t i = 0; i < with.copies(); ++i) p.execute(with.call(i));
  };
  l.start_kept(kept, pass); // starts calls one by one, since the library may load code
  std::array<cuda_moment, 2> around;
  around[0].record(l.stream());
  l.start_kept(kept, pass);
  around[1].record(l.stream());
  l.finish();
  const double one = std::max(static_cast<double>(around[1].since(around[0])) * 1e-9, 1e-6);
  const auto passes = static_cast<std::size_t>(std::clamp(enough / one, 5.0, 50.0));
  std::vector<cuda_moment> between(passes + 1);
  between[0].record(l.stream());
  for (std::size_t i = 1; i <= passes; ++i) {
    l.start_kept(kept, pass);
    between[i].record(l.stream());
  }
  l.finish();
  std::vector<double> seconds;
  for (std::size_t i = 1; i <= passes; ++i)
    seconds.push_back(static_cast<double>(between[i].since(between[i - 1])) * 1e-9);
  std::ranges::nth_element(seconds, seconds.begin() + std::ssize(seconds) / 2);
  return seconds[passes / 2] / static_cast<double>(with.copies());
}

/// Measures the ways of cuBLASLt to compute products on a device.
class product_tuner {
public:
  /// The device must compute nothing else meanwhile. `tf32`: fp32 operands are rounded to TF32.
  product_tuner(cuda& on, bool tf32) : on_(on), tf32_(tf32), products_(on, {}, nullptr, tf32) {}

  /// A tuned product, and the numbers of ways that were compared and refused.
  struct found {
    tuned_product product;
    int ways = 0;    ///< number of ways that were measured
    int refused = 0; ///< number of ways that failed their check; slow ones are not checked
  };
  /// Returns the fastest way of a call, among the library's proposals that pass their check. Where
  /// there is none, the end of the call is left out, as programs do. Returns nothing if `late()`
  /// returns true before the way is found. The library must be asked for the end of the call
  /// (cublaslt_product::computes_end). Throws mc::error where there is no way.
  std::optional<found> tune(product_shape call, const std::function<bool()>& late) {
    const auto p = products_.make(call);
    std::vector<timed> ways;
    {
      const product_operands with(on_, call);
      for (const cublasLtMatmulAlgo_t& algorithm : p->proposals(most_proposals)) {
        if (late()) return std::nullopt;
        p->take(algorithm);
        if (const auto seconds = seconds_unless_it_fails(*p, with))
          ways.push_back({algorithm, *seconds});
      }
    }
    const auto n = static_cast<int>(ways.size());
    found best{.product = {.call = call, .tf32 = tf32_ && call.a == dtype::f32}, .ways = n};
    const auto passes = [&](int i) {
      timed& way = ways[static_cast<std::size_t>(i)];
      if (way.checked) return way.right;
      p->take(way.algorithm);
      way.checked = true, way.right = p->fault({i, n}).empty();
      if (!way.right) ++best.refused;
      return way.right;
    };
    std::vector<int> order(ways.size());
    std::iota(order.begin(), order.end(), 0);
    auto first = order.begin();
    for (; first != order.end() && !passes(*first); ++first)
      if (late()) return std::nullopt;
    if (first == order.end() && call.ends_in != product_end::sum) {
      call.ends_in = product_end::sum;
      return tune(call, late);
    }
    if (first == order.end())
      p->refuse(std::string("has no way of cuBLASLt that passes its check") + other_version,
                exit_code::machine);
    best.product.first_seconds = ways[static_cast<std::size_t>(*first)].seconds;
    std::ranges::stable_sort(order, {},
                             [&](int i) { return ways[static_cast<std::size_t>(i)].seconds; });
    for (const int i : order) {
      if (late()) return std::nullopt;
      if (!passes(i)) continue;
      best.product.way = ways[static_cast<std::size_t>(i)].algorithm;
      best.product.seconds = ways[static_cast<std::size_t>(i)].seconds;
      break;
    }
    return best;
  }

private:
  static constexpr int most_proposals = 32;
  struct timed {
    cublasLtMatmulAlgo_t algorithm{};
    double seconds = 0;
    bool checked = false, right = false;
  };
  /// Returns the seconds of a way; nothing for a way that the library proposes and cannot start.
  std::optional<double> seconds_unless_it_fails(const cublaslt_product& p,
                                                const product_operands& with) {
    try {
      return seconds_of(on_, p, with);
    } catch (const error&) {
      (void)cudaGetLastError();
      on_.main_lane().finish(); // throws where the device itself is lost
      return std::nullopt;
    }
  }

  cuda& on_;
  bool tf32_;
  cublaslt_products products_;
};

} // namespace mc
