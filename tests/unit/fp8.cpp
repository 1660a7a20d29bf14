// FP8: every code against its definition in double, rounding at and beside every midpoint, blocks
// of 128 by 128 with ragged ends.
#define BOOST_TEST_MODULE fp8
#include <boost/test/unit_test.hpp>

#include <megacpp/num/fp8.hpp>
#include <megacpp/num/random.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace {

using std::size_t;

mc::e4m3 of_bits(int bits) { return std::bit_cast<mc::e4m3>(static_cast<std::uint8_t>(bits)); }

// The number of a code, by its fields: 1.m * 2^(e - 7), or 0.m * 2^-6 where e is 0.
double defined(int code) {
  const int e = code >> 3 & 15, m = code & 7;
  const double magnitude = e == 0 ? std::ldexp(m, -9) : std::ldexp(8 + m, e - 10);
  return code & 0x80 ? -magnitude : magnitude;
}

/// Quantises a matrix row by row, with scales of a type, and dequantises it by any ranges.
template <class Scale> void check_blocks(size_t rows, size_t columns) {
  std::vector<float> w(rows * columns);
  for (size_t i = 0; i < w.size(); ++i) {
    const auto bits = mc::philox(7, i);
    // Blocks of other rows and columns have other magnitudes; one is of zeros.
    const int block = static_cast<int>(i / columns / 128 * 10 + i % columns / 128);
    w[i] = block == 1 ? 0.0f : std::ldexp(mc::uniform(bits[0]) - 0.5f, block - 8);
  }
  const auto across = static_cast<size_t>(mc::fp8_blocks(static_cast<std::int64_t>(columns)));
  BOOST_TEST(across == (columns + 127) / 128);
  std::vector<Scale> scales;
  std::vector<mc::e4m3> codes(w.size());
  const auto row = [&](size_t r) {
    return std::span<const float>(w).subspan(r * columns, columns);
  };
  for (size_t from = 0; from < rows; from += 128) {
    const size_t end = std::min(from + 128, rows);
    std::vector<float> absmax(across);
    for (size_t r = from; r < end; ++r) mc::fp8_absmax(row(r), std::span(absmax));
    for (size_t k = 0; k < across; ++k) {
      float most = 0;
      for (size_t r = from; r < end; ++r)
        for (size_t c = 128 * k; c < std::min(128 * (k + 1), columns); ++c)
          most = std::max(most, std::abs(w[r * columns + c]));
      BOOST_TEST(absmax[k] == most);
      scales.push_back(mc::fp8_scale<Scale>(absmax[k]));
      const double scale = mc::convert<float>(scales.back()),
                   unit = sizeof(Scale) == 2 ? 0x1p-8 : 0x1p-23;
      BOOST_TEST(std::abs(scale - (most > 0 ? most / 448.0 : 1)) <= scale * unit);
    }
    for (size_t r = from; r < end; ++r)
      mc::fp8_quantise(row(r), &scales[from / 128 * across], &codes[r * columns]);
  }
  for (size_t r = 0; r < rows; ++r) {
    const Scale* of_row = &scales[r / 128 * across];
    std::vector<float> whole(columns);
    mc::fp8_dequantise(&codes[r * columns], of_row, 0, std::span(whole));
    for (size_t c = 0; c < columns; ++c) {
      const double scale = mc::convert<float>(of_row[c / 128]), x = w[r * columns + c];
      // Half a unit of three bits of mantissa; 448 scales may be less than absmax by their rounding.
      const double error = std::max(std::abs(x) * 0x1p-4, scale * 0x1p-10) * (1 + 1e-6);
      BOOST_REQUIRE(std::abs(whole[c] - x) <= error);
      BOOST_REQUIRE(whole[c] ==
                    static_cast<float>(static_cast<float>(codes[r * columns + c]) * scale));
    }
    for (size_t first = r % 40; first < columns; first += 57) {
      const size_t count = std::min<size_t>(r % 150, columns - first);
      std::vector<mc::bf16> out(count);
      mc::fp8_dequantise(&codes[r * columns], of_row, static_cast<std::int64_t>(first),
                         std::span(out));
      for (size_t i = 0; i < count; ++i)
        BOOST_REQUIRE(out[i].bits == mc::bf16(whole[first + i]).bits);
    }
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(every_code) {
  for (int code = 0; code < 256; ++code) {
    const auto x = static_cast<float>(of_bits(code));
    if ((code & 0x7f) == 0x7f) {
      BOOST_TEST(std::isnan(x));
      BOOST_TEST((mc::e4m3(x).bits & 0x7f) == 0x7f);
      continue;
    }
    BOOST_TEST(double{x} == defined(code));
    BOOST_TEST(std::signbit(x) == (code >= 0x80));
    BOOST_TEST(int{mc::e4m3(x).bits} == code);
  }
}

BOOST_AUTO_TEST_CASE(rounding) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (int code = 0; code < 0x7e; ++code)
    for (const float sign : {1.0f, -1.0f}) {
      const int negative = sign < 0 ? 0x80 : 0;
      const auto middle = static_cast<float>((defined(code) + defined(code + 1)) / 2);
      const int even = code % 2 == 0 ? code : code + 1;
      BOOST_TEST(int{mc::e4m3(sign * middle).bits} == (negative | even));
      BOOST_TEST(int{mc::e4m3(sign * std::nextafter(middle, 0.0f)).bits} == (negative | code));
      BOOST_TEST(int{mc::e4m3(sign * std::nextafter(middle, 1e9f)).bits} ==
                 (negative | (code + 1)));
    }
  for (const float x : {448.0f, 449.0f, 464.0f, 465.0f, 480.0f, 511.0f, 1e9f, infinity}) {
    BOOST_TEST(int{mc::e4m3(x).bits} == 0x7e);
    BOOST_TEST(int{mc::e4m3(-x).bits} == 0xfe);
  }
  BOOST_TEST(int{mc::e4m3(std::numeric_limits<float>::denorm_min()).bits} == 0);
}

BOOST_AUTO_TEST_CASE(blocks) {
  check_blocks<float>(1, 1);
  check_blocks<float>(128, 256);
  check_blocks<float>(130, 300);
  check_blocks<mc::bf16>(257, 129);
  check_blocks<mc::bf16>(100, 640);
}

BOOST_AUTO_TEST_CASE(scales_that_vanish) {
  BOOST_TEST(mc::fp8_scale<float>(0.0f) == 1.0f);
  BOOST_TEST(mc::fp8_scale<float>(std::numeric_limits<float>::denorm_min()) == 1.0f);
  BOOST_TEST(mc::convert<float>(mc::fp8_scale<mc::bf16>(0.0f)) == 1.0f);
}

static_assert(static_cast<float>(mc::e4m3(-3.3f)) == -3.25f);
