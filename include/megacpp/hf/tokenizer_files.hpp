// The files of a tokenizer are copied into a saved model's folder, beside its weights.
#pragma once

#include <megacpp/hf/model_folder.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/tokenizer/tokenizer_file.hpp>

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace mc {

/// Returns the files of the tokenizer at `path`, which is a folder, a tokenizer.json of any name,
/// or a .tiktoken file whose name says its rules. Returns nothing for "". Throws
/// mc::error(exit_code::model) for a file that cannot be read.
inline std::vector<extra_file> tokenizer_files(const std::string& path) {
  namespace fs = std::filesystem;
  std::vector<extra_file> files;
  const auto take = [&](const std::string& name, const fs::path& from) {
    const mapped_file file(from.string(), exit_code::model);
    files.emplace_back(name, std::string(file.text()));
  };
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const std::string_view name : tokenizer_file_names)
      if (fs::is_regular_file(fs::path(path) / name, ignored))
        take(std::string(name), fs::path(path) / name);
    if (const fs::path ranks = tiktoken_in(path); !ranks.empty())
      take(ranks.filename().string(), ranks);
  } else if (tiktoken_rules_of(fs::path(path).stem().string()) &&
             fs::path(path).extension() == ".tiktoken") {
    take(fs::path(path).filename().string(), path);
  } else if (fs::path(path).extension() == ".json") {
    take("tokenizer.json", path);
  }
  return files;
}

/// Returns the text of a generation_config.json with the token `end` among those that end a text.
/// `file` names the file in messages. Throws mc::error(exit_code::model) for a text that is no JSON
/// object.
inline std::string with_end_token(std::string_view text, const std::string& file,
                                  std::int32_t end) {
  const json_value value(parse_json(text, file, exit_code::model), file, exit_code::model);
  nlohmann::json config = value.as<json_value>().raw();
  nlohmann::json& ends = config["eos_token_id"];
  if (ends == end) return std::string(text);
  nlohmann::json all = nlohmann::json::array({end});
  if (ends.is_number()) all.push_back(ends);
  if (ends.is_array())
    for (const nlohmann::json& other : ends)
      if (other != end) all.push_back(other);
  ends = all.size() == 1 ? nlohmann::json(end) : std::move(all);
  return config.dump(2) + "\n";
}

/// Returns GPT-2's own two files, and one that names the class by whose rules they are read, since
/// a config.json beside them may be of a family with other rules.
inline std::vector<extra_file> gpt2_tokenizer_files(const std::string& vocabulary_path,
                                                    const std::string& merges_path) {
  const mapped_file vocabulary(vocabulary_path, exit_code::data);
  const mapped_file merges(merges_path, exit_code::data);
  json_output config{{"tokenizer_class", "GPT2Tokenizer"}};
  if (!read_json(vocabulary, tokenizer_size_limit).has("<|endoftext|>"))
    for (const char* task : {"bos_token", "eos_token", "unk_token"}) config[task] = nullptr;
  return {{"vocab.json", std::string(vocabulary.text())},
          {"merges.txt", std::string(merges.text())},
          {"tokenizer_config.json", json_line(config)}};
}

} // namespace mc
