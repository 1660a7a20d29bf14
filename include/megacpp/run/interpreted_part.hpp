// A graph that is known at run time only, ready to run: with its plan, and with kernels found by op
// and element type. The interpreter consists of such parts. Generation runs them, too, since its
// shapes come with the prompts.
#pragma once

#include <megacpp/pass/verify.hpp>
#include <megacpp/pass/verify_memory.hpp>
#include <megacpp/run/call.hpp>
#include <megacpp/run/view.hpp>

#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace mc {

/// Throws mc::error(exit_code::mismatch) with the sentence of a fault, as the compiler would print
/// it; does nothing without a fault.
inline void refuse(const fault_record& wrong) {
  if (wrong.code == fault::none) return;
  throw error(exit_code::mismatch, sentence_about(wrong));
}

/// A table of a device's kernels, to find them by op and element type at run time.
template <class Device> class kernel_table {
public:
  using call = dynamic_node<Device>;
  struct functions {
    void (*run)(const call&) = nullptr;
    void (*prepare)(const call&) = nullptr;
    std::int64_t (*scratch_bytes)(const call&) = nullptr;
  };

  /// Adds the kernel of an op for the element types `Types`, or for all that the kernel is made
  /// for, unless the device has none (kernel_on, kernel/kernel.hpp). A user's op is added in the
  /// same way.
  template <const op_info* Op, class... Types> void add() {
    if constexpr (sizeof...(Types) > 0) add_for<Op>(element_list<Types...>{});
    else add_for<Op>(elements_of<Op, Device>());
  }

  const functions& find(const op_info* op, dtype t) const {
    const auto at = kernels_.find({op, t});
    if (at == kernels_.end())
      throw error(exit_code::mismatch, std::string(code_of(fault::B001)) +
                                           ": the interpreter has no kernel of " + op->name +
                                           " for " + name_of(t) +
                                           " on this device: add it to the kernel table");
    return at->second;
  }

  /// Calls f(op, element type) for every kernel.
  template <class F> void each(F f) const {
    for (const auto& k : kernels_) f(k.first.first, k.first.second);
  }

  /// Returns a table of every op of the library (kernel/kernels.hpp); run/interpreter.hpp defines
  /// it. A program of several units may instantiate it in one of them, because it takes most of the
  /// time that such a unit compiles.
  static kernel_table all();

private:
  template <const op_info* Op, class T> void add_one() {
    using kernel = kernel_on<Op, Device>;
    using typed = dynamic_call<Device, T>;
    functions f;
    f.run = [](const call& of) {
      typed c(of);
      kernel::template run<T>(c);
    };
    if constexpr (
        requires(typed & c) { kernel::template products<T>(c); } ||
        requires(typed & c) { kernel::template prepare<T>(c); })
      f.prepare = [](const call& of) {
        typed c(of);
        prepare_kernel<kernel, T>(c, products_of<kernel, T>(c));
      };
    if constexpr (requires(const typed& c) { kernel::template scratch_bytes<T>(c); })
      f.scratch_bytes = [](const call& of) {
        return std::int64_t{kernel::template scratch_bytes<T>(typed(of))};
      };
    kernels_[{Op, dtype_of<T>}] = f;
  }
  template <const op_info* Op, class T>
  static constexpr bool exists = requires(dynamic_call<Device, T>& c) {
    kernel_on<Op, Device>::template run<T>(c);
  };
  template <const op_info* Op, class T> void add_if_it_exists() {
    if constexpr (exists<Op, T>) add_one<Op, T>();
  }
  template <const op_info* Op, class... Types> void add_for(element_list<Types...>) {
    (add_if_it_exists<Op, Types>(), ...);
  }

  std::map<std::pair<const op_info*, dtype>, functions> kernels_;
};

/// A graph with its memory plan. `index` is the number of its part in the registry.
struct graph_with_plan {
  graph g{};
  memory_plan plan{};
  running_order order;
  int index = 0;
};
/// Places the values of a graph in memory after its passes. Throws mc::error(exit_code::mismatch)
/// with the fault that the compiler would report.
inline std::unique_ptr<graph_with_plan> with_plan(const graph& passed, int part) {
  auto made = std::make_unique<graph_with_plan>();
  made->index = part;
  graph& g = made->g = passed;
  if (g.wrong.code == fault::none) g.wrong = verify_nodes(g);
  refuse(g.wrong);
  made->order = running_order(g);
  made->plan = place_memory(g, made->order);
  refuse(verify_memory(g, made->plan, made->order));
  return made;
}

