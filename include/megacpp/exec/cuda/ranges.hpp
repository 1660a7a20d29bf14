// Names by which a CUDA device tells tools what its lanes start: tasks of a step, and the kernels
// of nodes. A tool shows these ranges to people. Where no tool listens, a range costs a comparison.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace mc {

/// A tool that shows ranges, such as Nsight Systems by NVTX (exec/cuda/nvtx.hpp). Ranges of a
/// thread nest.
class range_tool {
public:
  range_tool() = default;
  range_tool(const range_tool&) = delete;
  range_tool& operator=(const range_tool&) = delete;
  virtual ~range_tool() = default;
  /// Registers a name. Returns the handle that stands for it from now on.
  virtual const void* registered(const std::string& name) = 0;
  /// Begins a range of a registered name, with a number unless that is negative.
  virtual void begin(const void* name, std::int64_t number) = 0;
  virtual void end() = 0;
};

/// Returns the name of a node for errors and tools: its op, and the line of the model that the node
/// is for, if there is one.
template <class Node> std::string name_of_launch(const Node& n) {
  std::string name = n.op->name;
  if (n.line.number > 0)
    name += std::string(" at ") + n.line.file_name() + ":" + std::to_string(n.line.number);
  return name;
}

/// The names of a lane's ranges. Each is made and registered once.
class range_names {
public:
  const void* of(range_tool& tool, const std::string& name) {
    return found(of_texts_, name, [&] { return tool.registered(name); });
  }
  template <class Node> const void* of_node(range_tool& tool, const Node& n) {
    return found(of_nodes_, {n.op, n.line.file_name(), n.line.number},
                 [&] { return tool.registered(name_of_launch(n)); });
  }

private:
  template <class Key, class F>
  static const void* found(std::map<Key, const void*>& in, const Key& key, F make) {
    const auto [at, is_new] = in.try_emplace(key, nullptr);
    if (is_new) at->second = make();
    return at->second;
  }
  std::map<std::string, const void*> of_texts_;
  /// The keys are the op and the line. The file name of a line is one pointer throughout the
  /// program.
  std::map<std::tuple<const void*, const char*, int>, const void*> of_nodes_;
};

} // namespace mc
