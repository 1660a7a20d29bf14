// Prints what docs/design.md shows of a small model, whose only block is an MLP cut over two ranks:
// its graph after every pass, and its step as tasks and buffers. All of it is computed at run time,
// by the functions that the compiler evaluates for a program.
//
// Usage: mlp_step. Each part of what it prints stands below a line "# [name]".
#include <megacpp/inspect/description.hpp>
#include <megacpp/model/gpt.hpp>
#include <megacpp/plan/tied.hpp>
#include <megacpp/plan/update.hpp>

#include <algorithm>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace {

// [model]
/// y = x + down(gelu(up(norm(x))))
struct mlp : mc::gpt {
  constexpr mc::var block(mc::context& c, int /*kind*/, mc::var x) const {
    const mc::var m = to(rms_norm(c, "norm", x, eps), mc::axis::tp, mc::replicate);
    const mc::var up = column_parallel(c, "up", m, {{mc::dim::ffn, ffn}}, true, std);
    return x + row_parallel(c, "down", gelu(up), 1, hidden_extent(), false, std);
  }
};
// [/model]

mlp model() {
  mlp m;
  m.layers = 1, m.hidden = 64, m.heads = 1, m.ffn = 256, m.vocabulary = 256, m.positions = 32;
  return m;
}
// [setup]
constexpr mc::setup numbers{.ranks = {.tp = 2},
                            .batch = {.micro = 4, .sequence = 32},
                            .precision = mc::dtype::bf16,
                            .recompute_policy = mc::recompute::selective};
// [/setup]

void begin(const char* part) { fmt::print("# [{}]\n", part); }

/// The nodes of a graph but for those that `before` has, too.
void print(const mc::graph& g, const std::set<std::string>& before = {}) {
  for (int i = 0; i < g.node_count; ++i)
    if (const std::string text = node_text(g, g.at_node(i)); !before.contains(text))
      fmt::print("{:>2} {}\n", i, text);
}
std::set<std::string> nodes_of(const mc::graph& g) {
  std::set<std::string> all;
  for (int i = 0; i < g.node_count; ++i) all.insert(node_text(g, g.at_node(i)));
  return all;
}

/// The graphs of a run by part, with their plans.
struct run {
  std::vector<std::unique_ptr<mc::graph>> graphs;
  std::vector<std::unique_ptr<mc::memory_plan>> plans;
  std::vector<mc::planned_graph> planned;

  void add(const mc::graph& g) {
    graphs.push_back(std::make_unique<mc::graph>(g));
    plans.push_back(std::make_unique<mc::memory_plan>(mc::place_memory(g)));
    planned.emplace_back(*graphs.back(), *plans.back());
  }
};

run made_of(const mlp& m) {
  using enum mc::part_kind;
  std::vector<std::unique_ptr<mc::graph>> forward;
  std::vector<const mc::graph*> all;
  for (const mc::part_kind what : {stem, block, loss}) {
    forward.push_back(std::make_unique<mc::graph>(forward_graph(m, numbers, what, 0)));
    all.push_back(forward.back().get());
  }
  const std::vector<int> layers{1, m.layers, 1};
  run r;
  std::vector<const mc::graph*> trained;
  for (const mc::graph* g : all) {
    r.add(after_passes(
        *g, {.backward = true,
             .recompute_policy = g == all[1] ? numbers.recompute_policy : mc::recompute::none}));
    trained.push_back(r.graphs.back().get());
  }
  const auto stores = std::make_unique<mc::registry>(mc::make_registry(trained, layers));
  r.add(update_graph(*stores, mc::mesh(numbers.ranks), numbers.precision.weight));
  r.add(after_passes(*all.back(), {}));
  r.add(mc::totals_graph(mc::mesh(numbers.ranks)));
  return r;
}

void print_passes(const mlp& m) {
  const auto forward =
      std::make_unique<mc::graph>(forward_graph(m, numbers, mc::part_kind::block, 0));
  begin("model");
  print(*forward);
  std::set<std::string> before = nodes_of(*forward);
  const mc::pass_options options{.backward = true, .recompute_policy = numbers.recompute_policy};
  const auto last = std::make_unique<mc::graph>(after_passes(
      *forward, options, 0, mc::pass_count, [&](const mc::pass& p, const mc::graph& g) {
        const std::set<std::string> now = nodes_of(g);
        if (!std::includes(before.begin(), before.end(), now.begin(), now.end())) {
          begin(p.name);
          print(g, before);
        }
        before = now;
      }));
  begin("place_memory");
  const auto plan = std::make_unique<mc::memory_plan>(mc::place_memory(*last));
  for (int v = 0; v < last->value_count; ++v)
    if (const mc::address at = plan->at[v]; at.in != mc::space::none)
      fmt::print("{:<12} {} {}\n", value_text(*last, static_cast<mc::value_id>(v)), name_of(at.in),
                 at.offset);
}

void print_step(const run& r, const mlp& m) {
  const mc::stage_shape s(m.layers, 1, mc::layout{}, 0, [](int) { return 0; });
  const mc::buffers b = buffers_of(r.planned, s);
  begin("update");
  print(*r.graphs[mc::part_of_update(1)]);
  begin("tasks");
  int i = 0;
  for (const mc::task& t : training_step(s.training, 1))
    fmt::print("{:>2} {}\n", i++, task_text(b, t));
  begin("buffers");
  for (int k = 0; k < static_cast<int>(b.all().size()); ++k)
    if (b[k].bytes > 0 && b[k].first >= 0) fmt::print("{}\n", buffer_text(b, k));
}

} // namespace

int main() {
  const mlp m = model();
  print_passes(m);
  print_step(made_of(m), m);
}
