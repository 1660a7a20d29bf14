// One connection of two ranks: the messages that go over it and come over it.
//
// A message of up to `at_once` bytes is sent with its head. A longer one is announced, and sent
// once the other rank is ready, straight into its place. So a rank that is late keeps little in
// memory, and no message waits behind one that nobody takes yet.
#pragma once

#include <megacpp/comm/tcp_pool.hpp>
#include <megacpp/io/descriptor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <sys/socket.h>
#include <sys/uio.h>

namespace mc {

/// The connection of this rank with another one.
class tcp_link {
public:
  /// `connection` is to rank `other`; the link of a rank with itself has none. `pool` must outlive
  /// this object.
  tcp_link(descriptor connection, int other, tcp_pool& pool)
      : connection_(std::move(connection)), other_(other), pool_(pool) {
    if (!connection_) return;
    constexpr std::size_t many = 16 * tcp_pool::usual; // so that steps take no memory
    leaving_.reserve(many), expected_.reserve(many), arrived_.reserve(many);
    inbox_.resize(std::size_t{16} << 10);
  }

  int number() const { return connection_.get(); }
  /// Tells whether the other rank can be reached.
  bool open() const { return connection_ && !gone_; }
  /// Tells whether the connection has ended, or whether the other rank has taken leave.
  bool gone() const { return gone_; }
  bool left() const { return left_; }
  bool sends() const { return !mute_ && !leaving_.empty(); }
  void close() { connection_.reset(); }

  /// Puts a message into the queue of what is to be sent.
  void send(tcp_message* m, plane of, int tag) {
    const bool announced = m->bytes > pool_.at_once();
    if (announced) m->number = pool_.keep(m);
    leaving_.push_back(
        {{announced ? tcp_head::announces : tcp_head::carries, of, tag, m->bytes, m->number},
         m,
         {}});
  }
  /// Expects a message, which may have come already.
  void expect(tcp_message* m) {
    for (auto a = arrived_.begin(); a != arrived_.end(); ++a) {
      if (a->is.of != m->of || a->is.tag != m->tag) continue;
      arrival here = std::move(*a);
      arrived_.erase(a);
      if (here.is.kind == tcp_head::announces) return accept(m, here.is);
      deliver(m, here.is, here.text);
      return pool_.give_back(std::move(here.text));
    }
    expected_.push_back(m);
  }
  /// Sends a note, or drops it if many are under way.
  void tell(const rank_note& n) {
    if (gone_ || notes_leaving_ > 16) return;
    std::vector<std::byte> text = pool_.take_memory(sizeof n);
    std::memcpy(text.data(), &n, sizeof n);
    ++notes_leaving_;
    leaving_.push_back({{tcp_head::notes, plane::hosts, 0, sizeof n, 0}, nullptr, std::move(text)});
  }
  void take_leave() {
    leaving_.push_back({{tcp_head::leaves, plane::hosts, 0, 0, 0}, nullptr, {}});
  }
  /// Tells the other rank to end with a code. All that has not begun to go is left out.
  void fail(int code) {
    if (mute_) return;
    leaving_.erase(leaving_.begin() + (sent_ > 0 ? 1 : 0), leaving_.end());
    leaving_.push_back(
        {{tcp_head::fails, plane::hosts, code, 0, tcp_head::sign_of_failure}, nullptr, {}});
  }
  /// Touches the memory of no message any more. A message that has gone in part cannot be finished,
  /// and nothing can be sent behind it.
  void give_up() {
    expected_.clear();
    if (into_ != nullptr) into_ = nullptr, drops_ = true;
    if (sent_ > 0 && leaving_.front().of != nullptr) {
      mute_ = true;
      leaving_.clear(), sent_ = 0;
      (void)::shutdown(connection_.get(), SHUT_WR);
    }
    std::erase_if(leaving_, [](const departure& d) { return d.of != nullptr; });
  }

