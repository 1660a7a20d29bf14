// The arrays that lie beside tensors of a folder which are stored in fewer bits (hf/quantised.hpp).
#pragma once

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/hf/tensor.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The arrays in the files of a folder. Each must decode one tensor, and a tensor must have all of
/// its own.
class hf_arrays {
public:
  explicit hf_arrays(hf_storage s = hf_storage::plain) : storage_(s) {}

  hf_storage storage() const { return storage_; }
  bool is_array(std::string_view name) const {
    return storage_ != hf_storage::plain && !detail::tensor_of_array(name).empty();
  }
  /// Adds a tensor of a file, if it is such an array.
  void add(const safetensors_file& file, const file_tensor& t) {
    if (is_array(t.name))
      all_.emplace(t.name, array{&file, t.type, {t.shape.begin(), t.shape.end()}, t.bytes});
  }
  /// Tells whether a tensor holds codes, which an array decodes.
  bool has_codes(const hf_slice& t) const {
    if (storage_ == hf_storage::fp8) return t.type == storage_type::f8_e4m3;
    return storage_ == hf_storage::nf4 && t.type == storage_type::u8;
  }
  /// Throws mc::error for an array that decodes no tensor.
  void require_all_taken() const {
    for (const auto& [name, a] : all_)
      if (!a.taken)
        throw about(*a.file, name, "decodes no tensor; the file is of another model or incomplete");
  }

  static error about(const safetensors_file& file, std::string_view name, std::string_view what) {
    return error(exit_code::model,
                 fmt::format("{}: tensor \"{}\" {}", file->path(), printable(name), what));
  }
  /// Throws mc::error for a tensor of a file that has another shape than a program needs.
  static void require_shape(const safetensors_file& file, const hf_slice& stored,
                            const std::vector<std::int64_t>& shape, const std::string& program) {
    if (stored.shape != shape)
      throw about(file, stored.stored_name,
                  fmt::format("has the shape {}, but {} needs {}", shape_text(stored.shape),
                              program, shape_text(shape)));
  }

