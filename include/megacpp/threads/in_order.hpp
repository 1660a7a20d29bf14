// Several threads work on a stream of pieces; the results come in the order of the pieces.
#pragma once

#include <megacpp/threads/own_thread.hpp>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <vector>

namespace mc {

/// Works on pieces until take returns false. For each piece, take(piece) reads it, one thread at a
/// time; work(thread, piece) runs on several threads at once; give(piece) passes it on in order,
/// one thread at a time. At most `threads` pieces are under way. An exception of any of the three
/// functions ends the loop after all pieces before it were given, and is thrown here: the same
/// input fails at the same place for any number of threads. The loop ends in the same way when a
/// thread cannot be started.
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
        guard.unlock(); // other threads may take pieces meanwhile
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
    } catch (...) { // the threads that run already give the pieces that they have taken
      const std::lock_guard guard(lock);
      over = true;
      throw;
    }
    run(0);
  }
  if (problem) std::rethrow_exception(problem);
}

} // namespace mc
