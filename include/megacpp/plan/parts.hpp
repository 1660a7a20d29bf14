// The parts of a step as graphs: stem (embeddings), one block per kind, head (loss or logits).
// Layers are a run-time loop over kinds of block, so 48 layers compile as fast as one. The same
// functions of the model build training, prefill and decode; `setup` says how they differ.
#pragma once

#include <megacpp/nn/head.hpp>
#include <megacpp/op/attention.hpp>
#include <megacpp/op/experts.hpp>
#include <megacpp/op/numbers.hpp>
#include <megacpp/op/select.hpp>
#include <megacpp/op/totals.hpp>
#include <megacpp/pass/hoist.hpp>
#include <megacpp/pass/pipeline.hpp>
#include <megacpp/pass/place_memory.hpp>
#include <megacpp/pass/verify_hoist.hpp>
#include <megacpp/plan/frozen.hpp>
#include <megacpp/recipe/precision.hpp>

#include <span>

namespace mc {

/// The kinds of a part: what it computes.
enum class part_kind : std::uint8_t { stem, block, loss, logits };

/// The numbers of a run that shape its graphs.
struct setup {
  layout ranks{.at = {}}; // these braces are no line of a run
  batching batch{.at = {}};
  precision_policy precision = dtype::f32;
  recompute again = recompute::none;
  numerics sums = numerics::fast;
  bool generating = false; ///< nothing is dropped, by chance or for want of room
  std::int64_t room = 0;   ///< tokens of a sequence in the caches of keys and values; 0: no caches
  mc::frozen frozen{};     ///< parameters that training does not change

