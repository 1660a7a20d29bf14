// Event files of TensorBoard (record_writer.h, event.proto and summary.proto of TensorFlow): each
// record is a length, a check sum of it, a message of protocol buffers, and a check sum of that.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace mc {

namespace detail {

/// The check sums of single bytes by CRC-32C (Castagnoli), whose polynomial is 0x1edc6f41.
inline constexpr std::array<std::uint32_t, 256> crc32c_of_bytes = [] {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < 256; ++i) {
    std::uint32_t c = i;
    for (int k = 0; k < 8; ++k) c = (c & 1) != 0 ? c >> 1 ^ 0x82f63b78 : c >> 1;
    table[i] = c;
  }
  return table;
}();

} // namespace detail

/// Returns the check sum of some bytes by CRC-32C (RFC 3720, appendix B.4).
constexpr std::uint32_t crc32c(std::string_view bytes) {
  std::uint32_t c = ~0u;
  for (const char b : bytes)
    c = detail::crc32c_of_bytes[(c ^ static_cast<unsigned char>(b)) & 0xff] ^ c >> 8;
  return ~c;
}

/// A message of protocol buffers in its wire format, to which fields are added.
class wire_message {
public:
  const std::string& bytes() const { return bytes_; }
  void clear() { bytes_.clear(); }

  void whole(int field, std::uint64_t v) { key(field, 0), varint(v); }
  void real(int field, double v) { key(field, 1), fixed(std::bit_cast<std::uint64_t>(v)); }
  void real(int field, float v) { key(field, 5), fixed(std::bit_cast<std::uint32_t>(v)); }
  /// Adds a text, or another message.
  void text(int field, std::string_view v) {
    key(field, 2), varint(v.size());
    bytes_ += v;
  }
  void message(int field, const wire_message& m) { text(field, m.bytes()); }

private:
  void key(int field, unsigned type) { varint(static_cast<unsigned>(field) << 3 | type); }
  void varint(std::uint64_t v) {
    for (; v >= 0x80; v >>= 7) bytes_ += static_cast<char>(v | 0x80);
    bytes_ += static_cast<char>(v);
  }
  template <class T> void fixed(T v) {
    for (std::size_t i = 0; i < sizeof v; ++i) bytes_ += static_cast<char>(v >> 8 * i);
  }

  std::string bytes_;
};

/// Appends a record that holds `data`.
inline void append_record(std::string& to, std::string_view data) {
  const auto number = [&to](std::uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) to += static_cast<char>(v >> 8 * i);
  };
  const auto masked = [](std::string_view bytes) { // so that sums of sums differ
    const std::uint32_t c = crc32c(bytes);
    return std::rotr(c, 15) + 0xa282ead8;
  };
  const std::size_t begin = to.size();
  number(data.size(), 8);
  number(masked(std::string_view(to).substr(begin)), 4);
  to += data;
  number(masked(data), 4);
}

/// An event of TensorBoard: what happened at a time, behind a step.
class tensorboard_event {
public:
  tensorboard_event(double time, std::int64_t step) {
    event_.real(1, time);
    if (step != 0) event_.whole(2, static_cast<std::uint64_t>(step));
  }
  /// The first event of a file.
  static tensorboard_event of_version(double time) {
    tensorboard_event e(time, 0);
    e.event_.text(3, "brain.Event:2");
    return e;
  }
  void number(std::string_view tag, double v) {
    wire_message value;
    value.text(1, tag), value.real(2, static_cast<float>(v));
    summary_.message(1, value);
  }
  /// Adds what a plugin reads, beside an empty tensor of floats.
  void plugin(std::string_view tag, std::string_view plugin, const wire_message& content) {
    wire_message value, metadata, data, tensor, shape;
    data.text(1, plugin), data.message(2, content);
    metadata.message(1, data);
    shape.text(2, ""); // one dim, of size 0
    tensor.whole(1, 1), tensor.message(2, shape);
    value.text(1, tag), value.message(8, tensor), value.message(9, metadata);
    summary_.message(1, value);
  }
  /// Appends the event as a record.
  void append_to(std::string& to) {
    if (!summary_.bytes().empty()) event_.message(5, summary_);
    append_record(to, event_.bytes());
  }

private:
  wire_message event_, summary_;
};

} // namespace mc
