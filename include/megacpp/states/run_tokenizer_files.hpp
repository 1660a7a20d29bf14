// The files of a run's tokenizer, which every state that it saves has beside the weights.
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

/// What has learned conversations ends where a turn does, wherever it is served.
inline void end_at_turns(std::vector<extra_file>& files, const program_view& p,
                         const run_data& data) {
  const auto end = data.words->id_of(chat_template::of_folder(data.template_folder).end_of_turn());
  if (!end) return;
  const std::string name = "generation_config.json";
  auto at = std::ranges::find(files, name, &extra_file::first);
  if (at == files.end())
    at = files.emplace(at, name,
                       has_hugging_face_form(p)
                           ? config_texts(hf_family_of(p).config(p), storage_type::f32).at(name)
                           : "{}");
  at->second = with_end_token(at->second, data.template_folder + '/' + name, *end);
}

/// GPT-2's own two files, and the class whose rules they are read by: a config.json beside them may
/// be of a family that has other rules.
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

/// The files that the request names, or else those of the folder that the run starts from, "" being
/// none. Throws mc::error.
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
