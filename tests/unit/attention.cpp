// Attention against its definition in double, for every kind of mask and shape; the same bits for
// any number of threads and for constant extents.
#define BOOST_TEST_MODULE attention
#include <boost/test/unit_test.hpp>

#include <megacpp/kernel/attention.hpp>
#include <megacpp/num/extent.hpp>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace {

const mc::cores host;

using mc::bf16;
using std::int64_t;

// Numbers of a linear congruential sequence in [-1, 1).
struct numbers {
  std::uint64_t state;
  double next() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return static_cast<double>(static_cast<std::int64_t>(state) >> 11) * 0x1p-52;
  }
  int below(int n) { return static_cast<int>((next() * 0.5 + 0.5) * n); }
};

/// Where queries and keys stand: as their indices say; anywhere; the last first; as one of two
/// ranks of a balanced order holds them, which has the first and the last quarter of the keys.
enum class order { natural, any, reversed, balanced };

struct problem {
  std::string name;
  int64_t b, sq, sk, heads, kv_heads, dim;
  bool causal = true;
  int64_t window = 0;
  int64_t gap = 0;       // unused elements between tokens
  int64_t documents = 0; // 1: of 1 to 40 tokens; n > 1: two, changing every n keys, queries of one
  order positions = order::natural;
};

struct marks {
  std::vector<std::int32_t> q_position, k_position, q_document, k_document;
};

marks marks_of(const problem& p) {
  marks m;
  numbers r{42};
  if (p.documents == 1) {
    // Queries are the last of the keys; documents of 1 to 40 tokens.
    for (int64_t b = 0; b < p.b; ++b) {
      std::vector<std::int32_t> all;
      std::int32_t id = 3;
      const int64_t n = std::max(p.sq, p.sk);
      while (static_cast<int64_t>(all.size()) < n) {
        for (int i = r.below(40); i >= 0; --i) all.push_back(id);
        ++id;
      }
      all.resize(static_cast<std::size_t>(n));
      m.k_document.insert(m.k_document.end(), all.begin(), all.begin() + p.sk);
      m.q_document.insert(m.q_document.end(), all.end() - p.sq, all.end());
    }
  }
  if (p.documents > 1) {
    m.q_document.assign(static_cast<std::size_t>(p.b * p.sq), 0);
    for (int64_t i = 0; i < p.b * p.sk; ++i)
      m.k_document.push_back(static_cast<std::int32_t>(i % p.sk / p.documents % 2));
  }
  const auto number = [](int64_t n) { return static_cast<std::int32_t>(n); };
  switch (p.positions) {
  case order::natural: break;
  case order::any: // some queries see no key, some keys are seen by no query
    for (int64_t i = 0; i < p.b * p.sq; ++i)
      m.q_position.push_back(r.below(static_cast<int>(p.sk + p.sq)) - 5);
    for (int64_t i = 0; i < p.b * p.sk; ++i)
      m.k_position.push_back(r.below(static_cast<int>(p.sk + p.sq)));
    break;
  case order::reversed:
    for (int64_t i = 0; i < p.b * p.sq; ++i) m.q_position.push_back(number(p.sq - 1 - i % p.sq));
    for (int64_t i = 0; i < p.b * p.sk; ++i) m.k_position.push_back(number(p.sk - 1 - i % p.sk));
    break;
  case order::balanced: {
    const int64_t n = p.sk / 4; // stored: quarters 0 and 3, then 1 and 2
    const auto stands = [&](int64_t i) {
      return number(std::array<int64_t, 4>{0, 3, 1, 2}[static_cast<std::size_t>(i / n)] * n +
                    i % n);
    };
    for (int64_t i = 0; i < p.b * p.sq; ++i) m.q_position.push_back(stands(i % p.sq));
    for (int64_t i = 0; i < p.b * p.sk; ++i) m.k_position.push_back(stands(i % p.sk));
    break;
  }
  }
  return m;
}

mc::attention_visibility options_of(const problem& p, const marks& m) {
  mc::attention_visibility o;
  o.scale = 1 / std::sqrt(static_cast<double>(p.dim));
  o.causal = p.causal;
  o.window = p.window;
  if (p.documents > 0) o.query_document = m.q_document.data(), o.key_document = m.k_document.data();
  if (p.positions != order::natural)
    o.query_position = m.q_position.data(), o.key_position = m.k_position.data();
  return o;
}

