// What a run trains on and what it is measured by: windows of one text or file of ids, samples of
// Megatron-LM's indexed data sets and their blends, or packed conversations.
#pragma once

#include <megacpp/data/conversation_file.hpp>
#include <megacpp/data/gpt_dataset.hpp>
#include <megacpp/data/packed_conversations.hpp>
#include <megacpp/data/windows.hpp>
#include <megacpp/options/settings.hpp>
#include <megacpp/train/run_tokenizer.hpp>
#include <megacpp/train/text.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace mc {

/// What a loss is measured on, with a name where there are several.
struct measured_set {
  std::string name;
  std::shared_ptr<const sample_set> samples;
  /// Samples that one evaluation takes where each goes on behind the one before, as in Megatron-LM;
  /// 0: each takes all, or some that are spread evenly.
  std::int64_t each = 0;
};

struct run_data {
  std::string name;
  text_data text; ///< what samples are windows of, if they are
  std::shared_ptr<const sample_set> training;
  std::vector<measured_set> validation;
  std::vector<measured_set> test;              ///< measured at the end
  std::string summary;                         ///< how much there is
  std::optional<std::int64_t> steps = {};      ///< of the epochs that were asked for
  std::shared_ptr<const tokenizer> words = {}; ///< of the tokens, where there is one
  std::string template_folder = {};            ///< whose chat template conversations have
  std::function<nlohmann::json()> identity;    ///< what tells it from other data
  std::function<std::uint64_t()> hash; ///< of the same tokens the same, whatever they are called
};

namespace detail {

inline bool is_set(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(prefix + ".idx", ignored);
}

/// The words of --data-path, or those of the file that --data-args-path names.
inline std::vector<std::string> words_of_data(const data_flags& d) {
  if (!d.data_args_path.given()) return d.data_path();
  if (d.data_path.given())
    throw error(exit_code::usage,
                "--data-path and --data-args-path contradict each other; give one");
  const mapped_file file(d.data_args_path(), exit_code::data);
  std::vector<std::string> words;
  std::string_view rest = as_text(file);
  constexpr std::string_view blanks = " \t\r\n";
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(blanks), rest.size()));
    if (rest.empty()) return words;
    const std::size_t end = std::min(rest.find_first_of(blanks), rest.size());
    words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
}

/// The words of one part of a run that has its own: of the flags of parts, or of a JSON file
/// {"train": [...], "valid": [...], "test": [...]}, each a list or a text with blanks.
struct words_of_parts {
  std::vector<std::string> train, valid, test;
};
inline std::optional<words_of_parts> parts_of_data(const data_flags& d) {
  const bool flags =
      d.train_data_path.given() || d.valid_data_path.given() || d.test_data_path.given();
  if (!flags && !d.per_split_data_args_path.given()) return std::nullopt;
  const auto refuse = [](const char* a, const char* b) {
    throw error(exit_code::usage,
                fmt::format("--{} and --{} contradict each other; give one", a, b));
  };
  const char* const mine = flags ? "train-data-path" : "per-split-data-args-path";
  if (d.data_path.given()) refuse("data-path", mine);
  if (d.data_args_path.given()) refuse("data-args-path", mine);
  if (d.split.given()) refuse("split", mine);
  if (flags) {
    if (d.per_split_data_args_path.given()) refuse(mine, "per-split-data-args-path");
    return words_of_parts{d.train_data_path(), d.valid_data_path(), d.test_data_path()};
  }
  const json_value file = read_json(d.per_split_data_args_path(), exit_code::data);
  for (const auto& [name, words] : file.as<json_value>().raw().items())
    if (name != "train" && name != "valid" && name != "test")
      throw file.fault(
          fmt::format("has the field \"{}\", which is none of train, valid and test; "
                      "name it so, or leave it out",
                      name));
  const auto part = [&](const char* name) {
    std::vector<std::string> words;
    if (!file.has(name)) return words;
    if (!file.raw()[name].is_string()) return file.field<std::vector<std::string>>(name);
    std::string word;
    for (const char c : file.field<std::string>(name) + ' ') {
      if (c != ' ' && c != '\t' && c != '\n') word += c;
      else if (!word.empty()) words.push_back(std::exchange(word, ""));
    }
    return words;
  };
  return words_of_parts{part("train"), part("valid"), part("test")};
}

