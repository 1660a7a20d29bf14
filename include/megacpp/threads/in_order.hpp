// Work on a stream of pieces by several threads, whose results come in the order of the pieces.
#pragma once

#include <megacpp/threads/own_thread.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

namespace mc {

/// For each piece: take(piece) reads it, one thread at a time; work(thread, piece) runs side by
/// side; give(piece) gets it in order, one at a time. take returns false at the end. No more
/// pieces are under way than there are threads. What one of the three throws ends all, once what
/// was taken before is given, and is thrown here: so the same input fails at the same place for
/// any number of threads. A thread that cannot be started ends all in the same way.
template <class Piece, class Take, class Work, class Give>
void in_order(int threads, const Take& take, const Work& work, const Give& give) {
  std::mutex lock;
  std::condition_variable turned;
  std::int64_t taken = 0, given = 0;
  bool over = false;
  std::exception_ptr problem;
  const auto run = [&](int thread) {
    Piece piece;
    while (true) {
      std::int64_t mine = 0;
      std::exception_ptr mishap;
      {
        const std::lock_guard guard(lock);
        if (over) return;
        mine = taken++;
        try {
          if (!take(piece)) over = true;
        } catch (...) {
          mishap = std::current_exception();
          over = true;
        }
        if (over && !mishap) {
          --taken;
          return;
        }
      }
      try {
        if (!mishap) work(thread, piece);
      } catch (...) {
        mishap = std::current_exception();
      }
      std::unique_lock guard(lock);
      turned.wait(guard, [&] { return given == mine; });
      if (!problem && !mishap) {
        guard.unlock(); // others may take meanwhile
        try {
          give(piece);
        } catch (...) {
          mishap = std::current_exception();
        }
        guard.lock();
      }
      if (mishap && !problem) problem = mishap;
      if (problem) over = true;
      ++given;
      turned.notify_all();
    }
  };
  {
    std::vector<own_thread> others;
    others.reserve(static_cast<std::size_t>(threads > 1 ? threads - 1 : 0));
    try {
      for (int thread = 1; thread < threads; ++thread)
        others.emplace_back([&run, thread] { run(thread); });
    } catch (...) { // those that run give what they have taken
      const std::lock_guard guard(lock);
      over = true;
      throw;
    }
    run(0);
  }
  if (problem) std::rethrow_exception(problem);
}

} // namespace mc
