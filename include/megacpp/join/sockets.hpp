// TCP sockets: addresses, listeners, connections, and what is sent and received before a deadline.
// They do not block, and no child process inherits them.
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/io/descriptor.hpp>
#include <megacpp/io/error.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

namespace mc {

using deadline = steady::time_point;

/// An address of IPv4 or IPv6 with a port.
class socket_address {
public:
  socket_address() = default;
  socket_address(const sockaddr* at, socklen_t size) : size_(size) {
    std::memcpy(&at_, at, std::min<std::size_t>(size, sizeof at_));
  }
  /// Reads `10.0.0.1` or `fe80::1%eth0`; nothing if it is no address.
  static std::optional<socket_address> of_text(const std::string& text, int port) {
    addrinfo wanted{};
    wanted.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, wanted.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (::getaddrinfo(text.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0)
      return std::nullopt;
    socket_address a(found->ai_addr, found->ai_addrlen);
    ::freeaddrinfo(found);
    return a;
  }
  /// Returns the address where a socket listens, or from which it is connected.
  static socket_address of_socket(int number) {
    socket_address a;
    a.size_ = sizeof a.at_;
    if (::getsockname(number, a.get(), &a.size_) != 0) a.size_ = 0;
    return a.unmapped();
  }

  /// Returns an address of IPv4 that is written as one of IPv6 (::ffff:10.0.0.1) as what it is.
  socket_address unmapped() const {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(at_);
    if (family() != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) return *this;
    sockaddr_in v4{};
    v4.sin_family = AF_INET, v4.sin_port = v6.sin6_port;
    std::memcpy(&v4.sin_addr, v6.sin6_addr.s6_addr + 12, 4);
    return {reinterpret_cast<const sockaddr*>(&v4), sizeof v4};
  }

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at_); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&at_); }
  socklen_t size() const { return size_; }
  int family() const { return at_.ss_family; }
  int port() const {
    return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(at_).sin6_port
                                      : reinterpret_cast<const sockaddr_in&>(at_).sin_port);
  }
  void set_port(int port) {
    (family() == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(at_).sin6_port
                          : reinterpret_cast<sockaddr_in&>(at_).sin_port) =
        htons(static_cast<std::uint16_t>(port));
  }
  bool is_loopback() const {
    if (family() == AF_INET)
      return (ntohl(reinterpret_cast<const sockaddr_in&>(at_).sin_addr.s_addr) >> 24) == 127;
    const in6_addr& a = reinterpret_cast<const sockaddr_in6&>(at_).sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&a) || (IN6_IS_ADDR_V4MAPPED(&a) && a.s6_addr[12] == 127);
  }
  /// Tells whether the address means something on its link alone.
  bool is_of_link() const {
    if (family() != AF_INET6) return false;
    const in6_addr& a = reinterpret_cast<const sockaddr_in6&>(at_).sin6_addr;
    return IN6_IS_ADDR_LINKLOCAL(&a);
  }
  /// Returns the host alone, as `10.0.0.1`.
  std::string host() const {
    char text[NI_MAXHOST]{};
    ::getnameinfo(get(), size_, text, sizeof text, nullptr, 0, NI_NUMERICHOST);
    return text;
  }
  std::string text() const {
    return (family() == AF_INET6 ? "[" + host() + "]" : host()) + ":" + std::to_string(port());
  }

private:
  sockaddr_storage at_{};
  socklen_t size_ = 0;
};

/// Returns a host and a port as people write them.
inline std::string place_text(std::string_view host, int port) {
  const bool v6 = host.find(':') != std::string_view::npos && !host.starts_with('[');
  return (v6 ? "[" + std::string(host) + "]" : std::string(host)) + ":" + std::to_string(port);
}

/// Returns the addresses of a host's name; none if it cannot be resolved now.
inline std::vector<socket_address> resolve(std::string host, int port) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICSERV | AI_ADDRCONFIG, wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  std::vector<socket_address> all;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) {
    if (const auto address = socket_address::of_text(host, port)) all.push_back(*address);
    return all;
  }
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next)
    all.emplace_back(a->ai_addr, a->ai_addrlen);
  ::freeaddrinfo(found);
  return all;
}

/// Returns the addresses of the interfaces that are up; of `name` alone if it is not "".
inline std::vector<std::pair<std::string, socket_address>> interface_addresses(
    std::string_view name = "") {
  ifaddrs* found = nullptr;
  std::vector<std::pair<std::string, socket_address>> all;
  if (::getifaddrs(&found) != 0) return all;
  for (const ifaddrs* i = found; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || (i->ifa_flags & IFF_UP) == 0) continue;
    if (!name.empty() && name != i->ifa_name) continue;
    const int family = i->ifa_addr->sa_family;
    if (family == AF_INET)
      all.emplace_back(i->ifa_name, socket_address(i->ifa_addr, sizeof(sockaddr_in)));
    if (family == AF_INET6)
      all.emplace_back(i->ifa_name, socket_address(i->ifa_addr, sizeof(sockaddr_in6)));
  }
  ::freeifaddrs(found);
  return all;
}

