// The thread of an observer, and the queue before it. A run hands over what happened and goes on at
// once, however slow the observer is.
#pragma once

#include <megacpp/observe/observer.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <algorithm>
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

#include <pthread.h>

namespace mc {

/// An observer with its thread, on which it may take its time. A failure of it is told once, and
/// does not end the run. The functions are called by one thread of the run.
class observed {
public:
  static constexpr std::size_t room = 4096; ///< observations that wait at most

  /// Starts the thread. Throws mc::error(exit_code::memory).
  explicit observed(std::unique_ptr<observer> one)
      : shared_(std::make_shared<shared>(std::move(one))),
        thread_([s = shared_] { s->give_all(); }) {}
  observed(observed&&) = default;
  observed& operator=(observed&&) = delete;
  ~observed() {
    close({}, [](const std::string&) {});
  }

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

  /// Lets the thread end when the observer has taken what waits. It does not wait for that.
  void end() {
    if (shared_ != nullptr && !std::exchange(ended_, true)) shared_->waiting.release();
  }
  /// Waits for that end, but no longer than `most` and a moment. Calls f(sentence) for what is new,
  /// and for what the observer has not taken. A second call does nothing.
  template <class F> void close(std::chrono::milliseconds most, F f) {
    end();
    if (shared_ == nullptr) return;
    if (!shared_->done.try_acquire_for(std::max(most, {}))) {
      constexpr std::chrono::milliseconds moment(1500); // as libcurl needs to give up
      shared_->one->hurry();
      // A thread that waits for a network or a disk cannot be ended: it keeps what it refers to.
      if (!shared_->done.try_acquire_for(moment)) thread_.forget();
    }
    if (const std::string sentence = news(); !sentence.empty()) f(sentence);
    const std::shared_ptr<shared> s = std::move(shared_);
    const std::uint64_t lost =
        dropped_ + s->lost.load() + s->told.load() - s->taken.load(std::memory_order_acquire);
    if (lost > 0)
      f(fmt::format("{} lacks {} of the {} things that it was to be told", s->one->name(), lost,
                    s->told.load() + dropped_));
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
      ::pthread_setname_np(::pthread_self(), "observer"); // what top and /proc show
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
      } catch (const observer_failure& e) {
        fail(e.what(), e.lost());
      } catch (const std::exception& e) {
        fail(e.what(), 1);
      }
    }
    void fail(const char* why, std::uint64_t n) {
      lost += n;
      if (failed.load()) return;
      failure = why;
      failed.store(true, std::memory_order_release);
    }
  };

  std::shared_ptr<shared> shared_;
  own_thread thread_;
  std::uint64_t dropped_ = 0;
  bool told_failure_ = false, told_dropped_ = false, ended_ = false;
};

/// Observers, each with its thread. One that fails or is slow changes nothing in the run: what it
/// lacks is told.
class observers {
public:
  /// The longest that the end of a run waits for them.
  static constexpr std::chrono::seconds patience{10};

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
  /// Ends the observers, which have `patience` together. Calls f(sentence) as observed::close.
  template <class F> void close(F f) {
    using std::chrono::milliseconds, std::chrono::steady_clock;
    const steady_clock::time_point last = steady_clock::now() + patience;
    for (observed& one : all_) one.end();
    for (observed& one : all_)
      one.close(std::chrono::duration_cast<milliseconds>(last - steady_clock::now()), f);
    all_.clear();
  }

private:
  std::vector<observed> all_;
};

} // namespace mc
