// cuDNN's plans for the attention of the presets, made for an H200 that is described to it, on a machine
// that has none: the library has a kernel of Hopper for each, and asks for no more scratch than is
// planned. It links the library itself, and driver_stand_in.cpp in the place of the driver's.
//
//   cudnn_plans [all]     all: of several micro-batches, lengths and tensor parallel ranks, each packed,
//                         too; many minutes
#include <megacpp/kernel/cuda/cudnn_attention.hpp>
#include <megacpp/preset/models.hpp>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

extern "C" const char* stand_in_kernels(); // driver_stand_in.cpp

// Compiled by nvcc, and named by lanes, which g++ makes ready at -O3 though nothing here starts one.
int mc::reduce_on_cuda(CUstream_st*, mc::reduction, mc::dtype, std::span<const void* const>, void*,
                       std::int64_t) {
  return cudaErrorNotSupported;
}

namespace {

using mc::fused_attention_shape;

/// The facts of an H200 that cuDNN asks for.
constexpr std::string_view h200 =
    R"({"deviceName":"NVIDIA H200","cudaDeviceId":0,"deviceVer":900,"driverVer":13000,)"
    R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,)"
    R"("multiProcessorCount":132,"warpSize":32,"maxSharedMemoryPerBlock":49152,)"
    R"("maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("maxRegistersPerSM":65536,"maxCtasPerSM":32,"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"pciDeviceId":0,"isTccDriver":0,"supportCoopLaunch":1,)"
    R"("smClockRateKHz":1980000,"memClockRateKHz":3201000,"l2CacheSize":62914560,)"
    R"("totalGlobalMem":150113947648})";

int plans = 0, wrong = 0;

void fail(const std::string& name, const fused_attention_shape& s, const std::string& why) {
  std::printf("%s: %lld x %lld tokens, %lld heads of %lld and %lld of keys%s%s: %s\n", name.c_str(),
              static_cast<long long>(s.sequences), static_cast<long long>(s.tokens),
              static_cast<long long>(s.heads), static_cast<long long>(s.head_dim),
              static_cast<long long>(s.kv_heads), s.packed ? ", packed" : "",
              s.gradient ? ", gradient" : "", why.c_str());
  ++wrong;
}

/// The plan of the first engine that cuDNN proposes for a shape: programs take it if it passes their
/// check.
void plan_one(const std::string& name, fused_attention_shape s, bool deterministic,
              const mc::cudnn_descriptor& device) {
  const std::int64_t planned = mc::cuda::attention_scratch(s, deterministic);
  s.sequences = mc::cuda::sequences_at_once(s, deterministic);
  ++plans;
  (void)stand_in_kernels();
  try {
    mc::cudnn_plan made(s, deterministic, nullptr, &device);
    if (made.engines() == 0) return fail(name, s, "cuDNN knows no engine");
    made.take(0);
    const std::string kernels = stand_in_kernels();
    if (made.scratch() > planned || (s.gradient && deterministic && 2 * made.scratch() < planned))
      fail(name, s,
           std::to_string(made.scratch()) + " bytes of scratch, " + std::to_string(planned) +
               " planned");
    if (kernels.find("sm90") == std::string::npos) fail(name, s, "no kernel of Hopper: " + kernels);
  } catch (const mc::error& e) {
    fail(name, s, e.what());
  }
}

/// The plans of a shape and of its gradient.
void plan(const std::string& name, fused_attention_shape s, const mc::cudnn_descriptor& device) {
  plan_one(name, s, true, device);
  s.gradient = true;
  for (const bool deterministic : {true, false}) plan_one(name, s, deterministic, device);
}

} // namespace