  /// Sends what a connection takes now, many heads and messages by one call.
  void push() {
    while (!gone_ && !mute_ && !leaving_.empty()) {
      std::array<iovec, 64> parts;
      std::size_t n = 0, skip = sent_, all = 0;
      const auto add = [&](const void* from, std::size_t bytes) {
        const std::size_t out = std::min(skip, bytes);
        skip -= out;
        if (out == bytes) return;
        parts[n++] = {const_cast<std::byte*>(static_cast<const std::byte*>(from)) + out,
                      bytes - out};
        all += bytes - out;
      };
      for (const departure& d : leaving_) {
        if (n + 2 > parts.size()) break;
        add(&d.is, sizeof(tcp_head));
        add(d.of != nullptr ? d.of->from : d.text.data(), bytes_behind(d.is));
      }
      msghdr what{};
      what.msg_iov = parts.data(), what.msg_iovlen = n;
      const ssize_t sent = ::sendmsg(connection_.get(), &what, MSG_NOSIGNAL);
      if (sent < 0) {
        if (errno == EINTR) continue;
        if (errno != EAGAIN) { // what has come before the end may say why
          mute_ = true;
          leaving_.clear(), sent_ = 0;
          pull();
        }
        return;
      }
      sent_ += static_cast<std::size_t>(sent);
      auto first = leaving_.begin();
      for (; first != leaving_.end(); ++first) {
        const std::size_t bytes = sizeof(tcp_head) + bytes_behind(first->is);
        if (sent_ < bytes) break;
        sent_ -= bytes;
        if (first->is.kind == tcp_head::carries || first->is.kind == tcp_head::brings)
          first->of->state = tcp_message::done;
        if (first->is.kind == tcp_head::notes) --notes_leaving_;
        pool_.give_back(std::move(first->text));
      }
      leaving_.erase(leaving_.begin(), first);
      if (static_cast<std::size_t>(sent) < all) return;
    }
  }

  /// Receives what has come over a connection: many heads and short messages by one call, and the
  /// bytes of a long message straight into their place.
  void pull() {
    for (;;) {
      while (taken_ < filled_)
        if (!take({inbox_.data() + taken_, filled_ - taken_})) return;
      taken_ = filled_ = 0;
      const std::span<std::byte> place =
          have_ < sizeof(tcp_head) || drops_ ? std::span<std::byte>() : rest();
      iovec parts[2] = {{place.data(), place.size()}, {inbox_.data(), inbox_.size()}};
      const ssize_t n = ::readv(connection_.get(), parts, 2);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (n == 0 || errno != EAGAIN) gone_ = true;
        return;
      }
      const std::size_t placed = std::min(static_cast<std::size_t>(n), place.size());
      filled_ = static_cast<std::size_t>(n) - placed;
      have_ += placed;
      if (!place.empty() && placed == place.size()) end();
      if (static_cast<std::size_t>(n) < place.size() + inbox_.size() && filled_ == 0) return;
    }
  }

private:
  /// An item in the queue of what is to be sent: its head, and the bytes behind it, of a message or
  /// its own.
  struct departure {
    tcp_head is;
    tcp_message* of = nullptr;
    std::vector<std::byte> text{};
  };
  /// A message that has come before anybody asked for it.
  struct arrival {
    tcp_head is;
    std::vector<std::byte> text{};
  };
  /// Takes bytes that have come, up to the end of a head or of what is behind it. Returns false
  /// where no more can be taken.
  bool take(std::span<const std::byte> came) {
    if (have_ < sizeof(tcp_head)) {
      const std::size_t n = std::min(came.size(), sizeof(tcp_head) - have_);
      std::memcpy(reinterpret_cast<std::byte*>(&is_) + have_, came.data(), n);
      have_ += n, taken_ += n;
      if (have_ < sizeof(tcp_head)) return true;
      if (!begin()) return false;
      if (bytes_behind(is_) == 0) end();
      return true;
    }
    const std::size_t left = sizeof(tcp_head) + bytes_behind(is_) - have_;
    const std::size_t n = std::min(came.size(), left);
    if (!drops_) std::memcpy(rest().data(), came.data(), n);
    have_ += n, taken_ += n;
    if (n == left) end();
    return true;
  }
  /// Returns the place for the bytes behind a head that have not come yet.
  std::span<std::byte> rest() {
    const std::size_t done = have_ - sizeof(tcp_head);
    return {(into_ != nullptr ? into_->to : text_.data()) + done, bytes_behind(is_) - done};
  }
  static std::size_t bytes_behind(const tcp_head& is) {
    const bool has =
        is.kind == tcp_head::carries || is.kind == tcp_head::brings || is.kind == tcp_head::notes;
    return has ? static_cast<std::size_t>(is.bytes) : 0;
  }
  /// Finds the place for the bytes behind a head. Returns false, and ends the connection, for a
  /// head that no rank sends.
  bool begin() {
    into_ = nullptr;
    if (is_.bytes < 0 || is_.kind > tcp_head::fails ||
        (is_.kind == tcp_head::carries && is_.bytes > pool_.at_once()) ||
        (is_.kind == tcp_head::notes && is_.bytes != sizeof(rank_note)))
      return !(gone_ = true);
    if (is_.kind == tcp_head::carries) {
      into_ = match(is_);
      if (into_ != nullptr && into_->bytes < is_.bytes) {
        into_->state = tcp_message::too_long;
        into_ = nullptr, drops_ = true;
      } else if (into_ == nullptr) {
        text_ = pool_.take_memory(static_cast<std::size_t>(is_.bytes));
      }
    }
    if (is_.kind == tcp_head::brings) {
      into_ = pool_.named(is_.number);
      if (into_ == nullptr) drops_ = true; // it was given up
      else if (into_->bytes < is_.bytes) return !(gone_ = true);
    }
    if (is_.kind == tcp_head::notes) text_ = pool_.take_memory(sizeof(rank_note));
    return true;
  }
  void end() {
    const tcp_head is = is_;
    switch (is.kind) {
    case tcp_head::carries:
      if (into_ != nullptr) {
        into_->came = is.bytes, into_->state = tcp_message::done;
      } else if (tcp_message* const m = drops_ ? nullptr : match(is)) { // asked for meanwhile
        deliver(m, is, text_);
        pool_.give_back(std::move(text_));
      } else if (!drops_) {
        arrived_.push_back({is, std::move(text_)});
      }
      break;
    case tcp_head::announces:
      if (tcp_message* const m = match(is)) accept(m, is);
      else arrived_.push_back({is, {}});
      break;
    case tcp_head::takes:
      if (tcp_message* const m = pool_.named(is.number)) {
        leaving_.push_back({{tcp_head::brings, is.of, 0, m->bytes, is.tag}, m, {}});
      }
      break;
    case tcp_head::brings:
      if (!drops_) into_->came = is.bytes, into_->state = tcp_message::done;
      break;
    case tcp_head::notes: {
      rank_note n;
      std::memcpy(&n, text_.data(), sizeof n);
      n.text[sizeof n.text - 1] = '\0';
      pool_.notes.emplace_back(other_, n);
      pool_.give_back(std::move(text_));
      break;
    }
    case tcp_head::leaves: left_ = true; break;
    case tcp_head::fails: std::_Exit(is.tag == 0 ? 1 : is.tag);
    }
    into_ = nullptr, drops_ = false;
    have_ = 0;
  }
  /// Gives a message the bytes that came before it was asked for.
  static void deliver(tcp_message* m, const tcp_head& is, const std::vector<std::byte>& text) {
    if (is.bytes > m->bytes) {
      m->state = tcp_message::too_long;
      return;
    }
    if (is.bytes > 0) std::memcpy(m->to, text.data(), static_cast<std::size_t>(is.bytes));
    m->came = is.bytes, m->state = tcp_message::done;
  }
  /// Returns the first message that this rank expects of this plane and tag, and expects it no
  /// longer; nullptr if it expects none.
  tcp_message* match(const tcp_head& is) {
    for (auto m = expected_.begin(); m != expected_.end(); ++m)
      if ((*m)->of == is.of && (*m)->tag == is.tag) {
        tcp_message* const one = *m;
        expected_.erase(m);
        return one;
      }
    return nullptr;
  }
  /// Asks for the bytes of an announced message.
  void accept(tcp_message* m, const tcp_head& is) {
    if (is.bytes > m->bytes) {
      m->state = tcp_message::too_long;
      return;
    }
    const auto number = static_cast<std::int32_t>(pool_.keep(m));
    leaving_.push_back({{tcp_head::takes, is.of, number, 0, is.number}, nullptr, {}});
  }

