// A program as code sees it that was compiled for no run: graphs, plans and functions for each
// part. The compiled executor and the interpreter both make one. The code above (session, trainer,
// generation) is written once.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/exec/device.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/model/description.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/run/frame.hpp>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace mc {

/// Returns the sentence about a fault, as the compiler would print it.
inline std::string sentence_about(const fault_record& wrong) {
  const std::string at =
      wrong.line.number > 0 ? std::string(" at ") + text_of(wrong.line).c_str() : "";
  return code_of(wrong.code) + at + ", " + wrong.what.c_str() + ": " + sentence_of(wrong.code);
}

struct part_view {
  const graph* g = nullptr;
  const memory_plan* plan = nullptr;
  int index = 0; ///< number of the part in the registry
  const void* self = nullptr;
  const std::type_info* device_type = &typeid(void); ///< type of device that run and prepare take
  void (*run)(const part_view&, phases, device&, frame&, node_slot*) = nullptr;
  /// Prepares the kernels of all nodes; without `backward`, only those outside the backward pass.
  void (*prepare)(const part_view&, device&, node_slot*, bool backward) = nullptr;
  /// Returns the scratch of these nodes on the device: that of the node that needs most, since they
  /// use it in turn.
  std::int64_t (*scratch_bytes)(const part_view&, device&, bool backward) = nullptr;
};

/// Returns the scratch that the kernels of these parts use in turn beside their operands.
/// `backward`: the kernels of the backward pass count, too.
inline std::int64_t scratch_bytes_of(std::span<const part_view> parts, device& on, bool backward) {
  std::int64_t most = 0;
  for (const part_view& part : parts) most = std::max(most, part.scratch_bytes(part, on, backward));
  return most;
}
/// Returns the memory that the kernels of these parts need: scratch, and the workspace and tables
/// that the device has for them. A device that only counts sizes (product/devices.hpp) reserves
/// none of it.
inline kernel_room room_of(std::span<const part_view> parts, device& on, bool backward) {
  for (const part_view& part : parts) {
    std::vector<node_slot> slots(static_cast<std::size_t>(part.g->node_count));
    part.prepare(part, on, slots.data(), backward);
  }
  return {scratch_bytes_of(parts, on, backward), on.products().workspace_bytes(), on.table_bytes()};
}

/// The value that a pipeline stage sends to the next one, and whose cotangent comes back: the
/// stream that a part reads, or that the stem makes.
struct stage_stream {
  dtype type = dtype::f32;
  std::int64_t elements = 0; ///< number of elements on one rank
  source_line line{};        ///< line of the model that makes it, the same for all parts

  stage_stream(const part_view& of, std::span<const part_view> all) {
    const value* v = read_by(of);
    if (v == nullptr && of.g->outputs[0] >= 0) v = &of.g->at(of.g->outputs[0]);
    if (v != nullptr && v->rank > 0) type = v->type, elements = local_size(of.g->ranks, *v).n;
    for (const part_view& part : all)
      if (line.number == 0 && read_by(part) != nullptr) line = line_of(*part.g, part.g->outputs[0]);
  }
  std::int64_t bytes() const { return elements * size_of(type); }

private:
  static const value* read_by(const part_view& part) {
    for (int i = 0; i < part.g->value_count; ++i)
      if (const value& v = part.g->values[i]; v.is == role::input && v.from == feed::stream)
        return &v;
    return nullptr;
  }
};

struct placed_graph;
struct planned_part;

/// The means to make parts whose shapes become known only at run time, such as those of generation,
/// which depend on the prompts: the model's own functions, and the kernels of the program's device.
/// `make` alone knows the device's type.
struct generation_view {
  graph (*forward)(const void* model, const setup&, part_kind, int kind) = nullptr;
  const void* kernels = nullptr; ///< kernel_table of the device
  std::unique_ptr<planned_part> (*make)(const placed_graph& of, const void* kernels) = nullptr;

  /// Returns a part with its kernels, made of a graph whose passes are done.
  std::unique_ptr<planned_part> part(const graph& passed, int number) const;
};
/// Returns the forward graph of a part of a Model. `kind` counts the kinds of block in use.
template <class Model>
graph forward_graph_of(const void* model, const setup& s, part_kind part, int kind) {
  const Model& m = *static_cast<const Model*>(model);
  return forward_graph(m, s, part, used_kinds(m).kind(kind));
}