int main(int argc, char** argv) {
  const bool all = argc > 1 && std::string_view(argv[1]) == "all";
  mc::cudnn_descriptor device(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  device
      .set(CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
           static_cast<std::int64_t>(h200.size()), h200.data())
      .finalize("a device's properties");
  std::set<std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>> seen;
  std::set<std::tuple<std::int64_t, bool>> packed; // in short: a shape of each kind of heads
  const auto model = [&](const std::string& name, std::int64_t heads, std::int64_t kv_heads,
                         std::int64_t head_dim, std::int64_t positions) {
    for (const std::int64_t tp : {1, 2, 8})
      for (const std::int64_t sequences : {4, 1, 32})
        for (const std::int64_t most : {4096, 1024}) {
          if (heads % tp != 0 || kv_heads % tp != 0 ||
              (!all && (tp > 1 || sequences != 4 || most != 4096)))
            continue;
          fused_attention_shape s{sequences, std::min(most, positions), heads / tp, kv_heads / tp,
                                  head_dim};
          if (!seen.emplace(s.sequences, s.tokens, s.heads, s.kv_heads, s.head_dim).second)
            continue;
          plan(name, s, device);
          s.packed = true;
          if (all || packed.emplace(s.head_dim, s.heads == s.kv_heads).second)
            plan(name, s, device);
        }
  };
  using namespace mc::preset;
  const auto gpt = [&](const char* name, const mc::gpt& m) {
    model(name, m.heads, m.heads, m.hidden / m.heads, m.positions);
  };
  const auto grouped = [&](const char* name, const auto& m) {
    model(name, m.heads, m.kv_heads, m.head_dim, m.positions);
  };
  gpt("byte_gpt", byte_gpt), gpt("char_gpt", char_gpt);
  gpt("gpt2_124m", gpt2_124m), gpt("gpt2_350m", gpt2_350m), gpt("gpt2_774m", gpt2_774m);
  gpt("gpt2_1558m", gpt2_1558m), gpt("gpt3_175b", gpt3_175b);
  gpt("megatron_1_7b", megatron_1_7b), gpt("megatron_3_6b", megatron_3_6b);
  gpt("megatron_7_5b", megatron_7_5b), gpt("megatron_18_4b", megatron_18_4b);
  gpt("megatron_39_1b", megatron_39_1b), gpt("megatron_76_1b", megatron_76_1b);
  gpt("megatron_145_6b", megatron_145_6b), gpt("megatron_310_1b", megatron_310_1b);
  gpt("megatron_529_6b", megatron_529_6b), gpt("megatron_1008b", megatron_1008b);
  grouped("llama3_8b", llama3_8b), grouped("llama3_1_8b", llama3_1_8b);
  grouped("llama3_2_1b", llama3_2_1b), grouped("llama3_2_3b", llama3_2_3b);
  grouped("qwen2_5_0_5b", qwen2_5_0_5b), grouped("qwen2_5_1_5b", qwen2_5_1_5b);
  grouped("qwen2_5_7b", qwen2_5_7b), grouped("qwen3_0_6b", qwen3_0_6b);
  grouped("qwen3_1_7b", qwen3_1_7b), grouped("qwen3_4b", qwen3_4b), grouped("qwen3_8b", qwen3_8b);
  grouped("qwen3_14b", qwen3_14b), grouped("qwen3_32b", qwen3_32b);
  grouped("qwen3_moe_165m", qwen3_moe_165m), grouped("qwen3_30b_a3b", qwen3_30b_a3b);
  grouped("qwen3_235b_a22b", qwen3_235b_a22b);
  // A window, and a length whose sums begin between multiples of 16 bytes.
  for (fused_attention_shape s : {fused_attention_shape{4, 4096, 32, 8, 128, 1024},
                                  fused_attention_shape{4, 4095, 25, 25, 64}})
    for (const bool in_documents : {false, true}) {
      s.packed = in_documents;
      plan("a window or an odd length", s, device);
    }
  std::printf("%d plans of cuDNN %s for an H200, %d wrong\n", plans,
              mc::dotted_version(cudnnGetVersion()).c_str(), wrong);
  return wrong == 0 && plans > 0 ? 0 : 1;
}
