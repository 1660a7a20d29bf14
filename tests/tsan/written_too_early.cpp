// A race on purpose: a rank writes what it has handed in before it has waited for it, while another
// one reads that. ThreadSanitizer must tell of it, or it would tell of none.
#include <megacpp/comm/threads.hpp>

#include <chrono>
#include <thread>
#include <vector>

int main() {
  using namespace mc;
  constexpr std::int64_t n = 64;
  std::vector<float> in[2] = {std::vector<float>(n), std::vector<float>(n)},
                     out[2] = {std::vector<float>(2 * n), std::vector<float>(2 * n)};
  thread_ranks(mesh({2, 1, 1, 1, 2, 1, 1})).run([&](communicator& c) {
    for (int i = 0; i < 5; ++i) {
      const ticket t = c.start(
          exchange::all_gather(axis::dp, dtype::f32, in[c.rank()].data(), out[c.rank()].data(), n));
      if (c.rank() == 0) { // the other one has read by then, and nothing told this rank that it has
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        in[0][0] += 1;
      }
      c.wait(t);
    }
  });
}
