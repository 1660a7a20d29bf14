// The arithmetic and memory traffic of a program, and the speed of matrix products on this machine.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

namespace mc {

/// Returns the work of one node on one rank by its op's cost function, or else as reading its
/// inputs and writing its outputs once.
inline work node_work(const graph& g, const node& n) {
  if (n.op->cost != nullptr) return n.op->cost(g, n);
  work w;
  for (const value_id v : n.in)
    if (v >= 0) w.read += local_bytes(g.ranks, g.at(v));
  for (const value_id v : n.out)
    if (v >= 0) w.written += local_bytes(g.ranks, g.at(v));
  return w;
}

/// Returns the calls that a node makes to its communicator, over groups of more than one rank.
inline std::vector<transfer> node_wire(const graph& g, const node& n, const mesh& ranks) {
  std::vector<transfer> calls;
  if (n.op->wire == nullptr) return calls;
  const transfers all = n.op->wire(g, n, ranks);
  for (int k = 0; k < all.count; ++k)
    if (ranks_of(ranks, all.at[k].over) > 1)
      calls.insert(calls.end(), static_cast<std::size_t>(all.at[k].times), all.at[k]);
  return calls;
}

inline work work_of(const graph& g, phases when) {
  work w;
  for (int i = 0; i < g.node_count; ++i)
    if (when.holds(g.at_node(i).when)) w += node_work(g, g.at_node(i));
  return w;
}

/// Returns a phase as reports name it.
inline const char* phase_text(phase p) {
  switch (p) {
  case phase::prologue: return "prologue";
  case phase::forward: return "forward";
  case phase::input_gradient:
  case phase::stream_gradient: return "dgrad";
  case phase::weight_gradient: return "wgrad";
  case phase::epilogue: return "epilogue";
  }
  return "";
}

inline work times(work w, std::int64_t n) {
  return {w.flops * n, w.read * n, w.written * n, w.repeated * n};
}

/// The work of one rank of a pipeline stage in one optimizer step.
struct step_work {
  work prologue, forward, backward, update; ///< update: epilogue, norm, clip, optimizer
  work total() const {
    work w = prologue;
    w += forward;
    w += backward;
    w += update;
    return w;
  }
};

/// Returns the update graph of one stage, which has only the stage's layers, over ranks of this
/// mesh. Its nodes are those of the program's update.
inline graph update_of_stage(const program_view& p, const stage_shape& s, const mesh& ranks = {}) {
  return update_graph(stores_of_stage(p, s, ranks), p.update().g->ranks, p.numbers.precision);
}

inline step_work work_of_step(const program_view& p, std::int64_t micro_batches, int of_stage = 0) {
  step_work w;
  const stage_shape s = stage_of(p, of_stage);
  const graph update = update_of_stage(p, s);
  bool begun = false;                                  // the first micro-batch has begun
  for (const task& t : training_step(s.training, 1)) { // micro-batches have equal work
    begun = begun || t.micro >= 0;
    if (t.what != action::run) continue;
    const graph& g = t.use == s.training.update ? update : *p.part(s.uses[t.use].part).g;
    work& part = t.micro < 0           ? begun ? w.update : w.prologue
                 : is_backward(t.when) ? w.backward
                                       : w.forward;
    part += times(work_of(g, t.when), t.micro < 0 ? 1 : micro_batches);
  }
  return w;
}

namespace detail {

/// Returns for each node whether it is in the backward pass and repeats a node of the forward pass.
inline std::vector<bool> repeated_nodes(const graph& g) {
  std::vector<bool> repeated(static_cast<std::size_t>(g.node_count));
  // for each value, the value of the forward pass that it repeats, or itself
  std::vector<value_id> first(static_cast<std::size_t>(g.value_count));
  for (std::size_t v = 0; v < first.size(); ++v) first[v] = static_cast<value_id>(v);
  const auto first_of = [&](value_id v) { return v < 0 ? v : first[static_cast<unsigned>(v)]; };
  const auto same = [&](const node& n, const node& before) {
    if (before.when != phase::forward || before.op != n.op || !(before.attr == n.attr))
      return false;
    for (int k = 0; k < max_inputs; ++k)
      if (first_of(n.in[k]) != first_of(before.in[k])) return false;
    return true;
  };
  for (int i = 0; i < g.node_count; ++i) {
    const node& n = g.at_node(i);
    if (n.when != phase::forward && !backward_pass.holds(n.when)) continue;
    for (int j = 0; j < i; ++j) {
      const node& before = g.at_node(j);
      if (!same(n, before)) continue;
      repeated[static_cast<std::size_t>(i)] = n.when != phase::forward;
      for (int k = 0; k < max_outputs; ++k)
        if (n.out[k] >= 0) first[static_cast<unsigned>(n.out[k])] = first_of(before.out[k]);
      break;
    }
  }
  return repeated;
}

/// Returns the operations that the model needs in a part for one micro-batch. `below`: it also
/// needs the gradient of the stream that the part reads.
inline std::int64_t flops_needed_of(const graph& g, bool below) {
  const std::vector<bool> repeated = repeated_nodes(g);
  std::vector<bool> needed(static_cast<std::size_t>(g.value_count));
  if (g.d_stream >= 0) needed[static_cast<unsigned>(g.d_stream)] = below;
  std::int64_t flops = 0;
  for (int i = g.node_count - 1; i >= 0; --i) {
    const node& n = g.at_node(i);
    const bool backward = backward_pass.holds(n.when);
    bool any = !backward;
    for (const value_id v : n.out)
      any = any || (v >= 0 && (needed[static_cast<unsigned>(v)] || g.at(v).is == role::gradient));
    if (!any) continue;
    for (const value_id v : n.in)
      if (v >= 0) needed[static_cast<unsigned>(v)] = true;
    if (n.when != phase::forward && (!backward || repeated[static_cast<std::size_t>(i)])) continue;
    const work w = node_work(g, n);
    flops += w.flops - w.repeated;
  }
  return flops;
}

} // namespace detail

/// Returns the operations that the model needs on one rank of a stage in a step, without those that
/// the program computes again (Chowdhery et al. 2022, appendix B). It counts the forward pass, and
/// the nodes of the backward pass on which the gradient of a trained parameter depends. So a
/// product of the forward pass counts three times; twice if its weight is frozen; and once if
/// nothing is trained in its part and below. A loss that computes its gradients at once is counted
/// with them.
inline std::int64_t model_flops(const program_view& p, std::int64_t micro_batches, int of_stage) {
  std::int64_t flops = 0;
  const stage_shape s = stage_of(p, of_stage);
  const int lowest = lowest_trained(p);
  for (int k = 0; k < s.training.uses; ++k) {
    const part_use& u = s.uses[s.training.use(k)];
    flops += detail::flops_needed_of(*p.part(u.part).g, lowest < u.layer);
  }
  return flops * micro_batches;
}

/// Measures the floating-point operations a second of a square matrix product of 1024 on the main
/// lane, behind work that was started there. Its operands are reserved once. The device must
/// outlive this object.
class product_speed {
public:
  product_speed(device& on, dtype type)
      : lane_(on.main_lane()),
        began_(on.make_event()),
        ended_(on.make_event()),
        square_(on.products().prepare(shape_of(type))) {
    lane_.reserve({.workspace = on.products().workspace_bytes()});
    for (arena* const x : {&x_, &w_, &y_})
      *x = arena(on, bytes_of(type) / 3, "a product that is measured",
                 "a smaller micro-batch or sequence");
  }

  /// Returns the bytes of the operands and the result.
  static constexpr std::int64_t bytes_of(dtype type) { return 3 * n * n * size_of(type); }
  static product_shape shape_of(dtype type) {
    return make_product_shape(product_kind::forward, type, n, n, n);
  }
  /// Returns the best rate of the products that fit into a tenth of a second.
  double measure() {
    double best = 0, spent = 0;
    for (int i = 0; i < 3 || spent < 0.1; ++i) { // the first product is slower, and not counted
      lane_.record(*began_);
      square_.execute({.on = lane_, .a = x_.data(), .b = w_.data(), .out = y_.data()});
      lane_.record(*ended_);
      const double took = static_cast<double>(ended_->reached() - began_->reached()) * 1e-9;
      spent += took;
      if (i > 0) best = std::max(best, square_.shape().flops() / took);
    }
    return best;
  }

private:
  static constexpr std::int64_t n = 1024;

  lane& lane_;
  std::unique_ptr<event> began_, ended_;
  const prepared_product& square_;
  arena x_, w_, y_;
};

} // namespace mc
