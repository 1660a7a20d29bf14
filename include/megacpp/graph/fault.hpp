// Faults: what is wrong with a graph, recorded once (the first), reported as one sentence at
// compile time (run/report.hpp) or at run time (describe). docs/errors.md explains each code.
#pragma once

#include <cstdint>

namespace mc {

enum class fault : std::uint8_t {
  none,
  P001, // contraction: one operand is sharded along the summed dim, the other is not
  P002, // operands of one op are placed differently
  P003, // no redistribution leads from this placement to that one
  P004, // an invariant operand meets a sharded one
  P005, // a pending sum enters an op that is not linear in it
  P006, // an adjoint produced a cotangent whose placement is not the dual of its value's
  P007, // the op needs the whole of a dim that is sharded
  P008, // an invariant operand meets a replicated one
  P009, // only the innermost axis of a dim can be gathered or re-sharded
  P010, // a parameter's gradient does not reach the optimizer with the parameter's placement
  P011, // the size of this axis is known only at start
  P012, // dims in contiguous and balanced order meet
  P013, // dense and expert mesh meet outside dispatch and combine
  P014, // the verifier found a node whose outputs are not what its rule says
  P015, // tokens that go to experts do not lie on one rank each
  P016, // the nodes of a region cannot stand together
  P017, // an op stops a gradient
  P018, // a value of a model is spread over pipeline stages
  P019, // a pass changed what the graph owes
  P020, // a gradient of a parameter has another element type than its store
  P021, // a collective stands in a region of which ranks of its axis have other numbers of trips
  S001, // a sharded extent does not divide
  S002, // extents differ
  S003, // dims differ or are in another order
  S004, // too many dims, operands, nodes, values or elements
  S005, // two parameters have one name
  S006, // a parameter cannot be stored as it is declared
  S007, // an operand has another element type than the op reads
  S008, // what an op needs or a part gives is absent
  S009, // a part returns its input
  S010, // an operand's integers are others than the op reads
  S011, // the run does not feed a part its input
  C001, // the model's own numbers contradict each other
  C002, // the layout does not fit the model
  C003, // the batch does not fit the model or the layout
  C004, // a tied use contradicts the declaration
  C006, // the model cannot generate
  C007, // an op computes on a tied parameter before it is used
  M001, // the plan does not fit the memory
  M002, // a pass left a value without memory, or two live values overlap
  T001, // a task of a step reads what is not there
  T002, // a step uses gradients that are not complete, or reduces them other than once
  B001, // the device has no kernel for an op
  B002  // the run names a device without a backend
};

/// Up to N - 1 characters, as a value.
template <int N> struct text {
  char c[N]{};
  int n = 0;

  constexpr text& operator<<(const char* s) {
    while (*s != 0 && n < N - 1) c[n++] = *s++;
    return *this;
  }
  constexpr text& operator<<(std::int64_t x) {
    if (x < 0) return *this << "-" << -x;
    char digits[20]{};
    int k = 0;
    do digits[k++] = static_cast<char>('0' + x % 10);
    while ((x /= 10) != 0);
    while (k > 0 && n < N - 1) c[n++] = digits[--k];
    return *this;
  }
  /// A number to six digits, as %g has it.
  constexpr text& decimal(double x) {
    if (x != x) return *this << "nan";
    if (x < 0) return (*this << "-").decimal(-x);
    if (x > 1e300) return *this << "inf";
    if (x < 1e15 && static_cast<double>(static_cast<std::int64_t>(x)) == x)
      return *this << static_cast<std::int64_t>(x);
    int exponent = 0, digits = 5; // behind the point
    for (; x >= 10; x /= 10) ++exponent;
    for (; x < 1; x *= 10) --exponent;
    auto d = static_cast<std::int64_t>(x * 1e5);
    if (x * 1e5 - static_cast<double>(d) >= 0.5) ++d;
    std::int64_t one = 100000;
    if (d == 10 * one) d = one, ++exponent;
    for (; exponent < 0 && exponent >= -4; ++exponent, ++digits) one *= 10;
    for (; exponent > 0 && exponent <= digits; --exponent, --digits) one /= 10;
    for (; digits > 0 && d % 10 == 0; --digits) d /= 10, one /= 10;
    *this << d / one;
    if (digits > 0) *this << ".";
    for (std::int64_t k = one / 10; k > 0; k /= 10) *this << d / k % 10;
    if (exponent != 0) *this << "e" << exponent;
    return *this;
  }
  constexpr const char* c_str() const { return c; }
};

/// A line of a model's source. A number alone has no file: converted from one, it does not claim
/// that of the conversion.
struct source_line {
  int number;
  const char* file;

