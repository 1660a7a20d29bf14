// A program for CUDA over the stand-in, compiled as DEVICE cuda compiles it: that of tests/cli, but for
// its device. said_machine.hpp: what the machine has.
#include "tiny_gpt_on_cuda.hpp"

#include <cuda/said_machine.hpp>

#include <megacpp/program.hpp>

int megacpp_run_program(const char* git_hash, int argc, char** argv); // command_line.cpp

mc::program_source megacpp_run(const char* git_hash);
mc::program_source megacpp_run(const char* git_hash) {
  return mc::source_of<tiny_gpt_on_cuda>(git_hash);
}

int main(int argc, char** argv) {
  if (!test::begin_said_machine()) return 99;
  return megacpp_run_program("unknown", argc, argv);
}
