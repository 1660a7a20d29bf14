// Opens the data of a run: windows of one text or file of ids, samples of indexed data sets, or
// packed conversations.
#pragma once

#include <megacpp/comm/communicator.hpp>
#include <megacpp/data/windows.hpp>
#include <megacpp/exec/device.hpp>
#include <megacpp/inputs/chat_data.hpp>
#include <megacpp/inputs/set_data.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// Returns how many threads read data for all ranks of this process, which wait for them.
inline int reading_threads(const device& on, const communicator& hosts) {
  return on.threads() * (hosts.in_one_process() ? ranks_of(hosts.ranks()) : 1);
}

/// Returns the data of a text: windows to validate, and what tells it from others.
inline run_data of_text(text_data text, std::int64_t sequence) {
  run_data data;
  const std::shared_ptr<token_source> source = text.source;
  data.name = source->name();
  if (!text.splits.valid.empty())
    data.validation.push_back(
        {data.name, std::make_shared<evaluation_windows>(*source, text.splits.valid, sequence)});
  data.identity = [text] { return identity_of(text); };
  data.hash = [text] { return hash_of(text); };
  data.written = [source] { return source->written() ? source->name() : std::string(); };
  data.text = std::move(text);
  return data;
}

} // namespace detail

/// Opens the data of `train`. `model`: the one that training starts from; nullptr is none. So many
/// threads turn texts into tokens. Throws mc::error.
inline run_data open_training_data(const program_view& p, const data_request& d,
                                   const loop_request& t, const model_folder* model, int threads) {
  const std::string folder = model != nullptr ? model->path() : "";
  std::optional<character_set> saved;
  if (model != nullptr) saved = characters_of(*model, p.vocabulary, p.name);
  if (d.kind == data_kind::chat) return detail::open_conversations(p, d, t, folder, threads);
  if (d.kind == data_kind::indexed) {
    detail::require_no_characters(folder, d, saved.has_value());
    return detail::open_sets(p, d, t, folder);
  }
  if (d.kind != data_kind::random) detail::require_files(d.paths);
  const std::int64_t sequence = p.numbers.batch.sequence;
  const text_data text = open_text(p, d, folder, std::move(saved));
  const split_ranges& of = text.splits;
  const auto training =
      std::make_shared<training_windows>(*text.source, of.train, sequence, t.numbers.seed);
  run_data data = detail::of_text(text, sequence);
  data.training = training;
  data.summary =
      fmt::format("{} tokens to train on, {} to validate", of.train.size(), of.valid.size());
  return data;
}

/// Opens the data on which `eval` measures a model: each set or file, or the samples of a blend
/// that `taken` counts. So many threads turn texts into tokens. Throws mc::error.
inline std::vector<run_data> open_evaluation_data(const program_view& p, const data_request& d,
                                                  const model_folder& model, int threads,
                                                  const detail::measured_samples& taken) {
  const std::string& folder = model.path();
  const std::optional<character_set> characters = characters_of(model, p.vocabulary, p.name);
  if (d.kind == data_kind::chat) return detail::measure_conversations(p, d, folder, threads);
  if (d.kind == data_kind::indexed) {
    detail::require_no_characters(folder, d, characters.has_value());
    return detail::measure_sets(p, d, folder, taken);
  }
  detail::require_files(d.paths);
  std::vector<run_data> all;
  for (std::size_t i = 0; i < std::max<std::size_t>(d.paths.size(), 1); ++i) { // none is refused
    text_data text = open_text(p, d, folder, characters, i);
    require_prediction(*text.source, text.splits.valid, "validation");
    all.push_back(detail::of_text(std::move(text), p.numbers.batch.sequence));
  }
  return all;
}

} // namespace mc
