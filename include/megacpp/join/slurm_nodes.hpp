// Lists of nodes and of tasks, as Slurm writes them into variables. Containers have no scontrol,
// which would read them.
#pragma once

#include <megacpp/join/environment.hpp>

#include <cstddef>
#include <string>
#include <string_view>

namespace mc {

/// Returns the first host of a list such as `gpu[03-07,12]b,login`: gpu03b; "" for a list that is
/// malformed.
inline std::string first_slurm_host(std::string_view list) {
  std::string host;
  for (std::size_t i = 0; i < list.size() && list[i] != ',';) {
    if (list[i] == ']') return "";
    if (list[i] != '[') {
      host += list[i++];
      continue;
    }
    const std::size_t end = list.find(']', i);
    const std::size_t digits = list.find_first_of("-,]", i);
    if (end == std::string_view::npos || digits == i + 1) return "";
    host += list.substr(i + 1, digits - i - 1);
    i = end + 1;
  }
  return host;
}

/// Returns the tasks of a node in a list such as `8(x2),4`, which has 8 on nodes 0 and 1, and 4 on
/// node 2; 0 for a list that is malformed or has no such node.
inline int slurm_ranks_of_node(std::string_view list, int node) {
  while (!list.empty()) {
    const std::string_view item = list.substr(0, list.find(','));
    const std::size_t times_at = item.find("(x");
    const std::optional<int> tasks = whole_number(item.substr(0, times_at));
    std::optional<int> times = 1;
    if (times_at != std::string_view::npos) {
      if (!item.ends_with(')')) return 0;
      times = whole_number(item.substr(times_at + 2, item.size() - times_at - 3));
    }
    if (!tasks || !times) return 0;
    if (node < *times) return *tasks;
    node -= *times;
    list.remove_prefix(std::min(list.size(), item.size() + 1));
  }
  return 0;
}

} // namespace mc
