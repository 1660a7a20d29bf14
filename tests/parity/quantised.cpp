// Quantised weights against bitsandbytes and PyTorch, to the bit: NF4 with double quantisation, and
// blocks of FP8, both ways.
#define BOOST_TEST_MODULE quantised
#include <boost/test/unit_test.hpp>

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/num/fp8.hpp>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include <nf4_arrays.hpp>
#include <where.hpp>

namespace {

std::filesystem::path fixtures() { return std::filesystem::path(test::shared_dir) / "fixtures"; }

mc::safetensors_file opened(const char* name) {
  return mc::safetensors_file((fixtures() / name).string());
}

/// The elements of a tensor as they lie in its file.
template <class T>
std::vector<T> stored(const mc::safetensors_file& file, const std::string& name) {
  const mc::file_tensor t = file->at(name);
  BOOST_REQUIRE(t.bytes.size() % sizeof(T) == 0u);
  std::vector<T> out(t.bytes.size() / sizeof(T));
  std::memcpy(out.data(), t.bytes.data(), t.bytes.size());
  return out;
}

/// How many elements of two arrays have other bits.
template <class T> std::size_t differing(const std::vector<T>& a, const std::vector<T>& b) {
  BOOST_REQUIRE(a.size() == b.size());
  std::size_t n = 0;
  for (std::size_t i = 0; i < a.size(); ++i) n += std::memcmp(&a[i], &b[i], sizeof(T)) != 0;
  return n;
}

std::int64_t ulps(float a, float b) {
  return std::abs(std::int64_t{std::bit_cast<std::int32_t>(a)} - std::bit_cast<std::int32_t>(b));
}

void check_arrays(const mc::safetensors_file& file, const std::string& scope,
                  const std::string& codes, const test::nf4_arrays& ours) {
  BOOST_TEST(differing(ours.codes, stored<std::uint8_t>(file, codes)) == 0u);
  BOOST_TEST(differing(ours.absmax_codes, stored<std::uint8_t>(file, scope + ".absmax")) == 0u);
  BOOST_TEST(differing(ours.nested_absmax, stored<float>(file, scope + ".nested_absmax")) == 0u);
}

template <class T> void check_matrix(const std::string& name) {
  const mc::safetensors_file file = opened("nf4.safetensors");
  const auto weights = stored<T>(file, name);
  const float offset = stored<float>(file, name + ".nested_offset").at(0);
  const test::nf4_arrays ours = test::nf4_quantised(weights, offset);
  BOOST_TEST_CONTEXT(name) {
    BOOST_TEST(ours.nested_absmax.size() >= 3u);
    check_arrays(file, name, name + ".codes", ours);
    BOOST_TEST(
        differing(ours.range<T>(0, weights.size()), stored<T>(file, name + ".dequantised")) == 0u);

    // An offset of one's own moves codes of absmax at most, and few of them.
    const test::nf4_arrays own = test::nf4_quantised(weights);
    const std::size_t moved = differing(own.absmax_codes, ours.absmax_codes);
    BOOST_TEST(ulps(own.offset, offset) <= 4);
    BOOST_TEST(differing(own.codes, ours.codes) == 0u);
    BOOST_TEST_MESSAGE(name << ": the offset is " << ulps(own.offset, offset) << " ulp off, "
                            << moved << " of " << own.absmax.size() << " codes of absmax differ");
    BOOST_TEST(moved * 100 <= own.absmax.size());
  }
}

} // namespace

BOOST_AUTO_TEST_CASE(maps) {
  const mc::safetensors_file file = opened("nf4.safetensors");
  for (const std::string name : {"a", "b", "c"}) {
    const std::vector<float> map(mc::dynamic_map.begin(), mc::dynamic_map.end()),
        values(mc::nf4_values.begin(), mc::nf4_values.end());
    BOOST_TEST(differing(map, stored<float>(file, name + ".nested_quant_map")) == 0u);
    BOOST_TEST(differing(values, stored<float>(file, name + ".quant_map")) == 0u);
  }
}

