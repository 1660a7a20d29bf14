// The commands of a program, once its flags are read.
#pragma once

#include <megacpp/cli/help.hpp>
#include <megacpp/comm/agreement.hpp>
#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/process_ranks.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/exec/device_options.hpp>
#include <megacpp/exec/memory_room.hpp>
#include <megacpp/generate/generate.hpp>
#include <megacpp/generate/training_samples.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/inspect/memory_need.hpp>
#include <megacpp/inspect/picture_files.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/refusals.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/run/node_start.hpp>
#include <megacpp/run/program_source.hpp>
#include <megacpp/run/ranks_of_run.hpp>
#include <megacpp/run/stage.hpp>
#include <megacpp/states/export.hpp>
#include <megacpp/states/state_list.hpp>
#include <megacpp/threads/machine.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/shown_samples.hpp>
#include <megacpp/train/trainer.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

inline int ranks_asked(const options& o) { return static_cast<int>(o.machine.ranks()); }

/// Returns what a user has chosen of the device of a rank with so many threads, in the process of
/// this place on its machine.
inline device_options device_asked(const options& o, int threads, int place = 0) {
  const machine_flags& f = o.machine;
  return {.products = f.product_type.choice<product_type>(),
          .threads = threads,
          .tf32 = f.tf32(),
          .deterministic_attention = !f.no_deterministic_attention(),
          .number = static_cast<int>(f.device.if_given().value_or(-1)),
          .place = place};
}

/// Checks the memory for a command, in the first process. Ranks of other machines do not count.
/// Throws mc::error(exit_code::memory).
inline void require_memory_of(const program_view& p, command what, const options& o,
                              const mesh& ranks, const process_ranks& processes, int threads,
                              device_maker& make_device) {
  if (o.machine.no_memory_check() || !processes.first()) return;
  const int n = ranks_of(ranks);
  device_options asked = device_asked(o, threads, processes.place());
  asked.sizes_alone = true;
  const auto on = make_device(p.device_type(), asked);
  const planned_work work = what == command::train  ? planned_work::training
                            : what == command::eval ? planned_work::evaluation
                                                    : planned_work::generation;
  const memory_need need = need_of(p, work, ranks, *on);
  const int here = processes.several() ? processes.here() : n, mine = processes.several() ? 1 : n;
  if (on->host_sees())
    return require_memory(need, n, here, mine, room_on_machine(), room_in_process());
  const std::optional<memory_room> room = on->room();
  const int on_device =
      processes.several() && room ? (here + room->spread_over - 1) / room->spread_over : here;
  require_memory(need, n, on_device, mine, room, std::nullopt);
}

/// Returns the ranks that a program runs on. Throws mc::error(exit_code::mismatch) for a program
/// that a command cannot run: one of several ranks that is to write texts while it trains, or one
/// that is to generate and cannot. Training such a program prints a note, if it `tells`.
inline mesh check_runnable(const program_view& p, command c, const options& o, int processes = 1,
                           bool tells = true) {
  const mesh ranks = ranks_of_run(p, ranks_asked(o), processes);
  if (ranks_of(ranks) > 1 && o.training.sample_interval.given())
    throw error(exit_code::mismatch,
                "--sample-interval writes texts on one rank alone; leave it "
                "out, or train on one rank");
  if (c != command::generate && c != command::train) return ranks;
  const std::string why = why_no_generation(p);
  if ((c == command::generate || o.training.sample_interval.given()) && !why.empty())
    throw error(exit_code::mismatch, why);
  if (tells && !why.empty()) print_note(why);
  return ranks;
}

inline void describe_states(const options& o) {
  const state_list list = list_states(o.model.load());
  if (o.report.json()) return print(states_json(list));
  for (const std::string& line : states_lines(list)) print_line(in_flags(line));
}

