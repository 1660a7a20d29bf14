// Processors that are all busy with other work.
#pragma once

#include <megacpp/threads/processors.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace test {

/// Runs twice as many threads as there are processors, which compute nothing useful, while it
/// lives.
class busy_cores {
public:
  busy_cores() {
    for (int i = 0; i < 2 * mc::processors(); ++i)
      busy_.emplace_back([this] {
        while (!end_.load(std::memory_order_relaxed)) continue;
      });
  }
  busy_cores(const busy_cores&) = delete;
  busy_cores& operator=(const busy_cores&) = delete;
  ~busy_cores() {
    end_ = true;
    for (std::thread& t : busy_) t.join();
  }

private:
  std::atomic<bool> end_{false};
  std::vector<std::thread> busy_;
};

} // namespace test
