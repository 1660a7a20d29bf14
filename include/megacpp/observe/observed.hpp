// The thread of an observer, and the queue before it. A run hands over what happened and goes on at
// once, however slow the observer is.
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/observe/observer.hpp>
#include <megacpp/threads/own_thread.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <new>
#include <optional>
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
  static constexpr std::size_t room = 4096; ///< observations that wait at most, besides the end

  /// Starts the thread. Throws mc::error(exit_code::memory) and std::bad_alloc.
  explicit observed(std::unique_ptr<observer> one)
      : shared_(std::make_shared<shared>(std::move(one))),
        thread_([s = shared_] { s->give_all(); }) {}
  observed(observed&&) = default;
  observed& operator=(observed&&) = delete;
  /// Leaves a thread that has not ended alone.
  ~observed() {
    if (shared_ == nullptr) return;
    end();
    if (!has_ended({})) thread_.leave();
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

  /// Lets the thread end when the observer has taken what waits, and the `last` observation, for
  /// which there is always room. It does not wait for that. A second call does nothing.
  void end(std::optional<observation> last = {}) {
    if (std::exchange(ended_, true)) return;
    shared_->last = std::move(last);
    shared_->ends.store(true, std::memory_order_release);
    shared_->waiting.release();
  }
  /// Waits for that end, but no longer than `most`. Returns whether it has come.
  bool has_ended(std::chrono::milliseconds most) {
    return gone_ || (gone_ = shared_->done.try_acquire_for(most));
  }
  /// Asks an observer that is late to give up.
  void hurry() { shared_->one->hurry(); }
  /// Gives the observer up. Calls f(sentence) for what is new, and for what it has not taken.
  template <class F> void close(F f) {
    // A thread that waits for a network or a disk cannot be ended: it keeps what it refers to.
    if (!has_ended({})) thread_.leave();
    if (const std::string sentence = news(); !sentence.empty()) f(sentence);
    const std::shared_ptr<shared> s = std::move(shared_);
    const std::uint64_t all = s->told.load() + (s->last ? 1 : 0) + dropped_;
    const std::uint64_t lost = all - s->given.load(std::memory_order_acquire) + s->lost.load() +
                               (gone_ ? 0 : s->one->unsent());
    if (lost > 0)
      f(fmt::format("{} lacks {} of the {} things that it was to be told{}", s->one->name(), lost,
                    all, gone_ ? "" : ", since it did not answer before the run was over"));
  }

private:
  /// The queue between the run, which alone writes `told`, and the thread, which alone writes
  /// `taken`.
  struct shared {
    explicit shared(std::unique_ptr<observer> o) : one(std::move(o)), queue(room) {}

    const std::unique_ptr<observer> one;
    std::vector<observation> queue;
    std::optional<observation> last; ///< is written before `ends`
    std::atomic<std::size_t> told = 0, taken = 0;
    std::atomic<bool> ends = false;
    std::counting_semaphore<> waiting{0}; ///< is released for each observation, and for the end
    std::binary_semaphore done{0};
    std::atomic<std::uint64_t> given = 0; ///< observations that the observer has seen
    std::atomic<std::uint64_t> lost = 0;  ///< of these those with which it failed
    std::string failure;                  ///< is written before `failed`
    std::atomic<bool> failed = false;

    void give_all() {
      ::pthread_setname_np(::pthread_self(), "observer"); // what top and /proc show
      for (std::size_t i = 0;; ++i) {
        waiting.acquire();
        const bool ending = ends.load(std::memory_order_acquire);
        const std::size_t so_far = told.load(std::memory_order_acquire);
        if (i == so_far && ending) break;
        one->more_waits_ = so_far - i > 1 || (ending && last);
        give([&] { std::visit([this](const auto& x) { one->see(x); }, queue[i % room]); }, 1);
        queue[i % room] = {};
        taken.store(i + 1, std::memory_order_release);
      }
      one->more_waits_ = false;
      if (last) give([&] { std::visit([this](const auto& x) { one->see(x); }, *last); }, 1);
      give([&] { one->finish(); }, 0);
      done.release();
    }
    /// Calls a function for n observations, and keeps what it throws.
    template <class Function> void give(Function f, std::uint64_t n) {
      try {
        try {
          f();
        } catch (const observer_failure& e) {
          fail(e.what(), e.lost());
        } catch (const error& e) {
          fail(e.what(), n);
        } catch (const std::bad_alloc&) {
          fail("there was no memory for " + one->name(), n);
        } catch (const std::exception& e) {
          fail(one->name() + " failed: " + e.what(), n);
        }
      } catch (const std::exception&) { // no memory for the sentence
        lost += n;
      }
      given.fetch_add(n, std::memory_order_release);
    }
    void fail(std::string why, std::uint64_t n) {
      lost += n;
      if (failed.load()) return;
      failure = std::move(why);
      failed.store(true, std::memory_order_release);
    }
  };

  std::shared_ptr<shared> shared_;
  own_thread thread_;
  std::uint64_t dropped_ = 0;
  bool told_failure_ = false, told_dropped_ = false, ended_ = false, gone_ = false;
};

