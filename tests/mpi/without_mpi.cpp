// What a program that is built without MPI says when a launcher has started several of it.
#include <megacpp/comm/connect_ranks.hpp>

#include <cstdio>

#if defined(MEGACPP_WITH_MPI)
#error this unit is about programs without MPI
#endif

int main() {
  try {
    const auto ranks = mc::join_processes(mc::start_of_this_process(), nullptr);
    return 0;
  } catch (const mc::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code());
  }
}
