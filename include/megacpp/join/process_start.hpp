// The way in which this process was started: alone, as one of several ranks, or as the only process
// of a node whose ranks it has to start. The environment tells it, before anybody is connected.
//
// Launchers nest: srun may start torchrun once a node, and mpirun may run in a pod that a training
// operator has started. Each leaves its variables, and the innermost one counts. Launchers of
// ranks are inside those of nodes, so variables count in this order:
//
//   RANK, WORLD_SIZE, LOCAL_RANK           torchrun, hyperpodrun, and what mimics them
//   OMPI_COMM_WORLD_RANK, _SIZE            mpirun of OpenMPI
//   PMI_RANK, PMI_SIZE                     mpirun of MPICH, unless srun has set them
//   SLURM_PROCID, SLURM_STEP_NUM_TASKS     srun, in a step (SLURM_STEP_ID)
//   PET_NNODES, PET_NPROC_PER_NODE         operators that leave a node's ranks to torchrun
//
// Sources: torch/distributed/run.py and elastic/agent/server/local_elastic_agent.py (torchrun);
// kubeflow/training-operator pkg/controller.v1/pytorch/envvar.go (PyTorchJob); kubeflow/trainer
// pkg/runtime/framework/plugins/torch (TrainJob); srun(1); mpirun(1) of OpenMPI; and NVIDIA's
// enroot, conf/hooks/extra/50-slurm-pytorch.sh, for the port of a step of Slurm.
#pragma once

#include <megacpp/join/environment.hpp>
#include <megacpp/join/slurm_nodes.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <unistd.h>

namespace mc {

/// The launcher that started a process.
enum class started_by : std::uint8_t { nobody, torchrun, open_mpi, mpich, srun, node };
/// The library or protocol that connects the ranks.
enum class connected_by : std::uint8_t { nothing, mpi, tcp };
/// The place where ranks that TCP connects learn each other's addresses: the store of torchrun's
/// agent, a port of rank 0, or a folder that all see.
enum class meeting_place : std::uint8_t { none, agent_store, first_rank, folder };
/// The MPI that a program is built with.
enum class mpi_library : std::uint8_t { none, open_mpi, mpich };

inline const char* name_of(started_by by) {
  switch (by) {
  case started_by::torchrun: return "torchrun";
  case started_by::open_mpi:
  case started_by::mpich: return "mpirun";
  case started_by::srun: return "srun";
  case started_by::node: return "the launcher of its node";
  default: return "nobody";
  }
}

/// A start of one process. A rank's numbers on its machine are unknown where no variable tells
/// them: -1, and 0 for how many there are.
struct process_start {
  started_by by = started_by::nobody;
  int rank = 0, size = 1;
  int local_rank = -1, local_size = 0;
  int node = -1, nodes = 0;
  connected_by over = connected_by::nothing;
  meeting_place meets = meeting_place::none;
  std::string master{}; ///< the host of rank 0; "" if unknown
  int port = 0;
  std::string place{};              ///< the folder where ranks meet
  std::string job{};                ///< its name, by which ranks of one run know each other
  int listener = -1;                ///< an open socket where rank 0 is to listen; -1: none
  bool by_node = false;             ///< start_ranks_of_node has started it, and told its notes
  int restarts = 0;                 ///< times that the launcher has started all ranks again
  std::string per_node{};           ///< ranks that a node is to start: a number, or "auto"
  std::string refused{};            ///< what is wrong with the variables; "" if nothing is
  std::vector<std::string> outer{}; ///< what enclosing launchers say, each as a phrase
};

namespace detail {

[[noreturn]] inline void refuse_start(const std::string& sentence) {
  throw error(exit_code::mismatch, sentence);
}

/// Reads starts off one environment.
class start_reader {
public:
  start_reader(const environment& of, mpi_library mpi, std::string host)
      : of_(of), mpi_(mpi), host_(std::move(host)) {}

