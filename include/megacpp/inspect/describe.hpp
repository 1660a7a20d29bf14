// The subcommand `describe`: a description as text or JSON.
#pragma once

#include <megacpp/inspect/built_for.hpp>
#include <megacpp/inspect/description.hpp>
#include <megacpp/inspect/roofline.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/product/product_json.hpp>
#include <megacpp/run/generation.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

inline std::vector<std::pair<const char*, std::int64_t>> memory_lines(const memory_items& m) {
  return {{"weights", m.weights},
          {"main grads", m.gradients},
          {"master weights", m.masters},
          {"moments", m.moments},
          {"saved activations", m.saved},
          {"residual streams", m.streams},
          {"working values", m.working},
          {"inputs", m.feeds},
          {"derived values", m.derived},
          {"mirrors", m.mirrors},
          {"scratch of kernels", m.kernels.scratch},
          {"workspace of products", m.kernels.workspace},
          {"tables of kernels", m.kernels.tables}};
}

/// Returns the schedule of a pipeline as text: " (1F1B, 2 virtual stages)"; "" for a single stage.
inline std::string pipeline_text(const layout& l) {
  if (l.pp == 1) return "";
  if (l.virtual_stages == 1) return fmt::format(" ({})", name_of_schedule(l));
  return fmt::format(" ({}, {} virtual stages)", name_of_schedule(l), l.virtual_stages);
}
inline std::string layout_text(const layout& l) {
  return fmt::format(
      "tp {}, pp {}{}, cp {}, ep {}, etp {}, sequence parallel {}, zero {}, dp chosen "
      "at start",
      l.tp, l.pp, pipeline_text(l), l.cp, l.ep, l.expert_tp(), l.sequence_parallel ? "on" : "off",
      l.zero);
}

inline std::string byte_count(std::int64_t n) {
  return std::string(bytes_text(static_cast<std::uint64_t>(n)).view());
}

/// Returns the pipeline stage whose ranks need most memory. stage_of_most_work is the one with most
/// to compute.
inline int stage_of_most_memory(const program_view& p, const mesh& ranks) {
  return largest_stage(p.numbers.ranks.pp,
                       [&](int stage) { return memory_of_stage(p, stage, true, ranks).total(); });
}
/// Returns the mesh, or the smallest one of the layout if its sizes are not known.
inline mesh known(const mesh& ranks, const program_view& p) {
  return ranks.sized(axis::dp) ? ranks : smallest_mesh(p.numbers.ranks);
}
inline int stage_of_most_work(const program_view& p) {
  return largest_stage(p.numbers.ranks.pp,
                       [&](int stage) { return work_of_step(p, 1, stage).total().flops; });
}
/// Returns the number of a pipeline stage as text: ", stage 3 of 0 ... 7, which has most"; "" for a
/// single stage.
inline std::string stage_text(const program_view& p, int stage) {
  const int last = p.numbers.ranks.pp - 1;
  return last > 0 ? fmt::format(", stage {} of 0 ... {}, which has most", stage, last) : "";
}

inline void describe_work(std::string& out, const program_view& p) {
  const int busiest = stage_of_most_work(p);
  const step_work w = work_of_step(p, 1, busiest);
  const auto line = [&](const char* name, const work& x) {
    fmt::format_to(std::back_inserter(out), "  {:<22}{:>18} FLOPs  {:>10} read  {:>10} written\n",
                   name, x.flops, byte_count(x.read), byte_count(x.written));
  };
  out += fmt::format("\nWork of one rank in a step of one micro-batch{}\n", stage_text(p, busiest));
  line("prologue", w.prologue);
  line("forward", w.forward);
  line("backward", w.backward);
  line("update", w.update);
  line("in all", w.total());
  const auto tokens = static_cast<double>(local_tokens(*p.block(0).g));
  fmt::format_to(std::back_inserter(out), "  {} FLOPs a token\n",
                 count_text(static_cast<double>(w.total().flops) / tokens).view());
}

inline std::string collectives_title(const program_view& p, const mesh& ranks) {
  return fmt::format("\nCollectives of a step of one micro-batch (dp {}{})\n", ranks.of(axis::dp),
                     p.numbers.ranks.pp > 1 ? ", all stages" : "");
}