/// Throws mc::error where ranks that are processes differ in the file that they are run from, or in
/// flags. Flags that name files and folders may name copies of them.
inline void require_same_program(agreement& all, options& o, command what) {
  if (!all.separate_processes()) return;
  const mapped_file program("/proc/self/exe", exit_code::internal);
  all.require_same(xxh64::of({program.data(), program.size()}), "another program",
                   "start all of them from copies of one file");
  std::string flags = std::to_string(static_cast<int>(what));
  for (const named_flag& e : flags_of(o))
    flags +=
        fmt::format("\n{} {} {}", e.name, e.flag->given(), e.flag->is_path() ? "" : e.flag->text());
  all.require_same(xxh64::of(std::as_bytes(std::span(flags))), "other flags",
                   "give all of them the same");
  if (!o.machine.product_table.given()) return; // its ways decide bits
  const mapped_file table(o.machine.product_table(), exit_code::usage);
  all.require_same(xxh64::of(table.bytes()), "another file of --product-table",
                   "give all of them copies of one");
}

/// Carries out f(hosts) on every rank of a mesh: the ranks are this process and others, or threads,
/// or the only one.
template <class F>
void on_ranks(const mesh& m, command what, options& o, process_ranks& processes, F f) {
  const std::chrono::seconds patience(o.machine.collective_timeout());
  const bool checks = o.machine.check_collectives() && ranks_of(m) > 1;
  const auto told = [&](communicator& hosts) {
    try {
      agreement all(hosts);
      require_same_program(all, o, what);
      checked_if(checks, hosts, f);
    } catch (const error& e) {
      if (hosts.rank() == 0) throw;
      // The first rank tells what all ranks are refused, and ends the others.
      processes.wait_to_be_ended();
      if (processes.several()) throw; // messages of a process begin with its rank
      throw error(e.code(), fmt::format("rank {}: {}", hosts.rank(), e.what()));
    }
  };
  if (processes.several() || ranks_of(m) == 1) return processes.run(m, patience, told);
  thread_ranks(m, patience).run(told);
}

/// Returns how many threads each rank has: ranks of one machine share its threads.
inline int threads_of_rank(const options& o, const mesh& m, const process_ranks& processes) {
  const auto asked = static_cast<int>(o.machine.threads());
  return processes.several() ? processes.threads(asked)
                             : std::max(1, (asked > 0 ? asked : processors()) / ranks_of(m));
}

/// The request of a command that computes.
using computing_request = std::variant<training_request, evaluation_request, generation_request>;

/// Throws mc::error for flags that contradict each other, the program or the ranks.
inline computing_request request_of(const mesh& m, const program_view& p, command what,
                                    const options& o) {
  if (what == command::eval) return evaluation_request_of(o);
  if (what == command::generate) return generation_request_of(o);
  return training_request_of(p, o, m.of(axis::dp));
}

/// Trains, evaluates or generates on the ranks of a mesh.
inline void compute(const mesh& m, const program_view& p, command what, options& o,
                    const computing_request& request, training_start start,
                    process_ranks& processes, device_maker& make_device) {
  const int n = ranks_of(m), threads = threads_of_rank(o, m, processes);
  std::vector<training_start> starts; // of the ranks of this process
  starts.push_back(std::move(start));
  while (!processes.several() && std::ssize(starts) < n)
    starts.push_back(for_another_rank(starts.front(), start_request_of(o.model)));
  const std::string flags = given_flags(flags_of(o), what);
  const opened_once<std::vector<run_data>> measured;
  on_ranks(m, what, o, processes, [&](communicator& hosts) {
    agreement all(hosts);
    device_options asked = device_asked(o, threads, processes.place());
    if (asked.products == product_type::automatic && p.numbers.precision.weight == dtype::bf16 &&
        !all.alone()) {
      const bool bf16 = all.first() && make_device(p.device_type(), asked)->products().type() ==
                                           product_type::bf16;
      asked.products = all.value_of_first(bf16) ? product_type::bf16 : product_type::widened;
    }
    // The text that continues a prompt must not depend on the batch, nor on how it was computed.
    if (what == command::generate) asked.rows = product_rows::apart;
    asked.product_table = o.machine.product_table();
    asked.graphs = !o.machine.no_cuda_graphs();
    asked.tell = all.first() ? &print_note : nullptr;
    const auto device = make_device(p.device_type(), asked);
    const auto ranks = hosts.make_ranks(*device);
    const planes both{hosts, *ranks};
    if (const auto* evaluation = std::get_if<evaluation_request>(&request))
      return run_evaluation(p, *evaluation, *device, both, measured);
    if (const auto* generation = std::get_if<generation_request>(&request))
      return run_generation(p, *generation, *device, both);
    training_start& mine =
        starts[all.separate_processes() ? 0 : static_cast<std::size_t>(hosts.rank())];
    trainer t(p, std::get<training_request>(request), *device, std::move(mine),
              &make_training_samples, both);
    if (all.first() && !o.report.bench_json() && !flags.empty()) print_on_the_way(flags);
    t.run();
  });
}

