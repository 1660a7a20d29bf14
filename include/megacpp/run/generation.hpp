// The graphs of generation, which the model's own functions build with the parameters of training.
// A model without such graphs can be trained all the same. The first fault says why it has none;
// describe and train print it before a text is asked for.
#pragma once

#include <megacpp/pass/pipeline.hpp>
#include <megacpp/run/interpreted_part.hpp>

#include <memory>
#include <vector>

namespace mc {

/// Returns the index, among the parameters of training, of parameter k of g, a graph of generation
/// of part i; -1 if there is none. Parameters are found by name: C++ leaves open in which order two
/// declarations in one expression of a model's function are evaluated.
inline int trained_parameter(const program_view& p, int i, const graph& g, int k) {
  const graph& trained = *p.part(i).g;
  const value& v = g.at(g.parameters[static_cast<unsigned>(k)].v);
  for (int t = 0; t < trained.parameter_count; ++t)
    if (const value& w = trained.at(trained.parameters[static_cast<unsigned>(t)].v);
        same_name(v, w) && v.same_dims(w) &&
        g.parameters[static_cast<unsigned>(k)].encoding ==
            trained.parameters[static_cast<unsigned>(t)].encoding)
      return t;
  return -1;
}

/// Returns part i of generation in the shape of a setup, before passes.
inline graph generation_graph(const program_view& p, const setup& s, int i) {
  const part_kind part = i == 0           ? part_kind::stem
                         : i <= p.kinds() ? part_kind::block
                                          : part_kind::logits;
  graph g = p.generation.forward(p.model.at, s, part, i - 1);
  const auto refuse = [&g](source_line line, const char* what, value_id v, const char* why) {
    if (g.wrong.code != fault::none) return;
    record(g, fault::C006, line, what, v);
    g.wrong.what << ": " << why;
  };
  for (int k = 0; k < g.parameter_count; ++k)
    if (const parameter_info& info = g.parameters[static_cast<unsigned>(k)];
        trained_parameter(p, i, g, k) < 0)
      refuse(info.line, "parameter", info.v, "training has none of this name and these dims");
  return g;
}

/// Calls f(id) for every cache of a graph of generation, in the order of their declarations.
template <class F> void for_each_cache(const graph& g, F f) {
  for (int i = 0; i < g.value_count; ++i) {
    const auto id = static_cast<value_id>(i);
    if (const value& v = g.at(id); v.is == role::input && is_cache(v.from)) f(id);
  }
}
/// Compares the caches of two graphs of one part, for other numbers of new tokens, which must be
/// the same. Returns MEGA-C006 with the first cache that differs.
inline fault_record compare_caches(const graph& a, const graph& b) {
  std::vector<value_id> of_a, of_b;
  for_each_cache(a, [&](value_id v) { of_a.push_back(v); });
  for_each_cache(b, [&](value_id v) { of_b.push_back(v); });
  fault_record wrong;
  const auto differs = [&](const graph& g, value_id v) {
    record(wrong, g, fault::C006, 0, "input", v);
    wrong.what << ": a cache is the same for any number of new tokens, and this one has other "
                  "extents, places, types or slots with their number";
    return wrong;
  };
  for (std::size_t i = 0; i < of_b.size(); ++i) {
    const value& v = b.at(of_b[i]);
    if (i == of_a.size()) return differs(b, of_b[i]);
    const value& u = a.at(of_a[i]);
    if (u.from != v.from || u.feed_index != v.feed_index || u.type != v.type || !u.same_dims(v) ||
        u.at != v.at)
      return differs(b, of_b[i]);
  }
  return of_a.size() > of_b.size() ? differs(a, of_a[of_b.size()]) : wrong;
}

/// Returns the fault for which a program cannot generate text, or none: the first fault of its
/// graphs in the smallest shapes, with a token or two for each rank of tp.
inline fault_record fault_of_generation(const program_view& p) {
  const int tp = p.numbers.ranks.tp;
  for (int i = 0; i <= p.kinds() + 1; ++i) {
    const auto of = [&](int tokens) {
      return std::make_unique<graph>(
          generation_graph(p, for_generation(p.numbers, 1, tokens, 2 * tp), i));
    };
    const auto g = of(tp), longer = of(2 * tp);
    if (g->wrong.code != fault::none) return g->wrong;
    if (longer->wrong.code != fault::none) return longer->wrong;
    if (const fault_record f = compare_caches(*longer, *g); f.code != fault::none) return f;
    *g = after_passes(*g, {});
    if (g->wrong.code != fault::none) return g->wrong;
  }
  return {};
}
/// Returns the sentence about fault_of_generation; empty if text can be generated.
inline std::string why_no_generation(const program_view& p) {
  const fault_record wrong = fault_of_generation(p);
  return wrong.code == fault::none ? "" : p.name + " cannot generate: " + sentence_about(wrong);
}

} // namespace mc
