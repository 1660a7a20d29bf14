// The meeting of ranks before they are connected: each hands in a card, rank 0 reads the cards of
// all and answers, and every rank gets the answer.
#pragma once

#include <megacpp/join/sockets.hpp>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace mc {

/// Tells a sentence to people, while ranks wait for each other.
using teller = std::function<void(const std::string&)>;

/// The meeting of all ranks of a start. Rank 0 calls `gather`, and `answer` or `refuse`, the others
/// `ask`, once for each turn.
class rendezvous {
public:
  rendezvous() = default;
  rendezvous(const rendezvous&) = delete;
  rendezvous& operator=(const rendezvous&) = delete;
  virtual ~rendezvous() = default;

  /// Returns the cards of all ranks, by rank; of those alone that have come by the deadline, while
  /// the others' are empty. `examine` returns what is wrong with a card of another rank; "" for
  /// nothing.
  virtual std::vector<std::string> gather(
      const std::string& mine,
      const std::function<std::string(int, std::string_view)>& examine) = 0;
  void answer(const std::string& text) { say(taken + text); }
  /// Has `ask` throw an error with this code and sentence, on all other ranks.
  void refuse(exit_code code, const std::string& why) { say(refusal(code, why)); }
  /// Hands in this rank's text, and returns the answer. Throws mc::error.
  std::string ask(const std::string& mine) {
    const std::string said = hear(mine);
    if (said.starts_with(taken)) return said.substr(1);
    if (said.starts_with(wrong)) throw error(exit_code::mismatch, said.substr(1));
    throw error(exit_code::ranks, said.starts_with(missing)
                                      ? said.substr(1)
                                      : "rank 0 does not answer as a rank of this program: start "
                                        "all of them anew, from one program");
  }
  /// Returns the address by which this rank reaches the place of the meeting, or is reached there;
  /// nothing if no connection tells.
  virtual std::optional<socket_address> own_address() const { return std::nullopt; }
  /// Tells whether other ranks prove a secret here, so that a wrong card comes from one of them.
  virtual bool proves() const = 0;

protected:
  /// Each answer of rank 0 begins with a letter for its kind.
  static constexpr char taken = '=', wrong = '!', missing = '?';
  static std::string refusal(exit_code code, const std::string& why) {
    return (code == exit_code::ranks ? missing : wrong) + why;
  }
  virtual void say(const std::string& text) = 0;
  /// Hands in this rank's text, and returns what rank 0 says.
  virtual std::string hear(const std::string& mine) = 0;
};

namespace detail {

inline std::string ranks_text(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < 8; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  return ranks.size() > 8 ? text + " and " + std::to_string(ranks.size() - 8) + " more" : text;
}

/// Says every ten seconds what a rank still waits for.
class waiting_note {
public:
  explicit waiting_note(const teller& tell) : tell_(tell) {}
  void say(const std::function<std::string()>& what) {
    if (steady::now() < next_) return;
    next_ = steady::now() + std::chrono::seconds(10);
    if (tell_) tell_(what());
  }

private:
  const teller& tell_;
  deadline next_ = steady::now() + std::chrono::seconds(10);
};

/// Connects to a host, whose name may not be known yet and where nobody may listen yet, and has
/// `greet` accept the connection. `check` is called between tries, and may throw. Throws
/// mc::error(exit_code::ranks) at the deadline.
inline descriptor reach(
    const std::string& host, int port, deadline until, const teller& tell, const std::string& what,
    const std::function<bool(int, std::string&)>& greet,
    const std::function<void()>& check = [] {}) {
  waiting_note note(tell);
  std::string why = "its name is not known";
  const std::string place = what + " at " + place_text(host, port);
  const auto refuse = [&] {
    throw error(exit_code::ranks, place + " cannot be reached (" + why +
                                      "): see whether it runs, and whether this machine reaches "
                                      "that one");
  };
  const auto waits = [&] { return "waiting for " + place + ": " + why; };
  for (;;) {
    for (const socket_address& at : resolve(host, port)) {
      descriptor to = connect_to(at, std::min(until, steady::now() + std::chrono::seconds(10)));
      if (!to) why = reason_of(errno);
      else if (greet(to.get(), why)) return to;
    }
    if (steady::now() + std::chrono::milliseconds(100) >= until) refuse();
    check();
    note.say(waits);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

} // namespace detail

} // namespace mc