/// The family of a model at run time: its name and its struct.
struct model_family {
  std::string name;
  const std::type_info* type = &typeid(void);
};

/// A number of a model under its member's name. Booleans are 0 or 1.
struct model_number {
  std::string name;
  double value = 0;
};
/// The numbers of a model that Megatron-LM has flags for. They are found by the names of the
/// model's members; 0 where there is none.
struct model_extents {
  std::int64_t heads = 0, kv_heads = 0, ffn = 0, experts = 0, expert_ffn = 0, experts_per_token = 0,
               shared_ffn = 0;
  double aux_loss = 0, router_z_loss = 0, bias_rate = 0, capacity = 0;
  bool norm_topk = true;
  const char* balanced_by = "none"; ///< kind of aux_loss, as Megatron-LM names it
};
/// A model at run time.
struct model_view {
  const void* at = nullptr;          ///< the model's struct, which outlives the view
  std::vector<model_number> numbers; ///< numbers of its list of members; none without a list
  model_extents extents;
};

struct program_view {
  std::string name;
  model_family family;
  setup numbers{};
  int layers = 0, hidden = 0, vocabulary = 0;
  std::int64_t positions = 0; ///< longest sequence, in tokens
  model_view model;
  std::vector<int> kind_of;         ///< kind of each layer
  const registry* stores = nullptr; ///< registry of `stage`
  int stage = -1;                   ///< pipeline stage that `stores` is of; -1: all stages
  std::int64_t parameters = 0;      ///< number of parameters of the whole model
  std::vector<part_view> parts;     ///< view of each part (plan/memory.hpp)
  generation_view generation;

  /// Returns the type of the device that the parts are made for.
  const std::type_info& device_type() const { return *parts.front().device_type; }
  int kinds() const { return static_cast<int>(parts.size()) - other_parts; }
  const part_view& part(int number) const { return parts[static_cast<unsigned>(number)]; }
  const part_view& block(int kind) const { return part(1 + kind); }
  const part_view& head() const { return part(kinds() + 1); }
  const part_view& update() const { return part(part_of_update(kinds())); }
  const part_view& evaluation() const { return part(part_of_evaluation(kinds())); }

  /// Returns the model as its struct. Throws mc::error(exit_code::internal) for another struct.
  template <class Model> const Model& model_as() const {
    if (*family.type != typeid(Model) || model.at == nullptr)
      throw error(exit_code::internal, "the model of " + name + " is of another family than " +
                                           std::string(detail::type_name<Model>()));
    return *static_cast<const Model*>(model.at);
  }
};

/// Returns p. Throws mc::error(exit_code::mismatch) for a program that needs more than the one rank
/// of this process. It is called before memory is reserved, which may be too little for the parts
/// of all ranks.
inline const program_view& require_one_rank(const program_view& p) {
  const layout& l = p.numbers.ranks;
  const int ranks = l.pp * l.tp * l.cp * smallest_mesh(l).of(axis::dp);
  if (ranks > 1)
    throw error(exit_code::mismatch,
                p.name + " is laid out over at least " + std::to_string(ranks) + " ranks (tp " +
                    std::to_string(l.tp) + ", pp " + std::to_string(l.pp) + ", cp " +
                    std::to_string(l.cp) + ", ep " + std::to_string(l.ep) +
                    ") and this process is one: build a preset with tp, pp, cp and ep of 1 to "
                    "run on one rank");
  return p;
}