/// Random tokens, and files of text or ids, are one: of --data-path alone.
inline void refuse_words_of_sets(const options& o) {
  const data_flags& d = o.data;
  for (const auto& [name, asked] :
       {std::pair{"train-data-path", d.train_data_path.asked()},
        std::pair{"valid-data-path", d.valid_data_path.asked()},
        std::pair{"test-data-path", d.test_data_path.asked()},
        std::pair{"data-args-path", d.data_args_path.asked()},
        std::pair{"per-split-data-args-path", d.per_split_data_args_path.asked()}})
    if (asked)
      throw error(
          exit_code::usage,
          d.mock_data()
              ? fmt::format("--mock-data and --{} contradict each other; give one", name)
              : fmt::format("--{} names indexed data sets or conversations, and --data-type "
                            "is {}; give the file by --data-path, or another --data-type",
                            name, d.data_type()));
}

/// Why nothing is validated, and what would be.
inline std::string nothing_to_validate(const options& o) {
  return parts_of_data(o.data)
             ? "there is nothing to validate; name data by --valid-data-path"
             : fmt::format("--split {} leaves nothing to validate; 90,10 would leave a tenth",
                           o.data.split());
}

/// Whether the data are indexed sets: as --data-type says, or because their files are there.
inline bool is_of_sets(const data_flags& d) {
  if (d.data_type() == "chat") return false;
  if (d.data_type.given()) return d.data_type() == "indexed";
  if (d.data_args_path.given() || parts_of_data(d)) return true;
  return std::ranges::any_of(d.data_path(), is_set);
}

/// `what` needs a program that tells documents apart.
inline void require_packed(const program_view& p, const char* what) {
  if (!p.numbers.batch.packed)
    throw error(
        exit_code::mismatch,
        fmt::format("attention within documents, as {} needs it, is not built into {}: build "
                    "it with PACKED of megacpp_add_preset, packed=1 of "
                    "examples/build_preset.sh, or batch.packed = true",
                    what, p.name));
}

/// What the tokenizer_config.json of a folder says a token is; "" for none.
inline std::string configured_token(const std::filesystem::path& folder, std::string_view name) {
  const std::filesystem::path path = folder / "tokenizer_config.json";
  std::error_code ignored;
  return std::filesystem::exists(path, ignored) ? spelled_token(read_json(path.string()), name, "")
                                                : "";
}

/// What the flags of --reset-position-ids and its like make of the ends of documents. As with
/// Megatron-LM, a HuggingFaceTokenizer ends them by its eos_token, and its pad_token is not
/// learned. Throws mc::error.
inline document_ends ends_of(const program_view& p, const options& o, const std::string& folder) {
  const data_flags& d = o.data;
  document_ends ends{.reset_position_ids = d.reset_position_ids(),
                     .reset_attention_mask = d.reset_attention_mask(),
                     .eod_mask_loss = d.eod_mask_loss()};
  if (ends.reset_attention_mask) require_packed(p, "--reset-attention-mask");
  const bool asks = ends.reset_position_ids || ends.reset_attention_mask || ends.eod_mask_loss;
  const bool configured = d.tokenizer_type() == "HuggingFaceTokenizer";
  if (d.tokenizer_type() == "NullTokenizer") {
    if (d.eod_token.asked())
      throw error(exit_code::usage,
                  "--eod-token is a token of a tokenizer, and NullTokenizer has none: the last id "
                  "of the vocabulary ends documents; leave one of them out");
    ends.eod = p.vocabulary - 1;
    return ends;
  }
  if (!asks && !configured) {
    if (d.eod_token.asked())
      throw error(exit_code::usage,
                  "--eod-token changes nothing without --reset-position-ids, "
                  "--reset-attention-mask or --eod-mask-loss; leave it out");
    return ends;
  }
  const auto t = run_tokenizer(d, folder);
  if (!t)
    throw error(exit_code::usage,
                "--reset-position-ids, --reset-attention-mask and --eod-mask-loss need to know the "
                "token that ends a document; name the tokenizer by --tokenizer-model");
  std::string end = d.eod_token();
  if (configured) {
    const std::string& own = d.tokenizer_model.given() ? d.tokenizer_model() : folder;
    if (end.empty()) end = configured_token(own, "eos_token");
    if (const std::string pad = configured_token(own, "pad_token"); !pad.empty())
      ends.pad = t->id_of(pad);
  }
  if (asks || ends.pad) ends.eod = end_of_document(*t, end);
  return ends;
}

