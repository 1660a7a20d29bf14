// A part of a program as seen by code that is compiled for no particular run: its graph, its memory
// plan, and functions that run it.
#pragma once

#include <megacpp/exec/device.hpp>
#include <megacpp/plan/memory.hpp>
#include <megacpp/run/frame.hpp>

#include <algorithm>
#include <cstdint>
#include <span>
#include <typeinfo>
#include <vector>

namespace mc {

struct part_view {
  const graph* g = nullptr;
  const memory_plan* plan = nullptr;
  int index = 0; ///< number of the part in the registry
  const void* self = nullptr;
  const std::type_info* device_type = &typeid(void); ///< type of device that run and prepare take
  void (*run)(const part_view&, phases, device&, frame&, prepared_node*) = nullptr;
  /// Prepares the kernels of all nodes; without `backward`, only those outside the backward pass.
  void (*prepare)(const part_view&, device&, prepared_node*, bool backward) = nullptr;
  /// Returns the scratch of these nodes on the device: that of the node that needs most, since they
  /// use it in turn.
  std::int64_t (*scratch_bytes)(const part_view&, device&, bool backward) = nullptr;
};

/// Returns the scratch that the kernels of these parts use in turn beside their operands.
/// `backward`: the kernels of the backward pass count, too.
inline std::int64_t scratch_bytes_of(std::span<const part_view> parts, device& on, bool backward) {
  std::int64_t most = 0;
  for (const part_view& part : parts) most = std::max(most, part.scratch_bytes(part, on, backward));
  return most;
}
/// Returns the memory that the kernels of these parts need: scratch, and the workspace and tables
/// that the device has for them. A device that only counts sizes (product/devices.hpp) reserves
/// none of it.
inline kernel_room room_of(std::span<const part_view> parts, device& on, bool backward) {
  for (const part_view& part : parts) {
    std::vector<prepared_node> prepared(static_cast<std::size_t>(part.g->node_count));
    part.prepare(part, on, prepared.data(), backward);
  }
  return {scratch_bytes_of(parts, on, backward), on.products().workspace_bytes(), on.table_bytes()};
}

/// The value that a pipeline stage sends to the next one, and whose cotangent comes back: the
/// stream that a part reads, or that the stem makes.
struct stage_stream {
  dtype type = dtype::f32;
  std::int64_t elements = 0; ///< number of elements on one rank
  source_line line{};        ///< line of the model that makes it, the same for all parts

  stage_stream(const part_view& of, std::span<const part_view> all) {
    const value* v = read_by(of);
    if (v == nullptr && of.g->outputs[0] >= 0) v = &of.g->at(of.g->outputs[0]);
    if (v != nullptr && v->rank > 0) type = v->type, elements = local_size(of.g->ranks, *v).n;
    for (const part_view& part : all)
      if (line.number == 0 && read_by(part) != nullptr) line = line_of(*part.g, part.g->outputs[0]);
  }
  std::int64_t bytes() const { return elements * size_of(type); }

private:
  static const value* read_by(const part_view& part) {
    for (int i = 0; i < part.g->value_count; ++i)
      if (const value& v = part.g->values[i]; v.is == role::input && v.from == feed::stream)
        return &v;
    return nullptr;
  }
};

} // namespace mc
