// The meeting of ranks at a port of rank 0.
#pragma once

#include <megacpp/join/meeting.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/join/proof.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>

namespace mc {

namespace detail {

/// Ranks meet at a port of rank 0, over connections that stay for all turns.
class meeting_at_first final : public rendezvous {
public:
  meeting_at_first(const process_start& start, std::string secret, deadline until, teller tell)
      : start_(start), secret_(std::move(secret)), until_(until), tell_(std::move(tell)) {
    if (start.rank == 0) open();
    else to_first_ = reach_first();
  }

  std::vector<std::string> gather(
      const std::string& mine,
      const std::function<std::string(int, std::string_view)>& examine) override {
    std::vector<std::string> cards(static_cast<std::size_t>(start_.size));
    cards[0] = mine;
    if (std::exchange(turn_, turn_ + 1) > 0) {
      for (int r = 1; r < start_.size; ++r)
        if (auto text = receive_text(guests_[static_cast<std::size_t>(r)].get(), until_))
          cards[static_cast<std::size_t>(r)] = *std::move(text);
      return cards;
    }
    guests_.resize(static_cast<std::size_t>(start_.size));
    waiting_note note(tell_);
    for (int left = start_.size - 1; left > 0 && steady::now() < until_;) {
      auto guest = acceptor_->next(std::min(until_, steady::now() + std::chrono::seconds(1)));
      if (!guest) {
        note.say([&] {
          return "rank 0 listens at " + place_text(start_.master, start_.port) + " and waits for " +
                 ranks_text(missing());
        });
        continue;
      }
      const std::size_t end = guest->says.find('\n');
      const int r = whole_number(guest->says.substr(0, end)).value_or(-1);
      std::string why;
      if (end == std::string::npos || r < 1) continue;
      if (r < start_.size && guests_[static_cast<std::size_t>(r)] &&
          has_ended(guests_[static_cast<std::size_t>(r)].get())) { // it was started again
        guests_[static_cast<std::size_t>(r)].reset();
        ++left;
      }
      if (r < start_.size && guests_[static_cast<std::size_t>(r)])
        why = "rank " + std::to_string(r) + " was started twice: start each rank once";
      const std::string card = guest->says.substr(end + 1);
      if (why.empty()) why = examine(r, card);
      if (!why.empty()) {
        (void)send_text(guest->connection.get(), refusal(exit_code::mismatch, why),
                        steady::now() + std::chrono::seconds(1));
        if (!proves()) continue; // it may be a stranger, who must not end rank 0
        refuse(exit_code::mismatch, why);
        throw error(exit_code::mismatch, why);
      }
      guests_[static_cast<std::size_t>(r)] = std::move(guest->connection);
      cards[static_cast<std::size_t>(r)] = card;
      --left;
    }
    return cards;
  }
  void say(const std::string& text) override {
    for (const descriptor& g : guests_)
      if (g)
        (void)send_text(g.get(), text, std::max(until_, steady::now() + std::chrono::seconds(2)));
  }
  std::string hear(const std::string& mine) override {
    const std::string number =
        std::exchange(turn_, turn_ + 1) == 0 ? std::to_string(start_.rank) + "\n" : std::string();
    std::optional<std::string> text;
    if (send_text(to_first_.get(), number + mine, until_))
      text = receive_text(to_first_.get(), until_ + std::chrono::seconds(2));
    if (!text)
      throw error(exit_code::ranks, "rank 0 at " + place_text(start_.master, start_.port) +
                                        " has ended while ranks met, or other ranks did not come: "
                                        "see what it says");
    return *text;
  }
  std::optional<socket_address> own_address() const override {
    if (start_.rank != 0) return socket_address::of_socket(to_first_.get());
    std::optional<socket_address> one;
    for (const descriptor& g : guests_) // from another machine, if there is one
      if (g)
        if (const auto a = socket_address::of_socket(g.get()); !one || one->is_loopback()) one = a;
    return one;
  }
  bool proves() const override { return !secret_.empty(); }

private:
  descriptor reach_first() const {
    const std::string place = place_text(start_.master, start_.port);
    int refused = 0;
    return reach(
        start_.master, start_.port, until_, tell_, "rank 0", [&](int to, std::string& why) {
          switch (greet(to, secret_, std::min(until_, steady::now() + std::chrono::seconds(10)))) {
          case greeted::well: return true;
          case greeted::stranger:
            throw error(exit_code::ranks, "what listens at " + place +
                                              " is no rank of this program: give the job another "
                                              "MASTER_PORT");
          case greeted::other_secret:
            why = "it does not take this rank's secret";
            if (++refused < 5) return false; // it may only be short of connections
            throw error(exit_code::mismatch,
                        "rank 0 at " + place +
                            " does not take this rank's secret: give all ranks one "
                            "MEGACPP_RENDEZVOUS_SECRET, or none of them any");
          default: why = "it closes connections"; return false;
          }
        });
  }
  /// Listens on all addresses, or on loopback if the master has no other.
  void open() {
    int listens = 0;
    socklen_t size = sizeof listens;
    if (start_.listener >= 0 &&
        ::getsockopt(start_.listener, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) == 0 &&
        listens != 0) {
      ::fcntl(start_.listener, F_SETFD, FD_CLOEXEC);
      acceptor_ = std::make_unique<acceptor>(descriptor(start_.listener), secret_);
      return;
    }
    // A name may not be known yet, or stand for loopback on its own machine alone (127.0.1.1).
    std::string literal = start_.master;
    if (literal.starts_with('[') && literal.ends_with(']'))
      literal = literal.substr(1, literal.size() - 2);
    if (literal == "localhost") literal = "127.0.0.1";
    const auto given = socket_address::of_text(literal, start_.port);
    std::vector<std::string> places{"::", "0.0.0.0"};
    if (given && given->is_loopback()) places = {literal};
    if (start_.master == "localhost") places.emplace_back("::1");
    for (;;) {
      descriptor listener;
      for (const std::string& place : places) {
        errno = 0;
        if (const auto at = socket_address::of_text(place, start_.port)) listener = listen_at(*at);
        if (listener || errno == EADDRINUSE) break; // another program has the port
      }
      if (listener) {
        acceptor_ = std::make_unique<acceptor>(std::move(listener), secret_);
        return;
      }
      const int why = errno;
      // A rank 0 that was killed may not be gone yet.
      if (why != EADDRINUSE || steady::now() > opened_ + std::chrono::seconds(5))
        throw error(exit_code::ranks, "rank 0 cannot listen at port " +
                                          std::to_string(start_.port) + ": " + reason_of(why) +
                                          "; give the job another MASTER_PORT");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  std::vector<int> missing() const {
    std::vector<int> ranks;
    for (int r = 1; r < start_.size; ++r)
      if (!guests_[static_cast<std::size_t>(r)]) ranks.push_back(r);
    return ranks;
  }

  process_start start_;
  std::string secret_;
  deadline until_, opened_ = steady::now();
  teller tell_;
  int turn_ = 0;
  std::unique_ptr<acceptor> acceptor_; ///< rank 0 alone has it
  std::vector<descriptor> guests_;     ///< connections of rank 0, by rank
  descriptor to_first_;                ///< the connection of another rank
};

} // namespace detail

} // namespace mc
