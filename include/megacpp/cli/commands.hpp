// What the commands of a program do once its flags are read.
#pragma once

#include <megacpp/exec/machine.hpp>
#include <megacpp/generate/generate.hpp>
#include <megacpp/generate/training_samples.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/inspect/states.hpp>
#include <megacpp/run/program_source.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/trainer.hpp>

namespace mc {

namespace detail {

/// Throws mc::error(exit_code::mismatch) for a program that a command cannot run: one of several
/// ranks, or of packed documents, which no file of tokens names, or one that cannot generate. Who
/// trains the last is told so, and refused a --sample-interval.
inline void check_runnable(const program_view& p, command c, const options& o) {
  require_one_rank(p);
  if (p.numbers.batch.packed && c != command::generate)
    throw error(exit_code::mismatch,
                fmt::format("{} keeps attention within packed documents, which the data of train "
                            "and eval do not name; build it with packed = false, or give a "
                            "mc::session documents",
                            p.name));
  if (c != command::generate && c != command::train) return;
  const std::string why = why_no_generation(p);
  if ((c == command::generate || o.training.sample_interval.given()) && !why.empty())
    throw error(exit_code::mismatch, why);
  if (!why.empty()) print_note(why);
}

inline product_type product_type_of(std::string_view name) {
  return name == "auto"   ? product_type::automatic
         : name == "bf16" ? product_type::bf16
                          : product_type::widened;
}

inline void describe_states(const options& o) {
  const state_list list = list_states(o.model.load());
  if (o.report.json()) return print(states_json(list));
  for (const std::string& line : states_lines(list)) print_line(line);
}

} // namespace detail

/// Carries out a command with flags that agree with the program p of the source. Throws mc::error.
inline void carry_out(const program_source& source, const program_view& p, command what,
                      options& o) {
  if (what == command::convert) return run_export(p, o);
  if (what == command::describe && o.model.load.given()) return detail::describe_states(o);
  if (what != command::describe) detail::check_runnable(p, what, o);
  if (const std::string_view slow = why_slow(); what != command::describe && !slow.empty())
    print_note(slow);
  if (what == command::train) require_one_file(o);
  training_start start = what == command::train ? prepare_start(p, o) : training_start{};
  refuse_idle_flags(what, o); // a run that goes on has the other flags of its state
  // What a prompt is continued with must not depend on the batch, nor on how it was computed.
  const product_rows rows =
      what == command::generate ? product_rows::apart : product_rows::together;
  cpu device(detail::product_type_of(o.machine.product_type()),
             static_cast<int>(o.machine.threads()), rows);
  switch (what) {
  case command::train: {
    trainer t(p, o, device, std::move(start), &make_training_samples);
    const std::string flags = given_flags(flags_of(o), command::train);
    if (!o.report.bench_json() && !flags.empty()) print_line(flags);
    t.run();
    break;
  }
  case command::eval: run_evaluation(p, o, device); break;
  case command::generate: run_generation(p, o, device); break;
  default: {
    const std::vector<model_part> model = source.model();
    print(o.report.json() ? describe_json(p, model, device) : describe_text(p, model, device));
  }
  }
}

} // namespace mc
