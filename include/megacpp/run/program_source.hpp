// The seam between a run and the command line: the program of a Run behind functions, so that the
// command line, which depends on no Run, can be a unit of its own.
#pragma once

#include <megacpp/run/compiled.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// The graph of a part after a pass.
struct pass_view {
  const char* name = "";
  std::unique_ptr<graph> g;
};

/// Stem, blocks by kind, head: the graphs after each pass, in order.
using part_passes = std::vector<std::vector<pass_view>>;

/// The compiled program, made when it is needed.
struct program_source {
  program_view (*view)() = nullptr;
  part_passes (*passes)() = nullptr;
  const char* git_hash = "unknown";
};

namespace detail {

template <class Run, generation_of Generation> program_view view_of_run() {
  return compiled_program<Run, Generation>(std::string(short_type_name<Run>()).c_str());
}

inline std::vector<pass_view> views_of_passes(const graph& model, const pass_options& o) {
  std::vector<pass_view> views;
  views.push_back({"the model", std::make_unique<graph>(model)});
  after_passes(model, o, 0, pass_count, [&](const pass& p, const graph& g) {
    views.push_back({p.name, std::make_unique<graph>(g)});
  });
  return views;
}

/// The graphs of every part of training after each pass: the passes run again, so that a program
/// holds none but the last.
template <class Run> part_passes passes_of_run() {
  using program = mc::program<Run>;
  part_passes all;
  [&]<int... At>(std::integer_sequence<int, At...>) {
    (all.push_back(views_of_passes(program::template forward<At>::g,
                                   program::template training<At>::options)),
     ...);
  }
  (std::make_integer_sequence<int, program::kinds + 2>{});
  return all;
}

} // namespace detail

/// What run_program (cli/command_line.hpp) needs to know of a run.
template <class Run, generation_of Generation = &compiled_generation<Run>>
program_source source_of(const char* git_hash) {
  return {&detail::view_of_run<Run, Generation>, &detail::passes_of_run<Run>, git_hash};
}

} // namespace mc