bool sees(const problem& p, const marks& m, int64_t b, int64_t i, int64_t j) {
  const auto at = [](const std::vector<std::int32_t>& x, int64_t n) {
    return x[static_cast<std::size_t>(n)];
  };
  const int64_t qp = !m.q_position.empty() ? at(m.q_position, b * p.sq + i)
                                           : i + std::max<int64_t>(p.sk - p.sq, 0);
  const int64_t kp = !m.k_position.empty() ? at(m.k_position, b * p.sk + j) : j;
  if ((p.causal || p.window > 0) && kp > qp) return false;
  if (p.window > 0 && kp <= qp - p.window) return false;
  return p.documents == 0 || at(m.q_document, b * p.sq + i) == at(m.k_document, b * p.sk + j);
}

// One array exactly as long as it may be touched, so that a sanitizer sees the first step outside.
template <class T> struct tokens {
  int64_t stride, count;
  std::unique_ptr<T[]> data;
  tokens(int64_t n, int64_t width, int64_t gap)
      : stride(width + gap),
        count(n == 0 ? 0 : (n - 1) * stride + width),
        data(new T[static_cast<std::size_t>(count)]) {
    for (int64_t i = 0; i < count; ++i) data[static_cast<std::size_t>(i)] = mc::convert<T>(7.5f);
  }
  void fill(std::uint64_t seed) {
    numbers r{seed};
    for (int64_t i = 0; i < count; ++i)
      data[static_cast<std::size_t>(i)] = mc::convert<T>(2 * r.next());
  }
  mc::head_rows<T> rows() const { return {data.get(), stride}; }
  double at(int64_t token, int64_t i) const {
    return mc::convert<double>(data[static_cast<std::size_t>(token * stride + i)]);
  }
};

template <class T> struct result {
  using G = mc::accumulator_t<T>;
  tokens<T> o, dq, dk, dv;
  std::vector<G> lse;
  result(const problem& p)
      : o(p.b * p.sq, p.heads * p.dim, p.gap),
        dq(p.b * p.sq, p.heads * p.dim, p.gap),
        dk(p.b * p.sk, p.kv_heads * p.dim, p.gap),
        dv(p.b * p.sk, p.kv_heads * p.dim, p.gap),
        lse(static_cast<std::size_t>(p.b * p.heads * p.sq), G(9)) {}
};

template <class T> struct inputs {
  tokens<T> q, k, v, dout;
  inputs(const problem& p)
      : q(p.b * p.sq, p.heads * p.dim, p.gap),
        k(p.b * p.sk, p.kv_heads * p.dim, p.gap),
        v(p.b * p.sk, p.kv_heads * p.dim, p.gap),
        dout(p.b * p.sq, p.heads * p.dim, p.gap) {
    q.fill(1), k.fill(2), v.fill(3), dout.fill(4);
  }
};

template <class T, class Shape> void run(const Shape& shape, const mc::attention_visibility& o,
                                         const inputs<T>& x, result<T>& y, int threads) {
  const auto scratch = [&](int64_t n) {
    return std::make_unique<std::byte[]>(static_cast<std::size_t>(n));
  };
  auto memory = scratch(mc::attention_forward_bytes<T>(shape, threads));
  mc::attention_forward<T>(shape, o, x.q.rows(), x.k.rows(), x.v.rows(), y.o.rows(), y.lse.data(),
                           {memory.get(), threads, host});
  memory = scratch(mc::attention_backward_bytes<T>(shape, threads));
  mc::attention_backward<T>(shape, o, x.dout.rows(), x.q.rows(), x.k.rows(), x.v.rows(), y.o.rows(),
                            y.lse.data(), y.dq.rows(), y.dk.rows(), y.dv.rows(),
                            {memory.get(), threads, host});
}

mc::attention_shape<> shape_of(const problem& p) {
  return {p.b, p.sq, p.sk, p.heads, p.kv_heads, p.dim};
}

struct expected {
  std::vector<double> o, lse, dq, dk, dv; // densely packed
};

