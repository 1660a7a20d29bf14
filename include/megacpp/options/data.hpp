// The request of a run's data, made from flags.
#pragma once

#include <megacpp/inputs/named_data.hpp>
#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/chat_keys.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/options/rules.hpp>
#include <megacpp/request/data_request.hpp>

#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

namespace mc {

namespace detail {

/// Returns the arguments in a text, which stand between blanks.
inline std::vector<std::string> arguments_in(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Returns the arguments of --data-path, or those in the file that --data-args-path names. Throws
/// mc::error.
inline std::vector<std::string> data_arguments(const data_flags& d) {
  if (!d.data_args_path.given()) return d.data_path();
  const mapped_file file(d.data_args_path(), exit_code::data);
  return arguments_in(std::string(written_text(file)));
}

/// Returns data that training, validation and test have of their own: from the flags of splits, or
/// from a JSON file {"train": [...], "valid": [...], "test": [...]}, each a list or a text with
/// blanks. Throws mc::error.
inline std::optional<split_paths> split_paths_of(const data_flags& d) {
  if (d.train_data_path.given() || d.valid_data_path.given() || d.test_data_path.given())
    return split_paths{d.train_data_path(), d.valid_data_path(), d.test_data_path()};
  if (!d.per_split_data_args_path.given()) return std::nullopt;
  const json_value file = read_json(d.per_split_data_args_path(), exit_code::data);
  const json_value splits = file.as<json_value>();
  for (const auto& [name, arguments] : splits.raw().items())
    if (name != "train" && name != "valid" && name != "test")
      throw file.fault(
          fmt::format("has the field \"{}\", which is none of train, valid and test; "
                      "name it so, or leave it out",
                      name));
  const auto split = [&](const char* name) {
    if (!file.has(name)) return std::vector<std::string>();
    return file.raw()[name].is_string() ? arguments_in(file.field<std::string>(name))
                                        : file.field<std::vector<std::string>>(name);
  };
  return split_paths{split("train"), split("valid"), split("test")};
}

} // namespace detail

inline tokenizer_request tokenizer_request_of(const data_flags& d) {
  return {.type = d.tokenizer_type.if_given(),
          .model = d.tokenizer_model.if_given(),
          .vocabulary = d.vocab_file.if_given(),
          .merges = d.merge_file.if_given()};
}

/// Returns the data of a command that trains or evaluates, from flags that keep to the rules.
/// Throws mc::error for files of names that cannot be read.
inline data_request data_request_of(const options& o, command what) {
  const data_flags& d = o.data;
  const bool trains = what == command::train;
  data_request r;
  r.kind = kind_of_data(o);
  const bool lists = r.kind == data_kind::indexed || r.kind == data_kind::chat;
  if (trains && !lists && d.data_path().size() > 1)
    throw usage("--data-path takes one value, but is given \"{}\" and \"{}\"; give one",
                printable(d.data_path()[0]), printable(d.data_path()[1]));
  if (trains && lists) r.by_split = detail::split_paths_of(d);
  if (!r.by_split) r.paths = lists ? detail::data_arguments(d) : d.data_path();
  r.split = d.split.if_given(), r.cache = d.data_cache_path();
  r.tokenizer = tokenizer_request_of(d);
  r.reset_position_ids = d.reset_position_ids();
  r.reset_attention_mask = d.reset_attention_mask();
  r.eod_mask_loss = d.eod_mask_loss();
  r.learned = d.chat_loss.choice<trained_on>();
  r.fields = chat_fields_of(d.chat_keys);
  r.seed = static_cast<std::uint64_t>(o.model.seed());
  // A token that nothing uses is refused if the command line gives it, and left out if a state
  // does.
  const bool asks = r.reset_position_ids || r.reset_attention_mask || r.eod_mask_loss;
  const bool used = r.tokenizer.kind() == "HuggingFaceTokenizer" ||
                    (asks && r.tokenizer.kind() != "NullTokenizer");
  if (d.eod_token.asked() || used) r.eod_token = d.eod_token.if_given();
  return r;
}

} // namespace mc
