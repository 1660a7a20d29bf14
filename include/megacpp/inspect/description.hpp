// The facts that `describe` prints about a program, as data: passes, collectives, memory, work. No
// session is made, so that one process can describe layouts of many ranks.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/graph/builder.hpp>
#include <megacpp/inspect/work.hpp>
#include <megacpp/op/redistribute.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/run/program_source.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

inline std::string place_text(place p) {
  switch (p.s) {
  case state::invariant: return "I";
  case state::replicate: return "R";
  case state::partial: return p.is_pending_maximum() ? "P(maximum)" : "P";
  case state::shard: return fmt::format("S({})", name_of(p.d));
  }
  return "?";
}
/// Returns the reason for a collective: "P -> R" for a redistribution, else the op.
inline std::string cause_text(const node& n) {
  if (!n.op->redistributes) return n.op->name;
  const auto t = n.attr.as<op::transition>();
  return fmt::format("{} -> {}", place_text(t.from), place_text(t.to));
}

/// Returns a placement as text, such as `dp S(batch), tp R`: every axis that may have more than one
/// rank and on which the value is not invariant.
inline std::string placement_text(const mesh& m, const placement& at) {
  std::string text;
  for (int a = 0; a < axes; ++a) {
    const place& p = at.at[static_cast<unsigned>(a)];
    if (m.trivial(static_cast<axis>(a)) || p.s == state::invariant) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name_of(static_cast<axis>(a)),
                        place_text(p));
  }
  return text;
}

/// Returns the global extents of a value as text: `batch 16, sequence 128, hidden 192`.
inline std::string dims_text(const value& v) {
  std::string text;
  for (int i = 0; i < v.rank; ++i) {
    const extent& e = v.dims[static_cast<unsigned>(i)];
    text += fmt::format("{}{} {}{}", i == 0 ? "" : ", ", name_of(e.d), e.n,
                        e.o == order::balanced ? " balanced" : "");
  }
  return text;
}

/// Returns the name of a parameter or an input, and %number for other values.
inline std::string value_text(const graph& g, value_id id) {
  const value& v = g.at(id);
  if (v.is == role::parameter) return fmt::format("{}.{}", v.scope, v.name);
  if (v.is == role::gradient && v.grad_of >= 0) return "d " + value_text(g, v.grad_of);
  return v.is == role::input && v.name[0] != 0 ? std::string(v.name) : fmt::format("%{}", id);
}

/// Returns the name of the value that a collective carries, as it was before any redistribution.
inline std::string origin_text(const graph& g, value_id id) {
  const value& v = g.at(id);
  if (v.is == role::gradient && v.grad_of >= 0) return "d " + origin_text(g, v.grad_of);
  if (v.producer >= 0 && g.at_node(v.producer).op->redistributes)
    return origin_text(g, g.at_node(v.producer).in[0]);
  text<160> name;
  spell(g, id, name);
  return name.n > 0 ? std::string(name.c_str()) : value_text(g, id);
}

/// Returns "qwen3.hpp:41", the line of the model that a node or an exchange comes from; "" for the
/// update and the totals, which no model writes.
inline std::string line_text(source_line line) {
  return line.number > 0 ? text_of(line).c_str() : "";
}

/// Returns a node as a line: `dgrad %31 = linear_input_grad(%30, attn.q.weight)  (batch 16, ...)
/// f32 [dp S(batch)] line 41`.
inline std::string node_text(const graph& g, const node& n) {
  std::string text = fmt::format("{:<8} ", phase_text(n.when));
  bool first = true;
  const value* shown = nullptr;
  for (const value_id v : n.out) {
    if (v < 0 || g.at(v).is == role::scratch) continue;
    text += fmt::format("{}{}", first ? "" : ", ", value_text(g, v));
    if (first) shown = &g.at(v);
    first = false;
  }
  text += fmt::format("{}{}(", first ? "" : " = ", n.op->name);
  first = true;
  for (const value_id v : n.in) {
    if (v < 0) continue;
    text += fmt::format("{}{}", first ? "" : ", ", value_text(g, v));
    first = false;
  }
  if (n.op->redistributes)
    text += fmt::format(", {}: {}", name_of(n.attr.as<op::transition>().over), cause_text(n));
  if (n.attr.are<op::exchange_attributes>()) {
    const auto [over, wire] = n.attr.as<op::exchange_attributes>();
    text += fmt::format(
        ", over {}{}", name_of(over),
        wire == g.at(n.in[0]).type ? std::string() : fmt::format(" in {}", name_of(wire)));
  }
  text += ")";
  // A node without outputs changes its operands.
  if (shown == nullptr && n.in[0] >= 0) shown = &g.at(n.in[0]);
  if (shown != nullptr) {
    text += fmt::format("  ({}) {}", dims_text(*shown), name_of(shown->type));
    const std::string at = placement_text(g.ranks, shown->at);
    if (!at.empty()) text += fmt::format(" [{}]", at);
  }
  if (n.line.number > 0) text += "  " + line_text(n.line);
  return text;
}

