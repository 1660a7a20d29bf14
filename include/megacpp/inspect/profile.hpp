// The time of each node of a program's graphs.
#pragma once

#include <megacpp/inspect/work.hpp>
#include <megacpp/observe/ceiling.hpp>
#include <megacpp/run/stage.hpp>

#include <iterator>
#include <string>

#include <fmt/format.h>

namespace mc {

/// Adds up the time of every node. Counters are made in the constructor, so that measuring
/// allocates no memory. Reading the clock costs some 30 ns a node.
class profile final : public step_clock {
public:
  explicit profile(const program_view& p) {
    for (int i = 0; i < static_cast<int>(p.parts.size()); ++i) add(name_of_part(p, i), p.part(i));
  }

  void node(const graph& g, int index, std::int64_t nanoseconds) override {
    for (part& p : parts_)
      if (p.g == &g) {
        counter& c = p.nodes[static_cast<std::size_t>(index)];
        ++c.calls;
        c.nanoseconds += nanoseconds;
        return;
      }
  }

  double seconds() const {
    std::int64_t sum = 0;
    for (const part& p : parts_)
      for (const counter& c : p.nodes) sum += c.nanoseconds;
    return static_cast<double>(sum) * 1e-9;
  }

  /// Returns a table of nodes, the longest times first. Nodes below 0.05% of the sum share one
  /// line. The sum is compared with `wall` seconds of steps. `most`: operations a second of a large
  /// product.
  std::string table(double wall, const speed_ceiling& most) const {
    std::vector<line> lines = sorted_lines();
    const double sum = seconds(), all = std::max(sum, 1e-12);
    std::string out =
        fmt::format("{:<18}{:>5}  {:<24}{:<10}{:>5}{:>10}{:>12}{:>8}{:>9}{:>9}\n", "part", "node",
                    "op", "phase", "line", "calls", "total ms", "share", "GF/s", "GB/s");
    double short_ones = 0;
    int count = 0;
    for (const line& l : lines) {
      if (static_cast<double>(l.c.nanoseconds) * 1e-9 < 5e-4 * all) {
        short_ones += static_cast<double>(l.c.nanoseconds) * 1e-9, ++count;
        continue;
      }
      const node_type& n = l.p->g->at_node(l.index);
      const double s = static_cast<double>(l.c.nanoseconds) * 1e-9;
      const work w = times(node_work(*l.p->g, n), l.c.calls);
      const double rate = static_cast<double>(w.flops) / s * 1e-9;
      const double traffic = static_cast<double>(w.read + w.written) / s * 1e-9;
      fmt::format_to(std::back_inserter(out),
                     "{:<18}{:>5}  {:<24}{:<10}{:>5}{:>10}{:>12.3f}{:>7.1f}%{:>9.1f}{:>9.1f}\n",
                     l.p->name, l.index, n.op->name, phase_text(n.when), n.line.number, l.c.calls,
                     s * 1e3, 100 * s / all, rate, traffic);
    }
    if (count > 0)
      fmt::format_to(std::back_inserter(out), "{:<18}{:>5}  {:<49}{:>12.3f}{:>7.1f}%\n", "others",
                     count, "of less than 0.05% each", short_ones * 1e3, 100 * short_ones / all);
    fmt::format_to(std::back_inserter(out),
                   "sum of nodes {:.3f} ms of {:.3f} ms wall time of the steps ({:.1f}%)\n",
                   sum * 1e3, wall * 1e3, wall > 0 ? 100 * sum / wall : 0.0);
    const double before = most.before() * 1e-9, behind = most.behind() * 1e-9;
    if (most.known())
      fmt::format_to(std::back_inserter(out), "product ceiling {:.1f} GF/s\n",
                     std::max(before, behind));
    else
      fmt::format_to(std::back_inserter(out),
                     "product ceiling not known: {:.1f} GF/s before the last steps and {:.1f} "
                     "behind them, so other work ran beside these measurements\n",
                     before, behind);
    return out;
  }

private:
  using node_type = mc::node;
  struct counter {
    std::int64_t calls = 0, nanoseconds = 0;
  };
  struct part {
    std::string name;
    const graph* g = nullptr;
    std::vector<counter> nodes;
  };
  struct line {
    const part* p = nullptr;
    int index = 0;
    counter c;
  };

  void add(std::string name, const part_view& v) {
    parts_.push_back(
        {std::move(name), v.g, std::vector<counter>(static_cast<std::size_t>(v.g->node_count))});
  }
  std::vector<line> sorted_lines() const {
    std::vector<line> lines;
    for (const part& p : parts_)
      for (std::size_t i = 0; i < p.nodes.size(); ++i)
        if (p.nodes[i].calls > 0) lines.push_back({&p, static_cast<int>(i), p.nodes[i]});
    std::stable_sort(lines.begin(), lines.end(), [](const line& a, const line& b) {
      return a.c.nanoseconds > b.c.nanoseconds;
    });
    return lines;
  }

  std::vector<part> parts_;
};

} // namespace mc
