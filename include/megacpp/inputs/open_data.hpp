// Opens what a run trains on or measures: windows of one text or file of ids, samples of indexed
// data sets, or packed conversations.
#pragma once

#include <megacpp/data/windows.hpp>
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

/// Windows of one text.
inline run_data of_text(text_data text, std::int64_t sequence, std::uint64_t seed) {
  run_data data;
  data.text = std::move(text);
  const std::shared_ptr<token_source> source = data.text.source;
  const split_ranges parts = data.text.parts;
  data.name = source->name();
  data.training = std::make_shared<training_windows>(*source, parts.train, sequence, seed);
  if (!parts.valid.empty())
    data.validation.push_back(
        {data.name, std::make_shared<evaluation_windows>(*source, parts.valid, sequence)});
  data.summary =
      fmt::format("{} tokens to train on, {} to validate", parts.train.size(), parts.valid.size());
  const text_data same{source, parts, data.text.characters};
  data.identity = [same] { return identity_of(same); };
  data.hash = [same] { return hash_of(same); };
  data.written = [source] { return source->written() ? source->name() : std::string(); };
  return data;
}

/// Measures each file of --data-path, or random tokens.
inline std::vector<run_data> measure_texts(const program_view& p, const options& o,
                                           const std::optional<character_set>& characters) {
  refuse_flags_of_sets(o);
  refuse_words_of_sets(o);
  require_files(o.data);
  std::vector<run_data> all;
  const std::size_t files = std::max<std::size_t>(o.data.data_path().size(), 1);
  for (std::size_t i = 0; i < files; ++i) {
    text_data text = open_evaluation_text(p, o, characters, i);
    require_prediction(*text.source, text.parts.valid, "validation");
    run_data data;
    data.name = text.source->name();
    data.text = std::move(text);
    const text_data same{data.text.source, data.text.parts, data.text.characters};
    data.validation.push_back(
        {data.name, std::make_shared<evaluation_windows>(*same.source, same.parts.valid,
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

/// Opens the data of `train`. `saved`: the characters of the model that training starts from, in
/// `folder`, "" being none. `threads` turn texts into tokens. Throws mc::error.
inline run_data open_training_data(const program_view& p, const options& o,
                                   const training_settings& t, const std::string& folder,
                                   std::optional<character_set> saved, int threads) {
  if (o.data.data_type() == "chat") return detail::open_conversations(p, o, t, folder, threads);
  if (o.training.epochs.given())
    throw error(exit_code::usage,
                "--epochs counts conversations, and the data are none; give --train-iters or "
                "--train-samples");
  if (!o.data.mock_data() && detail::is_of_sets(o.data)) {
    detail::refuse_characters(o, saved.has_value());
    return detail::open_sets(p, o, t, folder);
  }
  detail::refuse_flags_of_sets(o);
  detail::refuse_words_of_sets(o);
  require_one_file(o);
  detail::require_files(o.data);
  return detail::of_text(open_training_text(p, o, !folder.empty(), std::move(saved)),
                         p.numbers.batch.sequence, t.numbers.seed);
}

/// Opens what `eval` measures: each data set or file of --data-path, or a share of what they are
/// blended to. `threads` turn texts into tokens. Throws mc::error.
inline std::vector<run_data> open_evaluation_data(const program_view& p, const options& o,
                                                  const std::string& folder,
                                                  const std::optional<character_set>& characters,
                                                  int threads,
                                                  const detail::measured_share& share = {}) {
  if (o.data.data_type() == "chat") return detail::measure_conversations(p, o, folder, threads);
  if (!detail::is_of_sets(o.data)) return detail::measure_texts(p, o, characters);
  detail::refuse_characters(o, characters.has_value());
  return detail::measure_sets(p, o, folder, share);
}

} // namespace mc