/// Returns the name of a buffer: the kind of value that it holds, and the number of its use or
/// position in the step.
inline std::string buffer_name(const buffers& b, int number) {
  const content what = b[number].what;
  const int at = number - b.of(what);
  if (what == content::fed) return name_of(batch_feeds[at]);
  return what <= content::caches ? fmt::format("{} {}", name_of(what), at) : name_of(what);
}

/// Returns a task as a line: `forward(layer 0) of micro-batch 1: reads the stream 1; writes saved
/// values 1, the stream 2`.
inline std::string task_text(const buffers& b, const task& t) {
  text<160> what;
  spell(what, t, b.uses());
  std::string out = what.c_str();
  for (const bool written : {false, true}) {
    const char* before = !written                             ? ": reads "
                         : out.find(':') == std::string::npos ? ": writes "
                                                              : "; writes ";
    b.for_each_operand(t, [&](int number, const buffers::operand& o) {
      if (b[number].bytes == 0 && b[number].what != content::main_gradients) return;
      if (!(written ? o.writes : o.reads)) return;
      out += before + buffer_name(b, number);
      before = ", ";
    });
  }
  return out;
}

/// Returns a buffer as a line: `saved values 1: 12345 bytes at 0 of saved, tasks 9 to 14`.
inline std::string buffer_text(const buffers& b, int number) {
  const buffer& x = b[number];
  return fmt::format("{}: {} bytes{} at {} of {}, ", buffer_name(b, number), x.bytes,
                     x.copies > 1 ? fmt::format(", {} of them,", x.copies) : "", x.offset,
                     name_of(arena_for(x.what))) +
         (lives_on(x.what) ? fmt::format("from task {} on", x.first)
                           : fmt::format("tasks {} to {}", x.first, x.last));
}

/// A call of the communicator in a training step.
struct step_call {
  int part = 0;
  const node* by = nullptr;    ///< node of the part's graph; null: between stages
  phase when = phase::forward; ///< phase of the node, or the backward pass for a node that runs
                               ///< again
  transfer call;
  source_line line{};
};

namespace detail {
/// Calls f(call) for the communicator calls of a graph's nodes in some phases, in the order in
/// which they run. A region runs as many rounds as it would if every expert were chosen equally
/// often.
template <class F> void for_each_call(const graph& g, const running_order& order, phases when,
                                      const mesh& ranks, F f) {
  const auto calls = [&](int i, const op::even_rows* rows, int round) {
    const node& n = g.at_node(i);
    // A forward node that runs in the backward pass runs again.
    const phase runs = when.holds(n.when) ? n.when : phase::input_gradient;
    for (transfer call : node_wire(g, n, ranks)) {
      if (rows != nullptr && n.op->changes_mesh) { // the bytes of `call` are those of all rounds
        call.bytes = call.bytes / rows->all * rows->in(round);
        call.sent = bytes_sent(call.what, call.bytes, ranks_of(ranks, call.over));
      }
      f(n, runs, call);
    }
  };
  order.each(when, [&](const stretch& s) {
    const value_id trips = s.region < 0 ? value_id{-1} : g.regions[s.region].trips;
    const node_id by = trips < 0 ? node_id{-1} : g.at(trips).producer;
    if (by < 0 || g.at_node(by).op != &op::expert_rows)
      return order.trip(g, s, when, false, [&](int i) { calls(i, nullptr, 0); });
    const op::even_rows rows(g.ranks, g.at(g.at_node(by).in[0]),
                             g.at_node(by).attr.as<op::expert_rows_attributes>().rows);
    for (int round = 0; round < rows.rounds(); ++round)
      order.trip(g, s, when, rows.rounds() > 1, [&](int i) { calls(i, &rows, round); });
  });
}
} // namespace detail