  constexpr place stream() const {
    return ranks.sequence_parallel ? shard(dim::sequence) : invariant;
  }
};

/// Returns whether a part is fed f, by a session in training and evaluation or by a generator. The
/// graph of a part has no other inputs but the totals that a loss is added to.
constexpr bool fed(part_kind part, feed f, const setup& s) {
  switch (f) {
  case feed::positions:
  case feed::token_keys:
  case feed::seed:
  case feed::step: return true;
  case feed::documents: return s.batch.packed;
  case feed::order:
  case feed::all_order: return s.room == 0; // caches know their tokens' places
  case feed::all_documents: return s.room == 0 && s.batch.packed;
  case feed::tokens: return part == part_kind::stem || part == part_kind::block;
  case feed::stream: return part != part_kind::stem;
  case feed::labels: return part == part_kind::loss;
  case feed::last: return part == part_kind::logits;
  case feed::key_cache:
  case feed::value_cache:
  case feed::slots: return s.room > 0;
  default: return false;
  }
}

/// The integers of a feed: their kind, their name, and a bound that they are below; 0: none.
struct fed_integers {
  integer_kind kind{};
  const char* name = "";
  std::int64_t below = 0;
};
constexpr fed_integers integers_of(feed f, const setup& s, std::int64_t vocabulary) {
  switch (f) {
  case feed::positions:
    return {integer_kind::positions, "positions", s.room > 0 ? s.room : s.batch.sequence};
  case feed::order: return {integer_kind::order, "order", s.batch.sequence};
  case feed::all_order: return {integer_kind::order, "all_order", s.batch.sequence};
  case feed::all_documents: return {integer_kind::documents, "all_documents"};
  case feed::token_keys: return {integer_kind::token_keys, "token_keys"};
  case feed::documents: return {integer_kind::documents, "documents"};
  case feed::tokens: return {integer_kind::tokens, "tokens", vocabulary};
  case feed::labels: return {integer_kind::labels, "labels", vocabulary};
  case feed::last: return {integer_kind::last, "last", s.batch.sequence};
  case feed::slots: return {integer_kind::slots, "slots", s.room};
  default: return {};
  }
}

/// The kinds of block that a model's layers have, in the model's order. A kind without layers is
/// not built.
template <int Kinds> struct kind_list {
  int kinds[Kinds]{};
  int count = 0;

  /// Returns the model's number of the i-th kind in use; 0 if i is out of range, as for the stem
  /// and the head.
  constexpr int kind(int i) const { return i < 0 || i >= count ? 0 : kinds[i]; }
  constexpr int index(int kind_of_model) const {
    int i = 0;
    while (i < count - 1 && kinds[i] != kind_of_model) ++i;
    return i;
  }
};

/// The most layers that a compiler counts; more are an error (MEGA-C001).
inline constexpr int max_layers = 512;
template <class Model> constexpr int layers_of(const Model& m) {
  return m.layers < max_layers ? static_cast<int>(m.layers) : max_layers;
}

template <class Model> constexpr kind_list<Model::kinds> used_kinds(const Model& m) {
  bool used[Model::kinds]{};
  for (int l = 0; l < layers_of(m); ++l)
    if (const int k = m.kind_of(l); k >= 0 && k < Model::kinds) used[k] = true;
  kind_list<Model::kinds> list;
  for (int k = 0; k < Model::kinds; ++k)
    if (used[k] || (k == Model::kinds - 1 && list.count == 0)) list.kinds[list.count++] = k;
  return list;
}

/// Returns the setup of generation: each of `sequences` has `tokens` new tokens, whose keys and
/// values are kept in caches of `room` tokens; without room, sequences are whole. Heads stay
/// sharded over tp as in training. One token cannot be sharded, so all ranks of cp compute the same
/// sequence. Experts take every row in one round, so that a token's sum has one order.
constexpr setup for_generation(setup s, int sequences, int tokens, std::int64_t room) {
  s.batch = {sequences, tokens, false, 1 << 30};
  s.ranks.cp = 1, s.ranks.sequence_parallel = false;
  s.generating = true, s.room = room;
  return s;
}

namespace detail {

constexpr fault_record sentence(fault f, const char* what) {
  fault_record r;
  r.code = f;
  r.what << what;
  return r;
}

constexpr fault_record unequal(int layers, int stages) {
  fault_record r = sentence(fault::C002, "");
  r.what << layers << " layers (as they are counted) for " << stages
         << " pipeline stages of equally many";
  return r;
}

/// Returns the fault of a cut into pipeline stages. Stages must have all layers, and each must have
/// some; the first and the last may have only the stem and the head.
constexpr fault_record check_cut(const layout& l, int layers) {
  const stage_cut& c = l.cut;
  const int all = l.pp * l.virtual_stages;
  if (c.first < 0 || c.last < 0) return sentence(fault::C002, "a stage has fewer than 0 layers");
  if (c.listed()) {
    if (c.first > 0 || c.last > 0 || c.embedding || c.loss)
      return sentence(fault::C002, "the layers of stages are listed, and cut otherwise too");
    if (all > static_cast<int>(c.layers.size()))
      return sentence(fault::C002, "more stages than the layers of can be listed");
    for (int v = all; v < static_cast<int>(c.layers.size()); ++v)
      if (c.layers[static_cast<unsigned>(v)] != 0)
        return sentence(fault::C002, "layers are listed for more stages than there are");
  } else {
    if ((c.first > 0 && c.embedding) || (c.last > 0 && c.loss))
      return sentence(fault::C002, "the layers of a stage are given, and counted otherwise too");
    if (c.first % l.virtual_stages != 0 || c.last % l.virtual_stages != 0)
      return sentence(fault::C002, "the layers of a stage do not divide into its virtual stages");
    const int others = (l.pp - (c.first > 0 ? 1 : 0) - (c.last > 0 ? 1 : 0)) * l.virtual_stages,
              counted = layers - c.first - c.last + c.embedding + c.loss;
    if (c.first + c.last > 0 && others < 1)
      return sentence(fault::C002, "the first and the last stage are all stages: give one of them");
    if (counted < others || (all > 1 && layers < all - 2) || counted % others != 0)
      return unequal(counted, others);
  }
  for (int v = 0; v < all; ++v) {
    const int n = layers_of_stage(l, layers, v);
    const bool may_have_none = all > 1 && (v == 0 || v + 1 == all);
    if (n >= (may_have_none ? 0 : 1)) continue;
    fault_record r = sentence(fault::C002, "stage ");
    r.what << v << " has " << n << " layers";
    return r;
  }
  if (const int n = first_layer_of_stage(l, layers, all); n != layers) {
    fault_record r = sentence(fault::C002, "stages have ");
    r.what << n << " layers, and the model " << layers;
    return r;
  }
  return {};
}

/// Returns the fault of the model, the layout or the batch that shows before any graph is built.
template <class Model> constexpr fault_record check(const Model& m, const setup& s) {
  if (const char* why = m.contradiction())
    return sentence(fault::C001, *why != 0 ? why : "contradiction() is an empty text, not null");
  if (m.layers > max_layers) {
    fault_record r = sentence(fault::C001, "layers is ");
    r.what << static_cast<std::int64_t>(m.layers) << ", more than " << max_layers;
    return r;
  }
  if (m.hidden_extent() != extent(dim::hidden, static_cast<std::int64_t>(m.hidden)))
    return sentence(fault::C001, "hidden_extent() is not {dim::hidden, hidden}");
  for (int i = 0; i < layers_of(m); ++i)
    if (const int kind = m.kind_of(i); kind < 0 || kind >= Model::kinds) {
      fault_record r = sentence(fault::C001, "kind_of(");
      r.what << i << ") is " << kind << ", not in 0 ... " << Model::kinds - 1;
      return r;
    }
  const layout& l = s.ranks;
  if (l.tp < 1 || l.pp < 1 || l.cp < 1 || l.ep < 1 || l.etp < 0)
    return sentence(fault::C002, "every axis needs at least one rank");
  if (l.zero < 0 || l.zero > 1)
    return sentence(fault::C002, "zero is 0, or 1: replicas share the optimizer's state");
  if (l.virtual_stages < 1 || l.virtual_stages > max_chunks)
    return sentence(fault::C002, "a stage has 1 to 16 virtual stages");
  if (l.virtual_stages > 1 && l.pp == 1) return sentence(fault::C002, "virtual stages need pp > 1");
  if (s.batch.micro_batches < 0) return sentence(fault::C003, "micro_batches is negative");
  if (const fault_record r = check_cut(l, layers_of(m)); r.code != fault::none) return r;
  if (l.sequence_parallel && l.tp == 1)
    return sentence(fault::C002, "sequence parallelism needs tp > 1");
  if (s.batch.expert_rows < 0)
    return sentence(fault::C003, "the rows that go to experts must not be negative");
  if (s.batch.micro < 1 || s.batch.sequence < 1)
    return sentence(fault::C003, "micro-batch and sequence must be positive");
  if (std::int64_t{s.batch.micro} * s.batch.sequence > std::int64_t{1} << 31)
    return sentence(fault::C003, "a micro-batch has more than 2^31 tokens");
  if (s.batch.sequence > m.positions || s.room > m.positions)
    return sentence(fault::C003, "the sequence is longer than the model's positions");
  if (l.cp > 1 && s.batch.sequence % (2 * l.cp) != 0)
    return sentence(
        fault::C003,
        "the sequence must divide into 2 cp chunks for balanced causal context parallelism");
  return {};
}

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
    if (n.op->changes == 0) continue;
    for (int k = 0; k < max_inputs; ++k) {
      const value_id v = n.in[k];
      if (v < 0 || (n.op->changes >> k & 1) == 0) continue;
      const value& x = b.g.at(v);
      const bool cache = x.is == role::input && is_cache(x.from);
      if (cache && uses_of(b.g, v) == 1) continue;
      b.fail(generating ? fault::C006 : fault::S011, n.line, n.op->name, v,
             cache ? "it writes into a cache that is another operand too: each has one of its own"
                   : "it writes into an operand, as it may into caches of generation alone");
    }
  }
}

