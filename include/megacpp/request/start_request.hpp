// The request of a start: where a command takes its weights from.
#pragma once

#include <optional>
#include <string>

namespace mc {

/// The origin of the weights. A message names a member as start_request::member.
struct start_request {
  /// The folder of a model, of a state, or of states, whose newest is taken; none: a new model.
  std::optional<std::string> load;
  /// The same, whose weights alone are taken where `load` has no state yet; none: a new model.
  std::optional<std::string> pretrained;
  bool finetune = false;       ///< weights alone are taken from it, to begin a new run
  bool random_weights = false; ///< a new run's weights, to measure how fast texts come
};

} // namespace mc
