// The passes between a model's graph and the one that runs: one list, for training, evaluation and
// generation alike, each pass verified by the whole verifier before the next one sees its result.
#pragma once

#include <megacpp/pass/fuse.hpp>
#include <megacpp/pass/pending.hpp>
#include <megacpp/pass/recompute.hpp>
#include <megacpp/pass/regions.hpp>
#include <megacpp/pass/split.hpp>
#include <megacpp/pass/verify.hpp>

namespace mc {

/// What the passes over one graph are told.
struct pass_options {
  bool backward = false; ///< derive the backward pass: training
  recompute again = recompute::none;
};

/// A function from graph to graph with a name. It is left out of graphs to which it does not apply.
struct pass {
  const char* name;
  graph (*run)(const graph&, const pass_options&);
  bool (*applies)(const graph&, const pass_options&);
};

/// In the order in which they run.
inline constexpr pass all_passes[] = {
    {"differentiate", [](const graph& g, const pass_options&) { return differentiated(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"pending", [](const graph& g, const pass_options&) { return left_pending(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"fuse", [](const graph& g, const pass_options&) { return fused(g); },
     [](const graph&, const pass_options&) { return true; }},
    {"recompute", [](const graph& g, const pass_options& o) { return recomputed(g, o.again); },
     [](const graph& g, const pass_options& o) { return o.backward && recomputes(g, o.again); }},
    {"split", [](const graph& g, const pass_options&) { return halved(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"regions", [](const graph& g, const pass_options&) { return in_regions(g); },
     [](const graph& g, const pass_options&) { return g.region_count > 0; }}};
inline constexpr int pass_count = static_cast<int>(std::size(all_passes));
/// How many of them, from the first, derive what a graph owes: what the others must leave as it is.
inline constexpr int deriving_passes = 1;

/// What a pass left wrong, by the whole verifier: its nodes; of training, the gradients; what the
/// graph owes beside `before` (`derived`: the pass derived the backward pass, and `before` is the
/// forward's).
constexpr fault_record verify(const graph& g, const meaning& before, bool backward, bool derived) {
  fault_record wrong = g.wrong;
  if (wrong.code == fault::none) wrong = verify_nodes(g);
  if (wrong.code == fault::none && backward) wrong = verify_training(g);
  if (wrong.code == fault::none) wrong = verify_meaning(g, before, derived);
  return wrong;
}

/// The result of a pass over any graph, its nodes examined, and what it owes beside `before`.
constexpr graph verified(graph g, const meaning& before) {
  g.wrong = verify(g, before, false, false);
  return g;
}

/// The graph after passes [from, to), each verified. A fault ends it, and stands in the graph.
/// f(pass, graph) after each pass that applied.
template <class F>
constexpr graph after_passes(const graph& before, const pass_options& o, int from, int to, F f) {
  graph g = before;
  meaning owes = meaning_of(g);
  for (int i = from; i < to && g.wrong.code == fault::none; ++i) {
    if (!all_passes[i].applies(g, o)) continue;
    g = all_passes[i].run(g, o);
    const bool derived = i < deriving_passes;
    g.wrong = verify(g, owes, o.backward, derived);
    if (derived && g.wrong.code == fault::none) owes = meaning_of(g);
    f(all_passes[i], g);
  }
  return g;
}
constexpr graph after_passes(const graph& before, const pass_options& o, int from = 0,
                             int to = pass_count) {
  return after_passes(before, o, from, to, [](const pass&, const graph&) {});
}

/// What the passes make of a graph in which nothing is wrong: for who asks which nodes there are.
/// What runs is verified.
constexpr graph unverified(const graph& forward, const pass_options& o) {
  graph g = forward;
  for (const pass& p : all_passes)
    if (g.wrong.code == fault::none && p.applies(g, o)) g = p.run(g, o);
  return g;
}

/// The training graph of a part, before the passes that rewrite it.
constexpr graph derived_graph(const graph& forward) {
  return after_passes(forward, {.backward = true}, 0, deriving_passes);
}

namespace detail {

/// A graph after the first N passes; each result, and what was wrong with it, is a constant of its
/// own, since the limit on the steps of a constant evaluation counts for each. A pass that does not
/// apply, or comes after a fault, leaves all as it was.
template <class Source, int N> struct after;

template <class Source> struct after<Source, 0> {
  static constexpr auto& g = Source::forward; // nvcc takes no reference of a named type here
  static constexpr fault_record wrong = g.wrong;
  static constexpr meaning owes = meaning_of(g);
};
template <class Before, class Source, int N, bool Applies> struct result : Before {};
template <class Before, class Source, int N> struct result<Before, Source, N, true> {
  static constexpr graph g = all_passes[N].run(Before::g, Source::options);
  static constexpr bool backward = Source::options.backward, derived = N < deriving_passes;
  // verify() in steps
  static constexpr fault_record of_nodes = g.wrong.code == fault::none ? verify_nodes(g) : g.wrong;
  static constexpr fault_record of_gradients =
      of_nodes.code == fault::none && backward ? verify_training(g) : of_nodes;
  static constexpr fault_record wrong =
      of_gradients.code == fault::none ? verify_meaning(g, Before::owes, derived) : of_gradients;
  static constexpr meaning meant = meaning_of(g);
  static constexpr const meaning& owes = []() -> const meaning& {
    if constexpr (derived) return meant;
    else return Before::owes;
  }();
};
template <class Source, int N> struct after
    : result<after<Source, N - 1>, Source, N - 1,
             after<Source, N - 1>::wrong.code == fault::none &&
                 all_passes[N - 1].applies(after<Source, N - 1>::g, Source::options)> {};

} // namespace detail

/// after_passes at compile time, with a static constexpr graph g and fault_record wrong. Source has
/// static constexpr members forward, a graph, and options.
template <class Source> using after_all_passes = detail::after<Source, pass_count>;
/// The same after the passes that derive alone.
template <class Source> using after_deriving = detail::after<Source, deriving_passes>;

} // namespace mc
