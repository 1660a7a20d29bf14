// The pipeline stages of a program: the layers, registry and memory of each, and the numbers of
// micro-batches that its schedule is proven for.
#pragma once

#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <string>
#include <vector>

namespace mc {

inline std::vector<planned_graph> graphs_of(const program_view& p) {
  std::vector<planned_graph> graphs;
  graphs.reserve(p.parts.size());
  for (const part_view& part : p.parts) graphs.emplace_back(*part.g, *part.plan);
  return graphs;
}
/// Returns the name of a part.
inline std::string name_of_part(const program_view& p, int number) {
  const int kinds = p.kinds();
  if (number == 0) return "stem";
  if (number <= kinds) return kinds == 1 ? "block" : "block " + std::to_string(number - 1);
  constexpr const char* others[] = {"head", "update", "head (evaluation)", "totals"};
  return others[number - kinds - 1];
}
/// Returns the lowest layer that has a trained parameter (plan/frozen.hpp).
inline int lowest_trained(const program_view& p) {
  return lowest_trained(
      p.layers, p.kinds(), [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; },
      [&](int part) -> const graph& { return *p.part(part).g; });
}
/// Returns the layers and the schedule of a pipeline stage.
inline stage_shape stage_of(const program_view& p, int stage) {
  return {p.layers,
          p.kinds(),
          p.numbers.ranks,
          stage,
          [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; },
          p.numbers.batch.micro_batches,
          lowest_trained(p)};
}

/// Returns the number of micro-batches with which a step of `micros` micro-batches is proven. 1F1B
/// repeats itself, so a smaller number is enough. A schedule that a user has written is only known
/// for the very number.
inline int micros_to_prove(const layout& l, int micros) {
  const int enough = 64 * l.pp;
  return l.schedule != nullptr || micros <= enough ? micros : enough + micros % l.pp;
}
/// Returns MEGA-T003 for a training step of `micros` micro-batches on each replica if the schedule
/// or the memory is not made for it, else no fault.
inline fault_record fault_of_micros(const program_view& p, int micros) {
  const layout& l = p.numbers.ranks;
  const int most = p.numbers.batch.micro_batches;
  if (most == 0 || micros <= most) {
    if ((l.pp == 1 && l.schedule == nullptr) || micros == 1) return {};
    return verify_schedule(schedule_of(l), l, micros_to_prove(l, micros));
  }
  fault_record wrong;
  wrong.code = fault::T003;
  wrong.what << "it has " << micros << " micro-batches, and memory is for " << most
             << " (batching{.micro_batches})";
  return wrong;
}
/// Returns the valid number of micro-batches that is nearest to `micros`. If none is near, it
/// returns 1, which is always valid.
inline int nearest_micros(const program_view& p, int micros) {
  const auto legal = [&](int n) { return n > 0 && fault_of_micros(p, n).code == fault::none; };
  const int most = p.numbers.batch.micro_batches;
  if (most > 0) micros = std::min(micros, most);
  for (int away = 0; away <= 2 * p.numbers.ranks.pp; ++away) {
    if (legal(micros + away)) return micros + away;
    if (legal(micros - away)) return micros - away;
  }
  return 1;
}

/// Returns the registry of the parameters that a pipeline stage holds, over ranks of this mesh.
inline registry stores_of_stage(const program_view& p, const stage_shape& s, const mesh& ranks) {
  std::vector<const graph*> parts;
  for (int i = 0; i <= p.kinds() + 1; ++i) parts.push_back(p.part(i).g);
  std::vector<int> before(parts.size());
  for (int stage = 0; stage < s.training.stage; ++stage) {
    const stage_shape other = stage_of(p, stage);
    for (std::size_t i = 0; i < before.size(); ++i) before[i] += other.layers[static_cast<int>(i)];
  }
  return verified_registry(parts, s.layers, p.numbers.ranks.zero, ranks, before);
}

/// Returns the memory plan of one rank of a pipeline stage for training, or for evaluation alone,
/// item by item, over ranks of this mesh. Without a known mesh it is that of a single replica.
inline memory_items memory_of_stage(const program_view& p, int stage = 0, bool training = true,
                                    const mesh& ranks = {}) {
  return stage_memory(graphs_of(p), stage_of(p, stage), *p.stores, p.numbers.precision, ranks,
                      training);
}

} // namespace mc
