// Connects this process with the others that a launcher has started, by MPI or by TCP.
#pragma once

#include <megacpp/comm/connected_ranks.hpp>
#include <megacpp/comm/mpi.hpp>
#include <megacpp/comm/process_ranks.hpp>
#include <megacpp/comm/tcp.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/join/process_start.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

namespace mc {

/// Returns the MPI that this program is built with.
inline mpi_library mpi_of_program() {
#if defined(MEGACPP_WITH_MPI)
  return library_of_mpi();
#else
  return mpi_library::none;
#endif
}

/// Reads how this process was started.
inline process_start start_of_this_process() {
  return start_of_process(environment(), mpi_of_program(), host_name());
}

/// Throws mc::error(exit_code::mismatch) on every process. The others leave the first one time to
/// print its sentence, which ends them.
[[noreturn]] inline void refuse_to_connect(int rank, const std::string& sentence) {
  if (rank != 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  throw error(exit_code::mismatch, sentence);
}

/// Joins the other processes; returns nullptr where there are none. `identity`: what all must have
/// alike; `tell`: gets sentences while ranks wait for each other. Throws mc::error
/// (exit_code::mismatch or ranks) if the others cannot be reached, or are not those that were
/// promised.
inline std::unique_ptr<connected_ranks> connect_ranks(const process_start& start,
                                                      const std::string& identity,
                                                      const teller& tell,
                                                      const message_sizes& sizes = {}) {
  if (!start.refused.empty()) refuse_to_connect(start.rank, start.refused);
  if (start.over == connected_by::tcp)
    return std::make_unique<tcp_ranks>(sizes, sizes.at_once + 64, start, identity, tell);
#if defined(MEGACPP_WITH_MPI)
  if (start.over == connected_by::mpi) {
    auto ranks = std::make_unique<mpi_ranks>(sizes);
    if (ranks->size() == start.size) return ranks;
    refuse_to_connect(start.rank, std::string(name_of(start.by)) + " has started " +
                                      std::to_string(start.size) + " processes, and MPI knows of " +
                                      std::to_string(ranks->size()) +
                                      ": start them by the mpirun of the MPI that this program is "
                                      "built with, or by srun --mpi=pmix");
  }
#endif
  return nullptr;
}

/// Joins the other ranks of this process's start. All of them must be started from copies of one
/// file.
inline std::unique_ptr<process_ranks> join_processes(const process_start& start,
                                                     const teller& tell) {
  std::string identity;
  if (start.over == connected_by::tcp) {
    const mapped_file program("/proc/self/exe", exit_code::internal);
    identity = std::to_string(xxh64::of(program.bytes()));
  }
  return std::make_unique<process_ranks>(start, connect_ranks(start, identity, tell));
}

} // namespace mc
