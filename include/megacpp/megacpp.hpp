// The compile-time half: models, layouts, precisions, passes, plans, and the program of a run as
// constants. What executes it comes with <megacpp/main.hpp>, in the unit that holds main.
#pragma once

#include <megacpp/plan/memory.hpp>
#include <megacpp/preset/models.hpp>
#include <megacpp/recipe/precision.hpp>
#include <megacpp/run/program.hpp>

namespace mc {

/// The program of a run: subcommands train, eval, generate, export and describe. Returns the exit
/// code (io/error.hpp). Defined in <megacpp/main.hpp>.
template <class Run> int run(int argc, char** argv);

} // namespace mc
