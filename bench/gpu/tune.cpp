#include "tune.hpp"

#include "ceilings.hpp"

#include <megacpp/observe/print.hpp>
#include <megacpp/product/cuda/product_table_file.hpp>
#include <megacpp/product/cuda/tune.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

namespace gpu {
namespace {

using mc::product_shape;

// Returns the calls of the products that are asked for, each once. Throws mc::error.
std::vector<product_shape> calls_of(const tuning& asked) {
  std::vector<product_shape> shapes;
  if (asked.products.empty()) {
    shapes = shapes_of_layers();
  } else {
    const mc::json_value described = mc::read_json(asked.products, mc::exit_code::usage);
    if (!described.has("product_shapes"))
      throw described.fault(
          "field \"product_shapes\" is missing: give what `describe --json` of a program prints");
    for (const auto& of : described.field<std::vector<mc::json_value>>("product_shapes"))
      shapes.push_back(mc::product_shape_of(of));
  }
  std::vector<product_shape> calls;
  for (const product_shape& s : shapes) {
    product_shape c = mc::call_of(s);
    if (!mc::cublaslt_product::computes_end(c))
      c.ends_in = mc::product_end::sum; // a kernel applies the end
    if (std::ranges::find(calls, c) == calls.end()) calls.push_back(c);
  }
  return calls;
}

// Returns a call as people tell it from others.
std::string text_of(const product_shape& c) {
  std::string text = std::string(mc::name_of(c.kind)) + " " + std::to_string(c.M) + " x " +
                     std::to_string(c.N) + " x " + std::to_string(c.K) + " " + mc::name_of(c.a);
  if (c.out != c.a) text += std::string(" to ") + mc::name_of(c.out);
  if (c.bias) text += ", with bias";
  if (c.accumulate && c.kind != mc::product_kind::weight_gradient) text += ", added";
  if (c.ends_in != mc::product_end::sum) text += std::string(", ") + mc::name_of(c.ends_in);
  if (c.groups > 0) text += ", of a group";
  return text;
}

} // namespace

std::optional<tuning> tuning_of(int argc, const char* const* argv) {
  tuning t;
  bool asked = false, known = true;
  std::string seconds;
  for (int i = 1; i < argc; ++i) asked = asked || std::strcmp(argv[i], "--tune") == 0;
  if (!asked) return std::nullopt;
  for (int i = 1; known && i < argc; ++i) {
    const std::string_view word = argv[i];
    if (word == "--tf32") {
      known = !t.tf32, t.tf32 = true;
      continue;
    }
    std::string* const to = word == "--tune"       ? &t.table
                            : word == "--products" ? &t.products
                            : word == "--json"     ? &t.json
                            : word == "--seconds"  ? &seconds
                                                   : nullptr;
    known = to != nullptr && to->empty() && ++i < argc && argv[i][0] != 0;
    if (known) *to = argv[i];
  }
  if (!seconds.empty()) {
    const char* const end = seconds.data() + seconds.size();
    const auto read = std::from_chars(seconds.data(), end, t.seconds);
    known = known && read.ec == std::errc() && read.ptr == end && t.seconds >= 0 && t.seconds < 1e6;
  }
  if (!known)
    throw mc::error(mc::exit_code::usage,
                    "usage: megacpp_gpu --tune TABLE [--products DESCRIBED.json] "
                    "[--tf32] [--seconds N] [--json FILE]");
  return t;
}

int tune(const tuning& asked, figures facts) {
  // A fault of a file shows before anything is measured.
  const std::vector<product_shape> calls = calls_of(asked);
  mc::product_table table;
  if (std::filesystem::exists(asked.table)) table = mc::read_product_table(asked.table);
  mc::check_text_file(asked.table);

  mc::cuda on(0, mc::thread_count(), [](mc::cuda& of) {
    return mc::cuda_libraries{std::make_unique<mc::cublaslt_products>(of), nullptr};
  });
  const mc::tuned_machine here = mc::machine_of(on);
  mc::product_tuner tuner(on, asked.tf32);
  report r(asked.json, std::move(facts), [&] { on.main_lane().finish(); });
  std::size_t had = 0, left = 0, tuned = 0;
  // The report fails checks that begin after these seconds: late() comes first.
  constexpr double aside = 5;
  r.part("tuned products", asked.seconds + aside, [&] {
    const auto begin = std::chrono::steady_clock::now();
    const auto late = [&] {
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() >=
             asked.seconds;
    };
    for (const product_shape& call : calls) {
      const bool tf32 = asked.tf32 && call.a == mc::dtype::f32;
      const auto* const known = table.find(here);
      if (known != nullptr && mc::find_tuned(*known, call, tf32) != nullptr) {
        ++had;
        continue;
      }
      if (late()) {
        ++left;
        continue;
      }
      r.check(text_of(call), [&]() -> figures {
        const auto found = tuner.tune(call, late);
        if (!found) {
          ++left;
          return {{"left_out", "the time was over"}};
        }
        table.put(here, found->product);
        mc::write_text_file(asked.table, mc::text_of(table));
        ++tuned;
        return {{"ms", found->product.seconds * 1e3},
                {"first_ms", found->product.first_seconds * 1e3},
                {"TFLOP/s", call.flops() / found->product.seconds * 1e-12},
                {"ways", static_cast<double>(found->ways)},
                {"refused_ways", static_cast<double>(found->refused)}};
      });
    }
  });
  std::printf("%s has %zu products of %s: %zu of them are new, %zu were there before\n",
              asked.table.c_str(), tuned + had, here.text().c_str(), tuned, had);
  if (left > 0)
    std::printf(
        "%zu products were left out, since %g seconds were over: start the same again to go "
        "on\n",
        left, asked.seconds);
  return r.failed() == 0 ? 0 : 1;
}

} // namespace gpu
