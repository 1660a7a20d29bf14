// Commands that read a state take some things from the flags of its run.
#pragma once

#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/inputs/set_data.hpp>
#include <megacpp/options/resume.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

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

/// The share that `eval --eval-iters` measures: that which an evaluation of `train` takes with the
/// same flags, at the step of a state with those of its run, so that it comes to the loss that was
/// told then.
inline detail::measured_share measured_share_of(const program_view& p, const options& o,
                                                const found_model& found) {
  detail::measured_share share;
  const training_flags& t = o.training;
  if (!t.eval_iters.given() || t.eval_iters() == 0 || t.full_validation()) return share;
  const options run = found.state ? flags_of_state(found.state->state()) : options();
  const auto& batch =
      t.global_batch_size.given() ? t.global_batch_size : run.training.global_batch_size;
  const std::int64_t size = batch.given() ? batch() : p.numbers.batch.micro,
                     most = std::numeric_limits<std::int32_t>::max();
  share.each = size * std::min(t.eval_iters(), most);
  share.by_set = t.multiple_validation_sets() || run.training.multiple_validation_sets();
  if (!found.state) return share;
  share.seed = static_cast<std::uint32_t>(run.model.seed());
  if (run.training.keep_best()) return share;
  const std::int64_t interval = run.training.eval_interval(),
                     step =
                         found.state->state().field<std::int64_t>("step", 0, std::int64_t{1} << 62);
  share.evaluations = run.training.train_iters() / interval + 1;
  share.number = std::max<std::int64_t>(step - 1, 0) / interval;
  return share;
}

} // namespace mc
