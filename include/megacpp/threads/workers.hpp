// The threads that compute a parallel loop: the calling thread, and workers of its own.
//
// A loop is a number of pieces. The caller takes pieces from the front and workers take them from
// the back, so that on two cores each finds in its cache the results of its pieces of the loop
// before, and they meet where the faster one has got to. The caller waits for pieces that a worker
// has begun, never for a worker: a worker that has begun no piece costs nothing. A waiting thread
// spins for about as long as sleeping and waking would take, and then sleeps.
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

/// The workers of one calling thread.
class workers {
public:
  /// Returns the workers of the calling thread. They end with that thread.
  static workers& mine() {
    thread_local workers of_thread;
    return of_thread;
  }
  workers() = default;
  workers(const workers&) = delete;
  workers& operator=(const workers&) = delete;
  ~workers() { dismiss(); }

  /// Returns the number of threads that compute, the calling thread included.
  int threads() {
    if (threads_ == 0) start(processors(), "");
    return threads_;
  }
  /// Sets the number of threads. Throws mc::error(exit_code::memory) where so many cannot be
  /// started; one thread is left then. A call within a loop does nothing: the loop keeps the
  /// threads that it began with.
  void resize(int threads) {
    if (threads < 1)
      throw error(exit_code::usage,
                  "cannot compute with " + std::to_string(threads) + " threads; give at least one");
    if (!inside_) start(threads, "compute with fewer --threads, or ");
  }

  /// Calls f(piece) for pieces 0, 1, ... below `pieces`, each once. f must not throw. A loop within
  /// a loop runs on the one thread that comes to it.
  [[gnu::noinline]] void for_pieces(int pieces, function_ref<int> f) {
    if (pieces <= 1 || inside_ || threads() == 1) {
      for (int i = 0; i < pieces; ++i) f(i);
      return;
    }
    inside_ = true;
    function_ = f;
    for (int n = 0; pieces != 0; first_ += n, pieces -= n)
      finish(n = std::min(pieces, most_pieces));
    first_ = 0;
    inside_ = false;
  }

private:
  /// The value of open_ that ends workers: no piece is open, and none will be.
  static constexpr std::uint32_t leave = 0xffff;
  /// The greatest number of pieces of a loop that are open at once.
  static constexpr int most_pieces = 0xffff;

  /// Starts threads. `instead` is the remedy to name, beside raising limits, where they cannot be
  /// started.
  void start(int threads, const char* instead) {
    if (threads == threads_ && (threads == 1 || owner_ == ::getpid())) return;
    dismiss();
    if (threads > 1) processors_ = processors();
    threads_ = 1;
    owner_ = ::getpid();
    others_.reserve(static_cast<std::size_t>(threads - 1));
    for (int i = 1; i < threads; ++i) others_.emplace_back([this] { work(); }, instead);
    // start() returns when every thread has begun, so that a thread's first allocations are no part
    // of a step.
    for (int n = started_; n < threads - 1; n = started_) started_.wait(n);
    threads_ = threads;
  }

  /// Does so many pieces from first_ on, together with the workers. An exception of a piece ends
  /// the program, since other threads may be at work on further pieces.
  void finish(int pieces) noexcept { // NOLINT(bugprone-exception-escape)
    unfinished_.store(pieces, std::memory_order_relaxed);
    open_.exchange(static_cast<std::uint32_t>(pieces) << 16);
    // Threads beyond the number of processors would only take processor time from each other.
    if (threads_ <= processors_) open_.notify_all();
    else
      for (int i = 0; i < std::max(1, processors_ - 1); ++i) open_.notify_one();
    int done = 0;
    for (int piece; (piece = take(true)) >= 0; ++done) function_(first_ + piece);
    int left = unfinished_.fetch_sub(done) - done;
    while (left != 0) {
      if (!soon([&] { return (left = unfinished_.load(std::memory_order_acquire)) == 0; }))
        unfinished_.wait(left);
    }
  }

  /// Takes the next piece from the front or from the back; returns -1 if all are taken. The taken
  /// piece keeps its loop open until it is done, so function_ and first_ stay those of that loop.
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

  /// Runs a worker, from its start until workers are told to leave.
  void work() {
    mine().threads_ = 1;
    mine().inside_ = true; // every loop that a worker comes to is within a loop
    const one_openmp_thread tiles;
    ++started_;
    started_.notify_one();
    for (;;) {
      int done = 0;
      for (int piece; (piece = take(false)) >= 0; ++done) function_(first_ + piece);
      if (done != 0 && unfinished_.fetch_sub(done) == done) unfinished_.notify_one();
      const std::uint32_t seen = open_.load(std::memory_order_acquire);
      if (seen == leave) return;
      if ((seen & 0xffff) < seen >> 16) continue;
      if (!soon([&] { return open_.load(std::memory_order_relaxed) != seen; })) open_.wait(seen);
    }
  }

  /// Returns true if the condition comes true within about the time that sleeping and waking takes.
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

  // open_ holds the pieces that nobody has taken: the first in the lower half, the end in the upper
  // half. The function of the loop lies beside it, since the caller's stack is in another core's
  // cache.
  alignas(64) std::atomic<std::uint32_t> open_{0};
  function_ref<int> function_{nothing};
  int first_ = 0; // number of the first open piece
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> started_{0};
  int threads_ = 0; // number of threads; 0: as many as there are processors
  int processors_ = 1;
  bool inside_ = false;
  pid_t owner_ = 0; // process that started `others_`: not one that was forked
  std::vector<own_thread> others_;
};

} // namespace mc
