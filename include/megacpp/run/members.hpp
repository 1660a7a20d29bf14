// The members of a run, which are checked before a program is made of them. A member that is
// missing or has another type is one static assertion, MEGA-C005; a stand-in takes its place, so
// that no second error follows.
#pragma once

#include <megacpp/exec/default_device.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/plan/parts.hpp>
#include <megacpp/recipe/precision.hpp>

#include <concepts>
#include <string_view>
#include <type_traits>

namespace mc {

class device; // defined in exec/device.hpp

namespace detail {

/// The concepts of members that a run must have as constants: a copy of the value is a constant.
template <class Run>
concept has_model = requires {
  typename std::bool_constant<(std::remove_cvref_t<decltype(Run::model)>(Run::model), true)>;
};
template <class Run>
concept has_layout = requires {
  requires std::same_as<std::remove_cvref_t<decltype(Run::layout)>, layout>;
  typename std::bool_constant<(mc::layout(Run::layout), true)>;
};
template <class Run>
concept has_batch = requires {
  requires std::same_as<std::remove_cvref_t<decltype(Run::batch)>, batching>;
  typename std::bool_constant<(batching(Run::batch), true)>;
};
template <class Run>
concept has_precision = requires {
  typename Run::precision;
  requires std::same_as<std::remove_cvref_t<decltype(Run::precision::policy)>, precision_policy>;
};

/// The concepts of members that a run may leave out, but may not have with another type.
template <class Run>
concept names_recompute = requires {
  Run::recompute;
}
|| requires { typename Run::recompute; };
template <class Run>
concept has_recompute = requires {
  // A non-static member has a pointer of another type.
  requires std::same_as<decltype(&Run::recompute), const recompute*>;
  typename std::bool_constant<(mc::recompute(Run::recompute), true)>;
};
template <class Run>
concept names_numerics = requires {
  Run::numerics;
}
|| requires { typename Run::numerics; };
template <class Run>
concept has_numerics = requires {
  requires std::same_as<decltype(&Run::numerics), const numerics*>;
  typename std::bool_constant<(mc::numerics(Run::numerics), true)>;
};
template <class Run>
concept names_memory = requires {
  Run::device_memory;
}
|| requires { typename Run::device_memory; };
template <class Run>
concept has_memory = requires {
  requires std::integral<std::remove_cvref_t<decltype(Run::device_memory)>>;
  typename std::bool_constant<(std::int64_t(Run::device_memory), true)>;
};

template <class Run>
concept names_frozen = requires {
  Run::frozen;
}
|| requires { typename Run::frozen; };
template <class Run>
concept has_frozen = requires {
  requires std::same_as<decltype(&Run::frozen), const frozen*>;
  typename std::bool_constant<(mc::frozen(Run::frozen), true)>;
};

template <class Run>
concept names_adapter = requires {
  Run::adapter;
}
|| requires { typename Run::adapter; };
template <class Run>
concept has_adapter = requires {
  requires std::same_as<decltype(&Run::adapter), const lora*>;
  typename std::bool_constant<(mc::lora(Run::adapter), true)>;
};

/// The concepts that find a member under another name than ours: a constant of the type of
/// device_memory, recompute, frozen or adapter. Functions, and numbers that are no constants, may
/// have any name.
template <class Member>
concept says_memory = std::is_const_v<Member> && std::integral<std::remove_const_t<Member>>;
template <class Member>
concept says_recompute = says_memory<Member> || std::same_as<Member, const recompute>;
template <class Member>
concept says_frozen = std::same_as<Member, const frozen>;
template <class Member>
concept says_adapter = std::same_as<Member, const lora>;

/// The concepts of the members that a model family has (docs/writing-a-model.md).
template <class Model>
concept has_numbers = requires(const Model& m) {
  { m.layers } -> std::convertible_to<int>;
  { m.hidden } -> std::convertible_to<int>;
  { m.vocabulary } -> std::convertible_to<int>;
  { m.positions } -> std::convertible_to<int>;
  { m.z_loss } -> std::convertible_to<double>;
  { m.hidden_extent() } -> std::same_as<extent>;
};
template <class Model>
concept has_kinds = requires(const Model& m) {
  requires !std::is_member_object_pointer_v<decltype(&Model::kinds)>;
  typename std::integral_constant<int, Model::kinds>;
  { m.kind_of(0) } -> std::convertible_to<int>;
};
template <class Model>
concept has_texts = requires(const Model& m) {
  { m.contradiction() } -> std::convertible_to<const char*>;
  requires std::same_as<std::remove_const_t<decltype(Model::family)>,
                        family_name<typename decltype(Model::family)::model>>;
  typename std::enable_if<!std::string_view(Model::family.text).empty()>::type;
};
template <class Model>
concept has_ends = requires(const Model& m, context& c, var x) {
  { m.stem(c, x) } -> std::same_as<var>;
  { m.final_norm(c, x) } -> std::same_as<var>;
  { m.head_table(c) } -> std::same_as<var>;
};
template <class Model>
concept has_block = requires(const Model& m, context& c, var x) {
  { m.block(c, 0, x) } -> std::same_as<var>;
};
/// Returns whether a family's list of members is complete. A list that is inherited lacks the
/// derived struct's own members. The pointer to a table of virtual functions is no member.
template <class Model> constexpr bool lists_members() {
  if constexpr (requires { &Model::members; }) {
    if constexpr (!lists_its_members<Model>) return false;
    else
      return std::is_polymorphic_v<Model> ||
             (Model::members.size() >= sizeof(Model) && Model::members.distinct());
  } else return true;
}
template <class Run>
concept has_family = has_model<Run> && has_numbers<std::remove_cvref_t<decltype(Run::model)>> &&
    has_kinds<std::remove_cvref_t<decltype(Run::model)>> &&
    has_texts<std::remove_cvref_t<decltype(Run::model)>> &&
    has_ends<std::remove_cvref_t<decltype(Run::model)>> &&
    has_block<std::remove_cvref_t<decltype(Run::model)>>;

/// Returns the setup of a run, with a default for every member that the run lacks.
template <class Run> constexpr setup numbers_of_run() {
  setup s;
  s.batch = {.micro = 1, .sequence = 1};
  if constexpr (has_batch<Run> && has_family<Run>) s.batch = Run::batch;
  // a stand-in for the model may have one rank only
  if constexpr (has_layout<Run> && has_batch<Run> && has_family<Run>) s.ranks = Run::layout;
  if constexpr (has_precision<Run>) s.precision = Run::precision::policy;
  if constexpr (has_frozen<Run>) s.frozen = Run::frozen;
  if constexpr (has_adapter<Run>) s.adapter = Run::adapter;
  if constexpr (has_recompute<Run>) s.recompute_policy = Run::recompute;
  if constexpr (has_numerics<Run>) s.sums = Run::numerics;
  return s;
}

/// The names of a part's parameters. A name must be a literal: a text that a model's function has
/// made itself is gone when the name is read, or is kept in a constant. Each compiler notices one
/// of the two.
struct parameter_names {
  const char* of[2 * max_parameters]{};

