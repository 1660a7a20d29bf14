// The files of a run's tokenizer, which every state that it saves has beside the weights.
#pragma once

#include <megacpp/data/chat_template.hpp>
#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/io/mapped_file.hpp>
#include <megacpp/train/export.hpp>
#include <megacpp/train/run_data.hpp>

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

} // namespace detail

/// Those that the flags name, or else those of the folder that the run starts from, "" being none.
/// Throws mc::error.
inline std::vector<extra_file> files_of_run_tokenizer(const program_view& p, const data_flags& d,
                                                      const run_data& data,
                                                      const std::string& from) {
  std::vector<extra_file> files;
  if (d.tokenizer_model.given()) {
    files = tokenizer_files(d.tokenizer_model());
  } else if (d.vocab_file.given()) {
    for (const auto& [name, path] :
         {std::pair{"vocab.json", d.vocab_file()}, std::pair{"merges.txt", d.merge_file()}}) {
      const mapped_file file(path, exit_code::data);
      files.emplace_back(name, std::string(file.text()));
    }
  } else {
    files = tokenizer_files(from);
  }
  if (!data.template_folder.empty()) detail::end_at_turns(files, p, data);
  return files;
}

} // namespace mc
