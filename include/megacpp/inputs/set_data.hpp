// Samples of Megatron-LM's indexed data sets and their blends.
#pragma once

#include <megacpp/chat/configured_token.hpp>
#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/sets/blending.hpp>
#include <megacpp/sets/opened_sets.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc::detail {

/// What ends documents, and what is to be said of the tokenizer.
struct ends_of_run {
  document_ends ends;
  std::string note;
};

/// The ends of documents as a request wants them. As with Megatron-LM, a HuggingFaceTokenizer ends
/// them by its eos_token, and its pad_token is not learned. Throws mc::error.
inline ends_of_run ends_of(const program_view& p, const data_request& d,
                           const std::string& folder) {
  const tokenizer_request& r = d.tokenizer;
  ends_of_run read;
  document_ends& ends = read.ends;
  ends = {.reset_position_ids = d.reset_position_ids,
          .reset_attention_mask = d.reset_attention_mask,
          .eod_mask_loss = d.eod_mask_loss};
  if (ends.reset_attention_mask) require_packed(p, "data_request::reset_attention_mask");
  const bool asks = ends.reset_position_ids || ends.reset_attention_mask || ends.eod_mask_loss;
  if (r.of_sentencepiece()) {
    if (asks || d.eod_token)
      throw error(
          exit_code::usage,
          fmt::format("tokenizer_request::type {} is of a file of SentencePiece, which is not read "
                      "here, so that the token that ends a document is not known; give a "
                      "folder with a tokenizer.json as tokenizer_request::model, and "
                      "tokenizer_request::type HuggingFaceTokenizer",
                      r.kind()));
    read.note = "; the tokenizer is not read, for ids need none";
    return read;
  }
  auto t = r.names_files() ? run_tokenizer(r, folder) : nullptr;
  if (t && t->vocabulary() > p.vocabulary)
    read.note = fmt::format(
        "; the tokenizer has {} tokens, but the vocabulary of {} {}: it may be another model's",
        t->vocabulary(), p.name, p.vocabulary);
  const bool configured = r.kind() == "HuggingFaceTokenizer";
  if (r.kind() == "NullTokenizer") {
    if (d.eod_token)
      throw error(exit_code::usage,
                  "data_request::eod_token is a token of a tokenizer, and NullTokenizer has none: "
                  "the last id "
                  "of the vocabulary ends documents; leave one of them out");
    ends.eod = p.vocabulary - 1;
    return read;
  }
  if (!asks && !configured) {
    if (d.eod_token)
      throw error(
          exit_code::usage,
          "data_request::eod_token changes nothing without data_request::reset_position_ids, "
          "data_request::reset_attention_mask or data_request::eod_mask_loss; leave it out");
    return read;
  }
  if (!t) t = run_tokenizer(r, folder);
  if (!t)
    throw error(exit_code::usage,
                "data_request::reset_position_ids, data_request::reset_attention_mask and "
                "data_request::eod_mask_loss need to know the "
                "token that ends a document; name the tokenizer by tokenizer_request::model");
  std::string end = d.eod_token.value_or("");
  if (configured) {
    const std::string& own = r.model ? *r.model : folder;
    if (end.empty()) end = configured_token(own, "eos_token");
    if (const std::string pad = configured_token(own, "pad_token"); !pad.empty())
      ends.pad = t->id_of(pad);
  }
  if (asks || ends.pad) ends.eod = end_of_document(*t, end);
  if (asks && ends.eod >= p.vocabulary)
    throw error(
        exit_code::mismatch,
        fmt::format("documents would end by token {}, but the vocabulary of {} has {}; name "
                    "the tokenizer of the model by tokenizer_request::model",
                    *ends.eod, p.name, p.vocabulary));
  return read;
}

/// Names the tokens of data sets that are not learned, and count in no loss; "" is none.
inline std::string unlearned_of(const document_ends& ends) {
  std::string what = ends.eod_mask_loss ? "what follows the end of a document" : "";
  if (ends.pad && ends.pad != ends.eod)
    what += fmt::format("{}padding (the pad_token of the tokenizer)", what.empty() ? "" : " and ");
  return what;
}

/// What to say where a token is to end documents and none of the first ones ends with it.
inline std::string note_of_ends(const sets_of_split& part, const document_ends& ends,
                                const tokenizer_request& r) {
  constexpr std::int64_t most = 64;
  std::optional<std::int32_t> last;
  for (const dataset_part& one : part.sets)
    for (std::int64_t d = 0; d < std::min(one.data->documents(), most); ++d) {
      const std::int64_t s = one.data->first_of(d + 1) - 1;
      if (s < one.data->first_of(d) || one.data->length(s) == 0) continue;
      std::int32_t id = 0;
      one.data->read(s, one.data->length(s) - 1, std::span(&id, 1));
      if (id == ends.eod) return "";
      last = id;
    }
  if (!last) return "";
  return fmt::format(
      "; data_request::reset_position_ids and its like look for the token {}, and no document that "
      "was looked "
      "at ends with it, but one with {}: let megacpp-data append it{}",
      *ends.eod, *last,
      r.kind() == "NullTokenizer" ? "" : ", or name by data_request::eod_token what ends them");
}

