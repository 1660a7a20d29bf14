// The command line. It knows no run, so an edit of the run leaves it alone.
#include <megacpp/cli/command_line.hpp>
#include <megacpp/threads/affinity_at_start.hpp>
#include <megacpp/threads/machine_at_start.hpp>

void megacpp_carry_out(const mc::program_source& source, const mc::program_view& program,
                       mc::command what, mc::options& flags, mc::process_ranks& processes,
                       const std::string& called);    // commands.cpp
mc::program_source megacpp_run(const char* git_hash); // run.cpp

int megacpp_run_program(const char* git_hash, int argc, char** argv);
int megacpp_run_program(const char* git_hash, int argc, char** argv) {
  return mc::run_program(megacpp_run(git_hash), argc, argv, &megacpp_carry_out);
}
