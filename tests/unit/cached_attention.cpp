// The op and kernel of op/cached_attention.hpp against its definition in double: what is kept, what
// is seen, and that neither padding nor a slot that nobody wrote is.
#define BOOST_TEST_MODULE cached_attention
#include <boost/test/unit_test.hpp>

#include <megacpp/graph/letters.hpp>
#include <megacpp/nn/attention.hpp>
#include <megacpp/product/cpu_products.hpp>

#include <cmath>
#include <limits>

#include <kernels.hpp>

using namespace mc;
using std::int64_t;

namespace {

struct sizes {
  int64_t batch, tokens, room, heads, kv_heads, dim;
  int64_t window = 0;
  double scale = 0;
};

double number(int64_t i, int salt) {
  return std::sin(0.61 * static_cast<double>(i) + 1.7 * salt) *
         (1 + 0.3 * (static_cast<int>(i % 7)));
}

/// One node, as a layer makes it.
template <class T> struct one_op {
  sizes s;
  interpreted_part<cpu> part;
  cpu device{product_type::widened, 2};
  std::vector<T> keys, values;

  explicit one_op(const sizes& z) : s(z), part(graph_of(z), 0, kernel_table<cpu>::all()) {
    // A NaN in every slot: nobody has written any.
    const auto nan = convert<T>(std::numeric_limits<float>::quiet_NaN());
    keys.assign(static_cast<std::size_t>(s.batch * s.room * s.kv_heads * s.dim), nan);
    values = keys;
  }
  static graph graph_of(const sizes& z) {
    builder b{mesh(layout{})};
    const extent B{dim::batch, z.batch}, S{dim::sequence, z.tokens}, A{dim::heads, z.heads},
        K{dim::kv_heads, z.kv_heads}, D{dim::head_dim, z.dim};
    context c;
    c.b = &b, c.precision = dtype_of<T>, c.room = z.room;
    c.slots = b.integers(feed::slots, integer_kind::slots, "slots", {B, S}, {}, z.room);
    const var q = b.input(feed::tokens, "q", c.precision.activation, {B, S, A, D}, {}),
              k = b.input(feed::labels, "k", c.precision.activation, {B, S, K, D}, {}),
              v = b.input(feed::documents, "v", c.precision.activation, {B, S, K, D}, {});
    attention_options o;
    o.window = z.window, o.scale = z.scale;
    b.g.outputs[0] = context_parallel_attention(c, q, k, v, o).id;
    return b.g;
  }
  std::vector<T> run(const std::vector<T>& q, const std::vector<T>& k, const std::vector<T>& v,
                     const std::vector<std::int32_t>& slots) {
    std::vector<prepared_node> prepared(1);
    part.view().prepare(part.view(), device, prepared.data(), true);
    std::vector<T> out(q.size(), convert<T>(7.5f));
    lane& on = device.main_lane();
    on.reserve({.scratch = part.view().scratch_bytes(part.view(), device, true)});
    frame f;
    f.on = &on;
    input_addresses in(part.g);
    in.set(feed::tokens, q.data()), in.set(feed::labels, k.data());
    in.set(feed::documents, v.data()), in.set(feed::slots, slots.data());
    in.set(feed::key_cache, keys.data()), in.set(feed::value_cache, values.data());
    f.input = in.data();
    f.base[static_cast<unsigned>(space::stream_out)] = reinterpret_cast<std::byte*>(out.data());
    part.view().run(part.view(), phase::forward, device, f, prepared.data());
    return out;
  }
};

template <class T> std::vector<T> numbers(int64_t n, int salt) {
  std::vector<T> x;
  for (int64_t i = 0; i < n; ++i) x.push_back(convert<T>(number(i, salt)));
  return x;
}

/// Steps of new tokens, `lengths[step][sequence]` of at most s.tokens each, against whole texts
/// kept beside, in double.
template <class T>
void check(const sizes& s, const std::vector<std::vector<int>>& lengths, double bound) {
  one_op<T> op(s);
  const int64_t q_width = s.heads * s.dim, k_width = s.kv_heads * s.dim;
  std::vector<std::vector<double>> keys(static_cast<std::size_t>(s.batch)), values = keys;
  int salt = 0;
  for (const std::vector<int>& now : lengths) {
    ++salt;
    const auto q = numbers<T>(s.batch * s.tokens * q_width, salt);
    const auto k = numbers<T>(s.batch * s.tokens * k_width, salt + 50);
    const auto v = numbers<T>(s.batch * s.tokens * k_width, salt + 90);
    std::vector<std::int32_t> slots;
    for (int64_t b = 0; b < s.batch; ++b) {
      auto& mine = keys[static_cast<std::size_t>(b)];
      const int64_t had = std::ssize(mine) / k_width, n = now[static_cast<std::size_t>(b)];
      for (int64_t i = 0; i < s.tokens; ++i)
        slots.push_back(i < n ? static_cast<std::int32_t>(had + i) : -1);
      for (int64_t i = 0; i < n * k_width; ++i) {
        const auto at = static_cast<std::size_t>(b * s.tokens * k_width + i);
        mine.push_back(convert<double>(k[at]));
        values[static_cast<std::size_t>(b)].push_back(convert<double>(v[at]));
      }
    }
    const auto o = op.run(q, k, v, slots);
    double worst = 0, top = 0;
    for (int64_t b = 0; b < s.batch; ++b)
      for (int64_t i = 0; i < s.tokens; ++i) {
        const int64_t slot = slots[static_cast<std::size_t>(b * s.tokens + i)];
        for (int64_t a = 0; a < s.heads; ++a) {
          const int64_t row = ((b * s.tokens + i) * s.heads + a) * s.dim;
          const int64_t head = a / (s.heads / s.kv_heads) * s.dim;
          const int64_t first = s.window > 0 ? std::max<int64_t>(slot - s.window + 1, 0) : 0;
          const double scale = s.scale != 0 ? s.scale : 1 / std::sqrt(static_cast<double>(s.dim));
          std::vector<double> want(static_cast<std::size_t>(s.dim)), score;
          double highest = -INFINITY, sum = 0;
          for (int64_t j = first; j <= slot; ++j) {
            double x = 0;
            for (int64_t d = 0; d < s.dim; ++d)
              x += scale * convert<double>(q[static_cast<std::size_t>(row + d)]) *
                   keys[static_cast<std::size_t>(b)]
                       [static_cast<std::size_t>(j * k_width + head + d)];
            score.push_back(x), highest = std::max(highest, x);
          }
          for (double& x : score) sum += x = std::exp(x - highest);
          for (int64_t j = first; j <= slot; ++j)
            for (int64_t d = 0; d < s.dim; ++d)
              want[static_cast<std::size_t>(d)] +=
                  score[static_cast<std::size_t>(j - first)] / sum *
                  values[static_cast<std::size_t>(b)]
                        [static_cast<std::size_t>(j * k_width + head + d)];
          for (int64_t d = 0; d < s.dim; ++d) {
            const double got = convert<double>(o[static_cast<std::size_t>(row + d)]);
            const double error = std::abs(got - want[static_cast<std::size_t>(d)]);
            worst = std::max(worst, error == error ? error : INFINITY);
            top = std::max(top, std::abs(want[static_cast<std::size_t>(d)]));
          }
        }
      }
    BOOST_TEST(worst <= bound * top, "step " << salt << " is off by " << worst << " of " << top);
  }
  // Each kept key and value lies in its slot; slots beyond hold what they held.
  for (int64_t b = 0; b < s.batch; ++b)
    for (int64_t j = 0; j < s.room * k_width; ++j) {
      const auto& mine = keys[static_cast<std::size_t>(b)];
      const double kept =
          convert<double>(op.keys[static_cast<std::size_t>(b * s.room * k_width + j)]);
      if (j < std::ssize(mine)) BOOST_TEST(kept == mine[static_cast<std::size_t>(j)]);
      else BOOST_TEST(std::isnan(kept));
    }
}
template <class T> void check_all(double bound) {
  check<T>({1, 1, 1, 1, 1, 1}, {{1}}, bound);
  check<T>({1, 1, 9, 2, 1, 8}, {{1}, {1}, {1}}, bound);
  check<T>({2, 5, 40, 6, 2, 20}, {{5, 1}, {0, 3}, {2, 5}, {1, 1}, {0, 0}}, bound);
  check<T>({3, 70, 200, 4, 4, 16}, {{70, 1, 33}, {70, 64, 2}, {1, 70, 0}}, bound);
  check<T>({2, 9, 50, 2, 1, 33, 7}, {{9, 2}, {1, 9}, {9, 1}, {0, 9}}, bound);
  check<T>({2, 66, 150, 2, 2, 8, 65, 0.3}, {{66, 5}, {66, 60}, {3, 0}}, bound);
  check<T>({1, 3, 6, 2, 1, 64, 1}, {{3}, {3}}, bound);
}

} // namespace