/// How much of its sets an evaluation takes.
struct measured_share {
  std::int64_t each = 0;        ///< samples of one evaluation; 0: all
  std::int64_t evaluations = 1; ///< of the run, each of which goes on behind the one before
  std::int64_t number = 0;      ///< of this one
  bool by_set = false;          ///< so many of each set, and not of the blend of all
  std::uint32_t seed = 1234;    ///< of the order of samples
};

/// The sets that the evaluations of a run measure, of one part of its blend.
inline std::vector<measured_set> measured_sets(const sets_of_split& of, data_split which,
                                               const measured_share& share, gpt_request request,
                                               const document_ends& ends, const index_cache& cache,
                                               const std::string& name) {
  std::vector<measured_set> sets;
  if (of.sets.empty()) return sets;
  request.samples.reset();
  if (share.each > 0) request.samples = share.evaluations * share.each;
  else request.drop_last = false; // each token is predicted
  if (of.sets.size() == 1 || share.each == 0 || share.by_set) {
    for (const dataset_part& one : of.sets)
      sets.push_back({one.data->name(),
                      blended_samples({one}, {}, request, ends, cache, name_of(which)),
                      share.each});
  } else {
    sets.push_back({name,
                    blended_samples(of.sets, of.weights, request, ends, cache, name_of(which)),
                    share.each});
  }
  return sets;
}

/// A loss is a mean over tokens that are learned: without any there is none. Throws mc::error.
inline void require_learned(const sample_set& s, std::string_view to, std::int64_t sequence) {
  if (s.size() == 0)
    throw error(exit_code::data,
                fmt::format("{} has no token to predict; give it more documents, or leave it out",
                            s.name()));
  if (!has_label(s, sequence))
    throw error(
        exit_code::data,
        fmt::format(
            "{} has no token to learn in what there is to {}: each stands behind "
            "the end of a document, where data_request::eod_mask_loss leaves it out, or is the "
            "pad_token of the tokenizer; give other documents or another data_request::split",
            s.name(), to));
}

/// Sets without weights are read once. A run that goes on cannot be given weights: its samples
/// would be others.
inline error beyond_one_epoch(const loop_request& t, const sample_set& all) {
  std::int64_t most = steps_of_samples(t.batches, all.size());
  while (most > 0 && t.batches.samples_of(most, 0) > all.size()) --most;
  return {
      exit_code::data,
      fmt::format(
          "{} have {} samples, for without weights each set is read once, but the run "
          "takes {}; give {} {} at most, or, to a new run, weights (start_request::finetune begins "
          "one with what is learned): with these, sets are read again",
          all.name(), all.size(), t.samples(),
          t.samples_asked ? "loop_request::samples_asked" : "loop_request::steps",
          t.samples_asked ? all.size() : most)};
}

