// The processes that a launcher has started, as ranks that MPI or TCP connects; or a single process
// without a launcher. connect_ranks.hpp makes one for the process that it is.
#pragma once

#include <megacpp/comm/connected_ranks.hpp>
#include <megacpp/comm/self.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/threads/processors.hpp>

#include <algorithm>
#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>

namespace mc {

/// A process has one such object, which the thread that makes it uses alone. The first process goes
/// ahead and checks what all need; the others wait until it calls them.
class process_ranks {
public:
  /// `start` is how this process was started, and `others` connects it with the others; nullptr for
  /// a single process.
  explicit process_ranks(process_start start = {},
                         std::unique_ptr<connected_ranks> others = nullptr)
      : start_(std::move(start)), others_(std::move(others)) {}
  process_ranks(const process_ranks&) = delete;
  process_ranks& operator=(const process_ranks&) = delete;

  const process_start& start() const { return start_; }
  bool several() const { return others_ != nullptr; }
  bool first() const { return !others_ || others_->rank() == 0; }
  int size() const { return others_ ? others_->size() : 1; }
  /// Returns "rank 3: ", with which the messages of a process other than the first begin; "" for
  /// the first.
  static std::string who() {
    const int rank = announced_rank().first;
    return rank > 0 ? "rank " + std::to_string(rank) + ": " : "";
  }
  /// Returns the number of processes of this run on this machine.
  int here() const { return others_ ? others_->machine().ranks : 1; }
  /// Returns the number of this process among those on its machine.
  int place() const { return others_ ? others_->machine().place : 0; }
  /// Returns the threads for each rank, of `asked` threads on this machine. 0 asks for all
  /// processors that the machine's ranks may run on.
  int threads(int asked) const {
    if (!others_) return asked;
    const machine_of_rank on = others_->machine();
    if (asked > 0) return std::max(1, asked / on.ranks);
    return std::clamp(on.processors / on.ranks, 1, std::max(1, processors()));
  }

  /// Longest `message` that the first process sends to the others, in bytes.
  static constexpr std::size_t most_bytes = 256;
  /// The first process calls the others, which do the same work from here on, and sends them a
  /// message.
  void call(const std::string& message) { tell(true, message); }
  /// The first process tells the others that there is nothing to do.
  void dismiss() {
    if (!told_) tell(false, "");
  }
  /// Another process waits for the first, and returns the message that it is called with; nothing
  /// if it is dismissed.
  std::optional<std::string> called() { return tell(false, ""); }

  /// Calls f(hosts) on this process's rank of a mesh of all processes.
  template <class F> void run(const mesh& m, std::chrono::duration<double> patience, const F& f) {
    if (others_) return others_->run(m, patience, [&](communicator& hosts) { f(hosts); });
    f(static_cast<communicator&>(self::hosts()));
  }

  /// Keeps the exit code of the ranks that this process has started for its node.
  void set_code_of_node(int code) { code_of_node_ = code; }
  int code_of_node() const { return code_of_node_; }

  /// Waits half a second for the end of this process by another one.
  void wait_to_be_ended() {
    constexpr std::chrono::milliseconds time(500);
    if (others_) others_->wait_to_be_ended(time);
    else std::this_thread::sleep_for(time);
  }

  /// Ends this process, which has printed all its messages. With code 0 it waits until all others
  /// end, too; another code ends all processes.
  void end(int code) {
    if (!others_) return;
    if (code != 0) others_->end(code);
    if (first()) dismiss();
    constexpr auto as_long_as_it_takes = std::chrono::hours(24 * 365);
    others_->run(replicas(), as_long_as_it_takes, [](communicator&) {});
    others_->finish();
  }

private:
  mesh replicas() const { return mesh({size(), 1, 1, 1, size(), 1, 1}); }
  std::optional<std::string> tell(bool others_work, const std::string& message) {
    if (std::exchange(told_, true) || !several()) return std::nullopt;
    std::array<char, most_bytes + 1> text{};
    if (message.size() >= most_bytes)
      throw error(exit_code::internal,
                  "ranks cannot be told of " + message + ": its name is too long");
    text[0] = others_work ? 'y' : 'n';
    message.copy(text.data() + 1, most_bytes - 1);
    // The first process may have a large state to verify.
    run(replicas(), std::chrono::hours(1), [&](communicator& c) {
      c.run(
          exchange::broadcast(axis::dp, dtype::u8, text.data(), text.data(), std::ssize(text), 0));
    });
    if (text[0] != 'y') return std::nullopt;
    return std::string(text.data() + 1);
  }

  process_start start_;
  std::unique_ptr<connected_ranks> others_;
  bool told_ = false;
  int code_of_node_ = 0;
};

} // namespace mc