  descriptor connection_;
  int other_;
  tcp_pool& pool_;
  bool gone_ = false, left_ = false;
  bool mute_ = false; ///< nothing can be sent any more
  std::vector<departure> leaving_;
  std::size_t sent_ = 0; ///< bytes of the first departure that are sent
  int notes_leaving_ = 0;
  std::vector<tcp_message*> expected_; ///< in the order in which they were asked for
  std::vector<arrival> arrived_;
  tcp_head is_{};                      ///< the head that is being received, or that has come
  std::size_t have_ = 0;               ///< bytes of the head and behind it
  tcp_message* into_ = nullptr;        ///< the message that the bytes behind the head are for
  std::vector<std::byte> text_;        ///< for bytes that have no message yet, or are dropped
  std::vector<std::byte> inbox_;       ///< bytes that have come
  std::size_t taken_ = 0, filled_ = 0; ///< of the inbox: what was taken, and where it ends
  bool drops_ = false;                 ///< the bytes behind the head are for nobody
};

/// Returns the code that a rank tells at the end of a connection by tcp_link::fail, which nobody
/// has read yet; 0 if it tells none.
inline int code_told_by(int connection) {
  std::vector<std::byte> waits(std::size_t{8} << 20);
  const ssize_t n = ::recv(connection, waits.data(), waits.size(), MSG_PEEK | MSG_DONTWAIT);
  tcp_head last;
  if (n < static_cast<ssize_t>(sizeof last)) return 0;
  std::memcpy(&last, waits.data() + n - sizeof last, sizeof last);
  return last.kind == tcp_head::fails && last.number == tcp_head::sign_of_failure ? last.tag : 0;
}

} // namespace mc
