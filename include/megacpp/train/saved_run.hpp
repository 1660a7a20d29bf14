// Commands that read a state take some things from the flags of its run.
#pragma once

#include <megacpp/options/resume.hpp>
#include <megacpp/train/run_tokenizer.hpp>
#include <megacpp/train/state.hpp>

namespace mc {

/// The options of a command that reads a state, with the type of the tokenizer that its run was
/// given, unless these name a tokenizer or a type themselves. Characters are known by their list,
/// which lies beside the weights. Throws mc::error(exit_code::model).
inline options with_tokenizer_of_run(options o, const json_value& state) {
  text_flag& type = o.data.tokenizer_type;
  if (type.given() || names_tokenizer(o.data) || !gave_flag(state, "tokenizer-type")) return o;
  const options run = flags_of_state(state);
  if (run.data.tokenizer_type() != "char")
    type.read(run.data.tokenizer_type(), "tokenizer-type of the state");
  return o;
}
/// The options for a saved model, which may be no state.
inline options with_tokenizer_of_run(const options& o, const found_model& found) {
  return found.state ? with_tokenizer_of_run(o, found.state->state()) : o;
}

} // namespace mc