/// Appends the number and the bytes of collectives, for each kind of collective and its axes, and
/// then the bytes for each set of axes.
inline void describe_communication(std::string& out, const program_view& p, const mesh& ranks) {
  out += collectives_title(p, ranks);
  const std::vector<collective_row> list = collectives_of(p, ranks);
  if (list.empty()) out += "  none\n";
  struct kind {
    collective what;
    axis_set over;
    std::int64_t times = 0, sent = 0;
  };
  std::vector<kind> kinds;
  for (const collective_row& e : list) {
    auto at = std::ranges::find_if(
        kinds, [&](const kind& k) { return k.what == e.call.what && k.over == e.call.over; });
    if (at == kinds.end()) at = kinds.insert(at, {e.call.what, e.call.over});
    at->times += e.per_step, at->sent += e.call.sent * e.per_step;
  }
  for (const kind& k : kinds)
    fmt::format_to(std::back_inserter(out),
                   "  {:<14} over {:<10}{:>6} times  {:>10} sent by a rank\n", name_of(k.what),
                   name_of(k.over), k.times, byte_count(k.sent));
  for (const auto& [over, sent] : bytes_by_group(list))
    fmt::format_to(std::back_inserter(out), "  {} sent by a rank over {}\n", byte_count(sent),
                   name_of(over));
}

inline void describe_collectives(std::string& out, const program_view& p, const mesh& ranks) {
  out += collectives_title(p, ranks);
  const std::vector<collective_row> list = collectives_of(p, ranks);
  if (list.empty()) out += "  none\n";
  for (const collective_row& e : list) {
    fmt::format_to(std::back_inserter(out),
                   "  {:<8} {:<9} {:<14} over {:<8} {}  {} ({} x {}, {} sent by a rank)  {}\n",
                   e.part, phase_text(e.when), name_of(e.call.what), name_of(e.call.over), e.cause,
                   e.value, e.per_step, byte_count(e.call.bytes), byte_count(e.call.sent),
                   line_text(e.line));
  }
}

/// Returns the number of elements that training updates. Padding is left out, and tied parameters
/// count once.
inline std::int64_t trained_parameters(const program_view& p) {
  std::int64_t n = 0;
  const std::vector<int> layers = layers_of_parts(p);
  for (int i = 0; i <= p.kinds() + 1; ++i) {
    const graph& g = *p.part(i).g;
    for (int k = 0; k < g.parameter_count; ++k)
      if (const parameter_info& info = g.parameters[static_cast<unsigned>(k)];
          !info.frozen && !info.tied)
        n += unpadded_size(g.at(info.v), info).n * layers[static_cast<unsigned>(i)];
  }
  return n;
}

inline void describe_parameters(std::string& out, const program_view& p) {
  out += "Parameters\n";
  const std::vector<int> layers = layers_of_parts(p);
  for (int i = 0; i <= p.kinds() + 1; ++i) {
    const graph& g = *p.part(i).g;
    for (int k = 0; k < g.parameter_count; ++k) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(k)];
      const value& v = g.at(info.v);
      const std::string where = placement_text(g.ranks, v.at);
      fmt::format_to(std::back_inserter(out), "  {:<8}{:>4} x {:<36} ({}) {}{}{}{}\n",
                     name_of_part(p, i), layers[static_cast<unsigned>(i)],
                     fmt::format("{}.{}", v.scope, v.name), dims_text(v),
                     info.encoding != nullptr ? info.encoding->name : name_of(v.type),
                     info.frozen  ? ", frozen"
                     : info.decay ? ", decays"
                                  : "",
                     info.tied ? ", tied" : "", where.empty() ? "" : " [" + where + "]");
    }
  }
}

inline void describe_graph(std::string& out, const graph& g) {
  for (int i = 0; i < g.node_count; ++i)
    fmt::format_to(std::back_inserter(out), "  {:>3} {}\n", i, node_text(g, g.at_node(i)));
}

/// Calls f(name, graph) for a part's graph as the model builds it and after each pass. The passes
/// run again, because a program holds only the last of these graphs.
template <class F> void each_pass(const model_part& part, F f) {
  f("the model", *part.g);
  after_passes(*part.g, part.options, 0, pass_count,
               [&](const pass& done, const graph& g) { f(done.name, g); });
}

inline void describe_passes(std::string& out, const program_view& p,
                            const std::vector<model_part>& model) {
  for (std::size_t i = 0; i < model.size(); ++i)
    each_pass(model[i], [&](const char* pass, const graph& g) {
      fmt::format_to(std::back_inserter(out), "\n{} after {}: {} nodes\n",
                     name_of_part(p, static_cast<int>(i)), pass, g.node_count);
      describe_graph(out, g);
    });
  for (int part : {part_of_totals(p.kinds()), part_of_update(p.kinds())}) {
    const graph& g = *p.part(part).g;
    fmt::format_to(std::back_inserter(out), "\n{}: {} nodes\n", name_of_part(p, part),
                   g.node_count);
    describe_graph(out, g);
  }
}

} // namespace detail

