// The secret of a job, and the proof by which both ends of a connection know that the other one has
// it. The secret itself is not sent: each end signs a number that the other one has drawn, by HMAC
// (RFC 2104) of SHA-256. What follows on the connection is neither signed nor hidden.
//
//   the end that accepts     "megacpp ranks 1\n"   its number, 32 bytes
//   the end that connects    "megacpp ranks 1\n"   its number, 32 bytes   its signature, 32 bytes
//   the end that accepts     its signature, 32 bytes
//   both                     texts, each behind its length in 4 bytes, least significant first
#pragma once

#include <megacpp/io/openssl.hpp>
#include <megacpp/join/environment.hpp>
#include <megacpp/join/sockets.hpp>

#include <array>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <string_view>

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>
#include <sys/stat.h>

namespace mc {

/// Returns bytes that nobody can guess.
inline std::string drawn_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  for (std::size_t have = 0; have < size;) {
    const ssize_t n = ::getrandom(bytes.data() + have, size - have, 0);
    if (n > 0) have += static_cast<std::size_t>(n);
    else if (errno != EINTR)
      throw error(exit_code::internal, "the system draws no random numbers: " + reason_of(errno));
  }
  return bytes;
}

/// Returns bytes as text, two digits for each.
inline std::string hexadecimal(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto n = static_cast<unsigned char>(c);
    (text += digits[n >> 4]) += digits[n & 15];
  }
  return text;
}

/// Returns the secret of the job that the environment gives: the text of MEGACPP_RENDEZVOUS_SECRET,
/// or of the file that MEGACPP_RENDEZVOUS_SECRET_FILE names; "" if it gives none. Throws
/// mc::error(exit_code::usage) for a file that others may read, or that cannot be read.
inline std::string given_secret(const environment& of) {
  if (of.has("MEGACPP_RENDEZVOUS_SECRET")) return std::string(of.text("MEGACPP_RENDEZVOUS_SECRET"));
  if (!of.has("MEGACPP_RENDEZVOUS_SECRET_FILE")) return "";
  const std::string name(of.text("MEGACPP_RENDEZVOUS_SECRET_FILE"));
  const auto refuse = [&](const std::string& why) {
    throw error(exit_code::usage, name + ", which MEGACPP_RENDEZVOUS_SECRET_FILE names, " + why);
  };
  const descriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  struct stat about {};
  if (!file || ::fstat(file.get(), &about) != 0)
    refuse("cannot be read: " + reason_not_to_read(errno));
  if (!S_ISREG(about.st_mode)) refuse("is no file: give a file with the secret");
  if ((about.st_mode & 077) != 0) refuse("may be read by others: chmod 600 it");
  std::string text(4097, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  if (n < 0) refuse("cannot be read: " + reason_of(errno));
  if (n > 4096) refuse("is too long for a secret: give at most 4096 bytes");
  text.resize(static_cast<std::size_t>(n));
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) text.pop_back();
  if (text.empty()) refuse("is empty: write the secret into it");
  return text;
}

namespace detail {

inline constexpr std::string_view greeting = "megacpp ranks 1\n";
inline constexpr std::size_t number_size = 32, signature_size = 32;
inline constexpr std::size_t longest_text = std::size_t{16} << 20; ///< cards of all ranks
inline constexpr std::size_t longest_card = std::size_t{1} << 16;  ///< of one rank

/// Returns the key of a secret. HMAC fills a key up with zeros, so secrets that differ by zeros at
/// their ends would be one; the keys of all secrets have one length.
inline std::array<unsigned char, signature_size> key_of(const std::string& secret) {
  const std::string text = "megacpp secret\n" + secret;
  std::array<unsigned char, signature_size> key{};
  unsigned size = 0;
  if (::EVP_Digest(text.data(), text.size(), key.data(), &size, EVP_sha256(), nullptr) != 1 ||
      size != key.size())
    throw error(exit_code::internal, "OpenSSL computes no SHA-256");
  return key;
}
/// Returns the signature of one end of a connection, under the numbers of both.
inline std::string signature(const std::string& secret, std::string_view end,
                             std::string_view of_accepting, std::string_view of_connecting) {
  begin_openssl();
  const auto key = key_of(secret);
  std::string text(end);
  (text += of_accepting) += of_connecting;
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned size = 0;
  if (::HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
             reinterpret_cast<const unsigned char*>(text.data()), text.size(), out.data(),
             &size) == nullptr ||
      size != signature_size)
    throw error(exit_code::internal, "OpenSSL computes no HMAC of SHA-256");
  return {reinterpret_cast<const char*>(out.data()), signature_size};
}
inline bool same_bytes(std::string_view a, std::string_view b) {
  return a.size() == b.size() && ::CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}