/// Prints a description of the program; on one rank, whatever it is laid out over.
inline void describe(const program_source& source, const program_view& p, const options& o,
                     device_maker& make_device) {
  const mesh ranks = o.machine.ranks() > 0 ? ranks_of_run(p, ranks_asked(o)) : mesh();
  if (o.report.graphs()) return print(graphs_text(p, source.model(), ranks));
  if (o.report.roofline.given())
    return print(o.report.json() ? roofline_json(p, source.model(), o.report.roofline())
                                 : roofline_text(p, source.model(), o.report.roofline()));
  device_options asked = device_asked(o, static_cast<int>(o.machine.threads()));
  asked.described = true;
  const auto device = make_device(p.device_type(), asked);
  print(o.report.json() ? describe_json(p, source.model(), *device, ranks)
                        : describe_text(p, *device, ranks));
}

} // namespace detail

/// Carries out a command with flags that agree with the program p of the source, on devices that
/// `make_device` makes. The first of `processes` has called the others with `called`. Throws
/// mc::error.
inline void carry_out(const program_source& source, const program_view& p, command what, options& o,
                      process_ranks& processes, const std::string& called,
                      device_maker& make_device) {
  if (what == command::describe && !processes.first())
    throw error(exit_code::mismatch,
                "this rank describes the program, and rank 0 does not: give all "
                "of them one command");
  if (what == command::describe) {
    processes.dismiss();
    apply_all_rules(what, o);
    if (o.model.load.given()) return detail::describe_states(o);
    if (o.report.pictures.given())
      return draw_pictures(p, ranks_of_run(p, detail::ranks_asked(o)), o.report.pictures());
    return detail::describe(source, p, o, make_device);
  }
  if (const int ranks = ranks_to_start(processes.start(), p, detail::ranks_asked(o), make_device))
    return processes.set_code_of_node(start_ranks_of_node(processes.start(), ranks));
  require_connected(o.machine.ranks.given(), processes.several(), processes.start().by);
  if (what == command::convert) {
    apply_all_rules(what, o);
    const int n = number_of_ranks(detail::ranks_asked(o), processes.size(), 1); // of no layout
    const export_request request = export_request_of(o);
    if (processes.first()) processes.call("");
    return detail::on_ranks(mesh_of({}, n), what, o, processes,
                            [&](communicator& hosts) { run_export(p, request, hosts); });
  }
  const mesh ranks = detail::check_runnable(p, what, o, processes.size(), processes.first());
  const int threads = detail::threads_of_rank(o, ranks, processes);
  const bool shows = what == command::train && o.report.show_mask.given();
  if (!shows) detail::require_memory_of(p, what, o, ranks, processes, threads, make_device);
  if (const std::string_view slow = why_slow(); processes.first() && !slow.empty())
    print_note(slow);
  training_start start = what != command::train ? training_start{}
                         : processes.first()    ? prepare_start(p, o, !shows)
                                                : prepare_named_start(called, o, p.name);
  // A run that goes on has the other flags of its state.
  const told_flags told{.without_effect = apply_all_rules(what, o)};
  if (processes.first())
    for (const std::string& note : told.notes()) print_note(note);
  const detail::computing_request request = detail::request_of(ranks, p, what, o);
  if (shows) {
    processes.dismiss();
    return show_samples(p, std::get<training_request>(request), start, o.report.show_mask(),
                        threads);
  }
  if (processes.first()) processes.call(text_of(start, start_request_of(o.model)));
  detail::compute(ranks, p, what, o, request, std::move(start), processes, make_device);
}

} // namespace mc
