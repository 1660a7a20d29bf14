// A model as seen by code that is compiled for no particular model: its family and its numbers.
#pragma once

#include <megacpp/model/description.hpp>

#include <cstdint>
#include <iterator>
#include <string>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace mc {

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
