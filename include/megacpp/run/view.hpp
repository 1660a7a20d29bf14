// A program as seen by code that is compiled for no particular run: graphs, plans and functions for
// each part. The compiled executor and the interpreter both make one. The code above (session,
// trainer, generation) is written once.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/io/error.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/run/model_view.hpp>
#include <megacpp/run/part_view.hpp>

#include <cstdint>
#include <memory>
#include <string>
#include <typeinfo>
#include <vector>

namespace mc {

/// Returns the sentence about a fault, as the compiler would print it.
inline std::string sentence_about(const fault_record& wrong) {
  const std::string at =
      wrong.line.number > 0 ? std::string(" at ") + text_of(wrong.line).c_str() : "";
  return code_of(wrong.code) + at + ", " + wrong.what.c_str() + ": " + sentence_of(wrong.code);
}

struct graph_with_plan;
struct planned_part;

/// The means to make parts whose shapes become known only at run time, such as those of generation,
/// which depend on the prompts: the model's own functions, and the kernels of the program's device.
/// `make` alone knows the device's type.
struct generation_view {
  graph (*forward)(const void* model, const setup&, part_kind, int kind) = nullptr;
  const void* kernels = nullptr; ///< kernel_table of the device
  std::unique_ptr<planned_part> (*make)(const graph_with_plan& of, const void* kernels) = nullptr;

  /// Returns a part with its kernels, made of a graph whose passes are done.
  std::unique_ptr<planned_part> part(const graph& passed, int number) const;
};
/// Returns the forward graph of a part of a Model. `kind` counts the kinds of block in use.
template <class Model>
graph forward_graph_of(const void* model, const setup& s, part_kind part, int kind) {
  const Model& m = *static_cast<const Model*>(model);
  return forward_graph(m, s, part, used_kinds(m, s.adapter).kind(kind));
}

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

} // namespace mc
