// The files of a run's tokenizer, as states have them beside their weights.
#pragma once

#include <megacpp/chat/chat_template.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/inputs/run_data.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/state.hpp>

#include <algorithm>
#include <string>
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

} // namespace detail

/// Reads the files that a request names, or else those in the folder that the run starts from, ""
/// being none, and the characters of the data. Throws mc::error.
inline std::vector<extra_file> files_of_run_tokenizer(const program_view& p,
                                                      const tokenizer_request& r,
                                                      const run_data& data,
                                                      const std::string& from) {
  std::vector<extra_file> files;
  if (r.model && !r.of_sentencepiece()) {
    files = tokenizer_files(*r.model);
  } else if (r.vocabulary) {
    files = gpt2_tokenizer_files(*r.vocabulary, r.merges.value_or(""));
  } else {
    files = tokenizer_files(from);
  }
  if (!data.template_folder.empty()) detail::end_at_turns(files, p, data);
  if (data.text.characters)
    files.emplace_back(characters_name, characters_text(*data.text.characters));
  return files;
}

} // namespace mc