inline std::string length_of(std::string_view text) {
  std::string bytes(4, '\0');
  for (unsigned i = 0; i < 4; ++i) bytes[i] = static_cast<char>(text.size() >> (8 * i));
  return bytes;
}
inline std::size_t length_in(std::string_view bytes) {
  std::size_t n = 0;
  for (unsigned i = 0; i < 4; ++i)
    n |= std::size_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return n;
}

} // namespace detail

/// The nature of the other end of a connection.
enum class greeted : std::uint8_t {
  well,        ///< a rank with the same secret
  ended,       ///< nothing: it has closed the connection, or says nothing by the deadline
  stranger,    ///< another program
  other_secret ///< a rank that proves another secret
};

/// Greets from the end that connects.
inline greeted greet(int number, const std::string& secret, deadline until) {
  std::string theirs(detail::greeting.size() + detail::number_size, '\0');
  if (!receive_all(number, theirs.data(), theirs.size(), until)) return greeted::ended;
  if (!theirs.starts_with(detail::greeting)) return greeted::stranger;
  theirs.erase(0, detail::greeting.size());
  const std::string mine = drawn_bytes(detail::number_size);
  std::string says(detail::greeting);
  (says += mine) += detail::signature(secret, "connects", theirs, mine);
  std::string proof(detail::signature_size, '\0');
  if (!send_all(number, says, until)) return greeted::ended;
  if (!receive_all(number, proof.data(), proof.size(), until))
    return steady::now() < until ? greeted::other_secret : greeted::ended;
  return detail::same_bytes(proof, detail::signature(secret, "accepts", theirs, mine))
             ? greeted::well
             : greeted::other_secret;
}

/// Sends a text over a connection that is greeted.
inline bool send_text(int number, std::string_view text, deadline until) {
  std::string all = detail::length_of(text);
  return send_all(number, all += text, until);
}
/// Receives a text; nothing where the connection ends, by the deadline, or for a malformed text.
inline std::optional<std::string> receive_text(int number, deadline until) {
  char length[4];
  if (!receive_all(number, length, sizeof length, until)) return std::nullopt;
  const std::size_t size = detail::length_in({length, sizeof length});
  if (size > detail::longest_text) return std::nullopt;
  std::string text(size, '\0');
  if (!receive_all(number, text.data(), text.size(), until)) return std::nullopt;
  return text;
}

/// Accepts connections whose other end proves the secret, and drops all others. A stranger holds up
/// nobody: all connections that have not proved it yet are served in turn, each for a few seconds.
class acceptor {
public:
  /// A connection that is greeted, and the first text from it.
  struct guest {
    descriptor connection;
    std::string says;
  };

  acceptor(descriptor listener, std::string secret)
      : listener_(std::move(listener)), secret_(std::move(secret)) {}

  int number() const { return listener_.get(); }
  /// Returns how many connections were dropped.
  std::int64_t dropped() const { return dropped_; }