/// Returns the communicator calls of one rank of a pipeline stage in a training step of `micros`
/// micro-batches, in their order. A receive has bytes, but sends none.
inline std::vector<step_call> calls_of(const program_view& p, const mesh& ranks, int stage = 0,
                                       int micros = 1) {
  std::vector<step_call> list;
  std::vector<running_order> orders;
  for (const part_view& part : p.parts) orders.emplace_back(*part.g);
  const stage_shape s = stage_of(p, stage);
  const graph update = update_of_stage(p, s, ranks);
  for (const task& t : training_step(s.training, micros)) {
    if (t.what == action::send || t.what == action::receive) {
      const bool sends = t.what == action::send;
      const int part = s.uses[t.use].part; // part that makes or reads the stream
      const stage_stream stream(p.part(part), p.parts);
      const std::int64_t bytes = stream.bytes();
      list.push_back(
          {part,
           nullptr,
           t.when.first,
           {sends ? collective::send : collective::receive, axis::pp, bytes, sends ? bytes : 0},
           stream.line});
    }
    if (t.what != action::run) continue;
    const int part = s.uses[t.use].part;
    const graph& whole = *p.part(part).g;
    const graph& g = t.use == s.training.update ? update : whole;
    detail::for_each_call(g, orders[static_cast<unsigned>(part)], t.when, ranks,
                          [&](const node& n, phase when, const transfer& call) {
                            const auto i = static_cast<unsigned>(&n - g.nodes);
                            list.push_back({part, whole.nodes + i, when, call, n.line});
                          });
  }
  return list;
}

/// Calls of a training step that are the same, over all stages.
struct collective_row {
  std::string part, cause, value;
  source_line line{}; ///< line of the model; none for the update and the totals
  phase when = phase::forward;
  const node* by = nullptr; ///< node of the part's graph; null: between stages
  transfer call;            ///< the call; bytes of one call, with ring algorithms
  int ranks = 0;
  std::int64_t per_step = 0; ///< number of such calls in a step that has one micro-batch
};

/// Returns the number of layers that run each part in a training step; 1 for a part that runs once
/// a stage.
inline std::vector<int> layers_of_parts(const program_view& p) {
  std::vector<int> layers(p.parts.size());
  for (int stage = 0; stage < p.numbers.ranks.pp; ++stage) {
    const stage_shape s = stage_of(p, stage);
    for (const task& t : training_step(s.training, 1)) {
      if (t.what != action::run || t.when != phase::forward) continue;
      const int part = s.uses[t.use].part;
      if (stage == 0 || part <= p.kinds() + 1) ++layers[static_cast<unsigned>(part)];
    }
  }
  return layers;
}

/// Returns every collective of a training step on these ranks, by part and node.
inline std::vector<collective_row> collectives_of(const program_view& p, const mesh& ranks) {
  std::map<std::tuple<int, const node*, phase, collective, std::int64_t, std::int64_t>,
           std::pair<step_call, std::int64_t>>
      calls; // calls of a node differ in kind or in bytes; those with more bytes come first
  for (int stage = 0; stage < p.numbers.ranks.pp; ++stage)
    for (const step_call& c : calls_of(p, ranks, stage)) {
      // A receive counts as the send of another rank.
      if (c.call.what == collective::receive || c.call.bytes == 0) continue;
      auto& [call, times] =
          calls[{c.part, c.by, c.when, c.call.what, c.call.over.bits, -c.call.bytes}];
      call = c, ++times;
    }
  std::vector<collective_row> list;
  for (const auto& [key, made] : calls) {
    const auto& [c, times] = made;
    collective_row e;
    e.when = c.when, e.by = c.by, e.call = c.call;
    e.line = c.line, e.ranks = ranks_of(ranks, c.call.over), e.per_step = times;
    if (c.by == nullptr) {
      const bool forward = c.when == phase::forward;
      e.part = "stages", e.value = forward ? "the stream" : "d the stream";
      e.cause = forward ? "to the next stage" : "to the stage before";
    } else {
      e.part = name_of_part(p, c.part), e.cause = cause_text(*c.by);
      e.value = origin_text(*p.part(c.part).g, c.by->in[0]);
    }
    list.push_back(std::move(e));
  }
  return list;
}

/// Returns every collective of a training step on the fewest ranks that the layout allows.
inline std::vector<collective_row> collectives_of(const program_view& p) {
  return collectives_of(p, smallest_mesh(p.numbers.ranks));
}

/// Returns the bytes that one rank sends in a step over each set of axes. With several pipeline
/// stages it is the sum over one rank of each.
inline std::vector<std::pair<axis_set, std::int64_t>> bytes_by_group(
    const std::vector<collective_row>& list) {
  std::vector<std::pair<axis_set, std::int64_t>> sums;
  for (const collective_row& e : list) {
    const auto at = std::find_if(sums.begin(), sums.end(),
                                 [&](const auto& s) { return s.first == e.call.over; });
    const std::int64_t sent = e.call.sent * e.per_step;
    if (at == sums.end()) sums.emplace_back(e.call.over, sent);
    else at->second += sent;
  }
  return sums;
}

} // namespace mc
