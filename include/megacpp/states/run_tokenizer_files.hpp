// The files of the tokenizer of a run, which each of its states has beside the weights.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/inputs/run_tokenizer.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace mc {

namespace detail {

/// Adds the token that ends a turn to the files, so that a model that has learned conversations
/// ends there wherever it is served.
inline void end_at_turns(std::vector<extra_file>& files, const program_view& p,
                         const run_data& data) {
  const auto end =
      data.tokenizer->id_of(chat_template::of_folder(data.template_folder).end_of_turn());
  if (!end) return;
  const std::string name = "generation_config.json";
  auto at = std::ranges::find(files, name, &extra_file::first);
  if (at == files.end())
    at = files.emplace(at, name,
                       is_hugging_face_model(p)
                           ? config_texts(hf_family_of(p).config(p), storage_type::f32).at(name)
                           : "{}");
  at->second = with_end_token(at->second, data.template_folder + '/' + name, *end);
}

/// Returns GPT-2's own two files, and one that names the class by whose rules they are read, since
/// a config.json beside them may be of a family with other rules.
inline std::vector<extra_file> gpt2_files(const tokenizer_request& r) {
  const mapped_file vocabulary(r.vocabulary.value_or(""), exit_code::data);
  const mapped_file merges(r.merges.value_or(""), exit_code::data);
  json_output config{{"tokenizer_class", "GPT2Tokenizer"}};
  if (!read_json(vocabulary, tokenizer_size_limit).has("<|endoftext|>"))
    for (const char* task : {"bos_token", "eos_token", "unk_token"}) config[task] = nullptr;
  return {{"vocab.json", std::string(vocabulary.text())},
          {"merges.txt", std::string(merges.text())},
          {"tokenizer_config.json", json_line(config)}};
}

} // namespace detail

/// Reads the files that a request names, or else those in the folder that the run starts from, ""
/// being none. Throws mc::error.
inline std::vector<extra_file> files_of_run_tokenizer(const program_view& p,
                                                      const tokenizer_request& r,
                                                      const run_data& data,
                                                      const std::string& from) {
  std::vector<extra_file> files;
  if (r.model && !r.of_sentencepiece()) {
    files = tokenizer_files(*r.model);
  } else if (r.vocabulary) {
    files = detail::gpt2_files(r);
  } else {
    files = tokenizer_files(from);
  }
  if (!data.template_folder.empty()) detail::end_at_turns(files, p, data);
  return files;
}

} // namespace mc
