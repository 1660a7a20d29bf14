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

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>

namespace mc {

namespace detail {

/// Ranks meet through keys and values that all of them see. Each rank draws a number, which its
/// cards and all answers have: so what an earlier start has left at the same place misleads nobody.
///
/// Store has set(key, value) and get(key), which returns nothing for a key that is not there.
/// `claim` sets the value of a key that no other rank may use, and is called again and again: it
/// returns false if another rank does. clear() removes what is there.
template <class Store> class meeting_in_store final : public rendezvous {
public:
  meeting_in_store(const process_start& start, Store store, deadline until, teller tell)
      : start_(start),
        store_(std::move(store)),
        until_(until),
        tell_(std::move(tell)),
        drawn_(hexadecimal(drawn_bytes(16))) {
    if (start.rank == 0) store_.clear();
  }

  std::vector<std::string> gather(
      const std::string& mine,
      const std::function<std::string(int, std::string_view)>& examine) override {
    std::vector<std::string> cards(static_cast<std::size_t>(start_.size));
    cards[0] = mine;
    numbers_.assign(cards.size(), drawn_);
    waiting_note note(tell_);
    for (;;) {
      claim(mine);
      std::vector<int> missing;
      for (int r = 1; r < start_.size; ++r) {
        std::string& card = cards[static_cast<std::size_t>(r)];
        if (!card.empty()) continue;
        const std::optional<std::string> text = store_.get(key(r));
        const std::size_t end = text ? text->find('\n') : std::string::npos;
        if (end == std::string::npos) {
          missing.push_back(r);
          continue;
        }
        numbers_[static_cast<std::size_t>(r)] = text->substr(0, end);
        card = text->substr(end + 1);
        const std::string why = turn_ == 0 ? examine(r, card) : "";
        if (why.empty()) continue;
        answer("!" + why);
        throw error(exit_code::mismatch, why);
      }
      if (missing.empty() || steady::now() > until_) return cards;
      note.say([&] { return "waiting for " + ranks_text(missing) + " at " + store_.place(); });
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }
  void answer(const std::string& text) override {
    std::string all;
    for (const std::string& n : numbers_) (all += n) += ' ';
    store_.set("answer-" + std::to_string(turn_++), (all += '\n') += text);
  }
  std::string ask(const std::string& mine) override {
    waiting_note note(tell_);
    for (;;) {
      claim(mine);
      if (const auto text = store_.get("answer-" + std::to_string(turn_))) {
        const std::size_t end = text->find('\n');
        if (end != std::string::npos && text->substr(0, end).find(drawn_) != std::string::npos) {
          ++turn_;
          if (text->substr(end + 1).starts_with('!'))
            throw error(exit_code::mismatch, text->substr(end + 2));
          return text->substr(end + 1);
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
  static std::string hexadecimal(std::string_view bytes) {
    std::string text;
    for (const unsigned char c : bytes)
      (text += "0123456789abcdef"[c >> 4]) += "0123456789abcdef"[c & 15];
    return text;
  }
  std::string key(int rank) const {
    return "card-" + std::to_string(turn_) + "-" + std::to_string(rank);
  }
  void claim(const std::string& mine) {
    if (!store_.claim(key(start_.rank), drawn_ + "\n" + mine))
      throw error(exit_code::mismatch, "rank " + std::to_string(start_.rank) +
                                           " was started twice: start each rank once");
  }

  process_start start_;
  Store store_;
  deadline until_;
  teller tell_;
  std::string drawn_;
  std::vector<std::string> numbers_; ///< of all ranks, on rank 0
  int turn_ = 0;
};

/// The store of torchrun's agent, for meetings. It outlives the ranks, so `prefix` tells their
/// starts apart.
class agent_store {
public:
  agent_store(descriptor connection, const std::string& place, std::string prefix)
      : address_(socket_address::of_socket(connection.get())),
        store_(std::move(connection), place),
        place_("the store of torchrun at " + place),
        prefix_(std::move(prefix)) {}
  void set(const std::string& key, const std::string& value) { store_.set(prefix_ + key, value); }
  std::optional<std::string> get(const std::string& key) { return store_.get(prefix_ + key); }
  bool claim(const std::string& key, const std::string& value) {
    if (std::exchange(claimed_, key) == key) return true;
    if (store_.add(prefix_ + "owners-" + key, 1) != 1) return false;
    set(key, value);
    return true;
  }
  void clear() {}
  const std::string& place() const { return place_; }
  std::optional<socket_address> own_address() const { return address_; }

private:
  socket_address address_;
  torch_store store_;
  std::string place_, prefix_, claimed_{};
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
    const descriptor file(::open((folder_ + "/" + key).c_str(), O_RDONLY | O_CLOEXEC));
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
  /// The file stays, unless rank 0 has removed what an earlier start has left, and this with it.
  bool claim(const std::string& key, const std::string& value) {
    const std::optional<std::string> there = get(key);
    const bool anew = std::exchange(claimed_, key) != key;
    if (!anew && there && *there != value) return false;
    if (anew || !there) set(key, value);
    return true;
  }
  void clear() {
    const std::unique_ptr<DIR, int (*)(DIR*)> list(::opendir(folder_.c_str()), ::closedir);
    while (const dirent* const one = list ? ::readdir(list.get()) : nullptr)
      if (const std::string_view name = one->d_name;
          name.starts_with("card-") || name.starts_with("answer-"))
        (void)::unlink((folder_ + "/" + one->d_name).c_str());
  }
  const std::string& place() const { return folder_; }
  std::optional<socket_address> own_address() const { return std::nullopt; }

private:
  [[noreturn]] void refuse(const char* what, int why) const {
    throw error(exit_code::ranks, "the folder " + folder_ + ", where ranks meet, cannot " + what +
                                      ": " + reason_of(why) + "; see MEGACPP_RENDEZVOUS_FOLDER");
  }
  std::string folder_, claimed_{};
};

} // namespace detail

} // namespace mc
