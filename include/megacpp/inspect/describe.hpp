// The subcommand `describe`: a description as text or JSON.
#pragma once

#include <megacpp/inspect/description.hpp>
#include <megacpp/observe/metrics.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/run/generation.hpp>

#include <concepts>
#include <iterator>
#include <utility>

namespace mc {

namespace detail {

/// JSON written front to back.
class json_text {
public:
  json_text& open(char bracket) { return begin().put(bracket); }
  json_text& open(std::string_view name, char bracket) { return key(name).put(bracket); }
  json_text& close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
  }
  json_text& field(std::string_view name, std::string_view value) {
    key(name);
    append_json_text(text_, value);
    return *this;
  }
  json_text& field(std::string_view name, const char* value) {
    return field(name, std::string_view(value));
  }
  json_text& field(std::string_view name, std::integral auto value) {
    key(name).text_ += fmt::format("{}", value);
    return *this;
  }
  json_text& field(std::string_view name, double value) {
    append_json_number(key(name).text_, value);
    return *this;
  }
  json_text& item(std::integral auto value) {
    begin().text_ += fmt::format("{}", value);
    return *this;
  }
  json_text& item(std::string_view value) {
    append_json_text(begin().text_, value);
    return *this;
  }
  const std::string& text() const { return text_; }

private:
  json_text& begin() {
    if (!first_) text_ += ",";
    first_ = false;
    return *this;
  }
  json_text& key(std::string_view name) {
    append_json_text(begin().text_, name);
    text_ += ":";
    return *this;
  }
  json_text& put(char bracket) {
    text_ += bracket;
    first_ = true;
    return *this;
  }

  std::string text_;
  bool first_ = true;
};

inline std::vector<std::pair<const char*, std::int64_t>> memory_lines(const memory_items& m) {
  return {{"weights", m.weights},         {"main grads", m.gradients},
          {"master weights", m.masters},  {"moments", m.moments},
          {"saved activations", m.saved}, {"residual streams", m.streams},
          {"working values", m.working},  {"inputs", m.feeds},
          {"derived values", m.derived}};
}

inline std::string layout_text(const layout& l) {
  return fmt::format("tp {}, pp {}, cp {}, ep {}, etp {}, sequence parallel {}, dp chosen at start",
                     l.tp, l.pp, l.cp, l.ep, l.expert_tp(), l.sequence_parallel ? "on" : "off");
}

inline std::string byte_count(std::int64_t n) {
  return std::string(bytes_text(static_cast<std::uint64_t>(n)).view());
}

/// The pipeline stages of which one rank needs most memory, and has most to compute.
inline int stage_of_most_memory(const program_view& p) {
  return largest_stage(p.numbers.ranks.pp,
                       [&](int stage) { return memory_of_stage(p, stage).total(); });
}
inline int stage_of_most_work(const program_view& p) {
  return largest_stage(p.numbers.ranks.pp,
                       [&](int stage) { return work_of_step(p, 1, stage).total().flops; });
}
/// ", stage 3 of 0 ... 7, which has most"; nothing of a single one.
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

inline void describe_collectives(std::string& out, const program_view& p) {
  const mesh ranks = smallest_mesh(p.numbers.ranks);
  out += fmt::format("\nCollectives of a step of one micro-batch (dp {}{})\n", ranks.of(axis::dp),
                     p.numbers.ranks.pp > 1 ? ", all stages" : "");
  const std::vector<collective_entry> list = collectives_of(p);
  if (list.empty()) out += "  none\n";
  for (const collective_entry& e : list) {
    fmt::format_to(std::back_inserter(out),
                   "  {:<8} {:<9} {:<14} over {:<4} {} -> {}  {} ({} x {}, {} sent by a rank)\n",
                   e.part, phase_text(e.when), name_of(e.what), name_of(e.over), place_text(e.from),
                   place_text(e.to), e.value, e.per_step, byte_count(e.bytes), byte_count(e.sent));
  }
}

inline void describe_parameters(std::string& out, const program_view& p) {
  out += "\nParameters\n";
  const std::vector<int> layers = layers_of_parts(p);
  for (int i = 0; i <= p.kinds() + 1; ++i) {
    const graph& g = *p.part(i).g;
    for (int k = 0; k < g.parameter_count; ++k) {
      const parameter_info& info = g.parameters[static_cast<unsigned>(k)];
      const value& v = g.at(info.v);
      const std::string where = placement_text(g.ranks, v.at);
      fmt::format_to(std::back_inserter(out), "  {:<8}{:>4} x {:<36} ({}) {}{}{}{}\n",
                     name_of_part(p, i), layers[static_cast<unsigned>(i)],
                     fmt::format("{}.{}", v.scope, v.name), dims_text(v), name_of(v.type),
                     info.decay ? ", decays" : "", info.tied ? ", tied" : "",
                     where.empty() ? "" : " [" + where + "]");
    }
  }
}

inline void describe_graph(std::string& out, const graph& g) {
  for (int i = 0; i < g.node_count; ++i)
    fmt::format_to(std::back_inserter(out), "  {:>3} {}\n", i, node_text(g, g.at_node(i)));
}

inline void describe_passes(std::string& out, const program_view& p, const part_passes& passes) {
  for (std::size_t i = 0; i < passes.size(); ++i) {
    for (const pass_view& pass : passes[i]) {
      fmt::format_to(std::back_inserter(out), "\n{} after {}: {} nodes\n",
                     name_of_part(p, static_cast<int>(i)), pass.name, pass.g->node_count);
      describe_graph(out, *pass.g);
    }
  }
  for (int part : {part_of_totals(p.kinds()), part_of_update(p.kinds())}) {
    const graph& g = *p.part(part).g;
    fmt::format_to(std::back_inserter(out), "\n{}: {} nodes\n", name_of_part(p, part),
                   g.node_count);
    describe_graph(out, g);
  }
}

} // namespace detail

