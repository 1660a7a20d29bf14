#include "arrays.hpp"
#include "ceilings.hpp"
#include "cuda_device.hpp"

#include <megacpp/kernel/cuda/cudnn_attention.hpp>
#include <megacpp/kernel/rows/attention.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

namespace gpu {
namespace {

using mc::bf16;
using std::int64_t;
using shape = mc::fused_attention_shape;

template <class T> std::vector<T> random(int64_t n, std::uint64_t seed) {
  std::vector<T> x(static_cast<std::size_t>(n));
  constexpr int64_t piece = 1 << 16;
  mc::parallel_for((n + piece - 1) / piece, [&](int64_t p) {
    for (int64_t i = p * piece; i < n && i < (p + 1) * piece; ++i) {
      const std::uint64_t bits = mixed(seed, static_cast<std::uint64_t>(i)) >> 11;
      x[static_cast<std::size_t>(i)] =
          mc::convert<T>(static_cast<float>(static_cast<double>(bits) * 0x1p-52 - 1));
    }
  });
  return x;
}

// The operands of an attention in T: those that are read hold random numbers, the others NaNs.
template <class T> class operands {
public:
  operands(mc::cuda& on, const shape& s)
      : q(random<T>(of_q(s), 31)),
        k(random<T>(of_k(s), 32)),
        v(random<T>(of_k(s), 33)),
        dy(random<T>(of_q(s), 34)),
        on_(on),
        s_(s) {
    const int64_t rows = s.sequences * s.tokens * s.heads;
    const int64_t q_bytes = of_q(s) * int64_t{sizeof(T)}, k_bytes = of_k(s) * int64_t{sizeof(T)};
    const int64_t bytes[] = {q_bytes,  k_bytes, k_bytes, q_bytes, q_bytes,
                             rows * 4, q_bytes, k_bytes, k_bytes};
    int64_t all = 0;
    for (std::size_t i = 0; i < std::size(bytes); ++i)
      at_[i] = all, all += (bytes[i] + 255) / 256 * 256;
    data_ = mc::arena(on, all, "attention", "a smaller micro-batch");
    data_.poison();
    for (std::size_t i = 0; i < 4; ++i) {
      const std::vector<T>* const from[] = {&q, &k, &v, &dy};
      on.write(pointer(i), from[i]->data(), bytes[i]);
    }
  }
  mc::fused_attention_call forward() const {
    return {on_.main_lane(), scratch(), pointer(0), pointer(1), pointer(2), pointer(4), pointer(5)};
  }
  mc::fused_attention_grad_call gradient() const {
    return {on_.main_lane(), scratch(),  pointer(3), pointer(0), pointer(1), pointer(2),
            pointer(4),      pointer(5), pointer(6), pointer(7), pointer(8)};
  }
  std::vector<T> read(const void* from, std::size_t n) const {
    std::vector<T> x(n);
    on_.read(x.data(), static_cast<const std::byte*>(from), static_cast<int64_t>(n * sizeof(T)));
    return x;
  }
  static int64_t of_q(const shape& s) { return s.sequences * s.tokens * s.heads * s.head_dim; }
  static int64_t of_k(const shape& s) { return s.sequences * s.tokens * s.kv_heads * s.head_dim; }

  std::vector<T> q, k, v, dy;

private:
  std::byte* pointer(std::size_t i) const { return data_.data() + at_[i]; }
  std::byte* scratch() const {
    const int64_t delta = s_.sequences * s_.tokens * s_.heads * 4; // of own tiles
    on_.main_lane().reserve({.scratch = std::max(on_.attention()->scratch(s_), delta)});
    return on_.main_lane().scratch();
  }
  mc::cuda& on_;
  shape s_;
  mc::arena data_;
  int64_t at_[9];
};

// An attention by loops in double over the sequences and the heads.
struct reference {
  const shape& s;
  int64_t document; // tokens of each document; 0: a sequence is one
  std::vector<double> q, k, v, dy, o, dq, dk, dv;
  template <class T> reference(const shape& of, const operands<T>& x, int64_t of_document = 0)
      : s(of),
        document(of_document),
        q(wide(x.q)),
        k(wide(x.k)),
        v(wide(x.v)),
        dy(wide(x.dy)),
        o(q.size()),
        dq(q.size()),
        dk(k.size()),
        dv(k.size()) {
    for (int64_t b = 0; b < s.sequences; ++b)
      for (int64_t h = 0; h < s.heads; ++h) head(b, h);
  }

private:
  template <class T> static std::vector<double> wide(const std::vector<T>& x) {
    std::vector<double> y;
    for (T v : x) y.push_back(mc::convert<double>(v));
    return y;
  }
  static double dot(const double* a, const double* b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i) sum += a[i] * b[i];
    return sum;
  }
  static void add(double* to, double factor, const double* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) to[i] += factor * x[i];
  }