/// Returns the text of `describe`, the most important facts of a program. Memory and collectives
/// are those of the mesh `ranks`; without known sizes they are those of one replica and of the
/// smallest mesh.
inline std::string describe_text(const program_view& p, device& on, const mesh& ranks = {}) {
  std::string out;
  const auto at = std::back_inserter(out);
  const int largest = detail::stage_of_most_memory(p, ranks);
  memory_items memory = memory_of_stage(p, largest, true, ranks);
  memory.kernels = room_of(p.parts, on, true);
  fmt::format_to(at, "{}\n", p.name);
  fmt::format_to(at, "  model                 {}: {} layers, hidden {}, vocabulary {}\n",
                 p.family.name, p.layers, p.hidden, p.vocabulary);
  for (const model_number& n : p.model.numbers)
    fmt::format_to(at, "    {:<19} {}\n", n.name, n.value);
  fmt::format_to(at, "  parameters            {}\n", p.parameters);
  if (const frozen& f = p.numbers.frozen; f.count > 0)
    fmt::format_to(at, "  frozen                {}: {} parameters are trained\n",
                   fmt::join(f.names, f.names + f.count, ", "), detail::trained_parameters(p));
  if (const lora& a = p.numbers.adapter; a.rank > 0) {
    int in = 0; // layers that have it
    for (int l = 0; l < p.layers; ++l) in += a.is_in(l);
    fmt::format_to(
        at, "  adapter               rank {}, scale {:.6g}, {}{}{}{}: {} parameters are trained\n",
        a.rank, a.scale(), fmt::join(a.targets.names, a.targets.names + a.targets.count, ", "),
        a.excluded.count == 0 ? "" : " but ",
        fmt::join(a.excluded.names, a.excluded.names + a.excluded.count, ", "),
        in == p.layers ? "" : fmt::format(" in {} of {} layers", in, p.layers),
        detail::trained_parameters(p));
  }
  fmt::format_to(at, "  layout                {}\n", detail::layout_text(p.numbers.ranks));
  fmt::format_to(at, "  micro-batch           {} x {} tokens\n", p.numbers.batch.micro,
                 p.numbers.batch.sequence);
  fmt::format_to(at, "  precision             {}, sums and masters {}\n",
                 name_of(p.numbers.precision.weight), name_of(p.numbers.precision.master));
  if (const precision_policy& of = p.numbers.precision; of.narrows_moments())
    fmt::format_to(at, "  moments               {}, rounded by chance\n", name_of(of.moment));
  if (const precision_policy& of = p.numbers.precision; of.wire != of.main_gradient)
    fmt::format_to(at, "  gradients sent in     {}\n", name_of(of.wire));
  fmt::format_to(at, "  recomputation         {}\n", name_of(p.numbers.recompute_policy));
  fmt::format_to(at, "  numerics              {}\n", name_of(p.numbers.sums));
  fmt::format_to(at, "  built for             {}\n", processors_of().text());
  fmt::format_to(at, "  products              {}, {} threads\n",
                 on.products().describe(p.numbers.precision.weight), on.threads());
  const product_checks& checks = on.products().checks();
  if (checks.checked > 0)
    fmt::format_to(
        at,
        "  checked               {} kinds of tiles in {:.1f} ms, beside {:.1f} ms in the "
        "library, its first product included; {} wrong\n",
        checks.checked, 1e3 * checks.seconds, 1e3 * checks.library_seconds, checks.refused.size());
  for (const std::string& line : checks.refused) fmt::format_to(at, "    {}\n", line);
  if (const attention_source* const of = on.attention()) {
    fmt::format_to(at, "  attention             {}\n", of->describe());
    for (const std::string& line : of->left()) fmt::format_to(at, "    {}\n", line);
  }
  const std::string why_not = why_no_generation(p);
  fmt::format_to(at, "  generates             {}\n", why_not.empty() ? "yes" : "no; " + why_not);

  out +=
      fmt::format("\nMemory of one rank for training (dp {}{})\n",
                  ranks.sized(axis::dp) ? ranks.of(axis::dp) : 1, detail::stage_text(p, largest));
  for (const auto& [name, bytes] : detail::memory_lines(memory))
    fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", name, bytes, detail::byte_count(bytes));
  fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", "in all", memory.total(),
                 detail::byte_count(memory.total()));

  detail::describe_work(out, p);
  detail::describe_communication(out, p, detail::known(ranks, p));
  out +=
      "\n--graphs lists the parameters, each collective with its line of the model, and the graphs "
      "after each pass\n";
  return out;
}

