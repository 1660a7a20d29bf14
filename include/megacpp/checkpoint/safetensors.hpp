// This header reads safetensors files. A file is a u64 N, then N bytes of JSON (the header), then
// the tensors' bytes without gaps.
#pragma once

#include <megacpp/checkpoint/safetensors_header.hpp>
#include <megacpp/checkpoint/storage_type.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

/// file_tensor is one tensor of a file, whose bytes it does not own. `bytes` may have any
/// alignment.
struct file_tensor {
  std::string_view name;
  storage_type type;
  std::span<const std::int64_t> shape;
  std::span<const std::byte> bytes;

  std::int64_t elements() const {
    return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  }
};

/// safetensors_reader gives access to the tensors of a safetensors file in memory, whose bytes must
/// outlive it. It verifies the header against the bytes: names are unique, a tensor's extents times
/// its element size is the size of its range, and ranges follow one another from the first data
/// byte to the last byte of the file.
class safetensors_reader {
public:
  /// Reads the header. Throws mc::error(code) that names `path`, the tensor and its fault.
  safetensors_reader(std::span<const std::byte> file, std::string_view path,
                     exit_code code = exit_code::model)
      : path_(path), code_(code) {
    const std::span<const std::byte> header = cut_header(file);
    const std::string_view text(reinterpret_cast<const char*>(header.data()), header.size());
    detail::refuse_nul(text, fmt::format("the header of {} (from offset 8)", path_), code_);
    detail::header_reader reader(path_, code_);
    nlohmann::json::sax_parse(text, &reader);
    tensors_ = std::move(reader.tensors);
    metadata_ = std::move(reader.metadata);
    data_ = file.subspan(8 + header.size());
    check_ranges();
    check_names();
  }

  std::size_t size() const { return tensors_.size(); }
  /// Returns tensor i, in the order of the file.
  file_tensor operator[](std::size_t i) const {
    const detail::tensor_record& e = tensors_[i];
    return {e.name, e.type, e.shape, data_.subspan(e.begin, e.end - e.begin)};
  }
  bool contains(std::string_view name) const { return find(name).has_value(); }
  std::optional<file_tensor> find(std::string_view name) const {
    const auto at = std::lower_bound(
        by_name_.begin(), by_name_.end(), name,
        [this](std::uint32_t i, std::string_view wanted) { return tensors_[i].name < wanted; });
    if (at == by_name_.end() || tensors_[*at].name != name) return std::nullopt;
    return (*this)[*at];
  }
  /// Returns the tensor of a name. Throws mc::error(code()) where the file has none.
  file_tensor at(std::string_view name) const {
    if (const auto t = find(name)) return *t;
    throw error(code_,
                fmt::format("{} has no tensor \"{}\"; it is a file of another model", path_, name));
  }
  const std::map<std::string, std::string, std::less<>>& metadata() const { return metadata_; }
  const std::string& path() const { return path_; }
  exit_code code() const { return code_; }
  /// Returns the bytes that all tensors take together.
  std::uint64_t data_size() const { return data_.size(); }

private:
  error fault(std::string_view why) const { return detail::safetensors_fault(path_, code_, why); }

  std::span<const std::byte> cut_header(std::span<const std::byte> file) const {
    if (file.size() < 8)
      throw fault(
          fmt::format("it has {} bytes, fewer than the 8 of its length field", file.size()));
    std::uint64_t n = 0;
    std::memcpy(&n, file.data(), 8);
    const auto first = file.size() > 8 ? std::to_integer<char>(file[8]) : '\0';
    if (n > safetensors_header_limit)
      throw fault(fmt::format(
          "its header length {} is above the limit of {} bytes{}", n, safetensors_header_limit,
          is_pickle(file) ? " (this looks like a PyTorch .bin or .pt file; convert it to "
                            "safetensors)"
                          : ""));
    if (n > file.size() - 8)
      throw fault(fmt::format(
          "its header of {} bytes does not fit in the file of {} bytes: the file is cut "
          "short",
          n, file.size()));
    if (n < 2 || first != '{') throw fault("its header does not begin with { at offset 8");
    return file.subspan(8, n);
  }

  /// Returns whether the file is a zip archive, as torch.save writes, or a bare pickle.
  static bool is_pickle(std::span<const std::byte> file) {
    return std::memcmp(file.data(), "PK\3\4", 4) == 0 || file[0] == std::byte{0x80};
  }

  void check_ranges() {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::uint64_t at = 0;
    for (const detail::tensor_record& e : tensors_) {
      const auto about = [&](std::string_view why) {
        return fault(fmt::format("tensor \"{}\": {}", printable(e.name), why));
      };
      if (e.begin > e.end || e.end > data_.size())
        throw about(fmt::format(
            "its data_offsets [{}, {}] lie outside the {} bytes of data; the file may be "
            "cut short",
            e.begin, e.end, data_.size()));
      if (e.begin != at)
        throw about(fmt::format(
            "its data begins at {}, but {} up to {}", e.begin,
            e.begin > at ? "there is a hole: data is used only" : "overlaps: data is already used",
            at));
      const auto bytes = detail::byte_count(e.type, e.shape);
      if (!bytes)
        throw about(fmt::format("the size of {} {} overflows or is not whole bytes",
                                name_of(e.type), shape_text(e.shape)));
      if (*bytes != e.end - e.begin)
        throw about(fmt::format("{} {} takes {} bytes, but its data_offsets give {}",
                                name_of(e.type), shape_text(e.shape), *bytes, e.end - e.begin));
      at = e.end;
    }
    if (at != data_.size())
      throw fault(
          fmt::format("its tensors take {} bytes, but {} follow the header", at, data_.size()));
  }

