// Conversations that are packed into samples.
#pragma once

#include <megacpp/chat/conversation_file.hpp>
#include <megacpp/chat/packed_conversations.hpp>
#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/sets/blending.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace mc::detail {

/// Returns the paths as they are. Throws mc::error(exit_code::usage) for one that is a weight.
inline std::vector<std::string> files_of_chat(std::vector<std::string> paths) {
  std::error_code ignored;
  for (const std::string& path : paths)
    if (looks_like_weight(path) && !std::filesystem::exists(path, ignored))
      throw error(exit_code::usage,
                  fmt::format("{} stands where a file of conversations is expected, and these have "
                              "no weights: name the files alone",
                              path));
  return paths;
}

/// The rules by which conversations become tokens: those of the tokenizer and the template in a
/// folder, or, without a folder, none, where conversations are token ids.
struct chat_encoding {
  std::string folder; ///< "" is none
  std::shared_ptr<const mc::tokenizer> tokenizer;
  conversation_rules schema;

  /// The request names the folder, or else it is that of a model, `saved`, "" being none.
  chat_encoding(const data_request& d, const std::string& saved, std::int64_t vocabulary)
      : folder(d.tokenizer.model                        ? *d.tokenizer.model
               : !saved.empty() && has_tokenizer(saved) ? saved
                                                        : "") {
    schema.vocabulary = vocabulary;
    schema.trained = d.learned;
    schema.fields = d.fields;
    if (folder.empty()) return;
    tokenizer = open_tokenizer(folder);
    schema.take_template(folder);
    schema.tokenizer = tokenizer.get();
  }
};

inline std::shared_ptr<const packed_conversations> packed(
    const std::string& name, std::shared_ptr<const tokenized_conversations> all, token_range range,
    std::int64_t sequence, std::optional<std::uint64_t> seed) {
  return std::make_shared<const packed_conversations>(name, std::move(all), range, sequence, seed,
                                                      seed ? 0 : 1);
}

/// Names the tokens of conversations that are not learned, and count in no loss.
inline std::string unlearned_of_chat(const data_request& d) {
  return d.learned == trained_on::all
             ? "the padding of sequences"
             : "what others than the assistant say and the padding of sequences";
}

/// Opens the conversations that a run trains on. Throws mc::error.
inline run_data open_conversations(const program_view& p, const data_request& d,
                                   const loop_request& t, const std::string& folder, int threads) {
  require_packed(p, "conversations");
  const std::optional<split_paths>& by_split = d.by_split;
  const std::vector<std::string> paths = files_of_chat(by_split ? by_split->train : d.paths);
  if (paths.empty())
    throw error(exit_code::usage,
                "train needs data_request::paths FILE, conversations as JSON lines");
  const chat_encoding encoding(d, folder, p.vocabulary);
  const std::int64_t s = p.numbers.batch.sequence;
  const auto all = conversations_of(paths, encoding.schema, threads);
  const split_ranges ranges =
      by_split ? split_ranges{{0, all->size()}, {}, {}} : split(d.training_split(), all->size());
  if (ranges.train.empty())
    throw error(exit_code::data,
                fmt::format("data_request::split {} leaves no conversation of {} to train on",
                            d.training_split(), paths[0]));
  run_data data;
  data.name = name_of_all(paths);
  const auto training = packed(data.name, all, ranges.train, s, t.numbers.seed);
  data.training = training;
  data.unlearned = unlearned_of_chat(d);
  data.tokenizer = encoding.tokenizer;
  if (encoding.schema.style) data.template_folder = encoding.folder;
  data.summary = sentence_of(training->counts(), s);
  if (t.epochs) data.steps = steps_for_samples(t.batches, *t.epochs * training->per_epoch());
  else
    data.summary +=
        fmt::format("; the run is {:.1f} epochs (loop_request::epochs asks for some)",
                    static_cast<double>(t.samples()) / static_cast<double>(training->per_epoch()));
  if (!ranges.valid.empty())
    data.validation.push_back({data.name, packed(data.name, all, ranges.valid, s, std::nullopt)});
  const auto measure = [&](std::vector<measured_set>& sets, const std::vector<std::string>& own) {
    for (const std::string& path : files_of_chat(own)) {
      const auto of = conversations_of({path}, encoding.schema, threads);
      sets.push_back({path, packed(path, of, {0, of->size()}, s, std::nullopt)});
    }
  };
  if (by_split) measure(data.validation, by_split->valid), measure(data.test, by_split->test);
  data.identity = [all, name = data.name, range = ranges.train] {
    return nlohmann::json{{"name", name},
                          {"tokens", all->tokens()},
                          {"part", {range.begin, range.end}},
                          {"xxh64", fmt::format("{:016x}", all->hash())}};
  };
  data.hash = [all] { return all->hash(); };
  return data;
}

/// Opens the conversations that `eval` measures, file by file. Throws mc::error.
inline std::vector<run_data> measure_conversations(const program_view& p, const data_request& d,
                                                   const std::string& folder, int threads) {
  require_packed(p, "conversations");
  const chat_encoding encoding(d, folder, p.vocabulary);
  const std::vector<std::string> paths = files_of_chat(d.paths);
  if (paths.empty())
    throw error(exit_code::usage,
                "eval needs data_request::paths FILE, conversations as JSON lines");
  std::vector<run_data> all;
  for (const std::string& path : paths) {
    const auto of = conversations_of({path}, encoding.schema, threads);
    const token_range range =
        d.split ? split(*d.split, of->size()).valid : token_range{0, of->size()};
    run_data data;
    data.name = path;
    data.unlearned = unlearned_of_chat(d);
    data.validation.push_back(
        {path, packed(path, of, range, p.numbers.batch.sequence, std::nullopt)});
    data.hash = [of] { return of->hash(); };
    all.push_back(std::move(data));
  }
  return all;
}

} // namespace mc::detail
