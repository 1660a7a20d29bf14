// What the commands of a program do once its flags are read.
#pragma once

#include <megacpp/cli/memory_check.hpp>
#include <megacpp/comm/agreement.hpp>
#include <megacpp/comm/checking.hpp>
#include <megacpp/comm/launch.hpp>
#include <megacpp/comm/process_ranks.hpp>
#include <megacpp/comm/threads.hpp>
#include <megacpp/generate/generate.hpp>
#include <megacpp/generate/training_samples.hpp>
#include <megacpp/inspect/describe.hpp>
#include <megacpp/inspect/pictures.hpp>
#include <megacpp/io/checksum.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/requests.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/run/program_source.hpp>
#include <megacpp/run/stage.hpp>
#include <megacpp/states/state_list.hpp>
#include <megacpp/threads/machine.hpp>
#include <megacpp/train/evaluate.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/trainer.hpp>

#include <chrono>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

namespace mc {

namespace detail {

/// As many ranks as there are `processes` where a launcher has started several, or as are asked
/// for, or as there are otherwise. Throws mc::error(exit_code::mismatch) for others than are asked
/// for.
inline int number_of_ranks(const options& o, int processes, int otherwise) {
  const auto asked = static_cast<int>(o.machine.ranks());
  if (processes > 1 && asked > 0 && asked != processes)
    throw error(exit_code::mismatch,
                fmt::format("--ranks is {}, but {} processes were started: give both the same "
                            "number, or leave --ranks out",
                            asked, processes));
  return processes > 1 ? processes : asked > 0 ? asked : otherwise;
}

/// A process that was started as one of several, and is connected with none, would do all of their
/// work alone, and so would each of the others. A script of Slurm has tasks that it did not start:
/// --ranks says that this process is the only one. Throws mc::error(exit_code::mismatch).
inline void require_connected(const options& o, bool several) {
  const promised_world world = unconnected_world();
  const bool of_slurm = std::string_view(world.variable).starts_with("SLURM_");
  if (several || world.size == 1 || (of_slurm && o.machine.ranks.given())) return;
  throw error(exit_code::mismatch,
              fmt::format("{} is {}, but no launcher has connected this process with others, so "
                          "each would do the whole work alone: start ranks as processes by mpirun "
                          "-n {} or srun -n {} --mpi=pmix, or as threads of one process by --ranks "
                          "{}{}",
                          world.variable, world.size, world.size, world.size, world.size,
                          of_slurm ? "" : fmt::format(", with {} unset", world.variable)));
}

/// Their mesh: there are at least as many as the program is laid out over. Throws
/// mc::error(exit_code::mismatch) where no number of replicas makes them that many.
inline mesh ranks_of_run(const program_view& p, const options& o, int processes = 1) {
  const layout& l = p.numbers.ranks;
  const int replica = l.tp * l.pp * l.cp, least = ranks_of(smallest_mesh(l)),
            n = number_of_ranks(o, processes, least);
  if (n % least == 0) return mesh_of(l, n / replica);
  const std::string ranks = processes > 1 ? fmt::format("{} processes were started, but they", n)
                                          : fmt::format("--ranks is {}, but", n);
  std::string over;
  const auto add = [&](const char* name, int size) {
    if (size > 1) over += fmt::format("{}{} {}", over.empty() ? "" : " x ", name, size);
  };
  add("tp", l.tp), add("pp", l.pp), add("cp", l.cp);
  if (replica < least)
    over += fmt::format("{}ep {} etp {} of experts", over.empty() ? "" : ", ", l.ep, l.expert_tp());
  const int below = n / least * least;
  throw error(
      exit_code::mismatch,
      fmt::format("{} must be a multiple of {}, such as {}{}: {} is laid out over {}", ranks, least,
                  below > 0 ? fmt::format("{} or ", below) : "", below + least, p.name, over));
}

/// Throws mc::error(exit_code::mismatch) for a program that a command cannot run: one of several
/// ranks that is to write texts while it trains, or one that is to generate and cannot. Who trains
/// the last is told so, and refused a --sample-interval. Returns the ranks that it runs on.
/// `tells`: of what is no fault.
inline mesh check_runnable(const program_view& p, command c, const options& o, int processes = 1,
                           bool tells = true) {
  const mesh ranks = ranks_of_run(p, o, processes);
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

inline product_type product_type_of(std::string_view name) {
  return name == "auto"   ? product_type::automatic
         : name == "bf16" ? product_type::bf16
                          : product_type::widened;
}

/// What a prompt is continued with must not depend on the batch, nor on how it was computed.
inline product_rows rows_of(command what) {
  return what == command::generate ? product_rows::apart : product_rows::together;
}

inline void describe_states(options& o) {
  for (const flag_entry& e : flags_of(o))
    for (const std::string_view of_program :
         {"ranks", "threads", "product-type", "pictures", "graphs", "roofline"})
      if (e.flag->given() && e.name == of_program)
        throw error(exit_code::usage,
                    fmt::format("--{} is of the program, and describe --load lists states alone; "
                                "leave one of them out",
                                of_program));
  const state_list list = list_states(o.model.load());
  if (o.report.json()) return print(states_json(list));
  for (const std::string& line : states_lines(list)) print_line(in_flags(line));
}

/// Draws the ranks of a run, and the schedule of the program's stages for twice as many
/// micro-batches. Throws mc::error.
inline void draw_pictures(const program_view& p, const options& o, const std::string& folder) {
  mesh ranks = ranks_of_run(p, o);
  if (p.model.extents.experts == 0) // no mesh of theirs
    for (const axis a : {axis::ep, axis::etp}) ranks.size[static_cast<unsigned>(a)] = 1;
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

/// What ranks that are processes must have in common beside data and models: the file that they
/// are run from, and flags; those that name files and folders may name copies of them.
inline void require_same_program(agreement& all, options& o, command what) {
  if (!all.apart()) return;
  const mapped_file program("/proc/self/exe", exit_code::internal);
  all.require_same(xxh64::of({program.data(), program.size()}), "another program",
                   "start all of them from copies of one file");
  constexpr std::string_view places[] = {"data-path",
                                         "train-data-path",
                                         "valid-data-path",
                                         "test-data-path",
                                         "data-args-path",
                                         "per-split-data-args-path",
                                         "data-cache-path",
                                         "tokenizer-model",
                                         "vocab-file",
                                         "merge-file",
                                         "load",
                                         "save",
                                         "product-table",
                                         "prompts-file",
                                         "loss-curve",
                                         "metrics-jsonl",
                                         "trace"};
  std::string flags = std::to_string(static_cast<int>(what));
  for (const flag_entry& e : flags_of(o)) {
    const bool place = std::ranges::find(places, e.name) != std::end(places);
    flags += fmt::format("\n{} {} {}", e.name, e.flag->given(), place ? "" : e.flag->text());
  }
  all.require_same(xxh64::of(std::as_bytes(std::span(flags))), "other flags",
                   "give all of them the same");
  if (!o.machine.product_table.given()) return; // its ways decide bits
  const mapped_file table(o.machine.product_table(), exit_code::usage);
  all.require_same(xxh64::of(table.bytes()), "another file of --product-table",
                   "give all of them copies of one");
}

/// f(hosts) on every rank of a mesh: on this process's, where there are several, or on
/// threads, or on the only one.
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
      // What all are refused, the first one tells, and ends the others.
      std::this_thread::sleep_for(std::chrono::milliseconds(500));
      if (processes.several()) throw; // which rank it is stands before what a process says
      throw error(e.code(), fmt::format("rank {}: {}", hosts.rank(), e.what()));
    }
  };
  if (processes.several() || ranks_of(m) == 1) return processes.run(m, patience, told);
  thread_ranks(m, patience).run(told);
}

/// Threads of each rank: those of one machine share its threads.
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
  if (o.machine.tf32() && p.numbers.precision.weight != dtype::f32)
    throw error(
        exit_code::usage,
        fmt::format("--tf32 is for programs of f32, and this one computes in {}: leave it out",
                    name_of(p.numbers.precision.weight)));
  if (o.machine.no_deterministic_attention() && p.numbers.precision.weight != dtype::bf16)
    throw error(exit_code::usage,
                fmt::format("--no-deterministic-attention is for programs of bf16, and this one "
                            "computes in {}: leave it out",
                            name_of(p.numbers.precision.weight)));
  const int n = ranks_of(m), threads = threads_of_rank(o, m, processes);
  std::vector<training_start> starts; // of the ranks of this process
  starts.push_back(std::move(start));
  while (!processes.several() && std::ssize(starts) < n)
    starts.push_back(for_another_rank(starts.front()));
  const std::string flags =
      what == command::train ? given_flags(flags_of(o), command::train) : std::string();
  const opened_once<std::vector<run_data>> measured;
  on_ranks(m, what, o, processes, [&](communicator& hosts) {
    agreement all(hosts);
    product_type products = product_type_of(o.machine.product_type());
    if (products == product_type::automatic && p.numbers.precision.weight == dtype::bf16 &&
        !all.alone()) {
      const bool bf16 = all.first() && make_device(p.device_type(), {.products = products,
                                                                     .threads = threads,
                                                                     .tf32 = o.machine.tf32(),
                                                                     .number = number_of_device(o),
                                                                     .place = processes.place()})
                                               ->products()
                                               .type() == product_type::bf16;
      products = all.as_first(bf16) ? product_type::bf16 : product_type::widened;
    }
    const auto device = make_device(
        p.device_type(), {.products = products,
                          .threads = threads,
                          .rows = rows_of(what),
                          .tf32 = o.machine.tf32(),
                          .product_table = o.machine.product_table(),
                          .deterministic_attention = !o.machine.no_deterministic_attention(),
                          .graphs = !o.machine.no_cuda_graphs(),
                          .number = number_of_device(o),
                          .place = processes.place(),
                          .tell = all.first() ? &print_note : nullptr});
    const auto ranks = hosts.make_ranks(*device);
    const planes both{hosts, *ranks};
    if (const auto* evaluation = std::get_if<evaluation_request>(&request))
      return run_evaluation(p, *evaluation, *device, both, measured);
    if (const auto* generation = std::get_if<generation_request>(&request))
      return run_generation(p, *generation, *device, both);
    training_start& mine = starts[all.apart() ? 0 : static_cast<std::size_t>(hosts.rank())];
    trainer t(p, std::get<training_request>(request), *device, std::move(mine),
              &make_training_samples, both);
    if (all.first() && !o.report.bench_json() && !flags.empty()) print_on_the_way(flags);
    t.run();
  });
}