  /// Returns what decodes a tensor. Throws mc::error that names what is missing or inconsistent.
  std::shared_ptr<const hf_quantised> of(const hf_slice& stored, const safetensors_file& file,
                                         const hf_tensor& ours, const std::string& program) const {
    hf_quantised q;
    const bool of_nf4 = storage_ == hf_storage::nf4;
    const std::vector<std::int64_t> shape = of_nf4 ? ours.matrix_shape() : ours.shape;
    q.as = storage_, q.shape = shape, q.transposed = of_nf4 && ours.is_transposed();
    const auto refuse = [&](const std::string& what) {
      return about(file, stored.stored_name, what);
    };
    if (shape.size() != 2) throw refuse("is stored in fewer bits, and is no matrix");
    const std::int64_t n = shape[0] * shape[1];
    if (storage_ == hf_storage::fp8) {
      require_shape(file, stored, shape, program);
      const std::vector<std::int64_t> blocks{fp8_blocks(shape[0]), fp8_blocks(shape[1])};
      q.scales = numbers_of(stored, file, "_scale_inv", blocks[0] * blocks[1]);
      const array& a = array_of(stored, file, "_scale_inv", std::nullopt);
      if (a.shape != blocks)
        throw about(
            *a.file, std::string(stored.stored_name) + "_scale_inv",
            fmt::format("has the shape {}, but {} is that of the blocks of \"{}\"",
                        shape_text(a.shape), shape_text(blocks), printable(stored.stored_name)));
      for (const std::byte code : stored.bytes)
        if ((std::to_integer<unsigned>(code) & 0x7fu) == 0x7fu)
          throw refuse("holds a NaN; whoever saved it had diverged");
      return std::make_shared<const hf_quantised>(std::move(q));
    }
    const array& of_state = array_of(stored, file, ".quant_state.bitsandbytes__nf4", std::nullopt);
    const std::string path =
        fmt::format("{}: {}.quant_state", (*of_state.file)->path(), printable(stored.stored_name));
    const json_value state(
        parse_json({reinterpret_cast<const char*>(of_state.bytes.data()), of_state.bytes.size()},
                   path),
        path, exit_code::model);
    const bool nested = state.has("nested_blocksize");
    if (state.field<std::string>("quant_type") != "nf4" ||
        state.field<std::int64_t>("blocksize") != nf4_block ||
        (nested && state.field<std::int64_t>("nested_blocksize") != nf4_nested_block))
      throw state.fault("is not of nf4 in blocks of 64 and nested blocks of 256");
    if (state.field<std::vector<std::int64_t>>("shape") != shape)
      throw state.fault(fmt::format("is of a matrix {}, but {} needs {}",
                                    printable(state.raw().at("shape").dump()), program,
                                    shape_text(shape)));
    if (std::ssize(stored.bytes) != nf4_bytes(n))
      throw refuse(fmt::format("has {} bytes, but {} weights take {}", stored.bytes.size(), n,
                               nf4_bytes(n)));
    const std::vector<float> values = numbers_of(stored, file, ".quant_map", 16);
    if (!std::ranges::equal(values, nf4_values))
      throw refuse("has a quant_map other than that of nf4");
    if (!nested) {
      q.scales = numbers_of(stored, file, ".absmax", nf4_blocks(n));
      return std::make_shared<const hf_quantised>(std::move(q));
    }
    const array& codes = array_of(stored, file, ".absmax", nf4_blocks(n));
    if (codes.type != storage_type::u8) throw refuse("has absmax that is no U8");
    const auto* const bytes = reinterpret_cast<const std::uint8_t*>(codes.bytes.data());
    q.codes.assign(bytes, bytes + codes.bytes.size());
    q.scales = numbers_of(stored, file, ".nested_absmax", nf4_nested_blocks(n));
    q.map = numbers_of(stored, file, ".nested_quant_map", 256);
    q.offset = state.field<float>("nested_offset");
    if (!std::isfinite(q.offset)) throw state.fault("has a nested_offset that is not finite");
    return std::make_shared<const hf_quantised>(std::move(q));
  }

private:
  /// An array beside a tensor that is stored in fewer bits.
  struct array {
    const safetensors_file* file;
    storage_type type;
    std::vector<std::int64_t> shape;
    std::span<const std::byte> bytes;
    mutable bool taken = false;
  };
  /// Returns an array beside a tensor. Throws unless it is there, with so many elements.
  const array& array_of(const hf_slice& stored, const safetensors_file& file, std::string_view end,
                        std::optional<std::int64_t> count) const {
    const std::string name = std::string(stored.stored_name) + std::string(end);
    const auto at = all_.find(name);
    if (at == all_.end())
      throw about(file, name,
                  fmt::format("is missing; it decodes \"{}\"", printable(stored.stored_name)));
    const std::int64_t size = bits_of(at->second.type) / 8,
                       have = std::ssize(at->second.bytes) / std::max<std::int64_t>(1, size);
    if (count && have != *count)
      throw about(*at->second.file, name,
                  fmt::format("has {} elements, but {} decode \"{}\"", have, *count,
                              printable(stored.stored_name)));
    at->second.taken = true;
    return at->second;
  }
  /// Returns the numbers of such an array.
  std::vector<float> numbers_of(const hf_slice& stored, const safetensors_file& file,
                                std::string_view end, std::int64_t count) const {
    const array& a = array_of(stored, file, end, count);
    const std::string name = std::string(stored.stored_name) + std::string(end);
    if (a.type != storage_type::f32 && a.type != storage_type::bf16)
      throw about(*a.file, name,
                  fmt::format("is of type {}, but F32 or BF16 is needed", name_of(a.type)));
    std::vector<double> wide(static_cast<std::size_t>(count));
    read_values(file_tensor{name, a.type, std::span(&count, 1), a.bytes}, std::span(wide));
    for (const double x : wide)
      if (!std::isfinite(x)) throw about(*a.file, name, fmt::format("holds {}", x));
    return {wide.begin(), wide.end()};
  }

  hf_storage storage_;
  std::map<std::string, array, std::less<>> all_; ///< by name
};

} // namespace mc
