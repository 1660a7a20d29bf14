// Settings of the run that saved a state, for commands that read it.
#pragma once

#include <megacpp/inputs/set_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mc {

/// Adds to the request of a command the type of tokenizer that the run of a state was given, unless
/// the command names a type or files itself. A model of characters needs none, since their list
/// lies beside its weights. Throws mc::error(exit_code::model).
inline tokenizer_request with_tokenizer_of_run(tokenizer_request r, const json_value& state) {
  const auto given = state.field<std::vector<std::string>>("given");
  constexpr std::string_view name = "tokenizer-type";
  if (r.type || r.names_files() || std::ranges::find(given, name) == given.end()) return r;
  const json_value flags = state.field<json_value>("flags");
  const auto type = flags.field<std::string>(name);
  if (fmt::format("|{}|", tokenizer_types).find(fmt::format("|{}|", type)) == std::string::npos)
    throw flags.fault(fmt::format("field \"{}\" is \"{}\", which is no type of a tokenizer", name,
                                  printable(type)));
  if (type != "char") r.type = type;
  return r;
}

/// Returns the samples that `eval` measures where a number of global batches is asked for: those
/// that an evaluation of `train` takes with the same request, at the step of a state and with the
/// numbers of its run. So `eval` comes to the loss that was reported then.
inline detail::measured_samples samples_of_evaluation(const program_view& p,
                                                      const evaluation_request& r,
                                                      const found_model& found) {
  detail::measured_samples taken;
  if (r.eval_iters.value_or(0) == 0) return taken;
  constexpr std::int64_t most = std::numeric_limits<std::int32_t>::max();
  std::optional<json_value> flags;
  if (found.state) flags = found.state->state().field<json_value>("flags");
  const auto number = [&](std::string_view name, std::int64_t least) {
    return flags->field<std::int64_t>(name, least, std::numeric_limits<std::int64_t>::max());
  };
  const auto is_on = [&](std::string_view name) {
    return flags && flags->has(name) && flags->field<bool>(name);
  };
  std::int64_t batch = p.numbers.batch.micro;
  if (flags && flags->has("global-batch-size")) batch = number("global-batch-size", 1);
  taken.per_evaluation = r.global_batch.value_or(batch) * std::min(*r.eval_iters, most);
  taken.by_set = r.by_set || is_on("multiple-validation-sets");
  if (!flags) return taken;
  taken.seed = static_cast<std::uint32_t>(number("seed", 0));
  if (is_on("keep-best")) return taken;
  const std::int64_t interval = number("eval-interval", 1),
                     step =
                         found.state->state().field<std::int64_t>("step", 0, std::int64_t{1} << 62);
  taken.evaluations = number("train-iters", 1) / interval + 1;
  taken.number = std::max<std::int64_t>(step - 1, 0) / interval;
  return taken;
}

} // namespace mc
