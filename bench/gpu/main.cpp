// megacpp_gpu: checks every row body on a CUDA device against the CPU, and measures their speed and
// the device's limits. README.md beside this file documents it.
#include "ceilings.hpp"
#include "cuda_device.hpp"
#include "rows.hpp"
#include "tune.hpp"

#include <megacpp_gpu_commit.hpp>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>

namespace {

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&t, &utc);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

// A part of the program: its name, the seconds that it may take, and its function.
struct part {
  const char* name;
  double seconds;
  std::function<void(gpu::report&)> run;
};
void bodies(gpu::report& r, std::span<const gpu::sizes> sizes) {
  gpu::norms(r, sizes), gpu::losses(r, sizes), gpu::experts(r, sizes);
  gpu::optimizer(r, sizes), gpu::elements(r, sizes), gpu::attention_by_rows(r, sizes);
}
const part parts[] = {
    {"copies", 10, gpu::copies},
    {"forms of products", 60, gpu::forms_of_products},
    {"products of experts", 60, gpu::products_of_experts},
    {"row bodies against the CPU", 70, [](gpu::report& r) { bodies(r, gpu::checked_sizes); }},
    {"attention", 70, gpu::attention},
    {"row bodies, achieved", 110, [](gpu::report& r) { bodies(r, gpu::timed_sizes); }},
    {"products", 50, gpu::products}};

// The file of --json, and the part of --only; empty if they are not given.
struct words {
  std::string json, only;
};
// Reads the command line. Throws mc::error for other arguments.
words words_of(int argc, char** argv) {
  words w;
  bool known = argc % 2 == 1;
  for (int i = 1; known && i < argc; i += 2) {
    std::string& to = std::strcmp(argv[i], "--json") == 0 ? w.json : w.only;
    known = (&to == &w.json || std::strcmp(argv[i], "--only") == 0) && to.empty();
    to = argv[i + 1];
    known = known && !to.empty();
  }
  std::string names;
  for (const part& p : parts) names += std::string(names.empty() ? "" : ", ") + "'" + p.name + "'";
  known = known && (w.only.empty() || std::any_of(std::begin(parts), std::end(parts),
                                                  [&](const part& p) { return w.only == p.name; }));
  if (!known)
    throw mc::error(mc::exit_code::usage,
                    "usage: megacpp_gpu [--json FILE] [--only PART], of the parts " + names +
                        "; or megacpp_gpu --tune TABLE");
  return w;
}

int run(int argc, char** argv) {
  const std::optional<gpu::tuning> tuning = gpu::tuning_of(argc, argv);
  const words asked = tuning ? words{} : words_of(argc, argv);
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

  if (tuning) return gpu::tune(*tuning, std::move(facts));
  gpu::report r(asked.json, facts, gpu::require_device);
  // The first part, copies, always runs: others give their rates as fractions of a copy's.
  for (const part& p : parts)
    if (asked.only.empty() || asked.only == p.name || &p == parts)
      r.part(p.name, p.seconds, [&] { p.run(r); });
  if (gpu::attention_library().empty())
    std::printf("left out: attention, since this program was built without cuDNN\n");
  if (!gpu::has_products_at_once())
    std::printf(
        "left out: products of experts at once, since this program was built without CUTLASS, and "
        "cuBLASLt is asked for them on an H100 or H200 from 13.7 on\n");
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
