// The command line. It knows no run, so an edit of the run leaves it alone.
#include <megacpp/cli/command_line.hpp>
#include <megacpp/threads/affinity_at_start.hpp>
#include <megacpp/threads/machine_at_start.hpp>

void megacpp_carry_out(const mc::program_source& source, const mc::program_view& program,
                       mc::command what, mc::options& flags, mc::process_ranks& processes,
                       const std::string& called); // commands.cpp

int megacpp_run_program(const mc::program_source& source, int argc, char** argv);
int megacpp_run_program(const mc::program_source& source, int argc, char** argv) {
  return mc::run_program(source, argc, argv, &megacpp_carry_out);
}
