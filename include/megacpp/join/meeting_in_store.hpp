// The meeting of ranks through keys with values that all of them see: in the store of torchrun's
// agent, or in a folder.
#pragma once

#include <megacpp/join/meeting.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/join/proof.hpp>
#include <megacpp/join/torch_store.hpp>

#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/stat.h>

namespace mc {

namespace detail {

/// Ranks meet through keys and values that all of them see, and that outlive the ranks: what an
/// earlier start has left must mislead nobody. So rank 0 draws a number for its start, the epoch.
/// The others write a card for each epoch that they see, with a number of their own, and take an
/// answer that has it.
///
/// Store has set(key, value) and get(key), which returns nothing for a key that is not there.
template <class Store> class meeting_in_store final : public rendezvous {
public:
  meeting_in_store(const process_start& start, Store store, deadline until, teller tell)
      : start_(start),
        store_(std::move(store)),
        until_(until),
        tell_(std::move(tell)),
        drawn_(hexadecimal(drawn_bytes(16))) {
    if (start.rank == 0) store_.set("epoch", drawn_);
  }

  std::vector<std::string> gather(
      const std::string& mine,
      const std::function<std::string(int, std::string_view)>& examine) override {
    std::vector<std::string> cards(static_cast<std::size_t>(start_.size));
    cards[0] = mine;
    numbers_.assign(cards.size(), drawn_);
    waiting_note note(tell_);
    for (;;) {
      if (store_.get("epoch") != drawn_) throw started_twice();
      std::vector<int> missing;
      for (int r = 1; r < start_.size; ++r) {
        std::string& card = cards[static_cast<std::size_t>(r)];
        if (!card.empty()) continue;
        const std::vector<std::string> lines = lines_of(store_.get(key(r)).value_or(""), 3);
        if (lines.size() < 3 || lines[0] != drawn_) {
          missing.push_back(r);
          continue;
        }
        numbers_[static_cast<std::size_t>(r)] = lines[1];
        card = lines[2];
        const std::string why = turn_ == 0 ? examine(r, card) : "";
        if (why.empty()) continue;
        refuse(exit_code::mismatch, why);
        throw error(exit_code::mismatch, why);
      }
      if (missing.empty() || steady::now() > until_) return cards;
      note.say([&] { return "waiting for " + ranks_text(missing) + " at " + store_.place(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  void say(const std::string& text) override {
    std::string all;
    for (const std::string& n : numbers_) (all += n) += ' ';
    store_.set("answer-" + std::to_string(turn_++), (all += '\n') += text);
  }
  std::string hear(const std::string& mine) override {
    waiting_note note(tell_);
    bool written = false;
    for (;;) {
      const std::optional<std::string> epoch = store_.get("epoch");
      if (epoch && *epoch != epoch_) {
        if (turn_ > 0)
          throw error(exit_code::ranks,
                      "rank 0 was started again while ranks met: start all of them again");
        epoch_ = *epoch, written = false;
      }
      if (epoch && !written) {
        store_.set(key(start_.rank), epoch_ + "\n" + drawn_ + "\n" + mine);
        written = true;
      }
      if (written) {
        const std::vector<std::string> card =
            lines_of(store_.get(key(start_.rank)).value_or(""), 3);
        if (card.size() == 3 && card[0] == epoch_ && card[1] != drawn_) throw started_twice();
        const std::vector<std::string> said =
            lines_of(store_.get("answer-" + std::to_string(turn_)).value_or(""), 2);
        if (said.size() == 2 && said[0].find(drawn_) != std::string::npos) {
          ++turn_;
          return said[1];
        }
      }
      if (steady::now() > until_ + std::chrono::seconds(2))
        throw error(exit_code::ranks, "rank 0 did not come to " + store_.place() +
                                          ", where ranks meet: see whether it runs");
      note.say([&] { return "waiting for rank 0 at " + store_.place(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  std::optional<socket_address> own_address() const override { return store_.own_address(); }
  bool proves() const override { return false; }

private:
  /// Returns the first lines of a text, and as the last one all that follows; fewer if it has not
  /// as many.
  static std::vector<std::string> lines_of(std::string_view text, std::size_t most) {
    std::vector<std::string> lines;
    while (lines.size() + 1 < most) {
      const std::size_t end = text.find('\n');
      if (end == std::string_view::npos) return {};
      lines.emplace_back(text.substr(0, end));
      text.remove_prefix(end + 1);
    }
    lines.emplace_back(text);
    return lines;
  }
  std::string key(int rank) const {
    return "card-" + std::to_string(turn_) + "-" + std::to_string(rank);
  }
  error started_twice() const {
    return {exit_code::mismatch, "rank " + std::to_string(start_.rank) +
                                     " was started twice, or another job meets in the same place: "
                                     "start each rank once, and give "
                                     "each job a folder of its own"};
  }

  process_start start_;
  Store store_;
  deadline until_;
  teller tell_;
  std::string drawn_, epoch_{};
  std::vector<std::string> numbers_; ///< of all ranks, on rank 0
  int turn_ = 0;
};

/// The store of torchrun's agent, for meetings. Other jobs may use it, so keys begin with `prefix`.
/// The number of restarts is not in it, since agents of several nodes count by themselves.
class agent_store {
public:
  agent_store(descriptor connection, const std::string& place, std::string prefix)
      : address_(socket_address::of_socket(connection.get())),
        store_(std::move(connection), place),
        place_("the store of torchrun at " + place),
        prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) { store_.set(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) { return store_.get(prefix_ + key); }
  const std::string& place() const { return place_; }
  std::optional<socket_address> own_address() const { return address_; }

private:
  socket_address address_;
  torch_store store_;
  std::string place_, prefix_;
};

/// A folder that all ranks see, for meetings. A value is a file that is complete once it has its
/// name.
class folder_store {
public:
  explicit folder_store(std::string folder) : folder_(std::move(folder)) {
    if (::mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) refuse("be made", errno);
  }
  void set(const std::string& key, const std::string& value) {
    const std::string name = folder_ + "/" + key, unfinished = name + ".unfinished";
    descriptor file(::open(unfinished.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600));
    if (!file || ::write(file.get(), value.data(), value.size()) != std::ssize(value) ||
        !file.reset())
      refuse("be written", errno);
    if (::rename(unfinished.c_str(), name.c_str()) != 0) refuse("be written", errno);
  }
  std::optional<std::string> get(const std::string& key) {
    const descriptor file(::open((folder_ + "/" + key).c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!file) {
      if (errno == ENOENT || errno == ESTALE) return std::nullopt;
      refuse("be read", errno);
    }
    std::string text(longest_text + 1, '\0');
    const ssize_t n = ::read(file.get(), text.data(), text.size());
    if (n < 0) refuse("be read", errno);
    text.resize(static_cast<std::size_t>(n));
    return text;
  }
  const std::string& place() const { return folder_; }
  std::optional<socket_address> own_address() const { return std::nullopt; }

private:
  [[noreturn]] void refuse(const char* what, int why) const {
    throw error(exit_code::ranks, "the folder " + folder_ + ", where ranks meet, cannot " + what +
                                      ": " + reason_of(why) + "; see MEGACPP_RENDEZVOUS_FOLDER");
  }
  std::string folder_;
};

} // namespace detail

} // namespace mc