/// Returns the text of `describe --graphs`: each parameter, each collective and each node.
inline std::string graphs_text(const program_view& p, const std::vector<model_part>& model,
                               const mesh& ranks = {}) {
  std::string out;
  detail::describe_parameters(out, p);
  detail::describe_collectives(out, p, detail::known(ranks, p));
  detail::describe_passes(out, p, model);
  return out;
}

namespace detail {

/// Returns the bytes that a stage need not move in a micro-batch because fused nodes took the place
/// of several (pass/fuse.hpp).
inline std::int64_t bytes_fused_away(const program_view& p, const std::vector<model_part>& model,
                                     int of_stage) {
  const auto moved = [](const graph& g) {
    const work w = work_of(g, {phase::forward, backward_pass.last});
    return w.read + w.written;
  };
  const stage_shape s = stage_of(p, of_stage);
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < model.size(); ++i) {
    std::int64_t before = 0, saved = 0;
    each_pass(model[i], [&](std::string_view pass, const graph& g) {
      const std::int64_t now = moved(g);
      if (pass == "fuse") saved = before - now;
      before = now;
    });
    for (int use = 0; use < s.training.uses; ++use)
      if (s.uses[s.training.use(use)].part == static_cast<int>(i)) bytes += saved;
  }
  return bytes;
}

} // namespace detail

/// Returns the text of `describe --roofline`.
inline std::string roofline_text(const program_view& p, const std::vector<model_part>& model,
                                 std::string_view gpu) {
  const gpu_ceilings& c = ceilings_of(gpu);
  const auto [all, stage] = slowest_roofline(p, c);
  std::string out = fmt::format(
      "{} on {}, about, of one rank{}\n"
      "  {:.2f} TB/s read and written{}, products {:.0f} TFLOP/s in bf16 and {:.0f}, an estimate, "
      "in "
      "fp32\n\n"
      "  {:<26}{:>6}{:>12}{:>12}{:>10}{:>8}  {}\n",
      p.name, c.called, detail::stage_text(p, stage), 1e-12 * c.copied,
      c.name == "h100" ? "" : ", an estimate", 1e-12 * c.bf16, 1e-12 * c.fp32,
      "op, in one micro-batch", "nodes", "TFLOP", "bytes", "ms", "share", "held back by");
  const layout& l = p.numbers.ranks;
  const int sharing = l.tp * l.cp * l.pp;
  const double whole = all.micro_batch + all.update;
  for (const roofline_row& r : all.rows)
    out += fmt::format("  {:<26}{:>6}{:>12.4f}{:>12}{:>10.4f}{:>7.1f}%  {}\n", r.op, r.nodes,
                       1e-12 * static_cast<double>(r.does.flops),
                       detail::byte_count(r.does.read + r.does.written), 1e3 * r.seconds,
                       100 * r.seconds / whole,
                       r.of_arithmetic == 0           ? "memory"
                       : r.of_arithmetic == r.seconds ? "arithmetic"
                                                      : "both");
  out += fmt::format(
      "\n  a micro-batch {:.3f} ms, what a step does once {:.3f} ms\n"
      "  {:.0f} tokens/s of {} and an MFU of {:.1f} % in steps of many micro-batches (of {:.1f} "
      "TFLOP/s)\n"
      "  fused ops move {} less in a micro-batch than their parts would, recomputation aside\n",
      1e3 * all.micro_batch, 1e3 * all.update, static_cast<double>(all.tokens) / all.micro_batch,
      sharing == 1 ? "a GPU" : fmt::format("the {} ranks that share a micro-batch", sharing),
      100 * all.mfu(c.peak_bf16), 1e-12 * c.peak_bf16,
      detail::byte_count(detail::bytes_fused_away(p, model, stage)));
  if (sharing > 1)
    out += "  the wire between ranks and the time in which stages idle are left out\n";
  return out;
}
/// Returns the data of `describe --roofline` as one JSON object.
inline std::string roofline_json(const program_view& p, const std::vector<model_part>& model,
                                 std::string_view gpu) {
  const gpu_ceilings& c = ceilings_of(gpu);
  const auto [all, stage] = slowest_roofline(p, c);
  json_output ops = json_output::array();
  for (const roofline_row& r : all.rows)
    ops.push_back({{"op", r.op},
                   {"nodes", r.nodes},
                   {"flops", r.does.flops},
                   {"read", r.does.read},
                   {"written", r.does.written},
                   {"seconds", json_number(r.seconds)},
                   {"held_back_by_arithmetic", json_number(r.of_arithmetic)}});
  return json_line({{"name", p.name},
                    {"gpu", std::string(c.name)},
                    {"stage", stage},
                    {"ops", std::move(ops)},
                    {"micro_batch_seconds", json_number(all.micro_batch)},
                    {"once_a_step_seconds", json_number(all.update)},
                    {"tokens", all.tokens},
                    {"mfu", json_number(all.mfu(c.peak_bf16))},
                    {"bytes_fused_away", detail::bytes_fused_away(p, model, stage)}});
}

