// This file says which parameters a run trains, and which it leaves as they are.
#pragma once

#include <megacpp/observe/text.hpp>
#include <megacpp/run/view.hpp>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Returns lines with the parameters that a run trains, by the scopes that declare them, and with
/// the number of those that are frozen; none where all are trained.
inline std::vector<std::string> trained_lines(const program_view& p) {
  struct counted {
    int layers = 0;
    std::int64_t elements = 0;
  };
  std::vector<std::pair<std::string, counted>> trained; // in the order of the model
  std::int64_t all = 0, frozen = 0, encoded = 0;
  const char* encoding = "";
  for (int number = 0; number <= p.kinds() + 1; ++number) {
    const graph& g = *p.part(number).g;
    int layers = 0;
    for (const int kind : p.kind_of) layers += kind + 1 == number;
    if (number == 0 || number == p.kinds() + 1) layers = 1;
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(i)];
      if (info.tied) continue;
      const std::int64_t n = layers * unpadded_size(g.at(info.v), info).n;
      if (info.frozen) {
        frozen += n;
        if (info.encoding != nullptr) encoded += n, encoding = info.encoding->name;
        continue;
      }
      all += n;
      const std::string scope = g.at(info.v).scope;
      if (trained.empty() || trained.back().first != scope) trained.push_back({scope, {}});
      trained.back().second.layers = layers, trained.back().second.elements += n;
    }
  }
  if (frozen == 0) return {};
  const auto count = [](std::int64_t n) { return count_text(static_cast<double>(n)); };
  std::string list;
  for (const auto& [scope, c] : trained)
    list += fmt::format("{}{}{} {}", list.empty() ? "" : ", ",
                        c.layers > 1 ? fmt::format("{} x ", c.layers) : "", scope,
                        count(c.elements / c.layers).view());
  return {fmt::format("trained: {} parameters: {}", count(all).view(), list),
          fmt::format("frozen: {} parameters{}", count(frozen).view(),
                      encoded == 0 ? ""
                                   : fmt::format(", {} of them stored in {}", count(encoded).view(),
                                                 encoding))};
}

} // namespace mc
