#include "arrays.hpp"
#include "attention_plan.hpp"
#include "ceilings.hpp"
#include "cuda_device.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace gpu {
namespace {

using mc::bf16;
using std::int64_t;
using kind = attention_plan::kind;

class library {
public:
  library() { require(cudnnCreate(&h_), "cudnnCreate"); }
  library(const library&) = delete;
  library& operator=(const library&) = delete;
  ~library() { (void)cudnnDestroy(h_); }
  cudnnHandle_t get() const { return h_; }

private:
  cudnnHandle_t h_ = nullptr;
};

// Where the arrays of attention lie in one block, for the forward and the backward.
class arrays_of {
public:
  explicit arrays_of(const attention_shape& s) : shape(s) {
    const int64_t out = s.rows() * s.heads * s.head_dim, row = s.rows() * s.heads;
    qkv = take(s.rows() * s.packed() * 2), o = take(out * 2), d_o = take(out * 2);
    d_qkv = take(s.rows() * s.packed() * 2);
    stats = take(row * 4), row_sums = take(row * 4), accumulator = take(out * 4);
  }
  attention_shape shape;
  int64_t qkv, o, d_o, d_qkv, stats, row_sums, accumulator, bytes = 0;

  void run(const attention_plan& plan, kind of, std::byte* at, std::byte* workspace) const {
    float scale = static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_dim)));
    float none = -std::numeric_limits<float>::infinity(), one = 1;
    const int64_t k = shape.heads * shape.head_dim * 2,
                  v = k + shape.key_heads * shape.head_dim * 2;
    std::vector<binding> all{{tensor::q, at + qkv},          {tensor::k, at + qkv + k},
                             {tensor::v, at + qkv + v},      {tensor::o, at + o},
                             {tensor::stats, at + stats},    {tensor::scale, &scale},
                             {tensor::minus_infinity, &none}};
    if (of != kind::forward) {
      const binding more[] = {{tensor::d_o, at + d_o},       {tensor::d_q, at + d_qkv},
                              {tensor::d_k, at + d_qkv + k}, {tensor::d_v, at + d_qkv + v},
                              {tensor::one, &one},           {tensor::row_sums, at + row_sums}};
      all.insert(all.end(), std::begin(more), std::end(more));
      if (of == kind::backward) all.push_back({tensor::d_q_accumulator, at + accumulator});
    }
    plan.run(all, workspace);
  }

private:
  int64_t take(int64_t of) {
    const int64_t at = bytes;
    bytes += (of + 255) / 256 * 256;
    return at;
  }
};

std::vector<bf16> random(int64_t n, std::uint64_t seed) {
  std::vector<bf16> x(static_cast<std::size_t>(n));
  constexpr int64_t piece = 1 << 16;
  mc::parallel_for((n + piece - 1) / piece, [&](int64_t p) {
    for (int64_t i = p * piece; i < n && i < (p + 1) * piece; ++i) {
      const std::uint64_t bits = mixed(seed, static_cast<std::uint64_t>(i)) >> 11;
      x[static_cast<std::size_t>(i)] =
          bf16(static_cast<float>(static_cast<double>(bits) * 0x1p-52 - 1));
    }
  });
  return x;
}

// Loops in double over one sequence and one head: adds to the gradients of its key head.
struct reference {
  const attention_shape& s;
  std::vector<double> qkv, d_o, o, d_qkv;
  reference(const attention_shape& shape, const std::vector<bf16>& x, const std::vector<bf16>& d)
      : s(shape), o(d.size()), d_qkv(x.size()) {
    for (bf16 v : x) qkv.push_back(mc::convert<double>(v));
    for (bf16 v : d) d_o.push_back(mc::convert<double>(v));
    for (int64_t b = 0; b < s.sequences; ++b)
      for (int64_t h = 0; h < s.heads; ++h) head(b, h);
  }

private:
  static std::size_t index(int64_t i) { return static_cast<std::size_t>(i); }
  static double dot(const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add(double* to, double factor, const double* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
  }

  void head(int64_t b, int64_t h) {
    const int64_t d = s.head_dim, key = s.heads + h / (s.heads / s.key_heads);
    const double scale = 1 / std::sqrt(static_cast<double>(d));
    const auto part = [&](std::vector<double>& of, int64_t t, int64_t which) {
      return &of[index((b * s.tokens + t) * s.packed() + which * d)];
    };
    for (int64_t t = 0; t < s.tokens; ++t) {
      std::vector<double> p(index(t + 1));
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = 0; j <= t; ++j) {
        p[index(j)] = scale * dot(part(qkv, t, h), part(qkv, j, key), d);
        top = std::max(top, p[index(j)]);
      }
      for (double& x : p) sum += x = std::exp(x - top);
      const int64_t at = ((b * s.tokens + t) * s.heads + h) * d;
      for (int64_t j = 0; j <= t; ++j)
        add(&o[index(at)], p[index(j)] /= sum, part(qkv, j, key + s.key_heads), d);
      const double* const of_o = &d_o[index(at)];
      const double mean = dot(of_o, &o[index(at)], d);
      for (int64_t j = 0; j <= t; ++j) {
        add(part(d_qkv, j, key + s.key_heads), p[index(j)], of_o, d);
        const double d_s =
            scale * p[index(j)] * (dot(of_o, part(qkv, j, key + s.key_heads), d) - mean);
        add(part(d_qkv, t, h), d_s, part(qkv, j, key), d);
        add(part(d_qkv, j, key), d_s, part(qkv, t, h), d);
      }
    }
  }
};

