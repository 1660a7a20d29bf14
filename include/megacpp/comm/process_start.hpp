// The way in which this process was started: alone, as one of several by a launcher (mpirun, or
// srun of Slurm), or by a program that announces several processes and connects none. The
// environment tells it, before MPI is asked anything.
#pragma once

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace mc {

/// A start of one process of several. `size` is 1 for a process that starts its ranks itself.
struct process_start {
  const char* by = ""; ///< the launcher; "" if there is none
  int rank = 0, size = 1;
  bool connected = true; ///< the launcher speaks to MPI; without it each process would be alone
};

namespace detail {
/// Returns a number from the environment; -1 if there is none.
inline int number_of_environment(const char* name) {
  const char* const text = std::getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
  if (text == nullptr) return -1;
  const std::string_view digits = text;
  int n = -1;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return problem == std::errc() && end == digits.data() + digits.size() ? n : -1;
}
} // namespace detail

/// Reads how this process was started. OpenMPI tells a process its rank in variables that begin
/// with OMPI_, and MPICH with PMI_. Slurm always tells tasks their numbers, and sets PMIX_
/// variables if the tasks can find each other.
inline process_start start_of_process() {
  struct source {
    const char *by, *rank, *size;
  };
  using detail::number_of_environment;
  for (const source& s : {source{"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                          source{"mpirun", "PMI_RANK", "PMI_SIZE"},
                          source{"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"}}) {
    const int rank = number_of_environment(s.rank), size = number_of_environment(s.size);
    if (rank < 0 || size < 1) continue;
    if (size == 1) return {s.by, 0, 1};
    const bool slurm = std::string_view(s.by) == "srun";
    const bool connected = !slurm || number_of_environment("PMIX_RANK") >= 0;
    return {s.by, rank, size, connected};
  }
  return {};
}

/// A variable of the environment that says that this process is one of several.
struct promised_world {
  const char* variable = "";
  int size = 1;
};

/// Returns a variable that promises several processes although no launcher has connected this one
/// to others. It comes from torchrun and other launchers of PyTorch, from Slurm in a script that no
/// srun has started, or from a launcher of another MPI. Under mpirun no variable counts, since
/// mpirun starts as many processes as it was asked for; but a task of Slurm may have the variables
/// of an MPI.
inline promised_world unconnected_world() {
  const std::string_view by = start_of_process().by;
  const bool task_of_slurm = by == "mpirun" && detail::number_of_environment("SLURM_PROCID") >= 0 &&
                             detail::number_of_environment("OMPI_COMM_WORLD_RANK") < 0;
  if (by == "mpirun" && !task_of_slurm) return {};
  const bool by_srun = by == "srun" || task_of_slurm;
  for (const char* const variable :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "PET_NNODES", "PET_NPROC_PER_NODE", "SLURM_NTASKS",
        "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE",
        "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE"}) {
    const bool told_by_srun = by_srun && std::string_view(variable).starts_with("SLURM_");
    const int size = detail::number_of_environment(variable);
    if (size > 1 && !told_by_srun) return {variable, size};
  }
  return {};
}

} // namespace mc
