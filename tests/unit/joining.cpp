// Ranks that meet before they are connected: secrets, strangers, torchrun's store, wrong cards.
#define BOOST_TEST_MODULE joining
#include <megacpp/join/peers.hpp>

#include <boost/test/unit_test.hpp>

#include <array>
#include <atomic>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <sys/resource.h>
#include <sys/stat.h>
#include <scratch.hpp>

#include <sys/resource.h>

using namespace mc;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

deadline in(milliseconds time) { return steady::now() + time; }
descriptor loopback() { return listen_at(*socket_address::of_text("127.0.0.1", 0)); }
socket_address address_of(const descriptor& listener) {
  return socket_address::of_socket(listener.get());
}
descriptor dial(const socket_address& at) { return connect_to(at, in(seconds(5))); }

/// Runs f(rank) on a thread for each rank, and returns what each threw.
template <class F> std::vector<std::string> on_threads(int n, F f) {
  std::vector<std::string> said(static_cast<std::size_t>(n));
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r)
    threads.emplace_back([&said, &f, r] {
      try {
        f(r);
      } catch (const error& e) {
        said[static_cast<std::size_t>(r)] =
            std::to_string(static_cast<int>(e.code())) + " " + e.what();
      }
    });
  for (std::thread& t : threads) t.join();
  return said;
}

process_start rank_of(int rank, int size, meeting_place meets, int port,
                      const std::string& place = "") {
  return {.by = started_by::torchrun,
          .rank = rank,
          .size = size,
          .local_rank = rank,
          .over = connected_by::tcp,
          .meets = meets,
          .master = "127.0.0.1",
          .port = port,
          .place = place,
          .job = "test"};
}
int free_port() { return address_of(loopback()).port(); }

constexpr environment::variable with_secret[] = {{"MEGACPP_RENDEZVOUS_SECRET", "open sesame"},
                                                 {"MEGACPP_RENDEZVOUS_TIMEOUT", "20"}};
constexpr environment::variable short_wait[] = {{"MEGACPP_RENDEZVOUS_TIMEOUT", "1"}};
constexpr environment::variable long_wait[] = {{"MEGACPP_RENDEZVOUS_TIMEOUT", "20"}};
constexpr environment::variable secret_and_short_wait[] = {
    {"MEGACPP_RENDEZVOUS_SECRET", "open sesame"}, {"MEGACPP_RENDEZVOUS_TIMEOUT", "2"}};
constexpr environment::variable two_seconds[] = {{"MEGACPP_RENDEZVOUS_TIMEOUT", "2"}};

} // namespace

BOOST_AUTO_TEST_CASE(both_ends_prove_one_secret) {
  acceptor door(loopback(), "the secret");
  const socket_address at = socket_address::of_socket(door.number());
  greeted same{}, other{};
  std::thread guests([&] {
    const descriptor a = dial(at);
    other = greet(a.get(), "another secret", in(seconds(5)));
    const descriptor b = dial(at);
    same = greet(b.get(), "the secret", in(seconds(5)));
    send_text(b.get(), "hello", in(seconds(5)));
    send_text(b.get(), "and more", in(seconds(5)));
    std::this_thread::sleep_for(milliseconds(200));
  });
  const auto guest = door.next(in(seconds(5)));
  BOOST_REQUIRE(guest.has_value());
  BOOST_TEST(guest->says == "hello");
  BOOST_TEST(receive_text(guest->connection.get(), in(seconds(5))).value_or("") == "and more");
  guests.join();
  BOOST_TEST((same == greeted::well));
  BOOST_TEST((other == greeted::other_secret));
  BOOST_TEST(door.dropped() == 1);
}

BOOST_AUTO_TEST_CASE(who_accepts_is_tried_too) {
  descriptor listener = loopback();
  const socket_address at = address_of(listener);
  const auto accepts = [&](const std::string& says) {
    std::thread server([&] {
      wait_for_socket(listener.get(), POLLIN, in(seconds(5)));
      const descriptor c(::accept(listener.get(), nullptr, nullptr));
      send_all(c.get(), says, in(seconds(1)));
      char bytes[200];
      (void)::recv(c.get(), bytes, sizeof bytes, 0);
      send_all(c.get(), std::string(32, 'x'), in(seconds(1)));
    });
    descriptor c = dial(at);
    const greeted g = greet(c.get(), "s", in(seconds(1)));
    c.reset();
    server.join();
    return g;
  };
  BOOST_TEST((accepts("HTTP/1.1 400 Bad Request\r\nServer: x\r\nContent-Length: 0\r\n\r\n") ==
              greeted::stranger));
  BOOST_TEST((accepts("megacpp ranks 1\n" + std::string(32, 'n')) == greeted::other_secret));
  BOOST_TEST((accepts("mega") == greeted::ended)); // it says no more by the deadline
}