/// Says what the program is; on one rank, whatever it is laid out over.
inline void describe(const program_source& source, const program_view& p, const options& o,
                     device_maker& make_device) {
  const mesh ranks = o.machine.ranks() > 0 ? ranks_of_run(p, o) : mesh();
  if (o.report.graphs()) return print(graphs_text(p, source.model(), ranks));
  if (o.report.roofline.given() && p.numbers.precision.weight == dtype::f64)
    throw error(
        exit_code::usage,
        "--roofline is for programs of bf16 and f32, and this one computes in f64: leave it "
        "out");
  if (o.report.roofline.given())
    return print(o.report.json() ? roofline_json(p, source.model(), o.report.roofline())
                                 : roofline_text(p, source.model(), o.report.roofline()));
  const auto device = make_device(
      p.device_type(), {.products = product_type_of(o.machine.product_type()),
                        .threads = static_cast<int>(o.machine.threads()),
                        .deterministic_attention = !o.machine.no_deterministic_attention(),
                        .described = true});
  print(o.report.json() ? describe_json(p, source.model(), *device, ranks)
                        : describe_text(p, *device, ranks));
}

/// The names of flags that change nothing and are told. Throws mc::error(exit_code::usage) for
/// those that are refused.
inline std::vector<std::string> idle_flags_of(command what, options& o) {
  refusals refused;
  std::vector<std::string> told = apply_rules(what, o, refused);
  refused.raise();
  return told;
}

} // namespace detail

