// The subcommand `describe`: a description as text or JSON.
#pragma once

#include <megacpp/exec/machine.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/run/stores.hpp>
#include <megacpp/train/description.hpp>
#include <megacpp/train/print.hpp>

#include <iterator>
#include <utility>

#include <nlohmann/json.hpp>

namespace mc {

namespace detail {

inline std::vector<std::pair<const char*, std::int64_t>> memory_lines(const memory_items& m) {
  return {{"weights", m.weights},   {"main grads", m.gradients}, {"master weights", m.masters},
          {"moments", m.moments},   {"saved activations", m.saved}, {"residual streams", m.streams},
          {"working values", m.working}, {"inputs", m.feeds},    {"derived values", m.derived}};
}

inline std::string layout_text(const layout& l) {
  return fmt::format("tp {}, pp {}, cp {}, ep {}, etp {}, sequence parallel {}, dp chosen at start", l.tp,
                     l.pp, l.cp, l.ep, l.expert_tp(), l.sequence_parallel ? "on" : "off");
}

inline std::string byte_count(std::int64_t n) {
  return std::string(bytes_text(static_cast<std::uint64_t>(n)).view());
}

inline void describe_work(std::string& out, const program_view& p) {
  const step_work w = work_of_step(p, 1);
  const auto line = [&](const char* name, const work& x) {
    fmt::format_to(std::back_inserter(out), "  {:<22}{:>18} FLOPs  {:>10} read  {:>10} written\n", name,
                   x.flops, byte_count(x.read), byte_count(x.written));
  };
  out += "\nWork of one rank in a step of one micro-batch\n";
  line("prologue", w.prologue);
  line("forward", w.forward);
  line("backward", w.backward);
  line("update", w.update);
  line("in all", w.total());
  const auto tokens = static_cast<double>(local_tokens(*p.blocks[0].g));
  fmt::format_to(std::back_inserter(out), "  {} FLOPs a token\n",
                 count_text(static_cast<double>(w.total().flops) / tokens).view());
}

inline void describe_collectives(std::string& out, const program_view& p) {
  out += "\nCollectives of a step of one micro-batch\n";
  const std::vector<collective_entry> list = collectives_of(p);
  if (list.empty()) out += "  none\n";
  for (const collective_entry& e : list) {
    const std::string sent = e.ranks > 0 ? byte_count(e.sent) + " sent by a rank"
                                         : fmt::format("ranks of {} known at start", name_of(e.over));
    fmt::format_to(std::back_inserter(out),
                   "  {:<8} {:<9} {:<14} over {:<4} {} -> {}  {} ({} x {}, {})\n", e.part,
                   phase_text(e.when), name_of(e.what), name_of(e.over), place_text(e.from),
                   place_text(e.to), e.value, e.per_step, byte_count(e.bytes), sent);
  }
}

inline void describe_graph(std::string& out, const graph& g) {
  for (int i = 0; i < g.node_count; ++i)
    fmt::format_to(std::back_inserter(out), "  {:>3} {}\n", i, node_text(g, g.at_node(i)));
}

inline void describe_passes(std::string& out, const program_view& p, const part_passes& passes) {
  const std::vector<std::string> names = part_names(p);
  for (std::size_t i = 0; i < passes.size(); ++i) {
    const graph* before = nullptr;
    const char* name_before = "";
    for (const pass_view& pass : passes[i]) {
      fmt::format_to(std::back_inserter(out), "\n{} after {}: {} nodes\n", names[i], pass.name,
                     pass.g->node_count);
      std::string now, then;
      describe_graph(now, *pass.g);
      if (before != nullptr) describe_graph(then, *before);
      if (before != nullptr && now == then)
        fmt::format_to(std::back_inserter(out), "  as after {}\n", name_before);
      else out += now;
      before = pass.g;
      name_before = pass.name;
    }
  }
  fmt::format_to(std::back_inserter(out), "\nupdate: {} nodes\n", p.update.g->node_count);
  describe_graph(out, *p.update.g);
}

} // namespace detail

/// The text of `describe`.
inline std::string describe_text(const program_view& p, const part_passes& passes, cpu& device) {
  std::string out;
  const auto at = std::back_inserter(out);
  const memory_items memory = memory_of(p);
  fmt::format_to(at, "{}\n", p.name);
  fmt::format_to(at, "  model                 {}: {} layers, hidden {}, vocabulary {}\n", p.family, p.layers,
                 p.hidden, p.vocabulary);
  fmt::format_to(at, "  parameters            {}\n", p.parameters);
  fmt::format_to(at, "  layout                {}\n", detail::layout_text(p.numbers.ranks));
  fmt::format_to(at, "  micro-batch           {} x {} tokens\n", p.numbers.batch.micro,
                 p.numbers.batch.sequence);
  fmt::format_to(at, "  precision             {}, sums and masters {}\n", name_of(p.numbers.type),
                 name_of(accumulator_of(p.numbers.type)));
  fmt::format_to(at, "  recomputation         {}\n", name_of(p.numbers.again));
  fmt::format_to(at, "  products              {}, {} threads\n",
                 device.products().describe(p.numbers.type), device.threads());

  out += "\nMemory of one rank for training (dp 1)\n";
  for (const auto& [name, bytes] : detail::memory_lines(memory))
    fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", name, bytes, detail::byte_count(bytes));
  fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", "in all", memory.total(),
                 detail::byte_count(memory.total()));