  constexpr source_line(int line = 0, const char* in = "") : number(line), file(in) {}

  /// The file without its folders.
  constexpr const char* file_name() const {
    const char* name = file;
    for (const char* at = file; *at != 0; ++at)
      if (*at == '/') name = at + 1;
    return name;
  }
};

/// As a default argument: the line and the file of the call.
constexpr source_line here(int line = __builtin_LINE(), const char* file = __builtin_FILE()) {
  return {line, file};
}

/// The first fault of a graph: its code, the op and operands, and the line of the model source.
struct fault_record {
  fault code = fault::none;
  source_line line{};
  text<160> what{};
};

/// "own_family.hpp:45", or "line 45 of the model" where the file is unknown.
constexpr text<96> text_of(const source_line& line) {
  text<96> out;
  const char* file = line.file_name();
  if (*file == 0) return out << "line " << line.number << " of the model";
  return out << file << ":" << line.number;
}

constexpr const char* code_of(fault f) {
  constexpr const char* codes[] = {
      "",          "MEGA-P001", "MEGA-P002", "MEGA-P003", "MEGA-P004", "MEGA-P005", "MEGA-P006",
      "MEGA-P007", "MEGA-P008", "MEGA-P009", "MEGA-P010", "MEGA-P011", "MEGA-P012", "MEGA-P013",
      "MEGA-P014", "MEGA-P015", "MEGA-P016", "MEGA-P017", "MEGA-P018", "MEGA-P019", "MEGA-P020",
      "MEGA-P021", "MEGA-S001", "MEGA-S002", "MEGA-S003", "MEGA-S004", "MEGA-S005", "MEGA-S006",
      "MEGA-S007", "MEGA-S008", "MEGA-S009", "MEGA-S010", "MEGA-S011", "MEGA-C001", "MEGA-C002",
      "MEGA-C003", "MEGA-C004", "MEGA-C006", "MEGA-C007", "MEGA-M001", "MEGA-M002", "MEGA-T001",
      "MEGA-T002", "MEGA-B001", "MEGA-B002"};
  return codes[static_cast<int>(f)];
}

/// The sentence of each code: what is wrong and what to do.
constexpr const char* sentence_of(fault f) {
  switch (f) {
  case fault::none: return "";
  case fault::P001:
    return "one operand is sharded along the summed dim and the other is not: shard both along it, "
           "or "
           "gather the sharded one with to(x, axis, R)";
  case fault::P002:
    return "the operands are placed differently: bring one to the other's placement with to()";
  case fault::P003:
    return "no redistribution leads from this placement to that one: see the table in "
           "docs/design.md";
  case fault::P004:
    return "an operand is invariant where another is sharded, so its gradient would never be "
           "summed: "
           "convert it with to(x, axis, R)";
  case fault::P005:
    return "a pending sum enters an op that is not linear in it: reduce it first with to(x, axis, "
           "I) or "
           "to(x, axis, S(dim))";
  case fault::P006:
    return "an adjoint gives a cotangent that is not the dual of its value's placement: mend the "
           "op's "
           "adjoint";
  case fault::P007:
    return "the op needs the whole of a dim that is sharded: gather it with to(x, axis, R)";
  case fault::P008:
    return "an operand is invariant where another is replicated: convert the invariant one with "
           "to(x, axis, R)";
  case fault::P009:
    return "only the innermost axis of a dim can be gathered or re-sharded: redistribute the inner "
           "axis "
           "first";
  case fault::P010:
    return "a parameter's gradient does not reach the optimizer with the parameter's placement: "
           "nothing in the part that declares it depends on it, a reduction is missing, or an "
           "adjoint emitted what nobody wants (backward::wants)";
  case fault::P011:
    return "the size of this axis is known only at start, so no extent can be cut or gathered over "
           "it: "
           "use a sized axis";
  case fault::P012: return "dims in contiguous and balanced order meet: give both the same order";
  case fault::P013: return "dense and expert placements meet outside dispatch and combine";
  case fault::P014:
    return "a pass left a node whose outputs are not what its rule says: mend the pass";
  case fault::P015:
    return "tokens that go to experts must lie on one rank each: shard them over this axis with "
           "to(x, axis, S(sequence))";
  case fault::P016:
    return "what runs in rounds of experts cannot stand together: outside of them read only what "
           "combine gives, and in them only what is made before the first round or in the same one";
  case fault::P017:
    return "an op stops a gradient that is wanted: give the op an adjoint for it, or say in "
           "op_info::constants that the output has none";
  case fault::P018:
    return "a value of a model is spread over pp, whose ranks hold other layers: leave pp out of "
           "its placement";
  case fault::P019:
    return "a pass lost an output or a gradient, made it of other operands, or changed an input, a "
           "parameter or the ranks: mend the pass";
  case fault::P020:
    return "a parameter's gradient has another element type than the store it collects in: declare "
           "it as accumulator_of(type) in the rule of the op that computes it";
  case fault::P021:
    return "a collective stands between dispatch and combine over an axis whose ranks have other "
           "numbers of rounds, so that one would wait for the other without end: put it before "
           "dispatch or behind combine";
  case fault::S001:
    return "a sharded extent does not divide by the size of its axis: change the layout or the "
           "extent";
  case fault::S002: return "the extents differ: make them equal";
  case fault::S003: return "the dims differ or stand in another order: name and order them alike";
  case fault::S004:
    return "the graph has more dims, operands, nodes, values or elements of a value than it can "
           "hold";
  case fault::S005:
    return "two parameters have one name: rename one, or tie them (in one part by using the first "
           "one's var twice, in another part by declaring it tied)";
  case fault::S006:
    return "a parameter cannot be stored as it is declared: give it a scope and a name without "
           "blanks, quotes and backslashes, in ASCII, and the run's element type";
  case fault::S007:
    return "an operand has another element type than the op reads: give it the type that the op's "
           "comment states";
  case fault::S008:
    return "what an op needs or a part gives is absent: give it (causal attention needs positions, "
           "and documents where they are packed)";
  case fault::S009:
    return "a block returns the stream as it came: build something in it, or leave its layers out";
  case fault::S010:
    return "the integers of an operand are not those that the op reads, or reach beyond what they "
           "count: give it the input that its comment names, or its table a row for each of them "
           "(the rule of an op of one's own says what it gives: value::holds, value::below)";
  case fault::S011:
    return "a part has an input that the run does not give it: use those that it has "
           "(context::positions, token_keys and documents, and what its function is given), or one "
           "just like them";
  case fault::C001: return "the model's own numbers contradict each other: correct the model";
  case fault::C002: return "the layout does not fit the model: change the layout";
  case fault::C003:
    return "the batch does not fit the model or the layout: change micro-batch or sequence";
  case fault::C004:
    return "a tied use contradicts the declaration of its parameter: give both the same type, "
           "initial values, decay, valid rows and update, and freeze both or neither";
  case fault::C006:
    return "the model can be trained, but no text can be generated with it: build this otherwise "
           "if "
           "one is wanted";
  case fault::C007:
    return "an op computes on a tied parameter before it is used, and a gradient of it would be "
           "lost: use it as it is, or behind to(), in every part, or do not tie it";
  case fault::M001:
    return "the run does not fit the memory: more tp or pp, recompute, or a smaller "
           "micro-batch";
  case fault::M002:
    return "a value has no memory or shares it with another live one: mend the pass";
  case fault::T001:
    return "a task of the step reads what no task wrote for its micro-batch, or what another has "
           "written over, or adds to what was not cleared: mend the order of the tasks or the "
           "places of the buffers";
  case fault::T002:
    return "a step uses gradients or sums before they are complete and reduced once: mend the "
           "order "
           "of its tasks";
  case fault::B001: return "the device has no kernel for this op: specialise kernel_of<&the_op>";
  case fault::B002: return "the run's device has no backend: say using device = mc::cpu";
  }
  return "";
}

} // namespace mc
