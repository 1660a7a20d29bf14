// Messages over one connection of two ranks: those that come in pieces, early, or for nobody.
#define BOOST_TEST_MODULE tcp_link
#include <megacpp/comm/tcp_link.hpp>

#include <boost/test/unit_test.hpp>

#include "child.hpp"

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
  /// Returns what the link has sent.
  std::string read() const {
    std::string all(std::size_t{1} << 20, '\0');
    const ssize_t n = ::recv(other.get(), all.data(), all.size(), MSG_DONTWAIT);
    all.resize(n < 0 ? 0 : static_cast<std::size_t>(n));
    return all;
  }
  /// Has the link send a message of which the connection takes a part, and one more behind it.
  void send_in_part(tcp_message& m, tcp_message& behind) {
    link.send(&m, plane::ranks, 5);
    link.push();
    write(head({.kind = tcp_head::takes, .of = plane::ranks, .number = head_in(read()).number}));
    link.pull();
    link.send(&behind, plane::ranks, 5);
    link.push();
    BOOST_REQUIRE((m.state != tcp_message::done && link.sends()));
  }
  static tcp_head head_in(std::string_view bytes) {
    tcp_head h;
    BOOST_REQUIRE(bytes.size() >= sizeof h);
    std::memcpy(&h, bytes.data(), sizeof h);
    return h;
  }
  static std::string head(tcp_head h) { return {reinterpret_cast<const char*>(&h), sizeof h}; }
  static tcp_message sender(std::string_view from) {
    return {.peer = 1,
            .from = reinterpret_cast<const std::byte*>(from.data()),
            .bytes = std::ssize(from)};
  }
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

// What has gone in part is followed by nothing that would be taken for its rest.
BOOST_AUTO_TEST_CASE(a_message_that_has_gone_in_part_at_the_end_of_a_run) {
  ends e;
  std::string large(std::size_t{4} << 20, 'x');
  tcp_message m = ends::sender(large), behind = ends::sender("message2");
  e.send_in_part(m, behind);
  e.link.give_up();
  large.assign(large.size(), 'y');
  BOOST_TEST(!e.link.sends());
  std::string came;
  for (std::string more; !(more = e.read()).empty(); e.link.push()) came += more;
  e.link.fail(4);
  e.link.push();
  BOOST_TEST(came.size() < large.size());
  BOOST_TEST(came.find('y') == std::string::npos);
  char more = 0;
  BOOST_TEST(::recv(e.other.get(), &more, 1, MSG_DONTWAIT) == 0); // the other rank sees the end
}

