// The start of a command.
#pragma once

#include <optional>
#include <string>

namespace mc {

/// The origin of the weights. A sentence names a member as start_request::member.
struct start_request {
  /// The folder of a model, of a state, or of states, whose newest is taken; none: a new model.
  std::optional<std::string> load;
  bool finetune = false;       ///< weights alone are taken from it, to begin a new run
  bool random_weights = false; ///< those with which a run begins, to measure how fast texts come
};

} // namespace mc
