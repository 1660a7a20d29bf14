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
#include <numeric>
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

class kernel_table;

/// What the parts of generation are made of when the number of prompts and their lengths are known:
/// the model's own functions, called at run time, and the kernels of their nodes.
struct generation_view {
  const void* model = nullptr;
  graph (*forward)(const void* model, const setup&, part_kind, int kind) = nullptr;
  const kernel_table* kernels = nullptr;
};
/// The forward graph of a part of a Model; kinds count those in use.
template <class Model>
graph forward_graph_of(const void* model, const setup& s, part_kind part, int kind) {
  const Model& m = *static_cast<const Model*>(model);
  return forward_graph(m, s, part, used_kinds(m).kind(kind));
}

struct program_view {
  std::string name, family;
  setup numbers{};
  int layers = 0, hidden = 0, vocabulary = 0;
  std::int64_t positions = 0;      ///< the longest sequence, in tokens
  std::vector<model_number> model; ///< what the model tells of itself; may be empty
  std::vector<int> kind_of;        ///< by layer
  const registry* stores = nullptr;
  std::int64_t parameters = 0;      ///< of the whole model
  part_view stem, loss, evaluation; ///< loss: forward and backward; evaluation: forward only
  std::vector<part_view> blocks;    ///< by kind
  part_view update;
  generation_view generation;

  /// A number of the model by its member's name.
  double number(std::string_view member) const {
    for (const model_number& n : model)
      if (n.name == member) return n.value;
    throw error(exit_code::internal,
                "the model of " + name + " does not tell its \"" + std::string(member) + "\"");
  }
};

/// p. Throws mc::error(exit_code::mismatch) for a program that needs more ranks than this process
/// is; to be asked before memory is reserved, which may well be too little for all ranks' parts.
inline const program_view& require_one_rank(const program_view& p) {
  const layout& l = p.numbers.ranks;
  const int ranks = l.pp * std::lcm(l.tp * l.cp, l.ep * l.expert_tp());
  if (ranks > 1)
    throw error(exit_code::mismatch,
                p.name + " is laid out over at least " + std::to_string(ranks) + " ranks (tp " +
                    std::to_string(l.tp) + ", pp " + std::to_string(l.pp) + ", cp " +
                    std::to_string(l.cp) + ", ep " + std::to_string(l.ep) +
                    ") and this process is one: build a preset with tp, pp, cp and ep of 1 to "
                    "run on one rank");
  return p;
}

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
  return training_memory(s.plans, s.layers, p.numbers.ranks.pp - stage, *p.evaluation.plan,
                         *p.update.plan, *p.stores, p.numbers.type, *p.blocks[0].g);
}

/// The same for evaluation by one rank.
inline memory_items inference_memory(const program_view& p) {
  stage_plans s(p, 0);
  s.plans.back() = p.evaluation.plan;
  return inference_memory(s.plans, s.layers, *p.stores, p.numbers.type, *p.blocks[0].g);
}

namespace detail {
/// The name of a type as its author wrote it, without namespaces.
template <class T> std::string type_name() {
  std::string_view text =
      __PRETTY_FUNCTION__; // "... [with T = byte_gpt; ...]", "... [T = byte_gpt]"
  text.remove_prefix(text.find("T = ") + 4);
  text = text.substr(0, text.find_first_of(";]"));
  if (const auto colon = text.rfind(':'); colon != std::string_view::npos)
    text.remove_prefix(colon + 1);
  return std::string(text);
}
} // namespace detail

/// The family of a model: what it says, or, of a struct that derives from a family and says
/// nothing, the struct's own name.
template <class Model> std::string family_of() {
  if constexpr (requires { typename decltype(Model::family)::model; }) {
    if constexpr (!std::is_same_v<typename decltype(Model::family)::model, Model>)
      return detail::type_name<Model>();
  }
  return static_cast<const char*>(Model::family);
}

/// The description of a model that has one.
template <class Model> std::vector<model_number> described(const Model& m) {
  std::vector<model_number> numbers;
  if constexpr (requires { m.description(); })
    for (const model_number& n : m.description()) numbers.push_back(n);
  return numbers;
}

} // namespace mc
