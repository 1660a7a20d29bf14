// This header reads Megatron's indexed datasets. P.bin holds the tokens of all sequences, and P.idx
// says where each sequence begins (Megatron-LM, megatron/core/datasets/indexed_dataset.py).
//
// P.idx, little-endian, without padding, S sequences and D - 1 documents:
//   0        9 bytes   MMIDIDX, 0, 0
//   9        u64       version, 1
//   17       u8        type of a token
//   18       u64 u64   S, D
//   34       i32 [S]   lengths in tokens
//   34+4S    i64 [S]   byte at which each begins in P.bin: prefix sums of length * size of a token
//   34+12S   i64 [D]   0, then the number of sequences up to the end of each document
#pragma once

#include <megacpp/io/mapped_file.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include <sys/stat.h>

#include <fmt/format.h>

namespace mc {

static_assert(std::endian::native == std::endian::little, "indexed datasets are little-endian");

/// token_type is the type of a token in the file, by the format's codes. The codes 6 and 7, which
/// are missing here, are floating point.
enum class token_type : std::uint8_t { u8 = 1, i8 = 2, i16 = 3, i32 = 4, i64 = 5, u16 = 8 };

/// Returns the type in which Megatron stores the tokens of a vocabulary.
constexpr token_type token_type_of(std::int64_t vocabulary) {
  return vocabulary < 65500 ? token_type::u16 : token_type::i32;
}

/// Calls f(Id()), where Id is the C++ type of a token.
template <class F> constexpr decltype(auto) visit(token_type t, F&& f) {
  switch (t) {
  // NOLINTNEXTLINE(bugprone-branch-clone): each branch has another type.
  case token_type::u8: return f(std::uint8_t());
  case token_type::i8: return f(std::int8_t());
  case token_type::i16: return f(std::int16_t());
  case token_type::u16: return f(std::uint16_t());
  case token_type::i64: return f(std::int64_t());
  case token_type::i32: break;
  }
  return f(std::int32_t());
}
constexpr std::int64_t size_of(token_type t) {
  return visit(t, [](auto id) { return static_cast<std::int64_t>(sizeof id); });
}
inline std::string name_of(token_type t) {
  return visit(t, [](auto id) {
    return (std::is_signed_v<decltype(id)> ? 'i' : 'u') + std::to_string(8 * sizeof id);
  });
}

namespace detail {

inline constexpr std::string_view idx_magic{"MMIDIDX\0\0", 9};
inline constexpr std::uint64_t idx_version = 1, idx_header_bytes = 34;

template <class T> T load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

} // namespace detail

/// indexed_dataset has the sequences of tokens of a prefix's two files. Both files are mapped, so
/// that only the bytes that are used are read. Opening reads P.idx once and nothing of P.bin. A
/// token below 0 or beyond the vocabulary is refused when it is read. Several threads may read at
/// once.
class indexed_dataset {
public:
  /// Opens the files of a prefix. Throws mc::error(exit_code::data) for files that are missing,
  /// malformed, or disagree.
  indexed_dataset(const std::string& prefix, std::int64_t vocabulary)
      : indexed_dataset{prefix, mapped_file(prefix + ".idx"), map_tokens(prefix + ".bin"),
                        vocabulary} {}
  /// Takes files that are mapped already. `bin` is nothing where the file is empty.
  indexed_dataset(std::string prefix, mapped_file idx, std::optional<mapped_file> bin,
                  std::int64_t vocabulary)
      : prefix_(std::move(prefix)),
        idx_(std::move(idx)),
        bin_(std::move(bin)),
        vocabulary_(vocabulary) {
    read_header();
    check_sequences();
    check_documents();
  }

