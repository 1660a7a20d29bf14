// The program of a run with its kernels: for the unit that holds the run, where the command line is
// a unit of its own (as megacpp_add_preset does it). <megacpp/main.hpp> is both in one.
#pragma once

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/megacpp.hpp>
#include <megacpp/run/program_source.hpp>
