// How a process was started, by the variables that launchers set, nested ones too; lists of Slurm.
#define BOOST_TEST_MODULE process_start
#include <megacpp/join/process_start.hpp>

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

using namespace mc;

namespace {

using variables = std::vector<environment::variable>;

/// Returns the variables of a text such as "RANK=0 WORLD_SIZE=4".
variables v(std::string_view text) {
  variables all;
  while (!text.empty()) {
    const std::string_view one = text.substr(0, text.find(' '));
    const std::size_t equals = one.find('=');
    all.emplace_back(one.substr(0, equals), one.substr(equals + 1));
    text.remove_prefix(std::min(text.size(), one.size() + 1));
  }
  return all;
}
variables with(variables a, const variables& more) {
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

/// Returns a start as the table below has it.
std::string text_of(const process_start& s) {
  if (!s.refused.empty()) return "refused: " + s.refused;
  const std::string at = s.master + ":" + std::to_string(s.port);
  if (s.by == started_by::nobody) return "nobody";
  if (s.by == started_by::node)
    return "node " + std::to_string(s.node) + " of " + std::to_string(s.nodes) + " starts " +
           s.per_node + " at " + at;
  const char* const names[] = {"", "torchrun", "open_mpi", "mpich", "srun"};
  std::string text = names[static_cast<int>(s.by)];
  text += " " + std::to_string(s.rank) + " of " + std::to_string(s.size);
  if (s.local_rank >= 0) text += ", local " + std::to_string(s.local_rank);
  if (s.over == connected_by::tcp) text += " by TCP";
  if (s.over == connected_by::mpi) text += " by MPI";
  if (s.meets == meeting_place::folder) text += " in a folder";
  if (s.meets == meeting_place::first_rank) text += " at " + at;
  if (s.meets == meeting_place::agent_store) text += " at the store " + at;
  return s.outer.empty() ? text : text + ", within " + std::to_string(s.outer.size());
}

// What launchers set, as they were seen or as their sources say.
const variables of_torchrun =
    v("RANK=3 WORLD_SIZE=4 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 GROUP_RANK=1 GROUP_WORLD_SIZE=2 "
      "ROLE_RANK=3 MASTER_ADDR=node-0 MASTER_PORT=29400 TORCHELASTIC_RUN_ID=job-1 "
      "TORCHELASTIC_RESTART_COUNT=2 TORCHELASTIC_MAX_RESTARTS=3 TORCHELASTIC_USE_AGENT_STORE=True");
const variables of_open_mpi =
    v("OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 "
      "OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=1 PMIX_NAMESPACE=123");
const variables hydra = v("PMI_RANK=1 PMI_SIZE=3 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=3");
const variables batch =
    v("SLURM_JOB_ID=77 SLURM_NTASKS=4 SLURM_NPROCS=4 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "
      "SLURM_JOB_NODELIST=gpu[03-04]");
const variables step =
    v("SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_PROCID=2 SLURM_NTASKS=4 SLURM_STEP_NUM_TASKS=4 "
      "SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0 SLURM_NODEID=1 SLURM_STEP_NODELIST=gpu[03-04] "
      "SLURM_STEP_TASKS_PER_NODE=2(x2)");
const variables pmi2_step = with(step, v("PMI_RANK=2 PMI_SIZE=4 PMI_FD=9"));
const variables pmix_step = with(step, v("PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.77.0"));
const variables pytorchjob =
    v("PYTHONUNBUFFERED=1 MASTER_ADDR=job-master-0 MASTER_PORT=23456 PET_MASTER_ADDR=job-master-0 "
      "PET_MASTER_PORT=23456 WORLD_SIZE=2 RANK=1 PET_NODE_RANK=1 PET_NPROC_PER_NODE=auto "
      "PET_NNODES=2");
const variables elastic =
    v("PET_RDZV_ENDPOINT=job-worker-0:23456 PET_RDZV_BACKEND=c10d PET_NNODES=1:4 "
      "PET_NPROC_PER_NODE=8 PET_MAX_RESTARTS=100");
const variables trainjob =
    v("PET_NNODES=2 PET_NPROC_PER_NODE=8 PET_NODE_RANK=1 PET_MASTER_ADDR=job-node-0-0.job "
      "PET_MASTER_PORT=29500");

/// A start: what it is, its variables, and what is found. Of a refusal a part is expected.
struct row {
  const char* what;
  variables given;
  const char* found;
  mpi_library mpi = mpi_library::open_mpi;
  const char* host = "worker-7";
};
const std::vector<row> rows{
    {"nothing", {}, "nobody"},
    {"a shell with an empty RANK", v("RANK= WORLD_SIZE="), "nobody"},
    {"torchrun", of_torchrun, "torchrun 3 of 4, local 1 by TCP at the store node-0:29400"},
    {"torchrun whose agent has no store",
     with(v("TORCHELASTIC_USE_AGENT_STORE=False"), of_torchrun),
     "torchrun 3 of 4, local 1 by TCP at node-0:29400"},
    {"torchrun of one rank", v("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1"),
     "torchrun 0 of 1, local 0"},
    {"hyperpodrun, whose agent has no store",
     v("RANK=9 WORLD_SIZE=16 LOCAL_RANK=1 LOCAL_WORLD_SIZE=8 JOB_RESTART_COUNT=0 "
       "MASTER_ADDR=10.0.0.1 MASTER_PORT=29500"),
     "torchrun 9 of 16, local 1 by TCP at 10.0.0.1:29500"},
    {"three variables by hand, and no port", v("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=::1"),
     "torchrun 0 of 2, local 0 by TCP at ::1:29500"},
    {"a folder to meet in", v("RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MEGACPP_RENDEZVOUS_FOLDER=/fsx/m"),
     "torchrun 0 of 2, local 0 by TCP in a folder"},
    {"a folder to meet in, and an agent with a store",
     with(v("MEGACPP_RENDEZVOUS_FOLDER=/fsx/m"), of_torchrun),
     "torchrun 3 of 4, local 1 by TCP in a folder"},
    {"enroot's hook in a step of srun",
     with(pmix_step, v("MASTER_ADDR=gpu03 MASTER_PORT=61077 WORLD_SIZE=4 RANK=2 LOCAL_RANK=0")),
     "torchrun 2 of 4, local 0 by TCP at gpu03:61077, within 1"},
    {"srun that starts torchrun once a node", with(step, of_torchrun),
     "torchrun 3 of 4, local 1 by TCP at the store node-0:29400, within 1"},
    {"torchrun in the pod of a PyTorchJob",
     with(v("RANK=5 WORLD_SIZE=16 LOCAL_RANK=5 LOCAL_WORLD_SIZE=8 "
            "TORCHELASTIC_USE_AGENT_STORE=True"),
          pytorchjob),
     "torchrun 5 of 16, local 5 by TCP at the store job-master-0:23456, within 1"},
    {"mpirun of OpenMPI", of_open_mpi, "open_mpi 1 of 2, local 1 by MPI"},
    {"mpirun of one process", v("OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1"),
     "open_mpi 0 of 1"},
    {"mpirun in an allocation of Slurm", with(of_open_mpi, batch),
     "open_mpi 1 of 2, local 1 by MPI"},
    {"mpirun whose daemons srun has started", with(of_open_mpi, step),
     "open_mpi 1 of 2, local 1 by MPI, within 1"},
    {"mpirun in a pod, which has RANK and WORLD_SIZE of the node", with(of_open_mpi, pytorchjob),
     "open_mpi 1 of 2, local 1 by MPI, within 1"},
    {"mpirun, and a program without MPI, with a master",
     with(of_open_mpi, v("MASTER_ADDR=10.1.2.3")),
     "open_mpi 1 of 2, local 1 by TCP at 10.1.2.3:29500", mpi_library::none},
    {"mpirun of MPICH, and a program with it", hydra, "mpich 1 of 3, local 1 by MPI",
     mpi_library::mpich},
    {"mpirun of MPICH whose daemons srun has started", with(v("PMI_RANK=2 PMI_SIZE=8"), step),
     "mpich 2 of 8 by MPI, within 1", mpi_library::mpich},
    {"mpirun of MPICH, and a program of OpenMPI, with a master",
     with(hydra, v("MASTER_ADDR=h MASTER_PORT=1234")), "mpich 1 of 3, local 1 by TCP at h:1234"},
    {"srun with PMIx", pmix_step, "srun 2 of 4, local 0 by MPI"},
    {"srun with PMIx, and a program without MPI", pmix_step,
     "srun 2 of 4, local 0 by TCP at gpu03:61077", mpi_library::none},
    {"srun with PMI2, and a program of OpenMPI", pmi2_step,
     "srun 2 of 4, local 0 by TCP at gpu03:61077"},
    {"srun with PMI2, and a program of MPICH", pmi2_step, "srun 2 of 4, local 0 by MPI",
     mpi_library::mpich},
    {"srun with neither", step, "srun 2 of 4, local 0 by TCP at gpu03:61077"},
    {"srun with a master that the script chose",
     with(step, v("MASTER_ADDR=10.9.9.9 MASTER_PORT=5000")),
     "srun 2 of 4, local 0 by TCP at 10.9.9.9:5000"},
    {"a script of sbatch, which srun has not started", batch, "nobody"},
    {"PyTorchJob without torchrun", pytorchjob, "node 1 of 2 starts auto at job-master-0:23456",
     mpi_library::open_mpi, "job-worker-0"},
    {"TrainJob without torchrun", trainjob, "node 1 of 2 starts 8 at job-node-0-0.job:29500",
     mpi_library::open_mpi, "job-node-0-1"},
    {"TrainJob, in an indexed job and with a master of the image's own",
     with(v("JOB_COMPLETION_INDEX=0 MASTER_ADDR=m MASTER_PORT=1"), trainjob),
     "node 1 of 2 starts 8 at job-node-0-0.job:29500"},
    {"a node by its index in an indexed job",
     v("PET_NNODES=3 PET_NPROC_PER_NODE=2 JOB_COMPLETION_INDEX=2 PET_MASTER_ADDR=m"),
     "node 2 of 3 starts 2 at m:29500", mpi_library::open_mpi, "x-0"},
    {"a node by its host's name, and as many nodes at least as at most",
     v("PET_NNODES=4:4 PET_RDZV_ENDPOINT=[fd00::1]:29400"),
     "node 3 of 4 starts 1 at [fd00::1]:29400", mpi_library::open_mpi, "job-worker-3"},
    {"one node", v("PET_NNODES=1 PET_NPROC_PER_NODE=cpu"),
     "node 0 of 1 starts auto at 127.0.0.1:29500", mpi_library::open_mpi, "x"},
    {"a rank beyond the world", v("RANK=4 WORLD_SIZE=4 LOCAL_RANK=0 MASTER_ADDR=m"),
     "refused: RANK 4 is not below WORLD_SIZE 4"},
    {"a rank beyond its machine", with(v("LOCAL_RANK=2"), of_torchrun),
     "refused: LOCAL_RANK 2 is not below LOCAL_WORLD_SIZE 2"},
    {"a machine beyond the world", with(v("LOCAL_WORLD_SIZE=8"), of_torchrun),
     "refused: LOCAL_WORLD_SIZE 8 is above WORLD_SIZE 4"},
    {"a rank that is no number", with(v("RANK=one"), of_torchrun),
     "refused: RANK is one: give a whole number"},
    {"no LOCAL_RANK", v("RANK=1 WORLD_SIZE=4 MASTER_ADDR=m"),
     "refused: LOCAL_RANK not set: a rank needs all three"},
    {"no WORLD_SIZE", v("RANK=1 LOCAL_RANK=1"), "refused: RANK 1 and WORLD_SIZE not set"},
    {"no master", v("RANK=1 WORLD_SIZE=4 LOCAL_RANK=1"),
     "refused: nothing tells them where rank 0 is"},
    {"a port that is none", with(v("MASTER_PORT=70000 TORCHELASTIC_USE_AGENT_STORE="), of_torchrun),
     "refused: MASTER_PORT 70000 is no port"},
    {"port 0", with(v("MASTER_PORT=0 TORCHELASTIC_USE_AGENT_STORE="), of_torchrun),
     "refused: MASTER_PORT 0 is no port"},
    {"mpirun, and a program without MPI", of_open_mpi, "refused: this program is built without MPI",
     mpi_library::none},
    {"mpirun of MPICH, and a program of OpenMPI", hydra, "refused: is built with another MPI"},
    {"a task beyond the step", with(v("SLURM_PROCID=4"), step),
     "refused: SLURM_PROCID 4 is not below SLURM_STEP_NUM_TASKS 4"},
    {"elastic nodes", elastic,
     "refused: PET_RDZV_BACKEND c10d asks for a rendezvous of torchrun's: drop elasticPolicy"},
    {"etcd", v("PET_NNODES=2 PET_RDZV_BACKEND=etcd"), "refused: PET_RDZV_BACKEND etcd"},
    {"a range of nodes", v("PET_NNODES=2:4 PET_NODE_RANK=0"),
     "refused: PET_NNODES 2:4 lets the number of nodes change"},
    {"a node that nothing numbers", v("PET_NNODES=2 PET_MASTER_ADDR=m"),
     "refused: does not end in - and a number below 2", mpi_library::open_mpi, "host"},
    {"a node whose host's name has a number beyond the nodes", v("PET_NNODES=2 PET_MASTER_ADDR=m"),
     "refused: does not end in - and a number below 2", mpi_library::open_mpi, "job-worker-2"},
    {"a node beyond the nodes", v("PET_NNODES=2 PET_NODE_RANK=2"),
     "refused: PET_NODE_RANK 2 is not below PET_NNODES 2", mpi_library::open_mpi, "host"},
    {"nodes without a master", v("PET_NNODES=2 PET_NODE_RANK=1"), "refused: nothing tells where",
     mpi_library::open_mpi, "host"},
    {"more ranks than a node may have", v("PET_NPROC_PER_NODE=65536"),
     "refused: PET_NPROC_PER_NODE 65536 is no number of ranks", mpi_library::open_mpi, "host"},
    {"more nodes than there may be", v("PET_NNODES=2147483647 PET_NODE_RANK=1"),
     "refused: PET_NNODES 2147483647 is no number of nodes", mpi_library::open_mpi, "host"},
    {"a rank on each GPU", with(v("PET_NPROC_PER_NODE=gpu"), trainjob),
     "node 1 of 2 starts gpu at job-node-0-0.job:29500", mpi_library::open_mpi, "host"},
    {"no ranks on a node", v("PET_NPROC_PER_NODE=0"),
     "refused: PET_NPROC_PER_NODE 0 is no number of ranks", mpi_library::open_mpi, "host"},
};

} // namespace

BOOST_AUTO_TEST_CASE(starts) {
  BOOST_TEST(rows.size() >= 25);
  for (const row& r : rows) {
    const std::string found = text_of(start_of_process(environment(r.given), r.mpi, r.host));
    const bool refused = std::string_view(r.found).starts_with("refused: ");
    const bool right =
        refused ? found.starts_with("refused: ") && found.find(r.found + 9) != std::string::npos
                : found == r.found;
    BOOST_TEST(right, r.what << ": " << found << ", and not " << r.found);
  }
}

BOOST_AUTO_TEST_CASE(what_tells_ranks_of_one_run_apart) {
  const process_start s = start_of_process(environment(of_torchrun), mpi_library::none, "");
  BOOST_TEST(s.job == "job-1");
  BOOST_TEST(s.restarts == 2);
  BOOST_TEST(s.local_size == 2);
  BOOST_TEST(start_of_process(environment(step), mpi_library::none, "").job == "77.0");
  BOOST_TEST(start_of_process(environment(step), mpi_library::none, "").local_size == 2);
  const variables uneven =
      with(v("SLURM_STEP_TASKS_PER_NODE=3,1 SLURM_RESTART_COUNT=4"), step); // it is on node 1
  const process_start task = start_of_process(environment(uneven), mpi_library::none, "");
  BOOST_TEST(task.local_size == 1);
  BOOST_TEST(task.restarts == 4);
}

BOOST_AUTO_TEST_CASE(worlds_that_nobody_connects) {
  const auto world = [](const variables& v, started_by by) {
    return unconnected_world(environment(v), by).size;
  };
  BOOST_TEST(world(batch, started_by::nobody) == 4);
  BOOST_TEST(world(v("WORLD_SIZE=8"), started_by::nobody) == 8);
  BOOST_TEST(world(v("WORLD_SIZE=1"), started_by::nobody) == 1);
  BOOST_TEST(world(v("JAX_NUM_PROCESSES=3"), started_by::nobody) == 3);
  BOOST_TEST(world(of_open_mpi, started_by::open_mpi) == 1);
  BOOST_TEST(world(step, started_by::srun) == 1); // a step of one task, of a job of four
  // A rank of one, which torchrun has started in each of four processes of mpirun.
  BOOST_TEST(world(with(v("WORLD_SIZE=1"), of_open_mpi), started_by::torchrun) == 2);
}

BOOST_AUTO_TEST_CASE(lists_of_slurm) {
  BOOST_TEST(first_slurm_host("gpu03") == "gpu03");
  BOOST_TEST(first_slurm_host("gpu[03-07,12]b,login") == "gpu03b");
  BOOST_TEST(first_slurm_host("a[1,3]x[08-09],b") == "a1x08");
  BOOST_TEST(first_slurm_host("login,gpu[1-2]") == "login");
  BOOST_TEST(first_slurm_host("") == "");
  BOOST_TEST(first_slurm_host("gpu[") == "");
  BOOST_TEST(first_slurm_host("gpu]") == "");
  BOOST_TEST(first_slurm_host("gpu[]") == "");
  const auto tasks = [](const char* list, int node) { return slurm_ranks_of_node(list, node); };
  BOOST_TEST(tasks("8(x2),4", 0) == 8);
  BOOST_TEST(tasks("8(x2),4", 1) == 8);
  BOOST_TEST(tasks("8(x2),4", 2) == 4);
  BOOST_TEST(tasks("8(x2),4", 3) == 0);
  BOOST_TEST(tasks("1", 0) == 1);
  BOOST_TEST(tasks("x", 0) == 0);
  BOOST_TEST(tasks("8(x", 0) == 0);
  BOOST_TEST(tasks("8(x23", 0) == 0);
  BOOST_TEST(tasks("", 0) == 0);
}