/// Returns whether an earlier input has the feed and the slot of value i.
constexpr bool slot_taken(const graph& g, int i) {
  const value& v = g.at(static_cast<value_id>(i));
  for (int k = 0; k < i; ++k)
    if (const value& o = g.at(static_cast<value_id>(k));
        o.is == role::input && o.from == v.from && o.slot == v.slot)
      return true;
  return false;
}

/// Records MEGA-S011, in generation C006, for an input of the model that the part is not fed, or
/// not so, or for a cache whose slot another cache has. `tokens`, `all_tokens` (of all cp ranks)
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
    const bool slot = cache ? v.slot >= 0 && v.slot < max_slots : v.slot == 0;
    const bool there = fed(part, v.from, s) && slot && (!floats || ++streams == 1);
    const fed_integers is = integers_of(v.from, s, vocabulary);
    value like = floats ? stream : is_of_all(v.from) ? all_tokens : tokens;
    if (v.from == feed::last) like.rank = 1;
    bool alike = v.type == (floats ? s.precision.activation : dtype::i32) && v.same_dims(like) &&
                 v.at == like.at;
    alike = alike && (v.holds == integer_kind::unknown || serves(is.kind, v.holds));
    alike = alike && (v.below == 0 || (is.below > 0 && v.below >= is.below));
    if (is_number(v.from))
      alike = v.type == type_of_number(v.from) && v.rank == 0 && v.at == placement{};
    const bool taken = cache && slot_taken(b.g, i);
    if (there && (cache ? !taken : alike)) continue;
    source_line line; // line of the node that reads it first
    for (int k = b.g.node_count - 1; k >= 0; --k)
      for (value_id in : b.g.at_node(k).in)
        if (in == id) line = b.g.at_node(k).line;
    b.fail(s.generating ? fault::C006 : fault::S011, line, "input", id,
           taken          ? "another cache has its slot: give it c.caches and add one to that"
           : s.generating ? "there is none in generation"
           : there        ? "what is fed has other dims, places, elements or bounds"
                          : "nothing feeds it to this part");
  }
}

} // namespace detail