BOOST_AUTO_TEST_CASE(matrices) {
  check_matrix<float>("a");
  check_matrix<mc::bf16>("b");
  check_matrix<mc::bf16>("c");
}

BOOST_AUTO_TEST_CASE(linears_of_a_model) {
  const mc::safetensors_file file = opened("lora/qwen3_nf4/nf4.safetensors"),
                             base = opened("hf/qwen3/model/model.safetensors");
  const std::string ending = ".dequantised";
  int matrices = 0;
  for (std::size_t i = 0; i < file->size(); ++i) {
    const std::string full(file.tensors()[i].name);
    if (!full.ends_with(ending)) continue;
    const std::string name = full.substr(0, full.size() - ending.size());
    BOOST_TEST_CONTEXT(name) {
      const auto weights = stored<float>(base, name);
      const float offset = stored<float>(file, name + ".nested_offset").at(0);
      const test::nf4_arrays ours = test::nf4_quantised(weights, offset);
      check_arrays(file, name, name, ours);
      BOOST_TEST(differing(ours.range<float>(0, weights.size()), stored<float>(file, full)) == 0u);
    }
    ++matrices;
  }
  BOOST_TEST(matrices == 14);
}

BOOST_AUTO_TEST_CASE(numbers_of_fp8) {
  const mc::safetensors_file file = opened("fp8.safetensors");
  const auto decoded = stored<float>(file, "e4m3fn.decode");
  for (std::size_t code = 0; code < decoded.size(); ++code) {
    const auto x = static_cast<float>(std::bit_cast<mc::e4m3>(static_cast<std::uint8_t>(code)));
    BOOST_TEST((std::isnan(x) ? std::isnan(decoded[code])
                              : std::bit_cast<std::uint32_t>(x) ==
                                    std::bit_cast<std::uint32_t>(decoded[code])),
               "code " << code << " is " << x << ", not " << decoded[code]);
  }
  const auto input = stored<float>(file, "e4m3fn.encode_input");
  const auto bits = stored<std::uint8_t>(file, "e4m3fn.encode_bits");
  std::vector<std::uint8_t> ours;
  for (const float x : input) ours.push_back(mc::e4m3(x).bits);
  BOOST_TEST(differing(ours, bits) == 0u);
}

BOOST_AUTO_TEST_CASE(blocks_of_fp8) {
  const mc::safetensors_file file = opened("fp8.safetensors");
  const auto weights = stored<mc::bf16>(file, "block.weight_bf16"),
             scales = stored<mc::bf16>(file, "block.weight_scale_inv");
  const auto codes = stored<mc::e4m3>(file, "block.weight_f8_bits");
  constexpr std::size_t rows = 256, columns = 384, across = 3;
  std::vector<mc::bf16> our_scales;
  std::vector<mc::e4m3> our_codes(codes.size());
  for (std::size_t from = 0; from < rows; from += 128) {
    std::vector<float> absmax(across);
    const auto row = [&](std::size_t r) {
      return std::span<const mc::bf16>(weights).subspan(r * columns, columns);
    };
    for (std::size_t r = from; r < from + 128; ++r) mc::fp8_absmax(row(r), std::span(absmax));
    for (const float x : absmax) our_scales.push_back(mc::fp8_scale<mc::bf16>(x));
    for (std::size_t r = from; r < from + 128; ++r)
      mc::fp8_quantise(row(r), &our_scales[from / 128 * across], &our_codes[r * columns]);
  }
  BOOST_TEST(differing(our_scales, scales) == 0u);
  BOOST_TEST(differing(our_codes, codes) == 0u);

  std::vector<float> values(codes.size());
  for (std::size_t r = 0; r < rows; ++r)
    mc::fp8_dequantise(&codes[r * columns], &scales[r / 128 * across], 0,
                       std::span(values).subspan(r * columns, columns));
  BOOST_TEST(differing(values, stored<float>(file, "block.dequantised")) == 0u);
}
