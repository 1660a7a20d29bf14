// Faults of a model, its layout and its batch that show before any graph is built, and those of
// settings for experts that a model lacks.
#pragma once

#include <megacpp/op/experts.hpp>
#include <megacpp/plan/setup.hpp>

#include <span>

namespace mc {

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

} // namespace detail

/// Returns a fault with a line of the run: the line of its batch (MEGA-C003) or of its layout,
/// where the fault names no line of the model; for an extent that does not divide, the line of the
/// layout, too.
constexpr fault_record with_line(fault_record r, const setup& s) {
  if (r.code == fault::none) return r;
  const source_line line = r.code == fault::C003 ? s.batch.line() : s.ranks.line();
  if (r.line.number == 0) r.line = line;
  else if (r.code == fault::S001 && line.number > 0)
    r.what << ", layout at " << text_of(line).c_str();
  return r;
}

/// Returns a fault where layout or batch have settings for experts and no part has experts, or
/// where the experts have a capacity. `parts` are the forward graphs of all parts.
constexpr fault_record fault_of_experts(std::span<const graph* const> parts, const setup& s) {
  bool experts = false, capacity = false;
  for (const graph* g : parts)
    for (int i = 0; i < g->node_count; ++i) {
      const node& n = g->at_node(i);
      experts = experts || n.op->changes_mesh;
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
