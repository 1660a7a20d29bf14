// Weights on their way into a folder of NF4 with double quantisation, as transformers and
// bitsandbytes read it (hf/quantised.hpp).
#pragma once

#include <megacpp/hf/model_folder.hpp>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace mc::detail {

/// Returns the field of config.json by which a folder of NF4 is read. The modules of `plain`
/// matrices are not in NF4; transformers would read every linear layer so.
inline nlohmann::json nf4_config(storage_type computes_in, const std::vector<std::string>& plain) {
  return {{"quant_method", "bitsandbytes"},
          {"load_in_4bit", true},
          {"load_in_8bit", false},
          {"_load_in_4bit", true},
          {"_load_in_8bit", false},
          {"bnb_4bit_quant_type", "nf4"},
          {"bnb_4bit_use_double_quant", true},
          {"bnb_4bit_compute_dtype", torch_name(computes_in)},
          {"bnb_4bit_quant_storage", "uint8"},
          {"llm_int8_skip_modules", plain},
          {"llm_int8_threshold", 6.0},
          {"llm_int8_has_fp16_weight", false},
          {"llm_int8_enable_fp32_cpu_offload", false}};
}

/// Calls f(stretch) for each stretch of a tensor as a matrix (out, in), in float: all of one that
/// is transposed.
template <class F> void each_stretch(const weights_in_folder::match& t, F f) {
  std::vector<double> buffer;
  std::vector<float> x;
  if (t.ours.is_transposed()) return f(std::span<const float>(x = as_matrix(t, buffer)));
  weights_in_folder::read(t, buffer, [&](std::int64_t, std::span<const double> values) {
    x.assign(values.begin(), values.end());
    f(std::span<const float>(x));
  });
}

/// Returns the scales of a tensor in NF4: those that it has in its folder, or else those of its
/// numbers.
inline std::shared_ptr<const hf_quantised> nf4_scales_of(const weights_in_folder::match& t) {
  if (t.theirs.quantised && t.theirs.quantised->as == hf_storage::nf4 &&
      t.theirs.quantised->nested())
    return t.theirs.quantised;
  hf_quantised q;
  std::vector<float> absmax;
  each_stretch(t, [&](std::span<const float> x) {
    std::vector<float> some(static_cast<std::size_t>(nf4_blocks(std::ssize(x))));
    nf4_absmax(x, std::span(some));
    absmax.insert(absmax.end(), some.begin(), some.end());
  });
  q.as = hf_storage::nf4, q.shape = t.ours.matrix_shape(), q.offset = nf4_offset(absmax);
  q.transposed = t.ours.is_transposed();
  q.map.assign(dynamic_map.begin(), dynamic_map.end());
  q.codes.resize(absmax.size());
  q.scales.resize(static_cast<std::size_t>(nf4_nested_blocks(t.ours.elements())));
  nf4_quantise_absmax(absmax, q.offset, q.codes, q.scales);
  return std::make_shared<const hf_quantised>(std::move(q));
}

/// Returns the codes of a stretch of a matrix, which begins with a block.
inline std::vector<std::uint8_t> nf4_codes_of(std::span<const float> x) {
  std::vector<float> absmax(static_cast<std::size_t>(nf4_blocks(std::ssize(x))));
  std::vector<std::uint8_t> codes(static_cast<std::size_t>(nf4_bytes(std::ssize(x))));
  nf4_absmax(x, std::span(absmax));
  nf4_quantise(x, std::span<const float>(absmax), std::span(codes));
  return codes;
}

/// The rounding of a tensor to the numbers that NF4 keeps of it.
class through_nf4 {
public:
  explicit through_nf4(const weights_in_folder::match& t) : scales_(nf4_scales_of(t)) {
    if (t.ours.is_transposed())
      each_stretch(t, [&](std::span<const float> x) { codes_ = nf4_codes_of(x); });
  }
  /// Rounds a stretch of the tensor, which begins with element `first`.
  void apply(std::int64_t first, std::span<double> values) const {
    const hf_quantised& q = *scales_;
    if (q.transposed) return q.decode(std::as_bytes(std::span(codes_)), first, values);
    const std::vector<float> x(values.begin(), values.end());
    std::vector<float> kept(x.size());
    const nf4_scales scales{q.codes.data(), q.scales.data(), q.offset, q.map.data()};
    nf4_dequantise(
        nf4_codes_of(x).data(),
        [&](std::int64_t block) { return scales(first / nf4_block + block); }, 0, std::span(kept));
    std::ranges::copy(kept, values.begin());
  }

private:
  std::shared_ptr<const hf_quantised> scales_;
  std::vector<std::uint8_t> codes_; ///< of a tensor that is transposed
};

/// Adds a tensor in NF4 to a model that is about to be written. `t` must stay.
inline void add_in_nf4(outgoing_model& m, const weights_in_folder::match& t,
                       storage_type computes_in) {
  const auto q = nf4_scales_of(t);
  const std::int64_t n = t.ours.elements();
  m.tensors.push_back(
      {t.ours.name, storage_type::u8, {nf4_bytes(n), 1}, [&t, q](const byte_sink& out) {
         if (q == t.theirs.quantised) return out(t.theirs.bytes);
         each_stretch(t, [&](std::span<const float> x) {
           const std::vector<std::uint8_t> codes = nf4_codes_of(x);
           out(std::as_bytes(std::span(codes)));
         });
       }});
  const auto add = [&]<class T>(const char* end, storage_type type,
                                std::shared_ptr<const std::vector<T>> array) {
    m.tensors.push_back(
        {t.ours.name + end, type, {std::ssize(*array)}, [array](const byte_sink& out) {
           out(std::as_bytes(std::span(*array)));
         }});
  };
  const std::string state =
      nlohmann::ordered_json{{"quant_type", "nf4"},
                             {"blocksize", nf4_block},
                             {"dtype", torch_name(computes_in)},
                             {"shape", t.ours.matrix_shape()},
                             {"nested_blocksize", nf4_nested_block},
                             {"nested_dtype", "float32"},
                             {"nested_offset", static_cast<double>(q->offset)}}
          .dump();
  using bytes = const std::vector<std::uint8_t>;
  using floats = const std::vector<float>;
  add(".absmax", storage_type::u8, std::shared_ptr<bytes>(q, &q->codes));
  add(".nested_absmax", storage_type::f32, std::shared_ptr<floats>(q, &q->scales));
  add(".nested_quant_map", storage_type::f32, std::shared_ptr<floats>(q, &q->map));
  add(".quant_map", storage_type::f32,
      std::make_shared<floats>(nf4_values.begin(), nf4_values.end()));
  add(".quant_state.bitsandbytes__nf4", storage_type::u8,
      std::make_shared<bytes>(state.begin(), state.end()));
}

} // namespace mc::detail