// The definition: whole rows of scores, gradients of the softmax written out.
template <class T> expected reference(const problem& p, const marks& m, const inputs<T>& x) {
  const int64_t hd = p.heads * p.dim, kd = p.kv_heads * p.dim;
  const auto zeros = [](int64_t n) { return std::vector<double>(static_cast<std::size_t>(n)); };
  expected e{zeros(p.b * p.sq * hd), zeros(p.b * p.heads * p.sq), zeros(p.b * p.sq * hd),
             zeros(p.b * p.sk * kd), zeros(p.b * p.sk * kd)};
  const auto ref = [](std::vector<double>& v, int64_t i) -> double& {
    return v[static_cast<std::size_t>(i)];
  };
  const double scale = 1 / std::sqrt(static_cast<double>(p.dim));
  for (int64_t b = 0; b < p.b; ++b)
    for (int64_t a = 0; a < p.heads; ++a)
      for (int64_t i = 0; i < p.sq; ++i) {
        const int64_t qt = b * p.sq + i, kv = a / (p.heads / p.kv_heads);
        auto s = zeros(p.sk), dp = zeros(p.sk);
        double top = -std::numeric_limits<double>::infinity();
        for (int64_t j = 0; j < p.sk; ++j) {
          for (int64_t d = 0; d < p.dim; ++d) {
            ref(s, j) += scale * x.q.at(qt, a * p.dim + d) * x.k.at(b * p.sk + j, kv * p.dim + d);
            ref(dp, j) += x.dout.at(qt, a * p.dim + d) * x.v.at(b * p.sk + j, kv * p.dim + d);
          }
          if (!sees(p, m, b, i, j)) ref(s, j) = -std::numeric_limits<double>::infinity();
          top = std::max(top, ref(s, j));
        }
        double sum = 0, delta = 0;
        for (int64_t j = 0; j < p.sk; ++j)
          if (sees(p, m, b, i, j)) sum += std::exp(ref(s, j) - top);
        ref(e.lse, (b * p.heads + a) * p.sq + i) = sum == 0 ? top : top + std::log(sum);
        for (int64_t j = 0; j < p.sk; ++j) {
          ref(s, j) = sees(p, m, b, i, j) ? std::exp(ref(s, j) - top) / sum : 0;
          delta += ref(s, j) * ref(dp, j);
        }
        for (int64_t j = 0; j < p.sk; ++j)
          for (int64_t d = 0; d < p.dim; ++d) {
            const int64_t qi = qt * hd + a * p.dim + d, ki = (b * p.sk + j) * kd + kv * p.dim + d;
            const double ds = scale * ref(s, j) * (ref(dp, j) - delta);
            ref(e.o, qi) += ref(s, j) * x.v.at(b * p.sk + j, kv * p.dim + d);
            ref(e.dq, qi) += ds * x.k.at(b * p.sk + j, kv * p.dim + d);
            ref(e.dk, ki) += ds * x.q.at(qt, a * p.dim + d);
            ref(e.dv, ki) += ref(s, j) * x.dout.at(qt, a * p.dim + d);
          }
      }
  return e;
}

template <class T> void compare(const char* what, const problem& p, const tokens<T>& got,
                                const std::vector<double>& want, int64_t n, int64_t width,
                                double bound) {
  double top = 0, worst = 0;
  for (const double x : want) top = std::max(top, std::abs(x));
  bool finite = true, gaps = true;
  for (int64_t t = 0; t < n; ++t) {
    for (int64_t i = 0; i < width; ++i) {
      const double g = got.at(t, i);
      finite = finite && std::isfinite(g);
      worst = std::max(worst, std::abs(g - want[static_cast<std::size_t>(t * width + i)]));
    }
    for (int64_t i = width; i < got.stride && t + 1 < n; ++i) gaps = gaps && got.at(t, i) == 7.5;
  }
  BOOST_TEST(finite, p.name << ": " << what << " has elements that are not finite");
  BOOST_TEST(gaps, p.name << ": " << what << " was written between tokens");
  // With one key seen, dq and dk are zero but for rounding.
  BOOST_TEST(worst <= bound * (top > 1e-9 ? top : 1.0),
             p.name << ": " << what << " is off by " << worst << " of " << top);
}

