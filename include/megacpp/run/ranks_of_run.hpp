// The ranks of a run: how many there are, and how they are laid out.
#pragma once

#include <megacpp/graph/mesh.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/join/process_start.hpp>
#include <megacpp/run/view.hpp>

#include <string>
#include <string_view>

#include <fmt/format.h>

namespace mc {

/// Returns the number of ranks: of `processes` where a launcher has started several, else the
/// number that is `asked` for (0: none), or else `otherwise`. Throws mc::error(exit_code::mismatch)
/// where other processes were started than are asked for.
inline int number_of_ranks(int asked, int processes, int otherwise) {
  if (processes > 1 && asked > 0 && asked != processes)
    throw error(exit_code::mismatch,
                fmt::format("--ranks is {}, but {} processes were started: give both the same "
                            "number, or leave --ranks out",
                            asked, processes));
  return processes > 1 ? processes : asked > 0 ? asked : otherwise;
}

/// Throws mc::error(exit_code::mismatch) for a process that was started as one of several and is
/// connected with none: each of them would do the whole work alone. A script of Slurm has tasks
/// that it did not start; ranks that are `asked` for say that this process is the only one.
inline void require_connected(bool asked, bool several, started_by by) {
  const promised_world world = unconnected_world(environment(), by);
  const bool of_slurm = std::string_view(world.variable).starts_with("SLURM_");
  if (several || world.size == 1 || (of_slurm && asked)) return;
  throw error(
      exit_code::mismatch,
      fmt::format("{} is {}, but no launcher has connected this process with others, so "
                  "each would do the whole work alone: start ranks as processes by torchrun, "
                  "mpirun -n {} or srun -n {}, or as threads of one process by --ranks {}{}",
                  world.variable, world.size, world.size, world.size, world.size,
                  of_slurm ? "" : fmt::format(", with {} unset", world.variable)));
}

/// Returns the mesh of as many ranks as are `asked` for, or as the program is laid out over at the
/// least. Throws mc::error(exit_code::mismatch) where no number of replicas makes them that many.
inline mesh ranks_of_run(const program_view& p, int asked, int processes = 1) {
  const layout& l = p.numbers.ranks;
  const int replica = l.tp * l.pp * l.cp, least = ranks_of(smallest_mesh(l)),
            n = number_of_ranks(asked, processes, least);
  if (n % least == 0) return mesh_of(l, n / replica);
  const std::string ranks = processes > 1 ? fmt::format("{} processes were started, but they", n)
                                          : fmt::format("--ranks is {}, but", n);
  std::string over;
  const auto add = [&](const char* name, int size) {
    if (size > 1) over += fmt::format("{}{} {}", over.empty() ? "" : " x ", name, size);
  };
  add("tp", l.tp), add("pp", l.pp), add("cp", l.cp);
  if (replica < least)
    over += fmt::format("{}ep {} etp {} of experts", over.empty() ? "" : ", ", l.ep, l.expert_tp());
  const int below = n / least * least;
  throw error(
      exit_code::mismatch,
      fmt::format("{} must be a multiple of {}, such as {}{}: {} is laid out over {}", ranks, least,
                  below > 0 ? fmt::format("{} or ", below) : "", below + least, p.name, over));
}

} // namespace mc
