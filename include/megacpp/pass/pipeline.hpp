// The list of passes between a model's graph and the graph that runs. It is the same for training,
// evaluation and generation. The whole verifier checks the result of each pass before the next pass
// reads it.
#pragma once

#include <megacpp/pass/fuse.hpp>
#include <megacpp/pass/pending.hpp>
#include <megacpp/pass/recompute.hpp>
#include <megacpp/pass/regions.hpp>
#include <megacpp/pass/split.hpp>
#include <megacpp/pass/verify.hpp>

namespace mc {

/// The options of the passes over one graph.
struct pass_options {
  bool backward = false; ///< derive the backward pass, for training
  recompute recompute_policy = recompute::none;
};

/// A function from graph to graph with a name. It is skipped for graphs to which it does not apply.
struct pass {
  const char* name;
  graph (*apply)(const graph&, const pass_options&);
  bool (*applies)(const graph&, const pass_options&);
};

/// The passes in the order in which they run.
inline constexpr pass all_passes[] = {
    {"differentiate", [](const graph& g, const pass_options&) { return differentiated(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"pending", [](const graph& g, const pass_options&) { return left_pending(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"fuse", [](const graph& g, const pass_options&) { return fused(g); },
     [](const graph&, const pass_options&) { return true; }},
    {"recompute",
     [](const graph& g, const pass_options& o) { return recomputed(g, o.recompute_policy); },
     [](const graph& g, const pass_options& o) {
       return o.backward && recomputes(g, o.recompute_policy);
     }},
    {"split", [](const graph& g, const pass_options&) { return split_graph(g); },
     [](const graph&, const pass_options& o) { return o.backward; }},
    {"regions", [](const graph& g, const pass_options&) { return in_regions(g); },
     [](const graph& g, const pass_options&) { return g.region_count > 0; }}};
inline constexpr int pass_count = static_cast<int>(std::size(all_passes));
/// The number of passes, from the first, that may add results to a graph. All others must keep its
/// meaning.
inline constexpr int deriving_passes = 1;

/// A check of the result of a pass. `before` is the meaning that the graph must have. With
/// `derived`, the pass has added the backward pass, and `before` is the meaning of the forward
/// graph.
struct pass_check {
  const char* name;
  fault_record (*fault_of)(const graph& g, const meaning& before, bool backward, bool derived);
};
inline constexpr pass_check pass_checks[] = {
    {"nodes", [](const graph& g, const meaning&, bool, bool) { return verify_nodes(g); }},
    {"gradients", [](const graph& g, const meaning&, bool backward,
                     bool) { return backward ? verify_training(g) : fault_record{}; }},
    {"meaning", [](const graph& g, const meaning& before, bool, bool derived) {
       return verify_meaning(g, before, derived);
     }}};
inline constexpr int pass_check_count = static_cast<int>(std::size(pass_checks));

/// Returns the first fault that pass_checks find in the result of a pass.
constexpr fault_record verify(const graph& g, const meaning& before, bool backward, bool derived) {
  fault_record wrong = g.wrong;
  for (const pass_check& c : pass_checks)
    if (wrong.code == fault::none) wrong = c.fault_of(g, before, backward, derived);
  return wrong;
}

/// Checks the nodes of a graph and its meaning, and returns the graph with the fault, if there is
/// one.
constexpr graph verified(graph g, const meaning& before) {
  g.wrong = verify(g, before, false, false);
  return g;
}

/// Returns the graph after the passes from, ..., to - 1, each of them verified. The first fault
/// ends the passes, and the graph holds it. f(pass, graph) is called after each pass that applied.
template <class F>
constexpr graph after_passes(const graph& before, const pass_options& o, int from, int to, F f) {
  graph g = before;
  meaning owes = meaning_of(g);
  for (int i = from; i < to && g.wrong.code == fault::none; ++i) {
    if (!all_passes[i].applies(g, o)) continue;
    g = all_passes[i].apply(g, o);
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

/// Returns the graph that all passes make of a sound graph, without verifying it: for callers that
/// only ask which nodes there are. A graph that runs is verified.
constexpr graph unverified(const graph& forward, const pass_options& o) {
  graph g = forward;
  for (const pass& p : all_passes)
    if (g.wrong.code == fault::none && p.applies(g, o)) g = p.apply(g, o);
  return g;
}

/// Returns the training graph of a part before the passes that rewrite it.
constexpr graph derived_graph(const graph& forward) {
  return after_passes(forward, {.backward = true}, 0, deriving_passes);
}

} // namespace mc
