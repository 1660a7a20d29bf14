// Ranks that TCP connects, as threads of one process: what is late for a run that was given up.
#define BOOST_TEST_MODULE tcp_wire
#include <megacpp/comm/tcp.hpp>

#include <boost/test/unit_test.hpp>

#include <atomic>
#include <string>
#include <thread>

using namespace mc;

// The memory of a run that has failed may be gone when a message for it comes.
BOOST_AUTO_TEST_CASE(a_long_message_that_comes_behind_the_end_of_a_run) {
  const int port = [] {
    const descriptor any = listen_at(*socket_address::of_text("127.0.0.1", 0));
    return socket_address::of_socket(any.get()).port();
  }();
  std::string said, first(1000, '.'), second(1000, '.');
  std::atomic<bool> gave_up{false};
  const auto act = [&](int rank) {
    const process_start start{.by = started_by::torchrun,
                              .rank = rank,
                              .size = 2,
                              .over = connected_by::tcp,
                              .meets = meeting_place::first_rank,
                              .master = "127.0.0.1",
                              .port = port};
    tcp_wire wire(64, start, "p", nullptr);
    const auto go_on_for = [&](int ms) {
      const deadline until = steady::now() + std::chrono::milliseconds(ms);
      while (steady::now() < until) {
        wire.advance();
        wire.rest(std::chrono::microseconds(100));
      }
    };
    const auto receive = [&](std::string& to) {
      return wire.receive(plane::ranks, 0, 5, reinterpret_cast<std::byte*>(to.data()), 1000);
    };
    if (rank == 0) {
      const std::string texts[] = {std::string(1000, 'x'), std::string(1000, 'y')};
      for (const std::string& text : texts)
        (void)wire.send(plane::ranks, 1, 5, reinterpret_cast<const std::byte*>(text.data()), 1000);
      wire.hand_over();
      while (!gave_up) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      go_on_for(500);
    } else {
      (void)receive(first);
      go_on_for(200); // it asks for the message
      wire.give_up();
      gave_up = true;
      tcp_message* const next = receive(second);
      go_on_for(400);
      if (!wire.is_done(next)) said += "the next message has not come; ";
    }
    wire.finish();
  };
  std::thread other([&] { act(1); });
  act(0);
  other.join();
  BOOST_TEST(said == "");
  BOOST_TEST(first == std::string(1000, '.'));
  BOOST_TEST(second == std::string(1000, 'y'));
}