namespace detail {

inline json_output work_json(const step_work& w) {
  const auto stage = [](const work& x) {
    return json_output{{"flops", x.flops}, {"read", x.read}, {"written", x.written}};
  };
  return {{"prologue", stage(w.prologue)},
          {"forward", stage(w.forward)},
          {"backward", stage(w.backward)},
          {"update", stage(w.update)}};
}

inline json_output collectives_json(const program_view& p, const mesh& ranks) {
  json_output list = json_output::array();
  for (const collective_row& e : collectives_of(p, ranks)) {
    json_output over = json_output::array();
    for (int a = 0; a < axes; ++a)
      if (e.call.over.has(static_cast<axis>(a))) over.push_back(name_of(static_cast<axis>(a)));
    list.push_back({{"part", e.part},
                    {"phase", phase_text(e.when)},
                    {"what", name_of(e.call.what)},
                    {"axes", std::move(over)},
                    {"cause", e.cause},
                    {"value", e.value},
                    {"ranks", e.ranks},
                    {"bytes", e.call.bytes},
                    {"sent", e.call.sent},
                    {"per_step", e.per_step},
                    {"line", line_text(e.line)}});
  }
  return list;
}

/// Returns the graphs of all parts after each pass, as {part: {pass: [node, ...]}}.
inline json_output graphs_json(const program_view& p, const std::vector<model_part>& model) {
  json_output parts = json_output::object();
  for (std::size_t i = 0; i < model.size(); ++i) {
    json_output& part = parts[name_of_part(p, static_cast<int>(i))] = json_output::object();
    each_pass(model[i], [&](const char* pass, const graph& g) {
      json_output& nodes = part[pass] = json_output::array();
      for (int k = 0; k < g.node_count; ++k) nodes.push_back(node_text(g, g.at_node(k)));
    });
  }
  return parts;
}

/// Calls f(part, number) for the parts that decode one token of one sequence, with caches for
/// `room` tokens.
template <class F> void for_each_decoding_part(const program_view& p, std::int64_t room, F f) {
  const setup s = for_generation(p.numbers, 1, p.numbers.ranks.tp, room);
  for (int i = 0; i <= p.kinds() + 1; ++i) {
    const auto g = std::make_unique<graph>(generation_graph(p, s, i));
    f(*p.generation.part(after_passes(*g, {}), i), i);
  }
}
/// Prepares the matrix products of one decoded token of one sequence, on a device that only counts
/// sizes.
inline void prepare_decoding(const program_view& p, device& on) {
  for_each_decoding_part(p, 2 * p.numbers.ranks.tp, [&](const planned_part& part, int) {
    std::vector<prepared_node> prepared(static_cast<std::size_t>(part.g.node_count));
    const part_view view = part.view();
    view.prepare(view, on, prepared.data(), false);
  });
}
/// Returns the bytes that one rank of each stage reads and writes for the last token of a sequence
/// that is as long as those of training: all weights, except that it reads one row of a table of
/// tokens or positions, and the caches, which are listed once more.
inline json_output decoding_json(const program_view& p) {
  const std::int64_t tokens = std::min<std::int64_t>(p.numbers.batch.sequence, p.positions);
  const std::vector<int> layers = layers_of_parts(p);
  work w;
  std::int64_t caches = 0;
  for_each_decoding_part(p, tokens, [&](const planned_part& part, int i) {
    const int n = layers[static_cast<unsigned>(i)];
    w += mc::times(work_of(part.g, phase::forward), n);
    for_each_cache(part.g,
                   [&](value_id v) { caches += n * local_bytes(part.g.ranks, part.g.at(v)); });
  });
  return {{"tokens", tokens}, {"read", w.read}, {"caches", caches}, {"written", w.written}};
}
/// Returns the shapes of a program's matrix products: those of training and evaluation, which `on`
/// has prepared, and the product by which a run measures this machine's speed. If the device has
/// memory of its own, those of generation follow: there each row of a forward product is computed
/// apart (product_rows::apart), as one row is.
inline json_output shapes_json(const program_view& p, device& on, bool generates) {
  std::vector<product_shape> all = on.products().shapes();
  if (generates && !on.host_sees()) {
    const std::size_t before = all.size();
    prepare_decoding(p, on);
    all = on.products().shapes();
    for (std::size_t i = before; i < all.size(); ++i)
      if (all[i].kind == product_kind::forward) all[i].segment = 1;
  }
  all.push_back(product_speed::shape_of(p.numbers.precision.weight));
  json_output list = json_output::array();
  for (auto s = all.begin(); s != all.end(); ++s)
    if (std::find(all.begin(), s, *s) == s) list.push_back(json_of(*s));
  return list;
}

} // namespace detail

