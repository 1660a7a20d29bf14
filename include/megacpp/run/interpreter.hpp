// The interpreter: the same graphs, passes, plans and kernels, with shapes read at run time. For
// tests of many layouts and configurations without compiling each, for experiments, and for the
// user's own ops.
//
// Model is any type with the members of mc::gpt. The graphs are built by the same constexpr
// functions, now called at run time; a fault is an exception with the sentence that the compiler
// would print.
#pragma once

#include <megacpp/kernel/kernels.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>
#include <megacpp/run/call.hpp>
#include <megacpp/run/view.hpp>

#include <chrono>
#include <map>
#include <memory>

namespace mc {

/// Kernels found by op and element type at run time.
class kernel_table {
public:
  struct functions {
    void (*run)(dynamic_call&) = nullptr;
    void (*prepare)(dynamic_call&) = nullptr;
  };

  /// Adds the kernel of an op for element types Types. A user's op is added the same way.
  template <const op_info* Op, class... Types> void add() { (add_one<Op, Types>(), ...); }

  const functions& find(const op_info* op, dtype t) const {
    const auto at = kernels_.find({op, t});
    if (at == kernels_.end())
      throw error(exit_code::mismatch, std::string(code_of(fault::B001)) +
                                           ": the interpreter has no kernel of " + op->name +
                                           " for " + name_of(t) + ": add it to the kernel table");
    return at->second;
  }

  /// Every op of the library.
  static kernel_table all() {
    kernel_table t;
    t.add_floating<&op::redistribute, &op::linear, &op::linear_input_grad, &op::linear_weight_grad,
                   &op::add_bias, &op::bias_grad, &op::add, &op::sum, &op::accumulate, &op::gelu,
                   &op::gelu_grad, &op::swiglu, &op::swiglu_grad, &op::rms_norm, &op::rms_norm_grad,
                   &op::rms_norm_gain_grad, &op::layer_norm, &op::layer_norm_grad,
                   &op::layer_norm_gain_grad, &op::rope, &op::attention, &op::attention_grad,
                   &op::embedding, &op::embedding_grad, &op::dropout, &op::select, &op::repeat,
                   &op::repeat_grad, &op::vocabulary_partial, &op::vocabulary_partial_grad,
                   &op::adamw, &op::add_rms_norm, &op::add_layer_norm, &op::rms_norm_grad_add,
                   &op::layer_norm_grad_add, &op::linear_input_grad_add, &op::vocabulary_loss,
                   &op::cast, &op::route, &op::route_grad, &op::expert_load, &op::router_statistics,
                   &op::router_statistics_grad, &op::dispatch, &op::combine, &op::grouped_linear,
                   &op::grouped_input_grad, &op::grouped_weight_grad, &op::scale_rows,
                   &op::scale_rows_weight_grad, &op::balance_step>();
    t.add_accumulators<&op::cross_entropy, &op::cross_entropy_grad, &op::sum_of_squares>();
    t.add<&op::clip_factor, double>();
    t.add<&op::redistribute, std::int32_t>();
    t.add<&op::expert_rows, std::int32_t>();
    t.add_accumulators<&op::router_loss, &op::router_loss_grad>();
    return t;
  }

private:
  template <const op_info* Op, class T> void add_one() {
    functions f;
    f.run = [](dynamic_call& c) { kernel_of<Op>::template run<T>(c); };
    if constexpr (requires(dynamic_call & c) { kernel_of<Op>::template prepare<T>(c); })
      f.prepare = [](dynamic_call& c) { kernel_of<Op>::template prepare<T>(c); };
    kernels_[{Op, dtype_of<T>}] = f;
  }
  template <const op_info*... Ops> void add_floating() { (add<Ops, float, bf16, double>(), ...); }
  template <const op_info*... Ops> void add_accumulators() { (add<Ops, float, double>(), ...); }

  std::map<std::pair<const op_info*, dtype>, functions> kernels_;
};

/// A graph with its plan, ready to run at run time.
struct interpreted_part {
  graph g{};
  memory_plan plan{};
  const registry* stores = nullptr;
  int index = 0;
  std::vector<kernel_table::functions> kernels; ///< by node

