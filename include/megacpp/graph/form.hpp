// The form of a fused op lists the ops that the fused op replaces. It is declared once, beside the
// op that the fused op extends:
//
//   add_rms_norm (x, a, gain) -> s, y, r    parts  0: add (x, a)
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
struct part_operand {
  std::int8_t at = -1;

  constexpr part_operand() = default;
  constexpr part_operand(int k) : at(static_cast<std::int8_t>(k)) {}
  template <class List, int K, element E>
  constexpr part_operand(operand_name<List, K, E, false> /*name*/) : at(K) {}
  constexpr bool absent() const { return at < 0; }
  /// Returns whether this is operand `at` of the fused node.
  constexpr bool outer() const { return at >= 0 && at < max_inputs; }
  constexpr int part() const { return (at - max_inputs) / max_outputs; }
  constexpr int output() const { return (at - max_inputs) % max_outputs; }
};
/// Names output k of the op number `part` of a form.
constexpr part_operand out_of(int part, int k = 0) { return max_inputs + part * max_outputs + k; }

inline constexpr int max_parts = 4; ///< most ops that a form has
inline constexpr int max_forms = 4; ///< most fused ops that extend one op

struct op_part {
  const op_info* op = nullptr;
  part_operand in[max_inputs]{};
};

/// The ops that a fused op replaces, each after the ops that it reads. Only the op number `main`
/// has attributes, those of the fused node, unless `of_part` and `joined` say otherwise.
struct fused_form {
  op_part parts[max_parts]{};
  part_operand outputs[max_outputs]{}; ///< outputs of the fused node; an absent one is scratch
  int main = 0;                        ///< op whose line and attributes the fused node has
  /// The op of the form in whose place the fused node runs; ops of a later phase then run there,
  /// too. -1: the last op.
  int place = -1;
  /// The node is read as these ops only where it has this operand; -1: always.
  int with = -1;
  int again = -1; ///< the op that selective recomputation runs again by itself; -1: none
  attributes (*of_part)(const attributes&, int part) = nullptr;
  attributes (*joined)(const attributes (&parts)[max_parts]) = nullptr;

  constexpr int count() const {
    int n = 0;
    while (n < max_parts && parts[n].op != nullptr) ++n;
    return n;
  }
  /// Returns whether a node of the fused op is read as these ops.
  constexpr bool holds_for(const node& n) const {
    return parts[0].op != nullptr && (with < 0 || n.in[with] >= 0);
  }
  constexpr attributes attributes_of_part(const attributes& whole, int part) const {
    return of_part != nullptr ? of_part(whole, part) : part == main ? whole : attributes{};
  }
  constexpr attributes attributes_of_parts(const attributes (&of)[max_parts]) const {
    return joined != nullptr ? joined(of) : of[main];
  }
};

} // namespace mc