template <class T> void check(const problem& p, double bound) {
  const marks m = marks_of(p);
  const auto o = options_of(p, m);
  const inputs<T> x(p);
  result<T> y(p);
  run(shape_of(p), o, x, y, 1);
  const expected e = reference(p, m, x);
  compare("o", p, y.o, e.o, p.b * p.sq, p.heads * p.dim, bound);
  compare("dq", p, y.dq, e.dq, p.b * p.sq, p.heads * p.dim, bound);
  compare("dk", p, y.dk, e.dk, p.b * p.sk, p.kv_heads * p.dim, bound);
  compare("dv", p, y.dv, e.dv, p.b * p.sk, p.kv_heads * p.dim, bound);
  // The statistics are held in G: bf16 inputs do not widen their error.
  const double lse_bound = sizeof(mc::accumulator_t<T>) == 8 ? 1e-13 : 2e-6;
  for (std::size_t i = 0; i < e.lse.size(); ++i) {
    if (std::isinf(e.lse[i])) BOOST_TEST(y.lse[i] == e.lse[i]);
    else if (!(std::abs(y.lse[i] - e.lse[i]) <= lse_bound * std::max(1.0, std::abs(e.lse[i]))))
      BOOST_ERROR(p.name << ": lse " << i << " is " << y.lse[i] << ", not " << e.lse[i]);
  }
}

std::vector<problem> problems() {
  std::vector<problem> all;
  for (const int64_t n : {1, 2, 17, 63, 64, 65, 130})
    for (const bool causal : {true, false})
      all.push_back(
          {"length " + std::to_string(n) + (causal ? " causal" : ""), 2, n, n, 2, 2, 32, causal});
  for (const int64_t d : {1, 5, 20, 64, 80, 128})
    all.push_back({"head dim " + std::to_string(d), 1, 70, 70, 2, 1, d});
  all.push_back({"GQA", 2, 90, 90, 6, 2, 24, true, 0, 3});
  all.push_back({"MQA", 1, 130, 130, 4, 1, 16, true, 0, 1});
  for (const int64_t w : {1, 7, 64, 100})
    all.push_back({"window " + std::to_string(w), 1, 200, 200, 2, 2, 16, true, w});
  all.push_back({"last 3 of 150", 2, 3, 150, 2, 1, 16});
  all.push_back({"last 100 of 164, window", 1, 100, 164, 2, 2, 16, true, 33});
  all.push_back({"one query, all keys", 2, 1, 129, 4, 2, 64, false});
  all.push_back({"more queries than keys", 1, 90, 20, 2, 2, 8, false});
  all.push_back({"documents", 2, 180, 180, 4, 2, 16, true, 0, 0, 1});
  all.push_back({"documents, not causal", 1, 140, 140, 2, 2, 16, false, 0, 0, 1});
  all.push_back({"documents, window, last 77", 2, 77, 170, 2, 1, 16, true, 9, 5, 1});
  all.push_back({"positions", 2, 110, 110, 2, 1, 16, true, 0, 0, 0, order::any});
  all.push_back({"positions, window, documents", 2, 75, 140, 2, 2, 20, true, 30, 2, 1, order::any});
  all.push_back({"the last first, window", 2, 150, 150, 2, 1, 16, true, 20, 0, 0, order::reversed});
  all.push_back({"balanced order", 2, 100, 200, 2, 1, 16, true, 0, 0, 0, order::balanced});
  all.push_back({"balanced order, window", 1, 160, 320, 2, 2, 16, true, 9, 3, 0, order::balanced});
  all.push_back({"every other 16 keys", 2, 70, 150, 2, 1, 16, false, 0, 0, 16});
  all.push_back({"every other 16 keys, causal", 1, 130, 130, 2, 2, 8, true, 0, 0, 16});
  return all;
}

bool same(const void* a, const void* b, std::size_t n) { return std::memcmp(a, b, n) == 0; }

template <class T> bool same_bits(const result<T>& a, const result<T>& b) {
  const auto rows = [](const tokens<T>& x, const tokens<T>& y) {
    return same(x.data.get(), y.data.get(), static_cast<std::size_t>(x.count) * sizeof(T));
  };
  return rows(a.o, b.o) && rows(a.dq, b.dq) && rows(a.dk, b.dk) && rows(a.dv, b.dv) &&
         same(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(a.lse[0]));
}