/// Returns a fault with a line of the run: the line of its batch (MEGA-C003) or of its layout,
/// where the fault names no line of the model; for an extent that does not divide, the line of the
/// layout, too.
constexpr fault_record in_run(fault_record r, const setup& s) {
  if (r.code == fault::none) return r;
  const source_line line = r.code == fault::C003 ? s.batch.line() : s.ranks.line();
  if (r.line.number == 0) r.line = line;
  else if (r.code == fault::S001 && line.number > 0)
    r.what << ", layout at " << text_of(line).c_str();
  return r;
}

/// Returns the forward graph of one part as the model writes it. The next step, hoisted_graph(), is
/// apart from this, since compilers limit the steps of each evaluation.
template <class Model> [[gnu::cold]] constexpr graph written_graph(const Model& m, const setup& s,
                                                                   part_kind part, int kind) {
  builder b{mesh(s.ranks)};
  b.g.sums = s.sums;
  b.g.wrong = detail::check(m, s);
  if (b.g.wrong.code != fault::none) return b.g;
  const extent B{dim::batch, s.batch.micro};
  const extent Sq{dim::sequence, s.batch.sequence,
                  s.ranks.cp > 1 ? order::balanced : order::contiguous};
  const placement tokens_at = stream_placement(invariant);
  placement all_at = tokens_at;
  all_at[axis::cp] = replicate;
  context c;
  c.b = &b;
  c.precision = s.precision;
  c.stream = s.stream();
  c.expert_rows = s.batch.expert_rows;
  c.generating = s.generating;
  c.room = s.room;
  b.packed = s.batch.packed;
  const auto ints = [&](feed f) {
    const fed_integers is = integers_of(f, s, m.vocabulary);
    return b.integers(f, is.kind, is.name, {B, Sq}, is_of_all(f) ? all_at : tokens_at, is.below);
  };
  const auto stream = [&] {
    return b.input(feed::stream, "x", s.precision.activation, {B, Sq, m.hidden_extent()},
                   stream_placement(c.stream));
  };
  value as_stream, as_loss;
  as_stream.name = "x", as_stream.is = role::input;
  as_stream.type = s.precision.activation, as_loss.type = s.precision.statistic;
  as_stream.rank = 3, as_stream.dims[0] = B, as_stream.dims[1] = Sq,
  as_stream.dims[2] = m.hidden_extent(), as_stream.at = stream_placement(c.stream);
  as_loss.at[axis::dp] = as_loss.at[axis::cp] = partial;
  for (value* v : {&as_stream, &as_loss}) b.normalise(*v, 0, "input");
  c.positions = ints(feed::positions);
  c.token_keys = ints(feed::token_keys);
  if (s.batch.packed) c.documents = ints(feed::documents);
  if (s.room > 0) {
    c.slots = ints(feed::slots);
  } else {
    c.order = ints(feed::order), c.all_order = ints(feed::all_order);
  }
  if (s.room == 0 && s.batch.packed) c.all_documents = ints(feed::all_documents);
  const value as_tokens = c.positions.type();
  const value as_all = s.room > 0 ? as_tokens : c.all_order.type();
  switch (part) {
  case part_kind::stem:
    b.g.outputs[0] = m.stem(c, ints(feed::tokens)).id;
    verify_output(b, b.g.outputs[0], as_stream, "stem");
    break;
  case part_kind::block:
    b.g.outputs[0] = m.block(c, kind, stream()).id;
    verify_output(b, b.g.outputs[0], as_stream, "block");
    break;
  case part_kind::loss: {
    const var labels = ints(feed::labels);
    const var x = m.final_norm(c, stream()), table = m.head_table(c); // the same order everywhere
    if (!detail::given(b, x, "final_norm") || !detail::given(b, table, "head_table")) return b.g;
    const source_line at = line_of(b.g, x.id);
    const summed_loss l = vocabulary_loss(x, table, labels, m.vocabulary, m.z_loss, at);
    b.g.outputs = {l.sum.id, l.count.id};
    for (value_id v : b.g.outputs) verify_output(b, v, as_loss, "loss");
    break;
  }
  case part_kind::logits: {
    placement one = tokens_at;
    one[axis::cp] = invariant;
    const fed_integers is = integers_of(feed::last, s, m.vocabulary);
    const var last = b.integers(feed::last, is.kind, is.name, {B}, one, is.below);
    const var normed = m.final_norm(c, stream());
    if (!detail::given(b, normed, "final_norm")) return b.g;
    const source_line at = line_of(b.g, normed.id);
    const var x = to(to(normed, axis::tp, replicate, at), axis::cp, replicate, at);
    const var table = m.head_table(c);
    if (!detail::given(b, table, "head_table")) return b.g;
    const var own = linear(select(x, last, at), table, at); // the rank's logits
    b.g.outputs[0] =
        (own.at(axis::tp).s == state::shard ? to(own, axis::tp, invariant, at) : own).id;
    break;
  }
  }
  if (!s.generating && part != part_kind::logits) b.g.side_loss = c.side_loss().id;
  if (b.g.side_loss >= 0) verify_output(b, b.g.side_loss, as_loss, "side loss");
  for (int i = 0; i < b.g.parameter_count; ++i) {
    parameter_info& p = b.g.parameters[i];
    if (p.form == nullptr && b.g.at(p.v).type != s.precision.weight)
      b.fail(fault::S006, p.line, "parameter", p.v);
    p.frozen = p.frozen || s.frozen.has(b.g.at(p.v), p.tied,
                                        part == part_kind::stem    ? declared_in::stem
                                        : part == part_kind::block ? declared_in::block
                                                                   : declared_in::head);
  }
  detail::check_inputs(b, part, s, as_tokens, as_all, as_stream, m.vocabulary);
  detail::check_changes(b, s.generating);
  if (part != part_kind::logits) detail::check_padding(b); // texts use none of those rows
  detail::check_salts(b.g);
  if (part == part_kind::loss && b.g.wrong.code == fault::none) {
    add_to(step_total::loss, {&b, b.g.outputs[0]});
    add_to(step_total::tokens, {&b, b.g.outputs[1]});
  }
  if (b.g.side_loss >= 0 && b.g.wrong.code == fault::none)
    add_to(step_total::side_loss, {&b, b.g.side_loss});
  if (s.room > 0) detail::check_caches(b);
  return b.g;
}
/// Returns the graph of written_graph() with a prologue, verified.
[[gnu::cold]] constexpr graph hoisted_graph(const graph& written) {
  graph g = written;
  hoist(g);
  if (g.wrong.code == fault::none) g.wrong = verify_hoist(g, written);
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  return g;
}
/// Returns the forward graph of one part with a prologue, verified.
template <class Model>
constexpr graph forward_graph(const Model& m, const setup& s, part_kind part, int kind) {
  return hoisted_graph(written_graph(m, s, part, kind));
}

/// Returns a fault where layout or batch have settings for experts and no part has experts, or
/// where the experts have a capacity. `parts` are the forward graphs of all parts.
constexpr fault_record fault_of_experts(std::span<const graph* const> parts, const setup& s) {
  bool experts = false, capacity = false;
  for (const graph* g : parts)
    for (int i = 0; i < g->node_count; ++i) {
      const node& n = g->at_node(i);
      experts = experts || n.op->crosses;
      capacity =
          capacity || (n.op == &op::expert_rows && n.attr.are<op::expert_rows_attributes>() &&
                       n.attr.as<op::expert_rows_attributes>().capacity > 0);
    }
  if (!experts && (s.ranks.ep > 1 || s.ranks.etp > 1))
    return detail::sentence(fault::C002,
                            "ep and etp cut experts, which the model lacks: leave them out");
  if (s.batch.expert_rows == 0 || (experts && !capacity)) return {};
  return detail::sentence(
      fault::C003, experts ? "experts of a capacity take its rows at once: leave expert_rows out"
                           : "the model has no experts to take rows: leave expert_rows out");
}

} // namespace mc
