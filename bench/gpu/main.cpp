// megacpp_gpu: every row body on a CUDA device against the CPU, how fast, and what the device can do
// at most. docs: README.md beside this.
#include "ceilings.hpp"
#include "cuda_device.hpp"
#include "rows.hpp"

#include <megacpp_gpu_commit.hpp>

#include <cstdio>
#include <cstring>
#include <ctime>
#include <string>

namespace {

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// The file of --json, or nothing. Throws mc::error for everything else on the command line.
std::string json_file(int argc, char** argv) {
  if (argc == 1) return "";
  if (argc == 3 && std::strcmp(argv[1], "--json") == 0 && *argv[2] != 0) return argv[2];
  throw mc::error(mc::exit_code::usage, "usage: megacpp_gpu [--json FILE]");
}

int run(int argc, char** argv) {
  const std::string file = json_file(argc, argv);
  gpu::open_device();
  gpu::figures facts = gpu::device_facts();
  facts.insert(facts.begin(), {{"utc", now()}, {"commit", megacpp_gpu_commit}});
  std::string command = "megacpp_gpu";
  for (int i = 1; i < argc; ++i) command += std::string(" ") + argv[i];
  facts.emplace_back("command", command);
  facts.emplace_back("cublasLt", gpu::product_library());
  facts.emplace_back("cudnn", gpu::attention_library());
  for (const auto& [name, value] : facts) {
    if (const auto* text = std::get_if<std::string>(&value))
      std::printf("%s: %s\n", name.c_str(), text->empty() ? "none" : text->c_str());
    else std::printf("%s: %.0f\n", name.c_str(), std::get<double>(value));
  }

  gpu::report r(file, facts, gpu::require_device);
  const auto bodies = [&](std::span<const gpu::sizes> sizes) {
    gpu::norms(r, sizes), gpu::losses(r, sizes), gpu::experts(r, sizes);
    gpu::optimizer(r, sizes), gpu::elements(r, sizes), gpu::attention_by_rows(r, sizes);
  };
  // Seconds: together less than five minutes.
  r.part("copies", 10, [&] { gpu::copies(r); });
  r.part("row bodies against the CPU", 70, [&] { bodies(gpu::checked_sizes); });
  r.part("row bodies, achieved", 110, [&] { bodies(gpu::timed_sizes); });
  r.part("products", 50, [&] { gpu::products(r); });
  r.part("attention", 50, [&] { gpu::attention(r); });
  if (gpu::attention_library().empty())
    std::printf("left out: attention, since this program was built without cuDNN\n");
  return r.end();
}

} // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const mc::error& e) {
    std::fprintf(stderr, "megacpp_gpu: %s\n", e.what());
    return static_cast<int>(e.code());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "megacpp_gpu: %s\n", e.what());
    return static_cast<int>(mc::exit_code::internal);
  }
}
