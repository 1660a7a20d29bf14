// The threads that compute: whoever calls, and workers of its own that wait for what it has to do.
//
// A region is a number of pieces. The caller takes them from the front and workers take them from
// the back, so that on two cores each finds in its cache what it wrote in the region before, and
// they meet where the faster one has got to. The caller waits for pieces that somebody has begun,
// never for a thread: a worker that has not begun one costs nothing. Whoever waits spins for
// about as long as sleeping and waking would take, and then sleeps.
#pragma once

#include <megacpp/io/clock.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/threads/function_ref.hpp>
#include <megacpp/threads/openmp.hpp>
#include <megacpp/threads/own_thread.hpp>
#include <megacpp/threads/processors.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include <unistd.h>

namespace mc {

/// The workers of one thread.
class workers {
public:
  /// Those of the calling thread. They end with it.
  static workers& mine() {
    thread_local workers of_thread;
    return of_thread;
  }
  workers() = default;
  workers(const workers&) = delete;
  workers& operator=(const workers&) = delete;
  ~workers() { dismiss(); }

  /// Threads that compute, the caller included.
  int threads() {
    if (threads_ == 0) start(processors(), "");
    return threads_;
  }
  /// Throws mc::error(exit_code::memory) where so many cannot be started; then there is one. Does
  /// nothing within a region, which keeps the threads that it began with.
  void resize(int threads) {
    if (threads < 1)
      throw error(exit_code::usage,
                  "cannot compute with " + std::to_string(threads) + " threads; give at least one");
    if (!inside_) start(threads, "compute with fewer --threads, or ");
  }

  /// f(piece) for pieces 0, 1, ... below `pieces`, each once; f must not throw. A region within a
  /// region runs on the thread that comes to it.
  [[gnu::noinline]] void run(int pieces, function_ref<int> f) {
    if (pieces <= 1 || inside_ || threads() == 1) {
      for (int i = 0; i < pieces; ++i) f(i);
      return;
    }
    inside_ = true;
    body_ = f;
    for (int n = 0; pieces != 0; first_ += n, pieces -= n)
      finish(n = std::min(pieces, most_pieces));
    first_ = 0;
    inside_ = false;
  }

private:
  /// No region: no piece is open, and none will be.
  static constexpr std::uint32_t leave = 0xffff;
  /// That are open at once.
  static constexpr int most_pieces = 0xffff;

  /// `instead`: what to do where so many cannot be started, beside raising limits.
  void start(int threads, const char* instead) {
    if (threads == threads_ && (threads == 1 || owner_ == ::getpid())) return;
    dismiss();
    if (threads > 1) processors_ = processors();
    threads_ = 1;
    owner_ = ::getpid();
    others_.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) others_.emplace_back([this] { work(); }, instead);
    // What a thread allocates when it begins is not part of a step.
    for (int n = started_; n < threads - 1; n = started_) started_.wait(n);
    threads_ = threads;
  }

  /// Does so many pieces from first_ on, with the workers. What a piece throws all the same ends
  /// the program, since others may be on their way.
  void finish(int pieces) noexcept { // NOLINT(bugprone-exception-escape)
    unfinished_.store(pieces, std::memory_order_relaxed);
    open_.exchange(static_cast<std::uint32_t>(pieces) << 16);
    // More than there are processors would only take them from each other.
    if (threads_ <= processors_) open_.notify_all();
    else
      for (int i = 0; i < std::max(1, processors_ - 1); ++i) open_.notify_one();
    int done = 0;
    for (int piece; (piece = take(true)) >= 0; ++done) body_(first_ + piece);
    int left = unfinished_.fetch_sub(done) - done;
    while (left != 0) {
      if (!soon([&] { return (left = unfinished_.load(std::memory_order_acquire)) == 0; }))
        unfinished_.wait(left);
    }
  }

  /// The next piece from the front or from the back; -1 if all are taken. What it returns keeps the
  /// region open until it is done, so body_ and first_ are those of that region.
  int take(bool front) {
    std::uint32_t open = open_.load(std::memory_order_relaxed);
    for (;;) {
      const std::uint32_t first = open & 0xffff, end = open >> 16;
      if (first >= end) return -1;
      if (!open_.compare_exchange_weak(open, front ? open + 1 : open - (1u << 16),
                                       std::memory_order_acq_rel, std::memory_order_relaxed))
        continue;
      return static_cast<int>(front ? first : end - 1);
    }
  }

  /// The life of a worker.
  void work() {
    mine().threads_ = 1;
    mine().inside_ = true; // whatever it does is of a region
    const one_openmp_thread tiles;
    ++started_;
    started_.notify_one();
    for (;;) {
      int done = 0;
      for (int piece; (piece = take(false)) >= 0; ++done) body_(first_ + piece);
      if (done != 0 && unfinished_.fetch_sub(done) == done) unfinished_.notify_one();
      const std::uint32_t seen = open_.load(std::memory_order_acquire);
      if (seen == leave) return;
      if ((seen & 0xffff) < seen >> 16) continue;
      if (!soon([&] { return open_.load(std::memory_order_relaxed) != seen; })) open_.wait(seen);
    }
  }

  /// Whether it comes true within about the time that sleeping and waking takes.
  template <class F> static bool soon(const F& comes_true) {
    constexpr std::chrono::microseconds time(50);
    const auto looks = [&comes_true] {
      for (int i = 0; i < 32; ++i) {
        if (comes_true()) return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ volatile("yield");
#endif
      }
      return false;
    };
    if (looks()) return true;
    const auto end = steady::now() + time;
    do {
      if (looks()) return true;
    } while (steady::now() < end);
    return false;
  }

  void dismiss() {
    if (owner_ == ::getpid()) {
      open_ = leave;
      open_.notify_all();
    } else {
      for (own_thread& t : others_) t.forget();
    }
    others_.clear();
    open_ = 0;
    started_ = 0;
  }

  static constexpr auto nothing = [](int) {};

  // The pieces that nobody has taken: the first in the lower half, the end in the upper one. What
  // is to be done lies beside them, since the caller's stack is in another core's cache.
  alignas(64) std::atomic<std::uint32_t> open_{0};
  function_ref<int> body_{nothing};
  int first_ = 0; // of the open pieces
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> started_{0};
  int threads_ = 0; // 0: as many as there are processors, once they are needed
  int processors_ = 1;
  bool inside_ = false;
  pid_t owner_ = 0; // whose threads `others_` are: not those of a child that forked
  std::vector<own_thread> others_;
};

} // namespace mc
