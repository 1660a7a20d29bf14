// The main of a program: it reads the command line, and hands a command and its flags to a
// function. Nothing here is compiled for one run.
#pragma once

#include <megacpp/cli/parse.hpp>
#include <megacpp/comm/connect_ranks.hpp>
#include <megacpp/inspect/start.hpp>
#include <megacpp/io/signals.hpp>
#include <megacpp/observe/guarded.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/options/compiled_values.hpp>
#include <megacpp/options/flags_of_values.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/run/program_source.hpp>

namespace mc {

/// The function that carries out commands, mc::carry_out (cli/commands.hpp): a unit of its own may
/// define it.
using command_function = void (*)(const program_source&, const program_view&, command, options&,
                                  process_ranks&, const std::string&);

namespace detail {

inline std::string summary_of(const program_view& p) {
  return fmt::format(
      "{} is a {} with {} parameters, compiled by {} for {}, micro-batch {} x {} tokens.", p.name,
      p.family.name, count_text(static_cast<double>(p.parameters)).view(), version_text(),
      name_of(p.numbers.precision.weight), p.numbers.batch.micro, p.numbers.batch.sequence);
}

inline void run_command(const program_source& source, std::string_view program, int argc,
                        char** argv, command_function carry_out, process_ranks& processes) {
  const std::optional<std::string> called = processes.first() ? std::string() : processes.called();
  if (!called) return;
  const program_view p = source.view();
  options o;
  set_compiled(o, p);
  const std::vector<named_flag> list = flags_of(o);
  refusals refused;
  parsed_line r = parse(argc, argv, list, commands, refused);
  if ((r.version || r.help) && !processes.first()) // the first rank has a command
    throw error(exit_code::mismatch,
                fmt::format("this rank was started with --{}, and rank 0 was not: give all of them "
                            "one command line",
                            r.help ? "help" : "version"));
  if (r.version || r.help)
    return print(r.asked_text(program, p.name, source.git_hash, summary_of(p), list, commands));
  check_compiled(list, p, refused, r.told);
  if (r.whole && !o.model.load.given()) // a state may have further flags
    apply_rules(r.what->which, o, refused, false);
  refused.raise();
  if (o.report.launch()) {
    print(o.report.json() ? start_json(processes.start()) : start_text(processes.start()));
    return require_sound(processes.start());
  }
  if (processes.first() && !processes.start().by_node)
    for (const std::string& note : r.told.notes()) print_note(note);
  carry_out(source, p, r.what->which, o, processes, *called);
}

} // namespace detail

/// The body of the main of every program: carries out a command and returns its exit code.
inline int run_program(const program_source& source, int argc, char** argv,
                       command_function carry_out) {
  return guarded_main(argc, argv, &process_ranks::who, &spelled_flags,
                      [&](std::string_view program, const auto& attempt) {
                        std::unique_ptr<process_ranks> processes;
                        std::optional<ends_idle_rank> signals;
                        const int ended = attempt([&] {
                          const process_start start = start_of_this_process();
                          if (start.size > 1 || start.by == started_by::node)
                            signals.emplace(static_cast<int>(exit_code::interrupted));
                          processes = asks_for_start(argc, argv)
                                          ? std::make_unique<process_ranks>(start)
                                          : join_processes(start, &print_note);
                          detail::run_command(source, program, argc, argv, carry_out, *processes);
                        });
                        const int end = processes ? attempt([&] { processes->end(ended); }) : 0;
                        if (ended == 0 && end == 0 && processes) return processes->code_of_node();
                        return ended == 0 ? end : ended;
                      });
}

} // namespace mc