/// Opens each set once, however often it is named.
class opened_sets {
public:
  explicit opened_sets(std::int64_t vocabulary) : vocabulary_(vocabulary) {}
  /// Throws mc::error(exit_code::data) for a set that cannot be read or has no token.
  std::shared_ptr<const indexed_dataset> operator()(const std::string& prefix) {
    const auto at = std::ranges::find(sets_, prefix, &named::first);
    if (at != sets_.end()) return at->second;
    auto set = std::make_shared<const indexed_dataset>(prefix, vocabulary_);
    if (set->tokens() == 0)
      throw error(exit_code::data, fmt::format("{} has no token; leave it out", prefix));
    return sets_.emplace_back(prefix, std::move(set)).second;
  }

  /// XXH64 of each set's index and of pieces of its tokens, spread evenly.
  nlohmann::json identity() const {
    constexpr std::size_t piece = 64 << 10, most = 1024;
    nlohmann::json all = nlohmann::json::array();
    for (const auto& [prefix, set] : sets_) {
      xxh64 hash;
      hash.add(set->idx_bytes());
      const std::span<const std::byte> bytes = set->bin_bytes();
      const std::size_t pieces = (bytes.size() + piece - 1) / piece, n = std::min(pieces, most);
      for (std::size_t i = 0; i < n; ++i) {
        set->check_unchanged();
        const std::size_t at = (n == pieces ? i : i * (pieces / n)) * piece;
        hash.add(bytes.subspan(at, std::min(piece, bytes.size() - at)));
      }
      all.push_back({{"tokens", set->tokens()}, {"xxh64", fmt::format("{:016x}", hash.value())}});
    }
    return all;
  }
  std::int64_t tokens() const {
    std::int64_t n = 0;
    for (const auto& [prefix, set] : sets_) n += set->tokens();
    return n;
  }

private:
  std::int64_t vocabulary_;
  using named = std::pair<std::string, std::shared_ptr<const indexed_dataset>>;
  std::vector<named> sets_; // in the order in which they were named
};

/// One part of a blend's sets: which of training, validation and test, or all of them.
enum class data_part : std::uint8_t { training, validation, test, all };

inline std::string_view name_of(data_part part) {
  constexpr std::string_view names[] = {"training", "validation", "test", "whole"};
  return names[static_cast<unsigned>(part)];
}

/// The sets of a blend, with what a part has of each; those without anything are left out.
struct sets_of_part {
  std::vector<dataset_part> sets;
  std::vector<double> weights;
  std::int64_t sequences = 0;
};
inline sets_of_part part_of(const blend& b, data_part which, std::string_view split_text,
                            opened_sets& open) {
  sets_of_part part;
  for (std::size_t i = 0; i < b.prefixes.size(); ++i) {
    const auto set = open(b.prefixes[i]);
    const split_ranges ranges = split(split_text, set->sequences());
    const token_range range = which == data_part::training     ? ranges.train
                              : which == data_part::validation ? ranges.valid
                              : which == data_part::test       ? ranges.test
                                                               : token_range{0, set->sequences()};
    if (range.empty()) continue;
    part.sets.push_back({set, range});
    part.sequences += range.size();
    if (!b.weights.empty()) part.weights.push_back(b.weights[i]);
  }
  return part;
}

