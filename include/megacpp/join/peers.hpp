// The connections of a rank to all others, which TCP makes: ranks meet (rendezvous), learn each
// other's addresses, and connect, each pair once.
#pragma once

#include <megacpp/join/rendezvous.hpp>
#include <megacpp/threads/processors.hpp>

#include <algorithm>
#include <array>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <sched.h>

namespace mc {

/// A rank as the others see it.
struct peer {
  descriptor connection{}; ///< to that rank; none for this rank itself
  std::string machine{};   ///< a name that ranks of one machine, or container, share
  cpu_set_t processors{};  ///< processors that it may run on
};

namespace detail {

/// A card says what a rank tells at the meeting. Fields are lines of a text.
struct rank_card {
  std::string size{}, job{}, identity{}, machine{}, processors{};

  std::string text() const {
    return size + "\n" + job + "\n" + identity + "\n" + machine + "\n" + processors;
  }
  static rank_card of_text(std::string_view text) {
    rank_card c;
    for (std::string* const field : {&c.size, &c.job, &c.identity, &c.machine, &c.processors}) {
      *field = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), field->size() + 1));
    }
    return c;
  }
};

/// Returns a name of this machine's network: ranks with the same one reach each other by loopback.
inline std::string name_of_network() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  struct stat about {};
  if (::stat("/proc/self/ns/net", &about) == 0) (boot += '-') += std::to_string(about.st_ino);
  return boot + "-" + host_name();
}

inline std::string text_of(const cpu_set_t& set) {
  std::string text;
  for (int c = 0; c < CPU_SETSIZE; ++c)
    if (CPU_ISSET(c, &set)) (text += std::to_string(c)) += ' ';
  return text;
}
inline cpu_set_t processors_in(std::string_view text) {
  cpu_set_t set;
  CPU_ZERO(&set);
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    if (const auto c = whole_number(text.substr(0, end)); c && *c < CPU_SETSIZE) CPU_SET(*c, &set);
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return set;
}

/// Texts as one text, and back.
inline std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& t : texts) (all += length_of(t)) += t;
  return all;
}
inline std::vector<std::string> separated(std::string_view all) {
  std::vector<std::string> texts;
  while (all.size() >= 4) {
    const std::size_t n = length_in(all);
    all.remove_prefix(4);
    texts.emplace_back(all.substr(0, n));
    all.remove_prefix(std::min(n, all.size()));
  }
  return texts;
}

/// One rank on its way to the others.
class joining {
public:
  joining(const process_start& start, std::string identity, const environment& of, teller tell)
      : start_(start),
        identity_(std::move(identity)),
        interface_(of.text("MEGACPP_SOCKET_IFNAME")),
        secret_(given_secret(of)),
        tell_(std::move(tell)),
        until_(steady::now() + patience(of)) {}

  std::vector<peer> join() {
    allow_connections(start_.size);
    const auto meeting = open_rendezvous(start_, secret_, until_, tell_);
    const auto size = static_cast<std::size_t>(start_.size);
    cpu_set_t mine;
    CPU_ZERO(&mine);
    (void)::sched_getaffinity(0, sizeof mine, &mine);
    const rank_card card{std::to_string(start_.size), start_.job, identity_, name_of_network(),
                         text_of(mine)};
    // The answer has the cards of all ranks, and the secret that rank 0 has drawn if it has none.
    std::vector<std::string> all = in_turn(*meeting, card.text(), true);
    if (all.size() != size + 1) refuse("rank 0 has answered for another number of ranks");
    const bool drawn = !all.back().empty();
    if (drawn != secret_.empty())
      throw error(exit_code::mismatch,
                  std::string(drawn ? "this rank has a secret, and rank 0 has none"
                                    : "rank 0 has a secret, and this rank has none") +
                      ": give all ranks one MEGACPP_RENDEZVOUS_SECRET, or none of them any");
    if (drawn) secret_ = all.back();
    all.pop_back();
    std::vector<peer> peers(size);
    bool one_machine = true;
    for (std::size_t r = 0; r < size; ++r) {
      rank_card c = rank_card::of_text(all[r]);
      one_machine &= c.machine == card.machine;
      peers[r].processors = processors_in(c.processors);
      peers[r].machine = std::move(c.machine);
    }
    if (!one_machine && start_.rank == 0 && !meeting->proves() && tell_ &&
        start_.meets == meeting_place::first_rank)
      tell_("ranks of several machines meet at port " + std::to_string(start_.port) +
            " without a secret, so whoever reaches it may join: give all of them one "
            "MEGACPP_RENDEZVOUS_SECRET");
    acceptor others(listen(one_machine, meeting->own_address()), secret_);
    const std::vector<std::string> addresses =
        in_turn(*meeting, socket_address::of_socket(others.number()).text(), false);
    if (addresses.size() != size) refuse("rank 0 has answered for other ranks");
    for (int r = 0; r < start_.rank; ++r)
      peers[static_cast<std::size_t>(r)].connection =
          connect(r, addresses[static_cast<std::size_t>(r)], peers);
    accept(others, peers);
    return peers;
  }

private:
  static std::chrono::seconds patience(const environment& of) {
    const char* const name = "MEGACPP_RENDEZVOUS_TIMEOUT";
    return std::chrono::seconds(of.has(name) ? of.require_number(name) : 600);
  }
  [[noreturn]] static void refuse(const std::string& why) {
    throw error(exit_code::ranks,
                "ranks do not meet: " + why + ": start all of them anew, from one program");
  }