template <class T> void check_threads() {
  for (const problem& p : problems()) {
    const marks m = marks_of(p);
    const inputs<T> x(p);
    result<T> one(p);
    run(shape_of(p), options_of(p, m), x, one, 1);
    for (const int threads : {2, 5, 64}) { // 5 and 64 take the two passes
      result<T> more(p);
      run(shape_of(p), options_of(p, m), x, more, threads);
      BOOST_TEST(same_bits(one, more), p.name << ": other bits with " << threads << " threads");
    }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(definition_in_double) {
  for (const problem& p : problems()) check<double>(p, 1e-13);
}

BOOST_AUTO_TEST_CASE(definition_in_float) {
  for (const problem& p : problems()) check<float>(p, 3e-6);
}

// One rounding of the result to 8 bits, and of o where delta is formed from it.
BOOST_AUTO_TEST_CASE(definition_in_bf16) {
  for (const problem& p : problems()) check<bf16>(p, 1.2e-2);
}

BOOST_AUTO_TEST_CASE(any_number_of_threads) {
  check_threads<float>();
  check_threads<bf16>();
  check_threads<double>();
}

// The bits of a query are those it has alone, with the keys up to its own position and no others;
// keys beyond the last query may hold anything.
template <class T> void check_alone(const problem& p) {
  const int64_t spare = 21;
  problem wide = p;
  wide.sk = p.sk + spare;
  inputs<T> x(p);
  inputs<T> y(wide);
  for (int64_t b = 0; b < p.b; ++b)
    for (int64_t j = 0; j < wide.sk * p.kv_heads * p.dim; ++j) {
      const int64_t width = p.kv_heads * p.dim;
      const auto to = static_cast<std::size_t>(b * wide.sk * width + j);
      const auto from = static_cast<std::size_t>(b * p.sk * width + j);
      const bool there = j < p.sk * width;
      y.k.data[to] = there ? x.k.data[from] : mc::convert<T>(NAN);
      y.v.data[to] = there ? x.v.data[from] : mc::convert<T>(NAN);
    }
  std::vector<std::int32_t> positions;
  for (int64_t i = 0; i < p.b * p.sq; ++i)
    positions.push_back(static_cast<std::int32_t>(p.sk - p.sq + i % p.sq));
  auto o = options_of(p, {});
  o.query_position = positions.data();
  const auto memory = std::make_unique<std::byte[]>(
      static_cast<std::size_t>(mc::attention_forward_bytes<T>(shape_of(wide), 1)));
  result<T> all(p);
  mc::attention_forward<T>(shape_of(wide), o, x.q.rows(), y.k.rows(), y.v.rows(), all.o.rows(),
                           nullptr, {memory.get(), 1, host});
  const int64_t heads = p.heads * p.dim, width = p.kv_heads * p.dim;
  std::vector<T> out(static_cast<std::size_t>(heads));
  for (int64_t b = 0; b < p.b; ++b)
    for (int64_t i = 0; i < p.sq; ++i) {
      const int64_t keys = p.sk - p.sq + i + 1;
      mc::attention_forward<T>(
          mc::attention_shape<>{1, 1, keys, p.heads, p.kv_heads, p.dim}, options_of(p, {}),
          {x.q.data.get() + (b * p.sq + i) * heads, heads},
          {x.k.data.get() + b * p.sk * width, width}, {x.v.data.get() + b * p.sk * width, width},
          mc::head_rows<T>{out.data(), heads}, nullptr, {memory.get(), 1, host});
      BOOST_TEST(same(out.data(), all.o.data.get() + (b * p.sq + i) * heads,
                      static_cast<std::size_t>(heads) * sizeof(T)),
                 p.name << ": other bits of query " << i << " of " << b);
    }
}

BOOST_AUTO_TEST_CASE(a_query_does_not_depend_on_others_nor_on_keys_it_does_not_see) {
  for (const problem& p :
       {problem{"whole", 2, 150, 150, 4, 2, 20}, problem{"window", 2, 131, 131, 2, 1, 16, true, 37},
        problem{"last 9", 3, 9, 77, 2, 2, 33},
        problem{"last 1, window", 2, 1, 66, 2, 1, 8, true, 3}}) {
    check_alone<float>(p);
    check_alone<bf16>(p);
    check_alone<double>(p);
  }
}

// Places that count need not be read: without them, and with all of a sequence here, forward and
// backward pass have the same bits.
template <class T> void check_counted(const problem& p, int threads) {
  const inputs<T> x(p);
  std::vector<std::int32_t> places;
  for (int64_t i = 0; i < p.b * p.sq; ++i) places.push_back(static_cast<std::int32_t>(i % p.sq));
  const marks m = marks_of(p);
  mc::attention_visibility read = options_of(p, m);
  read.query_position = read.key_position = places.data();
  result<T> counted(p), with(p);
  run(shape_of(p), options_of(p, m), x, counted, threads);
  run(shape_of(p), read, x, with, threads);
  const auto alike = [&](const tokens<T>& a, const tokens<T>& b) {
    return same(a.data.get(), b.data.get(), static_cast<std::size_t>(a.count) * sizeof(T));
  };
  BOOST_TEST(alike(counted.o, with.o), p.name);
  BOOST_TEST(alike(counted.dq, with.dq), p.name);
  BOOST_TEST(alike(counted.dk, with.dk), p.name);
  BOOST_TEST(alike(counted.dv, with.dv), p.name);
  BOOST_TEST((counted.lse == with.lse), p.name);
}

BOOST_AUTO_TEST_CASE(places_that_count_need_not_be_read) {
  for (const problem& p :
       {problem{"whole", 2, 150, 150, 4, 2, 20}, problem{"window", 2, 131, 131, 2, 1, 16, true, 37},
        problem{"documents", 2, 200, 200, 2, 2, 8, true, 0, 0, 1},
        problem{"documents, window", 1, 200, 200, 4, 1, 24, true, 19, 0, 1},
        problem{"both ways", 2, 90, 90, 2, 1, 16, false}})
    for (const int threads : {1, 3}) {
      check_counted<float>(p, threads);
      check_counted<bf16>(p, threads);
      check_counted<double>(p, threads);
    }
}

BOOST_AUTO_TEST_CASE(constant_extents) {
  const problem p{"constants", 2, 65, 65, 4, 2, 20};
  const marks m;
  const inputs<float> x(p);
  result<float> numbers(p), constants(p);
  run(shape_of(p), options_of(p, m), x, numbers, 1);
  const mc::attention_shape shape{mc::fixed<2>{}, std::int64_t{65}, mc::fixed<65>{},
                                  mc::fixed<4>{}, mc::fixed<2>{},   mc::fixed<20>{}};
  run(shape, options_of(p, m), x, constants, 1);
  BOOST_TEST(same_bits(numbers, constants));
  static_assert(mc::attention_backward_bytes<float>(
                    mc::attention_shape{mc::fixed<2>{}, mc::fixed<65>{}, mc::fixed<65>{},
                                        mc::fixed<4>{}, mc::fixed<2>{}, mc::fixed<20>{}},
                    2) < (1 << 20));
}

// A query whose position stands before every key, and documents that share no key.
BOOST_AUTO_TEST_CASE(nothing_seen) {
  const problem p{"nothing", 1, 70, 70, 1, 1, 8};
  const std::vector<std::int32_t> zero(70, 0), one(70, 1);
  mc::attention_visibility o;
  o.query_document = zero.data(), o.key_document = one.data();
  const inputs<float> x(p);
  result<float> y(p);
  run(shape_of(p), o, x, y, 2);
  for (const float l : y.lse) BOOST_TEST(l == -std::numeric_limits<float>::infinity());
  for (int64_t i = 0; i < y.o.count; ++i) {
    const auto n = static_cast<std::size_t>(i);
    BOOST_TEST((y.o.data[n] == 0 && y.dq.data[n] == 0 && y.dk.data[n] == 0 && y.dv.data[n] == 0));
  }
}

// Scores of thousands: the softmax of such a row is one key, and nothing overflows.
BOOST_AUTO_TEST_CASE(large_scores) {
  const problem p{"large", 1, 40, 40, 1, 1, 16};
  inputs<float> x(p);
  for (int64_t i = 0; i < x.q.count; ++i) x.q.data[static_cast<std::size_t>(i)] *= 1000;
  const marks m;
  result<float> y(p);
  run(shape_of(p), options_of(p, m), x, y, 1);
  compare("o", p, y.o, reference(p, m, x).o, p.sq, p.dim, 1e-3);
}

BOOST_AUTO_TEST_CASE(a_nan_is_not_hidden) {
  const problem p{"nan", 1, 20, 20, 1, 1, 16};
  inputs<float> x(p);
  x.k.data[0] = std::numeric_limits<float>::quiet_NaN();
  result<float> y(p);
  run(shape_of(p), options_of(p, {}), x, y, 1);
  BOOST_TEST(std::isnan(y.lse[19]));
  BOOST_TEST(std::isnan(y.o.data[19 * 16]));
}
