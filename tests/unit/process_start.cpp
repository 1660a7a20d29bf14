// How a process was started, by the variables that launchers set, nested ones too; lists of Slurm.
#define BOOST_TEST_MODULE process_start
#include <megacpp/join/process_start.hpp>

#include <boost/test/unit_test.hpp>

#include <string>
#include <vector>

using namespace mc;

namespace {

using variables = std::vector<environment::variable>;

/// What is expected of a start. `refused`: words of the refusal; "" for a start that is none.
struct row {
  const char* what;
  variables given;
  started_by by = started_by::nobody;
  int rank = 0, size = 1, local_rank = -1;
  connected_by over = connected_by::nothing;
  meeting_place meets = meeting_place::none;
  const char* master = "";
  int port = 0;
  const char* refused = "";
  mpi_library mpi = mpi_library::open_mpi;
  const char* host = "worker-7";
  int node = -1, nodes = 0;
  const char* per_node = "";
  unsigned outer = 0;
};

variables with(variables a, const variables& more) {
  a.insert(a.end(), more.begin(), more.end());
  return a;
}

// What launchers set, as they were seen or as their sources say.
const variables of_torchrun{{"RANK", "3"},
                            {"WORLD_SIZE", "4"},
                            {"LOCAL_RANK", "1"},
                            {"LOCAL_WORLD_SIZE", "2"},
                            {"GROUP_RANK", "1"},
                            {"GROUP_WORLD_SIZE", "2"},
                            {"ROLE_RANK", "3"},
                            {"MASTER_ADDR", "node-0"},
                            {"MASTER_PORT", "29400"},
                            {"TORCHELASTIC_RUN_ID", "job-1"},
                            {"TORCHELASTIC_RESTART_COUNT", "2"},
                            {"TORCHELASTIC_MAX_RESTARTS", "3"},
                            {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
const variables of_open_mpi{{"OMPI_COMM_WORLD_RANK", "1"},
                            {"OMPI_COMM_WORLD_SIZE", "2"},
                            {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                            {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                            {"PMIX_RANK", "1"},
                            {"PMIX_NAMESPACE", "123"}};
const variables hydra{
    {"PMI_RANK", "1"}, {"PMI_SIZE", "3"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "3"}};
const variables batch{{"SLURM_JOB_ID", "77"},
                      {"SLURM_NTASKS", "4"},
                      {"SLURM_NPROCS", "4"},
                      {"SLURM_PROCID", "0"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NODEID", "0"},
                      {"SLURM_JOB_NODELIST", "gpu[03-04]"}};
const variables step{{"SLURM_JOB_ID", "77"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_PROCID", "2"},
                     {"SLURM_NTASKS", "4"},
                     {"SLURM_STEP_NUM_TASKS", "4"},
                     {"SLURM_STEP_NUM_NODES", "2"},
                     {"SLURM_LOCALID", "0"},
                     {"SLURM_NODEID", "1"},
                     {"SLURM_STEP_NODELIST", "gpu[03-04]"},
                     {"SLURM_STEP_TASKS_PER_NODE", "2(x2)"}};
const variables pmi2_step = with(step, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"PMI_FD", "9"}});
const variables pmix_step = with(step, {{"PMIX_RANK", "2"}, {"PMIX_NAMESPACE", "slurm.pmix.77.0"}});
const variables pytorchjob{{"PYTHONUNBUFFERED", "1"},
                           {"MASTER_ADDR", "job-master-0"},
                           {"MASTER_PORT", "23456"},
                           {"PET_MASTER_ADDR", "job-master-0"},
                           {"PET_MASTER_PORT", "23456"},
                           {"WORLD_SIZE", "2"},
                           {"RANK", "1"},
                           {"PET_NODE_RANK", "1"},
                           {"PET_NPROC_PER_NODE", "auto"},
                           {"PET_NNODES", "2"}};
const variables elastic{{"PET_RDZV_ENDPOINT", "job-worker-0:23456"},
                        {"PET_RDZV_BACKEND", "c10d"},
                        {"PET_NNODES", "1:4"},
                        {"PET_NPROC_PER_NODE", "8"},
                        {"PET_MAX_RESTARTS", "100"}};
const variables trainjob{{"PET_NNODES", "2"},
                         {"PET_NPROC_PER_NODE", "8"},
                         {"PET_NODE_RANK", "1"},
                         {"PET_MASTER_ADDR", "job-node-0-0.job"},
                         {"PET_MASTER_PORT", "29500"}};

using enum started_by;
constexpr auto mpi = connected_by::mpi, tcp = connected_by::tcp;
constexpr auto none = meeting_place::none, first_rank = meeting_place::first_rank,
               agent = meeting_place::agent_store, folder = meeting_place::folder;
constexpr auto not_connected = connected_by::nothing;

const std::vector<row> rows{
    {"nothing", {}},
    {"a shell with an empty RANK", {{"RANK", ""}, {"WORLD_SIZE", ""}}},
    {"torchrun", of_torchrun, started_by::torchrun, 3, 4, 1, tcp, agent, "node-0", 29400},
    {"torchrun whose agent has no store",
     with({{"TORCHELASTIC_USE_AGENT_STORE", "False"}}, of_torchrun), started_by::torchrun, 3, 4, 1,
     tcp, first_rank, "node-0", 29400},
    {"torchrun of one rank",
     {{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "127.0.0.1"}},
     started_by::torchrun,
     0,
     1,
     0},
    {"hyperpodrun, whose agent has no store",
     {{"RANK", "9"},
      {"WORLD_SIZE", "16"},
      {"LOCAL_RANK", "1"},
      {"LOCAL_WORLD_SIZE", "8"},
      {"JOB_RESTART_COUNT", "0"},
      {"MASTER_ADDR", "10.0.0.1"},
      {"MASTER_PORT", "29500"}},
     started_by::torchrun,
     9,
     16,
     1,
     tcp,
     first_rank,
     "10.0.0.1",
     29500},
    {"three variables by hand, and no port",
     {{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "::1"}},
     started_by::torchrun,
     0,
     2,
     0,
     tcp,
     first_rank,
     "::1",
     29500},
    {"a folder to meet in",
     {{"RANK", "0"},
      {"WORLD_SIZE", "2"},
      {"LOCAL_RANK", "0"},
      {"MEGACPP_RENDEZVOUS_FOLDER", "/fsx/m"}},
     started_by::torchrun,
     0,
     2,
     0,
     tcp,
     folder},
    {"enroot's hook in a step of srun",
     with(pmix_step, {{"MASTER_ADDR", "gpu03"},
                      {"MASTER_PORT", "61077"},
                      {"WORLD_SIZE", "4"},
                      {"RANK", "2"},
                      {"LOCAL_RANK", "0"}}),
     started_by::torchrun, 2, 4, 0, tcp, first_rank, "gpu03", 61077, "", mpi_library::open_mpi,
     "worker-7", -1, 0, "", 1},
    {"srun that starts torchrun once a node", with(step, of_torchrun), started_by::torchrun, 3, 4,
     1, tcp, agent, "node-0", 29400, "", mpi_library::open_mpi, "worker-7", 1, 2, "", 1},
    {"torchrun in the pod of a PyTorchJob",
     with({{"RANK", "5"},
           {"WORLD_SIZE", "16"},
           {"LOCAL_RANK", "5"},
           {"LOCAL_WORLD_SIZE", "8"},
           {"TORCHELASTIC_USE_AGENT_STORE", "True"}},
          pytorchjob),
     started_by::torchrun, 5, 16, 5, tcp, agent, "job-master-0", 23456, "", mpi_library::open_mpi,
     "worker-7", -1, 0, "", 1},
    {"mpirun of OpenMPI", of_open_mpi, started_by::open_mpi, 1, 2, 1, mpi},
    {"mpirun of one process",
     {{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "1"}},
     started_by::open_mpi,
     0,
     1,
     -1},
    {"mpirun in an allocation of Slurm", with(of_open_mpi, batch), started_by::open_mpi, 1, 2, 1,
     mpi},
    {"mpirun whose daemons srun has started", with(of_open_mpi, step), started_by::open_mpi, 1, 2,
     1, mpi, none, "", 0, "", mpi_library::open_mpi, "worker-7", -1, 0, "", 1},
    {"mpirun in a pod, which has RANK and WORLD_SIZE of the node", with(of_open_mpi, pytorchjob),
     started_by::open_mpi, 1, 2, 1, mpi, none, "", 0, "", mpi_library::open_mpi, "worker-7", -1, 0,
     "", 1},
    {"mpirun, and a program without MPI, with a master",
     with(of_open_mpi, {{"MASTER_ADDR", "10.1.2.3"}}), started_by::open_mpi, 1, 2, 1, tcp,
     first_rank, "10.1.2.3", 29500, "", mpi_library::none},
    {"mpirun of MPICH, and a program with it", hydra, started_by::mpich, 1, 3, 1, mpi, none, "", 0,
     "", mpi_library::mpich},
    {"mpirun of MPICH, and a program of OpenMPI, with a master",
     with(hydra, {{"MASTER_ADDR", "h"}, {"MASTER_PORT", "1234"}}), started_by::mpich, 1, 3, 1, tcp,
     first_rank, "h", 1234},
    {"srun with PMIx", pmix_step, srun, 2, 4, 0, mpi},
    {"srun with PMIx, and a program without MPI", pmix_step, srun, 2, 4, 0, tcp, first_rank,
     "gpu03", 61077, "", mpi_library::none},
    {"srun with PMI2, and a program of OpenMPI", pmi2_step, srun, 2, 4, 0, tcp, first_rank, "gpu03",
     61077},
    {"srun with PMI2, and a program of MPICH", pmi2_step, srun, 2, 4, 0, mpi, none, "", 0, "",
     mpi_library::mpich},
    {"srun with neither", step, srun, 2, 4, 0, tcp, first_rank, "gpu03", 61077, "",
     mpi_library::open_mpi, "worker-7", 1, 2},
    {"srun with a master that the script chose",
     with(step, {{"MASTER_ADDR", "10.9.9.9"}, {"MASTER_PORT", "5000"}}), srun, 2, 4, 0, tcp,
     first_rank, "10.9.9.9", 5000},
    {"a script of sbatch, which srun has not started", batch},
    {"PyTorchJob without torchrun", pytorchjob, started_by::node, 0, 1, -1, not_connected,
     first_rank, "job-master-0", 23456, "", mpi_library::open_mpi, "job-worker-0", 1, 2, "auto"},
    {"TrainJob without torchrun", trainjob, started_by::node, 0, 1, -1, not_connected, first_rank,
     "job-node-0-0.job", 29500, "", mpi_library::open_mpi, "job-node-0-1", 1, 2, "8"},
    {"a node by its index in an indexed job",
     {{"PET_NNODES", "3"},
      {"PET_NPROC_PER_NODE", "2"},
      {"JOB_COMPLETION_INDEX", "2"},
      {"PET_MASTER_ADDR", "m"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     first_rank,
     "m",
     29500,
     "",
     mpi_library::open_mpi,
     "x-0",
     2,
     3,
     "2"},
    {"a node by its host's name, and as many nodes at least as at most",
     {{"PET_NNODES", "4:4"}, {"PET_RDZV_ENDPOINT", "[fd00::1]:29400"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     first_rank,
     "[fd00::1]",
     29500,
     "",
     mpi_library::open_mpi,
     "job-worker-3",
     3,
     4,
     "1"},
    {"one node",
     {{"PET_NNODES", "1"}, {"PET_NPROC_PER_NODE", "cpu"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     first_rank,
     "127.0.0.1",
     29500,
     "",
     mpi_library::open_mpi,
     "x",
     0,
     1,
     "auto"},

    {"a rank beyond the world",
     {{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "0"}, {"MASTER_ADDR", "m"}},
     started_by::torchrun,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "RANK 4 is not below WORLD_SIZE 4"},
    {"a rank beyond its machine", with({{"LOCAL_RANK", "2"}}, of_torchrun), started_by::torchrun, 3,
     4, 2, not_connected, none, "", 0, "LOCAL_RANK 2 is not below LOCAL_WORLD_SIZE 2"},
    {"a machine beyond the world", with({{"LOCAL_WORLD_SIZE", "8"}}, of_torchrun),
     started_by::torchrun, 3, 4, 1, not_connected, none, "", 0,
     "LOCAL_WORLD_SIZE 8 is above WORLD_SIZE 4"},
    {"a rank that is no number", with({{"RANK", "one"}}, of_torchrun), started_by::torchrun, 0, 1,
     -1, not_connected, none, "", 0, "RANK is one: give a whole number"},
    {"no LOCAL_RANK",
     {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "m"}},
     nobody,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "LOCAL_RANK not set: a rank needs all three"},
    {"no WORLD_SIZE",
     {{"RANK", "1"}, {"LOCAL_RANK", "1"}},
     nobody,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "RANK 1 and WORLD_SIZE not set"},
    {"no master",
     {{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}},
     started_by::torchrun,
     1,
     4,
     1,
     tcp,
     first_rank,
     "",
     29500,
     "nothing tells them where rank 0 is"},
    {"a port that is none",
     with({{"MASTER_PORT", "70000"}, {"TORCHELASTIC_USE_AGENT_STORE", ""}}, of_torchrun),
     started_by::torchrun, 3, 4, 1, tcp, first_rank, "node-0", 70000,
     "MASTER_PORT 70000 is no port"},
    {"mpirun, and a program without MPI", of_open_mpi, started_by::open_mpi, 1, 2, 1, not_connected,
     none, "", 0, "this program is built without MPI", mpi_library::none},
    {"mpirun of MPICH, and a program of OpenMPI", hydra, started_by::mpich, 1, 3, 1, not_connected,
     none, "", 0, "is built with another MPI"},
    {"a task beyond the step", with({{"SLURM_PROCID", "4"}}, step), srun, 0, 1, -1, not_connected,
     none, "", 0, "SLURM_PROCID 4 is not below SLURM_STEP_NUM_TASKS 4"},
    {"elastic nodes", elastic, started_by::node, 0, 1, -1, not_connected, none, "", 0,
     "PET_RDZV_BACKEND c10d asks for a rendezvous of torchrun's: drop elasticPolicy"},
    {"etcd",
     {{"PET_NNODES", "2"}, {"PET_RDZV_BACKEND", "etcd"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "PET_RDZV_BACKEND etcd"},
    {"a range of nodes",
     {{"PET_NNODES", "2:4"}, {"PET_NODE_RANK", "0"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "PET_NNODES 2:4 lets the number of nodes change"},
    {"a node that nothing numbers",
     {{"PET_NNODES", "2"}, {"PET_MASTER_ADDR", "m"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "does not end in - and a number below 2",
     mpi_library::open_mpi,
     "host",
     -1,
     2},
    {"a node beyond the nodes",
     {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "2"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "PET_NODE_RANK 2 is not below PET_NNODES 2",
     mpi_library::open_mpi,
     "host",
     -1,
     2},
    {"nodes without a master",
     {{"PET_NNODES", "2"}, {"PET_NODE_RANK", "1"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     first_rank,
     "",
     29500,
     "nothing tells where",
     mpi_library::open_mpi,
     "host",
     1,
     2,
     "1"},
    {"no ranks on a node",
     {{"PET_NPROC_PER_NODE", "0"}},
     started_by::node,
     0,
     1,
     -1,
     not_connected,
     none,
     "",
     0,
     "PET_NPROC_PER_NODE 0 is no number of ranks",
     mpi_library::open_mpi,
     "host",
     0,
     1,
     "0"},
};

} // namespace

BOOST_AUTO_TEST_CASE(starts) {
  BOOST_TEST(rows.size() >= 25);
  for (const row& r : rows) {
    BOOST_TEST_CONTEXT(r.what) {
      const process_start s = start_of_process(environment(r.given), r.mpi, r.host);
      BOOST_TEST((s.by == r.by));
      BOOST_TEST(s.rank == r.rank);
      BOOST_TEST(s.size == r.size);
      BOOST_TEST(s.local_rank == r.local_rank);
      BOOST_TEST((s.over == r.over));
      BOOST_TEST((s.meets == r.meets));
      BOOST_TEST(s.master == r.master);
      BOOST_TEST(s.port == r.port);
      BOOST_TEST(s.refused.find(r.refused) != std::string::npos, s.refused);
      BOOST_TEST(s.refused.empty() == std::string(r.refused).empty(), s.refused);
      if (r.node >= 0) BOOST_TEST(s.node == r.node);
      if (r.nodes > 0) BOOST_TEST(s.nodes == r.nodes);
      BOOST_TEST(s.per_node == r.per_node);
      if (r.outer > 0) BOOST_TEST(s.outer.size() == r.outer);
    }
  }
}

BOOST_AUTO_TEST_CASE(what_tells_ranks_of_one_run_apart) {
  const process_start s = start_of_process(environment(of_torchrun), mpi_library::none, "");
  BOOST_TEST(s.job == "job-1");
  BOOST_TEST(s.restarts == 2);
  BOOST_TEST(s.local_size == 2);
  BOOST_TEST(start_of_process(environment(step), mpi_library::none, "").job == "77.0");
  BOOST_TEST(start_of_process(environment(step), mpi_library::none, "").local_size == 2);
}

BOOST_AUTO_TEST_CASE(worlds_that_nobody_connects) {
  const auto world = [](const variables& v, started_by by) {
    return unconnected_world(environment(v), by).size;
  };
  BOOST_TEST(world(batch, nobody) == 4);
  BOOST_TEST(world({{"WORLD_SIZE", "8"}}, nobody) == 8);
  BOOST_TEST(world({{"WORLD_SIZE", "1"}}, nobody) == 1);
  BOOST_TEST(world({{"JAX_NUM_PROCESSES", "3"}}, nobody) == 3);
  BOOST_TEST(world(of_open_mpi, started_by::open_mpi) == 1);
  // A rank of one, which torchrun has started in each of four processes of mpirun.
  BOOST_TEST(world(with({{"WORLD_SIZE", "1"}}, of_open_mpi), started_by::torchrun) == 2);
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
  BOOST_TEST(tasks("", 0) == 0);
}
