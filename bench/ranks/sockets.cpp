// Measures an all-reduce of 64 MB between two processes that TCP connects, in turn with a plain copy
// of 64 MB from one to the other through a socket of its own. It prints the bytes of each in a
// second, as lines "NAME bytes/s". sockets.py compiles it and starts the two.
#include <megacpp/comm/connect_ranks.hpp>
#include <megacpp/exec/cpu.hpp>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Connects the two ranks by a socket over loopback, and returns it.
int connect_by_socket(mc::communicator& hosts) {
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof at;
  const int made = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  std::int64_t port = 0;
  if (hosts.rank() == 0) {
    if (::bind(made, address, size) != 0 || ::listen(made, 1) != 0 ||
        ::getsockname(made, address, &size) != 0)
      throw std::runtime_error("no socket can listen");
    port = at.sin_port;
  }
  std::vector<std::int64_t> ports(2);
  hosts.run(mc::exchange::all_gather(mc::everyone, mc::dtype::i64, &port, ports.data(), 1));
  at.sin_port = static_cast<in_port_t>(ports[0]);
  if (hosts.rank() == 0) return ::accept4(made, nullptr, nullptr, SOCK_CLOEXEC);
  if (::connect(made, address, size) != 0) throw std::runtime_error("the ranks cannot connect");
  return made;
}

template <class Byte, class Move> void move_all(Byte* at, std::size_t bytes, const Move& move) {
  while (bytes > 0) {
    const ssize_t n = move(at, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw std::runtime_error("the other rank has ended");
    at += n, bytes -= static_cast<std::size_t>(n);
  }
}

} // namespace

int main(int argc, char** argv) {
  using namespace mc;
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 20;
  const std::int64_t count = std::int64_t{16} << 20; // 64 MB of fp32
  const auto ranks = connect_ranks(start_of_this_process(), "", [](const std::string&) {});
  ranks->run(mesh({2, 1, 1, 1, 2, 1, 1}), std::chrono::seconds(60), [&](communicator& hosts) {
    cpu device(std::unique_ptr<product_source>(), 1);
    lane& on = device.main_lane();
    const auto c = hosts.make_ranks(device);
    const int socket = connect_by_socket(hosts);
    std::vector<float> in(static_cast<std::size_t>(count), 1.0f), out(in.size());
    const std::size_t bytes = in.size() * sizeof(float);
    for (int round = 0; round < rounds + 2; ++round)
      for (int k = 0; k < 2; ++k) {
        const bool reduces = (round + k) % 2 == 0;
        hosts.run(exchange::barrier(everyone));
        const double begin = seconds();
        if (reduces)
          c->run(on, exchange::all_reduce(axis::dp, dtype::f32, in.data(), out.data(), count));
        else if (hosts.rank() == 0)
          move_all(reinterpret_cast<const std::byte*>(in.data()), bytes,
                   [&](const void* from, std::size_t n) { return ::send(socket, from, n, 0); });
        else
          move_all(reinterpret_cast<std::byte*>(out.data()), bytes,
                   [&](void* to, std::size_t n) { return ::recv(socket, to, n, 0); });
        hosts.run(exchange::barrier(everyone));
        if (hosts.rank() == 0 && round >= 2)
          std::printf("%s %.0f\n", reduces ? "all-reduce" : "copy",
                      static_cast<double>(bytes) / (seconds() - begin));
      }
    ::close(socket);
  });
  ranks->finish();
}