/// Samples of sets for a run of so many steps, as Megatron-LM counts them.
inline run_data open_sets(const program_view& p, const data_request& d, const loop_request& t,
                          const std::string& folder) {
  if (d.seed >= std::uint64_t{1} << 32)
    throw error(
        exit_code::usage,
        fmt::format(
            "data_request::seed is {}, but the order of indexed data sets is drawn from a seed "
            "below 2^32; give a smaller one",
            d.seed));
  const std::optional<split_paths>& parts = d.by_split;
  const std::vector<std::string>& words = parts ? parts->train : d.paths;
  if (words.empty())
    throw error(exit_code::usage,
                "train needs data_request::paths PREFIX, the name of a data set without .bin "
                "and .idx, or split_paths::train");
  const ends_of_run of_run = ends_of(p, d, folder);
  const document_ends& ends = of_run.ends;
  const index_cache cache(d.cache);
  const auto open = std::make_shared<opened_sets>(p.vocabulary);
  gpt_request request{.sequence = p.numbers.batch.sequence,
                      .seed = static_cast<std::uint32_t>(d.seed)};
  const char* const flag = parts ? "split_paths::train" : "data_request::paths";
  // A part's only set has no weight, whatever was given, as in Megatron-LM.
  const auto parse_own = [](const std::vector<std::string>& own, std::string_view of) {
    blend b = parse_blend(own, of);
    if (b.prefixes.size() == 1) b.weights.clear();
    return b;
  };
  const blend trained = parts ? parse_own(words, flag) : parse_blend(words, flag);
  const auto part = [&](data_split which) {
    if (!parts) return sets_of(trained, which, d.training_split(), *open);
    const std::vector<std::string>& own = which == data_split::training     ? parts->train
                                          : which == data_split::validation ? parts->valid
                                                                            : parts->test;
    if (own.empty()) return sets_of_split();
    return sets_of(parse_blend(own, which == data_split::validation ? "split_paths::valid"
                                                                    : "split_paths::test"),
                   data_split::all, d.training_split(), *open);
  };
  run_data data;
  data.type = "indexed";
  if (t.sample_interval > 0) data.words = run_tokenizer(d.tokenizer, folder);
  const sets_of_split of_training = part(data_split::training);
  if (of_training.sets.empty())
    throw error(
        exit_code::data,
        fmt::format(
            "data_request::split {} leaves no document of {} to train on; give more data or "
            "another data_request::split",
            d.training_split(), trained.prefixes[0]));
  // Of the number that is asked for, not of whole batches alone, as in Megatron-LM: epochs and
  // shares of a blend follow from it.
  request.samples = t.samples_asked.value_or(t.samples());
  data.training = blended_samples(of_training.sets, of_training.weights, request, ends, cache);
  data.name = data.training->name();
  if (data.training->size() < t.samples()) throw beyond_one_epoch(t, *data.training);

  const std::int64_t iters = t.eval_iters.value_or(0), batch = t.batches.last;
  const bool whole = !t.validates_some();
  const auto measured = [&](data_split which, std::int64_t evaluations) {
    return measured_sets(
        part(which), which,
        {.each = whole ? 0 : iters * batch, .evaluations = evaluations, .by_set = t.by_set},
        request, ends, cache, data.name);
  };
  if (whole || iters > 0) {
    // Where the best state is kept, all evaluations are of the same samples.
    const bool one_text = t.save && t.keep_best;
    data.validation =
        measured(data_split::validation, one_text ? 1 : t.steps / t.eval_interval + 1);
    data.test = measured(data_split::test, 1);
  }
  require_learned(*data.training, "train on", request.sequence);
  for (const measured_set& s : data.validation)
    require_learned(*s.samples, "validate", request.sequence);
  for (const measured_set& s : data.test) require_learned(*s.samples, "test", request.sequence);
  std::int64_t validated = 0;
  for (const measured_set& s : data.validation) validated += s.samples->size();
  data.summary = fmt::format("{} samples of {} tokens to train on, {} to validate",
                             data.training->size(), request.sequence, validated);
  data.summary += of_run.note;
  data.unlearned = unlearned_of(ends);
  if (ends.reset_position_ids || ends.reset_attention_mask || ends.eod_mask_loss)
    data.summary += note_of_ends(of_training, ends, d.tokenizer);
  const std::vector<std::ptrdiff_t> numbers = open->numbers_of(trained.prefixes);
  data.identity = [open, name = data.name, weights = trained.weights, numbers,
                   training = data.training] {
    nlohmann::json of{{"name", name},
                      {"tokens", open->tokens()},
                      {"sets", open->identity()},
                      {"trained", numbers},
                      {"order", training->order()}};
    if (!weights.empty()) of["weights"] = weights;
    return of;
  };
  data.hash = [open, weights = trained.weights, numbers] {
    xxh64 hash;
    const std::string text = fmt::format("{} {} {}", open->identity().dump(),
                                         fmt::join(weights, " "), fmt::join(numbers, " "));
    hash.add(std::as_bytes(std::span(text)));
    return hash.value();
  };
  data.written = [open] { return open->written(); };
  return data;
}

/// Measures the sets of a blend, or the validation part of each where shares are asked for.
inline run_data measure_blend(const program_view& p, const data_request& d, const blend& b,
                              const document_ends& ends, const measured_share& share) {
  const auto open = std::make_shared<opened_sets>(p.vocabulary);
  const data_split which = d.split ? data_split::validation : data_split::all;
  const sets_of_split part = sets_of(b, which, d.training_split(), *open);
  if (part.sets.empty())
    throw error(
        exit_code::data,
        fmt::format("data_request::split {} leaves no document of {} to measure; give another",
                    d.training_split(), b.prefixes[0]));
  run_data data;
  data.name = b.prefixes.size() == 1
                  ? b.prefixes[0]
                  : fmt::format("{} and {} more", b.prefixes[0], b.prefixes.size() - 1);
  data.unlearned = unlearned_of(ends);
  data.validation = measured_sets(part, data_split::validation, share,
                                  {.sequence = p.numbers.batch.sequence, .seed = share.seed}, ends,
                                  index_cache(d.cache), data.name);
  for (const measured_set& set : data.validation)
    require_learned(*set.samples, "measure", p.numbers.batch.sequence);
  data.hash = [open] {
    xxh64 hash;
    const std::string text = open->identity().dump();
    hash.add(std::as_bytes(std::span(text)));
    return hash.value();
  };
  data.written = [open] { return open->written(); };
  return data;
}

/// Measures each set, whatever its weight; or, where a share is asked for that evaluations of a run
/// take, what these take of the blend.
inline std::vector<run_data> measure_sets(const program_view& p, const data_request& d,
                                          const std::string& folder, const measured_share& share) {
  const document_ends ends = ends_of(p, d, folder).ends;
  if (d.paths.empty())
    throw error(exit_code::usage, "eval needs data_request::paths PREFIX, the name of a data set");
  const blend all = parse_blend(d.paths, "data_request::paths");
  std::vector<run_data> data;
  if (share.each > 0) {
    data.push_back(measure_blend(p, d, all, ends, share));
    return data;
  }
  data.reserve(all.prefixes.size());
  for (const std::string& prefix : all.prefixes)
    data.push_back(measure_blend(p, d, parse_blend(std::span(&prefix, 1), "data_request::paths"),
                                 ends, share));
  return data;
}

} // namespace mc::detail
