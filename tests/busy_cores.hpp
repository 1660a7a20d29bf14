// Every processor busy with something else.
#pragma once

#include <megacpp/threads/processors.hpp>

#include <atomic>
#include <thread>
#include <vector>

namespace test {

/// Twice as many threads as there are processors, which compute for nothing while this lives.
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