  // Adds one head to the gradients of its keys.
  void head(int64_t b, int64_t h) {
    const int64_t d = s.head_dim;
    const double scale = s.score_scale();
    const auto query = [&](std::vector<double>& x, int64_t t) {
      return x.data() + ((b * s.tokens + t) * s.heads + h) * d;
    };
    const auto key = [&](std::vector<double>& x, int64_t t) {
      return x.data() + ((b * s.tokens + t) * s.kv_heads + h / (s.heads / s.kv_heads)) * d;
    };
    for (int64_t t = 0; t < s.tokens; ++t) {
      int64_t first = s.window > 0 ? std::max<int64_t>(t - s.window + 1, 0) : 0;
      if (document > 0) first = std::max(first, t / document * document);
      std::vector<double> p(static_cast<std::size_t>(t + 1));
      const auto of = [&](int64_t j) -> double& { return p[static_cast<std::size_t>(j)]; };
      double top = -std::numeric_limits<double>::infinity(), sum = 0;
      for (int64_t j = first; j <= t; ++j)
        top = std::max(top, of(j) = scale * dot(query(q, t), key(k, j), d));
      for (int64_t j = first; j <= t; ++j) sum += of(j) = std::exp(of(j) - top);
      for (int64_t j = first; j <= t; ++j) add(query(o, t), of(j) /= sum, key(v, j), d);
      const double mean = dot(query(dy, t), query(o, t), d);
      for (int64_t j = first; j <= t; ++j) {
        add(key(dv, j), of(j), query(dy, t), d);
        const double ds = scale * of(j) * (dot(query(dy, t), key(v, j), d) - mean);
        add(query(dq, t), ds, key(k, j), d);
        add(key(dk, j), ds, query(q, t), d);
      }
    }
  }
};

// P and dS are rounded to bf16 before they are multiplied, O before its product with dO, and parts
// of dK and dV of each head before they are added: `roundings` of 2^-8 of the greatest element of
// the array, beside one of its own;
// of fp32 nothing is rounded but sums, by at most 2^-16 of the greatest element here.
template <class T> void compare(const char* name, const std::vector<T>& got,
                                const std::vector<double>& want, double roundings) {
  const double unit = sizeof(T) == 2 ? 0x1p-8 : 0x1p-16;
  double most = 0;
  for (double w : want) most = std::max(most, std::fabs(w));
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double g = mc::convert<double>(got[i]);
    if (std::fabs(g - want[i]) <= unit * (std::fabs(want[i]) + roundings * most)) continue;
    throw mc::error(mc::exit_code::internal, std::string(name) + "[" + std::to_string(i) + "] is " +
                                                 std::to_string(g) + " and should be " +
                                                 std::to_string(want[i]));
  }
}

// Returns a device whose attention is deterministic or not. It multiplies nothing.
std::unique_ptr<mc::cuda> device(bool deterministic) {
  return std::make_unique<mc::cuda>(0, mc::thread_count(), [=](mc::cuda& on) {
    return mc::cuda_libraries{nullptr, std::make_unique<mc::cudnn_attention>(on, deterministic)};
  });
}
// The document numbers of the tokens, for documents of so many tokens each; none if a sequence is
// one document (0).
class numbers_of_documents {
public:
  numbers_of_documents(mc::cuda& on, const shape& s, int64_t document) {
    if (document == 0) return;
    std::vector<std::int32_t> of_token;
    for (int64_t t = 0; t < s.sequences * s.tokens; ++t)
      of_token.push_back(static_cast<std::int32_t>(t % s.tokens / document));
    const auto bytes = static_cast<int64_t>(of_token.size() * sizeof of_token[0]);
    memory_ = mc::arena(on, bytes, "documents", "a smaller micro-batch");
    on.write(memory_.data(), of_token.data(), bytes);
    of.queries = of.keys = reinterpret_cast<const std::int32_t*>(memory_.data());
  }
  mc::attention_documents of;

private:
  mc::arena memory_;
};
// An attention of the library, forward and backward.
class of_library {
public:
  of_library(mc::cuda& on, shape s, int64_t document)
      : documents_(on, s, document),
        forward_(prepared(on, s, document, false)),
        gradient_(prepared(on, s, document, true)) {}
  void operator()(mc::fused_attention_call c) const {
    c.documents = documents_.of, forward_.execute(c);
  }
  void operator()(mc::fused_attention_grad_call c) const {
    c.documents = documents_.of, gradient_.execute(c);
  }

private:
  static const mc::fused_attention& prepared(mc::cuda& on, shape s, int64_t document,
                                             bool gradient) {
    s.gradient = gradient, s.packed = document > 0;
    const mc::fused_attention* const of = on.attention()->prepare(s);
    if (of == nullptr) throw mc::error(mc::exit_code::internal, on.attention()->left().back());
    return *of;
  }
  numbers_of_documents documents_;
  const mc::fused_attention &forward_, &gradient_;
};

