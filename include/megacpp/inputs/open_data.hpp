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

/// Cuts a text into windows to train on and to validate.
inline run_data of_text(text_data text, std::int64_t sequence, std::uint64_t seed) {
  run_data data;
  data.text = std::move(text);
  const std::shared_ptr<token_source> source = data.text.source;
  const split_ranges splits = data.text.splits;
  data.name = source->name();
  data.training = std::make_shared<training_windows>(*source, splits.train, sequence, seed);
  if (!splits.valid.empty())
    data.validation.push_back(
        {data.name, std::make_shared<evaluation_windows>(*source, splits.valid, sequence)});
  data.summary = fmt::format("{} tokens to train on, {} to validate", splits.train.size(),
                             splits.valid.size());
  const text_data same{source, splits, data.text.characters};
  data.identity = [same] { return identity_of(same); };
  data.hash = [same] { return hash_of(same); };
  data.written = [source] { return source->written() ? source->name() : std::string(); };
  return data;
}

/// Opens the texts or files of ids that `eval` measures. Throws mc::error.
inline std::vector<run_data> measure_texts(const program_view& p, const data_request& d,
                                           const std::string& folder,
                                           const std::optional<character_set>& characters) {
  require_files(d.paths);
  std::vector<run_data> all;
  const std::size_t files = std::max<std::size_t>(d.paths.size(), 1); // none of them is refused
  for (std::size_t i = 0; i < files; ++i) {
    text_data text = open_evaluation_text(p, d, folder, characters, i);
    require_prediction(*text.source, text.splits.valid, "validation");
    run_data data;
    data.name = text.source->name();
    data.text = std::move(text);
    const text_data same{data.text.source, data.text.splits, data.text.characters};
    data.validation.push_back(
        {data.name, std::make_shared<evaluation_windows>(*same.source, same.splits.valid,
                                                         p.numbers.batch.sequence)});
    data.hash = [same] { return hash_of(same); };
    data.written = [source = same.source] {
      return source->written() ? source->name() : std::string();
    };
    all.push_back(std::move(data));
  }
  return all;
}

} // namespace detail

/// Opens the data of `train`. `saved`: the characters of the model in `folder` that training starts
/// from, "" being none. So many threads turn texts into tokens. Throws mc::error.
inline run_data open_training_data(const program_view& p, const data_request& d,
                                   const loop_request& t, const std::string& folder,
                                   std::optional<character_set> saved, int threads) {
  if (d.kind == data_kind::chat) return detail::open_conversations(p, d, t, folder, threads);
  if (d.kind == data_kind::indexed) {
    detail::require_no_characters(folder, d, saved.has_value());
    return detail::open_sets(p, d, t, folder);
  }
  if (d.kind != data_kind::random) detail::require_files(d.paths);
  return detail::of_text(open_training_text(p, d, folder, std::move(saved)),
                         p.numbers.batch.sequence, t.numbers.seed);
}

/// Opens the data on which `eval` measures a model in `folder`: each data set or file, or the
/// samples of a blend that `taken` counts. So many threads turn texts into tokens. Throws
/// mc::error.
inline std::vector<run_data> open_evaluation_data(const program_view& p, const data_request& d,
                                                  const std::string& folder,
                                                  const std::optional<character_set>& characters,
                                                  int threads,
                                                  const detail::measured_samples& taken = {}) {
  if (d.kind == data_kind::chat) return detail::measure_conversations(p, d, folder, threads);
  if (d.kind != data_kind::indexed) return detail::measure_texts(p, d, folder, characters);
  detail::require_no_characters(folder, d, characters.has_value());
  return detail::measure_sets(p, d, folder, taken);
}

} // namespace mc
