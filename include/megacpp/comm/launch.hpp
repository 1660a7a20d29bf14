// Whether a launcher has started this process as one of several: mpirun, or srun of Slurm. Found in
// the environment, before anything is asked of MPI.
#pragma once

#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <string_view>

namespace mc {

/// One process of several; of one, which starts its ranks itself, where `size` is 1.
struct launch {
  const char* by = "";
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
    if (size == 1) return {};
    const bool slurm = std::string_view(s.by) == "srun";
    const bool connected = !slurm || number_of_environment("PMIX_RANK") >= 0;
    return {s.by, rank, size, connected};
  }
  return {};
}

} // namespace mc