// P and dS are rounded to bf16 before they are multiplied, O before its product with dO, and parts
// of dK and dV of each head before they are added: `roundings` of 2^-8 of the greatest element of
// the array, beside one of its own.
void compare(const char* name, const std::vector<bf16>& got, const std::vector<double>& want,
             double roundings) {
  double most = 0;
  for (double w : want) most = std::max(most, std::fabs(w));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = mc::convert<double>(got[i]);
    if (std::fabs(g - want[i]) <= 0x1p-8 * (std::fabs(want[i]) + roundings * most)) continue;
    throw mc::error(mc::exit_code::internal, std::string(name) + "[" + std::to_string(i) + "] is " +
                                                 std::to_string(g) + " and should be " +
                                                 std::to_string(want[i]));
  }
}

// A block of the device that begins as a NaN everywhere, with the inputs in it.
class inputs {
public:
  inputs(const arrays_of& a, const std::vector<bf16>& qkv, const std::vector<bf16>& d_o)
      : data_(memory(), a.bytes, "attention", "a smaller micro-batch") {
    data_.poison();
    memory().write(data_.data() + a.qkv, qkv.data(), static_cast<int64_t>(qkv.size()) * 2);
    memory().write(data_.data() + a.d_o, d_o.data(), static_cast<int64_t>(d_o.size()) * 2);
  }
  std::byte* data() const { return data_.data(); }
  std::vector<bf16> read(int64_t offset, std::size_t n) const {
    std::vector<bf16> x(n);
    memory().read(x.data(), data_.data() + offset, static_cast<int64_t>(n) * 2);
    return x;
  }

private:
  mc::arena data_;
};

// Of a plan; of one that needs none, too, a pointer to something.
mc::arena workspace_of(const attention_plan& plan) {
  return mc::arena(memory(), plan.workspace_bytes() + 256, "cuDNN's workspace",
                   "a smaller micro-batch");
}

std::vector<bf16> random_qkv(const attention_shape& s) { return random(s.rows() * s.packed(), 31); }
std::vector<bf16> random_out(const attention_shape& s) {
  return random(s.rows() * s.heads * s.head_dim, 32);
}

void check(report& r, const library& of, const std::string& name, const attention_shape& s) {
  r.check("attention " + name, [&]() -> figures {
    const arrays_of a(s);
    const auto qkv = random_qkv(s), d_o = random_out(s);
    const inputs in(a, qkv, d_o);
    const reference want(s, qkv, d_o);
    const auto run = [&](kind k) {
      const attention_plan plan(k, s, of.get());
      const mc::arena workspace = workspace_of(plan);
      a.run(plan, k, in.data(), workspace.data());
      finish();
    };
    run(kind::forward);
    compare("o", in.read(a.o, d_o.size()), want.o, 1);
    std::vector<bf16> first;
    for (const kind k :
         {kind::backward, kind::deterministic_backward, kind::deterministic_backward}) {
      memory().fill(in.data() + a.d_qkv, 0xff, s.rows() * s.packed() * 2);
      run(k);
      const auto d = in.read(a.d_qkv, qkv.size());
      compare(k == kind::backward ? "d_qkv" : "d_qkv deterministic", d, want.d_qkv, 2);
      if (k != kind::deterministic_backward) continue;
      if (first.empty()) first = d;
      else if (std::memcmp(first.data(), d.data(), d.size() * 2) != 0)
        throw mc::error(mc::exit_code::internal,
                        "the deterministic backward gives other bits the second time");
    }
    return {};
  });
}

// A causal score and a half: forward 2 products of B A T^2 D / 2 multiplications and additions
// each, backward 5 of them.
void measure(report& r, const library& of, const std::string& name, const attention_shape& s) {
  struct what {
    const char* name;
    kind of;
    double products;
  };
  for (const what w : {what{"forward", kind::forward, 2}, what{"backward", kind::backward, 5},
                       what{"deterministic backward", kind::deterministic_backward, 5}}) {
    r.check("attention " + std::string(w.name) + " " + name, [&]() -> figures {
      const arrays_of a(s); // larger than the cache
      const inputs in(a, random_qkv(s), random_out(s));
      if (w.of != kind::forward) {
        const attention_plan before(kind::forward, s, of.get());
        const mc::arena workspace = workspace_of(before);
        a.run(before, kind::forward, in.data(), workspace.data());
        finish();
      }
      const attention_plan plan(w.of, s, of.get());
      const mc::arena workspace = workspace_of(plan);
      const double ms =
          milliseconds([&](int) { a.run(plan, w.of, in.data(), workspace.data()); }, 1);
      const auto n = [](int64_t x) { return static_cast<double>(x); };
      const double flops = w.products * n(s.rows()) * n(s.heads) * n(s.tokens) * n(s.head_dim);
      return {{"ms", ms},
              {"TFLOP/s", flops / ms / 1e9},
              {"workspace_MiB", n(plan.workspace_bytes()) / 0x1p20}};
    });
  }
}

} // namespace

std::string attention_library() {
  const std::size_t v = cudnnGetVersion();
  return std::to_string(v / 10000) + "." + std::to_string(v / 100 % 100) + "." +
         std::to_string(v % 100);
}

void attention(report& r) {
  std::unique_ptr<library> of;
  r.check("cudnnCreate", [&]() -> figures {
    of = std::make_unique<library>();
    return {};
  });
  if (!of) return;
  check(r, *of, "of heads of 64", {2, 256, 4, 4, 64});
  check(r, *of, "of grouped heads of 128", {1, 384, 8, 2, 128});
  measure(r, *of, "gpt2-124m", {32, 1024, 12, 12, 64});
  measure(r, *of, "qwen3-8b", {4, 4096, 32, 8, 128});
}

} // namespace gpu