  void check_names() {
    by_name_.resize(tensors_.size());
    std::iota(by_name_.begin(), by_name_.end(), 0u);
    const auto name = [this](std::uint32_t i) -> const std::string& { return tensors_[i].name; };
    std::sort(by_name_.begin(), by_name_.end(),
              [&](std::uint32_t a, std::uint32_t b) { return name(a) < name(b); });
    for (std::size_t i = 1; i < by_name_.size(); ++i)
      if (name(by_name_[i - 1]) == name(by_name_[i]))
        throw fault(fmt::format("tensor \"{}\" appears twice", printable(name(by_name_[i]))));
  }

  std::string path_;
  exit_code code_;
  std::vector<detail::tensor_record> tensors_; ///< The tensors in the order of their bytes.
  std::vector<std::uint32_t> by_name_;         ///< Indices into tensors_, sorted by name.
  std::map<std::string, std::string, std::less<>> metadata_;
  std::span<const std::byte> data_;
};

/// safetensors_file is a safetensors file mapped into memory: a tensor is read from disk when its
/// bytes are touched.
class safetensors_file {
public:
  explicit safetensors_file(mapped_file file)
      : file_(std::move(file)), reader_(file_.bytes(), file_.path(), file_.code()) {}
  explicit safetensors_file(const std::string& path, exit_code code = exit_code::model)
      : safetensors_file(mapped_file(path, code)) {}

  const safetensors_reader& tensors() const { return reader_; }
  const safetensors_reader* operator->() const { return &reader_; }
  /// Throws if the file was cut or has grown since it was opened. Callers that read bytes long
  /// after opening the file call this first.
  void check_unchanged() const { file_.check_unchanged(); }

private:
  mapped_file
      file_; ///< Moving a mapped file leaves its bytes in place, so that reader_ stays valid.
  safetensors_reader reader_;
};

namespace detail {
template <class Stored, class T> void widen(std::span<const std::byte> bytes, std::span<T> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    Stored v;
    std::memcpy(&v, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    if constexpr (std::is_same_v<Stored, std::uint16_t>)
      out[i] = convert<T>(half_to_float(v)); // A std::uint16_t holds the bits of an F16.
    else if constexpr (std::is_integral_v<Stored>) out[i] = static_cast<T>(v);
    else out[i] = convert<T>(v);
  }
}
} // namespace detail

/// Copies a tensor's elements into `out`, row-major, and converts them to T. A floating T takes
/// F64, F32, BF16 and F16, rounded to nearest even; an integer T takes I64, I32, I16, I8 and U8.
/// Throws mc::error(code) that names the tensor if `out` has another number of elements, the type
/// cannot be converted, or an integer does not fit.
template <class T>
void read_values(const file_tensor& tensor, std::span<T> out, exit_code code = exit_code::model) {
  const auto refuse = [&](std::string_view why) {
    return error(code, fmt::format("tensor \"{}\" ({} {}): {}", printable(tensor.name),
                                   name_of(tensor.type), shape_text(tensor.shape), why));
  };
  if (static_cast<std::size_t>(tensor.elements()) != out.size())
    throw refuse(
        fmt::format("it has {} elements, but {} are needed", tensor.elements(), out.size()));
  if constexpr (std::is_integral_v<T>) {
    std::vector<std::int64_t> wide(out.size());
    switch (tensor.type) {
    case storage_type::i64: detail::widen<std::int64_t>(tensor.bytes, std::span(wide)); break;
    case storage_type::i32: detail::widen<std::int32_t>(tensor.bytes, std::span(wide)); break;
    case storage_type::i16: detail::widen<std::int16_t>(tensor.bytes, std::span(wide)); break;
    case storage_type::i8: detail::widen<std::int8_t>(tensor.bytes, std::span(wide)); break;
    case storage_type::u8: detail::widen<std::uint8_t>(tensor.bytes, std::span(wide)); break;
    default: throw refuse("only I64, I32, I16, I8 and U8 can be read as integers");
    }
    for (std::size_t i = 0; i < wide.size(); ++i) {
      out[i] = static_cast<T>(wide[i]);
      if (static_cast<std::int64_t>(out[i]) != wide[i])
        throw refuse(fmt::format("element {} is {}, which does not fit", i, wide[i]));
    }
  } else {
    switch (tensor.type) {
    case storage_type::f64: detail::widen<double>(tensor.bytes, out); break;
    case storage_type::f32: detail::widen<float>(tensor.bytes, out); break;
    case storage_type::bf16: detail::widen<bf16>(tensor.bytes, out); break;
    case storage_type::f16: detail::widen<std::uint16_t>(tensor.bytes, out); break;
    default:
      throw refuse("only F64, F32, BF16 and F16 can be read as weights; convert the model first");
    }
  }
}

} // namespace mc
