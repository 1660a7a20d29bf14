#include "ceilings.hpp"
#include "cuda_device.hpp"
#include "kernels.hpp"

#include <megacpp/exec/cuda/device.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace gpu {

void copies(report& r) {
  constexpr std::int64_t bytes = std::int64_t{1} << 30;
  mc::arena to(memory(), bytes, "copies", "a device with more memory"),
      from(memory(), bytes, "copies", "a device with more memory");
  double best = std::nan("");
  const auto rate = [&](const std::function<void(int)>& call) -> figures {
    const double ms = milliseconds(call, 1), tb = 2.0 * static_cast<double>(bytes) / ms / 1e9;
    best = best > tb ? best : tb;
    return {{"ms", ms}, {"TB/s", tb}};
  };
  r.check("a kernel copies", [&]() -> figures {
    // The size is no multiple of the bytes that a block copies, so that the end is checked, too.
    constexpr std::int64_t some = 16 * 12345;
    std::vector<unsigned char> sent(some), seen(some);
    for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 31 >> 3);
    memory().write(from.data(), sent.data(), some);
    start_copy(to.data(), from.data(), some);
    memory().read(seen.data(), to.data(), some);
    if (seen != sent) throw mc::error(mc::exit_code::internal, "what arrives is not what was sent");
    return {};
  });
  r.check("copy by a kernel",
          [&] { return rate([&](int) { start_copy(to.data(), from.data(), bytes); }); });
  r.check("copy by cudaMemcpyAsync", [&] {
    return rate([&](int) {
      mc::require_cuda(cudaMemcpyAsync(to.data(), from.data(), static_cast<std::size_t>(bytes),
                                       cudaMemcpyDeviceToDevice, nullptr),
                       "cudaMemcpyAsync");
    });
  });
  r.fact("copy_TB/s", best);
}

} // namespace gpu
