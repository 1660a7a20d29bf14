// Everything a program consists of; for the one unit that holds main.
#pragma once

#include <megacpp/exec/machine_at_start.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/megacpp.hpp>
#include <megacpp/run/compiled.hpp>
#include <megacpp/train/command_line.hpp>

namespace mc {

namespace detail {

/// The name of a type as its author wrote it, without namespaces.
template <class T> std::string type_name() {
  std::string_view text = __PRETTY_FUNCTION__; // "... [with T = byte_gpt; ...]", "... [T = byte_gpt]"
  text.remove_prefix(text.find("T = ") + 4);
  text = text.substr(0, text.find_first_of(";]"));
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos) text.remove_prefix(colon + 1);
  return std::string(text);
}

template <class Run> program_view view_of_run() { return compiled_program<Run>(type_name<Run>().c_str()); }

/// The graphs of every part after each pass.
template <class Run> part_passes passes_of_run() {
  using program = mc::program<Run>;
  return []<int... I>(std::integer_sequence<int, I...>) {
    return part_passes{{{"the model", &program::template forward<I>::g},
                        {"differentiate", &program::template part<I>::derived},
                        {"fuse", &program::template part<I>::joined},
                        {"recompute", &program::template part<I>::replayed},
                        {"split", &program::template part<I>::g}}...};
  }(std::make_integer_sequence<int, program::kinds + 2>{});
}

} // namespace detail

template <class Run> int run(int argc, char** argv) {
#if defined(MEGACPP_GIT_HASH)
  constexpr const char* hash = MEGACPP_GIT_HASH;
#else
  constexpr const char* hash = "unknown";
#endif
  return run_program({&detail::view_of_run<Run>, &detail::passes_of_run<Run>, hash}, argc, argv);
}

} // namespace mc
