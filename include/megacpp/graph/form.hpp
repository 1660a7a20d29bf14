// The form of a fused op lists the ops that the fused op replaces. It is declared once, beside the
// op that the fused op extends:
//
//   add_rms_norm (x, a, gain) -> s, y, r    ops  0: add (x, a)
//                                                  1: rms_norm (out_of(0), gain)
//                                           outputs  out_of(0), out_of(1, 0), out_of(1, 1)
//
// pass/fuse.hpp looks for these ops in a graph, and graph/terms.hpp checks that the fused node
// means the same.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/graph/operand.hpp>

namespace mc {

/// An operand of one op of a form: operand k of the fused node, an output of another op of the
/// form, or nothing.
struct form_operand {
  std::int8_t at = -1;

  constexpr form_operand() = default;
  constexpr form_operand(int k) : at(static_cast<std::int8_t>(k)) {}
  template <class List, int K, element E>
  constexpr form_operand(operand_name<List, K, E, false> /*name*/) : at(K) {}
  constexpr bool absent() const { return at < 0; }
  /// Returns whether this is operand `at` of the fused node.
  constexpr bool outer() const { return at >= 0 && at < max_inputs; }
  constexpr int index() const { return (at - max_inputs) / max_outputs; }
  constexpr int output() const { return (at - max_inputs) % max_outputs; }
};
/// Names output k of the op number `index` of a form.
constexpr form_operand out_of(int index, int k = 0) { return max_inputs + index * max_outputs + k; }

inline constexpr int max_form_ops = 4; ///< most ops that a form has
inline constexpr int max_forms = 4;    ///< most fused ops that extend one op

struct form_op {
  const op_info* op = nullptr;
  form_operand in[max_inputs]{};
};

/// The ops that a fused op replaces, each after the ops that it reads. Only the op number `main`
/// has attributes, those of the fused node, unless `of_op` and `joined` say otherwise.
struct fused_form {
  form_op ops[max_form_ops]{};
  form_operand outputs[max_outputs]{}; ///< outputs of the fused node; an absent one is scratch
  int main = 0;                        ///< op whose line and attributes the fused node has
  /// The op of the form in whose place the fused node runs; ops of a later phase then run there,
  /// too. -1: the last op.
  int place = -1;
  /// The node is read as these ops only where it has this operand; -1: always.
  int with = -1;
  int rerun = -1; ///< the op that selective recomputation runs again by itself; -1: none
  attributes (*of_op)(const attributes&, int index) = nullptr;
  attributes (*joined)(const attributes (&ops)[max_form_ops]) = nullptr;

  constexpr int count() const {
    int n = 0;
    while (n < max_form_ops && ops[n].op != nullptr) ++n;
    return n;
  }
  /// Returns whether a node of the fused op is read as these ops.
  constexpr bool holds_for(const node& n) const {
    return ops[0].op != nullptr && (with < 0 || n.in[with] >= 0);
  }
  constexpr attributes attributes_of_op(const attributes& whole, int index) const {
    return of_op != nullptr ? of_op(whole, index) : index == main ? whole : attributes{};
  }
  constexpr attributes attributes_of_ops(const attributes (&of)[max_form_ops]) const {
    return joined != nullptr ? joined(of) : of[main];
  }
};

} // namespace mc
