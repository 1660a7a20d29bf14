// The request of a start: where a command takes its weights from.
#pragma once

#include <optional>
#include <string>

namespace mc {

/// The origin of the weights. A message names a member as start_request::member.
struct start_request {
  /// The folder of a model, of a state, or of states, whose newest is taken; none: a new model.
  std::optional<std::string> load;
  /// The same, whose weights alone are taken where `load` has no state yet, or beside an adapter
  /// in `load`; none: a new model, or the base that the state of the adapter names.
  std::optional<std::string> pretrained;
  /// The folder of an adapter for the weights of `load`: one of PEFT, or a state; none: a new one.
  std::optional<std::string> adapter;
  std::string adapter_layout;  ///< layout of experts' factors in it; "": as the folder tells
  bool other_base = false;     ///< weights other than those beside which an adapter was trained
  bool finetune = false;       ///< weights alone are taken from it, to begin a new run
  bool random_weights = false; ///< a new run's weights, to measure how fast texts come
};

} // namespace mc