  /// Returns the start. A fault of the variables is a sentence of it (refused), since a rank that
  /// knows its number may let rank 0 say it.
  process_start read() const {
    const bool present[] = {
        of_.has("RANK") && of_.has("WORLD_SIZE") && of_.has("LOCAL_RANK"),
        of_.has("OMPI_COMM_WORLD_RANK") && of_.has("OMPI_COMM_WORLD_SIZE"),
        of_.has("PMI_RANK") && of_.has("PMI_SIZE") && !pmi_of_srun(),
        started_by_srun(),
        of_.has("PET_NNODES") || of_.has("PET_NPROC_PER_NODE"),
    };
    void (start_reader::*const readers[])(process_start&)
        const = {&start_reader::of_torchrun, &start_reader::of_open_mpi, &start_reader::of_mpich,
                 &start_reader::of_srun, &start_reader::of_node};
    const char* const says[][3] = {
        {"torchrun", "RANK", "WORLD_SIZE"},
        {"mpirun of OpenMPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"mpirun of MPICH", "PMI_RANK", "PMI_SIZE"},
        {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
        {"the operator that started the pod", "PET_NODE_RANK", "PET_NNODES"}};
    process_start start;
    for (unsigned i = 0; i < std::size(present); ++i) {
      if (!present[i]) continue;
      if (start.by != started_by::nobody) {
        start.outer.push_back(std::string(says[i][0]) + ": " + said(says[i][1]) + ", " +
                              said(says[i][2]));
        continue;
      }
      start.by = static_cast<started_by>(i + 1);
      try {
        (this->*readers[i])(start);
      } catch (const error& e) {
        start.refused = e.what();
      }
    }
    if (start.by == started_by::nobody) start.refused = half_told();
    return start;
  }

private:
  bool started_by_srun() const {
    return of_.has("SLURM_PROCID") && of_.has("SLURM_STEP_ID") && of_.has("SLURM_STEP_NUM_TASKS");
  }
  /// Returns whether srun --mpi=pmi2 has set PMI_RANK: it is the number of the task.
  bool pmi_of_srun() const {
    return started_by_srun() && of_.text("PMI_RANK") == of_.text("SLURM_PROCID") &&
           of_.text("PMI_SIZE") == of_.text("SLURM_STEP_NUM_TASKS");
  }
  std::string said(const char* name) const {
    return std::string(name) + (of_.has(name) ? " " + std::string(of_.text(name)) : " not set");
  }
  /// Throws for a number that is not below another one.
  void require_below(const char* name, const char* bound) const {
    if (of_.require_number(name) >= of_.require_number(bound))
      refuse_start(said(name) + " is not below " + said(bound) +
                   ": set both as the launcher does, or neither");
  }
  int number_or(const char* name, int otherwise) const {
    return of_.has(name) ? of_.require_number(name) : otherwise;
  }

  /// Has TCP connect the ranks of a start, at the master that variables name.
  void connect_by_tcp(process_start& s, int port) const {
    s.over = connected_by::tcp;
    if (of_.has("MASTER_ADDR")) s.master = of_.text("MASTER_ADDR");
    if (of_.has("MEGACPP_RENDEZVOUS_FOLDER")) {
      s.meets = meeting_place::folder;
      s.place = of_.text("MEGACPP_RENDEZVOUS_FOLDER");
    } else {
      s.meets = meeting_place::first_rank;
      s.port = number_or("MASTER_PORT", port);
      if (s.master.empty())
        refuse_start(std::string(name_of(s.by)) + " has started " + std::to_string(s.size) +
                     " processes, and nothing tells them where rank 0 is: set MASTER_ADDR to its "
                     "host, or MEGACPP_RENDEZVOUS_FOLDER to a folder that all see");
      if (s.port == 0 || s.port > 65535)
        refuse_start(said("MASTER_PORT") + " is no port: give one from 1 to 65535");
    }
  }

  void of_torchrun(process_start& s) const {
    require_below("RANK", "WORLD_SIZE");
    s.rank = of_.require_number("RANK"), s.size = of_.require_number("WORLD_SIZE");
    s.local_rank = of_.require_number("LOCAL_RANK");
    if (of_.has("LOCAL_WORLD_SIZE")) {
      require_below("LOCAL_RANK", "LOCAL_WORLD_SIZE");
      s.local_size = of_.require_number("LOCAL_WORLD_SIZE");
      if (s.local_size > s.size)
        refuse_start(said("LOCAL_WORLD_SIZE") + " is above " + said("WORLD_SIZE") +
                     ": set both as the launcher does");
    }
    s.node = number_or("GROUP_RANK", -1), s.nodes = number_or("GROUP_WORLD_SIZE", 0);
    s.job = of_.text("TORCHELASTIC_RUN_ID");
    s.restarts = number_or("TORCHELASTIC_RESTART_COUNT", 0);
    if (s.size == 1) return;
    connect_by_tcp(s, 29500);
    s.by_node = of_.has("MEGACPP_STARTED_BY_NODE");
    s.listener = number_or("MEGACPP_RENDEZVOUS_LISTENER", -1); // start_ranks_of_node sets it
    if (s.meets == meeting_place::first_rank && of_.text("TORCHELASTIC_USE_AGENT_STORE") == "True")
      s.meets = meeting_place::agent_store;
  }
  void of_open_mpi(process_start& s) const {
    require_below("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE");
    s.rank = of_.require_number("OMPI_COMM_WORLD_RANK");
    s.size = of_.require_number("OMPI_COMM_WORLD_SIZE");
    s.local_rank = number_or("OMPI_COMM_WORLD_LOCAL_RANK", -1);
    s.local_size = number_or("OMPI_COMM_WORLD_LOCAL_SIZE", 0);
    s.job = of_.text("PMIX_NAMESPACE");
    connect_by_mpi(s, mpi_library::open_mpi);
  }
  void of_mpich(process_start& s) const {
    require_below("PMI_RANK", "PMI_SIZE");
    s.rank = of_.require_number("PMI_RANK"), s.size = of_.require_number("PMI_SIZE");
    s.local_rank = number_or("MPI_LOCALRANKID", -1);
    s.local_size = number_or("MPI_LOCALNRANKS", 0);
    connect_by_mpi(s, mpi_library::mpich);
  }
  void connect_by_mpi(process_start& s, mpi_library launcher) const {
    if (s.size == 1) return;
    if (mpi_ == launcher) {
      s.over = connected_by::mpi;
      return;
    }
    if (!of_.has("MASTER_ADDR") && !of_.has("MEGACPP_RENDEZVOUS_FOLDER"))
      refuse_start("mpirun has started " + std::to_string(s.size) +
                   " processes, and this program is built " +
                   (mpi_ == mpi_library::none ? "without MPI" : "with another MPI") +
                   ": tell the processes the host of rank 0 by MASTER_ADDR (mpirun -x MASTER_ADDR, "
                   "or -genv), build the program where that MPI is (on Debian or Ubuntu, apt "
                   "install libopenmpi-dev), or start one process with --ranks " +
                   std::to_string(s.size));
    connect_by_tcp(s, 29500);
  }
  void of_srun(process_start& s) const {
    require_below("SLURM_PROCID", "SLURM_STEP_NUM_TASKS");
    s.rank = of_.require_number("SLURM_PROCID");
    s.size = of_.require_number("SLURM_STEP_NUM_TASKS");
    s.local_rank = number_or("SLURM_LOCALID", -1);
    s.node = number_or("SLURM_NODEID", -1), s.nodes = number_or("SLURM_STEP_NUM_NODES", 0);
    s.local_size = slurm_ranks_of_node(of_.text("SLURM_STEP_TASKS_PER_NODE"), std::max(0, s.node));
    s.job = std::string(of_.text("SLURM_JOB_ID")) + "." + std::string(of_.text("SLURM_STEP_ID"));
    s.restarts = number_or("SLURM_RESTART_COUNT", 0);
    if (s.size == 1) return;
    const bool mpi_connects =
        (mpi_ == mpi_library::open_mpi && of_.has("PMIX_RANK")) ||
        (mpi_ == mpi_library::mpich && (of_.has("PMIX_RANK") || of_.has("PMI_RANK")));
    if (mpi_connects) {
      s.over = connected_by::mpi;
      return;
    }
    s.master = first_slurm_host(of_.text("SLURM_STEP_NODELIST"));
    connect_by_tcp(s, 61000 + number_or("SLURM_JOB_ID", 0) % 4536);
  }

  void of_node(process_start& s) const {
    const std::string_view nodes = of_.text("PET_NNODES"), backend = of_.text("PET_RDZV_BACKEND");
    const char* const remedy =
        ": drop elasticPolicy from the job, or start the program by "
        "torchrun --no-python, which this image needs then";
    if (!backend.empty() && backend != "static")
      refuse_start(said("PET_RDZV_BACKEND") + " asks for a rendezvous of torchrun's" + remedy);
    const std::size_t range = nodes.find(':');
    if (range != std::string_view::npos && nodes.substr(0, range) != nodes.substr(range + 1))
      refuse_start(said("PET_NNODES") +
                   " lets the number of nodes change, which only torchrun can follow" + remedy);
    s.nodes = 1;
    if (!nodes.empty()) {
      s.nodes = whole_number(nodes.substr(0, range)).value_or(0);
      if (s.nodes < 1 || s.nodes > 1 << 16)
        refuse_start(said("PET_NNODES") + " is no number of nodes: give one, up to 65536");
    }
    s.node = s.nodes == 1 ? 0 : node_number(s.nodes);
    s.per_node = of_.has("PET_NPROC_PER_NODE") ? of_.text("PET_NPROC_PER_NODE") : "1";
    if (s.per_node == "cpu") s.per_node = "auto";
    const int ranks = whole_number(s.per_node).value_or(0);
    if (s.per_node != "auto" && s.per_node != "gpu" && (ranks < 1 || ranks > 4096))
      refuse_start(said("PET_NPROC_PER_NODE") +
                   " is no number of ranks: give one from 1 to 4096, auto, or gpu");
    s.job = of_.text("PET_RDZV_ID");
    s.meets = meeting_place::first_rank;
    s.port = 29500;
    if (s.nodes == 1) {
      s.master = "127.0.0.1";
      return;
    }
    const std::string_view endpoint = of_.text("PET_RDZV_ENDPOINT");
    for (const char* const name : {"PET_MASTER_ADDR", "MASTER_ADDR"})
      if (s.master.empty()) s.master = of_.text(name);
    if (s.master.empty()) s.master = host_of(endpoint);
    s.port = port_of(endpoint).value_or(s.port);
    s.port = number_or("PET_MASTER_PORT", number_or("MASTER_PORT", s.port));
    if (s.master.empty())
      refuse_start(
          said("PET_NNODES") +
          " nodes are to meet, and nothing tells where: set PET_MASTER_ADDR to the host of "
          "node 0, as TrainJob does, and PyTorchJob where it has a Master");
  }
  /// Returns the host and the port of an endpoint such as `node-0:29400` or `[fd00::1]:29400`.
  static std::string_view host_of(std::string_view endpoint) {
    return endpoint.substr(0, endpoint.ends_with(']') ? endpoint.size() : endpoint.rfind(':'));
  }
  static std::optional<int> port_of(std::string_view endpoint) {
    const std::size_t host = host_of(endpoint).size();
    return host < endpoint.size() ? whole_number(endpoint.substr(host + 1)) : std::nullopt;
  }
  /// Returns the number of this node, of so many: of a variable, or the number at the end of the
  /// host's name, as pods have it.
  int node_number(int nodes) const {
    for (const char* const name : {"PET_NODE_RANK", "JOB_COMPLETION_INDEX"}) {
      if (!of_.has(name)) continue;
      const int n = of_.require_number(name);
      if (n >= nodes)
        refuse_start(said(name) + " is not below " + said("PET_NNODES") +
                     ": set both as the job's operator does");
      return n;
    }
    const std::size_t at = host_.rfind('-');
    int n = -1;
    if (at != std::string::npos)
      n = whole_number(std::string_view(host_).substr(at + 1)).value_or(-1);
    if (n < 0 || n >= nodes)
      refuse_start(
          "this is one of " + std::to_string(nodes) +
          " nodes, and nothing tells which: PET_NODE_RANK and JOB_COMPLETION_INDEX are not "
          "set, and the host's name, " +
          host_ + ", does not end in - and a number below " + std::to_string(nodes) +
          "; set PET_NODE_RANK");
    return n;
  }

  /// Returns a sentence about a launcher that has told only half of what a rank needs; "" if none
  /// has.
  std::string half_told() const {
    if (!of_.has("RANK")) return "";
    const bool several =
        of_.has("WORLD_SIZE") ? of_.number("WORLD_SIZE") != 1 : of_.number("RANK") != 0;
    if (!several) return "";
    return said("RANK") + " and " + said("WORLD_SIZE") +
           (of_.has("WORLD_SIZE") ? " are there, and " + said("LOCAL_RANK") : "") +
           ": a rank needs all three, as torchrun sets them; start the ranks by torchrun, srun or "
           "mpirun, or unset RANK";
  }

  const environment& of_;
  mpi_library mpi_;
  std::string host_;
};

} // namespace detail

/// Returns the name of this machine; "" if it has none.
inline std::string host_name() {
  char name[256]{};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

/// Reads how a process was started that is built with `mpi`, on the machine `host`.
inline process_start start_of_process(const environment& of, mpi_library mpi,
                                      const std::string& host) {
  return detail::start_reader(of, mpi, host).read();
}

/// Returns this process's number among the ranks that were started, and how many these are, before
/// anybody is connected: 0 of 1 if nobody has told.
inline std::pair<int, int> announced_rank() {
  const process_start s = start_of_process(environment(), mpi_library::open_mpi, "");
  return {s.rank, s.size};
}

/// A variable of the environment that says that this process is one of several.
struct promised_world {
  const char* variable = "";
  int size = 1;
};

/// Returns a variable that promises several processes to a process that is `by` nobody, or by a
/// launcher that has started one alone. A script of Slurm that no srun has started has some; so
/// have processes of other launchers.
inline promised_world unconnected_world(const environment& of, started_by by) {
  if (by == started_by::open_mpi || by == started_by::mpich || by == started_by::node) return {};
  for (const char* const variable :
       {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "OMPI_COMM_WORLD_SIZE",
        "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "HOROVOD_SIZE", "FLUX_JOB_SIZE", "JSM_NAMESPACE_SIZE",
        "JAX_NUM_PROCESSES"}) {
    const bool told_by_srun =
        by == started_by::srun && std::string_view(variable).starts_with("SLURM_");
    if (const std::optional<int> size = of.number(variable); size && *size > 1 && !told_by_srun)
      return {variable, *size};
  }
  return {};
}

} // namespace mc
