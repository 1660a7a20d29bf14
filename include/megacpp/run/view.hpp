// A program as the run-time half sees it: graphs, plans and two functions a part. The compiled
// executor and the interpreter both produce one; everything above (session, trainer, generation) is
// written once.
#pragma once

#include <megacpp/exec/error.hpp>
#include <megacpp/model/description.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/run/frame.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace mc {

/// Called after each node while profiling: node index, nanoseconds.
class node_clock {
public:
  virtual ~node_clock() = default;
  virtual void node(const graph& g, int index, std::int64_t nanoseconds) = 0;
};

struct part_view {
  const graph* g = nullptr;
  const memory_plan* plan = nullptr;
  int index = 0; ///< in the registry
  const void* self = nullptr;
  void (*run)(const part_view&, stage, cpu&, frame&, node_slot*, node_clock*) = nullptr;
  void (*prepare)(const part_view&, cpu&, node_slot*) = nullptr;
};

struct program_view {
  std::string name, family;
  setup numbers{};
  int layers = 0, hidden = 0, vocabulary = 0;
  std::vector<model_number> model; ///< what the model tells of itself; may be empty
  std::vector<int> kind_of;        ///< by layer
  const registry* stores = nullptr;
  std::int64_t parameters = 0;      ///< of the whole model
  part_view stem, loss, evaluation; ///< loss: forward and backward; evaluation: forward only
  std::vector<part_view> blocks;    ///< by kind
  part_view update;
  part_view generation_stem, logits; ///< one sequence
  std::vector<part_view> generation_blocks;

  /// A number of the model by its member's name.
  double number(std::string_view member) const {
    for (const model_number& n : model)
      if (n.name == member) return n.value;
    throw error(exit_code::internal,
                "the model of " + name + " does not tell its \"" + std::string(member) + "\"");
  }
};

/// f(part, layers) for stem, block kinds and head of the training program.
template <class F> void for_each_training_part(const program_view& p, F f) {
  f(p.stem, 1);
  for (std::size_t k = 0; k < p.blocks.size(); ++k)
    f(p.blocks[k],
      static_cast<int>(std::count(p.kind_of.begin(), p.kind_of.end(), static_cast<int>(k))));
  f(p.loss, 1);
}

/// Plans and layers of the training parts of a pipeline stage.
struct stage_plans {
  std::vector<const memory_plan*> plans;
  std::vector<int> layers;

  stage_plans(const program_view& p, int stage) {
    for_each_training_part(p, [&](const part_view& part, int) { plans.push_back(part.plan); });
    layers.resize(plans.size());
    stage_layers(
        p.layers, p.numbers.ranks.pp, stage,
        [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; }, layers);
  }
};

/// The plan of one rank of a pipeline stage for training, item by item.
inline memory_items training_memory(const program_view& p, int stage = 0) {
  const stage_plans s(p, stage);
  return training_memory(s.plans, s.layers, p.numbers.ranks.pp - stage, *p.update.plan, *p.stores,
                         p.numbers.type, *p.blocks[0].g);
}

/// The same for evaluation and generation by one rank.
inline memory_items inference_memory(const program_view& p) {
  const stage_plans s(p, 0);
  std::vector<const memory_plan*> generation{p.evaluation.plan, p.generation_stem.plan,
                                             p.logits.plan};
  for (const part_view& b : p.generation_blocks) generation.push_back(b.plan);
  return inference_memory(s.plans, s.layers, generation, *p.stores, p.numbers.type, *p.blocks[0].g);
}

/// The description of a model that has one.
template <class Model> std::vector<model_number> described(const Model& m) {
  std::vector<model_number> numbers;
  if constexpr (requires { m.description(); })
    for (const model_number& n : m.description()) numbers.push_back(n);
  return numbers;
}

} // namespace mc
