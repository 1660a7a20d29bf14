// The form of a fused op: the parts in whose place it stands. A fusion is declared once, beside the
// op that it extends:
//
//   add_rms_norm (x, a, gain) -> s, y, r    parts  0: add (x, a)
//                                                  1: rms_norm (out_of(0), gain)
//                                           outputs  out_of(0), out_of(1, 0), out_of(1, 1)
//
// pass/fuse.hpp looks for such parts in a graph, and graph/terms.hpp holds the fused node to what
// they mean.
#pragma once

#include <megacpp/graph/graph.hpp>
#include <megacpp/graph/operand.hpp>

namespace mc {

/// What a part reads: operand k of the fused node, an output of another part, or nothing.
struct part_operand {
  std::int8_t at = -1;

  constexpr part_operand() = default;
  constexpr part_operand(int k) : at(static_cast<std::int8_t>(k)) {}
  template <class List, int K, element E>
  constexpr part_operand(operand_name<List, K, E, false> /*name*/) : at(K) {}
  constexpr bool absent() const { return at < 0; }
  /// True of an operand of the fused node, which is `at`.
  constexpr bool outer() const { return at >= 0 && at < max_inputs; }
  constexpr int part() const { return (at - max_inputs) / max_outputs; }
  constexpr int output() const { return (at - max_inputs) % max_outputs; }
};
/// Output k of a part.
constexpr part_operand out_of(int part, int k = 0) { return max_inputs + part * max_outputs + k; }

inline constexpr int max_parts = 4; ///< of a fused op
inline constexpr int max_forms = 4; ///< that extend one op

struct op_part {
  const op_info* op = nullptr;
  part_operand in[max_inputs]{};
};

/// The parts of a fused op, each after those that it reads. None has attributes but `main`, which
/// has the fused node's, unless `of_part` and `joined` say otherwise.
struct fused_form {
  op_part parts[max_parts]{};
  part_operand outputs[max_outputs]{}; ///< of the fused node; scratch is absent
  int main = 0;                        ///< the part whose line and attributes the node has
  int place = -1; ///< the part where the node runs, a later one too then; -1: the last
  int with = -1;  ///< the op stands for its parts where this operand is there; -1: always
  int again = -1; ///< the part that selective recomputation runs again by itself; -1: none
  attributes (*of_part)(const attributes&, int part) = nullptr;
  attributes (*joined)(const attributes (&parts)[max_parts]) = nullptr;

  constexpr int count() const {
    int n = 0;
    while (n < max_parts && parts[n].op != nullptr) ++n;
    return n;
  }
  /// True of a node that stands for the parts.
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
