// The command `eval`: the mean loss over sets of samples, each of which is read once.
#pragma once

#include <megacpp/comm/agreement.hpp>
#include <megacpp/inputs/open_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/session.hpp>
#include <megacpp/states/start.hpp>
#include <megacpp/states/state.hpp>
#include <megacpp/train/evaluation.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// Returns `loss: 1.2345 nats per token | ...`. `unlearned` names the tokens that are not counted.
inline std::string evaluation_text(const loss_sum& total, std::string_view unlearned) {
  const double loss = total.mean();
  return fmt::format(
      "loss: {:.4f} nats per token | perplexity: {:.4f} | {:.4f} bits per token | "
      "{:.0f} tokens{}{}",
      loss, perplexity(loss), loss / std::numbers::ln2, total.count,
      unlearned.empty() ? "" : ", which are all but ", unlearned);
}
/// Returns the numbers of that line as fields. A perplexity that double cannot hold is null.
inline json_output evaluation_json(const loss_sum& total) {
  const double loss = total.mean();
  return {{"loss", loss},
          {"tokens", json_number(total.count)},
          {"perplexity", perplexity(loss)},
          {"bits_per_token", loss / std::numbers::ln2}};
}

/// Returns the samples that `eval` measures where a number of global batches is asked for: those
/// that an evaluation of `train` takes with the same request, at the step of a state and with the
/// numbers of its run. So `eval` comes to the loss that was reported then.
inline measured_samples samples_of_evaluation(const program_view& p, const evaluation_request& r,
                                              const found_model& found) {
  measured_samples taken;
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
  const bool stops = flags->has("stop-after-no-better") && number("stop-after-no-better", 0) > 0;
  if (is_on("keep-best") || stops) return taken; // all evaluations are of the same samples
  const std::int64_t interval = number("eval-interval", 1),
                     step =
                         found.state->state().field<std::int64_t>("step", 0, std::int64_t{1} << 62);
  taken.evaluations = number("train-iters", 1) / interval + 1;
  taken.number = std::max<std::int64_t>(step - 1, 0) / interval;
  return taken;
}

} // namespace detail

/// Carries out the command `eval`: prints one line, or one JSON object {"loss": nats a token,
/// "tokens": number of predictions, "perplexity": exp(loss), "bits_per_token": loss / ln 2}. Where
/// there are several files, it prints one for each, with its name or the field "file", and one for
/// all tokens together, with the number of files or the field "files". A request that counts global
/// batches is measured on the samples that an evaluation of `train` takes. All files are opened
/// before the first is read. Ranks of one process are given the same `data`. Throws mc::error.
inline void run_evaluation(const program_view& p, evaluation_request r, device& on,
                           const planes& both = self::both(),
                           const opened_once<std::vector<run_data>>& data = {}) {
  agreement all_ranks(both.hosts);
  const std::string named = all_ranks.enter_after_first();
  const found_model found = detail::required_model(r.start, "eval", all_ranks, named);
  const model_folder& folder = found.folder;
  if (found.state)
    r.data.tokenizer = with_tokenizer_of_run(std::move(r.data.tokenizer), found.state->state());
  const detail::measured_samples taken = detail::samples_of_evaluation(p, r, found);
  const auto opened = data([&] {
    return open_evaluation_data(p, r.data, folder, detail::reading_threads(on, both.hosts), taken);
  });
  std::size_t files = 0;
  for (const run_data& d : *opened) files += d.validation.size();
  all_ranks.let_others_enter(name_of(found));
  detail::require_same_model(all_ranks, found);
  for (const run_data& d : *opened)
    if (all_ranks.separate_processes())
      all_ranks.require_same(d.hash(), "other data", "give all of them the same");
  session s(p, on, purpose::inference, both.ranks);
  load_start(found, r.start, p, s.weights(), 0, both.hosts);
  // The field `of` comes first where there are several files, and says which of them this is.
  const auto tell = [&](const loss_sum& total, std::string_view name, json_output of) {
    if (!std::isfinite(total.mean()))
      throw error(exit_code::nonfinite,
                  fmt::format("the mean loss of {} on {} is {}; the model is not usable",
                              *r.start.load, name, total.mean()));
    if (!all_ranks.first()) return;
    if (!r.json)
      return print_line((files > 1 ? fmt::format("{}: ", name) : "") +
                        detail::evaluation_text(total, opened->front().unlearned));
    if (files == 1) of = json_output::object();
    of.update(detail::evaluation_json(total));
    print(json_line(of));
  };
  loss_sum all;
  for (const run_data& d : *opened)
    for (const measured_set& set : d.validation) {
      const std::int64_t some = taken.per_evaluation, limit = some > 0 ? some : set.samples->size();
      const loss_sum total = *evaluation(s, p, set, limit, both.hosts).run(taken.number);
      if (const std::string file = d.written ? d.written() : ""; !file.empty())
        throw error(exit_code::data,
                    fmt::format("{} was written to while it was measured; measure it again", file));
      tell(total, set.name, {{"file", set.name}});
      all.sum += total.sum, all.count += total.count;
    }
  if (files > 1) tell(all, fmt::format("all {} files", files), {{"files", files}});
}

} // namespace mc
