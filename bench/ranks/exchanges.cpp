// Measures all-reduce and all-gather of ranks that are threads, in turn with copies by as many
// threads. It prints the bytes of memory that each moves in a second, as lines "NAME bytes/s".
// exchanges.py compiles and runs it.
//
// The local reads and writes of the algorithm (comm/threads.hpp) are counted, with n ranks and B
// bytes. In an all-reduce a rank adds its n-th shard of everyone's, B read and B / n written, and
// copies the others' sums, (n - 1) / n B read and written. In an all-gather of B in all it reads B
// and writes B. A copy of B reads B and writes B.
#include <megacpp/comm/threads.hpp>
#include <megacpp/exec/cpu.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace {

double seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

} // namespace

int main(int argc, char** argv) {
  using namespace mc;
  const int n = argc > 1 ? std::atoi(argv[1]) : 2, rounds = argc > 2 ? std::atoi(argv[2]) : 20;
  const std::int64_t count = std::int64_t{16} << 20; // 64 MB of fp32
  thread_ranks ranks(mesh({n, 1, 1, 1, n, 1, 1}));
  ranks.run([&](communicator& hosts) {
    cpu device(std::unique_ptr<product_source>(), 1);
    lane& on = device.main_lane();
    const auto c = hosts.make_ranks(device);
    std::vector<float> in(static_cast<std::size_t>(count), 1.0f), out(in.size());
    const double bytes = static_cast<double>(count) * sizeof(float), all = n;
    struct way {
      const char* name;
      double moved;
    };
    const way ways[] = {{"copy", 2 * bytes},
                        {"all-reduce", bytes * (1 + 1 / all + 2 * (all - 1) / all)},
                        {"all-gather", 2 * bytes}};
    for (int round = 0; round < rounds + 2; ++round)
      for (int k = 0; k < 3; ++k) {
        const int w = round % 2 == 0 ? k : 2 - k;
        hosts.run(exchange::barrier(axis::dp));
        const double begin = seconds();
        if (w == 0) std::memcpy(out.data(), in.data(), static_cast<std::size_t>(bytes));
        if (w == 1)
          c->run(on, exchange::all_reduce(axis::dp, dtype::f32, in.data(), out.data(), count));
        if (w == 2)
          c->run(on, exchange::all_gather(axis::dp, dtype::f32, in.data(), out.data(), count / n));
        hosts.run(exchange::barrier(axis::dp));
        const double took = seconds() - begin;
        if (hosts.rank() == 0 && round >= 2)
          std::printf("%s %.0f\n", ways[w].name, ways[w].moved / took);
      }
  });
}
