// The seam between a run and the command line. The program of a Run is reached through functions,
// so that the command line, which depends on no Run, can be a unit of its own.
#pragma once

#include <megacpp/run/compiled.hpp>

#include <string>
#include <utility>
#include <vector>

namespace mc {

/// The graph of a part as the model builds it, and the options of the passes over it.
struct model_part {
  const graph* g = nullptr;
  pass_options options;
};

/// Functions that make a compiled program when it is needed.
struct program_source {
  program_view (*view)() = nullptr;
  std::vector<model_part> (*model)() = nullptr; ///< parts of training: stem, blocks by kind, head
  const char* git_hash = "unknown";
};

namespace detail {

template <class Run, generation_of Generation> program_view view_of_run() {
  return compiled_program<Run, Generation>(std::string(short_type_name<Run>()).c_str());
}

template <class Run> std::vector<model_part> model_of_run() {
  using program = mc::program<Run>;
  return []<int... At>(std::integer_sequence<int, At...>) {
    return std::vector<model_part>{
        {&program::template forward<At>::g, program::template training<At>::options}...};
  }
  (std::make_integer_sequence<int, program::kinds + 2>{});
}

} // namespace detail

/// Returns what run_program (cli/command_line.hpp) needs to know of a run.
template <class Run, generation_of Generation = &compiled_generation<Run>>
program_source source_of(const char* git_hash) {
  return {&detail::view_of_run<Run, Generation>, &detail::model_of_run<Run>, git_hash};
}

} // namespace mc