inline void require_samples(const measured_set& s) {
  if (s.samples->size() == 0)
    throw error(
        exit_code::data,
        fmt::format("{} has no token to predict; give it more documents, or leave it out", s.name));
}

/// Samples of sets for a run of so many steps, as Megatron-LM counts them.
inline run_data open_sets(const program_view& p, const options& o, const training_settings& t,
                          const std::string& folder) {
  const data_flags& d = o.data;
  if (o.model.seed() >= std::int64_t{1} << 32)
    throw error(exit_code::usage,
                fmt::format("--seed is {}, but the order of indexed data sets is drawn from a seed "
                            "below 2^32; give a smaller one",
                            o.model.seed()));
  const std::optional<words_of_parts> parts = parts_of_data(d);
  const std::vector<std::string> words = parts ? parts->train : words_of_data(d);
  if (words.empty())
    throw error(exit_code::usage,
                "train needs --data-path PREFIX, the name of a data set without .bin "
                "and .idx, or --train-data-path");
  const document_ends ends = ends_of(p, o, folder);
  const index_cache cache(d.data_cache_path());
  const auto open = std::make_shared<opened_sets>(p.vocabulary);
  gpt_request request{.sequence = p.numbers.batch.sequence,
                      .seed = static_cast<std::uint32_t>(o.model.seed())};
  const char* const flag = parts ? "--train-data-path" : "--data-path";
  // A part's only set has no weight, whatever was given, as in Megatron-LM.
  const auto parse_own = [](const std::vector<std::string>& own, std::string_view of) {
    blend b = parse_blend(own, of);
    if (b.prefixes.size() == 1) b.weights.clear();
    return b;
  };
  const blend trained = parts ? parse_own(words, flag) : parse_blend(words, flag);
  const auto part = [&](data_part which) {
    if (!parts) return part_of(trained, which, d.split(), *open);
    const std::vector<std::string>& own = which == data_part::training     ? parts->train
                                          : which == data_part::validation ? parts->valid
                                                                           : parts->test;
    if (own.empty()) return sets_of_part();
    return part_of(
        parse_blend(own, which == data_part::validation ? "--valid-data-path" : "--test-data-path"),
        data_part::all, d.split(), *open);
  };
  run_data data;
  if (o.training.sample_interval.given()) data.words = run_tokenizer(d, folder);
  const sets_of_part of_training = part(data_part::training);
  if (of_training.sets.empty())
    throw error(exit_code::data,
                fmt::format("--split {} leaves no document of {} to train on; give more data or "
                            "another --split",
                            d.split(), trained.prefixes[0]));
  // Of the number that is asked for, not of whole batches alone, as in Megatron-LM: epochs and
  // shares of a blend follow from it.
  request.samples = o.training.train_samples.given() ? o.training.train_samples() : t.samples();
  data.training = blended_samples(of_training.sets, of_training.weights, request, ends, cache);
  data.name = data.training->name();
  if (data.training->size() < t.samples())
    throw error(exit_code::data,
                fmt::format("{} has {} samples without weights, but the run trains on {}; give "
                            "weights, with which sets are repeated, or fewer --train-iters",
                            data.name, data.training->size(), t.samples()));

  const std::int64_t iters = o.training.eval_iters(), batch = t.batches.last;
  const bool whole = !o.training.eval_iters.given() || o.training.full_validation();
  const auto measured = [&](data_part which, std::int64_t evaluations) {
    std::vector<measured_set> sets;
    const sets_of_part of = part(which);
    if (of.sets.empty()) return sets;
    gpt_request r = request;
    r.samples.reset();
    if (!whole) r.samples = evaluations * iters * batch;
    else r.drop_last = false; // each token is predicted
    const std::int64_t each = whole ? 0 : iters * batch;
    if (of.sets.size() == 1 || whole || o.training.multiple_validation_sets()) {
      for (const dataset_part& one : of.sets)
        sets.push_back(
            {one.data->name(), blended_samples({one}, {}, r, ends, cache, name_of(which)), each});
    } else {
      sets.push_back(
          {data.name, blended_samples(of.sets, of.weights, r, ends, cache, name_of(which)), each});
    }
    return sets;
  };
  if (whole || iters > 0) {
    data.validation = measured(data_part::validation, t.steps / o.training.eval_interval() + 1);
    data.test = measured(data_part::test, 1);
  }
  for (const measured_set& s : data.validation) require_samples(s);
  for (const measured_set& s : data.test) require_samples(s);
  std::int64_t validated = 0;
  for (const measured_set& s : data.validation) validated += s.samples->size();
  data.summary = fmt::format("{} samples of {} tokens to train on, {} to validate",
                             data.training->size(), request.sequence, validated);
  data.identity = [open, name = data.name, weights = trained.weights] {
    nlohmann::json of{{"name", name}, {"tokens", open->tokens()}, {"sets", open->identity()}};
    if (!weights.empty()) of["weights"] = weights;
    return of;
  };
  data.hash = [open, weights = trained.weights] {
    xxh64 hash;
    const std::string text = fmt::format("{} {}", open->identity().dump(), fmt::join(weights, " "));
    hash.add(std::as_bytes(std::span(text)));
    return hash.value();
  };
  return data;
}

