// The checksums of files: XXH64 of every stretch of bytes_per_checksum bytes.
//
// XXH64 (Y. Collet, "xxHash fast digest algorithm", specification 0.2.0, seed 0). Four sums of 64
// bits go over stripes of 32 bytes,
//
//   sum = rotl(sum + eight bytes * P2, 31) * P1
//
// and then the sums, the length and the last bytes, fewer than 32, are folded into one number,
// whose bits a final sequence of multiplications and shifts mixes. The checksum is no protection
// against forgery.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The XXH64 hash of bytes that are added in any number of pieces.
class xxh64 {
public:
  void add(std::span<const std::byte> bytes) {
    length_ += bytes.size();
    if (held_ > 0) {
      const std::size_t n = std::min(bytes.size(), stripe - held_);
      std::memcpy(rest_.data() + held_, bytes.data(), n);
      held_ += n;
      bytes = bytes.subspan(n);
      if (held_ < stripe) return;
      take(rest_.data());
      held_ = 0;
    }
    for (; bytes.size() >= stripe; bytes = bytes.subspan(stripe)) take(bytes.data());
    if (!bytes.empty()) std::memcpy(rest_.data(), bytes.data(), bytes.size());
    held_ = bytes.size();
  }

  std::uint64_t value() const {
    std::uint64_t h = p5;
    if (length_ >= stripe) {
      h = std::rotl(sums_[0], 1) + std::rotl(sums_[1], 7) + std::rotl(sums_[2], 12) +
          std::rotl(sums_[3], 18);
      for (const std::uint64_t sum : sums_) h = (h ^ mixed(0, sum)) * p1 + p4;
    }
    h += length_;
    std::size_t i = 0;
    for (; i + 8 <= held_; i += 8)
      h = std::rotl(h ^ mixed(0, rest_at<std::uint64_t>(i)), 27) * p1 + p4;
    for (; i + 4 <= held_; i += 4)
      h = std::rotl(h ^ (rest_at<std::uint32_t>(i) * p1), 23) * p2 + p3;
    for (; i < held_; ++i) h = std::rotl(h ^ (rest_at<std::uint8_t>(i) * p5), 11) * p1;
    h = (h ^ (h >> 33)) * p2;
    h = (h ^ (h >> 29)) * p3;
    return h ^ (h >> 32);
  }

  static std::uint64_t of(std::span<const std::byte> bytes) {
    xxh64 h;
    h.add(bytes);
    return h.value();
  }

private:
  static constexpr std::size_t stripe = 32;
  static constexpr std::uint64_t p1 = 0x9E3779B185EBCA87u, p2 = 0xC2B2AE3D27D4EB4Fu,
                                 p3 = 0x165667B19E3779F9u, p4 = 0x85EBCA77C2B2AE63u,
                                 p5 = 0x27D4EB2F165667C5u;

  static std::uint64_t mixed(std::uint64_t sum, std::uint64_t number) {
    return std::rotl(sum + number * p2, 31) * p1;
  }
  void take(const std::byte* from) {
    std::array<std::uint64_t, 4> numbers;
    std::memcpy(numbers.data(), from, stripe);
    for (std::size_t i = 0; i < 4; ++i) sums_[i] = mixed(sums_[i], numbers[i]);
  }
  template <class Number> std::uint64_t rest_at(std::size_t at) const {
    Number w;
    std::memcpy(&w, rest_.data() + at, sizeof w);
    return w;
  }

  std::array<std::uint64_t, 4> sums_{p1 + p2, p2, 0, 0 - p1};
  std::array<std::byte, stripe> rest_{};
  std::size_t held_ = 0;
  std::uint64_t length_ = 0;
};

/// Bytes under one checksum. A fault is located to within so many bytes, and threads share the work
/// on a file.
inline constexpr std::uint64_t bytes_per_checksum = 4u << 20;

/// The checksums of a file that is written from beginning to end.
class file_checksums {
public:
  void add(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const std::size_t n = std::min<std::uint64_t>(bytes.size(), bytes_per_checksum - filled_);
      current_.add(bytes.first(n));
      bytes = bytes.subspan(n);
      size_ += n;
      filled_ += n;
      if (filled_ == bytes_per_checksum) close();
    }
  }
  std::uint64_t size() const { return size_; }
  /// Returns one checksum for each stretch; the last stretch may be shorter. It is called once, at
  /// the end.
  std::vector<std::uint64_t> finish() {
    if (filled_ > 0) close();
    return std::move(values_);
  }

private:
  void close() {
    values_.push_back(current_.value());
    current_ = {};
    filled_ = 0;
  }

  std::vector<std::uint64_t> values_;
  xxh64 current_;
  std::uint64_t size_ = 0, filled_ = 0;
};

/// The name, size and checksums of a file that was written.
struct file_record {
  std::string name;
  std::uint64_t bytes = 0;
  std::vector<std::uint64_t> checksums; ///< one for each stretch of bytes_per_checksum bytes
};

} // namespace mc
