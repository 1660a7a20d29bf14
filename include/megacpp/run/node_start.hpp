// The ranks of a node that an operator has started alone.
#pragma once

#include <megacpp/exec/device_options.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/join/node_ranks.hpp>
#include <megacpp/run/view.hpp>

#include <optional>

#include <fmt/format.h>

namespace mc {

/// Returns the ranks that a node starts, for an operator that has started the node alone. Its
/// variables say how many, or leave it open. Then they are as many as the node's GPUs (`gpus`; 0
/// for a program that computes on the processor), or as the layout needs over all nodes.
inline int ranks_of_node(const process_start& start, const program_view& p, int gpus) {
  if (gpus > 0 && (start.per_node == "auto" || start.per_node == "gpu")) return gpus;
  if (start.per_node == "gpu")
    throw error(exit_code::mismatch,
                "PET_NPROC_PER_NODE asks for a rank on each GPU, and this program computes on "
                "processors: give a number of ranks, or auto");
  if (start.per_node != "auto") return whole_number(start.per_node).value_or(1);
  const int least = ranks_of(smallest_mesh(p.numbers.ranks));
  return (least + start.nodes - 1) / start.nodes;
}

/// Returns how many ranks this process has to start for its node. 0: its operator has left it
/// nothing to start, or the node is the only one and has one rank, or as many threads as are
/// `asked` for (0: none). Throws mc::error(exit_code::mismatch) where others are asked for.
inline int ranks_to_start(const process_start& start, const program_view& p, int asked,
                          device_maker& make_device) {
  if (start.by != started_by::node || (start.nodes == 1 && asked > 0)) return 0;
  const auto on = make_device(p.device_type(), {.sizes_alone = true});
  const std::optional<memory_room> room =
      on->host_sees() ? std::optional<memory_room>() : on->room();
  const int ranks = ranks_of_node(start, p, room ? room->spread_over : 0);
  if (start.nodes * ranks == 1) return 0;
  if (asked > 0 && asked != start.nodes * ranks)
    throw error(
        exit_code::mismatch,
        fmt::format("--ranks is {}, but {} nodes start {} ranks each: leave --ranks out, or "
                    "change nprocPerNode of the job",
                    asked, start.nodes, ranks));
  return ranks;
}

} // namespace mc
