// An estimate of the time that a step takes on a GPU. Each node takes the time of its bottleneck,
// memory or arithmetic (Williams, Waterman and Patterson 2009), at the rates that a GPU was
// measured to reach. A node that reads from a cache is faster than this.
#pragma once

#include <megacpp/inspect/work.hpp>
#include <megacpp/op/attention.hpp>
#include <megacpp/op/cached_attention.hpp>
#include <megacpp/run/stage.hpp>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

/// The rates that a GPU reaches, in bytes and operations a second.
struct gpu_ceilings {
  std::string_view name;                    ///< name of the GPU for --roofline
  std::string_view called;                  ///< name of the GPU for people
  double copied;                            ///< bytes a second of a copy
  double bf16, fp32;                        ///< operations a second of matrix products
  double attention_64[2], attention_128[2]; ///< operations a second by width of heads
  double peak_bf16;                         ///< operations a second of the datasheet, for MFU

  double products(dtype t) const { return t == dtype::bf16 ? bf16 : fp32; }
};
/// The rates of an H100 are those of bench/results/gpu-h100-20261126T104446Z.json; its attention is
/// the deterministic one, which is the default. fp32 is an estimate: 0.8 of the 66.9 TFLOP/s of
/// NVIDIA's datasheet, which is the fraction that bf16 reached of its 989.4. An H200 has the same
/// multiprocessors. Its memory is faster by 4.8 to 3.35 TB/s (both datasheets), which makes its
/// rate an estimate, too.
inline constexpr gpu_ceilings gpus[] = {{"h100",
                                         "an H100 (SXM, 80 GB)",
                                         3.00e12,
                                         797e12,
                                         53e12,
                                         {330e12, 201e12},
                                         {610e12, 424e12},
                                         989.4e12},
                                        {"h200",
                                         "an H200",
                                         3.00e12 * 4.8 / 3.35,
                                         797e12,
                                         53e12,
                                         {330e12, 201e12},
                                         {610e12, 424e12},
                                         989.4e12}};
inline const gpu_ceilings& ceilings_of(std::string_view name) {
  return *std::find_if(std::begin(gpus), std::end(gpus) - 1,
                       [&](const gpu_ceilings& c) { return c.name == name; });
}

/// The work of all nodes of one op in a step of one micro-batch, and the seconds that it takes.
struct roofline_row {
  const char* op = "";
  std::int64_t nodes = 0;
  work does;
  double seconds = 0, of_arithmetic = 0; ///< seconds of all nodes; of nodes bound by arithmetic
};
struct roofline {
  std::vector<roofline_row> rows;     ///< one for each op, the longest time first
  double micro_batch = 0, update = 0; ///< seconds of a micro-batch, and of work once a step
  std::int64_t tokens = 0;            ///< tokens of a micro-batch on one rank
  double model_flops = 0;             ///< mean operations of a micro-batch on a stage
  double mfu(double peak) const { return model_flops / (micro_batch * peak); }
};

/// Returns the operations a second that a node can reach.
inline double arithmetic_of(const gpu_ceilings& c, const graph& g, const node& n) {
  const value& x = g.at(n.in[n.op->typed_by]);
  const bool gradient = n.op == &op::attention_grad;
  if ((gradient || n.op == &op::attention) && x.type == dtype::bf16)
    return (x.dims[x.rank - 1].n >= 128 ? c.attention_128 : c.attention_64)[gradient ? 1 : 0];
  return c.products(x.type);
}

/// Returns the roofline of one rank of a pipeline stage. Communication between ranks is left out.
inline roofline roofline_of(const program_view& p, const gpu_ceilings& c, int of_stage = 0) {
  roofline all;
  const stage_shape s = stage_of(p, of_stage);
  const graph update = update_of_stage(p, s);
  for (const task& t : training_step(s.training, 1)) {
    if (t.what != action::run) continue;
    const graph& g = t.use == s.training.update ? update : *p.part(s.uses[t.use].part).g;
    for (int i = 0; i < g.node_count; ++i) {
      const node& n = g.at_node(i);
      if (!t.when.holds(n.when)) continue;
      const work w = node_work(g, n);
      const double moved = static_cast<double>(w.read + w.written) / c.copied,
                   computed = static_cast<double>(w.flops) / arithmetic_of(c, g, n),
                   seconds = std::max(moved, computed);
      auto at = std::find_if(all.rows.begin(), all.rows.end(), [&](const roofline_row& r) {
        return std::string_view(r.op) == n.op->name;
      });
      if (at == all.rows.end()) at = all.rows.insert(at, {n.op->name, 0, {}, 0, 0});
      ++at->nodes, at->does += w, at->seconds += seconds;
      if (computed > moved) at->of_arithmetic += seconds;
      (t.micro < 0 ? all.update : all.micro_batch) += seconds;
    }
  }
  std::stable_sort(all.rows.begin(), all.rows.end(),
                   [](const auto& a, const auto& b) { return a.seconds > b.seconds; });
  all.tokens = local_tokens(*p.block(0).g);
  const int stages = p.numbers.ranks.pp;
  for (int stage = 0; stage < stages; ++stage)
    all.model_flops += static_cast<double>(model_flops(p, 1, stage)) / stages;
  return all;
}

/// Returns the roofline of the stage whose micro-batch takes longest, for which the others wait,
/// and the stage's number.
inline std::pair<roofline, int> slowest_roofline(const program_view& p, const gpu_ceilings& c) {
  std::pair<roofline, int> slowest{roofline_of(p, c, 0), 0};
  for (int stage = 1; stage < p.numbers.ranks.pp; ++stage)
    if (roofline other = roofline_of(p, c, stage); other.micro_batch > slowest.first.micro_batch)
      slowest = {std::move(other), stage};
  return slowest;
}

} // namespace mc