/// Carries out a command with flags that agree with the program p of the source, as the first of
/// `processes`, or as another one that was called with the word `called`, on devices that
/// `make_device` makes. Throws mc::error.
inline void carry_out(const program_source& source, const program_view& p, command what, options& o,
                      process_ranks& processes, const std::string& called,
                      device_maker& make_device) {
  if (what == command::describe && !processes.first())
    throw error(exit_code::mismatch,
                "this rank describes the program, and rank 0 does not: give all "
                "of them one command");
  if (what == command::describe) {
    processes.dismiss();
    if (o.model.load.given()) return detail::describe_states(o);
    detail::idle_flags_of(what, o);
    if (o.report.pictures.given()) return detail::draw_pictures(p, o, o.report.pictures());
    return detail::describe(source, p, o, make_device);
  }
  detail::require_connected(o, processes.several());
  if (what == command::convert) {
    const int n = detail::number_of_ranks(o, processes.size(), 1); // files have no layout
    const export_request request = export_request_of(o);
    if (processes.first()) processes.call("");
    return detail::on_ranks(mesh_of({}, n), what, o, processes,
                            [&](communicator& hosts) { run_export(p, request, hosts); });
  }
  const mesh ranks = detail::check_runnable(p, what, o, processes.size(), processes.first());
  require_memory(p, what, o, ranks, processes, detail::threads_of_rank(o, ranks, processes),
                 make_device);
  if (const std::string_view slow = why_slow(); processes.first() && !slow.empty())
    print_note(slow);
  training_start start = what != command::train ? training_start{}
                         : processes.first()    ? prepare_start(p, o)
                                                : prepare_named_start(called, o, p.name);
  // A run that goes on has the other flags of its state.
  const std::string idle = idle_flags{{}, detail::idle_flags_of(what, o)}.note();
  if (processes.first() && !idle.empty()) print_note(idle);
  const detail::computing_request request = detail::request_of(ranks, p, what, o);
  if (processes.first()) processes.call(name_of_start(start));
  detail::compute(ranks, p, what, o, request, std::move(start), processes, make_device);
}

} // namespace mc
