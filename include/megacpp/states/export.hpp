// The command `export`, which writes a saved model anew for use elsewhere.
#pragma once

#include <megacpp/hf/tokenizer_files.hpp>
#include <megacpp/observe/print.hpp>
#include <megacpp/observe/text.hpp>
#include <megacpp/request/requests.hpp>
#include <megacpp/states/start.hpp>

#include <filesystem>
#include <string>
#include <system_error>

#include <unistd.h>

namespace mc {

namespace detail {

/// Throws mc::error(exit_code::output) for a folder of states, which no model replaces.
inline void require_no_states(const std::string& path) {
  std::error_code problem;
  if (!std::filesystem::is_directory(path, problem) || ::access(path.c_str(), R_OK | X_OK) != 0)
    return; // folder_writer says what else it is
  const model_folder there(path);
  if (is_state_root(there) || there.contains(state_file_name))
    throw error(exit_code::output, fmt::format("{} holds the state of a run, which export leaves "
                                               "as it is: choose another folder to save to",
                                               path));
}

} // namespace detail

/// Writes a saved model anew. Weights go from file to file, and all ranks call it. Throws
/// mc::error.
inline void run_export(const program_view& p, const export_request& r,
                       communicator& hosts = self::hosts()) {
  agreement all(hosts);
  const std::string named = all.enter_after_first();
  if (!r.load || !r.save)
    throw error(exit_code::usage,
                "export needs export_request::load FOLDER, a saved model, and export_request::save "
                "FOLDER, where to write it");
  const found_model from = detail::required_model(r.load, "export", all, named);
  if (all.first()) detail::require_no_states(*r.save);
  all.let_others_enter(name_of(from));
  detail::require_same_model(all, from.folder);
  const saved_model m = export_model_folder(from.folder, *r.save, p, weight_type_named(r.type),
                                            r.max_shard.value_or(hf_shard_limit), hosts,
                                            tokenizer_files(from.folder.path()));
  if (!all.first()) return;
  print_line(fmt::format("{} tensors, {} in {} file{}, written to {}", m.tensors,
                         bytes_text(m.bytes).view(), m.files, m.files == 1 ? "" : "s", *r.save));
}

} // namespace mc
