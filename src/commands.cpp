// The commands of a program. This unit knows no run, so an edit of the run leaves it alone.
#include <megacpp/cli/commands.hpp>

std::unique_ptr<mc::device> megacpp_make_device(const std::type_info& type,
                                                const mc::device_options& o); // devices.cpp

void megacpp_carry_out(const mc::program_source& source, const mc::program_view& program,
                       mc::command what, mc::options& flags, mc::process_ranks& processes,
                       const std::string& called);
void megacpp_carry_out(const mc::program_source& source, const mc::program_view& program,
                       mc::command what, mc::options& flags, mc::process_ranks& processes,
                       const std::string& called) {
  mc::carry_out(source, program, what, flags, processes, called, megacpp_make_device);
}