  void bind(const kernel_table& table) {
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      kernels.push_back(is_alias(plan, n) ? kernel_table::functions{}
                                          : table.find(n.op, type_of_node(g, n)));
    }
  }
  part_view view() const {
    part_view v;
    v.g = &g, v.plan = &plan, v.index = index, v.self = this;
    v.run = [](const part_view& p, stage s, cpu& device, frame& f, node_slot* slots,
               node_clock* clock) {
      static_cast<const interpreted_part*>(p.self)->run(s, device, f, slots, clock);
    };
    v.prepare = [](const part_view& p, cpu& device, node_slot* slots) {
      const auto& part = *static_cast<const interpreted_part*>(p.self);
      for (int i = 0; i < part.g.node_count; ++i) {
        dynamic_call c({&device, nullptr, slots + i}, part.g, part.plan, *part.stores, part.index,
                       part.g.at_node(i));
        if (part.kernels[static_cast<unsigned>(i)].prepare != nullptr)
          part.kernels[static_cast<unsigned>(i)].prepare(c);
      }
    };
    return v;
  }

private:
  void run(stage s, cpu& device, frame& f, node_slot* slots, node_clock* clock) const {
    const auto nodes = [&](int from, int to, auto runs) {
      for (int i = from; i < to; ++i)
        if (runs(g.at_node(i)) && kernels[static_cast<unsigned>(i)].run != nullptr)
          run_node(i, device, f, slots, clock);
    };
    const auto in_stage = [s](const node& n) { return runs_in(n.when, s); };
    if (!has_rounds(g, s)) return nodes(0, g.node_count, in_stage);
    const rounds_span span = span_of_rounds(g, s == stage::backward);
    nodes(0, span.first, in_stage);
    const int rounds = rounds_of(g, plan, f, *stores, index);
    for (f.round = 0; f.round < rounds; ++f.round) {
      if (s == stage::backward && rounds > 1)
        nodes(0, g.node_count, [](const node& n) { return n.again; });
      nodes(span.first, span.last, in_stage);
    }
    f.round = 0;
    nodes(span.last, g.node_count, in_stage);
  }
  void run_node(int i, cpu& device, frame& f, node_slot* slots, node_clock* clock) const {
    const node& n = g.at_node(i);
    dynamic_call c({&device, &f, slots + i}, g, plan, *stores, index, n);
    if (n.op->accumulates) clear_sums(c, g, n);
    const auto start = std::chrono::steady_clock::now();
    kernels[static_cast<unsigned>(i)].run(c);
    if (clock != nullptr)
      clock->node(g, i,
                  std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::steady_clock::now() - start)
                      .count());
  }
};

/// All parts of a model under a setup, built now.
template <class Model> class interpreted_program {
public:
  interpreted_program(const Model& m, const setup& s, const std::string& name,
                      const kernel_table& table = kernel_table::all())
      : model_(m) {
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
      check(forward.back()->wrong);
      graphs[static_cast<unsigned>(i)] = forward.back().get();
    }
    stores_ = make_registry(graphs, layers);
    view_.name = name, view_.family = Model::family, view_.numbers = s;
    view_.layers = m.layers, view_.hidden = m.hidden, view_.vocabulary = m.vocabulary;
    view_.model = described(m);
    view_.stores = &stores_;
    view_.parameters = count_parameters(graphs, layers);
    const setup one = for_generation(s);
    std::vector<std::unique_ptr<graph>> derived;
    auto differentiated = graphs;
    for (int i = 0; i <= last_; ++i) {
      const recompute again = i == 0 || i == last_ ? recompute::none : s.again;
      derived.push_back(std::make_unique<graph>(derived_graph(*graphs[static_cast<unsigned>(i)])));
      differentiated[static_cast<unsigned>(i)] = derived.back().get();
      const part_view trained =
          add(in_rounds(halved(verified(recomputed(verified(fused(*derived.back())), again)))), i,
              table);
      const part_view generated =
          add(in_rounds(fused(forward_graph(m, one, kind(i, part_kind::logits), used.kind(i - 1)))),
              i, table);
      if (i == 0) view_.stem = trained, view_.generation_stem = generated;
      else if (i == last_) view_.loss = trained, view_.logits = generated;
      else view_.blocks.push_back(trained), view_.generation_blocks.push_back(generated);
    }
    check(fault_of_ties(differentiated));
    view_.evaluation = add(fused(*graphs[static_cast<unsigned>(last_)]), last_, table);
    view_.update = add(update_graph(stores_, mesh(s.ranks), s.type), 0, table);
  }
  const program_view& view() const { return view_; }

private:
  part_kind kind(int i, part_kind head) const {
    return i == 0 ? part_kind::stem : i == last_ ? head : part_kind::block;
  }
  static void check(const fault_record& wrong) {
    if (wrong.code == fault::none) return;
    throw error(exit_code::mismatch, std::string(code_of(wrong.code)) + " at line " +
                                         std::to_string(wrong.line) + " of the model, " +
                                         wrong.what.c_str() + ": " + sentence_of(wrong.code));
  }
  part_view add(const graph& passed, int index, const kernel_table& table) {
    const graph g = verified(passed);
    check(g.wrong);
    parts_.push_back(std::make_unique<interpreted_part>());
    interpreted_part& p = *parts_.back();
    p.g = g, p.plan = place_memory(g), p.stores = &stores_, p.index = index;
    check(verify_memory(p.g, p.plan));
    p.bind(table);
    return p.view();
  }

  Model model_;
  int last_ = 0; ///< part of the head
  registry stores_{};
  std::vector<std::unique_ptr<interpreted_part>> parts_;
  program_view view_;
};

} // namespace mc