  /// Hands in a text and returns those of all ranks, with one more in the first turn: the secret
  /// that rank 0 has drawn, or "".
  std::vector<std::string> in_turn(rendezvous& meeting, const std::string& mine, bool first) const {
    if (start_.rank != 0) return separated(meeting.ask(mine));
    std::vector<std::string> all = meeting.gather(
        mine, [&](int rank, std::string_view card) { return wrong_with(rank, card); });
    std::vector<int> missing;
    for (int r = 0; r < start_.size; ++r)
      if (all[static_cast<std::size_t>(r)].empty()) missing.push_back(r);
    if (!missing.empty()) {
      const std::string why =
          ranks_text(missing) + " of " + std::to_string(start_.size) +
          " did not come to rank 0 in time" +
          (refused_.empty() ? "" : ", and another one was refused: " + refused_);
      const exit_code code = refused_.empty() ? exit_code::ranks : exit_code::mismatch;
      meeting.refuse(code, why + ": see whether they run");
      throw error(code, why + ": see whether they run, and what they say");
    }
    if (first) all.push_back(secret_.empty() ? drawn_bytes(32) : "");
    meeting.answer(joined(all));
    return all;
  }
  std::string wrong_with(int rank, std::string_view text) const {
    const rank_card card = rank_card::of_text(text);
    std::string why;
    const std::string who = "rank " + std::to_string(rank);
    if (card.size != std::to_string(start_.size))
      why = who + " was started as one of " + card.size + ", and rank 0 as one of " +
            std::to_string(start_.size) + ": start all of them with the same number of ranks";
    else if (rank >= start_.size)
      why =
          "there is no " + who + " of " + std::to_string(start_.size) + ": number ranks from 0 on";
    else if (card.job != start_.job)
      why = who + " is of job " + card.job + ", and rank 0 of job " + start_.job +
            ": give each job a MASTER_PORT of its own";
    else if (card.identity != identity_)
      why = who +
            " was started from another program than rank 0: start all of them from copies "
            "of one file";
    if (!why.empty()) refused_ = why;
    return why;
  }