  detail::describe_work(out, p);
  detail::describe_collectives(out, p);
  out += "\nParameters\n";
  for_each_parameter(p, [&](const parameter_ref& r) {
    const std::string where = placement_text(p.stem.g->ranks, r.v->at);
    fmt::format_to(at, "  {:<44} ({}) {}{}{}\n", r.name, dims_text(*r.v), name_of(r.v->type),
                   r.info->decay ? ", decays" : "", where.empty() ? "" : " [" + where + "]");
  });
  detail::describe_passes(out, p, passes);
  return out;
}

/// The same as one JSON object.
inline std::string describe_json(const program_view& p, const part_passes& passes, cpu& device) {
  using json = nlohmann::ordered_json;
  const layout& l = p.numbers.ranks;
  json d;
  d["name"] = p.name;
  d["family"] = p.family;
  d["layers"] = p.layers, d["hidden"] = p.hidden, d["vocabulary"] = p.vocabulary;
  d["parameters"] = p.parameters;
  d["layout"] = {{"tp", l.tp}, {"pp", l.pp}, {"cp", l.cp}, {"ep", l.ep}, {"etp", l.expert_tp()},
                 {"sequence_parallel", l.sequence_parallel}};
  d["micro_batch"] = p.numbers.batch.micro, d["sequence"] = p.numbers.batch.sequence;
  d["precision"] = name_of(p.numbers.type);
  d["recompute"] = name_of(p.numbers.again);
  d["products"] = device.products().describe(p.numbers.type);
  d["threads"] = device.threads();
  const memory_items memory = memory_of(p);
  for (const auto& [name, bytes] : detail::memory_lines(memory)) d["memory"][name] = bytes;
  d["memory"]["in all"] = memory.total();
  const step_work w = work_of_step(p, 1);
  const auto work_of = [](const work& x) {
    return json{{"flops", x.flops}, {"read", x.read}, {"written", x.written}};
  };
  d["work"] = {{"prologue", work_of(w.prologue)}, {"forward", work_of(w.forward)},
               {"backward", work_of(w.backward)}, {"update", work_of(w.update)}};
  d["collectives"] = json::array();
  for (const collective_entry& e : collectives_of(p))
    d["collectives"].push_back({{"part", e.part}, {"phase", phase_text(e.when)}, {"what", name_of(e.what)},
                                {"axis", name_of(e.over)}, {"from", place_text(e.from)},
                                {"to", place_text(e.to)}, {"value", e.value}, {"ranks", e.ranks},
                                {"bytes", e.bytes}, {"sent", e.sent}, {"per_step", e.per_step}});
  const std::vector<std::string> names = part_names(p);
  for (std::size_t i = 0; i < passes.size(); ++i)
    for (const pass_view& pass : passes[i]) {
      json nodes = json::array();
      for (int k = 0; k < pass.g->node_count; ++k)
        nodes.push_back(node_text(*pass.g, pass.g->at_node(k)));
      d["graphs"][names[i]][pass.name] = std::move(nodes);
    }
  return d.dump(2) + "\n";
}

} // namespace mc
