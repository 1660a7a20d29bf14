// The request of a start: where a command takes its weights from.
#pragma once

#include <megacpp/io/error.hpp>

#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The folder of an adapter, and the name by which prompts choose it; "": all texts have it.
struct named_adapter {
  std::string name, folder;
};

/// Returns adapters that are written FOLDER or NAME=FOLDER. A name has no slash, so the equals sign
/// of a longer path begins none.
inline std::vector<named_adapter> adapters_of(std::span<const std::string> given) {
  std::vector<named_adapter> all;
  for (const std::string& text : given) {
    const std::size_t end = text.find('=');
    const bool named = end != std::string::npos && end > 0 && text.find('/') > end;
    all.push_back(named ? named_adapter{text.substr(0, end), text.substr(end + 1)}
                        : named_adapter{"", text});
  }
  return all;
}
/// Returns whether adapters have names, so that each text has one of them or none.
inline bool are_named(std::span<const named_adapter> all) {
  return all.size() > 1 || (!all.empty() && !all.front().name.empty());
}
/// Throws mc::error(exit_code::usage) for adapters by whose names prompts cannot choose: one has no
/// name, or that of another, or one that means no adapter or ends at a tab.
inline void require_names(std::span<const named_adapter> all) {
  std::set<std::string> names;
  for (const named_adapter& a : all)
    if (a.name.empty() || a.name == "-" || a.name.find_first_of("\t\r\n") != std::string::npos ||
        !names.insert(a.name).second)
      throw error(exit_code::usage,
                  fmt::format("start_request::adapters has {} without a name of its own, by which "
                              "prompts choose it; write NAME=FOLDER for each, with other names "
                              "than -, and without tabs and line ends",
                              a.folder));
}

/// The origin of the weights. A message names a member as start_request::member.
struct start_request {
  /// The folder of a model, of a state, or of states, whose newest is taken; none: a new model.
  std::optional<std::string> load;
  /// The same, whose weights alone are taken where `load` has no state yet, or beside an adapter
  /// in `load`; none: a new model, or the base that the state of the adapter names.
  std::optional<std::string> pretrained;
  /// An adapter for the weights of `load`: the folder of PEFT, or a state; none: a new one. A
  /// generation may have several, each with a name.
  std::vector<named_adapter> adapters;
  std::string adapter_layout;  ///< layout of experts' factors in it; "": as the folder tells
  bool other_base = false;     ///< weights other than those beside which an adapter was trained
  bool finetune = false;       ///< weights alone are taken from it, to begin a new run
  bool random_weights = false; ///< a new run's weights, to measure how fast texts come
};

/// Throws mc::error(exit_code::usage) for several adapters, or one with a name.
inline void require_one_adapter(const start_request& r) {
  if (are_named(r.adapters))
    throw error(exit_code::usage,
                "only generate has several start_request::adapters, by names; give one by its "
                "folder, with ./ before a path that has an equals sign");
}

} // namespace mc