/// Where there is neither a file nor a set of a name of --data-path. Throws mc::error.
inline void require_files(const data_flags& d) {
  for (const std::string& path : d.data_path()) {
    std::error_code ignored;
    const std::filesystem::path file(path);
    if ((file.extension() == ".bin" || file.extension() == ".idx") &&
        is_set(std::filesystem::path(file).replace_extension().string()))
      throw error(exit_code::usage,
                  fmt::format("--data-path names the data set {} by one of its files; leave {} out",
                              path, file.extension().string()));
    if (!path.empty() && !std::filesystem::exists(file, ignored))
      throw error(exit_code::data,
                  fmt::format("{} does not exist, and neither does a data set {}.idx; check "
                              "--data-path",
                              path, path));
  }
}

/// What is said of the documents of data sets changes nothing where there is none.
inline void refuse_flags_of_sets(const options& o) {
  const data_flags& d = o.data;
  for (const auto& [name, asked] :
       {std::pair{"reset-position-ids", d.reset_position_ids.asked()},
        std::pair{"reset-attention-mask", d.reset_attention_mask.asked()},
        std::pair{"eod-mask-loss", d.eod_mask_loss.asked()},
        std::pair{"eod-token", d.eod_token.asked()},
        std::pair{"data-cache-path", d.data_cache_path.asked()},
        std::pair{"multiple-validation-sets", o.training.multiple_validation_sets.asked()}})
    if (asked)
      throw error(exit_code::usage,
                  fmt::format("--{} changes nothing without an indexed data set; leave it out, or "
                              "prepare one by megacpp-data",
                              name));
}

/// The folder whose tokenizer and template conversations are written by; "" is none.
inline std::string chat_folder(const data_flags& d, const std::string& folder) {
  if (d.tokenizer_model.given()) return d.tokenizer_model();
  return !folder.empty() && has_tokenizer(folder) ? folder : "";
}

