// This header writes safetensors files: first the names, types and shapes of all tensors, then the
// tensors' bytes as a stream.
#pragma once

#include <megacpp/checkpoint/safetensors.hpp>
#include <megacpp/checkpoint/storage_type.hpp>
#include <megacpp/io/byte_sink.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc {

/// tensor_spec names a tensor that is to be written, with its type and shape.
struct tensor_spec {
  std::string name;
  storage_type type = storage_type::f32;
  std::vector<std::int64_t> shape;
};

/// safetensors_layout is the header of a file that is to be written. Tensors are stored by
/// descending type, then by name, as the format's reference writer does. So equal tensors give
/// equal files, in whatever order they were given.
class safetensors_layout {
public:
  /// Lays out a file of these tensors. transformers reads only files whose `metadata` has "format":
  /// "pt". Throws mc::error(exit_code::internal) for a name given twice or a size that overflows.
  explicit safetensors_layout(std::vector<tensor_spec> tensors,
                              const std::map<std::string, std::string>& metadata = {{"format",
                                                                                     "pt"}})
      : tensors_(std::move(tensors)) {
    std::sort(tensors_.begin(), tensors_.end(), [](const tensor_spec& a, const tensor_spec& b) {
      return std::tie(b.type, a.name) < std::tie(a.type, b.name);
    });
    std::map<std::string, int> seen;
    header_ = "{";
    if (!metadata.empty()) header_ += "\"__metadata__\":" + nlohmann::json(metadata).dump();
    for (const tensor_spec& t : tensors_) {
      if (t.name == "__metadata__" || !seen.emplace(t.name, 0).second)
        throw error(exit_code::internal,
                    fmt::format("two tensors named \"{}\" cannot be saved", t.name));
      const bool negative =
          std::any_of(t.shape.begin(), t.shape.end(), [](auto n) { return n < 0; });
      const auto bytes = negative ? std::nullopt : detail::byte_count(t.type, t.shape);
      if (!bytes || __builtin_add_overflow(data_size_, *bytes, &data_size_))
        throw error(exit_code::internal,
                    fmt::format("tensor \"{}\" {} has no size that can be saved", t.name,
                                shape_text(t.shape)));
      sizes_.push_back(*bytes);
      const nlohmann::ordered_json record{{"dtype", name_of(t.type)},
                                          {"shape", t.shape},
                                          {"data_offsets", {data_size_ - *bytes, data_size_}}};
      // One nlohmann::json object of all tensors would search all earlier names for each new one.
      header_ +=
          (header_.size() > 1 ? "," : "") + nlohmann::json(t.name).dump() + ":" + record.dump();
    }
    header_ += '}';
    header_.append((8 - header_.size() % 8) % 8, ' ');
    if (header_.size() > safetensors_header_limit)
      throw error(exit_code::internal,
                  fmt::format("a header of {} bytes is above the format's limit of {}",
                              header_.size(), safetensors_header_limit));
  }

  /// Returns the bytes of the whole file.
  std::uint64_t file_size() const { return 8 + header_.size() + data_size_; }
  /// Returns the bytes of all tensors, which a shard index has as `metadata.total_size`.
  std::uint64_t data_size() const { return data_size_; }
  /// Returns the tensors in the order in which write() asks for their bytes.
  std::span<const tensor_spec> tensors() const { return tensors_; }

  /// Writes the file to `out`. give(tensor, sink) is called once for each tensor, in order; it
  /// passes the tensor's bytes (little-endian, row-major) to the sink in any number of calls.
  /// Throws mc::error(exit_code::internal) if `give` passes another number of bytes than the shape
  /// has.
  template <class Give> void write(const byte_sink& out, Give&& give) const {
    const std::uint64_t n = header_.size();
    out(std::as_bytes(std::span(&n, 1)));
    out(std::as_bytes(std::span(header_)));
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      std::uint64_t given = 0;
      const byte_sink counted = [&](std::span<const std::byte> bytes) {
        given += bytes.size();
        if (given <= sizes_[i]) out(bytes);
      };
      give(tensors_[i], counted);
      if (given != sizes_[i])
        throw error(exit_code::internal,
                    fmt::format("tensor \"{}\" has {} bytes, but {} were given", tensors_[i].name,
                                sizes_[i], given));
    }
  }

private:
  std::vector<tensor_spec> tensors_;
  std::vector<std::uint64_t> sizes_;
  std::string header_;
  std::uint64_t data_size_ = 0;
};

} // namespace mc