/// Returns the description of a program as one JSON object.
inline std::string describe_json(const program_view& p, const std::vector<model_part>& model,
                                 device& on, const mesh& ranks = {}) {
  const layout& l = p.numbers.ranks;
  json_output numbers = json_output::object(), memory = json_output::object();
  for (const model_number& n : p.model.numbers) numbers[n.name] = json_number(n.value);
  json_output stage_layers = json_output::array(); // number of layers of each virtual stage
  for (int v = 0; v < l.pp * l.virtual_stages; ++v)
    stage_layers.push_back(layers_of_stage(l, p.layers, v));
  const int largest = detail::stage_of_most_memory(p, ranks),
            busiest = detail::stage_of_most_work(p);
  memory_items items = memory_of_stage(p, largest, true, ranks);
  items.kernels = room_of(p.parts, on, true);
  for (const auto& [name, bytes] : detail::memory_lines(items)) memory[name] = bytes;
  memory["in all"] = items.total();
  const std::string why_not = why_no_generation(p);
  const product_checks& checks = on.products().checks();

  json_output d{
      {"name", p.name},
      {"family", p.family.name},
      {"model", std::move(numbers)},
      {"layers", p.layers},
      {"hidden", p.hidden},
      {"vocabulary", p.vocabulary},
      {"parameters", p.parameters},
      {"trained_parameters", detail::trained_parameters(p)},
      {"frozen", std::vector<std::string>(p.numbers.frozen.names,
                                          p.numbers.frozen.names + p.numbers.frozen.count)},
      {"layout",
       {{"tp", l.tp},
        {"pp", l.pp},
        {"cp", l.cp},
        {"ep", l.ep},
        {"etp", l.expert_tp()},
        {"sequence_parallel", l.sequence_parallel},
        {"virtual_stages", l.virtual_stages},
        {"schedule", name_of_schedule(l)},
        {"stage_layers", std::move(stage_layers)},
        {"zero", l.zero}}},
      {"micro_batch", p.numbers.batch.micro},
      {"sequence", p.numbers.batch.sequence},
      {"precision", name_of(p.numbers.precision.weight)},
      {"recompute", name_of(p.numbers.recompute_policy)},
      {"numerics", name_of(p.numbers.sums)},
      {"products", on.products().describe(p.numbers.precision.weight)},
      {"attention", on.attention() == nullptr ? "by tiles" : on.attention()->describe()},
      {"threads", on.threads()},
      {"product_checks",
       {{"tiles", checks.checked},
        {"seconds", json_number(checks.seconds)},
        {"library_seconds", json_number(checks.library_seconds)},
        {"wrong", checks.refused}}},
      {"generates", why_not.empty()}};
  if (!why_not.empty()) d["cannot_generate"] = why_not;
  const processors_built_for processors = processors_of();
  d["built_for"] = {{"level", processors.level}, {"also", processors.also}};
  d["memory_stage"] = largest;
  d["work_stage"] = busiest;
  d["memory"] = std::move(memory);
  d["work"] = detail::work_json(work_of_step(p, 1, busiest));
  if (why_not.empty()) d["decoding"] = detail::decoding_json(p);
  d["collectives"] = detail::collectives_json(p, detail::known(ranks, p));
  d["product_shapes"] = detail::shapes_json(p, on, why_not.empty());
  d["graphs"] = detail::graphs_json(p, model);
  return json_line(d);
}

} // namespace mc
