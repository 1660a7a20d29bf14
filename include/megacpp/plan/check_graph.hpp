// Faults of a part's graph that its model can make and that no op knows: inputs that nothing feeds,
// operands that are written, caches, padding, and dropouts of one salt.
#pragma once

#include <megacpp/graph/builder.hpp>
#include <megacpp/op/attention.hpp>
#include <megacpp/op/dropout.hpp>
#include <megacpp/plan/setup.hpp>

namespace mc::detail {

/// Records MEGA-S008 if the head lacks a value; `by` is the function that should give it.
constexpr bool given(builder& b, var v, const char* by) {
  if (v.id < 0) b.fail(fault::S008, 0, by, -1, "it gives no value");
  return v.id >= 0;
}

/// Records MEGA-C001 for two dropouts of one salt, which would drop the same elements.
constexpr void check_salts(graph& g) {
  for (int i = 0; i < g.node_count; ++i)
    for (int j = 0; j < i && g.at_node(i).op == &op::dropout; ++j) {
      const node &n = g.at_node(i), &before = g.at_node(j);
      if (before.op != n.op || g.wrong.code != fault::none) continue;
      const auto salt = n.attr.as<op::dropout_attributes>().salt;
      if (before.attr.as<op::dropout_attributes>().salt != salt) continue;
      record(g, fault::C001, n.line, n.op->name, n.in[0]);
      g.wrong.what << ": salt " << salt << " is that of the dropout in line " << before.line.number
                   << " too";
    }
}

/// Records MEGA-C006 for attention without a cache in a graph of generation.
constexpr void check_caches(builder& b) {
  for (int i = 0; i < b.g.node_count; ++i)
    if (const node& n = b.g.at_node(i); n.op == &op::attention)
      b.fail(fault::C006, n.line, n.op->name, n.in[0],
             "it sees the new tokens alone, and context_parallel_attention earlier ones too");
}

/// Records MEGA-S010 where an op reads rows that pad a parameter: files do not have them.
constexpr void check_padding(builder& b) {
  for (int i = 0; i < b.g.node_count; ++i) {
    const node& n = b.g.at_node(i);
    if (n.op->redistributes) continue; // it reads another placement of the same rows
    inference c{b.g, n};
    for (int k = 0; k < max_inputs; ++k) {
      const parameter_info* const p = c.has(k) ? c.parameter(k) : nullptr;
      if (p == nullptr || p->valid_rows == 0 || p->valid_rows == c.in(k).dims[0].n) continue;
      if (c.outs == 0) infer(c);
      if ((c.tables >> k & 1) == 0)
        b.fail(fault::S010, n.line, n.op->name, n.in[k],
               "it reads all rows, of which the valid ones alone are kept in files");
    }
  }
}

/// Returns how often v is an operand of a graph's nodes.
constexpr int uses_of(const graph& g, value_id v) {
  int uses = 0;
  for (int i = 0; i < g.node_count; ++i)
    for (value_id in : g.at_node(i).in) uses += in == v;
  return uses;
}

/// Records MEGA-S011, in generation C006, where an op writes an operand that is no cache, or a
/// cache that is another operand, too: which reader sees the change would depend on the order of
/// nodes.
constexpr void check_changes(builder& b, bool generating) {
  for (int i = 0; i < b.g.node_count; ++i) {
    const node& n = b.g.at_node(i);
    if (n.op->writes_operands == 0) continue;
    for (int k = 0; k < max_inputs; ++k) {
      const value_id v = n.in[k];
      if (v < 0 || (n.op->writes_operands >> k & 1) == 0) continue;
      const value& x = b.g.at(v);
      const bool cache = x.is == role::input && is_cache(x.from);
      if (cache && uses_of(b.g, v) == 1) continue;
      b.fail(generating ? fault::C006 : fault::S011, n.line, n.op->name, v,
             cache ? "it writes into a cache that is another operand too: each has one of its own"
                   : "it writes into an operand, as it may into caches of generation alone");
    }
  }
}

/// Returns whether an earlier input has the feed and the number of value i.
constexpr bool feed_taken(const graph& g, int i) {
  const value& v = g.at(static_cast<value_id>(i));
  for (int k = 0; k < i; ++k)
    if (const value& o = g.at(static_cast<value_id>(k));
        o.is == role::input && o.from == v.from && o.feed_index == v.feed_index)
      return true;
  return false;
}

/// Records MEGA-S011, in generation C006, for an input of the model that the part is not fed, or
/// not so, or for a cache whose number another cache has. `tokens`, `all_tokens` (of all cp ranks)
/// and `stream` have the dims and placements of the part's own.
constexpr void check_inputs(builder& b, part_kind part, const setup& s, const value& tokens,
                            const value& all_tokens, const value& stream, std::int64_t vocabulary) {
  int streams = 0; // a part has one stream, which has one cotangent
  for (int i = 0; i < b.g.value_count; ++i) {
    const auto id = static_cast<value_id>(i);
    const value& v = b.g.at(id);
    if (v.is != role::input) continue;
    const bool cache = is_cache(v.from);
    const bool floats = v.from == feed::stream;
    const bool index =
        cache ? v.feed_index >= 0 && v.feed_index < max_feed_inputs : v.feed_index == 0;
    const bool there = fed(part, v.from, s) && index && (!floats || ++streams == 1);
    const fed_integers is = integers_of(v.from, s, vocabulary);
    value like = floats ? stream : is_of_all(v.from) ? all_tokens : tokens;
    if (v.from == feed::last) like.rank = 1;
    bool alike = v.type == (floats ? s.precision.activation : dtype::i32) && v.same_dims(like) &&
                 v.at == like.at;
    alike = alike && (v.holds == integer_kind::unknown || serves(is.kind, v.holds));
    alike = alike && (v.below == 0 || (is.below > 0 && v.below >= is.below));
    if (is_number(v.from))
      alike = v.type == type_of_number(v.from) && v.rank == 0 && v.at == placement{};
    const bool taken = cache && feed_taken(b.g, i);
    if (there && (cache ? !taken : alike)) continue;
    source_line line; // line of the node that reads it first
    for (int k = b.g.node_count - 1; k >= 0; --k)
      for (value_id in : b.g.at_node(k).in)
        if (in == id) line = b.g.at_node(k).line;
    b.fail(s.generating ? fault::C006 : fault::S011, line, "input", id,
           taken          ? "another cache has its number: give it c.caches and add one to that"
           : s.generating ? "there is none in generation"
           : there        ? "what is fed has other dims, places, elements or bounds"
                          : "nothing feeds it to this part");
  }
}

} // namespace mc::detail
