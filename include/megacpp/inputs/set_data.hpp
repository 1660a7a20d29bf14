// Samples of Megatron-LM's indexed data sets and their blends.
#pragma once

#include <megacpp/chat/configured_token.hpp>
#include <megacpp/inputs/named_data.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/sets/blending.hpp>
#include <megacpp/sets/opened_sets.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

namespace mc::detail {

/// The rules by which documents end, and a note on the tokenizer, to be told.
struct ends_of_run {
  document_ends ends;
  std::string note;
};

/// Returns the ends of documents that a request asks for. As with Megatron-LM, a
/// HuggingFaceTokenizer ends them by its eos_token, and its pad_token is not learned. Throws
/// mc::error.
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
      throw error(exit_code::usage,
                  fmt::format("tokenizer_request::type {} is of a file of SentencePiece, which is "
                              "not read here, so that the token that ends a document is not known; "
                              "give a folder with a tokenizer.json as tokenizer_request::model, "
                              "and tokenizer_request::type HuggingFaceTokenizer",
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
                  "the last id of the vocabulary ends documents; leave one of them out");
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
                "data_request::eod_mask_loss need to know the token that ends a document; name "
                "the tokenizer by tokenizer_request::model");
  std::string end = d.eod_token.value_or("");
  if (configured) {
    const std::string& own = r.model ? *r.model : folder;
    if (end.empty()) end = configured_token(own, "eos_token");
    if (const std::string pad = configured_token(own, "pad_token"); !pad.empty())
      ends.pad = t->id_of(pad);
  }
  if (asks || ends.pad) ends.eod = end_of_document(*t, end);
  if (asks && ends.eod >= p.vocabulary)
    throw error(exit_code::mismatch,
                fmt::format("documents would end by token {}, but the vocabulary of {} has {}; "
                            "name the tokenizer of the model by tokenizer_request::model",
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

/// Returns a note where a token is to end documents, and none of the first documents ends with it.
inline std::string note_of_ends(const sets_of_split& of, const document_ends& ends,
                                const tokenizer_request& r) {
  const std::optional<std::int32_t> last = other_end(of, *ends.eod);
  if (!last) return "";
  return fmt::format(
      "; data_request::reset_position_ids and its like look for the token {}, and no document that "
      "was looked at ends with it, but one with {}: let megacpp-data append it{}",
      *ends.eod, *last,
      r.kind() == "NullTokenizer" ? "" : ", or name by data_request::eod_token what ends them");
}

/// The samples of data sets that an evaluation measures.
struct measured_samples {
  std::int64_t per_evaluation = 0; ///< 0: all
  std::int64_t evaluations = 1;    ///< of the run; each goes on behind the one before
  std::int64_t number = 0;         ///< number of this evaluation among them
  bool by_set = false;             ///< so many of each set, and not of the blend of all
  std::uint32_t seed = 1234;       ///< draws the order of samples
};

/// Throws mc::error(exit_code::data) for a set without a token that is learned: the mean loss over
/// such tokens would be of none. `to` says what the set is for.
inline void require_learned(const sample_set& s, std::string_view to, std::int64_t sequence) {
  if (s.size() == 0)
    throw error(exit_code::data,
                fmt::format("{} has no token to predict; give it more documents, or leave it out",
                            s.name()));
  if (!has_label(s, sequence))
    throw error(
        exit_code::data,
        fmt::format(
            "{} has no token to learn in what there is to {}: every token follows the end of a "
            "document, so that data_request::eod_mask_loss leaves it out, or is the pad_token of "
            "the tokenizer; give other documents or another data_request::split",
            s.name(), to));
}

/// Returns the sets that evaluations measure: each set of a split, or the blend of all. `to` says
/// what they are for. Throws mc::error.
inline std::vector<measured_set> measured_sets(const sets_of_split& of, data_split which,
                                               std::string_view to, const measured_samples& taken,
                                               gpt_parameters request, const document_ends& ends,
                                               const index_cache& cache, const std::string& name) {
  std::vector<measured_set> sets;
  const std::int64_t n = taken.per_evaluation;
  request.samples.reset();
  if (n > 0) request.samples = taken.evaluations * n;
  else request.drop_last = false; // each token is predicted
  const auto add = [&](const std::string& called, const std::vector<dataset_range>& some,
                       const std::vector<double>& weights) {
    sets.push_back(
        {called, blended_samples(some, weights, request, ends, cache, name_of(which)), n});
  };
  if (of.sets.size() > 1 && n > 0 && !taken.by_set) add(name, of.sets, of.weights);
  else
    for (const dataset_range& one : of.sets) add(one.data->name(), {one}, {});
  for (const measured_set& s : sets) require_learned(*s.samples, to, request.sequence);
  return sets;
}

/// Returns the error of a run that takes more samples than sets without weights have, which are
/// read once. A run that goes on cannot be given weights, since its samples would be others.
inline error beyond_one_epoch(const loop_request& t, const sample_set& all) {
  std::int64_t most = steps_of_samples(t.batches, all.size());
  while (most > 0 && t.batches.samples_of(most, 0) > all.size()) --most;
  return {exit_code::data,
          fmt::format(
              "{} have {} samples, for without weights each set is read once, but the run takes "
              "{}; give {} {} at most, or, to a new run, weights (start_request::finetune begins "
              "one with what is learned): with these, sets are read again",
              all.name(), all.size(), t.samples(),
              t.samples_asked ? "loop_request::samples_asked" : "loop_request::steps",
              t.samples_asked ? all.size() : most)};
}

/// Returns the data sets that a run trains on. Throws mc::error(exit_code::usage).
inline blend trained_blend(const data_request& d) {
  const std::vector<std::string>& paths = d.by_split ? d.by_split->train : d.paths;
  if (paths.empty())
    throw error(exit_code::usage,
                "train needs data_request::paths PREFIX, the name of a data set without .bin and "
                ".idx, or split_paths::train");
  blend b = parse_blend(paths, d.by_split ? "split_paths::train" : "data_request::paths");
  // A split with one set gives it no weight, whatever was given, as in Megatron-LM.
  if (d.by_split && b.prefixes.size() == 1) b.weights.clear();
  return b;
}

/// Opens the sets of a run that have documents for a use. Throws mc::error.
inline sets_of_split sets_for(data_split use, const data_request& d, const blend& trained,
                              opened_sets& open) {
  const std::string shares = d.training_split();
  if (!d.by_split) return sets_of(trained, use, shares, open);
  if (use == data_split::training) return sets_of(trained, data_split::all, shares, open);
  const bool validation = use == data_split::validation;
  const std::vector<std::string>& paths = validation ? d.by_split->valid : d.by_split->test;
  if (paths.empty()) return {};
  return sets_of(parse_blend(paths, validation ? "split_paths::valid" : "split_paths::test"),
                 data_split::all, shares, open);
}

/// Gives data what tells them from others: all sets, and how those of a blend are put together. The
/// data of an evaluation have no identity, which states keep.
inline void identify(run_data& data, const std::shared_ptr<opened_sets>& open, const blend& b) {
  const std::vector<std::ptrdiff_t> numbers = open->numbers_of(b.prefixes);
  const auto of_training = [open, name = data.name, weights = b.weights, numbers,
                            training = data.training] {
    nlohmann::json of{{"name", name},
                      {"tokens", open->tokens()},
                      {"sets", open->identity()},
                      {"trained", numbers},
                      {"order", training->order()}};
    if (!weights.empty()) of["weights"] = weights;
    return of;
  };
  if (data.training) data.identity = of_training;
  data.hash = [open, weights = b.weights, numbers] {
    const std::string text = fmt::format("{} {} {}", open->identity().dump(),
                                         fmt::join(weights, " "), fmt::join(numbers, " "));
    return xxh64::of(std::as_bytes(std::span(text)));
  };
  data.written = [open] { return open->written(); };
}

/// Opens the samples of a run of so many steps, as Megatron-LM counts them. Throws mc::error.
inline run_data open_sets(const program_view& p, const data_request& d, const loop_request& t,
                          const std::string& folder) {
  if (d.seed >= std::uint64_t{1} << 32)
    throw error(exit_code::usage,
                fmt::format("data_request::seed is {}, but the order of indexed data sets is drawn "
                            "from a seed below 2^32; give a smaller one",
                            d.seed));
  const blend trained = trained_blend(d);
  const auto open = std::make_shared<opened_sets>(p.vocabulary);
  const ends_of_run of_run = ends_of(p, d, folder);
  const document_ends& ends = of_run.ends;
  const index_cache cache(d.cache);
  gpt_parameters request{.sequence = p.numbers.batch.sequence,
                         .seed = static_cast<std::uint32_t>(d.seed)};
  run_data data;
  data.type = "indexed";
  if (t.sample_interval > 0) data.tokenizer = run_tokenizer(d.tokenizer, folder);
  const sets_of_split of_training = sets_for(data_split::training, d, trained, *open);
  if (of_training.sets.empty())
    throw error(exit_code::data,
                fmt::format("data_request::split {} leaves no document of {} to train on; give "
                            "more data or another data_request::split",
                            d.training_split(), trained.prefixes[0]));
  // Epochs and shares of a blend follow from the number of samples that is asked for, which need
  // not be that of whole batches, as in Megatron-LM.
  request.samples = t.samples_asked.value_or(t.samples());
  data.training = blended_samples(of_training.sets, of_training.weights, request, ends, cache);
  data.name = data.training->name();
  if (data.training->size() < t.samples()) throw beyond_one_epoch(t, *data.training);
  require_learned(*data.training, "train on", request.sequence);

  const auto measure = [&](data_split use, std::int64_t evaluations, const char* to) {
    return measured_sets(sets_for(use, d, trained, *open), use, to,
                         {.per_evaluation = t.validates_some() ? *t.eval_iters * t.batches.last : 0,
                          .evaluations = evaluations,
                          .by_set = t.by_set},
                         request, ends, cache, data.name);
  };
  if (!t.validates_some() || *t.eval_iters > 0) {
    data.validation =
        measure(data_split::validation,
                t.compares_evaluations() ? 1 : t.steps / t.eval_interval + 1, "validate");
    data.test = measure(data_split::test, 1, "test");
  }
  std::int64_t validated = 0;
  for (const measured_set& s : data.validation) validated += s.samples->size();
  data.summary = fmt::format("{} samples of {} tokens to train on, {} to validate",
                             data.training->size(), request.sequence, validated);
  data.summary += of_run.note;
  data.unlearned = unlearned_of(ends);
  if (ends.reset_position_ids || ends.reset_attention_mask || ends.eod_mask_loss)
    data.summary += note_of_ends(of_training, ends, d.tokenizer);
  identify(data, open, trained);
  return data;
}

/// Opens the data sets that `eval` measures: each whole, whatever its weight, or the samples of
/// their blend that an evaluation of a run takes. A split leaves the documents of validation.
/// Throws mc::error.
inline std::vector<run_data> measure_sets(const program_view& p, const data_request& d,
                                          const std::string& folder,
                                          const measured_samples& taken) {
  const document_ends ends = ends_of(p, d, folder).ends;
  if (d.paths.empty())
    throw error(exit_code::usage, "eval needs data_request::paths PREFIX, the name of a data set");
  std::vector<blend> blends{parse_blend(d.paths, "data_request::paths")};
  if (taken.per_evaluation == 0) {
    const std::vector<std::string> each = blends[0].prefixes;
    blends.clear();
    for (const std::string& prefix : each) blends.push_back({{prefix}, {}});
  }
  std::vector<run_data> all;
  for (const blend& b : blends) {
    const auto open = std::make_shared<opened_sets>(p.vocabulary);
    const sets_of_split of =
        sets_of(b, d.split ? data_split::validation : data_split::all, d.training_split(), *open);
    if (of.sets.empty())
      throw error(
          exit_code::data,
          fmt::format("data_request::split {} leaves no document of {} to measure; give another",
                      d.training_split(), b.prefixes[0]));
    run_data data;
    data.name = name_of_all(b.prefixes);
    data.unlearned = unlearned_of(ends);
    data.validation = measured_sets(of, data_split::validation, "measure", taken,
                                    {.sequence = p.numbers.batch.sequence, .seed = taken.seed},
                                    ends, index_cache(d.cache), data.name);
    identify(data, open, b);
    all.push_back(std::move(data));
  }
  return all;
}

} // namespace mc::detail