  constexpr explicit parameter_names(const graph& g) {
    for (int i = 0; i < g.parameter_count; ++i) {
      const value& v = g.at(g.parameters[i].v);
      of[2 * i] = v.scope, of[2 * i + 1] = v.name;
    }
  }
  constexpr int read() const {
    int letters = 0;
    for (const char* name : of)
      for (; name != nullptr && *name != 0; ++name) ++letters;
    return letters;
  }
};
template <class Run, part_kind Part, int Kind> struct names_of_part {
  static constexpr parameter_names kept{
      written_graph(Run::model, numbers_of_run<Run>(), Part, Kind)};
};
template <class Model> constexpr bool numbers_last(const Model& m) {
  m.hidden_extent();
  for (int l = 0; l < layers_of(m); ++l) m.kind_of(l);
  const char* const why = m.contradiction();
  return why == nullptr || *why == 0 || *why != 0;
}
/// A compiler can evaluate the family's functions that return numbers.
template <class Run>
concept constant_numbers = requires {
  requires std::bool_constant<numbers_last(Run::model)>::value;
};
/// A compiler can evaluate a part of the family.
template <class Run, part_kind Part, int Kind = 0>
concept constant_part = requires {
  typename std::integral_constant<
      int, parameter_names(written_graph(Run::model, numbers_of_run<Run>(), Part, Kind)).read()>;
  typename std::integral_constant<int, names_of_part<Run, Part, Kind>::kept.read()>;
};
template <class Run> constexpr bool constant_blocks() {
  return []<int... K>(std::integer_sequence<int, K...>) {
    return (... && constant_part<Run, part_kind::block, used_kinds(Run::model).kind(K)>);
  }
  (std::make_integer_sequence<int, used_kinds(Run::model).count>{});
}

/// Returns whether a compiler can evaluate all functions of a family.
template <class Run> constexpr bool constant_family() {
  if constexpr (constant_numbers<Run>)
    return constant_part<Run, part_kind::stem> && constant_blocks<Run>() &&
           constant_part<Run, part_kind::loss>;
  else return false;
}

/// The member of a run or of its family that is wrong.
enum class run_member {
  none,
  run,
  model,
  numbers,
  kinds,
  texts,
  ends,
  block,
  members,
  layout,
  batch,
  precision,
  device,
  recompute,
  numerics,
  device_memory,
  frozen,
  adapter,
  other_recompute,
  other_memory,
  other_frozen,
  other_adapter,
  constant_numbers,
  constant_stem,
  constant_block,
  constant_head
};

/// Returns the first member of a run that is wrong.
template <class Run> constexpr run_member wrong_member() {
  using m = run_member;
  if constexpr (!std::is_class_v<Run>) return m::run;
  else if constexpr (!has_model<Run>) return m::model;
  else if constexpr (!has_family<Run>) {
    using model = std::remove_cvref_t<decltype(Run::model)>;
    if (!has_numbers<model>) return m::numbers;
    if (!has_kinds<model>) return m::kinds;
    if (!has_texts<model>) return m::texts;
    return has_ends<model> ? m::block : m::ends;
  } else if constexpr (!has_layout<Run>) return m::layout;
  else if constexpr (!has_batch<Run>) return m::batch;
  else if constexpr (!has_precision<Run>) return m::precision;
  else if constexpr (!lists_members<std::remove_cvref_t<decltype(Run::model)>>()) return m::members;
  else if constexpr (requires { Run::device; }) return m::device;
  else if constexpr (names_recompute<Run> && !has_recompute<Run>) return m::recompute;
  else if constexpr (names_numerics<Run> && !has_numerics<Run>) return m::numerics;
  else if constexpr (names_memory<Run> && !has_memory<Run>) return m::device_memory;
  else if constexpr (names_frozen<Run> && !has_frozen<Run>) return m::frozen;
  else if constexpr (names_adapter<Run> && !has_adapter<Run>) return m::adapter;
  else if constexpr (
      requires { requires says_recompute<decltype(Run::recomputation)>; } ||
      requires { requires says_recompute<decltype(Run::recomputing)>; } ||
      requires { requires says_recompute<decltype(Run::recompute_activations)>; } ||
      requires { requires says_recompute<decltype(Run::checkpointing)>; })
    return m::other_recompute;
  else if constexpr (
      requires { requires says_memory<decltype(Run::memory)>; } ||
      requires { requires says_memory<decltype(Run::gpu_memory)>; } ||
      requires { requires says_memory<decltype(Run::device_mem)>; } ||
      requires { requires says_memory<decltype(Run::devicememory)>; })
    return m::other_memory;
  else if constexpr (
      requires { requires says_frozen<decltype(Run::freeze)>; } ||
      requires { requires says_frozen<decltype(Run::frozen_parts)>; } ||
      requires { requires says_frozen<decltype(Run::frozen_parameters)>; })
    return m::other_frozen;
  else if constexpr (
      requires { requires says_adapter<decltype(Run::lora)>; } ||
      requires { requires says_adapter<decltype(Run::adapters)>; } ||
      requires { requires says_adapter<decltype(Run::peft)>; })
    return m::other_adapter;
  else if constexpr (!constant_numbers<Run>) return m::constant_numbers;
  else if constexpr (!constant_part<Run, part_kind::stem>) return m::constant_stem;
  else if constexpr (!constant_blocks<Run>()) return m::constant_block;
  else if constexpr (!constant_part<Run, part_kind::loss>) return m::constant_head;
  else return m::none;
}

/// Asserts that no member is wrong. It returns true even after a failed assertion, so that no
/// second error follows.
template <class Run, run_member Wrong> constexpr bool report_member() {
  static_assert(Wrong != run_member::run,
                "MEGA-C005 a run is a struct at namespace scope, and this is another type");
  static_assert(Wrong != run_member::model,
                "MEGA-C005 the run has no public model that is a constant: static constexpr auto "
                "model = mc::preset::gpt2_124m; or a family of your own, made of numbers that are "
                "known to the compiler");
  static_assert(Wrong != run_member::numbers,
                "MEGA-C005 the run's model is no family: it needs the numbers layers, hidden, "
                "vocabulary, positions and z_loss, and hidden_extent()");
  static_assert(Wrong != run_member::kinds,
                "MEGA-C005 the run's model is no family: it needs static constexpr int kinds and "
                "kind_of(int layer)");
  static_assert(Wrong != run_member::texts,
                "MEGA-C005 the run's model is no family: it needs static constexpr "
                "mc::family_name<your_family> family, made of its name, and contradiction(), a "
                "sentence or null");
  static_assert(Wrong != run_member::ends,
                "MEGA-C005 the run's model is no family: it needs stem(mc::context&, mc::var), "
                "final_norm(mc::context&, mc::var) and head_table(mc::context&), each const and "
                "giving an mc::var");
  static_assert(Wrong != run_member::block,
                "MEGA-C005 the run's model is no family: it needs block(mc::context&, int kind, "
                "mc::var), const and giving an mc::var");
  static_assert(Wrong != run_member::members,
                "MEGA-C005 the run's model has members that its list of members lacks, or one "
                "twice, as the list "
                "of the family it derives from lacks its own, so that states would not tell one "
                "value of them from another: list them all, for example static constexpr auto "
                "members = mc::gpt::members + mc::member_list<&your_family::your_number>{};");
  static_assert(Wrong != run_member::layout,
                "MEGA-C005 the run lacks a public constant layout of type mc::layout: add static "
                "constexpr mc::layout layout{};");
  static_assert(Wrong != run_member::batch,
                "MEGA-C005 the run lacks a public constant batch of type mc::batching: add static "
                "constexpr mc::batching batch{.micro = 4, .sequence = 256};");
  static_assert(Wrong != run_member::precision,
                "MEGA-C005 the run lacks a public type precision with a constant policy of type "
                "mc::precision_policy: add using precision = mc::bf16_mixed;");
  static_assert(Wrong != run_member::device,
                "MEGA-C005 the run's device is no type: say using device = mc::cpu;");
  static_assert(Wrong != run_member::recompute,
                "MEGA-C005 the run's recompute is no public constant of type mc::recompute: say "
                "static constexpr auto recompute = mc::recompute::none;");
  static_assert(Wrong != run_member::numerics,
                "MEGA-C005 the run's numerics is no public constant of type mc::numerics: say "
                "static constexpr auto numerics = mc::numerics::batch_invariant;");
  static_assert(Wrong != run_member::device_memory,
                "MEGA-C005 the run's device_memory is no public constant number of bytes: say "
                "static constexpr std::int64_t device_memory = 80_GiB;");
  static_assert(Wrong != run_member::frozen,
                "MEGA-C005 the run's frozen is no public constant of type mc::frozen: say static "
                "constexpr mc::frozen frozen{\"blocks\"};");
  static_assert(
      Wrong != run_member::adapter,
      "MEGA-C005 the run's adapter is no public constant of type mc::lora: say static "
      "constexpr mc::lora adapter{.rank = 16, .alpha = 32, .targets = {\"all-linear\"}};");
  static_assert(
      Wrong != run_member::other_adapter,
      "MEGA-C005 the run has an adapter under a name that nothing reads: call it adapter");
  static_assert(Wrong != run_member::other_frozen,
                "MEGA-C005 the run says what is frozen under a name that nothing reads: call it "
                "frozen");
  static_assert(Wrong != run_member::other_recompute,
                "MEGA-C005 the run says what is computed again under a name that nothing reads: "
                "call it recompute");
  static_assert(Wrong != run_member::other_memory,
                "MEGA-C005 the run says its memory under a name that nothing reads: call it "
                "device_memory");
#define MEGACPP_NO_CONSTANT                                                                        \
  ", so that there is nothing to compile: let it be constexpr, call nothing that is not, read no " \
  "variable of the program, divide by no zero, reach beyond no array, and give names that last "   \
  "(\"text\", no std::string of its own)"
  static_assert(Wrong != run_member::constant_numbers,
                "MEGA-C005 a compiler cannot evaluate contradiction(), hidden_extent() or "
                "kind_of() of the run's model" MEGACPP_NO_CONSTANT);
  static_assert(Wrong != run_member::constant_stem,
                "MEGA-C005 a compiler cannot evaluate stem() of the run's "
                "model" MEGACPP_NO_CONSTANT);
  static_assert(Wrong != run_member::constant_block,
                "MEGA-C005 a compiler cannot evaluate block() of the run's "
                "model" MEGACPP_NO_CONSTANT);
  static_assert(Wrong != run_member::constant_head,
                "MEGA-C005 a compiler cannot evaluate final_norm() or head_table() of the run's "
                "model" MEGACPP_NO_CONSTANT);
#undef MEGACPP_NO_CONSTANT
  return true;
}

/// The members of a run, with a stand-in for each that was reported.
template <class Run> struct members_of {
  static constexpr run_member wrong = wrong_member<Run>();
  static constexpr bool reported = report_member<Run, wrong>();
  /// The graphs of the run's model can be made.
  static constexpr bool has_graphs = [] {
    if constexpr (wrong == run_member::none) return true;
    else if constexpr (has_family<Run>) return constant_family<Run>();
    else return false;
  }();

  static constexpr auto model() {
    if constexpr (reported && has_graphs) return Run::model;
    else
      return gpt{.layers = 1, .hidden = 8, .heads = 1, .ffn = 8, .vocabulary = 2, .positions = 8};
  }
  static constexpr setup numbers() {
    if constexpr (has_family<Run> && !has_graphs) return {.batch = {.micro = 1, .sequence = 1}};
    else return numbers_of_run<Run>();
  }
  /// Returns the bytes of memory that the run says a rank has; -1 if it says nothing.
  static constexpr std::int64_t device_memory() {
    if constexpr (has_memory<Run> && wrong == run_member::none) return Run::device_memory;
    else return -1;
  }
  /// Returns whether the run's device is a backend. A run that names none has the default device.
  static constexpr bool has_backend() {
    if constexpr (requires { typename Run::device; }) {
      using named = typename Run::device;
      if constexpr (std::is_same_v<named, default_device>)
        return true; // default_device is an incomplete type here
      if constexpr (requires { sizeof(named); }) return std::is_base_of_v<device, named>;
      return false;
    }
    return true;
  }
};

} // namespace detail
} // namespace mc