BOOST_AUTO_TEST_CASE(definition_in_double) { check_all<double>(1e-13); }
BOOST_AUTO_TEST_CASE(definition_in_float) { check_all<float>(3e-6); }
BOOST_AUTO_TEST_CASE(definition_in_bf16) { check_all<bf16>(1.2e-2); }

namespace {
/// The fault of one node whose operands are changed by f.
template <class F> fault wrong(const layout& l, F f) {
  builder b{mesh(l)};
  std::array<value, 6> x;
  const extent B{dim::batch, 2}, S{dim::sequence, 4}, C{dim::sequence, 16}, A{dim::heads, 4},
      K{dim::kv_heads, 2}, D{dim::head_dim, 8};
  const std::array<std::array<extent, 4>, 6> dims{
      {{B, S, A, D}, {B, S, K, D}, {B, S, K, D}, {B, C, K, D}, {B, C, K, D}, {B, S}}};
  for (unsigned i = 0; i < 6; ++i) {
    x[i].is = role::input, x[i].rank = i == 5 ? 2 : 4;
    std::ranges::copy(dims[i], x[i].dims);
    if (i == 5) x[i].type = dtype::i32, x[i].holds = integer_kind::slots, x[i].below = C.n;
    if (i < 5 && l.tp > 1) x[i].at[axis::tp] = mc::S(i == 0 ? dim::heads : dim::kv_heads);
  }
  attention_options o;
  f(x, o);
  std::array<var, 6> v;
  for (unsigned i = 0; i < 6; ++i) v[i] = {&b, b.add(x[i], 0)};
  cached_attention(v[0], v[1], v[2], v[3], v[4], v[5], o, 1);
  return b.g.wrong.code;
}
using values_of = std::array<value, 6>;
} // namespace