/// Observers, each with its thread. One that fails or is slow changes nothing in the run: what it
/// lacks is told.
class observers {
public:
  /// The longest that the end of a run waits for them, all together, and, if some are late, a
  /// moment after that in which they may give up, as libcurl does. Once a stop was requested they
  /// have `hurried_patience` from then on, or from the end of the run where that came later.
  static constexpr std::chrono::milliseconds patience{10'000}, moment{1'500};
  static constexpr double hurried_patience = 6; ///< seconds

  observers() = default;
  observers(const observers&) = delete;
  observers& operator=(const observers&) = delete;
  /// Ends those of a run that is lost.
  ~observers() {
    close({}, true, [](const std::string&) {});
  }

  /// Adds the observer that make() returns. Where there is no memory or no thread for it,
  /// f(sentence) is called instead.
  template <class Make, class F> void add(Make make, F f) {
    try {
      all_.emplace_back(make());
    } catch (const error& e) {
      if (e.code() != exit_code::memory) throw;
      f(fmt::format("an observer cannot begin: {}; the run goes on without it", e.what()));
    } catch (const std::bad_alloc&) {
      f("there is no memory for an observer; the run goes on without it");
    }
  }
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
  /// Ends the observers with a last observation, and waits as `patience` says, or, where a run is
  /// lost, for a fifth of a second. Calls f(sentence) for each that lacks something.
  template <class F> void close(const std::optional<observed_end>& last, bool lost, F f) {
    using std::chrono::milliseconds, std::chrono::steady_clock;
    for (observed& one : all_) one.end(last ? std::optional<observation>(*last) : std::nullopt);
    const stopwatch closing;
    const auto hurries = [&] {
      return stop_requested() &&
             std::min(seconds_since_stop(), closing.seconds()) > hurried_patience;
    };
    const auto wait_until = [&](steady_clock::time_point end) {
      bool all = true;
      for (observed& one : all_)
        for (bool ended = one.has_ended({}); !ended; ended = one.has_ended(milliseconds(20)))
          if (steady_clock::now() >= end || hurries()) {
            all = false;
            break;
          }
      return all;
    };
    if (!wait_until(steady_clock::now() + (lost ? milliseconds(200) : patience))) {
      for (observed& one : all_)
        if (!one.has_ended({})) one.hurry();
      const steady_clock::time_point end = steady_clock::now() + (lost ? milliseconds(0) : moment);
      for (observed& one : all_)
        one.has_ended(std::max(
            milliseconds(0), std::chrono::duration_cast<milliseconds>(end - steady_clock::now())));
    }
    for (observed& one : all_) one.close(f);
    all_.clear();
  }

private:
  std::vector<observed> all_;
};

} // namespace mc
