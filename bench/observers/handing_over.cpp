// The nanoseconds that a run takes to hand a step over to seven observers that wait for it: the
// median of five hundred steps.
#include <megacpp/observe/observed.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace {

struct nobody : mc::observer {
  std::string name() const override { return "nobody"; }
};

} // namespace

int main() {
  mc::observers all;
  for (int i = 0; i < 7; ++i)
    all.add([] { return std::make_unique<nobody>(); }, [](const std::string&) {});
  std::vector<double> times;
  mc::observed_step step;
  for (int i = 0; i < 500; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    step.step = i;
    all.tell(step);
    all.each_news([](const std::string&) {});
    times.push_back(
        std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count());
    std::this_thread::sleep_for(std::chrono::milliseconds(2)); // the observers wait again
  }
  std::nth_element(times.begin(), times.begin() + 250, times.end());
  std::printf("step %.0f\n", times[250]);
}
