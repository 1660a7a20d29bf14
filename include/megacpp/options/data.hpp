// The request that flags make of a run's data.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/request/data_request.hpp>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// The words of --data-path, or those of the file that --data-args-path names. Throws mc::error.
inline std::vector<std::string> words_of_data(const data_flags& d) {
  if (!d.data_args_path.given()) return d.data_path();
  if (d.data_path.given())
    throw error(exit_code::usage,
                "--data-path and --data-args-path contradict each other; give one");
  const mapped_file file(d.data_args_path(), exit_code::data);
  return words_in(written_text(file));
}

/// Data that training, validation and test have of their own: of the flags of parts, or of a JSON
/// file {"train": [...], "valid": [...], "test": [...]}, each a list or a text with blanks. Throws
/// mc::error.
inline std::optional<split_paths> parts_of_data(const data_flags& d) {
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
    return split_paths{d.train_data_path(), d.valid_data_path(), d.test_data_path()};
  }
  const json_value file = read_json(d.per_split_data_args_path(), exit_code::data);
  const json_value parts = file.as<json_value>();
  for (const auto& [name, words] : parts.raw().items())
    if (name != "train" && name != "valid" && name != "test")
      throw file.fault(
          fmt::format("has the field \"{}\", which is none of train, valid and test; "
                      "name it so, or leave it out",
                      name));
  const auto part = [&](const char* name) {
    if (!file.has(name)) return std::vector<std::string>();
    return file.raw()[name].is_string() ? words_in(file.field<std::string>(name))
                                        : file.field<std::vector<std::string>>(name);
  };
  return split_paths{part("train"), part("valid"), part("test")};
}

/// How the data are stored: as --data-type says, or indexed because their files are there. Random
/// tokens are asked for, or taken where speed is measured without data.
inline data_kind kind_of_data(const options& o) {
  const data_flags& d = o.data;
  if (d.data_type() == "chat") return data_kind::chat;
  if (d.mock_data()) return data_kind::random;
  const bool lists = d.data_args_path.given() || d.per_split_data_args_path.given() ||
                     d.train_data_path.given() || d.valid_data_path.given() ||
                     d.test_data_path.given();
  const bool sets = d.data_type.given() ? d.data_type() == "indexed"
                                        : lists || std::ranges::any_of(d.data_path(), is_set);
  if (sets) return data_kind::indexed;
  if (o.report.bench_json() && !d.data_path.given()) return data_kind::random;
  return d.data_type() == "u16"   ? data_kind::u16
         : d.data_type() == "i32" ? data_kind::i32
                                  : data_kind::text;
}

/// Throws mc::error(exit_code::usage) for flags of the command line that data of this kind have no
/// use for.
inline void refuse_beside_data(const options& o, data_kind kind) {
  const data_flags& d = o.data;
  using flags = std::initializer_list<std::pair<const char*, bool>>;
  const auto refuse = [](const flags& list, const auto& sentence) {
    for (const auto& [name, asked] : list)
      if (asked) throw error(exit_code::usage, sentence(name));
  };
  if (kind == data_kind::indexed) return;
  refuse({{"reset-position-ids", d.reset_position_ids.asked()},
          {"reset-attention-mask", d.reset_attention_mask.asked()},
          {"eod-mask-loss", d.eod_mask_loss.asked()},
          {"eod-token", d.eod_token.asked()},
          {"data-cache-path", d.data_cache_path.asked()},
          {"multiple-validation-sets", o.training.multiple_validation_sets.asked()}},
         [](const char* name) {
           return fmt::format(
               "--{} changes nothing without an indexed data set; leave it out, or "
               "prepare one by megacpp-data",
               name);
         });
  if (kind == data_kind::chat)
    return refuse({{"vocab-file", d.vocab_file.asked()},
                   {"merge-file", d.merge_file.asked()},
                   {"tokenizer-type",
                    d.tokenizer_type.asked() && d.tokenizer_type() != "HuggingFaceTokenizer"}},
                  [](const char* name) {
                    return fmt::format(
                        "--{} changes nothing for conversations, whose tokenizer and template are "
                        "those of the folder --tokenizer-model or --load; leave it out",
                        name);
                  });
  refuse({{"train-data-path", d.train_data_path.asked()},
          {"valid-data-path", d.valid_data_path.asked()},
          {"test-data-path", d.test_data_path.asked()},
          {"data-args-path", d.data_args_path.asked()},
          {"per-split-data-args-path", d.per_split_data_args_path.asked()}},
         [&](const char* name) {
           return d.mock_data()
                      ? fmt::format("--mock-data and --{} contradict each other; give one", name)
                      : fmt::format(
                            "--{} names indexed data sets or conversations, and --data-type "
                            "is {}; give the file by --data-path, or another --data-type",
                            name, d.data_type());
         });
}

/// A run reads one text, and no text beside random tokens. Throws mc::error(exit_code::usage).
inline void require_one_text(const options& o, data_kind kind) {
  if (kind == data_kind::indexed || kind == data_kind::chat) return;
  const std::vector<std::string>& paths = o.data.data_path();
  if (paths.size() > 1)
    throw error(exit_code::usage,
                fmt::format("--data-path takes one value, but is given \"{}\" and \"{}\"; give one",
                            printable(paths[0]), printable(paths[1])));
  if (o.data.mock_data() && !paths.empty())
    throw error(exit_code::usage, "--mock-data and --data-path contradict each other; give one");
}

} // namespace detail

inline tokenizer_request tokenizer_request_of(const data_flags& d) {
  return {.type = d.tokenizer_type.if_given(),
          .model = d.tokenizer_model.if_given(),
          .vocabulary = d.vocab_file.if_given(),
          .merges = d.merge_file.if_given()};
}

/// The data of a command that trains or evaluates. Throws mc::error for flags that contradict each
/// other or the kind of the data, and for files of names that cannot be read.
inline data_request data_request_of(const options& o, command what) {
  const data_flags& d = o.data;
  const bool trains = what == command::train;
  data_request r;
  r.kind = detail::kind_of_data(o);
  if (trains && r.kind != data_kind::chat && o.training.epochs.given())
    throw error(exit_code::usage,
                "--epochs counts conversations, and the data are none; give --train-iters or "
                "--train-samples");
  detail::refuse_beside_data(o, r.kind);
  if (trains) detail::require_one_text(o, r.kind);
  const bool lists = r.kind == data_kind::indexed || r.kind == data_kind::chat;
  if (trains && lists) r.by_split = detail::parts_of_data(d);
  if (!r.by_split) r.paths = lists ? detail::words_of_data(d) : d.data_path();
  r.split = d.split.if_given();
  r.cache = d.data_cache_path();
  r.tokenizer = tokenizer_request_of(d);
  r.reset_position_ids = d.reset_position_ids();
  r.reset_attention_mask = d.reset_attention_mask();
  r.eod_mask_loss = d.eod_mask_loss();
  r.learned = d.chat_loss() == "all" ? trained_on::all : trained_on::assistant;
  r.seed = static_cast<std::uint64_t>(o.model.seed());
  // A token that nothing asks for is refused where the command line has it, and not where a state
  // does.
  const bool asks = r.reset_position_ids || r.reset_attention_mask || r.eod_mask_loss;
  const bool used = r.tokenizer.kind() == "HuggingFaceTokenizer" ||
                    (asks && r.tokenizer.kind() != "NullTokenizer");
  if (d.eod_token.asked() || used) r.eod_token = d.eod_token.if_given();
  return r;
}

} // namespace mc
