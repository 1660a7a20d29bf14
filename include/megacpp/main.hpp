// This header has everything that a program needs; the one unit with main includes it.
#pragma once

#include <megacpp/cli/command_line.hpp>
#include <megacpp/cli/commands.hpp>
#include <megacpp/product/devices.hpp>
#include <megacpp/program.hpp>
#include <megacpp/threads/affinity_at_start.hpp>
#include <megacpp/threads/machine_at_start.hpp>

namespace mc {

template <class Run> int run(int argc, char** argv) {
#if defined(MEGACPP_GIT_HASH)
  constexpr const char* hash = MEGACPP_GIT_HASH;
#else
  constexpr const char* hash = "unknown";
#endif
  return run_program(source_of<Run>(hash), argc, argv,
                     [](const program_source& source, const program_view& p, command what,
                        options& o, process_ranks& processes, const std::string& called) {
                       carry_out(source, p, what, o, processes, called, make_device);
                     });
}

} // namespace mc