/// The text of `describe`.
inline std::string describe_text(const program_view& p, const part_passes& passes, device& on) {
  std::string out;
  const auto at = std::back_inserter(out);
  const int largest = detail::stage_of_most_memory(p);
  const memory_items memory = memory_of_stage(p, largest);
  fmt::format_to(at, "{}\n", p.name);
  fmt::format_to(at, "  model                 {}: {} layers, hidden {}, vocabulary {}\n",
                 p.family.name, p.layers, p.hidden, p.vocabulary);
  for (const model_number& n : p.model.numbers)
    fmt::format_to(at, "    {:<20}{}\n", n.name, n.value);
  fmt::format_to(at, "  parameters            {}\n", p.parameters);
  fmt::format_to(at, "  layout                {}\n", detail::layout_text(p.numbers.ranks));
  fmt::format_to(at, "  micro-batch           {} x {} tokens\n", p.numbers.batch.micro,
                 p.numbers.batch.sequence);
  fmt::format_to(at, "  precision             {}, sums and masters {}\n", name_of(p.numbers.type),
                 name_of(accumulator_of(p.numbers.type)));
  fmt::format_to(at, "  recomputation         {}\n", name_of(p.numbers.again));
  fmt::format_to(at, "  products              {}, {} threads\n",
                 on.products().describe(p.numbers.type), on.threads());
  const std::string why_not = why_no_generation(p);
  fmt::format_to(at, "  generates             {}\n", why_not.empty() ? "yes" : "no; " + why_not);

  out +=
      fmt::format("\nMemory of one rank for training (dp 1{})\n", detail::stage_text(p, largest));
  for (const auto& [name, bytes] : detail::memory_lines(memory))
    fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", name, bytes, detail::byte_count(bytes));
  fmt::format_to(at, "  {:<22}{:>16} bytes  {:>10}\n", "in all", memory.total(),
                 detail::byte_count(memory.total()));

  detail::describe_work(out, p);
  detail::describe_collectives(out, p);
  detail::describe_parameters(out, p);
  detail::describe_passes(out, p, passes);
  return out;
}

/// The same as one JSON object.
inline std::string describe_json(const program_view& p, const part_passes& passes, device& on) {
  detail::json_text d;
  const layout& l = p.numbers.ranks;
  d.open('{');
  d.field("name", p.name).field("family", p.family.name);
  d.open("model", '{');
  for (const model_number& n : p.model.numbers) d.field(n.name, n.value);
  d.close('}');
  d.field("layers", p.layers).field("hidden", p.hidden).field("vocabulary", p.vocabulary);
  d.field("parameters", p.parameters);
  d.open("layout", '{');
  d.field("tp", l.tp).field("pp", l.pp).field("cp", l.cp).field("ep", l.ep);
  d.field("etp", l.expert_tp()).field("sequence_parallel", l.sequence_parallel);
  d.close('}');
  d.field("micro_batch", p.numbers.batch.micro).field("sequence", p.numbers.batch.sequence);
  d.field("precision", name_of(p.numbers.type)).field("recompute", name_of(p.numbers.again));
  d.field("products", on.products().describe(p.numbers.type)).field("threads", on.threads());
  const std::string why_not = why_no_generation(p);
  d.field("generates", why_not.empty());
  if (!why_not.empty()) d.field("cannot_generate", why_not);

  const int largest = detail::stage_of_most_memory(p), busiest = detail::stage_of_most_work(p);
  d.field("memory_stage", largest).field("work_stage", busiest);
  d.open("memory", '{');
  const memory_items memory = memory_of_stage(p, largest);
  for (const auto& [name, bytes] : detail::memory_lines(memory)) d.field(name, bytes);
  d.field("in all", memory.total()).close('}');
  d.open("work", '{');
  const step_work w = work_of_step(p, 1, busiest);
  const auto stage = [&d](const char* name, const work& x) {
    d.open(name, '{');
    d.field("flops", x.flops).field("read", x.read).field("written", x.written).close('}');
  };
  stage("prologue", w.prologue);
  stage("forward", w.forward);
  stage("backward", w.backward);
  stage("update", w.update);
  d.close('}');
  d.open("collectives", '[');
  for (const collective_entry& e : collectives_of(p)) {
    d.open('{');
    d.field("part", e.part).field("phase", phase_text(e.when)).field("what", name_of(e.what));
    d.field("axis", name_of(e.over))
        .field("from", place_text(e.from))
        .field("to", place_text(e.to));
    d.field("value", e.value).field("ranks", e.ranks).field("bytes", e.bytes);
    d.field("sent", e.sent).field("per_step", e.per_step).close('}');
  }
  d.close(']');
  d.open("graphs", '{');
  for (std::size_t i = 0; i < passes.size(); ++i) {
    d.open(name_of_part(p, static_cast<int>(i)), '{');
    for (const pass_view& pass : passes[i]) {
      d.open(pass.name, '[');
      for (int k = 0; k < pass.g->node_count; ++k) d.item(node_text(*pass.g, pass.g->at_node(k)));
      d.close(']');
    }
    d.close('}');
  }
  d.close('}').close('}');
  return d.text() + "\n";
}

} // namespace mc