  /// Returns the prefix, which names the dataset in messages.
  const std::string& name() const { return prefix_; }
  token_type type() const { return type_; }
  std::int64_t sequences() const { return sequences_; }
  std::int64_t documents() const { return documents_; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t vocabulary() const { return vocabulary_; }

  /// Returns the number of tokens of a sequence, 0 <= sequence < sequences().
  std::int32_t length(std::int64_t sequence) const {
    return detail::load<std::int32_t>(lengths_ + 4 * sequence);
  }
  /// Returns the first sequence of a document. For documents(), it returns sequences().
  std::int64_t first_of(std::int64_t document) const {
    return detail::load<std::int64_t>(ends_ + 8 * document);
  }
  /// Returns the document that a sequence belongs to.
  std::int64_t document_of(std::int64_t sequence) const {
    std::int64_t low = 0, high = documents_; // first_of(low) <= sequence < first_of(high)
    while (high - low > 1) {
      const std::int64_t middle = low + (high - low) / 2;
      (first_of(middle) <= sequence ? low : high) = middle;
    }
    return low;
  }

  /// Reads tokens [offset, offset + out.size()) of a sequence, all of which must be there.
  void read(std::int64_t sequence, std::int64_t offset, std::span<std::int32_t> out) const {
    const auto n = static_cast<std::int64_t>(out.size());
    if (sequence < 0 || sequence >= sequences_ || offset < 0 || n > length(sequence) - offset)
      throw error(exit_code::internal,
                  fmt::format("tokens {} to {} of sequence {} of {} were asked for; it has {} "
                              "sequences",
                              offset, offset + n, sequence, prefix_, sequences_));
    if (n == 0) return;
    idx_.check_unchanged();
    bin_->check_unchanged();
    const std::int64_t at = begin(sequence) + offset * size_of(type_);
    const std::byte* const from = bin_->data() + at;
    const bool known = visit(type_, [&](auto id) {
      bool all = true;
      for (std::size_t i = 0; i < out.size(); ++i) {
        std::memcpy(&id, from + i * sizeof id, sizeof id);
        all &= static_cast<std::int64_t>(id) >= 0 && static_cast<std::int64_t>(id) < vocabulary_;
        out[i] = static_cast<std::int32_t>(id);
      }
      return all;
    });
    if (!known) refuse(sequence, at, from, out.size());
  }

  // The bytes of the two files are for copies and checksums.
  std::span<const std::byte> idx_bytes() const { return idx_.bytes(); }
  std::span<const std::byte> bin_bytes() const {
    return bin_ ? bin_->bytes() : std::span<const std::byte>();
  }
  /// Throws mc::error(exit_code::data) if a file no longer has the length that it had.
  void check_unchanged() const {
    idx_.check_unchanged();
    if (bin_) bin_->check_unchanged();
  }

  /// Returns the file that somebody wrote to since it was opened; "" if there is none.
  std::string written() const {
    if (idx_.written()) return idx_.path();
    return bin_ && bin_->written() ? bin_->path() : "";
  }

private:
  /// Maps P.bin, or returns nothing for an empty file. mapped_file refuses empty files, but a
  /// dataset without tokens has one.
  static std::optional<mapped_file> map_tokens(const std::string& path) {
    struct stat s {};
    if (::stat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode) && s.st_size == 0) return std::nullopt;
    return mapped_file(path);
  }

  std::int64_t begin(std::int64_t sequence) const {
    return detail::load<std::int64_t>(begins_ + 8 * sequence);
  }
  std::string bin_path() const { return bin_ ? bin_->path() : prefix_ + ".bin"; }
  [[noreturn]] void refuse_idx(std::string_view why) const {
    throw error(exit_code::data,
                fmt::format("{} {}; prepare the data again, or copy it again", idx_.path(), why));
  }

  void read_header() {
    using detail::load;
    const std::byte* const p = idx_.data();
    const std::uint64_t size = idx_.size();
    if (std::memcmp(p, detail::idx_magic.data(), std::min(size, detail::idx_magic.size())) != 0)
      throw error(exit_code::data,
                  fmt::format("{} is not the index of an indexed dataset: it does not begin with "
                              "MMIDIDX; give the prefix of files that megacpp-data prepare or "
                              "Megatron-LM wrote",
                              idx_.path()));
    if (size < detail::idx_header_bytes)
      refuse_idx(fmt::format("has {} bytes, fewer than its header of {}: it is cut short", size,
                             detail::idx_header_bytes));
    if (const auto version = load<std::uint64_t>(p + 9); version != detail::idx_version)
      refuse_idx(fmt::format("is of version {}, but only version 1 is known", version));
    read_type(std::to_integer<unsigned>(p[17]));
    const auto s = load<std::uint64_t>(p + 18), d = load<std::uint64_t>(p + 26);
    const std::uint64_t rest = size - detail::idx_header_bytes;
    const bool fits = s <= rest / 12 && d <= (rest - 12 * s) / 8;
    const std::uint64_t more = fits ? rest - 12 * s - 8 * d : 0;
    if (fits && s > 0 && more == s)
      refuse_idx("has a mode for each sequence: it is of multimodal data, which is not read");
    if (!fits || more != 0)
      refuse_idx(
          fmt::format("says that it has {} sequences and {} ends of documents, but its {} "
                      "bytes are not as many as these take",
                      s, d, size));
    if (d == 0) refuse_idx("has no ends of documents, not even the first, 0");
    sequences_ = static_cast<std::int64_t>(s);
    documents_ = static_cast<std::int64_t>(d) - 1;
    lengths_ = p + detail::idx_header_bytes;
    begins_ = lengths_ + 4 * s;
    ends_ = begins_ + 8 * s;
  }

