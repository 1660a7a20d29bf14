// NF4 against its definition in double: codes, scales, what is dequantised, any range of it, and
// matrices in chunks; blocks of zeros, ragged ends and odd counts.
#define BOOST_TEST_MODULE nf4
#include <boost/test/unit_test.hpp>

#include <megacpp/num/random.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <nf4_arrays.hpp>

namespace {

using std::size_t;
constexpr float infinity = std::numeric_limits<float>::infinity();

// Sizes about whole blocks and nested blocks; the last has four nested blocks and ends in the
// middle of a byte.
const std::vector<size_t> sizes{1,   2,   7,   63,       64,           65,
                                127, 128, 200, 64 * 256, 64 * 257 + 1, 64 * (3 * 256 + 5) + 33};

/// Weights of magnitudes about exp(spread), so that a large spread makes absmax of far apart
/// magnitudes.
std::vector<float> drawn(size_t n, float spread, std::uint64_t seed) {
  std::vector<float> w(n);
  for (size_t i = 0; i < n; ++i) {
    const auto bits = mc::philox(mc::random_key(seed, 0), i),
               of_block = mc::philox(seed, i / 64, 1);
    w[i] = (mc::uniform(bits[0]) + mc::uniform(bits[1]) + mc::uniform(bits[2]) - 1.5f) *
           std::exp(spread * mc::uniform(of_block[0]));
  }
  return w;
}

int code_of(const test::nf4_arrays& a, size_t i) {
  return i % 2 == 0 ? a.codes[i / 2] >> 4 : a.codes[i / 2] & 15;
}

/// The distance of x to the nearest value of a map.
template <class Map> double least_distance(const Map& map, double x) {
  double least = 1e9;
  for (const float value : map) least = std::min(least, std::abs(value - x));
  return least;
}

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> out;
  for (const float x : values) out.push_back(std::bit_cast<std::uint32_t>(x));
  return out;
}
std::vector<std::uint32_t> bits_of(const std::vector<mc::bf16>& values) {
  std::vector<std::uint32_t> out;
  for (const mc::bf16 x : values) out.push_back(x.bits);
  return out;
}

