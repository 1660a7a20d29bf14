// Processes keep the promises of every communicator (tests/communicators.hpp).
//
//   LAUNCHER mpi_communicators whole|cut FILE     FILE: memory that all ranks share
//   LAUNCHER mpi_communicators fault NAME         one fault of four ranks: processes.py looks at
//                                                 what is said
//
// LAUNCHER: mpirun -n N, or what sets the variables of torchrun, by which TCP connects the ranks.
// What is wrong stands on the standard error, and the exit code is 1.
#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/connect_ranks.hpp>
#include <megacpp/exec/cpu.hpp>
#include <megacpp/io/mapped_file.hpp>

#include <cstdio>
#include <cstdlib>
#include <new>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>
#include <communicators.hpp>

using namespace mc;
using namespace mc_test;

namespace {
std::int64_t allocations = 0; // of this library: MPI has its own ways
}
[[gnu::noinline]] void* operator new(std::size_t n) {
  ++allocations;
  if (void* const p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* p) noexcept { std::free(p); }
[[gnu::noinline]] void operator delete(void* p, std::size_t) noexcept { std::free(p); }

namespace {

// Sizes in the order of enum axis: dp, cp, tp, pp, edp, ep, etp.
const mesh meshes[] = {mesh({1, 1, 2, 1, 2, 1, 1}), mesh({2, 1, 2, 2, 1, 2, 2}),
                       mesh({3, 1, 2, 1, 1, 3, 2}), mesh({2, 2, 2, 1, 2, 4, 1}),
                       mesh({2, 2, 2, 1, 8, 1, 1})};

/// A step's exchanges, again and again: the first time reserves what the later ones use. TCP may take
/// a little more where a rank is later than ever before, and more has come that nobody asked for.
std::string no_memory_after_the_first(plane_of_rank& c, std::int64_t allowed) {
  constexpr std::int64_t n = 5000;
  const auto ranks = static_cast<std::size_t>(ranks_of(c.ranks()));
  std::vector<float> x(n * ranks), y(n * ranks), z(n), one(1);
  std::int64_t before = 0;
  for (int step = 0; step < 4; ++step) {
    if (step == 2) before = allocations;
    const ticket t[] = {
        c.start(exchange::all_reduce(everyone, dtype::f32, z.data(), z.data(), n)),
        c.start(exchange::all_reduce(everyone, dtype::f32, one.data(), one.data(), 1)),
        c.start(exchange::all_gather(everyone, dtype::f32, x.data(), y.data(), n)),
    };
    for (const ticket k : {t[2], t[0], t[1]}) c.wait(k);
    c.run(exchange::reduce_scatter(everyone, dtype::f32, x.data(), z.data(), n));
    c.run(exchange::all_to_all(axis::tp, dtype::f32, x.data(), y.data(), n));
  }
  const std::int64_t more = allocations - before;
  return more <= allowed ? "" : std::to_string(more) + " allocations after the second step";
}

int promises(connected_ranks& ranks, const char* shared, bool by_tcp) {
  const int file = ::open(shared, O_RDWR | O_CREAT, 0600);
  if (file < 0 || ::ftruncate(file, 4096) != 0) return std::perror(shared), 1;
  void* const memory = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (memory == MAP_FAILED) return std::perror(shared), 1;
  auto* const came = static_cast<std::atomic<int>*>(memory);
  int wrong = 0, run = 0;
  const auto check = [&](const char* what, const std::string& w) {
    if (w.empty()) return;
    std::fprintf(stderr, "rank %d of mesh %d: %s: %s\n", ranks.rank(), run, what,
                 w.substr(0, 400).c_str());
    ++wrong;
  };
  const machine_of_rank machine = ranks.machine();
  check("machine",
        machine.place == ranks.rank() && machine.ranks == ranks.size()
            ? ""
            : "place " + std::to_string(machine.place) + " of " + std::to_string(machine.ranks));
  for (const mesh& m : meshes) {
    ++run;
    if (ranks_of(m) != ranks.size()) {
      try {
        ranks.run(m, std::chrono::seconds(1), [](communicator&) {});
        check("a mesh of other ranks", "it runs");
      } catch (const error& e) {
        if (e.code() != exit_code::mismatch) check("a mesh of other ranks", e.what());
      }
      continue;
    }
    ranks.run(m, std::chrono::seconds(60), [&](communicator& c) {
      cpu device(std::unique_ptr<product_source>(), 1);
      const auto others = c.make_ranks(device);
      plane_of_rank hosts(c), on_lane(*others, device.main_lane());
      check("planes", both_planes(hosts, on_lane, false)); // while both have had as many exchanges
      for (plane_of_rank* const p : {&hosts, &on_lane}) {
        check("exchanges", every_exchange(*p));
        check("in flight", exchanges_in_flight(*p));
        check("many in flight", many_in_flight_over_one_group(*p));
        check("channels", channels(*p));
        check("any order", waited_for_in_any_order(*p));
        check("written over", written_over(*p));
        check("refusals", refusals_of(*p));
        check("memory", no_memory_after_the_first(*p, by_tcp ? 8 : 0));
        hosts.run(exchange::barrier(everyone));
        came[c.rank()].store(0);
        hosts.run(exchange::barrier(everyone));
        check("barriers", barriers(*p, came));
      }
      checked_if(true, c, [&](communicator& checks) {
        const auto checked = checks.make_ranks(device);
        plane_of_rank h(checks), r(*checked, device.main_lane());
        check("planes that check", both_planes(h, r, true));
        check("in flight, checked", exchanges_in_flight(r));
        check("any order, checked", waited_for_in_any_order(r));
        check("channels, checked", channels(r));
      });
    });
  }
  return wrong;
}

/// Four ranks, of which one does what the others do not expect. Rank 0 tells, and whoever began it.
void go_wrong(connected_ranks& ranks, const std::string& name) {
  // Groups over tp are ranks 0 and 1, and 2 and 3; over dp, 0 and 2, and 1 and 3.
  const mesh m({2, 1, 2, 1, 4, 1, 1});
  const source_line here(7, "mine.hpp");
  const auto later = [](int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); };
  std::vector<float> x(100'000), y(400'000);
  const axis_set everyone{axis::dp, axis::tp};
  const auto body = [&](communicator& c) {
    const int r = c.rank();
    const auto over_tp = exchange::barrier(axis::tp, here), over_dp = exchange::barrier(axis::dp);
    if (name == "late") { // 0 waits for 1, which waits for 3, which waits for 2
      if (r == 2) later(60'000);
      if (r == 3) later(400);
      c.run(r == 1 ? over_dp : over_tp);
    } else if (name == "gone") {
      if (r == 0 || r == 3) c.run(r == 0 ? over_dp : over_tp);
    } else if (name == "crossed") {
      c.run(r == 0 || r == 3 ? over_tp : over_dp);
    } else if (name == "throws") {
      const ticket t =
          c.start(exchange::all_reduce(everyone, dtype::f32, x.data(), x.data(), std::ssize(x)));
      if (r == 2) throw error(exit_code::data, "it has no data");
      c.wait(t);
    } else if (name == "count") {
      c.run(exchange::all_reduce(axis::tp, dtype::f32, x.data(), y.data(), r == 0 ? 3 : 4, here));
    } else if (name == "type") {
      c.run(
          exchange::all_reduce(axis::tp, r == 0 ? dtype::f32 : dtype::i32, x.data(), y.data(), 3));
    } else if (name == "reduction") {
      auto of_three = exchange::all_reduce(axis::tp, dtype::f32, x.data(), y.data(), 3, here);
      if (r == 1) of_three.by = reduction::maximum;
      c.run(of_three);
    } else if (name == "vanished") {
      if (r == 2) std::_Exit(0);
      c.run(over_dp);
    } else if (name == "longer" || name == "shorter") {
      c.run(exchange::all_gather(axis::tp, dtype::f32, x.data(), y.data(),
                                 (r == 0) == (name == "shorter") ? 7 : 3, here));
    } else if (name == "unwaited") {
      if (r == 0) (void)c.start(over_tp);
      else later(60'000);
    } else if (name == "twice" && r == 0) {
      const ticket t = c.start(exchange::barrier(axis_set{}));
      c.wait(t), c.wait(t);
    }
  };
  try {
    ranks.run(m, std::chrono::seconds(1), body);
  } catch (const error& e) {
    if (ranks.rank() == 0 || e.code() == exit_code::data) throw;
    later(60'000); // until rank 0 has ended all
  }
  if (name == "slow" && ranks.rank() == 1) later(3000);
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string sizes = argv[1];
  try {
    // As they are, or so small that what is exchanged here takes many messages and rounds.
    const process_start start = start_of_this_process();
    const bool by_tcp = start.over == connected_by::tcp;
    const auto connected = connect_ranks(
        start, "communicators", nullptr,
        sizes == "cut" ? message_sizes{.message = 700, .staging = 1024, .shard = 400, .at_once = 40}
                       : message_sizes{});
    if (connected == nullptr) return 2;
    connected_ranks& ranks = *connected;
    try {
      if (sizes == "fault") go_wrong(ranks, argv[2]);
      else if (promises(ranks, argv[2], by_tcp) != 0) ranks.end(1);
      ranks.finish();
      return 0;
    } catch (const error& e) {
      std::fprintf(stderr, "rank %d: %s\n", ranks.rank(), e.what());
      ranks.end(static_cast<int>(e.code()));
    }
  } catch (const error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code());
  }
}