// An attention by megacpp's own tiles, forward and backward.
template <class T> class of_tiles {
public:
  of_tiles(mc::cuda& on, const shape& s, int64_t document)
      : n_(s),
        s_{s.tokens, s.tokens, s.heads, s.kv_heads, s.head_dim},
        documents_(on, s, document) {
    see_.scale = s.score_scale(), see_.window = s.window;
    see_.query_document = documents_.of.queries, see_.key_document = documents_.of.keys;
  }
  void operator()(const mc::fused_attention_call& c) const {
    lane(c.on).for_rows(query_tiles(),
                        mc::rows::attention_tile<T>{s_, see_, q(c.q), k(c.k), k(c.v), to_q(c.o),
                                                    static_cast<float*>(c.lse)});
  }
  void operator()(const mc::fused_attention_grad_call& c) const {
    auto* const delta = reinterpret_cast<float*>(c.scratch);
    const auto* const lse = static_cast<const float*>(c.lse);
    lane(c.on).for_rows(query_tiles(), mc::rows::attention_query_grad_tile<T>{
                                           s_, see_, q(c.dy), q(c.q), k(c.k), k(c.v), q(c.o), lse,
                                           delta, to_q(c.dq)});
    lane(c.on).for_rows(
        n_.sequences * n_.kv_heads * mc::rows::attention_tile<T>::tiles(n_.tokens),
        mc::rows::attention_key_grad_tile<T>{s_, see_, q(c.dy), q(c.q), k(c.k), k(c.v), lse, delta,
                                             to_k(c.dk), to_k(c.dv)});
  }

private:
  static mc::cuda_lane& lane(mc::lane& on) { return static_cast<mc::cuda_lane&>(on); }
  int64_t query_tiles() const {
    return n_.sequences * n_.heads * mc::rows::attention_tile<T>::tiles(n_.tokens);
  }
  mc::head_rows<const T> q(const void* at) const {
    return {static_cast<const T*>(at), s_.heads * s_.width};
  }
  mc::head_rows<const T> k(const void* at) const {
    return {static_cast<const T*>(at), s_.kv_heads * s_.width};
  }
  mc::head_rows<T> to_q(void* at) const { return {static_cast<T*>(at), s_.heads * s_.width}; }
  mc::head_rows<T> to_k(void* at) const { return {static_cast<T*>(at), s_.kv_heads * s_.width}; }
  shape n_;
  mc::rows::attention_extents s_;
  numbers_of_documents documents_;
  mc::attention_visibility see_;
};

// Compares an attention with loops in double. The gradient is computed twice if it must have the
// same bits.
template <class T, class Attention>
void check_one(mc::cuda& on, const shape& s, bool same_bits, int64_t document = 0) {
  const operands<T> x(on, s);
  const reference want(s, x, document);
  const Attention of(on, s, document);
  const auto forward = x.forward();
  of(forward);
  compare("o", x.read(forward.o, want.o.size()), want.o, 1);
  std::vector<T> first;
  for (int again = 0; again < 2; ++again) {
    const auto g = x.gradient();
    of(g);
    compare("dq", x.read(g.dq, want.dq.size()), want.dq, 2);
    compare("dk", x.read(g.dk, want.dk.size()), want.dk, 2);
    compare("dv", x.read(g.dv, want.dv.size()), want.dv, 2);
    const auto dq = x.read(g.dq, want.dq.size());
    if (again == 0) first = dq;
    else if (same_bits && std::memcmp(first.data(), dq.data(), dq.size() * sizeof(T)) != 0)
      throw mc::error(mc::exit_code::internal,
                      "the deterministic gradient has other bits the second time");
  }
}
void check(report& r, const std::string& name, shape s) {
  s.gradient = true;
  r.check("attention " + name, [&]() -> figures {
    for (const bool deterministic : {false, true})
      for (const int64_t document : {0, 100})
        check_one<bf16, of_library>(*device(deterministic), s, deterministic, document);
    return {};
  });
  r.check("attention by tiles " + name, [&]() -> figures {
    check_one<bf16, of_tiles<bf16>>(*device(true), s, true);
    check_one<float, of_tiles<float>>(*device(true), s, true);
    check_one<bf16, of_tiles<bf16>>(*device(true), s, true, 100); // documents of 100 tokens
    check_one<float, of_tiles<float>>(*device(true), s, true, 100);
    return {};
  });
}

