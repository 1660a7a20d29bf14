// Which data the flags of a run name: files, prefixes, and parts that have their own.
#pragma once

#include <megacpp/io/json_file.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/options/options.hpp>
#include <megacpp/run/view.hpp>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace mc::detail {

inline bool is_set(const std::string& prefix) {
  std::error_code ignored;
  return std::filesystem::exists(prefix + ".idx", ignored);
}

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

/// The words of --data-path, or those of the file that --data-args-path names.
inline std::vector<std::string> words_of_data(const data_flags& d) {
  if (!d.data_args_path.given()) return d.data_path();
  if (d.data_path.given())
    throw error(exit_code::usage,
                "--data-path and --data-args-path contradict each other; give one");
  const mapped_file file(d.data_args_path(), exit_code::data);
  return words_in(written_text(file));
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
      throw error(
          exit_code::data,
          fmt::format("{} does not exist, and neither does a data set {}.idx; {}", path, path,
                      is_set(path + "_text_document") ? fmt::format("{}_text_document is one", path)
                                                      : "check --data-path"));
    if (std::filesystem::is_directory(file, ignored))
      throw error(exit_code::data,
                  fmt::format("{} is a directory; give a file in it, or the name of a data set "
                              "without .bin and .idx",
                              path));
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

} // namespace mc::detail