// The code of a failure goes behind the message that has gone in part, and before all others.
BOOST_AUTO_TEST_CASE(a_failure_behind_a_message_that_has_gone_in_part) {
  ends e;
  const std::string large(std::size_t{4} << 20, 'x');
  tcp_message m = ends::sender(large), behind = ends::sender("message2");
  e.send_in_part(m, behind);
  e.link.fail(4);
  std::string came;
  while (e.link.sends()) {
    came += e.read();
    e.link.push();
  }
  came += e.read();
  BOOST_REQUIRE(came.size() == large.size() + 2 * sizeof(tcp_head));
  const tcp_head last = ends::head_in(came.substr(came.size() - sizeof(tcp_head)));
  BOOST_TEST((last.kind == tcp_head::fails && last.tag == 4));
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

// Messages that have come before they are asked for are known by their tags, too, and come in the
// order in which they were sent.
BOOST_AUTO_TEST_CASE(messages_that_nobody_has_asked_for_yet) {
  ends e;
  tcp_head other = of_eight;
  other.tag = 6;
  e.write(ends::head(other) + "of tag 6" + ends::head(of_eight) + "message1" +
          ends::head(of_eight) + "message2");
  e.link.pull();
  std::string one(8, '.'), two(8, '.'), six(8, '.');
  tcp_message first = ends::receiver(one, 5), second = ends::receiver(two, 5);
  tcp_message of_six = ends::receiver(six, 6);
  e.link.expect(&first), e.link.expect(&second), e.link.expect(&of_six);
  BOOST_TEST(one + two + six == "message1message2of tag 6");
}

BOOST_AUTO_TEST_CASE(a_message_of_hosts_is_not_for_ranks_that_wait) {
  ends e;
  std::string text(8, '.');
  tcp_message m = ends::receiver(text, 5);
  e.link.expect(&m);
  tcp_head other = of_eight;
  other.of = plane::hosts;
  e.write(ends::head(other) + "of hosts" + ends::head(of_eight) + "of ranks");
  e.link.pull();
  BOOST_TEST(text == "of ranks");
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

// One that has come before it is asked for, too, and one that is only announced.
BOOST_AUTO_TEST_CASE(messages_that_are_too_long_and_early) {
  for (const bool announced : {false, true}) {
    ends e;
    tcp_head h = of_eight;
    if (announced) h.kind = tcp_head::announces;
    e.write(ends::head(h) + (announced ? "" : "message1"));
    e.link.pull();
    std::string text = ".......|";
    tcp_message m = ends::receiver(text, 5);
    m.bytes = 7;
    e.link.expect(&m);
    BOOST_TEST((m.state == tcp_message::too_long));
    BOOST_TEST(text == ".......|");
    BOOST_TEST(!e.link.sends()); // it is not asked for
  }
}

// A message of as many bytes as may come with a head is none of those that no rank sends.
BOOST_AUTO_TEST_CASE(the_longest_message_that_is_not_announced) {
  ends e;
  std::string text(64, '.');
  tcp_message m = ends::receiver(text, 5);
  e.link.expect(&m);
  e.write(ends::head({.kind = tcp_head::carries, .of = plane::ranks, .tag = 5, .bytes = 64}) +
          std::string(64, 'x'));
  e.link.pull();
  BOOST_TEST(!e.link.gone());
  BOOST_TEST(text == std::string(64, 'x'));
}

BOOST_AUTO_TEST_CASE(announced_messages) {
  const std::string longer(65, 'x');
  ends e;
  tcp_message out{.peer = 1,
                  .from = reinterpret_cast<const std::byte*>(longer.data()),
                  .bytes = std::ssize(longer)};
  e.link.send(&out, plane::ranks, 5);
  e.link.push();
  const tcp_head announced = ends::head_in(e.read());
  BOOST_TEST((announced.kind == tcp_head::announces && announced.bytes == 65));
  const tcp_head takes{
      .kind = tcp_head::takes, .of = plane::ranks, .tag = 3, .number = announced.number};
  e.write(ends::head(takes) + ends::head(takes)); // the second one names nothing
  e.link.pull();
  e.link.push();
  const std::string came = e.read();
  BOOST_TEST(came.size() == sizeof(tcp_head) + longer.size());
  const tcp_head brings = ends::head_in(came);
  BOOST_TEST((brings.kind == tcp_head::brings && brings.number == 3));
  BOOST_TEST((out.state == tcp_message::done));

  for (const bool given_up : {false, true})
    for (const std::int64_t bytes : {65, 66}) {
      ends to;
      to.write(ends::head(
          {.kind = tcp_head::announces, .of = plane::ranks, .tag = 5, .bytes = 65, .number = 9}));
      std::string text(65, '.');
      tcp_message in = ends::receiver(text, 5);
      to.link.expect(&in);
      to.link.pull();
      to.link.push();
      const tcp_head asks = ends::head_in(to.read());
      BOOST_TEST((asks.kind == tcp_head::takes && asks.number == 9));
      if (given_up) to.link.give_up(), to.pool.forget_numbers();
      to.write(
          ends::head(
              {.kind = tcp_head::brings, .of = plane::ranks, .bytes = bytes, .number = asks.tag}) +
          longer);
      to.link.pull();
      BOOST_TEST(to.link.gone() == (!given_up && bytes > 65)); // no rank brings more than it said
      BOOST_TEST(text == std::string(65, !given_up && bytes == 65 ? 'x' : '.'));
    }
}

// What a rank of an earlier run is late with must not be taken for what this one waits for.
BOOST_AUTO_TEST_CASE(numbers_that_were_given_up_name_nothing) {
  tcp_pool pool(64, 2);
  tcp_message before, after;
  const std::int64_t earlier = pool.keep(&before);
  pool.forget_numbers();
  const std::int64_t later = pool.keep(&after);
  BOOST_TEST(earlier != later);
  BOOST_TEST(pool.named(earlier) == nullptr);
  BOOST_TEST(pool.named(later) == &after);
  BOOST_TEST(pool.named(later) == nullptr); // it is free again
}

BOOST_AUTO_TEST_CASE(notes) {
  ends e;
  const auto told = [&] {
    rank_note n;
    n.number = 7;
    for (int i = 0; i < 40; ++i) e.link.tell(n);
    e.link.push();
    return e.read().size() / (sizeof(tcp_head) + sizeof n);
  };
  const std::size_t first = told();
  BOOST_TEST(first < 40u); // a rank that hears nothing costs no memory
  BOOST_TEST(first > 0u);
  BOOST_TEST(told() == first);               // those have gone, so that there is room again
  std::string bytes(sizeof(rank_note), 'x'); // its text has no end
  e.write(ends::head({.kind = tcp_head::notes, .of = plane::hosts, .bytes = sizeof(rank_note)}) +
          bytes);
  e.link.pull();
  BOOST_REQUIRE(e.pool.notes.size() == 1u);
  BOOST_TEST(e.pool.notes[0].first == 1);
  const rank_note& heard = e.pool.notes[0].second;
  BOOST_TEST(heard.text[sizeof heard.text - 1] == '\0');
}

BOOST_AUTO_TEST_CASE(ends_of_ranks) {
  ends e;
  e.write(ends::head({.kind = tcp_head::leaves, .of = plane::hosts}));
  e.link.pull();
  BOOST_TEST((e.link.left() && !e.link.gone()));
  const auto code_behind = [](int told, bool pushes) {
    return test::in_child([=] {
      ends failing;
      failing.write(ends::head({.kind = tcp_head::fails,
                                .of = plane::hosts,
                                .tag = told,
                                .number = tcp_head::sign_of_failure}));
      failing.other.reset();
      if (pushes) { // it is not there to take it
        failing.link.take_leave();
        failing.link.push();
      } else {
        failing.link.pull();
      }
      return 99;
    });
  };
  for (const bool pushes : {false, true}) {
    BOOST_TEST(WEXITSTATUS(code_behind(7, pushes)) == 7);
    BOOST_TEST(WEXITSTATUS(code_behind(0, pushes)) == 1); // a failure is not the code of success
  }
  // The last bytes of a message are no sign of a failure.
  e.write(std::string(sizeof(tcp_head), '\6')); // the number of `fails`
  BOOST_TEST(code_told_by(e.link.number()) == 0);
}