// Measures an attention. A causal one has half of the scores: forward 2 products of B A T^2 D / 2
// multiplications and additions each, backward 5. For packed documents only the time is told, since
// they have fewer pairs.
template <class T, class Attention> void measure_one(report& r, const std::string& name, shape s,
                                                     bool gradient, bool deterministic,
                                                     int64_t document = 0) {
  r.check(name, [&]() -> figures {
    const auto on = device(deterministic);
    s.gradient = gradient;
    const operands<T> x(*on, s); // larger than the cache
    const Attention of(*on, s, document);
    const auto f = x.forward();
    const auto g = x.gradient();
    of(f);
    mc::cuda_moment begin, end;
    auto& lane = static_cast<mc::cuda_lane&>(on->main_lane());
    const auto run = [&] {
      if (gradient) of(g);
      else of(f);
    };
    run();
    constexpr int calls = 10;
    begin.record(lane.stream());
    for (int i = 0; i < calls; ++i) run();
    end.record(lane.stream());
    lane.finish();
    const double ms = static_cast<double>(end.since(begin)) * 1e-6 / calls;
    const auto n = [](int64_t i) { return static_cast<double>(i); };
    if (document > 0) return {{"ms", ms}};
    const double flops = (gradient ? 5.0 : 2.0) * n(s.sequences * s.tokens) * n(s.heads) *
                         n(s.tokens) * n(s.head_dim);
    return {{"ms", ms},
            {"TFLOP/s", flops / ms / 1e9},
            {"scratch_MiB", n(on->attention()->scratch(s)) / 0x1p20}};
  });
}
// Tells whether the library or the tiles attend to documents of so many tokens faster.
void measure_packed(report& r, const std::string& name, const shape& s, int64_t document) {
  const std::string packed = name + " in documents of " + std::to_string(document);
  for (const bool gradient : {false, true}) {
    const char* const what = gradient ? "backward " : "forward ";
    measure_one<bf16, of_library>(r, std::string("attention ") + what + packed, s, gradient, true,
                                  document);
    measure_one<bf16, of_tiles<bf16>>(r, std::string("attention by tiles ") + what + packed, s,
                                      gradient, true, document);
  }
}
void measure(report& r, const std::string& name, const shape& s) {
  measure_one<bf16, of_library>(r, "attention forward " + name, s, false, true);
  measure_one<bf16, of_library>(r, "attention backward " + name, s, true, false);
  measure_one<bf16, of_library>(r, "attention deterministic backward " + name, s, true, true);
  for (const bool gradient : {false, true}) {
    const std::string what =
        std::string("attention by tiles ") + (gradient ? "backward " : "forward ");
    measure_one<bf16, of_tiles<bf16>>(r, what + name, s, gradient, true);
    if (s.head_dim <= 64) // the largest would take seconds
      measure_one<float, of_tiles<float>>(r, what + "fp32 " + name, s, gradient, true);
  }
}

} // namespace

std::string attention_library() { return mc::dotted_version(cudnnGetVersion()); }

void attention(report& r) {
  check(r, "of heads of 64", {2, 256, 4, 4, 64});
  check(r, "of grouped heads of 128", {1, 384, 8, 2, 128});
  check(r, "of a window", {2, 320, 4, 2, 64, 100});
  check(r, "of an odd length", {3, 257, 2, 2, 64});
  measure(r, "gpt2-124m", {32, 1024, 12, 12, 64});
  measure(r, "qwen3-8b", {4, 4096, 32, 8, 128});
  measure(r, "qwen3-30b-a3b", {2, 4096, 32, 4, 128});
  for (const int64_t document : {2048, 512, 128})
    measure_packed(r, "qwen3-8b", {4, 4096, 32, 8, 128}, document);
}

} // namespace gpu
