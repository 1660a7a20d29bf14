// Tensors of Hugging Face folders on their way into encoded parameters, such as a base in NF4. Each
// tensor is one matrix (out, in), which is encoded as a whole.
#pragma once

#include <megacpp/hf/weights.hpp>
#include <megacpp/op/nf4.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <vector>

namespace mc::detail {

/// Returns whether the parameters of a tensor are encoded.
inline bool is_encoded(const hf_tensor& t) {
  return !t.sources.empty() && t.sources.front().of.info->encoding != nullptr;
}
/// Returns a tensor of a folder as one matrix (out, in): its sources' elements, one behind the
/// other.
inline std::vector<float> as_matrix(const weights_in_folder::match& m,
                                    std::vector<double>& values) {
  std::vector<float> x(static_cast<std::size_t>(m.ours.elements()));
  weights_in_folder::read_in_parallel(m, values, [&](std::int64_t first, auto some) {
    std::int64_t before = 0;
    for (const hf_tensor::source& p : m.ours.sources) {
      p.runs(first, std::ssize(some), [&](std::int64_t from, std::int64_t n, std::int64_t element) {
        for (std::int64_t k = 0; k < n; ++k)
          x[static_cast<std::size_t>(before + from - p.first.n + k)] = static_cast<float>(
              some[static_cast<std::size_t>(element - first + k * p.strides[2])]);
      });
      before += p.elements();
    }
  });
  return x;
}
/// Sets the parameters of a tensor that is a matrix in NF4: each has some rows of it.
inline void put_nf4(const hf_tensor& t, std::span<const std::byte> codes,
                    std::span<const std::uint8_t> absmax, std::span<const float> scales,
                    mc::stores& s) {
  std::int64_t before = 0;
  for (const hf_tensor::source& p : t.sources) {
    const std::int64_t n = p.elements();
    const auto part = [](auto all, std::int64_t from, std::int64_t count) {
      return all.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(count));
    };
    std::vector<float> own(scales.begin(), scales.begin() + nf4_scales_before);
    std::ranges::copy(
        part(scales, nf4_scales_before + nf4_nested_blocks(before), nf4_nested_blocks(n)),
        std::back_inserter(own));
    const std::span<const std::byte> arrays[] = {
        part(codes, nf4_bytes(before), nf4_bytes(n)),
        std::as_bytes(part(absmax, nf4_blocks(before), nf4_blocks(n))),
        std::as_bytes(std::span<const float>(own))};
    s.put_matrix(p.of, p.first.n / n, n, arrays);
    before += n;
  }
}
/// Encodes a tensor of a folder, which is one matrix.
inline void encode_tensor(const weights_in_folder::match& m, std::vector<double>& values,
                          mc::stores& s) {
  const hf_quantised* const q = m.theirs.quantised.get();
  if (m.ours.sources.front().of.info->encoding != &nf4_encoding) { // a family's own
    const std::vector<float> x = as_matrix(m, values);
    std::span<const float> rest(x);
    for (const hf_tensor::source& p : m.ours.sources) {
      const auto n = static_cast<std::size_t>(p.elements());
      s.set_matrix(p.of, p.first.n / p.elements(), rest.first(n));
      rest = rest.subspan(n);
    }
    return;
  }
  if (q != nullptr && q->as == hf_storage::nf4 && !q->nested())
    throw weights_in_folder::about(*m.file, m.theirs.stored_name,
                                   "is NF4 without double quantisation, whose scales a base in NF4 "
                                   "does not keep; quantise the model with "
                                   "bnb_4bit_use_double_quant, or build without base=nf4");
  if (q != nullptr && q->as == hf_storage::nf4) { // it is kept bit for bit
    std::vector<float> scales{q->offset};
    scales.insert(scales.end(), q->map.begin(), q->map.end());
    scales.insert(scales.end(), q->scales.begin(), q->scales.end());
    return put_nf4(m.ours, m.theirs.bytes, q->codes, scales, s);
  }
  const std::vector<float> x = as_matrix(m, values);
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<float> absmax(static_cast<std::size_t>(nf4_blocks(n))),
      scales(static_cast<std::size_t>(nf4_scales_before + nf4_nested_blocks(n)));
  std::vector<std::byte> codes(static_cast<std::size_t>(nf4_bytes(n)));
  std::vector<std::uint8_t> of_absmax(absmax.size());
  std::byte* const to[] = {codes.data(), reinterpret_cast<std::byte*>(of_absmax.data()),
                           reinterpret_cast<std::byte*>(scales.data())};
  nf4_encode(x, absmax, to);
  put_nf4(m.ours, codes, of_absmax, scales, s);
}

} // namespace mc::detail
