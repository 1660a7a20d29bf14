// The messages of a rank that TCP moves: their heads, their states, and memory for them.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/comm/rank_questions.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace mc {

/// The head of what is sent over a connection. It is plain bytes, so that it can be sent; ranks
/// of one program have the same order of bytes.
struct tcp_head {
  enum what : std::uint8_t {
    carries,   ///< a message of `bytes` bytes, which follow
    announces, ///< a message, which the sender calls `number`
    takes,     ///< the announced message `number`; the receiver calls it `tag`
    brings,    ///< the announced message that the receiver calls `number`: its bytes follow
    notes,     ///< a note of `bytes` bytes, which follow
    leaves,    ///< the rank has ended well, and sends nothing more
    fails      ///< the rank has failed, and exits with the code `tag`
  } kind = carries;
  static constexpr std::int64_t sign_of_failure = 0x6d6567616661696c; ///< the number of `fails`
  plane of{};
  std::int32_t tag = 0;
  std::int64_t bytes = 0, number = 0;
};

/// A message of this rank.
struct tcp_message {
  enum : std::uint8_t { under_way, done, too_long };
  int peer = -1;
  bool receives = false;
  const std::byte* from = nullptr;
  std::byte* to = nullptr;
  std::int64_t bytes = 0; ///< bytes to send, or room for what is received
  std::int64_t came = 0;
  std::int64_t number = 0;
  plane of{};
  std::int32_t tag = 0;
  std::uint8_t state = under_way;
};

/// The messages of a rank and memory for those that nobody has asked for yet, for reuse, and the
/// notes that have come. All of its connections share one.
class tcp_pool {
public:
  static constexpr std::size_t usual = 16; ///< messages between two ranks that are under way

  tcp_pool(std::int64_t at_once, std::size_t ranks) : at_once_(at_once) {
    texts_.reserve(usual * ranks), numbered_.reserve(usual * ranks);
    unused_.reserve(usual * ranks), messages_.reserve(usual * ranks);
    for (std::size_t i = 0; i < usual * ranks; ++i) {
      messages_.push_back(std::make_unique<tcp_message>());
      release(messages_.back().get());
      std::vector<std::byte> text;
      text.reserve(text_size());
      give_back(std::move(text));
    }
  }

  /// The bytes of the longest message that is not announced.
  std::int64_t at_once() const { return at_once_; }
  tcp_message* take() {
    if (unused_.empty()) {
      messages_.push_back(std::make_unique<tcp_message>());
      return messages_.back().get();
    }
    tcp_message* const m = unused_.back();
    unused_.pop_back();
    return m;
  }
  void release(tcp_message* m) { unused_.push_back(m); }
  /// Gives a message a number by which the other rank names it.
  std::int64_t keep(tcp_message* m) {
    auto free = std::find(numbered_.begin(), numbered_.end(), nullptr);
    if (free == numbered_.end()) free = numbered_.insert(free, nullptr);
    *free = m;
    return first_number_ + (free - numbered_.begin());
  }
  /// Returns the message of a number, which is free again; nullptr if there is none.
  tcp_message* named(std::int64_t number) {
    const std::int64_t i = number - first_number_;
    if (i < 0 || i >= std::ssize(numbered_)) return nullptr;
    return std::exchange(numbered_[static_cast<std::size_t>(i)], nullptr);
  }
  /// Forgets all numbers that other ranks have, and gives none of them to another message.
  void forget_numbers() {
    first_number_ += std::ssize(numbered_);
    numbered_.clear();
  }
  std::vector<std::byte> take_memory(std::size_t bytes) {
    std::vector<std::byte> text;
    if (!texts_.empty()) {
      text = std::move(texts_.back());
      texts_.pop_back();
    }
    text.reserve(text_size()); // so that all of them serve for any message
    text.resize(bytes);
    return text;
  }
  void give_back(std::vector<std::byte> text) {
    if (text.capacity() > 0) texts_.push_back(std::move(text));
  }

  std::vector<std::pair<int, rank_note>> notes{}; ///< each with the rank that it is from

private:
  std::size_t text_size() const {
    return std::max(static_cast<std::size_t>(at_once_), sizeof(rank_note));
  }

  std::int64_t at_once_;
  std::vector<std::unique_ptr<tcp_message>> messages_;
  std::vector<tcp_message*> unused_, numbered_; ///< for reuse; by the numbers that others have
  std::int64_t first_number_ = 0;
  std::vector<std::vector<std::byte>> texts_; ///< memory for reuse
};

} // namespace mc
