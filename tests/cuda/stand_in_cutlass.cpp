// CUTLASS's grouped kernels without a device: what src/cuda_cutlass.cu is to programs. The arrays of
// extents and addresses are read from the device's memory when the stream comes to the product, and every
// segment is computed by plain loops, in an order of segments that changes. As TMA does, it reads nothing by an
// address or a stride that is no multiple of 16 bytes.
#include "stand_in.hpp"

#include <megacpp/num/dtype.hpp>
#include <megacpp/product/cuda/grouped.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

namespace {

using mc::bf16;
using std::int64_t;

constexpr int64_t workspace_needed = 67840; // a few addresses for each of 132 multiprocessors

/// What tests may have it do wrong, by names: stand_in::fail("grouped: a segment is left out").
struct mistakes {
  bool leaves_out, without_sums, row_beyond, last_term;
};
mistakes asked_mistakes() {
  const auto asked = [](const char* what) { return stand_in::entered(what) != cudaSuccess; };
  return {asked("grouped: a segment is left out"), asked("grouped: nothing is added to"),
          asked("grouped: a row too many"), asked("grouped: the last term is left out")};
}

template <class Out>
void compute(const mc::grouped_product_call& c, const mistakes& wrong, int64_t segment, bool last) {
  const mc::grouped_arrays& of = c.arrays;
  const auto [m, n, k] = of.extents[segment];
  const bool summed = c.kind == mc::product_kind::weight_gradient,
             b_transposed = c.kind == mc::product_kind::forward;
  const int64_t a_stride = of.a_stride[segment], b_stride = of.b_stride[segment],
                d_stride = of.d_stride[segment];
  const auto *a = static_cast<const bf16*>(of.a[segment]),
             *b = static_cast<const bf16*>(of.b[segment]);
  auto* const d = static_cast<Out*>(of.d[segment]);
  const auto aligned = [](const void* p, int64_t elements, std::size_t size) {
    return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 &&
           static_cast<std::size_t>(elements) * size % 16 == 0;
  };
  // Parts run at once: what two write is neither's.
  bool alone = true;
  for (int64_t i = 0; i < c.segments; ++i)
    alone = alone && (i == segment || of.d[i] != of.d[segment]);
  const bool readable = alone && aligned(a, a_stride, 2) && aligned(b, b_stride, 2) &&
                        aligned(d, d_stride, sizeof(Out)) && m > 0 && n > 0 && k > 0;
  std::vector<float> sums(static_cast<std::size_t>(n));
  for (int64_t i = 0; i < m + (last && wrong.row_beyond ? 1 : 0); ++i) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t t = 0; t < k - (last && wrong.last_term ? 1 : 0); ++t) {
      const int64_t at = i < m ? i : m - 1;
      const auto x = mc::convert<float>(summed ? a[t * a_stride + at] : a[at * a_stride + t]);
      for (int64_t j = 0; j < n; ++j)
        sums[static_cast<std::size_t>(j)] +=
            x * mc::convert<float>(b_transposed ? b[j * b_stride + t] : b[t * b_stride + j]);
    }
    for (int64_t j = 0; j < n; ++j) {
      float sum =
          readable ? sums[static_cast<std::size_t>(j)] : std::numeric_limits<float>::quiet_NaN();
      Out& to = d[i * d_stride + j];
      if (summed && !wrong.without_sums) sum += mc::convert<float>(to);
      if (std::isnan(sum)) sum = std::bit_cast<float>(0x7fffffffu); // as a GPU has it
      to = mc::convert<Out>(sum);
    }
  }
}

} // namespace

int mc::cutlass_grouped(cudaStream_t on, const grouped_product_call& c, std::int64_t* needed) {
  *needed = workspace_needed;
  if (stand_in::entered("cutlass_grouped: workspace") != cudaSuccess)
    *needed = std::int64_t{1} << 40;
  if (*needed > c.bytes) return cudaSuccess;
  if (const cudaError_t e = stand_in::entered("cutlass_grouped"); e != cudaSuccess) return e;
  if (c.segments < 1 || reinterpret_cast<std::uintptr_t>(c.workspace) % 256 != 0)
    return cudaErrorInvalidValue;
  static std::int64_t calls = 0;
  stand_in::start(on, "a grouped product", [c, turn = calls++, wrong = asked_mistakes()] {
    std::memset(c.workspace, 0xa5, workspace_needed); // it is this product's alone
    for (std::int64_t i = 0; i < c.segments; ++i) {
      const std::int64_t segment = turn % 2 == 0 ? i : c.segments - 1 - i;
      if (segment == 0 && wrong.leaves_out) continue;
      if (c.kind == product_kind::weight_gradient)
        compute<float>(c, wrong, segment, i == c.segments - 1);
      else compute<bf16>(c, wrong, segment, i == c.segments - 1);
    }
  });
  return cudaSuccess;
}