/// Returns p. Throws mc::error(exit_code::mismatch) if the program is laid out over other ranks, or
/// if the ranks add in an order that its numerics do not allow.
inline const program_view& require_ranks(const program_view& p, const communicator& ranks) {
  if (p.numbers.sums == numerics::batch_invariant && ranks.bits() != reduced_bits::of_rank_order)
    throw error(exit_code::mismatch,
                p.name +
                    " has sums that do not depend on the batch (batch_invariant) and was given "
                    "ranks that add up in an order of a library's own: give it ranks as threads "
                    "or processes of MPI, or build it with numerics fast");
  if (ranks_of(ranks.ranks()) == 1) return require_one_rank(p);
  const mesh m(p.numbers.ranks);
  for (int a = 0; a < axes; ++a) {
    const auto one = static_cast<axis>(a);
    if (m.sized(one) && m.of(one) != ranks.ranks().of(one))
      throw error(exit_code::mismatch, p.name + " is laid out over " + std::to_string(m.of(one)) +
                                           " ranks of " + name_of(one) + " and was given " +
                                           std::to_string(ranks.ranks().of(one)) +
                                           ": give it a communicator of its layout");
  }
  return p;
}

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
/// Returns the layers and the schedule of a pipeline stage.
inline stage_shape stage_of(const program_view& p, int stage) {
  return {p.layers,
          p.kinds(),
          p.numbers.ranks,
          stage,
          [&](int l) { return p.kind_of[static_cast<unsigned>(l)]; },
          p.numbers.batch.micro_batches};
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
/// Returns the nearest number of micro-batches for which there is no fault. If there is none near,
/// it returns 1, which always runs.
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

/// Returns the family of a model. A struct that derives from a family and gives no name has its own
/// name and the family's.
template <class Model> model_family family_of() {
  using named = typename decltype(Model::family)::model;
  std::string name = Model::family.text;
  if constexpr (!std::is_same_v<named, Model>)
    name = std::string(detail::type_name<Model>()) + " from " + name;
  return {name, &typeid(Model)};
}

namespace detail {
template <class T> inline constexpr bool is_number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

/// Appends the numbers of a member: its value, NAME[i] for its elements, or NAME.MEMBER for a
/// struct that lists its members. A struct with default values appends none.
template <class T>
void append_numbers(std::vector<model_number>& numbers, std::string name, const T& member) {
  if constexpr (is_number<T>) {
    numbers.push_back({std::move(name), static_cast<double>(member)});
  } else if constexpr (requires { std::size(member); }) {
    for (std::size_t i = 0; i < std::size(member); ++i)
      append_numbers(numbers, name + "[" + std::to_string(i) + "]", member[i]);
  } else if constexpr (lists_its_members<T>) {
    if (member == T{}) return;
    T::members.each(member, [&](std::string_view part, const auto& value) {
      append_numbers(numbers, name + "." + std::string(part), value);
    });
  } else {
    static_assert(told_by_kinds<T>,
                  "a family lists a member that is neither a number nor an array "
                  "of numbers, nor a struct that lists such members: files cannot tell one value "
                  "of it from another");
  }
}
} // namespace detail

/// Returns the numbers of a model that lists its members, in the order of the list.
template <class Model> std::vector<model_number> numbers_of(const Model& m) {
  std::vector<model_number> numbers;
  if constexpr (lists_its_members<Model>)
    Model::members.each(m, [&](std::string_view name, const auto& member) {
      detail::append_numbers(numbers, std::string(name), member);
    });
  return numbers;
}

template <class Model> model_extents extents_of(const Model& m) {
  model_extents e;
  if constexpr (requires { std::int64_t{m.heads}; }) e.heads = m.heads;
  if constexpr (requires { std::int64_t{m.kv_heads}; }) e.kv_heads = m.kv_heads;
  if constexpr (requires { std::int64_t{m.ffn}; }) e.ffn = m.ffn;
  if constexpr (requires { std::int64_t{m.experts}; }) e.experts = m.experts;
  if constexpr (requires { std::int64_t{m.expert_ffn}; }) e.expert_ffn = m.expert_ffn;
  if constexpr (requires { std::int64_t{m.experts_per_token}; })
    e.experts_per_token = m.experts_per_token;
  if constexpr (requires { std::int64_t{m.shared_ffn}; }) e.shared_ffn = m.shared_ffn;
  if constexpr (requires { double{m.aux_loss}; }) e.aux_loss = m.aux_loss;
  if constexpr (requires { double{m.router_z_loss}; }) e.router_z_loss = m.router_z_loss;
  if constexpr (requires { double{m.bias_rate}; }) e.bias_rate = m.bias_rate;
  if constexpr (requires { double{m.capacity}; }) e.capacity = m.capacity;
  if constexpr (requires { bool{m.norm_topk}; }) e.norm_topk = m.norm_topk;
  if (e.aux_loss > 0) e.balanced_by = "aux_loss";
  if constexpr (requires { bool{m.aux_per_sequence}; })
    if (e.aux_loss > 0 && m.aux_per_sequence) e.balanced_by = "seq_aux_loss";
  if constexpr (requires { bool{m.aux_global}; })
    if (e.aux_loss > 0 && m.aux_global) e.balanced_by = "global_aux_loss";
  return e;
}

/// Returns a view of m, which must outlive the view.
template <class Model> model_view view_of_model(const Model& m) {
  return {&m, numbers_of(m), extents_of(m)};
}

} // namespace mc
