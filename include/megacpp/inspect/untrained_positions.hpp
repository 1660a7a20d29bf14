// Positions of a model behind the longest sequence of a run: their learned vectors are not trained.
#pragma once

#include <megacpp/run/view.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Returns a sentence for each table of positions of which sequences of this length train only the
/// first rows.
inline std::vector<std::string> untrained_positions(const program_view& p, std::int64_t sequence) {
  std::vector<std::string> lines;
  for (int number = 0; number <= p.kinds() + 1; ++number) {
    const graph& g = *p.part(number).g;
    for (int i = 0; i < g.parameter_count; ++i) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(i)];
      const extent rows = g.at(info.v).dims[0];
      if (rows.d == dim::position && rows.n > sequence && !info.frozen)
        lines.push_back(fmt::format(
            "{}.{} has {} positions, of which sequences of {} tokens train the first {}: text "
            "becomes worse behind them",
            g.at(info.v).scope, g.at(info.v).name, rows.n, sequence, sequence));
    }
  }
  return lines;
}

} // namespace mc