  void read_type(unsigned code) {
    if (code == 6 || code == 7)
      refuse_idx(fmt::format("says that tokens are of type {}, which is floating point, not ids",
                             code == 6 ? "f64" : "f32"));
    if (code == 0 || code > 8)
      refuse_idx(
          fmt::format("says that tokens are of type {}, which the format does not know", code));
    type_ = static_cast<token_type>(code);
  }

  void check_sequences() {
    const std::int64_t size = size_of(type_), most = std::numeric_limits<std::int64_t>::max() / 16;
    for (std::int64_t i = 0; i < sequences_; ++i) {
      if (length(i) < 0)
        refuse_idx(fmt::format("says that sequence {} has {} tokens", i, length(i)));
      if (begin(i) != tokens_ * size)
        refuse_idx(
            fmt::format("says that sequence {} begins at byte {} of {}, but the sequences "
                        "before it end at byte {}",
                        i, begin(i), bin_path(), tokens_ * size));
      tokens_ += length(i);
      if (tokens_ > most) refuse_idx("counts more tokens than any file can hold");
    }
    const std::uint64_t bytes = bin_ ? bin_->size() : 0;
    if (static_cast<std::uint64_t>(tokens_ * size) != bytes)
      throw error(
          exit_code::data,
          fmt::format("{} and {} disagree: {} tokens of type {} take {} bytes, but the "
                      "latter has {}; prepare the data again, or copy both again",
                      idx_.path(), bin_path(), tokens_, name_of(type_), tokens_ * size, bytes));
  }

  void check_documents() const {
    std::int64_t before = 0;
    for (std::int64_t i = 0; i <= documents_; ++i) {
      const std::int64_t end = first_of(i);
      if (i == 0 && end != 0)
        refuse_idx(fmt::format("says that document 0 begins with sequence {}, not 0", end));
      if (end < before)
        refuse_idx(
            fmt::format("says that document {} ends before it begins: at sequence {} after "
                        "{}",
                        i - 1, end, before));
      before = end;
    }
    if (before != sequences_)
      refuse_idx(
          fmt::format("says that its {} documents end at sequence {}, but it has {} "
                      "sequences",
                      documents_, before, sequences_));
  }

  [[noreturn]] void refuse(std::int64_t sequence, std::int64_t at, const std::byte* from,
                           std::size_t n) const {
    std::int64_t id = 0;
    std::size_t i = 0;
    const auto load_id = [&](auto type) {
      return static_cast<std::int64_t>(detail::load<decltype(type)>(from + i * sizeof type));
    };
    for (; i < n; ++i)
      if (id = visit(type_, load_id); id < 0 || id >= vocabulary_) break;
    throw error(exit_code::data,
                fmt::format("{}: the token id at byte {}, of document {}, sequence {}, is {}, but "
                            "the vocabulary has the ids 0 to {}; use data of this "
                            "vocabulary",
                            bin_path(), at + static_cast<std::int64_t>(i) * size_of(type_),
                            document_of(sequence), sequence, id, vocabulary_ - 1));
  }

  std::string prefix_;
  mapped_file idx_;
  std::optional<mapped_file> bin_;
  std::int64_t vocabulary_;
  token_type type_ = token_type::i32;
  std::int64_t sequences_ = 0, documents_ = 0, tokens_ = 0;
  const std::byte* lengths_ = nullptr; ///< (S) i32: the lengths of sequences; not aligned.
  const std::byte* begins_ = nullptr;  ///< (S) i64: where sequences begin in P.bin; not aligned.
  const std::byte* ends_ = nullptr;    ///< (D) i64: the ends of documents; not aligned.
};

} // namespace mc