// What was overheard proves nothing: not to another connection, nor to the end that has said it.
BOOST_AUTO_TEST_CASE(proofs_that_were_overheard) {
  const std::string secret = "the secret";
  acceptor door(loopback(), secret);
  const socket_address at = socket_address::of_socket(door.number());
  std::string greeting(48, '\0'), says(80, '\0'), proof(32, '\0'), other(80, '\0');
  /// Returns what a rank says of an end that accepts by `accept`.
  const auto greeted_by = [&](const std::function<void(int)>& accept) {
    descriptor listener = loopback();
    std::thread server([&] {
      wait_for_socket(listener.get(), POLLIN, in(seconds(5)));
      const descriptor c(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
      accept(c.get());
    });
    const descriptor c = dial(address_of(listener));
    const greeted g = greet(c.get(), secret, in(seconds(5)));
    server.join();
    return g;
  };
  std::atomic<bool> done{false};
  greeted between{}, again{}, back{};
  bool accepted_again = true;
  std::thread outside([&] {
    const auto take = [](int from, std::string& to) {
      return receive_all(from, to.data(), to.size(), in(seconds(5)));
    };
    between = greeted_by([&](int rank) { // who is between two ends hears all that they say
      const descriptor c = dial(at);
      take(c.get(), greeting), send_all(rank, greeting, in(seconds(5)));
      take(rank, says), send_all(c.get(), says, in(seconds(5)));
      take(c.get(), proof), send_all(rank, proof, in(seconds(5)));
    });
    const descriptor stranger = dial(at);
    std::string theirs(48, '\0'), answer(32, '\0');
    take(stranger.get(), theirs), send_all(stranger.get(), says, in(seconds(5)));
    accepted_again = take(stranger.get(), answer);
    again = greeted_by([&](int rank) {
      send_all(rank, greeting, in(seconds(5)));
      take(rank, other), send_all(rank, proof, in(seconds(5)));
    });
    back = greeted_by([&](int rank) {
      send_all(rank, greeting, in(seconds(5)));
      take(rank, other), send_all(rank, other.substr(48), in(seconds(5)));
    });
    const descriptor c = dial(at);
    greet(c.get(), secret, in(seconds(5)));
    send_text(c.get(), "rank", in(seconds(5)));
    while (!done) std::this_thread::sleep_for(milliseconds(10));
  });
  const auto guest = door.next(in(seconds(20)));
  done = true;
  outside.join();
  BOOST_REQUIRE(guest.has_value());
  BOOST_TEST(guest->says == "rank");
  BOOST_TEST((between == greeted::well));
  BOOST_TEST(!accepted_again);
  BOOST_TEST((again == greeted::other_secret));
  BOOST_TEST((back == greeted::other_secret));
}

// The bar of 1e4 joins: none is accepted, and a rank that comes behind them is.
BOOST_AUTO_TEST_CASE(strangers) {
  acceptor door(loopback(), "the secret");
  const socket_address at = socket_address::of_socket(door.number());
  std::atomic<bool> done{false};
  constexpr int strangers = 10'000;
  std::thread knocking([&] {
    std::uint64_t seed = 7;
    const auto draw = [&](std::uint64_t below) {
      seed = seed * 6364136223846793005u + 1442695040888963407u;
      return (seed >> 33) % below;
    };
    for (int i = 0; i < strangers; ++i) {
      const descriptor c = dial(at);
      std::string says;
      if (i % 4 != 0) says = "megacpp ranks 1\n"; // a greeting, and then what is no proof
      const auto length = i % 4 == 3 ? 64 : draw(200);
      for (std::uint64_t k = 0; k < length; ++k) says += static_cast<char>(draw(256));
      if (i % 7 != 0) send_all(c.get(), says, in(seconds(1)));
    }
    const descriptor c = dial(at);
    greet(c.get(), "the secret", in(seconds(10)));
    send_text(c.get(), "rank", in(seconds(10)));
    while (!done) std::this_thread::sleep_for(milliseconds(10));
  });
  const auto guest = door.next(in(seconds(60)));
  done = true;
  knocking.join();
  BOOST_REQUIRE(guest.has_value());
  BOOST_TEST(guest->says == "rank");
  BOOST_TEST(door.dropped() > strangers / 2); // the others have not been looked at yet
}

// A stranger that says nothing holds up nobody.
BOOST_AUTO_TEST_CASE(silent_strangers) {
  acceptor door(loopback(), "s");
  const socket_address at = socket_address::of_socket(door.number());
  std::vector<descriptor> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(dial(at));
  std::thread rank([&] {
    const descriptor c = dial(at);
    greet(c.get(), "s", in(seconds(5)));
    send_text(c.get(), "here", in(seconds(5)));
    std::this_thread::sleep_for(milliseconds(100));
  });
  const stopwatch time;
  const auto guest = door.next(in(seconds(9)));
  rank.join();
  BOOST_REQUIRE(guest.has_value());
  BOOST_TEST(time.seconds() < 5);
}

// Strangers that say nothing are dropped after ten seconds, and what ranks wait for is said then.
BOOST_AUTO_TEST_CASE(what_takes_ten_seconds) {
  std::vector<std::string> told;
  const teller tell = [&](const std::string& what) { told.push_back(what); };
  detail::waiting_note note(tell);
  note.say([] { return "waiting"; });
  BOOST_TEST(told.empty());
  acceptor door(loopback(), "s");
  const descriptor silent = dial(socket_address::of_socket(door.number()));
  BOOST_TEST(!door.next(in(milliseconds(10'500))).has_value());
  BOOST_TEST(door.dropped() == 1);
  for (int i = 0; i < 2; ++i) note.say([] { return "waiting"; });
  BOOST_TEST(told == std::vector<std::string>{"waiting"});
}

// More silent strangers than there is room for: the oldest of them go.
BOOST_AUTO_TEST_CASE(more_strangers_than_there_is_room_for) {
  constexpr rlim_t needed = 2300;
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < needed) files.rlim_cur = std::min(needed, files.rlim_max);
  ::setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < needed) return;
  acceptor door(loopback(), "s");
  const socket_address at = socket_address::of_socket(door.number());
  std::atomic<bool> done{false};
  std::thread knocking([&] {
    std::vector<descriptor> silent;
    for (int i = 0; i < 1100; ++i) silent.push_back(dial(at));
    const descriptor c = dial(at);
    greet(c.get(), "s", in(seconds(5)));
    send_text(c.get(), "rank", in(seconds(5)));
    while (!done) std::this_thread::sleep_for(milliseconds(10));
  });
  const auto guest = door.next(in(seconds(8)));
  done = true;
  knocking.join();
  BOOST_TEST(guest.has_value());
}

// What no rank says ends a connection at once, and is not waited for.
BOOST_AUTO_TEST_CASE(what_no_rank_says) {
  acceptor door(loopback(), "s");
  const socket_address at = socket_address::of_socket(door.number());
  std::atomic<bool> done{false};
  bool http_is_dropped = false, long_text_is_dropped = false;
  std::thread outside([&] {
    std::string greeting(48, '\0');
    const auto is_dropped = [](int connection) {
      char byte = 0;
      const stopwatch time;
      return !receive_all(connection, &byte, 1, in(seconds(5))) && time.seconds() < 4;
    };
    const descriptor http = dial(at);
    receive_all(http.get(), greeting.data(), greeting.size(), in(seconds(5)));
    send_all(http.get(), "GET / HTTP/1.1\r\n", in(seconds(5)));
    http_is_dropped = is_dropped(http.get());
    const descriptor longer = dial(at);
    greet(longer.get(), "s", in(seconds(5)));
    send_all(longer.get(), "\xff\xff\xff\x7f.", in(seconds(5)));
    long_text_is_dropped = is_dropped(longer.get());
    const descriptor c = dial(at);
    greet(c.get(), "s", in(seconds(5)));
    send_text(c.get(), "rank", in(seconds(5)));
    while (!done) std::this_thread::sleep_for(milliseconds(10));
  });
  const auto guest = door.next(in(seconds(20)));
  done = true;
  outside.join();
  BOOST_TEST(guest.has_value());
  BOOST_TEST(http_is_dropped);
  BOOST_TEST(long_text_is_dropped);
  // On a connection that is greeted a text that is too long does so.
  const descriptor listener = loopback();
  const descriptor one = dial(address_of(listener));
  const descriptor two(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  send_all(one.get(), std::string("\1\0\0\1", 4), in(seconds(1))); // 16 MiB and a byte
  const stopwatch time;
  BOOST_TEST(!receive_text(two.get(), in(seconds(2))).has_value());
  BOOST_TEST(time.seconds() < 1.5);
}

// Messages that wait on a connection are no sign of its end.
BOOST_AUTO_TEST_CASE(connections_that_have_ended) {
  const descriptor listener = loopback();
  descriptor one = dial(address_of(listener));
  const descriptor two(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
  send_all(one.get(), "message", in(seconds(1)));
  wait_for_socket(two.get(), POLLIN, in(seconds(5)));
  BOOST_TEST(!has_ended(two.get()));
  one.reset();
  wait_for_socket(two.get(), POLLRDHUP, in(seconds(5)));
  BOOST_TEST(has_ended(two.get()));
}

// Ranks of one machine meet where no other machine comes; those of several by IPv4 and IPv6.
BOOST_AUTO_TEST_CASE(where_rank_0_listens) {
  const auto reached = [](const std::string& master, const std::string& at) {
    process_start start = rank_of(0, 2, meeting_place::first_rank, free_port());
    start.master = master;
    const detail::meeting_at_first meeting(start, "", in(seconds(1)), nullptr);
    return static_cast<bool>(dial(*socket_address::of_text(at, start.port)));
  };
  BOOST_TEST(reached("127.0.0.1", "127.0.0.1"));
  BOOST_TEST(!reached("127.0.0.1", "127.0.0.2"));
  BOOST_TEST(reached("localhost", "127.0.0.1"));
  BOOST_TEST(!reached("localhost", "127.0.0.2"));
  BOOST_TEST(reached("node-0", "127.0.0.2"));
  if (listen_at(*socket_address::of_text("::1", 0))) BOOST_TEST(reached("node-0", "::1"));
}

// What a client of PyTorch 2.15 and its servers (libuv and not) send each other for the same calls.
BOOST_AUTO_TEST_CASE(the_store_of_torchrun) {
  const auto number = [](std::uint64_t n, int bytes) {
    std::string s;
    for (int i = 0; i < bytes; ++i) s += static_cast<char>(n >> (8 * i));
    return s;
  };
  const auto text = [&](const std::string& s) { return number(s.size(), 8) + s; };
  struct turn {
    std::string asks, answers;
  };
  const std::string one = number(1, 8);
  const std::vector<turn> turns{
      {std::string("\0\xce\xf7\x85\x3c", 5), ""}, {"\5" + one + text("/k"), std::string("\1", 1)},
      {"\1" + text("/k") + text("value"), ""},    {"\5" + one + text("/k"), std::string("\0", 1)},
      {"\3" + text("/k"), text("value")},         {"\5" + one + text("/n"), std::string("\1", 1)}};
  descriptor listener = loopback();
  std::string wrong;
  std::thread server([&] {
    wait_for_socket(listener.get(), POLLIN, in(seconds(5)));
    const descriptor c(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
    for (const turn& t : turns) {
      std::string asked(t.asks.size(), '\0');
      if (!receive_all(c.get(), asked.data(), asked.size(), in(seconds(5))) || asked != t.asks)
        wrong += "another request in turn " + std::to_string(&t - turns.data()) + "\n";
      send_all(c.get(), t.answers, in(seconds(5)));
    }
  });
  torch_store store(dial(address_of(listener)), "here");
  BOOST_TEST(!store.get("k").has_value());
  store.set("k", "value");
  BOOST_TEST(store.get("k").value_or("") == "value");
  BOOST_TEST(!store.has("n"));
  server.join();
  BOOST_TEST(wrong == "");
}

BOOST_AUTO_TEST_CASE(a_store_that_is_none) {
  for (const std::string& says : {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string(),
                                  std::string("\0HTTP/1.1 400", 13), std::string("\2", 1)}) {
    descriptor listener = loopback();
    std::thread server([&] {
      wait_for_socket(listener.get(), POLLIN, in(seconds(5)));
      const descriptor c(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
      send_all(c.get(), says, in(seconds(1)));
      std::string asked(4096, '\0');
      if (!says.empty()) receive_all(c.get(), asked.data(), asked.size(), in(seconds(5)));
    });
    std::string said;
    try {
      torch_store store(dial(address_of(listener)), "here");
      store.get("k");
      store.get("k");
    } catch (const error& e) {
      said = e.what();
      BOOST_TEST((e.code() == exit_code::ranks));
    }
    server.join();
    BOOST_TEST(said.find("the store of torchrun at here") == 0, said);
  }
}

// Jobs that share a store have keys of their own.
BOOST_AUTO_TEST_CASE(keys_of_a_job) {
  descriptor listener = loopback();
  std::string asked(5 + 1 + 8 + 10 + 8 + 1, '\0'); // the hello, and a key with its value
  std::thread server([&] {
    wait_for_socket(listener.get(), POLLIN, in(seconds(5)));
    const descriptor c(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK));
    receive_all(c.get(), asked.data(), asked.size(), in(seconds(5)));
  });
  {
    detail::agent_store store(dial(address_of(listener)), "here", "of-job/");
    store.set("ab", "v");
    server.join();
  }
  BOOST_TEST(asked.substr(14, 10) == "/of-job/ab");
}

BOOST_AUTO_TEST_CASE(ranks_meet) {
  const test::scratch_folder folder;
  for (const meeting_place meets : {meeting_place::first_rank, meeting_place::folder})
    for (const auto& variables : {std::span<const environment::variable>(with_secret),
                                  std::span<const environment::variable>(long_wait)})
      for (int again = 0; again < 2; ++again) { // in the same folder
        constexpr int n = 5;
        const int port = free_port();
        std::mutex lock;
        int connections = 0;
        const auto said = on_threads(n, [&](int r) {
          std::this_thread::sleep_for(milliseconds(r == 2 ? 150 : 10 * (n - r)));
          const auto peers = join_peers(rank_of(r, n, meets, port, folder.path().string()),
                                        "program", environment(variables), nullptr);
          const std::lock_guard guard(lock);
          for (const peer& p : peers) connections += p.connection ? 1 : 0;
        });
        for (const std::string& s : said) BOOST_TEST(s == "");
        BOOST_TEST(connections == n * (n - 1));
      }
  // What ranks tell each other in a folder is for no other user.
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    struct stat about {};
    BOOST_REQUIRE(::stat(entry.path().c_str(), &about) == 0);
    BOOST_TEST((about.st_mode & 077) == 0u, entry.path());
    ++files;
  }
  BOOST_TEST(files > 5);
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_fit) {
  const test::scratch_folder folder;
  struct fault {
    const char* what;
    int rank, size;
    const char* identity;
    const char* of_rank_0;
    const char* of_other;
  };
  const fault faults[] = {
      {"another program", 1, 2, "other", "3 rank 1 was started from another program",
       "3 rank 1 was started from another program"},
      {"a rank beyond the world", 2, 2, "program", "3 there is no rank 2 of 2: number ranks",
       "3 there is no rank 2 of 2: number ranks"},
      {"another world", 1, 3, "program", "3 rank 1 was started as one of 3, and rank 0 as one of 2",
       "3 rank 1 was started as one of 3"},
  };
  for (const fault& f : faults)
    for (const meeting_place meets : {meeting_place::first_rank, meeting_place::folder})
      BOOST_TEST_CONTEXT(f.what) {
        if (f.rank >= 2 && meets == meeting_place::folder) continue; // nobody reads its card
        const int port = free_port();
        const auto said = on_threads(2, [&](int r) {
          (void)join_peers(rank_of(r == 0 ? 0 : f.rank, r == 0 ? 2 : f.size, meets, port,
                                   folder.path().string()),
                           r == 0 ? "program" : f.identity, environment(with_secret), nullptr);
        });
        BOOST_TEST(said[0].find(f.of_rank_0) == 0, said[0]);
        BOOST_TEST(said[1].find(f.of_other) == 0, said[1]);
      }
}

// Ranks that have come before are told, too.
BOOST_AUTO_TEST_CASE(ranks_that_wait_for_one_that_does_not_fit) {
  const int port = free_port();
  const auto said = on_threads(3, [&](int r) {
    if (r == 1) std::this_thread::sleep_for(milliseconds(700));
    (void)join_peers(rank_of(r, 3, meeting_place::first_rank, port), r == 1 ? "other" : "program",
                     environment(with_secret), nullptr);
  });
  for (const std::string& s : said)
    BOOST_TEST(s.find("3 rank 1 was started from another program") == 0, s);
}

// A secret that some of the ranks have says so, wherever they meet.
BOOST_AUTO_TEST_CASE(secrets_that_not_all_have) {
  const test::scratch_folder folder;
  for (const int has : {0, 1}) {
    const auto said = on_threads(2, [&](int r) {
      (void)join_peers(
          rank_of(r, 2, meeting_place::folder, 0, folder.path().string()), "p",
          environment(r == has ? std::span<const environment::variable>(secret_and_short_wait)
                               : std::span<const environment::variable>(two_seconds)),
          nullptr);
    });
    BOOST_TEST(
        said[1].find(has == 1 ? "3 this rank has a secret, and rank 0 has none: give all"
                              : "3 rank 0 has a secret, and this rank has none: give all") == 0,
        said[1]);
    BOOST_TEST(said[0].find("11 rank 1 of 2 did not come") == 0, said[0]);
  }
}

BOOST_AUTO_TEST_CASE(ranks_of_two_jobs) {
  const int port = free_port();
  const auto said = on_threads(2, [&](int r) {
    process_start start = rank_of(r, 2, meeting_place::first_rank, port);
    start.job = r == 0 ? "77.0" : "77.1"; // two steps of a script of Slurm
    (void)join_peers(start, "p", environment(two_seconds), nullptr);
  });
  BOOST_TEST(said[1].find("3 rank 1 is of job 77.1, and rank 0 of job 77.0: give each") == 0,
             said[1]);
  BOOST_TEST(said[0].find("3 rank 1 of 2 did not come to rank 0 in time, and another one was "
                          "refused: rank 1 is of job 77.1") == 0,
             said[0]);
}

// What another secret was refused for is said to the rank that has it.
BOOST_AUTO_TEST_CASE(ranks_with_two_secrets) {
  const int port = free_port();
  const environment::variable other[] = {{"MEGACPP_RENDEZVOUS_SECRET", "open barley"},
                                         {"MEGACPP_RENDEZVOUS_TIMEOUT", "3"}};
  const auto said = on_threads(2, [&](int r) {
    (void)join_peers(rank_of(r, 2, meeting_place::first_rank, port), "p",
                     environment(r == 0 ? std::span<const environment::variable>(two_seconds)
                                        : std::span<const environment::variable>(other)),
                     nullptr);
  });
  BOOST_TEST(said[1].find("3 rank 0 at 127.0.0.1:") == 0, said[1]);
  BOOST_TEST(said[1].find("does not take this rank's secret") != std::string::npos, said[1]);
}

// A rank that meets the others by hand, from a machine of another name.
BOOST_AUTO_TEST_CASE(a_note_where_machines_meet_without_a_secret) {
  std::vector<std::string> secrets;
  for (const bool has_secret : {false, true})
    for (const bool one_machine : {false, true}) {
      const int port = free_port();
      std::vector<std::string> told;
      (void)on_threads(2, [&](int r) {
        const process_start start = rank_of(r, 2, meeting_place::first_rank, port);
        if (r == 0)
          return (void)join_peers(
              start, "p",
              has_secret ? environment(secret_and_short_wait)
                         : environment(std::span<const environment::variable>(two_seconds)),
              [&](const std::string& what) { told.push_back(what); });
        detail::meeting_at_first meeting(start, has_secret ? "open sesame" : "", in(seconds(5)),
                                         nullptr);
        const std::string machine = detail::name_of_network() + (one_machine ? "" : "-2");
        secrets.push_back(
            detail::separated(meeting.ask(detail::rank_card{"2", "test", "p", machine, "0"}.text()))
                .back());
      });
      const bool warns = !has_secret && !one_machine;
      BOOST_TEST(told.size() == (warns ? 1u : 0u));
      if (warns)
        BOOST_TEST(told[0].find("ranks of several machines meet at port " + std::to_string(port) +
                                " without a secret") == 0u);
    }
  BOOST_REQUIRE(secrets.size() == 4u);
  BOOST_TEST(secrets[0].size() == 32u); // rank 0 has drawn it, each time another one
  BOOST_TEST(secrets[0] != secrets[1]);
  BOOST_TEST(secrets[2] + secrets[3] == "");
}

// A rank connects with none that has not the job's secret, also if it was told that this is rank 0.
BOOST_AUTO_TEST_CASE(a_stranger_in_the_place_of_a_rank) {
  const int port = free_port();
  const descriptor stranger = loopback();
  const auto said = on_threads(2, [&](int r) {
    const process_start start = rank_of(r, 2, meeting_place::first_rank, port);
    if (r == 1) return (void)join_peers(start, "p", environment(two_seconds), nullptr);
    detail::meeting_at_first meeting(start, "", in(seconds(5)), nullptr);
    const auto well = [](int, std::string_view) { return std::string(); };
    std::vector<std::string> cards = meeting.gather("", well);
    cards[0] = cards[1];
    cards.push_back("a secret");
    meeting.answer(detail::joined(cards));
    (void)meeting.gather("", well);
    meeting.answer(detail::joined({address_of(stranger).text(), "127.0.0.1:1"}));
    wait_for_socket(stranger.get(), POLLIN, in(seconds(5)));
    const descriptor c(::accept4(stranger.get(), nullptr, nullptr, SOCK_NONBLOCK));
    send_all(c.get(), "megacpp ranks 1\n" + std::string(64, 'n'), in(seconds(5)));
    std::this_thread::sleep_for(milliseconds(300));
  });
  BOOST_TEST(
      said[1].find("11 rank 0 at " + address_of(stranger).text() + " cannot be reached") == 0,
      said[1]);
}

// A rank that a launcher starts again, while the others still meet, comes in the place of the first.
BOOST_AUTO_TEST_CASE(a_rank_that_ends_while_ranks_meet_and_comes_again) {
  const int port = free_port();
  const auto said = on_threads(3, [&](int r) {
    const process_start start = rank_of(r, 3, meeting_place::first_rank, port);
    if (r == 1) {
      const descriptor first = detail::reach(
          "127.0.0.1", port, in(seconds(5)), nullptr, "rank 0",
          [](int to, std::string&) { return greet(to, "", in(seconds(5))) == greeted::well; });
      send_text(first.get(), "1\n" + detail::rank_card{"3", "test", "p", "m", "0"}.text(),
                in(seconds(5)));
      std::this_thread::sleep_for(milliseconds(300));
    }
    if (r == 2) std::this_thread::sleep_for(milliseconds(800));
    (void)join_peers(start, "p", environment(long_wait), nullptr);
  });
  for (const std::string& s : said) BOOST_TEST(s == "");
}

// A rank that dies while the others connect is not waited for.
BOOST_AUTO_TEST_CASE(a_rank_that_ends_while_ranks_connect) {
  const int port = free_port();
  const stopwatch time;
  const auto said = on_threads(3, [&](int r) {
    const process_start start = rank_of(r, 3, meeting_place::first_rank, port);
    if (r != 2) return (void)join_peers(start, "p", environment(long_wait), nullptr);
    // Rank 2 meets the others, connects with rank 0 alone, and ends.
    const std::string secret;
    const deadline soon = in(seconds(10));
    std::vector<std::string> addresses;
    {
      detail::meeting_at_first meeting(start, secret, soon, nullptr);
      const detail::rank_card card{"3", "test", "p", detail::name_of_network(), "0"};
      std::vector<std::string> all = detail::separated(meeting.ask(card.text()));
      addresses = detail::separated(meeting.ask("127.0.0.1:1"));
      if (!addresses[0].starts_with("127.0.0.1:")) // they are of one machine
        throw error(exit_code::internal, "rank 0 listens at " + addresses[0]);
      const descriptor first = dial(*socket_address::of_text(
          "127.0.0.1", std::stoi(addresses[0].substr(addresses[0].rfind(':') + 1))));
      if (greet(first.get(), all.back(), soon) != greeted::well)
        throw error(exit_code::internal, "rank 0 is not well greeted");
      send_text(first.get(), "2", soon);
      std::this_thread::sleep_for(milliseconds(300));
    }
  });
  BOOST_TEST(time.seconds() < 10);
  BOOST_TEST(said[1].find("11 rank 0 has ended while ranks connected") == 0, said[1]);
  BOOST_TEST(said[2] == "");
}

// HMAC fills keys up with zeros, and hashes long ones: no two secrets may be one for that.
BOOST_AUTO_TEST_CASE(secrets_that_hmac_takes_for_one) {
  const std::string long_one(100, 'x');
  std::array<unsigned char, 32> hash{};
  unsigned size = 0;
  BOOST_REQUIRE(::EVP_Digest(long_one.data(), long_one.size(), hash.data(), &size, EVP_sha256(),
                             nullptr) == 1);
  const std::string of_hash(hash.begin(), hash.end());
  const auto sign = [](const std::string& secret) {
    return detail::signature(secret, "connects", "1", "2");
  };
  using namespace std::string_literals;
  BOOST_TEST(sign("abc") != sign("abc\0\0"s));
  BOOST_TEST(sign("") != sign("\0\0\0"s));
  BOOST_TEST(sign(long_one) != sign(of_hash));
}

// Where nobody listens, Linux may give the port to the end that connects, which then holds it.
BOOST_AUTO_TEST_CASE(a_connection_with_itself) {
  int own = 0;
  for (int i = 0; i < 200'000 && own == 0; ++i) {
    descriptor end = detail::stream_socket(AF_INET);
    const socket_address any = *socket_address::of_text("127.0.0.1", 0);
    BOOST_REQUIRE(::bind(end.get(), any.get(), any.size()) == 0);
    const socket_address mine = socket_address::of_socket(end.get());
    if (::connect(end.get(), mine.get(), mine.size()) != 0 && errno != EINPROGRESS) continue;
    own = mine.port();
    BOOST_TEST(detail::is_own_end(end.get()));
    end.reset();
    BOOST_TEST(bool(listen_at(mine)));
  }
  BOOST_TEST(own != 0);
}

// The bytes of a length are no sign of anything: one of them is '!' in every 256th card.
BOOST_AUTO_TEST_CASE(cards_of_any_length) {
  cpu_set_t mine;
  CPU_ZERO(&mine);
  (void)::sched_getaffinity(0, sizeof mine, &mine);
  const detail::rank_card card{"2", "test", "", detail::name_of_network(), detail::text_of(mine)};
  for (const char byte : {'!', '=', '?', '\0'}) {
    const std::string identity((static_cast<unsigned char>(byte) - card.text().size()) % 256, 'p');
    const int port = free_port();
    const auto said = on_threads(2, [&](int r) {
      (void)join_peers(rank_of(r, 2, meeting_place::first_rank, port), identity,
                       environment(long_wait), nullptr);
    });
    BOOST_TEST(said[1] == "");
  }
}

BOOST_AUTO_TEST_CASE(ranks_that_do_not_come) {
  const int port = free_port();
  const auto alone = on_threads(1, [&](int) {
    (void)join_peers(rank_of(0, 3, meeting_place::first_rank, port), "p", environment(short_wait),
                     nullptr);
  });
  BOOST_TEST(alone[0].find("11 ranks 1, 2 of 3 did not come to rank 0 in time") == 0, alone[0]);
  const auto two_of_three = on_threads(2, [&](int r) {
    (void)join_peers(rank_of(r, 3, meeting_place::first_rank, port), "p", environment(short_wait),
                     nullptr);
  });
  for (const std::string& one : two_of_three)
    BOOST_TEST(one.find("11 rank 2 of 3 did not come to rank 0 in time") == 0, one);
  const auto no_master = on_threads(1, [&](int) {
    (void)join_peers(rank_of(1, 3, meeting_place::first_rank, port), "p", environment(short_wait),
                     nullptr);
  });
  BOOST_TEST(no_master[0].find("11 rank 0 at 127.0.0.1:") == 0, no_master[0]);
  process_start late = rank_of(1, 3, meeting_place::first_rank, port);
  late.master = "no-such-host.invalid";
  const auto no_name =
      on_threads(1, [&](int) { (void)join_peers(late, "p", environment(short_wait), nullptr); });
  BOOST_TEST(no_name[0].find("(its name is not known)") != std::string::npos, no_name[0]);
  const descriptor taken = loopback();
  const auto in_use = on_threads(1, [&](int) {
    (void)join_peers(rank_of(0, 2, meeting_place::first_rank, address_of(taken).port()), "p",
                     environment(short_wait), nullptr);
  });
  BOOST_TEST(in_use[0].find("11 rank 0 cannot listen at port ") == 0, in_use[0]);
}

BOOST_AUTO_TEST_CASE(ranks_started_twice) {
  for (const auto& variables : {std::span<const environment::variable>(secret_and_short_wait),
                                std::span<const environment::variable>(two_seconds)}) {
    const int port = free_port();
    const auto said = on_threads(4, [&](int r) { // ranks 0, 1, 2 and 1 again
      if (r == 3) std::this_thread::sleep_for(milliseconds(300));
      if (r == 2) std::this_thread::sleep_for(milliseconds(900));
      (void)join_peers(rank_of(r == 3 ? 1 : r, 3, meeting_place::first_rank, port), "p",
                       environment(variables), nullptr);
    });
    BOOST_TEST(said[3].find("3 rank 1 was started twice") == 0, said[3]);
    const bool ends = variables.size() == std::size(secret_and_short_wait);
    BOOST_TEST((said[0] == "") == !ends, said[0]); // without a secret it may have been a stranger
  }
}

BOOST_AUTO_TEST_CASE(open_files_of_many_ranks) {
  rlimit before{};
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  rlimit files{300, before.rlim_max};
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  allow_connections(2);
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  BOOST_TEST(files.rlim_cur == 300);
  allow_connections(100);
  BOOST_REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  BOOST_TEST(files.rlim_cur == 328);
  if (before.rlim_max < 1'000'000'000)
    CHECK_REFUSED(allow_connections(1'000'000'000), exit_code::memory, "ulimit -Hn");
  BOOST_REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
}

BOOST_AUTO_TEST_CASE(ranks_started_twice_in_a_folder) {
  const test::scratch_folder folder;
  const auto join = [&](int rank, std::span<const environment::variable> variables) {
    (void)join_peers(rank_of(rank, 2, meeting_place::folder, 0, folder.path().string()), "p",
                     environment(variables), nullptr);
  };
  const auto first_twice = on_threads(3, [&](int r) { // ranks 0, 0 again, and 1
    std::this_thread::sleep_for(milliseconds(300 * r));
    join(r / 2, long_wait);
  });
  BOOST_TEST(first_twice[0].find("3 rank 0 was started twice") == 0, first_twice[0]);
  BOOST_TEST(first_twice[1] + first_twice[2] == "");
  const auto other_twice = on_threads(2, [&](int r) { // rank 1, and again; nobody answers
    std::this_thread::sleep_for(milliseconds(300 * r));
    join(1, short_wait);
  });
  BOOST_TEST(other_twice[0].find("3 rank 1 was started twice") == 0, other_twice[0]);
}

// Rank 0 of another start answers no rank of an earlier one in the midst of its meeting.
BOOST_AUTO_TEST_CASE(a_rank_0_that_is_started_again_while_ranks_meet) {
  const test::scratch_folder folder;
  detail::folder_store store(folder.path().string() + "/megacpp-test");
  store.set("epoch", "first");
  const auto said = on_threads(2, [&](int r) {
    if (r == 1)
      return (void)join_peers(rank_of(1, 2, meeting_place::folder, 0, folder.path().string()), "p",
                              environment(two_seconds), nullptr);
    std::string card;
    while ((card = store.get("card-0-1").value_or("")).empty())
      std::this_thread::sleep_for(milliseconds(10));
    const std::size_t number = card.find('\n') + 1, text = card.find('\n', number) + 1;
    const std::string of_rank = card.substr(text);
    store.set("answer-0", card.substr(number, text - number) + "=" +
                              detail::joined({of_rank, of_rank, "a secret"}));
    while (!store.get("card-1-1")) std::this_thread::sleep_for(milliseconds(10));
    store.set("epoch", "second");
  });
  BOOST_TEST(said[1].find("11 rank 0 was started again while ranks met") == 0, said[1]);
}

BOOST_AUTO_TEST_CASE(secrets_in_files) {
  const test::scratch_folder folder;
  const std::string path = folder.path().string() + "/secret";
  const environment::variable names[] = {{"MEGACPP_RENDEZVOUS_SECRET_FILE", path}};
  const auto secret = [&](const std::string& text, unsigned rights) -> std::string {
    ::unlink(path.c_str());
    const descriptor file(::open(path.c_str(), O_CREAT | O_WRONLY, rights));
    ::fchmod(file.get(), rights);
    (void)!::write(file.get(), text.data(), text.size());
    try {
      return given_secret(environment(names));
    } catch (const error& e) {
      return e.what();
    }
  };
  BOOST_TEST(secret("abc\n", 0600) == "abc");
  BOOST_TEST(secret("abc", 0640).find("may be read by others") != std::string::npos);
  BOOST_TEST(secret("\n", 0600).find("is empty") != std::string::npos);
  BOOST_TEST(secret(std::string(5000, 'x'), 0600).find("too long") != std::string::npos);
  ::unlink(path.c_str());
  BOOST_CHECK_THROW((void)given_secret(environment(names)), error);
  BOOST_REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  try {
    (void)given_secret(environment(names));
    BOOST_TEST(false);
  } catch (const error& e) {
    BOOST_TEST(std::string_view(e.what()).find("is no file") != std::string_view::npos);
  }
  const environment::variable text[] = {{"MEGACPP_RENDEZVOUS_SECRET", "xyz"}};
  BOOST_TEST(given_secret(environment(text)) == "xyz");
  BOOST_TEST(given_secret(environment(std::span<const environment::variable>())) == "");
}
