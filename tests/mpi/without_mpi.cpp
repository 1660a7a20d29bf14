// What a program that is built without MPI says when a launcher has started several of it.
#include <megacpp/comm/process_ranks.hpp>

#include <cstdio>

#if defined(MEGACPP_WITH_MPI)
#error this unit is about programs without MPI
#endif

int main() {
  try {
    const mc::process_ranks ranks;
    return 0;
  } catch (const mc::error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.code());
  }
}
