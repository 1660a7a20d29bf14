#include "ceilings.hpp"
#include "multiplier.hpp"

#include <megacpp/product/cuda/grouped_kernels.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

namespace gpu {
namespace {

using mc::bf16;
using mc::product_kind;
using std::int64_t;

// The linear layers of experts, from K to N: those of a Qwen3-30B-A3B, whose gate and up are one,
// for 16,384 tokens with 8 experts each.
struct layer_of_experts {
  const char* name;
  int64_t experts, tokens, each, n, k;
};
constexpr layer_of_experts layers[] = {{"qwen3-30b-a3b gate and up", 128, 16384, 8, 1536, 2048},
                                       {"qwen3-30b-a3b down", 128, 16384, 8, 2048, 768}};

// Returns the rows of each expert. Some have none, and one has four times the mean.
std::vector<std::int32_t> rows_of(const layer_of_experts& l) {
  const int64_t all = l.tokens * l.each, mean = all / l.experts;
  std::vector<std::int32_t> rows(static_cast<std::size_t>(l.experts));
  int64_t left = all;
  for (std::size_t e = 0; e < rows.size(); ++e) {
    const auto spread = static_cast<int64_t>(mixed(51, e) % static_cast<std::uint64_t>(2 * mean));
    const int64_t n = e % 16 == 3 ? 0 : e == 7 ? 4 * mean : spread;
    rows[e] = static_cast<std::int32_t>(std::min(left, n)), left -= rows[e];
  }
  rows.back() += static_cast<std::int32_t>(std::min(left, l.tokens - rows.back()));
  return rows;
}

// Compares some elements of two results, which differ by one rounding of sums in another order.
template <class Out>
void compare(mc::cuda& on, const std::byte* one, const std::byte* other, int64_t elements) {
  constexpr int64_t piece = 1 << 12, pieces = 512;
  std::vector<Out> x(piece), y(piece);
  for (int64_t p = 0; p < pieces; ++p) {
    const int64_t first = (elements - piece) / (pieces - 1) * p,
                  bytes = piece * int64_t{sizeof(Out)};
    on.read(x.data(), one + first * int64_t{sizeof(Out)}, bytes);
    on.read(y.data(), other + first * int64_t{sizeof(Out)}, bytes);
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double a = mc::convert<double>(x[i]), b = mc::convert<double>(y[i]);
      if (!(std::fabs(a - b) <= (sizeof(Out) == 2 ? 0x1p-7 * std::fabs(b) : 0) + 0x1p-9))
        throw mc::error(mc::exit_code::internal,
                        "element " + std::to_string(first + static_cast<int64_t>(i)) +
                            " is another than by products one by one");
    }
  }
}

// A way to compute products of experts: first one by one, then by the kernels that there are.
// cuBLASLt's own are for numerics::fast alone.
struct way {
  const char* name;
  mc::numerics sums;
  mc::grouped_library library;
};
std::vector<way> ways(mc::cuda& on) {
  std::vector<way> all{{"one_by_one", mc::numerics::batch_invariant, {}}};
  if (mc::has_grouped_cublaslt(on)) all.push_back({"by_cublaslt", mc::numerics::fast, {}});
  if (mc::grouped_library cutlass = mc::grouped_kernels(on); cutlass.kernel_for)
    all.push_back({"by_cutlass", mc::numerics::batch_invariant, std::move(cutlass)});
  return all;
}

template <class Out> void measure(report& r, const layer_of_experts& l, product_kind kind) {
  const bool forward = kind == product_kind::forward,
             summed = kind == product_kind::weight_gradient;
  r.check(std::string(mc::name_of(kind)) + " " + l.name, [&]() -> figures {
    mc::cuda& on = device();
    mc::product_shape s = mc::make_product_shape(kind, mc::dtype::bf16, l.tokens, l.n, l.k);
    s.dynamic_rows = true, s.groups = l.experts;
    s.group_rows = l.tokens * l.each / l.experts;
    const std::vector<std::int32_t> rows = rows_of(l);
    const int64_t all = std::accumulate(rows.begin(), rows.end(), int64_t{0});
    const int64_t of_x = all * l.k, of_y = all * l.n, of_w = l.experts * l.n * l.k;
    const int64_t of_a = forward ? of_x : of_y, of_b = summed ? of_x : of_w,
                  of_out = summed    ? of_w
                           : forward ? of_y
                                     : of_x;
    const int64_t a_bytes = padded(of_a, s.a), b_bytes = padded(of_b, s.b),
                  out_bytes = padded(of_out, s.out);
    const mc::arena memory(on, a_bytes + b_bytes + 2 * out_bytes, "products of experts",
                           "a device with more memory");
    std::byte *const a = memory.data(), *const b = a + a_bytes,
                     *const out[] = {b + b_bytes, b + b_bytes + out_bytes};
    fill(on, a, of_a * mc::size_of(s.a), s.a), fill(on, b, of_b * mc::size_of(s.b), s.b, 0.125);
    mc::lane& lane = on.main_lane();
    const double flops = 2.0 * static_cast<double>(all) * static_cast<double>(l.n * l.k);
    figures told;
    double of_one_by_one = 0;
    for (const way& by : ways(on)) {
      mc::cublaslt_products from(on, mc::product_rows::together, nullptr, false, {}, by.library);
      s.sums = by.sums;
      const mc::prepared_product& p = from.prepare(s);
      const bool first = of_one_by_one == 0;
      if (!from.checks().refused.empty() && !first)
        throw mc::error(mc::exit_code::internal, from.checks().refused.back());
      if (!first && from.describe(s.a).find(" at once by ") == std::string::npos) {
        told.emplace_back(by.name, "left out: the library has no kernel for it");
        continue;
      }
      lane.reserve({.workspace = from.workspace_bytes()});
      std::byte* const to = out[first ? 0 : 1];
      const mc::product_call call{.on = lane, .a = a, .b = b, .out = to};
      const double ms = measured(lane, [&] { p.execute_groups(call, rows); });
      on.fill(to, 0, out_bytes); // from here on the output is one call's
      p.execute_groups(call, rows);
      lane.finish();
      told.emplace_back(std::string("ms_") + by.name, ms);
      told.emplace_back(std::string("TFLOP/s_") + by.name, flops / ms / 1e9);
      if (first) of_one_by_one = ms;
      else told.emplace_back(std::string("of_one_by_one_") + by.name, ms / of_one_by_one);
      if (!first) compare<Out>(on, out[1], out[0], of_out);
    }
    return told;
  });
}

} // namespace

void products_of_experts(report& r) {
  for (const layer_of_experts& l : layers) {
    measure<bf16>(r, l, product_kind::forward), measure<bf16>(r, l, product_kind::input_gradient);
    measure<float>(r, l, product_kind::weight_gradient);
  }
}
bool has_products_at_once() { return ways(device()).size() > 1; }

} // namespace gpu