namespace detail {
inline descriptor stream_socket(int family) {
  return descriptor(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}
inline void set_option(int number, int level, int option, int value) {
  (void)::setsockopt(number, level, option, &value, sizeof value);
}
/// Sets what connections of ranks need: no delay of short messages, and an end where the other
/// machine is gone.
inline void prepare_connection(int number) {
  set_option(number, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(number, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(number, IPPROTO_TCP, TCP_KEEPIDLE, 10);
  set_option(number, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(number, IPPROTO_TCP, TCP_KEEPCNT, 60); // ten minutes, as ranks wait for each other
}
/// Tells whether a connection is with itself: where nobody listens at a port of this machine, the
/// system may give that port to the end that connects. Such an end would keep the port from the
/// rank that is to listen there.
inline bool is_own_end(int number) {
  sockaddr_storage mine{}, theirs{};
  socklen_t a = sizeof mine, b = sizeof theirs;
  if (::getsockname(number, reinterpret_cast<sockaddr*>(&mine), &a) != 0 ||
      ::getpeername(number, reinterpret_cast<sockaddr*>(&theirs), &b) != 0 || a != b ||
      std::memcmp(&mine, &theirs, a) != 0)
    return false;
  const linger at_once{1, 0}; // the port is free as soon as this end is closed
  (void)::setsockopt(number, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  return true;
}
} // namespace detail

/// Raises this process's limit on open files for the connections of so many ranks, as far as the
/// system allows. Throws mc::error(exit_code::memory) if that does not suffice.
inline void allow_connections(int ranks) {
  constexpr rlim_t others = 128; // files of data, of a state, of libraries
  const rlim_t wanted = 2 * static_cast<rlim_t>(ranks) + others; // to meet, and to exchange
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= wanted) return;
  const rlim_t most = files.rlim_max;
  files.rlim_cur = std::min(wanted, most);
  if (::setrlimit(RLIMIT_NOFILE, &files) == 0 && wanted <= most) return;
  throw error(exit_code::memory, std::to_string(ranks) + " ranks need " + std::to_string(wanted) +
                                     " open files each, and this process may have " +
                                     std::to_string(most) + ": raise the hard limit (ulimit -Hn)");
}

/// Waits until a socket can be read or written, as `events` of poll(2) say; false at the deadline.
inline bool wait_for_socket(int number, short events, deadline until) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - steady::now()).count();
    if (left <= 0) return false;
    pollfd one{number, events, 0};
    const int n = ::poll(&one, 1, static_cast<int>(std::min<std::int64_t>(left, 60'000)));
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return false;
  }
}

/// Tells whether the other end of a connection has closed it, or is gone.
inline bool has_ended(int number) {
  pollfd one{number, POLLRDHUP, 0};
  return ::poll(&one, 1, 0) > 0 && one.revents != 0;
}

/// Listens at an address; a port of 0 stands for any. The result is empty, and errno set, where the
/// system refuses.
inline descriptor listen_at(const socket_address& at) {
  descriptor listener = detail::stream_socket(at.family());
  if (!listener) return listener;
  detail::set_option(listener.get(), SOL_SOCKET, SO_REUSEADDR, 1);
  if (at.family() == AF_INET6) detail::set_option(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
  if (::bind(listener.get(), at.get(), at.size()) == 0 && ::listen(listener.get(), 1024) == 0)
    return listener;
  const int why = errno;
  listener.reset();
  errno = why;
  return listener;
}

/// Connects to an address. The result is empty, and errno set, where nothing answers by the
/// deadline.
inline descriptor connect_to(const socket_address& at, deadline until) {
  descriptor to = detail::stream_socket(at.family());
  if (!to) return to;
  int why = 0;
  if (::connect(to.get(), at.get(), at.size()) != 0) {
    why = errno;
    if (why == EINPROGRESS) {
      socklen_t size = sizeof why;
      if (!wait_for_socket(to.get(), POLLOUT, until)) why = ETIMEDOUT;
      else if (::getsockopt(to.get(), SOL_SOCKET, SO_ERROR, &why, &size) != 0) why = errno;
    }
  }
  if (why == 0 && !detail::is_own_end(to.get())) {
    detail::prepare_connection(to.get());
    return to;
  }
  if (why == 0) why = ECONNREFUSED;
  to.reset();
  errno = why;
  return to;
}

/// Sends all bytes; false where the connection ends, or at the deadline.
inline bool send_all(int number, std::string_view bytes, deadline until) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(number, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n > 0) bytes.remove_prefix(static_cast<std::size_t>(n));
    else if (errno == EAGAIN ? !wait_for_socket(number, POLLOUT, until) : errno != EINTR)
      return false;
  }
  return true;
}
/// Receives `size` bytes; false where the connection ends, or at the deadline.
inline bool receive_all(int number, void* to, std::size_t size, deadline until) {
  auto* at = static_cast<char*>(to);
  while (size > 0) {
    const ssize_t n = ::recv(number, at, size, 0);
    if (n > 0) at += n, size -= static_cast<std::size_t>(n);
    else if (n == 0 || (errno == EAGAIN ? !wait_for_socket(number, POLLIN, until) : errno != EINTR))
      return false;
  }
  return true;
}

} // namespace mc
