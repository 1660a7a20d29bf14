// Messages over one connection of two ranks: those that come in pieces, early, or for nobody.
#define BOOST_TEST_MODULE tcp_link
#include <megacpp/comm/tcp_link.hpp>

#include <boost/test/unit_test.hpp>

#include <string>
#include <string_view>

#include <fcntl.h>
#include <sys/socket.h>

using namespace mc;

namespace {

/// The link of a rank, and the other end of its connection, by which the test writes what it likes.
struct ends {
  tcp_pool pool{64, 2};
  descriptor other;
  tcp_link link;

  ends() : ends(pair()) {}
  void write(std::string_view bytes) const {
    BOOST_REQUIRE(::send(other.get(), bytes.data(), bytes.size(), 0) == std::ssize(bytes));
  }
  static std::string head(tcp_head h) { return {reinterpret_cast<const char*>(&h), sizeof h}; }
  static tcp_message receiver(std::string& to, int tag) {
    return {.peer = 1,
            .receives = true,
            .to = reinterpret_cast<std::byte*>(to.data()),
            .bytes = std::ssize(to),
            .of = plane::ranks,
            .tag = tag};
  }

private:
  struct two {
    descriptor a, b;
  };
  static two pair() {
    int both[2];
    BOOST_REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0);
    return {descriptor(both[0]), descriptor(both[1])};
  }
  explicit ends(two p) : other(std::move(p.b)), link(std::move(p.a), 1, pool) {}
};

constexpr tcp_head of_eight{
    .kind = tcp_head::carries, .of = plane::ranks, .tag = 5, .bytes = 8, .number = 0};

} // namespace

// A network cuts where it likes: also between the bytes of a message that is asked for meanwhile.
BOOST_AUTO_TEST_CASE(a_message_that_is_asked_for_between_its_pieces) {
  const std::string all = ends::head(of_eight) + "message1" + ends::head(of_eight) + "message2";
  for (std::size_t cut = 1; cut < all.size(); ++cut) {
    ends e;
    e.write(all.substr(0, cut));
    e.link.pull();
    std::string one(8, '.'), two(8, '.');
    tcp_message first = ends::receiver(one, 5), second = ends::receiver(two, 5);
    e.link.expect(&first), e.link.expect(&second);
    e.write(all.substr(cut));
    e.link.pull();
    BOOST_TEST((first.state == tcp_message::done && second.state == tcp_message::done));
    BOOST_TEST(one + two == "message1message2", "cut behind " << cut << " bytes: " << one + two);
  }
}

BOOST_AUTO_TEST_CASE(messages_of_other_tags_and_planes_wait) {
  ends e;
  tcp_head other = of_eight;
  other.of = plane::hosts;
  e.write(ends::head(other) + "of hosts" + ends::head(of_eight) + "of ranks");
  e.link.pull();
  std::string text(8, '.');
  tcp_message m = ends::receiver(text, 5);
  e.link.expect(&m);
  BOOST_TEST(text == "of ranks");
}

// What a run that has failed would receive is written nowhere, whatever has come of it.
BOOST_AUTO_TEST_CASE(nothing_is_written_behind_the_end_of_a_run) {
  const std::string all = ends::head(of_eight) + "message1" + ends::head(of_eight) + "message2";
  for (std::size_t cut = 0; cut < all.size(); ++cut) {
    ends e;
    std::string one(8, '.');
    tcp_message m = ends::receiver(one, 5);
    e.link.expect(&m);
    e.write(all.substr(0, cut));
    e.link.pull();
    e.link.give_up();
    const std::string before = one;
    e.write(all.substr(cut));
    e.link.pull();
    BOOST_TEST(one == before);
    BOOST_TEST(!e.link.gone());
  }
}

// A message that has gone in part is not finished from memory that may be gone.
BOOST_AUTO_TEST_CASE(nothing_is_sent_behind_the_end_of_a_run) {
  ends e;
  std::string large(64, 'x');
  tcp_message m{.peer = 1, .from = reinterpret_cast<const std::byte*>(large.data()), .bytes = 64};
  e.link.send(&m, plane::ranks, 5);
  e.link.give_up();
  large.assign(64, 'y');
  BOOST_TEST(!e.link.sends());
  e.link.fail(4);
  e.link.push();
  BOOST_TEST(code_told_by(e.other.get()) == 4);
}

BOOST_AUTO_TEST_CASE(a_message_that_is_too_long) {
  ends e;
  std::string text(7, '.');
  tcp_message m = ends::receiver(text, 5);
  e.link.expect(&m);
  e.write(ends::head(of_eight) + "message1");
  e.link.pull();
  BOOST_TEST((m.state == tcp_message::too_long));
  BOOST_TEST(text == ".......");
}

BOOST_AUTO_TEST_CASE(what_no_rank_sends_ends_the_connection) {
  for (const tcp_head wrong :
       {tcp_head{.kind = tcp_head::carries, .of = plane::ranks, .bytes = 1000},
        tcp_head{.kind = tcp_head::carries, .of = plane::ranks, .bytes = -1},
        tcp_head{.kind = tcp_head::notes, .of = plane::hosts, .bytes = 3}}) {
    ends e;
    e.write(ends::head(wrong));
    e.link.pull();
    BOOST_TEST(e.link.gone());
  }
}
