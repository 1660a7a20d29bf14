// The thread of an observer, and the queue before it. A run hands over what happened and goes on at
// once, however slow the observer is.
#pragma once

#include <megacpp/observe/observer.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <semaphore>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// An observer with its thread, on which it may take its time. A failure of it is told once, and
/// does not end the run. The functions are called by one thread of the run.
class observed {
public:
  static constexpr std::size_t room = 1024; ///< observations that wait at most
  static constexpr std::chrono::milliseconds patience{5000};

  /// Starts the thread. Throws mc::error(exit_code::memory).
  explicit observed(std::unique_ptr<observer> one)
      : shared_(std::make_shared<shared>(std::move(one))),
        thread_([s = shared_] { s->give_all(); }) {}
  observed(observed&&) = default;
  observed& operator=(observed&&) = delete;
  ~observed() { close(); }

  /// Hands over an observation, or drops it where too many wait. It does not wait, and for a step
  /// it allocates no memory.
  void tell(observation x) {
    shared& s = *shared_;
    const std::size_t told = s.told.load(std::memory_order_relaxed);
    if (told - s.taken.load(std::memory_order_acquire) == room) {
      ++dropped_;
      return;
    }
    s.queue[told % room] = std::move(x);
    s.told.store(told + 1, std::memory_order_release);
    s.waiting.release();
  }
  /// Returns a sentence about what went wrong, and "" where there is nothing new. The first failure
  /// is told, and that something was dropped.
  std::string news() {
    if (!told_failure_ && shared_->failed.load(std::memory_order_acquire)) {
      told_failure_ = true;
      return shared_->failure + "; the run goes on";
    }
    if (dropped_ == 0 || std::exchange(told_dropped_, true)) return "";
    return fmt::format(
        "{} is slower than the steps, so that not all of them are told; the run "
        "goes on",
        shared_->one->name());
  }

  /// Lets the observer take what waits, but no longer than `most`, and ends its thread. Returns a
  /// sentence about what it has not taken, or "". A second call does nothing.
  std::string close(std::chrono::milliseconds most = patience) {
    const std::shared_ptr<shared> s = std::move(shared_);
    if (s == nullptr) return "";
    s->waiting.release();
    // A thread that waits for a network or a disk cannot be ended: it keeps what it refers to.
    if (!s->done.try_acquire_for(most)) thread_.forget();
    const std::uint64_t lost =
        dropped_ + s->lost.load() + s->told.load() - s->taken.load(std::memory_order_acquire);
    if (lost == 0) return "";
    return fmt::format("{} lacks {} of the {} things that it was to be told", s->one->name(), lost,
                       s->told.load() + dropped_);
  }

private:
  /// The queue between the run, which alone writes `told`, and the thread, which alone writes
  /// `taken`.
  struct shared {
    explicit shared(std::unique_ptr<observer> o) : one(std::move(o)), queue(room) {}

    const std::unique_ptr<observer> one;
    std::vector<observation> queue;
    std::atomic<std::size_t> told = 0, taken = 0;
    std::counting_semaphore<> waiting{0}; ///< is released for each observation, and for the end
    std::binary_semaphore done{0};
    std::atomic<std::uint64_t> lost = 0; ///< observations with which the observer failed
    std::string failure;                 ///< is written before `failed`
    std::atomic<bool> failed = false;

    void give_all() {
      for (std::size_t i = 0;; ++i) {
        waiting.acquire();
        if (i == told.load(std::memory_order_acquire)) break; // the end
        give(queue[i % room]);
        queue[i % room] = {};
        taken.store(i + 1, std::memory_order_release);
      }
      done.release();
    }
    void give(const observation& x) {
      try {
        std::visit([this](const auto& seen) { one->see(seen); }, x);
      } catch (const std::exception& e) {
        ++lost;
        if (failed.load()) return;
        failure = e.what();
        failed.store(true, std::memory_order_release);
      }
    }
  };

  std::shared_ptr<shared> shared_;
  own_thread thread_;
  std::uint64_t dropped_ = 0;
  bool told_failure_ = false, told_dropped_ = false;
};

/// Observers, each with its thread. One that fails or is slow changes nothing in the run: what it
/// lacks is told.
class observers {
public:
  /// Throws mc::error(exit_code::memory).
  void add(std::unique_ptr<observer> one) { all_.emplace_back(std::move(one)); }
  bool empty() const { return all_.empty(); }
  /// Hands an observation to all of them. It waits for none.
  template <class Seen> void tell(const Seen& x) {
    for (observed& one : all_) one.tell(x);
  }
  /// Calls f(sentence) for everything that went wrong since the last call.
  template <class F> void each_news(F f) {
    for (observed& one : all_)
      if (const std::string news = one.news(); !news.empty()) f(news);
  }
  /// Ends the observers. Calls f(sentence) for each that lacks something.
  template <class F> void close(F f) {
    each_news(f);
    for (observed& one : all_)
      if (const std::string lacks = one.close(); !lacks.empty()) f(lacks);
    all_.clear();
  }

private:
  std::vector<observed> all_;
};

} // namespace mc
