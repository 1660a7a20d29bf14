// The interpreter: the same graphs, passes, plans and kernels, with shapes read at run time. For
// tests of many layouts and configurations without compiling each, for experiments, and for the
// user's own ops.
//
// Model is any type with the members of mc::gpt. The graphs are built by the same constexpr
// functions, now called at run time; a fault is an exception with the sentence that the compiler
// would print.
#pragma once

#include <megacpp/exec/cpu.hpp>
#include <megacpp/exec/default_device.hpp>
#include <megacpp/kernel/kernels.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/plan/verify_registry.hpp>
#include <megacpp/run/interpreted_part.hpp>

#include <memory>

namespace mc {

template <class Device> kernel_table<Device> kernel_table<Device>::all() {
  kernel_table t;
  t.template add_floating<
      &op::redistribute, &op::linear, &op::linear_input_grad, &op::linear_weight_grad,
      &op::add_bias, &op::bias_grad, &op::add, &op::sum, &op::accumulate, &op::gelu, &op::gelu_grad,
      &op::swiglu, &op::swiglu_grad, &op::rms_norm, &op::rms_norm_grad, &op::rms_norm_gain_grad,
      &op::layer_norm, &op::layer_norm_grad, &op::layer_norm_gain_grad, &op::rope, &op::attention,
      &op::attention_grad, &op::cached_attention, &op::embedding, &op::embedding_grad, &op::dropout,
      &op::select, &op::repeat, &op::repeat_grad, &op::vocabulary_partial,
      &op::vocabulary_partial_grad, &op::adamw, &op::add_rms_norm, &op::add_layer_norm,
      &op::rms_norm_grad_add, &op::layer_norm_grad_add, &op::linear_input_grad_add,
      &op::vocabulary_loss, &op::cast, &op::route, &op::route_grad, &op::expert_load,
      &op::router_statistics, &op::router_statistics_grad, &op::dispatch, &op::combine,
      &op::grouped_linear, &op::grouped_input_grad, &op::grouped_weight_grad, &op::scale_rows,
      &op::scale_rows_weight_grad, &op::balance_step, &op::gather_weight>();
  t.template add_accumulators<&op::cross_entropy, &op::cross_entropy_grad, &op::add_gradient,
                              &op::reduce_gradient, &op::scatter_gradient, &op::sum_of_squares,
                              &op::add_total>();
  t.template add<&op::clip_factor, double>();
  t.template add<&op::redistribute, std::int32_t>();
  t.template add<&op::expert_rows, std::int32_t>();
  t.template add_accumulators<&op::router_loss, &op::router_loss_grad>();
  return t;
}

/// All parts of a model under a setup, built now, for a Device.
template <class Model, class Device = default_device> class interpreted_program {
public:
  interpreted_program(const Model& m, const setup& s, const std::string& name,
                      const kernel_table<Device>& table = kernel_table<Device>::all())
      : model_(m), kernels_(table) {
    const auto refuse = [&](const fault_record& r) { mc::refuse(in_run(r, s)); };
    const auto used = used_kinds(m);
    last_ = used.count + 1;
    const auto parts = static_cast<unsigned>(last_ + 1);
    std::vector<std::unique_ptr<graph>> forward;
    std::vector<const graph*> graphs(parts);
    std::vector<int> layers(parts);
    layers.front() = layers.back() = 1;
    for (int l = 0; l < m.layers; ++l) {
      view_.kind_of.push_back(used.index(m.kind_of(l)));
      ++layers[static_cast<unsigned>(1 + view_.kind_of.back())];
    }
    for (int i = 0; i <= last_; ++i) {
      forward.push_back(
          std::make_unique<graph>(forward_graph(m, s, kind(i, part_kind::loss), used.kind(i - 1))));
      refuse(forward.back()->wrong);
      graphs[static_cast<unsigned>(i)] = forward.back().get();
    }
    refuse(fault_of_experts(graphs, s));
    refuse(fault_of_frozen(graphs, s.frozen));
    view_.name = name, view_.family = family_of<Model>(), view_.numbers = s;
    view_.layers = m.layers, view_.hidden = m.hidden, view_.vocabulary = m.vocabulary;
    view_.model = view_of_model(model_);
    view_.positions = m.positions;
    view_.stores = &stores_;
    view_.generation = {&forward_graph_of<Model>, &kernels_, &interpreted<Device>};
    view_.parameters = count_parameters(graphs, layers);
    refuse(fault_of_computed_ties(graphs));
    std::vector<std::unique_ptr<graph>> derived;
    auto differentiated = graphs;
    for (const graph* g : graphs) {
      derived.push_back(std::make_unique<graph>(derived_graph(*g)));
      refuse(derived.back()->wrong);
      differentiated[derived.size() - 1] = derived.back().get();
    }
    refuse(fault_of_ties(differentiated));
    refuse(fault_of_roles(differentiated, s.precision));
    std::vector<const graph*> trained;
    for (int i = 0; i <= last_; ++i) {
      add(after_passes(
              *differentiated[static_cast<unsigned>(i)],
              {.backward = true, .again = i == 0 || i == last_ ? recompute::none : s.again},
              deriving_passes, pass_count),
          i, table);
      trained.push_back(view_.parts.back().g);
    }
    stores_ = verified_registry(trained, layers, s.ranks.zero, mesh(s.ranks));
    refuse(stores_.wrong);
    add(update_graph(stores_, mesh(s.ranks), s.precision), 0, table);
    add(after_passes(*graphs.back(), {}), last_, table);
    add(totals_graph(mesh(s.ranks)), 0, table);
  }
  interpreted_program(const interpreted_program&) = delete;
  interpreted_program& operator=(const interpreted_program&) = delete;
  const program_view& view() const { return view_; }

private:
  part_kind kind(int i, part_kind head) const {
    return i == 0 ? part_kind::stem : i == last_ ? head : part_kind::block;
  }
  void add(const graph& passed, int index, const kernel_table<Device>& table) {
    parts_.push_back(std::make_unique<interpreted_part<Device>>(passed, index, table));
    view_.parts.push_back(parts_.back()->view());
  }

  Model model_;
  int last_ = 0; ///< part of the head
  kernel_table<Device> kernels_;
  registry stores_{};
  std::vector<std::unique_ptr<planned_part>> parts_;
  program_view view_;
};

} // namespace mc