BOOST_AUTO_TEST_CASE(operands_that_do_not_fit_are_refused) {
  const auto nothing = [](values_of&, attention_options&) {};
  BOOST_TEST((wrong({}, nothing) == fault::none));
  BOOST_TEST((wrong({.tp = 2}, nothing) == fault::none));
  const auto at = [](unsigned i, auto change) {
    return [=](values_of& x, attention_options&) { change(x[i]); };
  };
  BOOST_TEST((wrong({}, at(4, [](value& v) { v.dims[1].n = 17; })) == fault::S002));
  BOOST_TEST((wrong({}, at(3, [](value& v) { v.type = dtype::bf16; })) == fault::S007));
  BOOST_TEST((wrong({}, at(5, [](value& v) { v.dims[1].n = 5; })) == fault::S002));
  BOOST_TEST((wrong({}, at(0, [](value& v) { v.dims[1].n = 5; })) == fault::S002));
  BOOST_TEST((wrong({}, [](values_of& x, attention_options&) {
                x[3].dims[2].n = x[4].dims[2].n = 1;
              }) == fault::S002));
  BOOST_TEST(
      (wrong({}, [](values_of&, attention_options& o) { o.causal = false; }) == fault::C001));
  BOOST_TEST((wrong({.tp = 2}, at(3, [](value& v) { v.at[axis::tp] = I; })) == fault::P002));
  BOOST_TEST((wrong({.tp = 2}, at(1, [](value& v) { v.at[axis::tp] = I; })) != fault::none));
  BOOST_TEST((wrong({.cp = 2}, [](values_of& x, attention_options&) {
                for (unsigned i = 0; i < 3; ++i) x[i].at[axis::cp] = mc::S(dim::sequence);
                x[5].at[axis::cp] = mc::S(dim::sequence);
              }) == fault::P007));
  BOOST_TEST((wrong({.cp = 2}, [](values_of& x, attention_options&) {
                for (unsigned i = 1; i < 5; ++i) x[i].at[axis::cp] = R;
                x[0].at[axis::cp] = x[5].at[axis::cp] = mc::S(dim::sequence);
              }) == fault::P007));
}

// On a GPU a token that is decoded has its keys shared among teams, whose sums take little beside the
// caches; a prompt of as few teams has not.
BOOST_AUTO_TEST_CASE(sums_of_tiles_are_few) {
  const auto shape = [](std::int64_t batch, std::int64_t tokens, std::int64_t room) {
    return mc::attention_shape<>{batch, tokens, room, 32, 8, 128}; // of Qwen3-8B
  };
  const auto apart = [](const mc::attention_shape<>& s) {
    return mc::detail::tiles_apart<mc::bf16>(s);
  };
  BOOST_TEST(apart(shape(1, 1, 4096)) == 64);
  BOOST_TEST(apart(shape(8, 1, 40960)) == 640);
  BOOST_TEST(apart(shape(1, 128, 40960)) == 0);
  BOOST_TEST(apart(shape(64, 1, 4096)) == 0); // teams enough
  BOOST_TEST(apart(shape(1, 1, 64)) == 0);    // one tile
  for (const std::int64_t batch : {1, 3, 16})
    for (const std::int64_t tokens : {1, 2, 5, 16, 100})
      for (const std::int64_t room : {64, 1000, 40960}) {
        const auto s = shape(batch, tokens, room);
        const std::int64_t sums =
            mc::rows::cached_sums<float>::bytes(batch * tokens * 32, apart(s), 128);
        BOOST_TEST(sums <= batch * room * 8 * 128 * 2);
      }
}