/// Everything that a matrix becomes, against the definitions. on_grid may miss the nearest value of
/// the map by a grid's step.
void check_definition(const std::vector<float>& w, mc::dynamic_search search) {
  const test::nf4_arrays a = test::nf4_quantised(w, {}, search);
  const size_t blocks = (w.size() + 63) / 64;
  std::vector<double> absmax(blocks);
  double sum = 0;
  for (size_t i = 0; i < w.size(); ++i)
    absmax[i / 64] = std::max(absmax[i / 64], std::abs(double{w[i]}));
  for (size_t b = 0; b < blocks; ++b) {
    BOOST_REQUIRE(absmax[b] == double{a.absmax[b]});
    sum += absmax[b];
  }
  const double mean = sum / static_cast<double>(blocks);
  BOOST_TEST(std::abs(a.offset - mean) <= mean * 0x1p-24);

  BOOST_REQUIRE(a.nested_absmax.size() == (blocks + 255) / 256);
  std::vector<double> nested(a.nested_absmax.size());
  for (size_t b = 0; b < blocks; ++b)
    nested[b / 256] = std::max(nested[b / 256], std::abs(absmax[b] - a.offset));
  const double slack = search == mc::dynamic_search::on_grid ? 1.0 / 65535 + 2e-7 : 2e-7;
  for (size_t b = 0; b < blocks; ++b) {
    const double of_block = nested[b / 256],
                 x = of_block > 0 ? (absmax[b] - a.offset) / of_block : 0;
    BOOST_REQUIRE(std::abs(a.nested_absmax[b / 256] - of_block) <= of_block * 0x1p-23);
    if (of_block > 0)
      BOOST_REQUIRE(std::abs(mc::dynamic_map[a.absmax_codes[b]] - x) <=
                    least_distance(mc::dynamic_map, x) + slack);
  }

  const auto values = a.range<float>(0, w.size());
  for (size_t i = 0; i < w.size(); ++i) {
    const size_t b = i / 64;
    const double x = absmax[b] > 0 ? w[i] / absmax[b] : 0;
    const float value = mc::nf4_values[static_cast<size_t>(code_of(a, i))];
    BOOST_REQUIRE(std::abs(value - x) <= least_distance(mc::nf4_values, x) + 2e-7);
    const double scale =
        double{mc::dynamic_map[a.absmax_codes[b]]} * a.nested_absmax[b / 256] + a.offset;
    // Where the offset is nearly undone, the rounding of the product is large beside the sum.
    const double rounding = (std::abs(scale) + nested[b / 256]) * 0x1p-23;
    BOOST_REQUIRE(std::abs(values[i] - value * scale) <= std::abs(value) * rounding);
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(definition) {
  for (const size_t n : sizes)
    for (const float spread : {0.0f, 1.0f, 6.0f})
      for (const auto search : {mc::dynamic_search::on_grid, mc::dynamic_search::nearest})
        BOOST_TEST_CONTEXT(n << " elements, spread " << spread)
  check_definition(drawn(n, spread, n), search);
}

// A weight at a threshold has the lower code. Thresholds are halves of sums in float, as bitsandbytes
// has them on CPUs; those published with the kernels for GPUs are as near as float allows.
BOOST_AUTO_TEST_CASE(thresholds) {
  const std::vector<float> published{
      -0.8480964004993439f,  -0.6106329262256622f,  -0.4599952697753906f,   -0.33967943489551544f,
      -0.23460740596055984f, -0.13791173323988914f, -0.045525018125772476f, 0.03979014977812767f,
      0.1202552504837513f,   0.2035212516784668f,   0.2920137718319893f,    0.3893125355243683f,
      0.5016634166240692f,   0.6427869200706482f,   0.8614784181118011f};
  std::vector<float> w(64, 1.0f); // absmax is 1
  for (size_t i = 0; i < published.size(); ++i) {
    const float sum = mc::nf4_values[i] + mc::nf4_values[i + 1], threshold = sum / 2;
    BOOST_TEST(std::abs(threshold - published[i]) <= std::abs(published[i]) * 0x1p-23f);
    w[3 * i] = std::nextafter(threshold, -2.0f);
    w[3 * i + 1] = threshold;
    w[3 * i + 2] = std::nextafter(threshold, 2.0f);
  }
  const test::nf4_arrays a = test::nf4_quantised(w);
  for (size_t i = 0; i < published.size(); ++i) {
    BOOST_TEST(static_cast<size_t>(code_of(a, 3 * i)) == i);
    BOOST_TEST(static_cast<size_t>(code_of(a, 3 * i + 1)) == i);
    BOOST_TEST(static_cast<size_t>(code_of(a, 3 * i + 2)) == i + 1);
  }
}

// Products with the reciprocal of absmax and quotients by it differ in their last bit, which decides
// about weights next to a threshold: whole blocks take products, a shorter one quotients.
BOOST_AUTO_TEST_CASE(products_and_quotients) {
  int decided = 0;
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    const float absmax = 1.0f + mc::uniform(mc::philox(seed, 0)[0]), reciprocal = 1.0f / absmax;
    std::vector<float> w(64 + 63, absmax);
    for (size_t i = 0; i < 15; ++i)
      for (const size_t at : {size_t{0}, size_t{64}}) {
        const float near = mc::nf4_midpoints[i] * absmax;
        w[at + 3 * i] = near;
        w[at + 3 * i + 1] = std::nextafter(near, -2.0f);
        w[at + 3 * i + 2] = std::nextafter(near, 2.0f);
      }
    const test::nf4_arrays a = test::nf4_quantised(w);
    for (size_t i = 0; i < 45; ++i) {
      const float product = w[i] * reciprocal, quotient = w[i] / absmax,
                  m = mc::nf4_midpoints[i / 3];
      const int lower = static_cast<int>(i / 3);
      BOOST_REQUIRE(code_of(a, i) == lower + (product > m));
      BOOST_REQUIRE(code_of(a, 64 + i) == lower + (quotient > m));
      decided += (product > m) != (quotient > m);
    }
  }
  BOOST_TEST(decided > 20);
}

BOOST_AUTO_TEST_CASE(dynamic_map) {
  // The middles of 2^k equal intervals of each decade, in double.
  std::vector<double> above;
  for (int k = 0; k < 7; ++k)
    for (int i = 0; i < 1 << k; ++i)
      above.push_back(std::pow(10.0, k - 6) * (0.1 + 0.9 * (i + 0.5) / (1 << k)));
  BOOST_TEST(above.size() == 127u);
  for (size_t i = 0; i < above.size(); ++i) {
    BOOST_TEST(std::abs(mc::dynamic_map[128 + i] - above[i]) <= above[i] * 0x1p-22);
    BOOST_TEST(mc::dynamic_map[126 - i] == -mc::dynamic_map[128 + i]);
  }
  BOOST_TEST(mc::dynamic_map[127] == 0.0f);
  BOOST_TEST(mc::dynamic_map[255] == 1.0f);
  BOOST_TEST(std::is_sorted(mc::dynamic_map.begin(), mc::dynamic_map.end()));
}

BOOST_AUTO_TEST_CASE(codes_of_the_dynamic_map) {
  for (size_t i = 0; i < 256; ++i) {
    BOOST_TEST(mc::nearest_dynamic_code(mc::dynamic_map[i]) == i);
    if (i == 255) continue;
    const float tie = mc::dynamic_midpoints[i];
    BOOST_TEST(mc::nearest_dynamic_code(tie) == (i % 2 == 0 ? i : i + 1));
    BOOST_TEST(mc::nearest_dynamic_code(std::nextafter(tie, -2.0f)) == i);
    BOOST_TEST(mc::nearest_dynamic_code(std::nextafter(tie, 2.0f)) == i + 1);
  }
  // The grid has no zero: 0 lies between two of its numbers, of which the upper one is taken.
  BOOST_TEST(mc::dynamic_code_on_grid(0.0f) == mc::nearest_dynamic_code(1.0f / 65535));
  for (const float x : {1.0f, 2.0f, infinity}) BOOST_TEST(mc::dynamic_code_on_grid(x) == 255);
  for (const float x : {-1.0f, -2.0f, -infinity}) BOOST_TEST(mc::dynamic_code_on_grid(x) == 0);
  BOOST_TEST(mc::dynamic_code_on_grid(std::nanf("")) == 0);
  BOOST_TEST(mc::nearest_dynamic_code(std::nanf("")) == 0);
}

BOOST_AUTO_TEST_CASE(any_range) {
  const std::vector<float> w = drawn(64 * 5 + 19, 2, 3);
  const test::nf4_arrays a = test::nf4_quantised(w);
  const auto all = bits_of(a.range<float>(0, w.size()));
  const auto narrow = bits_of(a.range<mc::bf16>(0, w.size()));
  for (size_t i = 0; i < w.size(); ++i)
    BOOST_REQUIRE(narrow[i] == mc::bf16(std::bit_cast<float>(all[i])).bits);
  for (size_t first = 0; first <= w.size(); ++first)
    for (size_t end = first; end <= w.size(); ++end) {
      const auto from = static_cast<std::ptrdiff_t>(first), to = static_cast<std::ptrdiff_t>(end);
      const auto wide = bits_of(a.range<float>(first, end - first));
      BOOST_REQUIRE((wide == std::vector(all.begin() + from, all.begin() + to)));
      const auto halves = bits_of(a.range<mc::bf16>(first, end - first));
      BOOST_REQUIRE((halves == std::vector(narrow.begin() + from, narrow.begin() + to)));
    }
}

BOOST_AUTO_TEST_CASE(chunks) {
  const std::vector<float> w = drawn(64 * 300 + 1, 1, 4);
  const test::nf4_arrays whole = test::nf4_quantised(w, {}, mc::dynamic_search::on_grid, 1000);
  for (const size_t blocks : std::vector<size_t>{1, 2, 255}) {
    const auto a = test::nf4_quantised(w, {}, mc::dynamic_search::on_grid, blocks);
    BOOST_TEST(a.codes == whole.codes);
    BOOST_TEST(a.absmax_codes == whole.absmax_codes);
    BOOST_TEST(bits_of(a.nested_absmax) == bits_of(whole.nested_absmax));
  }
  std::vector<mc::bf16> narrow;
  std::vector<float> rounded;
  for (const float x : w) narrow.emplace_back(x), rounded.push_back(float{narrow.back()});
  BOOST_TEST(test::nf4_quantised(narrow).codes == test::nf4_quantised(rounded).codes);
}

BOOST_AUTO_TEST_CASE(zeros_and_ends) {
  // A block of zeros among others is zeros again, whatever its absmax becomes.
  std::vector<float> w = drawn(64 * 4, 0, 5);
  std::fill(w.begin() + 64, w.begin() + 128, 0.0f);
  const auto values = test::nf4_quantised(w).range<float>(64, 64);
  BOOST_TEST(values == std::vector<float>(64, 0.0f));
  // Zeros alone, in blocks that are whole and not.
  for (const size_t n : std::vector<size_t>{1, 63, 64, 65, 640}) {
    const test::nf4_arrays zeros = test::nf4_quantised(std::vector<float>(n, 0.0f));
    BOOST_TEST(zeros.range<float>(0, n) == std::vector<float>(n, 0.0f));
    BOOST_TEST(zeros.absmax.back() == (n % 64 == 0 ? 0.0f : 1e-38f));
  }
  // A single block has itself as offset: its absmax is exact.
  const std::vector<float> small{0.5f, -2.0f, 1.0f};
  const test::nf4_arrays one = test::nf4_quantised(small);
  BOOST_TEST(one.offset == 2.0f);
  BOOST_TEST(one.nested_absmax == std::vector<float>{0.0f});
  BOOST_TEST(int{one.absmax_codes.at(0)} == 0);
  BOOST_TEST(one.range<float>(1, 1).at(0) == -2.0f);
  BOOST_TEST((one.codes.at(1) & 15) == 7); // the code of zero behind an odd count
  // Weights that are infinite or no numbers show in their block's absmax.
  for (const float bad : {infinity, -infinity, std::nanf("")}) {
    std::vector<float> with = drawn(200, 0, 6);
    with[70] = bad;
    const test::nf4_arrays a = test::nf4_quantised(with);
    for (size_t b = 0; b < 4; ++b) BOOST_TEST(std::isfinite(a.absmax[b]) == (b != 1));
  }
}

BOOST_AUTO_TEST_CASE(map_of_a_file) {
  std::vector<float> map(mc::dynamic_map.begin(), mc::dynamic_map.end());
  map[200] = 0.75f;
  const std::uint8_t codes[]{200, 127};
  const float nested = 4;
  const mc::nf4_scales scales{codes, &nested, 0.5f, map.data()};
  BOOST_TEST(scales(0) == 3.5f);
  BOOST_TEST(scales(1) == 0.5f);
}

// The functions are constant expressions.
static_assert([] {
  const float w[]{4.0f, 0.0f, -4.0f};
  float absmax = 0, nested = 0, out[3]{};
  std::uint8_t codes[2]{}, absmax_code = 9;
  mc::nf4_absmax(std::span<const float>(w), std::span(&absmax, 1));
  mc::nf4_quantise(std::span<const float>(w), std::span<const float>(&absmax, 1), codes);
  const float offset = mc::nf4_offset({&absmax, 1});
  mc::nf4_quantise_absmax({&absmax, 1}, offset, {&absmax_code, 1}, {&nested, 1});
  mc::nf4_dequantise(codes, mc::nf4_scales{&absmax_code, &nested, offset}, 0,
                     std::span<float>(out));
  return codes[0] == 0xf7 && codes[1] == 0x07 && out[0] == 4.0f && out[1] == 0 && out[2] == -4.0f;
}());
