// Whether a launcher has started this process as one of several: mpirun, or srun of Slurm; or
// whether another one says so, whose processes nothing connects. Found in the environment, before
// anything is asked of MPI.
#pragma once

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace mc {

/// One process of several; of one, which starts its ranks itself, where `size` is 1.
struct launch {
  const char* by = ""; ///< "" where there is no launcher
  int rank = 0, size = 1;
  bool connected = true; ///< the launcher speaks to MPI: else each process would be alone
};

namespace detail {
/// A number of the environment; -1: none.
inline int number_of_environment(const char* name) {
  const char* const text = std::getenv(name); // NOLINT(concurrency-mt-unsafe): nobody sets it
  if (text == nullptr) return -1;
  const std::string_view digits = text;
  int n = -1;
  const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), n);
  return problem == std::errc() && end == digits.data() + digits.size() ? n : -1;
}
} // namespace detail

/// OpenMPI tells ranks by OMPI_, MPICH by PMI_; Slurm always tells its tasks, and by PMI_ or PMIX_
/// that they find each other.
inline launch launch_of_process() {
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

/// A variable of the environment by which this process is one of several.
struct promised_world {
  const char* variable = "";
  int size = 1;
};

/// A variable that promises several processes though no launcher has connected this one to others:
/// torchrun and what starts PyTorch's programs, Slurm in a script that no srun has started, or a
/// launcher of another MPI. mpirun starts as many as it was asked for, whatever else is told; Slurm
/// may tell its tasks by the names of an MPI.
inline promised_world unconnected_world() {
  const std::string_view by = launch_of_process().by;
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
