// Byte-pair encoding turns the bytes of a word into tokens (Sennrich, Haddow, Birch 2016; over
// bytes: Radford et al. 2019). Some pairs of symbols are merges, which are numbered. Of all
// adjacent pairs that are merges, the one of lowest number, and of equals the leftmost, becomes one
// symbol. This is repeated until no adjacent pair is a merge.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

namespace mc {

/// merge_of_pair says which symbol two adjacent symbols become. Merges of lower number come first.
struct merge_of_pair {
  std::uint32_t number;
  std::int32_t into;
};

/// merge_table has the merges of pairs of token ids. It is a hash table in one array, at most half
/// full, that is searched from the key's place on.
class merge_table {
public:
  explicit merge_table(std::size_t merges = 0)
      : cells_(std::bit_ceil(std::max<std::size_t>(2 * merges, 2))) {}

  /// Adds the merge of a pair, and returns false if the pair has a merge already.
  bool insert(std::int32_t left, std::int32_t right, merge_of_pair m) {
    if (2 * (count_ + 1) > cells_.size()) grow();
    cell& e = cells_[place(key_of(left, right))];
    if (e.key != nothing) return false;
    e = {key_of(left, right), m};
    ++count_;
    return true;
  }
  /// Returns the merge of a pair, or null.
  const merge_of_pair* find(std::int32_t left, std::int32_t right) const {
    const cell& e = cells_[place(key_of(left, right))];
    return e.key != nothing ? &e.merge : nullptr;
  }
  std::size_t size() const { return count_; }

private:
  static constexpr std::uint64_t nothing = ~std::uint64_t{0};
  struct cell {
    std::uint64_t key = nothing;
    merge_of_pair merge{};
  };

  static std::uint64_t key_of(std::int32_t left, std::int32_t right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  /// Returns the place of a key, or the free place that it would take.
  std::size_t place(std::uint64_t key) const {
    std::uint64_t h = key * 0x9e3779b97f4a7c15u; // The factor is 2^64 over the golden ratio.
    h ^= h >> 32;
    std::size_t at = h & (cells_.size() - 1);
    while (cells_[at].key != nothing && cells_[at].key != key) at = (at + 1) & (cells_.size() - 1);
    return at;
  }
  void grow() {
    std::vector<cell> old(2 * cells_.size());
    old.swap(cells_);
    for (const cell& e : old)
      if (e.key != nothing) cells_[place(e.key)] = e;
  }

  std::vector<cell> cells_;
  std::size_t count_ = 0;
};

/// word_merger merges the symbols of words, one word after the other, in memory that it keeps.
///
/// A symbol is stored at the byte where it begins in the word, and so is the number of the pair
/// that it begins. A binary tree finds the lowest number: each leaf has the lowest of 64
/// numbers. So a merge takes O(log n), and a word of n bytes O(n log n), in 8 bytes for each. A
/// word of up to 64 bytes is one leaf.
class word_merger {
public:
  /// Replaces the ids of a word's bytes, of which there are two or more, by the ids of its tokens.
  /// length_of(id) is the number of bytes of a token.
  template <class Length>
  void merge(const merge_table& table, const Length& length_of, std::vector<std::int32_t>& ids) {
    const std::size_t n = ids.size();
    numbers_.assign((n + leaf - 1) / leaf * leaf, none);
    for (std::size_t i = 0; i + 1 < n; ++i) numbers_[i] = number_of(table.find(ids[i], ids[i + 1]));
    leaves_ = std::bit_ceil(numbers_.size() / leaf);
    tree_.assign(2 * leaves_, none);
    for (std::size_t i = 0; i < numbers_.size() / leaf; ++i) tree_[leaves_ + i] = least_in(i);
    for (std::size_t i = leaves_; i-- > 1;) tree_[i] = std::min(tree_[2 * i], tree_[2 * i + 1]);
    const auto bytes = [&](std::size_t at) { return static_cast<std::size_t>(length_of(ids[at])); };
    while (tree_[1] != none) {
      // The id of a symbol is stored where it begins, and where it ends, for the symbol behind it.
      const std::size_t at = leftmost_least(), next = at + bytes(at);
      const std::int32_t whole = table.find(ids[at], ids[next])->into;
      const std::size_t end = next + bytes(next);
      ids[at] = ids[end - 1] = whole;
      set(next, none);
      set(at, end < n ? number_of(table.find(whole, ids[end])) : none);
      if (at > 0) {
        const std::size_t before = at - bytes(at - 1);
        set(before, number_of(table.find(ids[before], whole)));
      }
    }
    std::size_t count = 0;
    for (std::size_t at = 0; at < n; ++count) {
      const std::size_t length = bytes(at);
      ids[count] = ids[at];
      at += length;
    }
    ids.resize(count);
    if (n > kept) numbers_ = {}, tree_ = {}; // The memory of one very long word is given back.
  }

private:
  static constexpr std::size_t leaf = 64, kept = std::size_t{1} << 20;
  static constexpr std::uint32_t none = std::numeric_limits<std::uint32_t>::max();

  static std::uint32_t number_of(const merge_of_pair* m) { return m != nullptr ? m->number : none; }
  std::span<const std::uint32_t> of_leaf(std::size_t i) const {
    return std::span(numbers_).subspan(i * leaf, leaf);
  }
  std::uint32_t least_in(std::size_t i) const {
    std::uint32_t least = none;
    for (const std::uint32_t number : of_leaf(i)) least = std::min(least, number);
    return least;
  }
  void set(std::size_t at, std::uint32_t number) {
    numbers_[at] = number;
    std::size_t i = leaves_ + at / leaf;
    tree_[i] = least_in(at / leaf);
    while ((i /= 2) > 0) tree_[i] = std::min(tree_[2 * i], tree_[2 * i + 1]);
  }
  std::size_t leftmost_least() const {
    std::size_t i = 1;
    while (i < leaves_) i = 2 * i + (tree_[2 * i] == tree_[1] ? 0u : 1u);
    const auto numbers = of_leaf(i - leaves_);
    return (i - leaves_) * leaf +
           static_cast<std::size_t>(std::ranges::find(numbers, tree_[1]) - numbers.begin());
  }

  std::vector<std::uint32_t> numbers_, tree_;
  std::size_t leaves_ = 1;
};

} // namespace mc
