// The header of a safetensors file is JSON that names each tensor with its type, shape and the
// range of its bytes.
#pragma once

#include <megacpp/checkpoint/storage_type.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/io/json_file.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// safetensors_header_limit is the most bytes of a header, as in the format's reference reader.
inline constexpr std::uint64_t safetensors_header_limit = 100'000'000;
inline constexpr std::size_t safetensors_tensor_limit = 1'000'000;
inline constexpr std::size_t safetensors_dims_limit = 32;

/// Returns a shape as text, such as "[768, 2304]".
inline std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text;
  for (const std::int64_t n : shape) (text += text.empty() ? "[" : ", ") += std::to_string(n);
  return text.empty() ? "[]" : text + "]";
}

namespace detail {

struct tensor_record {
  std::string name;
  storage_type type = storage_type::u8;
  std::vector<std::int64_t> shape;
  std::uint64_t begin = 0, end = 0;
};

inline error safetensors_fault(std::string_view path, exit_code code, std::string_view why) {
  return error(
      code,
      fmt::format("{} is not a valid safetensors file: {}; download or write it again", path, why));
}

/// header_reader receives the header's JSON event by event. Its memory grows with the bytes that
/// were read, and never with a size that the file claims. The header is an object of objects of
/// lists; a header of any other structure is refused.
class header_reader final : public nlohmann::json_sax<nlohmann::json> {
public:
  header_reader(std::string_view path, exit_code code) : path_(path), code_(code) {}

  std::vector<tensor_record> tensors;
  std::map<std::string, std::string, std::less<>> metadata;

  bool null() override { throw unexpected("null"); }
  bool boolean(bool) override { throw unexpected("true or false"); }
  bool number_integer(number_integer_t v) override { throw unexpected(fmt::format("{}", v)); }
  bool number_float(number_float_t, const string_t& text) override {
    throw unexpected(printable(text));
  }
  bool binary(binary_t&) override { throw unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t v) override {
    if (state_ == state::shape) {
      if (v > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        throw about(fmt::format("the extent {} is too large", v));
      if (tensors.back().shape.size() >= safetensors_dims_limit)
        throw about(fmt::format("it has more than {} dimensions", safetensors_dims_limit));
      tensors.back().shape.push_back(static_cast<std::int64_t>(v));
    } else if (state_ == state::offsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensors.back().begin : tensors.back().end) = v;
    } else {
      throw unexpected(fmt::format("the number {}", v));
    }
    return true;
  }

  bool string(string_t& v) override {
    if (state_ == state::metadata) {
      if (!metadata.emplace(key_, std::move(v)).second)
        throw fault(fmt::format("the key \"{}\" appears twice in __metadata__", printable(key_)));
    } else if (state_ == state::tensor && key_ == "dtype") {
      const auto type = storage_type_named(v);
      if (!type) throw about(fmt::format("its dtype \"{}\" is unknown", printable(v)));
      tensors.back().type = *type;
    } else {
      throw unexpected(fmt::format("the string \"{}\"", printable(v)));
    }
    return true;
  }

  bool key(string_t& name) override {
    key_ = std::move(name);
    if (state_ != state::tensor) return true;
    const unsigned bit = key_ == "dtype" ? 1 : key_ == "shape" ? 2 : key_ == "data_offsets" ? 4 : 0;
    if (bit == 0) throw about(fmt::format("it has an unknown field \"{}\"", printable(key_)));
    if (seen_ & bit) throw about(fmt::format("its field \"{}\" appears twice", key_));
    seen_ |= bit;
    return true;
  }

  bool start_object(std::size_t) override {
    if (state_ == state::outside) {
      state_ = state::top;
    } else if (state_ == state::top && key_ == "__metadata__") {
      if (std::exchange(metadata_seen_, true)) throw fault("__metadata__ appears twice");
      state_ = state::metadata;
    } else if (state_ == state::top) {
      if (tensors.size() >= safetensors_tensor_limit)
        throw fault(fmt::format("it names more than {} tensors", safetensors_tensor_limit));
      tensors.emplace_back().name = std::move(key_);
      seen_ = 0;
      offsets_ = 0;
      state_ = state::tensor;
    } else {
      throw unexpected("an object");
    }
    return true;
  }

  bool end_object() override {
    if (state_ == state::tensor) {
      if (!(seen_ & 1)) throw about("it has no dtype");
      if (!(seen_ & 2)) throw about("it has no shape");
      if (!(seen_ & 4)) throw about("it has no data_offsets");
    }
    state_ = state_ == state::top ? state::outside : state::top;
    return true;
  }

  bool start_array(std::size_t) override {
    if (state_ == state::tensor && key_ == "shape") state_ = state::shape;
    else if (state_ == state::tensor && key_ == "data_offsets") state_ = state::offsets;
    else throw unexpected("a list");
    return true;
  }

  bool end_array() override {
    if (state_ == state::offsets && offsets_ != 2)
      throw about("its data_offsets are not two numbers");
    state_ = state::tensor;
    return true;
  }

  bool parse_error(std::size_t byte, const std::string&,
                   const nlohmann::detail::exception& problem) override {
    throw json_fault(fmt::format("the header of {} (from offset 8)", path_), code_, byte, problem);
  }

private:
  enum class state { outside, top, metadata, tensor, shape, offsets };

  error fault(std::string_view why) const { return safetensors_fault(path_, code_, why); }
  error about(std::string_view why) const {
    return fault(fmt::format("tensor \"{}\": {}", printable(tensors.back().name), why));
  }
  error unexpected(std::string_view what) const {
    if (state_ == state::tensor || state_ == state::shape || state_ == state::offsets)
      return about(fmt::format("its {} cannot hold {}", key_, what));
    if (state_ == state::outside)
      return fault(fmt::format("its header is {}, not an object", what));
    return fault(fmt::format("its header holds {} under \"{}\"", what, printable(key_)));
  }

  std::string_view path_;
  exit_code code_;
  state state_ = state::outside;
  std::string key_;
  unsigned seen_ = 0;
  int offsets_ = 0;
  bool metadata_seen_ = false;
};

/// Returns the bytes of a tensor, or nothing if the count overflows or does not fill whole bytes.
inline std::optional<std::uint64_t> byte_count(storage_type type,
                                               std::span<const std::int64_t> shape) {
  std::uint64_t n = bits_of(type);
  for (const std::int64_t extent : shape)
    if (__builtin_mul_overflow(n, static_cast<std::uint64_t>(extent), &n)) return std::nullopt;
  return n % 8 ? std::nullopt : std::optional(n / 8);
}

} // namespace detail

} // namespace mc
