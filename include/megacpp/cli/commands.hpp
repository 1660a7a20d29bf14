// What the commands of a program do once its flags are read.
#pragma once

#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/exec/machine.hpp>
#include <megacpp/generate/generate.hpp>
#include <megacpp/generate/training_samples.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/inspect/pictures.hpp>
#include <megacpp/inspect/states.hpp>
#include <megacpp/run/program_source.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/trainer.hpp>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// The mesh of so many ranks as are asked for, or of the fewest that the program has. Throws
/// mc::error(exit_code::mismatch) where no number of replicas makes them that many.
inline mesh ranks_of_run(const program_view& p, const options& o) {
  const layout& l = p.numbers.ranks;
  const int replica = l.tp * l.pp * l.cp, least = ranks_of(smallest_mesh(l)),
            n = o.machine.ranks() > 0 ? static_cast<int>(o.machine.ranks()) : least;
  if (n % least == 0) return mesh_of(l, n / replica);
  throw error(exit_code::mismatch,
              fmt::format("--ranks is {}, but must be a multiple of {}: {} is laid out over tp {}, "
                          "pp {}, cp {}, ep {} and etp {}",
                          n, least, p.name, l.tp, l.pp, l.cp, l.ep, l.expert_tp()));
}

/// Throws mc::error(exit_code::mismatch) for a program that a command cannot run: one of several
/// ranks that is to write texts while it trains, or of packed documents, which no file of tokens
/// names, or one that is to generate and cannot. Who trains the last is told so, and refused a
/// --sample-interval. Returns the ranks that it runs on.
inline mesh check_runnable(const program_view& p, command c, const options& o) {
  const mesh ranks = ranks_of_run(p, o);
  if (ranks_of(ranks) > 1 && o.training.sample_interval.given())
    throw error(exit_code::mismatch,
                "--sample-interval writes texts on one rank alone; leave it "
                "out, or train on one rank");
  if (p.numbers.batch.packed && c != command::generate)
    throw error(exit_code::mismatch,
                fmt::format("{} keeps attention within packed documents, which the data of train "
                            "and eval do not name; build it with packed = false, or give a "
                            "mc::session documents",
                            p.name));
  if (c != command::generate && c != command::train) return ranks;
  const std::string why = why_no_generation(p);
  if ((c == command::generate || o.training.sample_interval.given()) && !why.empty())
    throw error(exit_code::mismatch, why);
  if (!why.empty()) print_note(why);
  return ranks;
}

inline product_type product_type_of(std::string_view name) {
  return name == "auto"   ? product_type::automatic
         : name == "bf16" ? product_type::bf16
                          : product_type::widened;
}

/// What a prompt is continued with must not depend on the batch, nor on how it was computed.
inline product_rows rows_of(command what) {
  return what == command::generate ? product_rows::apart : product_rows::together;
}

inline void describe_states(const options& o) {
  const state_list list = list_states(o.model.load());
  if (o.report.json()) return print(states_json(list));
  for (const std::string& line : states_lines(list)) print_line(line);
}

/// Draws the ranks of the program's layout, as few as it has, and the schedule of its stages for
/// twice as many micro-batches. Throws mc::error.
inline void draw_pictures(const program_view& p, const std::string& folder) {
  const mesh ranks = smallest_mesh(p.numbers.ranks);
  std::vector<std::pair<std::string, std::string>> files{
      {folder + "/mesh.svg", mesh_picture(ranks)}};
  if (const layout& l = p.numbers.ranks; l.pp > 1) {
    const int most = p.numbers.batch.micro_batches,
              micros = nearest_micros(p, most > 0 ? std::min(most, 2 * l.pp) : 2 * l.pp);
    files.emplace_back(folder + "/schedule.svg",
                       schedule_picture(timed(schedule_of(l), l, micros),
                                        fmt::format("{}: {}, {} stages, {} micro-batches", p.name,
                                                    name_of_schedule(l), l.pp, micros)));
  }
  std::error_code problem;
  std::filesystem::create_directories(folder, problem);
  if (problem)
    throw error(exit_code::output, fmt::format("cannot create {}: {}; choose another folder",
                                               folder, problem.message()));
  for (const auto& [path, svg] : files) check_own_kind(path, "<svg ", "picture");
  for (const auto& [path, svg] : files) {
    write_text_file(path, svg);
    print_line(path);
  }
}

/// f(communicator) on every rank of a mesh; several are threads.
template <class F> void on_ranks(const mesh& m, const options& o, F f) {
  if (ranks_of(m) == 1) return f(static_cast<communicator&>(self::of_process()));
  thread_ranks ranks(m, std::chrono::seconds(o.machine.collective_timeout()));
  ranks.run([&](communicator& c) {
    try {
      checked_if(o.machine.check_collectives(), c, f);
    } catch (const error& e) {
      if (c.rank() == 0) throw;
      throw error(e.code(), fmt::format("rank {}: {}", c.rank(), e.what()));
    }
  });
}

/// Trains, evaluates or generates on the ranks of a mesh, among which threads are divided.
inline void compute(const mesh& m, const program_view& p, command what, options& o,
                    training_start start) {
  const int n = ranks_of(m),
            all = o.machine.threads() > 0 ? static_cast<int>(o.machine.threads()) : processors(),
            threads = std::max(1, all / n);
  product_type products = product_type_of(o.machine.product_type());
  if (products == product_type::automatic && p.numbers.type == dtype::bf16) // one for all ranks
    products = cpu(products, threads).products().type();
  std::vector<training_start> starts;
  starts.push_back(std::move(start));
  while (std::ssize(starts) < n) starts.push_back(for_another_rank(starts.front()));
  const std::string flags =
      what == command::train ? given_flags(flags_of(o), command::train) : std::string();
  on_ranks(m, o, [&](communicator& c) {
    cpu device(products, threads, rows_of(what));
    if (what == command::eval) return run_evaluation(p, o, device, c);
    if (what == command::generate) return run_generation(p, o, device, c);
    trainer t(p, o, device, std::move(starts[static_cast<std::size_t>(c.rank())]),
              &make_training_samples, c);
    if (c.rank() == 0 && !o.report.bench_json() && !flags.empty()) print_line(flags);
    t.run();
  });
}

/// Says what the program is; on one rank, whatever it is laid out over.
inline void describe(const program_source& source, const program_view& p, const options& o) {
  cpu device(product_type_of(o.machine.product_type()), static_cast<int>(o.machine.threads()));
  const std::vector<model_part> model = source.model();
  print(o.report.json() ? describe_json(p, model, device) : describe_text(p, model, device));
}

} // namespace detail

/// Carries out a command with flags that agree with the program p of the source. Throws mc::error.
inline void carry_out(const program_source& source, const program_view& p, command what,
                      options& o) {
  if (what == command::convert) return run_export(p, o);
  if (what == command::describe) {
    if (o.model.load.given()) return detail::describe_states(o);
    refuse_idle_flags(what, o);
    if (o.report.pictures.given()) return detail::draw_pictures(p, o.report.pictures());
    return detail::describe(source, p, o);
  }
  const mesh ranks = detail::check_runnable(p, what, o);
  if (const std::string_view slow = why_slow(); !slow.empty()) print_note(slow);
  if (what == command::train) require_one_file(o);
  training_start start = what == command::train ? prepare_start(p, o) : training_start{};
  refuse_idle_flags(what, o); // a run that goes on has the other flags of its state
  detail::compute(ranks, p, what, o, std::move(start));
}

} // namespace mc
