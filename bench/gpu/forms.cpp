#include "arrays.hpp"
#include "ceilings.hpp"
#include "cuda_device.hpp"

#include <megacpp/product/cuda/cublaslt.hpp>

#include <algorithm>
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
// What a layer of elements of a type has in training, its products as programs ask for them.
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

// A device that multiplies.
mc::cuda& device() {
  static mc::cuda one(0, mc::thread_count(), [](mc::cuda& on) {
    return mc::cuda_libraries{std::make_unique<mc::cublaslt_products>(on), nullptr};
  });
  return one;
}

// Random numbers in [-1, 1), the same again after 2^18 of them: equal ones would take less power.
void fill(mc::cuda& on, std::byte* to, int64_t bytes, dtype type) {
  mc::with_float_type(type, [&](auto of) {
    using T = decltype(of);
    std::vector<T> x(1 << 18);
    for (std::size_t i = 0; i < x.size(); ++i)
      x[i] = mc::convert<T>(static_cast<double>(mixed(41, i) >> 11) * 0x1p-52 - 1);
    const auto piece = static_cast<int64_t>(x.size() * sizeof(T));
    for (int64_t at = 0; at < bytes; at += piece)
      on.write(to + at, x.data(), std::min(piece, bytes - at));
  });
}

void measure(report& r, const layer& l, dtype type, const form& f) {
  r.check(std::string(f.name) + " " + mc::name_of(type) + " " + l.name, [&]() -> figures {
    mc::cuda& on = device();
    const std::size_t refused = on.products().checks().refused.size();
    const mc::prepared_product& p = on.products().prepare(f.shape);
    mc::lane& lane = on.main_lane();
    lane.reserve({.workspace = on.products().workspace_bytes()});
    const auto bytes = [](int64_t n, dtype t) { return (n * mc::size_of(t) + 255) / 256 * 256; };
    const product_shape& s = f.shape;
    const bool forward = s.kind == product_kind::forward,
               summed = s.kind == product_kind::weight_gradient;
    const int64_t of_a = bytes(s.M * (forward ? s.K : s.N), s.a),
                  of_b = bytes(summed ? s.M * s.K : s.N * s.K, s.b),
                  of_out = bytes(summed ? s.N * s.K : s.M * (forward ? s.N : s.K), s.out);
    const int64_t all = of_a + of_b + of_out + bytes(s.N, s.b);
    const mc::arena data(on, all, "operands of products", "a device with more memory");
    fill(on, data.data(), all, s.a);
    mc::product_call c{.on = lane};
    std::byte* const at = data.data();
    c.a = at, c.b = at + of_a, c.out = at + of_a + of_b;
    if (s.bias) c.bias = at + of_a + of_b + of_out;
    const auto run = [&] { p.execute(c); };
    auto& stream = static_cast<mc::cuda_lane&>(lane);
    mc::cuda_moment begin, end;
    run(), run();
    constexpr int calls = 10;
    begin.record(stream.stream());
    for (int i = 0; i < calls; ++i) run();
    end.record(stream.stream());
    lane.finish();
    const double ms = static_cast<double>(end.since(begin)) * 1e-6 / calls;
    return {{"ms", ms},
            {"TFLOP/s", s.flops() / ms / 1e9},
            {"refused_ways", static_cast<double>(on.products().checks().refused.size() - refused)}};
  });
}

} // namespace

void forms_of_products(report& r) {
  for (const dtype type : {dtype::bf16, dtype::f32})
    for (const layer& l : layers)
      for (const form& f : forms_of(l, type)) measure(r, l, type, f);
}

} // namespace gpu