/// Conversations are written by the tokenizer and the template of one folder.
inline void refuse_flags_beside_chat(const options& o) {
  refuse_flags_of_sets(o);
  const data_flags& d = o.data;
  const bool same = d.tokenizer_type() == "HuggingFaceTokenizer";
  for (const auto& [name, asked] : {std::pair{"vocab-file", d.vocab_file.asked()},
                                    std::pair{"merge-file", d.merge_file.asked()},
                                    std::pair{"tokenizer-type", d.tokenizer_type.asked() && !same}})
    if (asked)
      throw error(
          exit_code::usage,
          fmt::format("--{} changes nothing for conversations, whose tokenizer and template "
                      "are those of the folder --tokenizer-model or --load; leave it out",
                      name));
}

/// How conversations become tokens: by the template of a folder, or as they are.
struct chat_words {
  std::string folder; ///< "" is none
  std::shared_ptr<const tokenizer> words;
  conversation_form form;
};
inline chat_words words_of_chat(const data_flags& d, const std::string& folder,
                                std::int64_t vocabulary) {
  chat_words w;
  w.form.vocabulary = vocabulary;
  w.form.trained = d.chat_loss() == "all" ? trained_on::all : trained_on::assistant;
  w.folder = chat_folder(d, folder);
  if (!w.folder.empty()) {
    w.words = open_tokenizer(w.folder);
    w.form.take_template(w.folder);
    w.form.words = w.words.get();
  }
  return w;
}

inline std::shared_ptr<const packed_conversations> packed(
    const std::string& name, std::shared_ptr<const conversation_store> all, token_range part,
    std::int64_t sequence, std::optional<std::uint64_t> seed) {
  return std::make_shared<const packed_conversations>(name, std::move(all), part, sequence, seed,
                                                      seed ? 0 : 1);
}

/// Packed conversations.
inline run_data open_conversations(const program_view& p, const options& o,
                                   const training_settings& t, const std::string& folder,
                                   int threads) {
  require_packed(p, "conversations");
  refuse_flags_beside_chat(o);
  const std::optional<words_of_parts> parts = parts_of_data(o.data);
  const std::vector<std::string> paths = parts ? parts->train : words_of_data(o.data);
  if (paths.empty())
    throw error(exit_code::usage, "train needs --data-path FILE, conversations as JSON lines");
  const chat_words w = words_of_chat(o.data, folder, p.vocabulary);
  const std::int64_t s = p.numbers.batch.sequence;
  const auto all = conversations_of(paths, w.form, threads);
  const split_ranges ranges =
      parts ? split_ranges{{0, all->size()}, {}, {}} : split(o.data.split(), all->size());
  if (ranges.train.empty())
    throw error(exit_code::data, fmt::format("--split {} leaves no conversation of {} to train on",
                                             o.data.split(), paths[0]));
  run_data data;
  data.name =
      paths.size() == 1 ? paths[0] : fmt::format("{} and {} more", paths[0], paths.size() - 1);
  const auto training = packed(data.name, all, ranges.train, s, t.numbers.seed);
  data.training = training;
  data.words = w.words;
  if (w.form.style) data.template_folder = w.folder;
  data.summary = sentence_of(training->counts(), s);
  const auto measure = [&](const std::string& name,
                           const std::shared_ptr<const conversation_store>& of, token_range part) {
    return measured_set{name, packed(name, of, part, s, std::nullopt)};
  };
  if (!ranges.valid.empty()) data.validation.push_back(measure(data.name, all, ranges.valid));
  if (parts) {
    for (const std::string& path : parts->valid) {
      const auto of = conversations_of({path}, w.form, threads);
      data.validation.push_back(measure(path, of, {0, of->size()}));
    }
    for (const std::string& path : parts->test) {
      const auto of = conversations_of({path}, w.form, threads);
      data.test.push_back(measure(path, of, {0, of->size()}));
    }
  }
  if (o.training.epochs.given()) {
    const std::int64_t samples = o.training.epochs() * training->per_epoch();
    data.steps = steps_for_samples(t.batches, samples);
  }
  data.identity = [all, name = data.name, part = ranges.train] {
    return nlohmann::json{{"name", name},
                          {"tokens", all->tokens()},
                          {"part", {part.begin, part.end}},
                          {"xxh64", fmt::format("{:016x}", all->hash())}};
  };
  data.hash = [all] { return all->hash(); };
  return data;
}

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
  return data;
}

} // namespace detail

