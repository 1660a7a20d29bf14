// The checksums of files: XXH64 of every stretch of bytes_per_checksum bytes, by xxHash (Y. Collet,
// "xxHash fast digest algorithm", seed 0). The checksum is no protection against forgery.
#pragma once

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The XXH64 hash of bytes that are added in any number of pieces. Throws std::bad_alloc where
/// there is no memory for its state.
class xxh64 {
public:
  xxh64() {
    if (!state_) throw std::bad_alloc();
    (void)XXH64_reset(state_.get(), 0);
  }
  void add(std::span<const std::byte> bytes) {
    (void)XXH64_update(state_.get(), bytes.data(), bytes.size()); // refuses nothing but null
  }
  std::uint64_t value() const { return XXH64_digest(state_.get()); }

  static std::uint64_t of(std::span<const std::byte> bytes) {
    return XXH64(bytes.data(), bytes.size(), 0);
  }

private:
  struct ending {
    void operator()(XXH64_state_t* state) const { (void)XXH64_freeState(state); }
  };
  std::unique_ptr<XXH64_state_t, ending> state_{XXH64_createState()};
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
