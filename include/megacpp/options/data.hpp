// The request that flags make of a run's data.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/request/data_request.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// The words of a text with blanks between them.
inline std::vector<std::string> words_in(std::string_view rest) {
  std::vector<std::string> words;
  constexpr std::string_view blanks = " \t\r\n";
  while (true) {
    rest.remove_prefix(std::min(rest.find_first_not_of(blanks), rest.size()));
    if (rest.empty()) return words;
    const std::size_t end = std::min(rest.find_first_of(blanks), rest.size());
    words.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end);
  }
}

/// The words of --data-path, or those of the file that --data-args-path names. Throws mc::error.
inline std::vector<std::string> words_of_data(const data_flags& d) {
  if (!d.data_args_path.given()) return d.data_path();
  const mapped_file file(d.data_args_path(), exit_code::data);
  return words_in(written_text(file));
}

/// Data that training, validation and test have of their own: of the flags of parts, or of a JSON
/// file {"train": [...], "valid": [...], "test": [...]}, each a list or a text with blanks. Throws
/// mc::error.
inline std::optional<split_paths> split_paths_of(const data_flags& d) {
  const bool flags =
      d.train_data_path.given() || d.valid_data_path.given() || d.test_data_path.given();
  if (!flags && !d.per_split_data_args_path.given()) return std::nullopt;
  if (flags) return split_paths{d.train_data_path(), d.valid_data_path(), d.test_data_path()};
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

/// Throws mc::error(exit_code::usage) for several files, where a run reads one.
inline void require_one_file(const options& o, data_kind kind) {
  if (kind == data_kind::indexed || kind == data_kind::chat) return;
  const std::vector<std::string>& paths = o.data.data_path();
  if (paths.size() > 1)
    throw error(exit_code::usage,
                fmt::format("--data-path takes one value, but is given \"{}\" and \"{}\"; give one",
                            printable(paths[0]), printable(paths[1])));
}

} // namespace detail

inline tokenizer_request tokenizer_request_of(const data_flags& d) {
  return {.type = d.tokenizer_type.if_given(),
          .model = d.tokenizer_model.if_given(),
          .vocabulary = d.vocab_file.if_given(),
          .merges = d.merge_file.if_given()};
}

/// The data of a command that trains or evaluates, by flags that keep to the rules. Throws
/// mc::error for files of names that cannot be read.
inline data_request data_request_of(const options& o, command what) {
  const data_flags& d = o.data;
  const bool trains = what == command::train;
  data_request r;
  r.kind = kind_of_data(o);
  if (trains) detail::require_one_file(o, r.kind);
  const bool lists = r.kind == data_kind::indexed || r.kind == data_kind::chat;
  if (trains && lists) r.by_split = detail::split_paths_of(d);
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
