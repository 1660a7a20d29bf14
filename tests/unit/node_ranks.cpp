// The ranks of a node: what they are given, and which code is that of the node. A rank is this
// program, started again.
#define BOOST_TEST_MODULE node_ranks
#include <megacpp/join/node_ranks.hpp>

#include <boost/test/unit_test.hpp>

#include "child.hpp"

#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

using namespace mc;

namespace {

constexpr const char* acts = "MEGACPP_TEST_ACTS"; // a letter for each rank of the node

/// Tells whether this rank has what the ranks of a node are given.
bool is_given_all() {
  const environment of;
  const process_start s = start_of_process(of, mpi_library::none, "");
  int listens = 0;
  socklen_t size = sizeof listens;
  if (s.listener >= 0) ::getsockopt(s.listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size);
  bool right = s.refused.empty() && s.by == started_by::torchrun && s.by_node &&
               s.local_size == 2 && s.size == 2 * s.nodes && s.rank == 2 * s.node + s.local_rank &&
               s.meets == meeting_place::first_rank;
  // The only node has a port and a secret of its own, whatever its surroundings have.
  if (s.nodes == 1)
    right = right && (listens != 0) == (s.rank == 0) && s.port != 1234 &&
            of.text("MEGACPP_RENDEZVOUS_SECRET").size() == 64;
  else
    right = right && s.listener < 0 && s.master == "m" && s.port == 1234 &&
            of.text("MEGACPP_RENDEZVOUS_SECRET") == "of all";
  return right;
}

/// Does what a rank of a test is to do, and ends it; returns in the test itself.
bool act_as_rank() {
  const environment of;
  if (!of.has(acts) || !of.has("MEGACPP_STARTED_BY_NODE")) return false;
  const auto later = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  switch (of.text(acts)[static_cast<std::size_t>(of.require_number("LOCAL_RANK"))]) {
  case 'm': std::_Exit(static_cast<int>(exit_code::ranks)); // it misses another one
  case 'd': later(300); std::_Exit(static_cast<int>(exit_code::data));
  case 'u': later(900); std::_Exit(static_cast<int>(exit_code::usage));
  case 'k': ::raise(SIGKILL); break;
  case 'w': later(20'000); break;
  case 'g': std::_Exit(is_given_all() ? 0 : 99);
  default: break;
  }
  std::_Exit(0);
}
[[maybe_unused]] const bool is_test = !act_as_rank();

/// Returns the exit code of a node whose ranks act so; `signalled` is sent to it.
int code_of(const std::string& ranks, const process_start& start, int signalled = 0) {
  const int status = test::in_child([&] {
    ::setenv(acts, ranks.c_str(), 1); // NOLINT(concurrency-mt-unsafe): it has one thread
    ::setenv("MEGACPP_RENDEZVOUS_FOLDER", start.nodes == 1 ? "/nowhere" : "", 1);
    ::setenv("MEGACPP_RENDEZVOUS_SECRET", "of all", 1);
    std::thread sender;
    if (signalled != 0)
      sender = std::thread([=] {
        std::this_thread::sleep_for(std::chrono::milliseconds(700));
        ::kill(::getpid(), signalled);
      });
    const int code = start_ranks_of_node(start, static_cast<int>(ranks.size()));
    if (sender.joinable()) sender.join();
    return code;
  });
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}
const process_start only{
    .by = started_by::node, .node = 0, .nodes = 1, .master = "127.0.0.1", .port = 1234};

} // namespace

BOOST_AUTO_TEST_CASE(the_code_of_a_node) {
  const int data = static_cast<int>(exit_code::data), misses = static_cast<int>(exit_code::ranks);
  BOOST_TEST(code_of("000", only) == 0);
  BOOST_TEST(code_of("0d0", only) == data);
  BOOST_TEST(code_of("du", only) == data); // the first one
  BOOST_TEST(code_of("ud", only) == data);
  BOOST_TEST(code_of("md", only) == data); // who misses another rank is not the first
  BOOST_TEST(code_of("dm", only) == data);
  BOOST_TEST(code_of("mm", only) == misses);
  BOOST_TEST(code_of("mw", only) == misses); // the other one is ended
  BOOST_TEST(code_of("k0", only) == 128 + SIGKILL);
}

// A rank that goes on where another one has failed is ended.
BOOST_AUTO_TEST_CASE(ranks_that_wait_for_one_that_has_failed) {
  const auto began = steady::now();
  BOOST_TEST(code_of("wdw", only) == static_cast<int>(exit_code::data));
  BOOST_TEST((steady::now() - began < std::chrono::seconds(10)));
}

// Ranks that a signal of the node ends, before they take signals, were interrupted.
BOOST_AUTO_TEST_CASE(signals_that_ranks_get) {
  for (const int number : {SIGTERM, SIGINT, SIGHUP, SIGUSR1})
    BOOST_TEST(code_of("ww", only, number) == static_cast<int>(exit_code::interrupted));
  BOOST_TEST(code_of("ww", only, SIGUSR2) == 128 + SIGUSR2); // it only asks for a state
}

BOOST_AUTO_TEST_CASE(what_ranks_are_given) {
  BOOST_TEST(code_of("gg", only) == 0);
  process_start second = only;
  second.node = 1, second.nodes = 3, second.master = "m";
  BOOST_TEST(code_of("gg", second) == 0);
}