  /// Listens where the other ranks reach this one: by loopback on one machine, else at the address
  /// of the interface that was chosen, or by which the meeting was reached.
  descriptor listen(bool one_machine, const std::optional<socket_address>& met) const {
    socket_address at = *socket_address::of_text("127.0.0.1", 0);
    if (!one_machine || !interface_.empty()) at = own_address(met);
    at.set_port(0);
    descriptor listener = listen_at(at);
    if (!listener && one_machine && interface_.empty())
      listener = listen_at(*socket_address::of_text("::1", 0));
    if (!listener) refuse("this one cannot listen at " + at.text() + ", " + reason_of(errno));
    return listener;
  }
  socket_address own_address(const std::optional<socket_address>& met) const {
    if (interface_.empty() && met && !met->is_loopback() && !met->is_of_link()) return *met;
    std::vector<std::pair<std::string, socket_address>> here = interface_addresses(interface_);
    const auto is_ipv4 = [](const auto& a) { return a.second.family() == AF_INET; };
    std::erase_if(here, [&](const auto& a) {
      return (interface_.empty() && a.second.is_loopback()) || a.second.is_of_link();
    });
    if (std::ranges::any_of(here, is_ipv4))
      std::erase_if(here, [&](const auto& a) { return !is_ipv4(a); });
    if (here.empty())
      throw error(exit_code::mismatch,
                  interface_.empty()
                      ? "this machine has no address by which other machines reach it"
                      : "this machine has no address at " + interface_ +
                            ", which MEGACPP_SOCKET_IFNAME names: give one of its interfaces "
                            "(ip address)");
    if (here.size() > 1 && interface_.empty()) {
      std::string names;
      for (const auto& a : here)
        names += (names.empty() ? "" : ", ") + a.first + " " + a.second.host();
      throw error(exit_code::mismatch, "this machine has several addresses (" + names +
                                           "): name the interface by which other machines reach it "
                                           "by MEGACPP_SOCKET_IFNAME");
    }
    return here.front().second;
  }

  /// Throws for a rank that has connected and ended: others need not wait for the rest.
  static void require_all_there(const std::vector<peer>& peers) {
    for (std::size_t r = 0; r < peers.size(); ++r)
      if (peers[r].connection && has_ended(peers[r].connection.get()))
        throw error(exit_code::ranks, "rank " + std::to_string(r) +
                                          " has ended while ranks connected: see what it says");
  }
  descriptor connect(int rank, const std::string& address, const std::vector<peer>& others) const {
    const std::size_t end = address.rfind(':');
    const int port = whole_number(address.substr(end + 1)).value_or(0);
    const std::string who = "rank " + std::to_string(rank);
    int refused = 0;
    descriptor to = reach(
        address.substr(0, end), port, until_, tell_, who,
        [&](int number, std::string& why) {
          const greeted is = greet(number, secret_, until_);
          if (is == greeted::well) return true;
          why = "it does not prove the job's secret";
          if (is == greeted::other_secret && ++refused == 3) // the connection may just have broken
            throw error(exit_code::mismatch,
                        who +
                            " does not take this rank's secret: give all ranks the same "
                            "MEGACPP_RENDEZVOUS_SECRET");
          return false;
        },
        [&] { require_all_there(others); });
    if (!send_text(to.get(), std::to_string(start_.rank), until_))
      refuse(who + " has ended the connection");
    return to;
  }
  /// Accepts the connections of higher ranks.
  void accept(acceptor& others, std::vector<peer>& peers) const {
    for (int left = start_.size - 1 - start_.rank; left > 0;) {
      auto guest = others.next(std::min(until_, steady::now() + std::chrono::milliseconds(500)));
      if (!guest) require_all_there(peers);
      if (!guest && steady::now() < until_) continue;
      if (!guest) {
        std::vector<int> missing;
        for (int r = start_.rank + 1; r < start_.size; ++r)
          if (!peers[static_cast<std::size_t>(r)].connection) missing.push_back(r);
        throw error(exit_code::ranks, ranks_text(missing) + " did not connect to rank " +
                                          std::to_string(start_.rank) +
                                          " in time: see whether machines reach each other");
      }
      const int r = whole_number(guest->says).value_or(-1);
      if (r <= start_.rank || r >= start_.size || peers[static_cast<std::size_t>(r)].connection)
        continue;
      peers[static_cast<std::size_t>(r)].connection = std::move(guest->connection);
      --left;
    }
  }

  process_start start_;
  std::string identity_, interface_, secret_;
  teller tell_;
  deadline until_;
  mutable std::string refused_{};
};

} // namespace detail

/// Connects this rank with all others of its start, and returns them by rank. `identity`: what all
/// ranks must have alike, such as their program. Throws mc::error.
inline std::vector<peer> join_peers(const process_start& start, const std::string& identity,
                                    const environment& of, const teller& tell) {
  return detail::joining(start, identity, of, tell).join();
}

} // namespace mc
