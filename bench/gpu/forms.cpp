#include "arrays.hpp"
#include "ceilings.hpp"
#include "multiplier.hpp"

#include <megacpp/kernel/rows/activation.hpp>
#include <megacpp/product/cuda/cublaslt.hpp>
#include <megacpp/product/cuda/tune.hpp>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

namespace gpu {
namespace {

using mc::dtype;
using mc::product_kind;
using mc::product_shape;
using std::int64_t;

// A linear layer of M tokens, from K to N.
struct layer {
  const char* name;
  int64_t m, n, k;
};
constexpr layer layers[] = {{"gpt2-124m qkv", 16384, 2304, 768},
                            {"gpt2-124m mlp", 16384, 3072, 768},
                            {"gpt2-124m head", 1024, 50304, 768},
                            {"qwen3-8b down", 4096, 4096, 12288}};

struct form {
  const char* name;
  product_shape shape;
};
// Returns the products of a layer in training, with elements of a type, as programs ask for them.
std::vector<form> forms_of(const layer& l, dtype type) {
  const auto make = [&](product_kind kind) {
    return mc::make_product_shape(kind, type, l.m, l.n, l.k);
  };
  std::vector<form> all{{"forward", make(product_kind::forward)},
                        {"forward with bias", make(product_kind::forward)},
                        {"forward to fp32", make(product_kind::forward)},
                        {"input gradient", make(product_kind::input_gradient)},
                        {"input gradient added", make(product_kind::input_gradient)},
                        {"weight gradient", make(product_kind::weight_gradient)}};
  all[1].shape.bias = true;
  all[2].shape.out = dtype::f32;
  all[4].shape.accumulate = true;
  if (type == dtype::f32) all.erase(all.begin() + 2); // it is the first form again
  return all;
}

void measure(report& r, const layer& l, dtype type, const form& f) {
  r.check(std::string(f.name) + " " + mc::name_of(type) + " " + l.name, [&]() -> figures {
    mc::cuda& on = device();
    const std::size_t refused = on.products().checks().refused.size();
    const mc::prepared_product& p = on.products().prepare(f.shape);
    const mc::product_operands with(on, f.shape);
    const double ms = mc::seconds_of(on, p, with) * 1e3;
    return {{"ms", ms},
            {"TFLOP/s", f.shape.flops() / ms / 1e9},
            {"refused_ways", static_cast<double>(on.products().checks().refused.size() - refused)}};
  });
}

// A product followed by GELU, or a gradient product behind GELU's gradient: a layer of M tokens
// from K to N.
struct end_form {
  const char* name;
  mc::product_end end;
  layer of;
};
constexpr end_form ends[] = {
    {"forward with GELU", mc::product_end::gelu, {"gpt2-124m fc1", 16384, 3072, 768}},
    {"forward with GELU, kept", mc::product_end::gelu_kept, {"gpt2-124m fc1", 16384, 3072, 768}},
    {"input gradient with GELU's slope",
     mc::product_end::gelu_gradient,
     {"gpt2-124m fc2", 16384, 768, 3072}}};

product_shape shape_of(const end_form& f, dtype type) {
  const bool forward = f.end != mc::product_end::gelu_gradient;
  product_shape s = mc::make_product_shape(
      forward ? product_kind::forward : product_kind::input_gradient, type, f.of.m, f.of.n, f.of.k);
  s.bias = forward, s.ends_in = f.end;
  return s;
}

// Compares and times two ways: the library's product with its end, and the product with the body
// that a kernel starts behind it. The numbers agree but for roundings. In bf16 a sum z that is
// rounded before GELU is off by up to 2^-8 |z|, GELU of it by 1.13 of that, and both results by as
// much again when they are stored: 2^-6 |z| is enough. In fp32 two ways differ by the roundings of
// 768 terms. GELU's own error is part of the check before (exec/product_check.hpp).
template <class T> void measure_end(report& r, const end_form& f) {
  r.check(
      std::string(f.name) + " " + mc::name_of(mc::dtype_of<T>) + " " + f.of.name, [&]() -> figures {
        constexpr dtype type = mc::dtype_of<T>;
        const bool forward = f.end != mc::product_end::gelu_gradient;
        product_shape s = shape_of(f, type);
        s.ends_in = mc::product_end::sum;
        mc::cuda& on = device();
        const mc::prepared_product& apart = on.products().prepare(s);
        s.ends_in = f.end;
        const mc::prepared_product& p = on.products().prepare(s);
        if (p.shape().ends_in != f.end)
          throw mc::error(mc::exit_code::internal,
                          "cuBLASLt has no way to compute this with the product that passes its "
                          "check, so that a program starts a kernel behind it: " +
                              on.products().describe(type));
        mc::lane& lane = on.main_lane();
        auto& stream = static_cast<mc::cuda_lane&>(lane);
        lane.reserve({.workspace = on.products().workspace_bytes()});
        const int64_t results = s.M * (forward ? s.N : s.K), of_out = padded(results, type),
                      of_a = padded(s.M * (forward ? s.K : s.N), type),
                      of_b = padded(s.N * s.K, type), of_bias = padded(s.N, type);
        const mc::arena data(on, of_a + of_b + of_bias + 4 * of_out, "operands of products",
                             "a device with more memory");
        std::byte *const a = data.data(), *const b = a + of_a, *const bias = b + of_b;
        std::byte* out[4]; // of the library: the result, and Z; of the kernel: the same
        for (int i = 0; i < 4; ++i) out[i] = bias + of_bias + i * of_out;
        fill(on, a, of_a, type), fill(on, b, of_b, type, 0.125), fill(on, bias, of_bias, type);
        for (std::byte* const z : out) fill(on, z, of_out, type, 4);
        const auto in_library = [&] {
          p.execute({.on = lane,
                     .a = a,
                     .b = b,
                     .bias = forward ? bias : nullptr,
                     .out = out[0],
                     .kept = f.end == mc::product_end::gelu_kept ? out[1] : nullptr,
                     .slopes_at = forward ? nullptr : out[1]});
        };
        const auto behind = [&] {
          T *const y = reinterpret_cast<T*>(out[2]), *const z = reinterpret_cast<T*>(out[3]);
          const bool keeps = f.end == mc::product_end::gelu_kept;
          apart.execute(
              {.on = lane, .a = a, .b = b, .bias = forward ? bias : nullptr, .out = keeps ? z : y});
          if (forward) mc::rows::activation<mc::rows::gelu_tanh>(stream, results, keeps ? z : y, y);
          else mc::rows::activation_dx<mc::rows::gelu_tanh>(stream, results, y, z, y);
        };
        const double ms = measured(lane, in_library), ms_behind = measured(lane, behind);
        std::vector<T> got(static_cast<std::size_t>(results)), want(got), z(got);
        const int64_t bytes = results * int64_t{sizeof(T)};
        on.read(got.data(), out[0], bytes), on.read(want.data(), out[2], bytes);
        // Computes the size of each sum, without the end.
        apart.execute(
            {.on = lane, .a = a, .b = b, .bias = forward ? bias : nullptr, .out = out[3]});
        lane.finish();
        on.read(z.data(), out[3], bytes);
        std::vector<T> kept(f.end == mc::product_end::gelu_kept ? got.size() : 0);
        if (!kept.empty()) on.read(kept.data(), out[1], bytes);
        std::atomic<int64_t> wrong = -1;
        constexpr int64_t piece = 1 << 16;
        mc::parallel_for((results + piece - 1) / piece, [&](int64_t k) {
          for (int64_t i = k * piece; i < std::min(results, (k + 1) * piece); ++i) {
            const auto at = static_cast<std::size_t>(i);
            const double sum = std::fabs(mc::convert<double>(z[at])),
                         most = sizeof(T) == 2 ? 0x1p-6 * sum + 0x1p-16 : 0x1p-16 * (sum + 1);
            const auto apart_by = [&](T x, T y) {
              return std::fabs(mc::convert<double>(x) - mc::convert<double>(y));
            };
            if (!(apart_by(got[at], want[at]) <= most) ||
                (!kept.empty() && !(apart_by(kept[at], z[at]) <= most)))
              wrong = i;
          }
        });
        if (wrong >= 0)
          throw mc::error(
              mc::exit_code::internal,
              "element " + std::to_string(wrong) + " is another than by a product and a kernel");
        return {{"ms", ms},
                {"ms_product_and_kernel", ms_behind},
                {"of_product_and_kernel", ms / ms_behind},
                {"TFLOP/s", s.flops() / ms / 1e9}};
      });
}

} // namespace

std::vector<mc::product_shape> shapes_of_layers() {
  std::vector<mc::product_shape> all;
  for (const dtype type : {dtype::bf16, dtype::f32})
    for (const layer& l : layers)
      for (const form& f : forms_of(l, type)) all.push_back(f.shape);
  for (const dtype type : {dtype::bf16, dtype::f32})
    for (const end_form& f : ends) all.push_back(shape_of(f, type));
  return all;
}

void forms_of_products(report& r) {
  for (const end_form& f : ends) measure_end<mc::bf16>(r, f), measure_end<float>(r, f);
  for (const dtype type : {dtype::bf16, dtype::f32})
    for (const layer& l : layers)
      for (const form& f : forms_of(l, type)) measure(r, l, type, f);
}

} // namespace gpu