/// A placed graph that can be run.
struct planned_part : graph_with_plan {
  explicit planned_part(const graph_with_plan& of) : graph_with_plan(of) {}
  planned_part(const planned_part&) = default;
  planned_part& operator=(const planned_part&) = default;
  virtual ~planned_part() = default;
  /// Returns a view to run the part by. The view points to this object.
  virtual part_view view() const = 0;
};

inline std::unique_ptr<planned_part> generation_view::part(const graph& passed, int number) const {
  return make(*with_plan(passed, number), kernels);
}

/// A planned part with kernels of a device.
template <class Device> struct interpreted_part final : planned_part {
  using functions = typename kernel_table<Device>::functions;
  std::vector<functions> kernels; ///< kernel functions of each node

  part_view view() const override {
    part_view v;
    v.g = &g, v.plan = &plan, v.index = index, v.self = this, v.device_type = &typeid(Device);
    v.run = [](const part_view& p, phases when, device& on, frame& f, prepared_node* prepared) {
      static_cast<const interpreted_part*>(p.self)->run(when, static_cast<Device&>(on), f,
                                                        prepared);
    };
    v.prepare = [](const part_view& p, device& on, prepared_node* prepared, bool backward) {
      const auto& part = *static_cast<const interpreted_part*>(p.self);
      for (int i = 0; i < part.g.node_count; ++i) {
        if (!backward && backward_pass.holds(part.g.at_node(i).when)) continue;
        dynamic_node<Device> c({&static_cast<Device&>(on), nullptr, prepared + i}, part.g,
                               part.plan, part.index, part.g.at_node(i));
        if (part.kernels[static_cast<unsigned>(i)].prepare != nullptr)
          part.kernels[static_cast<unsigned>(i)].prepare(c);
      }
    };
    v.scratch_bytes = [](const part_view& p, device& on, bool backward) {
      const auto& part = *static_cast<const interpreted_part*>(p.self);
      std::int64_t most = 0;
      for (int i = 0; i < part.g.node_count; ++i) {
        if (!backward && backward_pass.holds(part.g.at_node(i).when)) continue;
        const dynamic_node<Device> c({&static_cast<Device&>(on), nullptr, nullptr}, part.g,
                                     part.plan, part.index, part.g.at_node(i));
        if (const auto bytes = part.kernels[static_cast<unsigned>(i)].scratch_bytes)
          most = std::max(most, bytes(c));
      }
      return most;
    };
    return v;
  }

  /// Finds the kernels of a graph.
  interpreted_part(const graph_with_plan& of, const kernel_table<Device>& table)
      : planned_part(of) {
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      kernels.push_back(is_alias(plan, n) ? functions{} : table.find(n.op, type_of_node(g, n)));
    }
  }
  /// Makes a plan of the memory of the graph first.
  interpreted_part(const graph& passed, int part, const kernel_table<Device>& table)
      : interpreted_part(*with_plan(passed, part), table) {}

private:
  void run(phases when, Device& device, frame& f, prepared_node* prepared) const {
    order.each(when, [&](const stretch& s) {
      const auto trip = [&](bool several) {
        order.trip(g, s, when, several, [&](int i) { run_node(i, device, f, prepared); });
      };
      if (s.region < 0) trip(false);
      else for_trips(g, plan, f, s.region, trip);
    });
  }
  void run_node(int i, Device& device, frame& f, prepared_node* prepared) const {
    if (kernels[static_cast<unsigned>(i)].run == nullptr) return;
    const node& n = g.at_node(i);
    dynamic_node<Device> c({&device, &f, prepared + i}, g, plan, index, n);
    if (n.op->accumulates) clear_sums(f, g, plan, index, n);
    await_seen(f, plan, n);
    launch_node(c.lane(), f, g, i, [&] { kernels[static_cast<unsigned>(i)].run(c); });
    if (is_mirrored(plan, n)) mirror_outputs(f, g, plan, index, n);
  }
};

/// Returns a part with the kernels of a kernel_table<Device>.
template <class Device>
std::unique_ptr<planned_part> interpreted(const graph_with_plan& of, const void* kernels) {
  return std::make_unique<interpreted_part<Device>>(
      of, *static_cast<const kernel_table<Device>*>(kernels));
}

} // namespace mc
