// Samples of a run's training data, shown in place of training.
#pragma once

#include <megacpp/data/micro_batches.hpp>
#include <megacpp/data/sample_lines.hpp>
#include <megacpp/inputs/open_data.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/inputs/text.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/run/view.hpp>
#include <megacpp/states/start.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace mc {

/// Prints the next `most` samples that a run would take, rendered, packed and masked, in place of
/// training. So many threads read them. Throws mc::error.
inline void show_samples(const program_view& p, const training_request& r,
                         const training_start& start, std::int64_t most, int threads) {
  const std::optional<found_model>& from = start.from;
  const run_data data =
      open_training_data(p, r.data, r.loop, from ? &from->folder : nullptr, threads);
  const loop_request loop = data.steps ? r.loop.of_steps(*data.steps) : r.loop;
  std::int64_t step = 0, first = 0;
  if (from && from->state && !start.weights_alone) {
    const json_value& state = from->state->state();
    require_same_data(data.identity(), state.field<json_value>("data"));
    step = state.field<std::int64_t>("step", 0, std::int64_t{1} << 62);
    first = state.field<std::int64_t>("consumed_samples", 0, std::int64_t{1} << 62);
  }
  std::shared_ptr<const tokenizer> words = data.tokenizer;
  const std::string folder = from ? from->folder.path() : "";
  const tokenizer_request& asked = r.data.tokenizer;
  const bool has_words = asked.names_files() || (!folder.empty() && has_tokenizer(folder));
  if (!words && r.data.kind == data_kind::indexed && has_words && !asked.of_sentencepiece())
    words = run_tokenizer(asked, folder);
  text_of_token text;
  if (words)
    text = [&](std::int32_t token) {
      return token < words->vocabulary() ? std::string(words->bytes_of(token))
                                         : fmt::format("<token {}>", token);
    };
  else if (data.text.source && !r.data.of_ids() && r.data.kind != data_kind::random)
    text = [&](std::int32_t token) {
      const auto& characters = data.text.characters;
      return std::string(
          1, static_cast<char>(characters ? characters->bytes()[static_cast<std::size_t>(token)]
                                          : static_cast<std::uint8_t>(token)));
    };
  print_line(r.reports.spelled(fmt::format("{}: {}", data.name, data.summary)));
  const std::int64_t left =
      loop.batches.samples_of(std::max<std::int64_t>(loop.steps - step, 0), first);
  micro_batch sample(1, p.numbers.batch.sequence);
  for (std::int64_t i = first; i < first + std::min(most, left); ++i) {
    sample.fill(*data.training, i);
    print(sample_lines(i, sample, p.numbers.batch.packed, text));
  }
  if (left < most)
    print_line(fmt::format("the run has {} sample{} {}", left, left == 1 ? "" : "s",
                           first > 0 ? "left" : "in all"));
}

} // namespace mc
