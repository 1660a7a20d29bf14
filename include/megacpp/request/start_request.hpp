// The request of a start: where a command takes its weights from.
#pragma once

#include <megacpp/io/error.hpp>

#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// The folder of an adapter, and the name by which prompts choose it; "": all texts have it.
struct named_adapter {
  std::string name, folder;
};

/// Returns the adapters of a command, each of which is FOLDER or NAME=FOLDER. A name has no slash,
/// so the equals sign of a longer path begins none. Throws mc::error(exit_code::usage).
inline std::vector<named_adapter> adapters_of(std::span<const std::string> given) {
  std::vector<named_adapter> all;
  for (const std::string& text : given) {
    const auto wrong = [&](const char* what) {
      return error(exit_code::usage, fmt::format("start_request::adapters {}: {}", text, what));
    };
    const std::size_t end = text.find('=');
    if (end == std::string::npos || text.find('/') < end) {
      if (given.size() > 1)
        throw wrong(
            "several adapters need a name each, by which the prompts of generate choose "
            "one; write NAME=FOLDER");
      return {{"", text}};
    }
    named_adapter one{text.substr(0, end), text.substr(end + 1)};
    if (one.name.empty() || one.name == "-" || one.name.find('\t') != std::string::npos)
      throw wrong("the name of an adapter has at least one character, no tab, and is not -");
    for (const named_adapter& other : all)
      if (other.name == one.name) throw wrong("another adapter has this name; give each its own");
    all.push_back(std::move(one));
  }
  return all;
}
/// Returns whether adapters have names, so that each text has one of them or none.
inline bool are_named(std::span<const named_adapter> all) {
  return all.size() > 1 || (!all.empty() && !all.front().name.empty());
}
/// Throws mc::error(exit_code::usage) for adapters of which one has no name, or that of another.
inline void require_names(std::span<const named_adapter> all) {
  for (std::size_t i = 0; i < all.size(); ++i)
    for (std::size_t k = 0; k <= i; ++k)
      if (all[i].name.empty() || (k < i && all[k].name == all[i].name))
        throw error(
            exit_code::usage,
            fmt::format("start_request::adapters has {} without a name of its own, by which "
                        "prompts choose it; write NAME=FOLDER for each",
                        all[i].folder));
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

/// Throws mc::error(exit_code::usage) for adapters with names, of which a program has not several.
inline void require_one_adapter(const start_request& r) {
  if (are_named(r.adapters))
    throw error(exit_code::usage,
                fmt::format("start_request::adapters names {}={}, and only generate has several "
                            "adapters by names; give one by its folder, with ./ before a name that "
                            "has an equals sign",
                            r.adapters.front().name, r.adapters.front().folder));
}

} // namespace mc