/// What the ranks of a process read: opened by the one that asks first, while others wait, and
/// shared. Copies are of the same.
template <class T> class opened_once {
public:
  template <class Open> std::shared_ptr<const T> operator()(const Open& open) const {
    const std::scoped_lock hold(all_->lock);
    if (!all_->opened) all_->opened = std::make_shared<const T>(open());
    return all_->opened;
  }

private:
  struct state {
    std::mutex lock;
    std::shared_ptr<const T> opened;
  };
  std::shared_ptr<state> all_ = std::make_shared<state>();
};

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

/// Opens what `eval` measures: each data set or file of --data-path. `threads` turn texts into
/// tokens. Throws mc::error.
inline std::vector<run_data> open_evaluation_data(const program_view& p, const options& o,
                                                  const std::string& folder,
                                                  const std::optional<character_set>& characters,
                                                  int threads) {
  std::vector<run_data> all;
  if (o.data.data_type() == "chat") {
    detail::require_packed(p, "conversations");
    detail::refuse_flags_beside_chat(o);
    const detail::chat_words w = detail::words_of_chat(o.data, folder, p.vocabulary);
    const std::vector<std::string> paths = detail::words_of_data(o.data);
    if (paths.empty())
      throw error(exit_code::usage, "eval needs --data-path FILE, conversations as JSON lines");
    for (const std::string& path : paths) {
      const auto of = conversations_of({path}, w.form, threads);
      const token_range part = o.data.split.given() ? split(o.data.split(), of->size()).valid
                                                    : token_range{0, of->size()};
      run_data data;
      data.name = path;
      data.validation.push_back(
          {path, detail::packed(path, of, part, p.numbers.batch.sequence, std::nullopt)});
      data.hash = [of] { return of->hash(); };
      all.push_back(std::move(data));
    }
    return all;
  }
  if (!detail::is_of_sets(o.data)) {
    detail::refuse_flags_of_sets(o);
    detail::refuse_words_of_sets(o);
    detail::require_files(o.data);
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
      all.push_back(std::move(data));
    }
    return all;
  }
  detail::refuse_characters(o, characters.has_value());
  const document_ends ends = detail::ends_of(p, o, folder);
  const std::vector<std::string> words = detail::words_of_data(o.data);
  if (words.empty())
    throw error(exit_code::usage, "eval needs --data-path PREFIX, the name of a data set");
  for (const std::string& prefix : words) {
    const auto open = std::make_shared<detail::opened_sets>(p.vocabulary);
    const detail::sets_of_part part = detail::part_of(
        parse_blend(std::span(&prefix, 1), "--data-path"),
        o.data.split.given() ? detail::data_part::validation : detail::data_part::all,
        o.data.split(), *open);
    if (part.sets.empty())
      throw error(exit_code::data,
                  fmt::format("--split {} leaves no document of {} to measure; give another",
                              o.data.split(), prefix));
    run_data data;
    data.name = prefix;
    data.validation.push_back(
        {prefix,
         blended_samples(part.sets, {}, {.sequence = p.numbers.batch.sequence, .drop_last = false},
                         ends, index_cache(o.data.data_cache_path()), "validation")});
    detail::require_samples(data.validation.back());
    data.hash = [open] {
      xxh64 hash;
      const std::string text = open->identity().dump();
      hash.add(std::as_bytes(std::span(text)));
      return hash.value();
    };
    all.push_back(std::move(data));
  }
  return all;
}

} // namespace mc
