// One mistake, one error: a fault becomes the one static assertion that fails, with the operation,
// the operand names and the line and file of the model source spelled in the instantiation. A
// static assertion takes a literal, so the sentences of graph/fault.hpp stand here again; a test
// holds them equal.
#pragma once

#include <megacpp/config/config.hpp>
#include <megacpp/graph/fault.hpp>

#include <utility>

namespace mc {

#if MEGACPP_PRINTS_TEXT
template <unsigned N> struct words {
  char c[N]{};
  constexpr explicit words(const char* from) {
    for (unsigned i = 0; i + 1 < N; ++i) c[i] = from[i];
  }
};
/// The faulty operation.
template <words Operation> struct in;
template <int Line, words File> struct at_line_of_model;
#else
/// The same as packs of characters, which print whole in every compiler's message.
template <char... Characters> struct in;
template <int Line, char... File> struct at_line_of_model;
#endif

/// A function, and true even of a fault: its assertion has failed then and says all, and no
/// compiler adds an error about a value that it cannot take from a class whose assertion failed.
template <class Run, fault Code, class Where, class Line> constexpr bool report() {
  static_assert(Code != fault::P001,
                "MEGA-P001 one operand is sharded along the summed dim and the other is not: "
                "shard both along it, or gather the sharded one with to(x, axis, R)");
  static_assert(Code != fault::P002,
                "MEGA-P002 the operands are placed differently: bring one to the other's "
                "placement with to()");
  static_assert(Code != fault::P003,
                "MEGA-P003 no redistribution leads from this placement to that one: see the "
                "table in docs/design.md");
  static_assert(Code != fault::P004,
                "MEGA-P004 an operand is invariant where another is sharded, so its gradient "
                "would never be summed: convert it with to(x, axis, R)");
  static_assert(Code != fault::P005,
                "MEGA-P005 a pending sum enters an op that is not linear in it: reduce it first "
                "with to(x, axis, I) or to(x, axis, S(dim))");
  static_assert(Code != fault::P006,
                "MEGA-P006 an adjoint gives a cotangent that is not the dual of its value's "
                "placement: mend the op's adjoint");
  static_assert(Code != fault::P007,
                "MEGA-P007 the op needs the whole of a dim that is sharded: gather it with to(x, "
                "axis, R)");
  static_assert(Code != fault::P008,
                "MEGA-P008 an operand is invariant where another is replicated: convert the "
                "invariant one with to(x, axis, R)");
  static_assert(Code != fault::P009,
                "MEGA-P009 only the innermost axis of a dim can be gathered or re-sharded: "
                "redistribute the inner axis first");
  static_assert(Code != fault::P010,
                "MEGA-P010 a parameter's gradient does not reach the optimizer with the "
                "parameter's placement: nothing in the part that declares it depends on it, a "
                "reduction is missing, or an adjoint emitted what nobody wants (backward::wants)");
  static_assert(Code != fault::P011,
                "MEGA-P011 the size of this axis is known only at start, so no extent can be cut "
                "or gathered over it: use a sized axis");
  static_assert(Code != fault::P012,
                "MEGA-P012 dims in contiguous and balanced order meet: give both the same order");
  static_assert(Code != fault::P013,
                "MEGA-P013 dense and expert placements meet outside dispatch and combine");
  static_assert(Code != fault::P014,
                "MEGA-P014 a pass left a node whose outputs are not what its rule says: mend the "
                "pass");
  static_assert(Code != fault::P015,
                "MEGA-P015 tokens that go to experts must lie on one rank each: shard them over "
                "this axis with to(x, axis, S(sequence))");
  static_assert(Code != fault::P016,
                "MEGA-P016 what runs in rounds of experts cannot stand together: outside of them "
                "read only what combine gives, and in them only what is made before the first "
                "round or in the same one");
  static_assert(Code != fault::P017,
                "MEGA-P017 an op stops a gradient that is wanted: give the op an adjoint for it, "
                "or say in op_info::constants that the output has none");
  static_assert(Code != fault::P018,
                "MEGA-P018 a value of a model is spread over pp, whose ranks hold other layers: "
                "leave pp out of its placement");
  static_assert(Code != fault::P019,
                "MEGA-P019 a pass lost an output or a gradient, made it of other operands, or "
                "changed an input, a parameter or the ranks: mend the pass");
  static_assert(Code != fault::P020,
                "MEGA-P020 a parameter's gradient has another element type than the store it "
                "collects in: declare it as accumulator_of(type) in the rule of the op that "
                "computes it");
  static_assert(Code != fault::P021,
                "MEGA-P021 a collective stands between dispatch and combine over an axis whose "
                "ranks have other numbers of rounds, so that one would wait for the other without "
                "end: put it before dispatch or behind combine");
  static_assert(Code != fault::S001,
                "MEGA-S001 a sharded extent does not divide by the size of its axis: change the "
                "layout or the extent");
  static_assert(Code != fault::S002, "MEGA-S002 the extents differ: make them equal");
  static_assert(Code != fault::S003,
                "MEGA-S003 the dims differ or stand in another order: name and order them alike");
  static_assert(Code != fault::S004,
                "MEGA-S004 the graph has more dims, operands, nodes, values or elements of a value "
                "than it can hold");
  static_assert(Code != fault::S005,
                "MEGA-S005 two parameters have one name: rename one, or tie them (in one part by "
                "using the first one's var twice, in another part by declaring it tied)");
  static_assert(Code != fault::S006,
                "MEGA-S006 a parameter cannot be stored as it is declared: give it a scope and a "
                "name without blanks, quotes and backslashes, in ASCII, and the run's element "
                "type");
  static_assert(Code != fault::S007,
                "MEGA-S007 an operand has another element type than the op reads: give it the "
                "type that the op's comment states");
  static_assert(Code != fault::S008,
                "MEGA-S008 what an op needs or a part gives is absent: give it (causal attention "
                "needs positions, and documents where they are packed)");
  static_assert(Code != fault::S009,
                "MEGA-S009 a block returns the stream as it came: build something in it, or leave "
                "its layers out");
  static_assert(Code != fault::S010,
                "MEGA-S010 the integers of an operand are not those that the op reads, or reach "
                "beyond what they count: give it the input that its comment names, or its table a "
                "row for each of them (the rule of an op of one's own says what it gives: "
                "value::holds, value::below)");
  static_assert(Code != fault::S011,
                "MEGA-S011 a part has an input that the run does not give it: use those that it "
                "has (context::positions, token_keys and documents, and what its function is "
                "given), or one just like them");
  static_assert(Code != fault::C001,
                "MEGA-C001 the model's own numbers contradict each other: correct the model");
  static_assert(Code != fault::C002,
                "MEGA-C002 the layout does not fit the model: change the layout");
  static_assert(Code != fault::C003,
                "MEGA-C003 the batch does not fit the model or the layout: change micro-batch or "
                "sequence");
  static_assert(Code != fault::C004,
                "MEGA-C004 a tied use contradicts the declaration of its parameter: give both the "
                "same type, initial values, decay, valid rows and update, and freeze both or "
                "neither");
  static_assert(Code != fault::C006,
                "MEGA-C006 the model can be trained, but no text can be generated with it: build "
                "this otherwise if one is wanted");
  static_assert(
      Code != fault::C007,
      "MEGA-C007 an op computes on a tied parameter before it is used, and a gradient of "
      "it would be lost: use it as it is, or behind to(), in every part, or do not tie it");
  static_assert(Code != fault::M001,
                "MEGA-M001 the run does not fit the memory: more tp or pp, recompute, or a "
                "smaller micro-batch");
  static_assert(Code != fault::M002,
                "MEGA-M002 a value has no memory or shares it with another live one: mend the "
                "pass");
  static_assert(
      Code != fault::T001,
      "MEGA-T001 a task of the step reads what no task wrote for its micro-batch, or what "
      "another has written over, or adds to what was not cleared: mend the order of the tasks or "
      "the places of the buffers");
  static_assert(
      Code != fault::T002,
      "MEGA-T002 a step uses gradients or sums before they are complete and reduced once: "
      "mend the order of its tasks");
  static_assert(Code != fault::B001,
                "MEGA-B001 the device has no kernel for this op: specialise kernel_of<&the_op>");
  static_assert(Code != fault::B002,
                "MEGA-B002 the run's device has no backend: say using device = mc::cpu");
  return true;
}

namespace detail {

constexpr int length_of(const char* text) {
  int n = 0;
  while (text[n] != 0) ++n;
  return n;
}

/// What a source's fault_record is about, as types.
template <class Source> struct spelled {
  static constexpr const char* operation = Source::wrong.what.c_str();
  static constexpr const char* file = Source::wrong.line.file_name();
#if MEGACPP_PRINTS_TEXT
  using where = in<words<static_cast<unsigned>(length_of(operation) + 1)>(operation)>;
  using line = at_line_of_model<Source::wrong.line.number,
                                words<static_cast<unsigned>(length_of(file) + 1)>(file)>;
#else
  template <int... I> static in<operation[I]...> characters(std::integer_sequence<int, I...>);
  using where = decltype(characters(std::make_integer_sequence<int, length_of(operation)>{}));
  template <int... I>
  static at_line_of_model<Source::wrong.line.number, file[I]...> file_characters(
      std::integer_sequence<int, I...>);
  using line = decltype(file_characters(std::make_integer_sequence<int, length_of(file)>{}));
#endif
};

} // namespace detail

/// Source has a static constexpr fault_record `wrong`. True, or the program does not compile.
template <class Run, class Source> inline constexpr bool reported =
    report<Run, Source::wrong.code, typename detail::spelled<Source>::where,
           typename detail::spelled<Source>::line>();

} // namespace mc
