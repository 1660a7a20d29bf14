// The interpreter: the graphs, passes, plans and kernels of a program, with shapes that are read at
// run time. It serves tests of many layouts and models without compiling each, experiments, and a
// user's own ops.
//
// Model is any type with the members of mc::gpt. The constexpr functions that build the graphs are
// called at run time here; a fault is an exception with the sentence that the compiler would print.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/exec/default_device.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/plan/assembly.hpp>
#include <megacpp/run/interpreted_part.hpp>

#include <algorithm>
#include <memory>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

namespace mc {

template <class Device> kernel_table<Device> kernel_table<Device>::all() {
  kernel_table t;
  [&]<const op_info*... Ops>(op_list<Ops...>) { (t.template add<Ops>(), ...); }
  (kernel_list{});
  return t;
}

namespace detail {

/// A model and a setup after all steps of the assembly, which the constructor takes in turn. Throws
/// the first fault as mc::error(exit_code::mismatch).
template <class Model> class assembled_now {
public:
  using step = assembly_step<Model>;

  /// `m` and `s` must outlive this object.
  assembled_now(const Model& m, const setup& s) {
    now_.model = &m, now_.numbers = &s, now_.used = used_kinds(m, s.adapter);
    const auto n = static_cast<std::size_t>(now_.count());
    graphs_.assign(n, keep(graph{})), owes_.assign(n, keep(meaning{}));
    made_.assign(n, false);
    orders_.assign(n, keep(running_order{})), plans_.assign(n, keep(memory_plan{}));
    now_.stores = keep(registry{}), now_.orders = orders_, now_.plans = plans_;
    now_.graphs = graphs_, now_.owes = owes_;
    for (int i = 0; i < assembly<Model>.count(); ++i) {
      take(assembly<Model>[i]);
      if (i + 1 == assembly<Model>.hoisted()) hoisted_ = graphs_;
    }
  }
  assembled_now(const assembled_now&) = delete;
  assembled_now& operator=(const assembled_now&) = delete;

  const assembling<Model>& whole() const { return now_; }
  /// Returns the forward graphs of training.
  std::span<const graph* const> forward() const {
    return std::span(hoisted_).first(static_cast<std::size_t>(now_.parts()));
  }

private:
  void take(const step& s) {
    const auto refuse = [&](const fault_record& r) { mc::refuse(with_line(r, *now_.numbers)); };
    const auto works_on = [&](int i) {
      if (s.of_made) return bool{made_[static_cast<std::size_t>(i)]};
      return s.of == nullptr || s.of(now_, i);
    };
    const auto each = [&](auto f) {
      for (int i = 0; i < now_.count(); ++i)
        if (works_on(i)) f(i, static_cast<std::size_t>(i));
    };
    switch (s.is) {
    case step::graphs: {
      std::vector<std::pair<std::size_t, const graph*>> made;
      each([&](int i, std::size_t k) { made.emplace_back(k, keep(s.make(now_, i))); });
      made_.assign(made_.size(), false);
      for (const auto& [k, g] : made) graphs_[k] = g, made_[k] = true;
      for (const auto& one : made) refuse(one.second->wrong);
      return;
    }
    case step::meanings:
      return each([&](int i, std::size_t k) { owes_[k] = keep(meaning_of(now_.g(i))); });
    case step::stores: now_.stores = keep(s.make_stores(now_)); return refuse(now_.stores->wrong);
    case step::plans:
      for (std::size_t k = 0; k < graphs_.size(); ++k) {
        orders_[k] = keep(running_order(*graphs_[k]));
        plans_[k] = keep(place_memory(*graphs_[k], *orders_[k]));
      }
      return;
    case step::planned:
      for (std::size_t k = 0; k < graphs_.size(); ++k)
        planned_.emplace_back(*graphs_[k], *plans_[k], *orders_[k]);
      now_.planned = planned_;
      return;
    case step::check:
      for (int i = 0; i < (s.items != nullptr ? s.items(now_) : 1); ++i)
        if (works_on(i)) refuse(s.fault_of(now_, i));
    }
  }
  template <class T> const T* keep(T x) {
    auto& all = std::get<std::vector<std::unique_ptr<T>>>(kept_);
    return all.emplace_back(std::make_unique<T>(std::move(x))).get();
  }

  assembling<Model> now_;
  std::vector<const graph*> graphs_, hoisted_;
  std::vector<const meaning*> owes_;
  std::vector<bool> made_; ///< whether the last step that made graphs made this one
  std::vector<const running_order*> orders_;
  std::vector<const memory_plan*> plans_;
  std::vector<planned_graph> planned_; ///< filled when all graphs have plans
  std::tuple<std::vector<std::unique_ptr<graph>>, std::vector<std::unique_ptr<meaning>>,
             std::vector<std::unique_ptr<registry>>, std::vector<std::unique_ptr<running_order>>,
             std::vector<std::unique_ptr<memory_plan>>>
      kept_;
};

} // namespace detail

/// A program that is built at run time: all parts of a model under a setup, for a Device.
template <class Model, class Device = default_device> class interpreted_program {
public:
  interpreted_program(const Model& m, const setup& s, const std::string& name,
                      const kernel_table<Device>& table = kernel_table<Device>::all())
      : model_(m), kernels_(table) {
    const detail::assembled_now<Model> made(model_, s);
    const assembling<Model>& a = made.whole();
    view_.name = name, view_.family = family_of<Model>(), view_.numbers = s;
    view_.layers = m.layers, view_.hidden = m.hidden, view_.vocabulary = m.vocabulary;
    view_.model = view_of_model(model_);
    view_.positions = m.positions;
    for (int l = 0; l < m.layers; ++l) view_.kind_of.push_back(a.kind_of(l));
    const auto layers = a.layers();
    view_.parameters = count_parameters(
        made.forward(), std::span(layers).first(static_cast<std::size_t>(a.parts())));
    stores_ = *a.stores;
    view_.stores = &stores_;
    view_.generation = {&forward_graph_of<Model>, &kernels_, &interpreted<Device>};
    for (int i = 0; i < a.count(); ++i) {
      const auto k = static_cast<std::size_t>(i);
      const int index = a.is_part(i) ? i : a.is_evaluation(i) ? a.head() : 0;
      const auto of = std::make_unique<graph_with_plan>();
      of->g = a.g(i), of->plan = *a.plans[k], of->order = *a.orders[k], of->index = index;
      parts_.push_back(std::make_unique<interpreted_part<Device>>(*of, table));
      view_.parts.push_back(parts_.back()->view());
    }
  }
  interpreted_program(const interpreted_program&) = delete;
  interpreted_program& operator=(const interpreted_program&) = delete;
  const program_view& view() const { return view_; }

private:
  Model model_;
  kernel_table<Device> kernels_;
  registry stores_{};
  std::vector<std::unique_ptr<planned_part>> parts_;
  program_view view_;
};

} // namespace mc