  /// Returns the next guest; nothing at the deadline.
  std::optional<guest> next(deadline until) {
    std::vector<pollfd> polled;
    while (steady::now() < until) {
      polled.assign(1, {listener_.get(), POLLIN, 0});
      for (const visitor& v : visitors_) polled.push_back({v.connection.get(), POLLIN, 0});
      deadline wake = until;
      for (const visitor& v : visitors_) wake = std::min(wake, v.until);
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(wake - steady::now()).count();
      const int n = ::poll(polled.data(), polled.size(),
                           static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
      if (n < 0 && errno != EINTR)
        throw error(exit_code::internal, "sockets cannot be watched: " + reason_of(errno));
      std::size_t i = 0;
      for (auto v = visitors_.begin(); v != visitors_.end();) {
        const bool speaks = n > 0 && polled[++i].revents != 0;
        enum visitor::progress is = visitor::goes_on;
        if (speaks) is = hear(*v);
        if (is == visitor::is_guest) {
          guest g{std::move(v->connection), std::move(v->text)};
          visitors_.erase(v);
          return g;
        }
        if (is == visitor::is_no_rank || v->until <= steady::now()) {
          v = visitors_.erase(v);
          ++dropped_;
        } else {
          ++v;
        }
      }
      if (n > 0 && polled[0].revents != 0) admit();
    }
    return std::nullopt;
  }

private:
  /// A connection that has not proved the secret, or sent its first text.
  struct visitor {
    enum progress : std::uint8_t { goes_on, is_guest, is_no_rank };
    descriptor connection;
    deadline until;
    std::string number;  ///< the number that this end has drawn
    std::string heard{}; ///< bytes that were received and not understood yet
    std::string text{};
    bool proved = false;
  };
  static constexpr std::size_t most_visitors = 1024;

  /// Accepts some of the connections that wait; the others do so until those here were heard.
  void admit() {
    for (int i = 0; i < 64; ++i) {
      descriptor c(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!c) {
        if (errno == EINTR || errno == ECONNABORTED) continue;
        if (errno == EMFILE || errno == ENFILE) drop_oldest();
        return;
      }
      detail::prepare_connection(c.get());
      if (visitors_.size() == most_visitors) drop_oldest();
      visitor v{std::move(c), steady::now() + std::chrono::seconds(10),
                drawn_bytes(detail::number_size)};
      std::string says(detail::greeting);
      says += v.number;
      if (::send(v.connection.get(), says.data(), says.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(says.size()))
        visitors_.push_back(std::move(v));
      else ++dropped_;
    }
  }
  void drop_oldest() {
    if (visitors_.empty()) return;
    visitors_.pop_front();
    ++dropped_;
  }
  /// Returns how many bytes of a visitor make the next thing whole that it says. No more are
  /// received, since what follows the first text is not for the acceptor.
  static std::size_t wanted(const visitor& v) {
    if (!v.proved) return detail::greeting.size() + detail::number_size + detail::signature_size;
    return v.heard.size() < 4 ? 4 : 4 + detail::length_in(v.heard);
  }
  /// Takes what a visitor has sent.
  enum visitor::progress hear(visitor& v) const {
    using namespace detail;
    for (;;) {
      char bytes[4096];
      const std::size_t left = wanted(v) - v.heard.size();
      const ssize_t n = ::recv(v.connection.get(), bytes, std::min(left, sizeof bytes), 0);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EAGAIN) return visitor::goes_on;
      if (n <= 0) return visitor::is_no_rank;
      v.heard.append(bytes, static_cast<std::size_t>(n));
      const std::string_view heard = v.heard;
      if (!v.proved && !heard.starts_with(greeting.substr(0, heard.size())))
        return visitor::is_no_rank;
      if (v.proved && heard.size() >= 4 && length_in(heard) > longest_card)
        return visitor::is_no_rank;
      if (heard.size() < wanted(v)) continue;
      if (!v.proved) {
        const std::string_view theirs = heard.substr(greeting.size(), number_size);
        if (!same_bytes(heard.substr(greeting.size() + number_size),
                        signature(secret_, "connects", v.number, theirs)))
          return visitor::is_no_rank;
        const std::string mine = signature(secret_, "accepts", v.number, theirs);
        if (::send(v.connection.get(), mine.data(), mine.size(), MSG_NOSIGNAL) != std::ssize(mine))
          return visitor::is_no_rank;
        v.proved = true;
        v.heard.clear();
      } else if (heard.size() == 4 + length_in(heard)) {
        v.text = heard.substr(4);
        return visitor::is_guest;
      }
    }
  }

  descriptor listener_;
  std::string secret_;
  std::list<visitor> visitors_;
  std::int64_t dropped_ = 0;
};

} // namespace mc
